#include "models/train_gpt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "data/stream_sampling.h"
#include "models/train_config.h"
#include "tessera/io.h"
#include "tessera/optim.h"

namespace tessera::models {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 30;  // of anything that is counted in a model, so that products fit
constexpr int64_t kMostBatches = int64_t{1} << 27;  // of a run: each has random numbers of its own

// Streams of random numbers that belong to one seed.
enum Stream : uint64_t { kWeights, kBatches, kDropout, kStreams };
uint64_t seed_of(uint64_t seed, Stream stream) { return seed * kStreams + stream; }

std::unique_ptr<optim::AdamW> make_optimizer(const GPT& model, const TrainOptions& o) {
  optim::AdamWOptions options{o.lr, o.beta1, o.beta2, 1e-8, o.weight_decay};
  std::vector<Tensor> matrices, others;
  for (const Tensor& p : model.parameters()) (p.dim() > 1 ? matrices : others).push_back(p);
  optim::AdamWOptions undecayed = options;
  undecayed.weight_decay = 0;
  using Groups = std::vector<optim::ParamGroup<optim::AdamWOptions>>;
  return std::make_unique<optim::AdamW>(Groups{{matrices, options}, {others, undecayed}});
}

// The whole split as batches of consecutive blocks; the tokens that fill no block are the last one.
struct ValidationBlocks {
  Tokens tokens;
  int64_t block, batch;

