#include "models/train_config.h"

#include <fmt/format.h>

#include "io/hash.h"

namespace tessera::models {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 16;

template <class T>
constexpr auto kNumber = [](const Json& j) {
  if constexpr (std::is_same_v<T, bool>) return j.is_boolean();
  else if constexpr (std::is_same_v<T, uint64_t>) return j.is_number_unsigned();
  else if constexpr (std::is_integral_v<T>) return j.is_number_integer();
  else return j.is_number();
};

// Calls fn(name, field) for every option that decides the course of a run, in the order of the messages.
template <class Options, class Fn>
void each_field(Options& o, const Fn& fn) {
  fn("layers", o.model.layers);
  fn("heads", o.model.heads);
  fn("width", o.model.width);
  fn("block", o.model.block);
  fn("vocab", o.model.vocab);
  fn("dropout", o.model.dropout);
  fn("init_std", o.model.init_std);
  fn("bias", o.model.bias);
  fn("tied_head", o.model.tied_head);
  fn("activation", o.model.activation);
  fn("steps", o.steps);
  fn("batch", o.batch);
  fn("accumulate", o.accumulate);
  fn("lr", o.lr);
  fn("min_lr", o.min_lr);
  fn("warmup", o.warmup);
  fn("beta1", o.beta1);
  fn("beta2", o.beta2);
  fn("weight_decay", o.weight_decay);
  fn("clip", o.clip);
  fn("seed", o.seed);
}

}  // namespace

Json parse_object(const std::string& text, const std::string& file) {
  auto watch = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw FileError(file + ": damaged checkpoint: JSON nested too deeply");
    return true;
  };
  Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (!json.is_object()) throw FileError(file + ": damaged checkpoint: no JSON object where one must be");
  return json;
}

Json config_to_json(const TrainOptions& options) {
  Json out;
  each_field(options, [&](const char* name, const auto& value) { out[name] = value; });
  Hash hash;
  hash.update(options.text.data(), options.text.size());
  out["text"] = hash.value();
  return out;
}

TrainOptions config_from_json(const std::string& text, const std::string& file) {
  const Json json = parse_object(text, file);
  TrainOptions options;
  each_field(options, [&]<class T>(const char* name, T& value) {
    using Stored = std::conditional_t<std::is_enum_v<T>, int64_t, T>;
    auto it = json.find(name);
    if (it == json.end() || !kNumber<Stored>(*it))
      throw FileError(fmt::format("{}: damaged checkpoint: no value of {}", file, name));
    value = static_cast<T>(it->template get<Stored>());
  });
  const auto activation = static_cast<int64_t>(options.model.activation);
  if (activation < 0 || activation > static_cast<int64_t>(Activation::Tanh))
    throw FileError(fmt::format("{}: damaged checkpoint: unknown activation {}", file, activation));
  return options;
}

std::string first_difference(const Json& there, const Json& here) {
  for (const auto& [name, value] : here.items()) {
    auto it = there.find(name);
    if (it != there.end() && *it == value) continue;
    if (name == "text") return "it was trained on another text";
    return fmt::format("{} is {} there and {} here", name, it == there.end() ? "unknown" : it->dump(), value.dump());
  }
  return {};
}

}  // namespace tessera::models
