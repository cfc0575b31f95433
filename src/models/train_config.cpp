#include "models/train_config.h"

#include <fmt/format.h>

#include "core/util/hash.h"
#include "tessera/io.h"

namespace tessera::models {
namespace {

using Json = nlohmann::json;

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
  fn("alibi", o.model.alibi);
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
  fn("amp", o.amp);
  fn("lower_residual", o.lower_residual);
}

// What checkpoints of the first version lack: they were trained with the defaults.
bool is_late(std::string_view name) { return name == "amp" || name == "lower_residual" || name == "alibi"; }

template <class T>
Json to_value(const T& value) {
  if constexpr (std::is_same_v<T, Amp>) return name(value);
  else return value;
}

// False if the JSON is of another kind.
template <class T>
bool from_value(const Json& json, T& value) {
  using Stored = std::conditional_t<std::is_enum_v<T>, int64_t, T>;
  if constexpr (std::is_same_v<T, Amp>) {
    for (Amp amp : {Amp::Off, Amp::BFloat16, Amp::Float16})
      if (json == name(amp)) return value = amp, true;
    return false;
  } else {
    if (!kNumber<Stored>(json)) return false;
    value = static_cast<T>(json.get<Stored>());
    return true;
  }
}

// What decides which tokens there are, and in what proportion.
std::string identity_of(const TrainOptions& o) {
  if (o.data.empty()) return o.text;
  std::string out;
  for (const DataStream& stream : o.data) {
    out += read_stored_file(stream.folder + "/train/index.json", o.remote);
    if (stream.proportion) out += fmt::format("\nproportion {}", *stream.proportion);
    if (stream.repeat) out += fmt::format("\nrepeat {}", *stream.repeat);
    if (stream.choose) out += fmt::format("\nchoose {}", *stream.choose);
  }
  return o.epoch_size ? fmt::format("{}\nepoch {}", out, o.epoch_size) : out;
}

}  // namespace

Json config_to_json(const TrainOptions& options) {
  Json out;
  each_field(options, [&](const char* name, const auto& value) { out[name] = to_value(value); });
  Hash hash;
  const std::string text = identity_of(options);
  hash.update(text.data(), text.size());
  out["text"] = hash.value();
  return out;
}

TrainOptions config_from_json(const std::string& text, const std::string& file) {
  const Json json = parse_object(text, file);
  TrainOptions options;
  each_field(options, [&]<class T>(const char* name, T& value) {
    auto it = json.find(name);
    if (it == json.end() ? !is_late(name) : !from_value(*it, value))
      throw FileError(fmt::format("{}: damaged checkpoint: no value of {}", file, name));
  });
  const auto activation = static_cast<int64_t>(options.model.activation);
  if (activation < 0 || activation > static_cast<int64_t>(Activation::Tanh))
    throw FileError(fmt::format("{}: damaged checkpoint: unknown activation {}", file, activation));
  return options;
}

std::string first_difference(const Json& there, const Json& here) {
  const Json defaults = config_to_json({});
  for (const auto& [name, value] : here.items()) {
    const Json& from = is_late(name) && !there.contains(name) ? defaults : there;
    auto it = from.find(name);
    if (it != from.end() && *it == value) continue;
    if (name == "text") return "it was trained on another text";
    return fmt::format("{} is {} there and {} here", name, it == from.end() ? "unknown" : it->dump(), value.dump());
  }
  return {};
}

}  // namespace tessera::models