  int64_t total() const { return static_cast<int64_t>(tokens->size()) - 1; }  // the first one is no target
  int64_t whole() const { return total() / block; }
  int64_t batches() const { return (whole() + batch - 1) / batch + (total() % block != 0); }
  Tensors operator()(int64_t number) const {
    const bool last = number * batch >= whole();
    const int64_t at = last ? whole() * block : number * batch * block;
    const Shape shape{last ? 1 : std::min(batch, whole() - number * batch), last ? total() % block : block};
    const auto from = tokens->begin() + at, to = from + shape[0].value() * shape[1].value();
    return {tensor(std::vector<int64_t>(from, to), shape), tensor(std::vector<int64_t>(from + 1, to + 1), shape)};
  }
};

GPT make_model(TrainOptions& o, const TextData& data) {
  const StateDict initial = o.init.empty() ? StateDict() : load_safetensors(o.init);
  GPTConfig& config = o.model;
  const bool mpt = is_mpt(initial);
  if (!o.init.empty()) blame(o.init, [&] { config.vocab = (mpt ? mpt_config(initial) : gpt2_config(initial)).vocab; });
  else if (config.vocab == 0) config.vocab = data.tokenizer.size();
  if (config.vocab == 0) {
    for (const DataStream& stream : o.data) MdsReader(stream.folder + "/train", {.remote = o.remote});  // is it there?
    throw FileError(o.data.at(0).folder + ": no vocabulary.txt says how many tokens there are: give --vocab");
  }
  if (config.vocab < data.tokenizer.size())
    throw FileError(fmt::format("train: the text has {} characters, the model's vocabulary {}", data.tokenizer.size(),
                                config.vocab));
  Generator generator(seed_of(o.seed, kWeights));
  GPT model(config, generator);
  if (!o.init.empty())
    blame(o.init, [&] { model.load_state_dict(mpt ? convert_mpt(initial) : convert_gpt2(initial, config.block)); });
  model.to(o.device);  // made on the CPU: the same weights everywhere
  return model;
}

// The characters of the folders that have a vocabulary, which is one.
CharTokenizer vocabulary_of(const std::vector<DataStream>& streams, const RemoteOptions& remote) {
  CharTokenizer out;
  std::string first;
  for (const DataStream& stream : streams) {
    const std::string file = stream.folder + "/vocabulary.txt";
    const auto text = find_stored_file(file, remote);
    if (!text) continue;
    std::optional<CharTokenizer> here;
    blame(file, [&] { here.emplace(*text); });
    if (!first.empty() && here->vocabulary() != out.vocabulary())
      throw FileError(fmt::format("{}: has other characters than {}: pack both with one --vocabulary", file, first));
    if (first.empty()) first = file;
    out = *here;
  }
  return out;
}

void append_tokens(const std::string& folder, const RemoteOptions& remote, std::vector<int32_t>& tokens) {
  const MdsReader reader(folder, {.remote = remote});
  const size_t column = reader.column("tokens");
  for (int64_t i = 0; i < reader.size(); ++i) {
    const MdsValue value = reader.value(i, column);
    const Tensor* array = std::get_if<Tensor>(&value);
    if (!array || is_floating(array->dtype())) throw FileError(folder + ": its column tokens has no tokens");
    const Tensor wide = cast(*array, Int32);
    tokens.insert(tokens.end(), wide.data<int32_t>(), wide.data<int32_t>() + wide.numel());
  }
}

// Of folders of shards: those to train on stay on disk, those to validate are read, one folder's after another's, where
// there are any.
TextData streamed_data(const std::vector<DataStream>& streams, const RemoteOptions& remote) {
  TextData out;
  out.tokenizer = vocabulary_of(streams, remote);
  std::vector<int32_t> tokens;
  for (const DataStream& stream : streams) {
    const std::string index = stream.folder + "/train/index.json";
    if (std::error_code ignored; index.find("://") == index.npos && !std::filesystem::exists(index, ignored))
      throw FileError(fmt::format("{}: to train on, it needs {}, as data pack --block makes it", stream.folder, index));
    if (const std::string folder = stream.folder + "/validation"; find_stored_file(folder + "/index.json", remote))
      append_tokens(folder, remote, tokens);
  }
  if (!tokens.empty()) out.validation = std::make_shared<const std::vector<int32_t>>(std::move(tokens));
  return out;
}

TextData make_data(const TrainOptions& o) {
  return o.data.empty() ? make_text_data(o.text, CharTokenizer(o.text), o.model.block)
                        : streamed_data(o.data, o.remote);
}

BatchSource make_batches(const TextData& data, const TrainOptions& o) {
  const uint64_t seed = seed_of(o.seed, kBatches);
  if (o.data.empty()) return shuffled_windows(data.train, o.model.block, o.batch, seed);
  std::vector<DataStream> streams = o.data;
  for (DataStream& stream : streams) stream.folder += "/train";
  const auto set = std::make_shared<const StreamingDataset>(
      streams, StreamingOptions{.order = {.seed = seed}, .epoch_size = o.epoch_size, .reader = {.remote = o.remote}});
  return streamed_tokens(set, "tokens", o.model.block, o.batch, o.model.vocab);
}

train::Work make_work(const GPT& model, const TextData& data, const TrainOptions& o) {
  const ValidationBlocks validation{data.validation, o.model.block, o.batch};
  const bool validates = data.validation != nullptr;
  return {.batches = make_batches(data, o),
          .loss = [&model](const Tensors& batch) { return model.loss(batch[0], batch[1]); },
          .loss_and_backward =
              [&model](const Tensors& batch, const Tensor& weight) {
                return model.loss_and_backward(batch[0], batch[1], weight);
              },
          .count = [](const Tensors& batch) { return batch[1].numel(); },
          .items = o.batch * o.model.block,
          .validation = validates ? BatchSource(validation) : BatchSource(),
          .validation_batches = validates ? validation.batches() : 0};
}

train::Options make_options(const TrainOptions& o, const TextData& data) {
  return {
      .until = train::steps(o.steps),
      .accumulate = o.accumulate,
      .microbatch = o.microbatch,
      .schedule = optim::warmup_cosine(o.warmup, std::max(o.steps, o.warmup), o.lr > 0 ? o.min_lr / o.lr : 0),
      .clip = o.clip,
      .amp = o.amp,
      .lower_residual = o.lower_residual,
      .on_nan = o.on_nan,
      .seed = seed_of(o.seed, kDropout),
      .device = o.device,
      .report_interval = o.report_interval,
      .local_sgd = o.local_sgd,
      .gradient_dtype = o.gradient_dtype,
      .evaluate = train::steps(o.eval_interval),
      .save = train::steps(o.checkpoint_interval),
      .checkpoint = o.checkpoint,
      .keep = o.keep,
      .resume = o.resume ? train::Resume::Always : train::Resume::Never,
      .metadata = {{"kind", "gpt"}, {"config", config_to_json(o).dump()}, {"vocabulary", data.tokenizer.vocabulary()}},
      .catch_signals = false};
}

Checkpoint load_gpt_checkpoint(const std::string& file) { return load_checkpoint_of(file, "gpt", "a GPT"); }

// The options of a run that goes on from a checkpoint, which must be of the same configuration. Its weights are there,
// and so is the size of a vocabulary that came from a text or a file.
TrainOptions resumed(TrainOptions o) {
  const Checkpoint from = load_whole_checkpoint(o.checkpoint).checkpoint;
  check_kind(from, o.checkpoint, "gpt", "a GPT");
  const nlohmann::json there = parse_object(metadata(from, o.checkpoint, "config"), o.checkpoint);
  if (o.model.vocab == 0 || !o.init.empty())
    o.model.vocab = config_from_json(metadata(from, o.checkpoint, "config"), o.checkpoint).model.vocab;
  o.init.clear();
  nlohmann::json here = config_to_json(o);
  here["steps"] = there.value("steps", here["steps"]);  // a run may be made longer or shorter
  if (const std::string difference = first_difference(there, here); !difference.empty())
    throw FileError(fmt::format("{}: of another configuration: {}", o.checkpoint, difference));
  return o;
}

// Sizes and training as MosaicML has published them for its MPT models.
struct MptPreset {
  const char* name;
  int64_t layers, heads, width;
  double lr;
  int64_t steps, batch, accumulate, interval;
};
constexpr MptPreset kMpt[] = {{"mpt-125m", 12, 12, 768, 6e-4, 4800, 16, 16, 500},
                              {"mpt-350m", 24, 16, 1024, 3e-4, 13400, 8, 32, 1000},
                              {"mpt-760m", 24, 12, 1536, 2.5e-4, 29000, 4, 64, 2000},
                              {"mpt-1b", 24, 16, 2048, 2e-4, 24800, 4, 128, 2000},
                              {"mpt-3b", 32, 20, 2560, 1.6e-4, 51500, 8, 64, 5000}};

TrainOptions options_of(const MptPreset& p) {
  TrainOptions o;
  o.model = {.layers = p.layers,
             .heads = p.heads,
             .width = p.width,
             .block = 2048,
             .vocab = 50368,
             .init_std = 0.02,
             .bias = false,
             .activation = Activation::GeluErf,
             .alibi = 8};
  o.steps = p.steps;
  o.batch = p.batch;
  o.accumulate = p.accumulate;
  o.lr = p.lr;
  o.min_lr = 0.1 * p.lr;
  o.beta2 = 0.95;
  o.weight_decay = 0;
  o.amp = Amp::BFloat16;
  o.eval_interval = o.checkpoint_interval = p.interval;
  return o;
}

}  // namespace

