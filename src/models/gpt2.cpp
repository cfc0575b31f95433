// GPT-2 weights as published on Hugging Face: other names, and linear weights stored [in, out].
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "tessera/models.h"

namespace tessera::models {
namespace {

constexpr std::pair<std::string_view, std::string_view> kParts[] = {
    {"ln_1", "norm1"},  {"attn.c_attn", "attention.qkv"}, {"attn.c_proj", "attention.out"}, {"ln_2", "norm2"},
    {"mlp.c_fc", "up"}, {"mlp.c_proj", "down"},
};

std::string_view plain(std::string_view name) {
  constexpr std::string_view prefix = "transformer.";
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

// "h.3.ln_1.weight" -> "h.3." and "ln_1.weight"; false for other names.
bool split_layer(std::string_view name, std::string_view& layer, std::string_view& part, int64_t& index) {
  if (!name.starts_with("h.")) return false;
  auto [end, error] = std::from_chars(name.data() + 2, name.data() + name.size(), index);
  if (error != std::errc() || index < 0 || end == name.data() + name.size() || *end != '.') return false;
  const auto length = static_cast<size_t>(end - name.data()) + 1;
  layer = name.substr(0, length);
  part = name.substr(length);
  return true;
}

}  // namespace

GPTConfig gpt2_config(const StateDict& file) {
  GPTConfig c;
  c.layers = c.block = c.width = 0;
  c.bias = false;
  for (const auto& [full, t] : file) {
    const std::string_view name = plain(full);
    std::string_view layer, part;
    int64_t index = 0;
    if (name == "wte.weight" && t.dim() == 2) c.vocab = t.size(0), c.width = t.size(1);
    else if (name == "wpe.weight" && t.dim() == 2) c.block = t.size(0);
    else if (name == "ln_f.bias") c.bias = true;
    else if (split_layer(name, layer, part, index))
      c.layers = std::max(c.layers, std::min<int64_t>(index, 1 << 20) + 1);
  }
  if (c.width == 0 || c.block == 0 || c.layers == 0)
    throw Error("no GPT-2 weights in Hugging Face's names (wte.weight, wpe.weight, h.0...)");
  c.heads = std::max<int64_t>(c.width / 64, 1);
  return c;
}

StateDict convert_gpt2(const StateDict& file, int64_t block) {
  StateDict out;
  for (const auto& [full, t] : file) {
    const std::string_view name = plain(full);
    std::string_view layer, part;
    int64_t index = 0;
    if (name == "wpe.weight" && t.dim() == 2 && t.size(0) > block) {
      out.emplace(name, t.slice(0, 0, block));
    } else if (name.starts_with("ln_f.")) {
      out.emplace(fmt::format("norm.{}", name.substr(5)), t);
    } else if (name == "lm_head.weight") {
      out.emplace("head.weight", t);
    } else if (split_layer(name, layer, part, index)) {
      if (part == "attn.bias" || part == "attn.masked_bias") continue;  // the causal mask
      const size_t dot = part.rfind('.');
      const auto* known = std::find_if(std::begin(kParts), std::end(kParts), [&](const auto& p) {
        return dot != part.npos && p.first == part.substr(0, dot);
      });
      if (known == std::end(kParts)) out.emplace(name, t);  // load_state_dict will name it as unexpected
      else
        out.emplace(fmt::format("{}{}{}", layer, known->second, part.substr(dot)),
                    t.dim() == 2 ? t.transpose(0, 1) : t);
    } else {
      out.emplace(name, t);
    }
  }
  return out;
}

}  // namespace tessera::models
