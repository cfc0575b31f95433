// MPT's weights as published on Hugging Face: other names for the same parts.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tessera/models.h"

namespace tessera::models {
namespace {

constexpr std::pair<std::string_view, std::string_view> kMptParts[] = {
    {"norm_1", "norm1"}, {"attn.Wqkv", "attention.qkv"}, {"attn.out_proj", "attention.out"},
    {"norm_2", "norm2"}, {"ffn.up_proj", "up"},          {"ffn.down_proj", "down"},
};
constexpr std::string_view kLayers = "blocks.";

// Without the "transformer." of those who publish them, and the "model." of those who trained them.
std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"model.", "transformer."})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return name;
}

// The layer of "blocks.3.norm_1.weight"; -1 of other names.
int64_t layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return -1;
  int64_t layer = -1;
  const char* const begin = name.data() + kLayers.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
  const bool whole = error == std::errc() && end != name.data() + name.size() && *end == '.';
  return whole && layer >= 0 ? layer : -1;
}

}  // namespace

bool is_mpt(const StateDict& file) {
  return std::any_of(file.begin(), file.end(),
                     [](const auto& entry) { return layer_of(without_prefix(entry.first)) >= 0; });
}

GPTConfig mpt_config(const StateDict& file) {
  GPTConfig c{.layers = 0, .width = 0, .bias = false, .activation = Activation::GeluErf, .alibi = 8};
  c.block = 2048;
  for (const auto& [full, t] : file) {
    const std::string_view name = without_prefix(full);
    if (name == "wte.weight" && t.dim() == 2) c.vocab = t.size(0), c.width = t.size(1);
    else if (name == "wpe.weight" && t.dim() == 2) c.block = t.size(0), c.alibi = 0;
    else if (name == "norm_f.bias") c.bias = true;
    c.layers = std::max(c.layers, std::min<int64_t>(layer_of(name), 1 << 20) + 1);
  }
  if (c.width == 0 || c.layers == 0)
    throw Error("no MPT weights in Hugging Face's names (transformer.wte.weight, transformer.blocks.0...)");
  c.heads = c.width == 768 ? 12 : std::max<int64_t>(c.width / 128, 1);
  return c;
}

StateDict convert_mpt(const StateDict& file) {
  StateDict out;
  for (const auto& [full, t] : file) {
    const std::string_view name = without_prefix(full);
    const int64_t layer = layer_of(name);
    if (name.starts_with("norm_f.")) {
      out.emplace(fmt::format("norm.{}", name.substr(7)), t);
    } else if (name == "lm_head.weight") {
      out.emplace("head.weight", t);
    } else if (layer >= 0) {
      const std::string_view part = name.substr(name.find('.', kLayers.size()) + 1);
      const size_t dot = part.rfind('.');
      const auto* known = std::find_if(std::begin(kMptParts), std::end(kMptParts), [&](const auto& p) {
        return dot != part.npos && p.first == part.substr(0, dot);
      });
      if (known == std::end(kMptParts)) out.emplace(name, t);  // load_state_dict will name it as unexpected
      else out.emplace(fmt::format("h.{}.{}{}", layer, known->second, part.substr(dot)), t);
    } else {
      out.emplace(name, t);
    }
  }
  return out;
}

}  // namespace tessera::models