std::vector<std::string> train_presets() {
  std::vector<std::string> all{"shakespeare-char-cpu", "gpt2-124m"};
  for (const MptPreset& p : kMpt) all.push_back(p.name);
  return all;
}

TrainOptions train_preset(const std::string& name) {
  for (const MptPreset& p : kMpt)
    if (name == p.name) return options_of(p);
  TrainOptions o;
  if (name == "shakespeare-char-cpu") {  // nanoGPT's configuration for a MacBook
    o.model = {.layers = 4,
               .heads = 4,
               .width = 128,
               .block = 64,
               .vocab = 0,
               .bias = false,
               .activation = Activation::GeluErf};
  } else if (name == "gpt2-124m") {  // GPT-2's sizes, nanoGPT's training
    o.steps = 600000;
    o.accumulate = 40;
    o.lr = 6e-4;
    o.min_lr = 6e-5;
    o.warmup = 2000;
    o.beta2 = 0.95;
    o.eval_interval = o.checkpoint_interval = 1000;
  } else {
    throw Error(fmt::format("unknown preset \"{}\": there are {}", name, fmt::join(train_presets(), ", ")));
  }
  return o;
}

TrainOptions train_options_of(const std::string& checkpoint) {
  return config_from_json(metadata(load_gpt_checkpoint(checkpoint), checkpoint, "config"), checkpoint);
}

void validate(const TrainOptions& o) {
  auto require = [](bool ok, const char* what, auto value) {
    if (!ok) throw Error(fmt::format("train: {} = {} is out of range", what, value));
  };
  require(o.steps >= 1, "steps", o.steps);
  require(o.batch >= 1, "batch", o.batch);
  require(o.accumulate >= 1, "accumulation", o.accumulate);
  require(o.microbatch >= train::kAutoMicrobatch, "microbatch", o.microbatch);
  require(o.steps <= kMostBatches / o.accumulate, "steps", o.steps);
  require(o.lr >= 0 && std::isfinite(o.lr), "lr", o.lr);
  require(o.min_lr >= 0, "min_lr", o.min_lr);
  if (!(o.min_lr <= o.lr)) throw Error(fmt::format("train: min_lr = {} exceeds lr = {}", o.min_lr, o.lr));
  require(o.warmup >= 0, "warmup", o.warmup);
  require(o.clip >= 0 && std::isfinite(o.clip), "clip", o.clip);
  require(o.eval_interval >= 0, "eval_interval", o.eval_interval);
  require(o.report_interval >= 1, "report_interval", o.report_interval);
  require(o.checkpoint_interval >= 0, "checkpoint_interval", o.checkpoint_interval);
  require(o.model.vocab >= 0, "vocab", o.model.vocab);
  for (auto [what, v] : {std::pair{"layers", o.model.layers},
                         {"heads", o.model.heads},
                         {"width", o.model.width},
                         {"block", o.model.block}})
    require(v >= 1 && v <= kLargestSize, what, v);
  if (o.model.width % o.model.heads)
    throw Error(fmt::format("train: {} heads do not divide the width {}", o.model.heads, o.model.width));
  for (auto [what, v] : {std::pair{"beta1", o.beta1}, {"beta2", o.beta2}, {"dropout", o.model.dropout}})
    require(v >= 0 && v < 1, what, v);
  require(o.model.alibi >= 0 && o.model.alibi <= 64, "alibi", o.model.alibi);
  require(o.model.init_std >= 0 && std::isfinite(o.model.init_std), "init_std", o.model.init_std);
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "weight_decay", o.weight_decay);
  if (!o.data.empty()) check_weights(o.data, o.epoch_size);
  if (o.lower_residual && o.amp == Amp::Off) throw Error("train: a lower residual stream needs amp");
  if (o.resume && o.checkpoint.empty()) throw Error("train: resume needs a checkpoint to go on from");
}

TrainResult train_gpt(const TrainOptions& options, const TrainCallbacks& callbacks, const dist::Group* group) {
  validate(options);
  TrainOptions o = options;
  if (o.resume) o = resumed(std::move(o));
  const TextData data = make_data(o);
  GPT model = make_model(o, data);
  const std::unique_ptr<optim::AdamW> optimizer = make_optimizer(model, o);
  const int64_t tokens = o.batch * o.accumulate * o.model.block;
  train::Callbacks called{.on_step = callbacks.on_step,
                          .on_eval = callbacks.on_eval,
                          .on_checkpoint = callbacks.on_checkpoint,
                          .on_note = callbacks.on_note,
                          .on_microbatch = callbacks.on_microbatch,
                          .stop = callbacks.stop};
  if (callbacks.on_start)
    called.on_start = [&](int64_t step) { callbacks.on_start(model.parameter_count(), tokens, step); };
  train::Trainer trainer(model, *optimizer, make_work(model, data, o), make_options(o, data), group);
  return {trainer.run(called), model.training_flops(tokens)};
}

TrainedGPT load_trained_gpt(const std::string& file) {
  const Checkpoint from = load_gpt_checkpoint(file);
  const TrainOptions options = config_from_json(metadata(from, file, "config"), file);
  std::optional<TrainedGPT> out;
  blame(file, [&] {
    CharTokenizer tokenizer(metadata(from, file, "vocabulary"));
    out.emplace(GPT(options.model), tokenizer);
    out->model.load_state_dict(part(from, "model."));
  });
  out->model.eval();
  return *out;
}

}  // namespace tessera::models
