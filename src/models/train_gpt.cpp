#include "models/train_gpt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <span>
#include <utility>

#include "models/train_config.h"
#include "tessera/amp.h"
#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/io.h"
#include "tessera/optim.h"
#include "tessera/profiler.h"
#include "tessera/stream.h"

namespace tessera::models {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSmallestLossScale = 0x1p-10;      // gradients that overflow below it are not finite
constexpr int64_t kLargestSize = int64_t{1} << 30;  // of anything that is counted in a model, so that products fit

// Random numbers belong to a batch, whichever rank takes it: so many blocks of the stream are its own.
constexpr int kDrawsOfBatch = 36;
constexpr uint64_t kMostBatches = uint64_t{1} << (63 - kDrawsOfBatch);

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

// Which part of the work is this rank's.
struct Ranks {
  const dist::Group* group = nullptr;  // null: one rank

  int size() const { return group ? group->size() : 1; }
  int rank() const { return group ? group->rank() : 0; }
  bool leads() const { return rank() == 0; }
  void at_step(int64_t step) const {
    if (group) dist::set_step(*group, step);
  }
  // What this rank does in the scope.
  std::optional<dist::InPhase> in(dist::Phase phase) const {
    std::optional<dist::InPhase> scope;
    if (group) scope.emplace(*group, phase);
    return scope;
  }
  // Of numbers that each rank has its part of, [parts], all: [size parts].
  Tensor all(const Tensor& parts) const { return group ? dist::all_gather(parts, *group) : parts; }
  Tensor of_first(const Tensor& mine) const { return group ? dist::broadcast(mine, 0, *group) : mine; }
  // Whether any rank says so; all of them ask.
  bool any(bool mine) const {
    if (!group || group->size() == 1) return mine;
    return dist::all_reduce(tensor(std::vector<int32_t>{mine}, {1}), *group, dist::Max).item<int32_t>() != 0;
  }
};

// Mean loss over all tokens but the first, in consecutive blocks; ranks take batches in turn. Absent if stopped.
std::optional<double> evaluate(const GPT& model, const std::vector<int32_t>& tokens, int64_t batch, const Ranks& ranks,
                               const std::atomic<bool>* stop) {
  NoGrad no_grad;
  nn::EvalMode eval(model);
  const auto total = static_cast<int64_t>(tokens.size()) - 1;
  const Device device = model.head.device();
  Tensors parts;
  for (int64_t at = 0, number = 0; at < total; ++number) {
    if (ranks.size() == 1 && stop && *stop) return std::nullopt;
    const int64_t length = std::min(model.config.block, total - at), rows = std::min(batch, (total - at) / length);
    if (number % ranks.size() == ranks.rank()) {
      const auto from = tokens.begin() + at;
      const Shape shape{rows, length};
      const Tensor x = tensor(std::vector<int64_t>(from, from + rows * length), shape).to(device);
      const Tensor y = tensor(std::vector<int64_t>(from + 1, from + rows * length + 1), shape).to(device);
      parts.push_back(reshape(cast(model.loss(x, y), Float64) * static_cast<double>(rows * length), {1}));
    } else {
      parts.push_back(zeros({1}, Float64, device));
    }
    at += rows * length;
  }
  Tensor sums = concat(parts, 0);
  if (ranks.group) sums = dist::all_reduce(sums, *ranks.group);
  return without_nan_sign(sum(sums).item() / static_cast<double>(total));
}

// A run: everything that a checkpoint holds.
class Run {
 public:
  Run(const TrainOptions& options, const TrainCallbacks& callbacks, const dist::Group* group)
      : options_(options),
        callbacks_(callbacks),
        ranks_{group},
        initial_(options.init.empty() ? StateDict() : load_safetensors(options.init)),
        data_(make_text_data(options.text, CharTokenizer(options.text), options.model.block)),
        model_(make_model()),
        optimizer_(make_optimizer(model_, options_)),
        scaler_({.enabled = options.amp == Amp::Float16}),
        schedule_(optim::warmup_cosine(options.warmup, std::max(options.steps, options.warmup),
                                       options.lr > 0 ? options.min_lr / options.lr : 0)),
        loader_(own_batches(
                    shuffled_windows(data_.train, options.model.block, options.batch, seed_of(options.seed, kBatches))),
                2, options.device),
        gradients_(model_.parameters()),
        file_(options.checkpoint, options.resume) {
    initial_.clear();
    if (options.resume) restore();
    loss_scale_ = scaler_.current_scale();
  }

  TrainResult train() {
    reset_peak_memory(options_.device);
    profiler::parameters(model_.parameters());
    std::vector<Tensor> states;
    for (const auto& [name, state] : optimizer_->state_dict()) states.push_back(state);
    profiler::optimizer_state(states);
    if (callbacks_.on_start)
      callbacks_.on_start(model_.parameter_count(), options_.batch * options_.accumulate * options_.model.block, step_);
    const auto due = [&](int64_t interval) { return interval > 0 && step_ % interval == 0 && step_ < options_.steps; };
    while (step_ < options_.steps && !ranks_.any(stopped())) {
      step();
      profiler::step();
      if (static_cast<int64_t>(pending_.size()) >= options_.report_interval) send();
      if (due(options_.eval_interval)) validate();
      if (due(options_.checkpoint_interval)) save();
    }
    report();
    if (step_ >= options_.steps) result_.val_loss = validate();
    result_.stopped = step_ < options_.steps;
    save();
    result_.flops_per_step = model_.training_flops(options_.batch * options_.accumulate * options_.model.block);
    result_.peak_memory_bytes = memory_stats(options_.device).peak_allocated;
    return std::move(result_);
  }

 private:
  // A step whose numbers may still be on their way.
  struct Pending {
    int64_t step = 0;
    double lr = 0;
    Tensor loss, norm, skipped, loss_scale;
  };
  // A moment of the device's work.
  struct Mark {
    Clock::time_point host = Clock::now();
    Event event;
    explicit Mark(Device device) : event(device, true) { event.record(current_stream(device)); }
    double milliseconds_since(const Mark& before, Device device) const {
      if (device.is_gpu()) return event.milliseconds_since(before.event);
      return std::chrono::duration<double, std::milli>(host - before.host).count();
    }
  };
  struct Sent {
    std::vector<Pending> steps;
    Tensor numbers;  // four of each
    Mark began, made;
  };

  bool stopped() const { return callbacks_.stop && *callbacks_.stop; }

  GPT make_model() {
    GPTConfig& config = options_.model;
    if (!options_.init.empty()) blame(options_.init, [&] { config.vocab = gpt2_config(initial_).vocab; });
    else if (config.vocab == 0) config.vocab = data_.tokenizer.size();
    if (config.vocab < data_.tokenizer.size())
      throw FileError(fmt::format("train: the text has {} characters, the model's vocabulary {}",
                                  data_.tokenizer.size(), config.vocab));
    Generator generator(seed_of(options_.seed, kWeights));
    GPT model(config, generator);
    if (!options_.init.empty())
      blame(options_.init, [&] { model.load_state_dict(convert_gpt2(initial_, config.block)); });
    model.to(options_.device);  // made on the CPU: the same weights everywhere
    return model;
  }

  // Batches of each step that are this rank's, one after another.
  int64_t own() const { return options_.accumulate / ranks_.size(); }
  // The number of this rank's i-th batch among all batches.
  int64_t number_of(int64_t i) const { return i / own() * options_.accumulate + ranks_.rank() * own() + i % own(); }
  BatchSource own_batches(BatchSource all) const {
    return [this, all = std::move(all)](int64_t i) { return all(number_of(i)); };
  }

  void step() {
    if (pending_.empty() && !sent_) last_.emplace(options_.device);
    ranks_.at_step(step_ + 1);
    Pending done;
    optimizer_->scale_lr(schedule_(step_));
    optimizer_->zero_grad();
    if (!accumulate_gradients(done)) {  // the step is taken anew when the run goes on
      loader_.seek(step_ * own());
      return;
    }
    done.step = ++step_;
    done.lr = optimizer_->lr();
    update(done);
    pending_.push_back(std::move(done));
  }

  // The share of a batch in the loss of its step.
  Tensor add_gradients(const Tensor& tokens, const Tensor& targets) {
    const double share = 1.0 / static_cast<double>(options_.accumulate);
    const Tensor weight = scaler_.scale(full({}, share, Float32, options_.device));
    const Tensor loss = model_.loss_and_backward(tokens, targets, weight);
    return share == 1 ? loss : loss * share;
  }

  Tensors next_batch() {
    const profiler::Range range("data");
    const auto phase = ranks_.in(dist::Phase::Data);
    return loader_.next();
  }

  // False if stopped.
  bool accumulate_gradients(Pending& done) {
    const auto phase = ranks_.in(dist::Phase::Compute);
    Tensors losses;
    for (int64_t i = 0; i < own(); ++i) {
      if (ranks_.size() == 1 && stopped()) return gradients_.clear(), false;
      const int64_t number = number_of(loader_.position());
      default_generator().set_state(seed_of(options_.seed, kDropout), static_cast<uint64_t>(number) << kDrawsOfBatch);
      const Tensors batch = next_batch();
      // Of one batch: where gradients of a cast meet others would depend on the batch that cast first.
      const amp::Autocast region = autocast(options_.amp, options_.lower_residual);
      losses.push_back(reshape(cast(add_gradients(batch[0], batch[1]), Float64), {1}));
      if (own() > 1) gradients_.add();
    }
    if (own() > 1) gradients_.finish();
    reduce_gradients();
    const NoGrad no_grad;
    done.loss = sum(ranks_.all(concat(losses, 0)));
    return true;
  }

  // Of the ranks: one of each parameter.
  void reduce_gradients() {
    if (ranks_.size() == 1) return;
    Tensors all;
    for (const Tensor& p : model_.parameters())
      if (const Tensor grad = p.grad(); grad.defined()) all.push_back(grad);
    dist::all_reduce_(all, *ranks_.group);
  }

  // A step that must be skipped is skipped by the device, which nobody waits for.
  void update(Pending& done) {
    scaler_.unscale_(*optimizer_);
    NoGrad no_grad;
    done.norm = optim::grad_norm(model_.parameters());
    const Tensor finite = logical_and(isfinite(done.loss), isfinite(done.norm));
    done.skipped = scaler_.step(
        *optimizer_,
        {options_.clip > 0 ? optim::clip_coefficient(done.norm, options_.clip) : Tensor(), logical_not(finite)});
    scaler_.update();
    if (scaler_.enabled()) done.loss_scale = scaler_.state_dict().at("scale").clone();
  }

  // Lets the numbers of the last steps follow them, and reads those that were sent before: a GPU never waits for
  // whoever reads, who has queued more work for it by then.
  void send() {
    NoGrad no_grad;
    std::vector<Pending> steps = std::exchange(pending_, {});
    Tensors numbers;
    for (const Pending& p : steps)
      for (const Tensor& t : {p.loss, p.norm, p.skipped, p.loss_scale.defined() ? p.loss_scale : p.norm})
        numbers.push_back(reshape(cast(t, Float64), {1}));
    const Tensor all = concat(numbers, 0);
    const Mark began = *std::exchange(last_, Mark(options_.device));
    receive();
    sent_ = Sent{std::move(steps), all, began, *last_};
    if (options_.report_interval == 1) receive();
  }

  // Reads what the steps that were sent came to.
  void receive() {
    if (!sent_) return;
    const Sent sent = *std::exchange(sent_, std::nullopt);
    sent.made.event.wait(reader_);
    const std::vector<double> numbers = [&] {
      const StreamGuard guard(reader_);  // not for what callbacks do
      return sent.numbers.to(cpu()).to_vector<double>();
    }();
    const double ms = sent.made.milliseconds_since(sent.began, options_.device);
    const double* next = numbers.data();
    for (const Pending& p : sent.steps) {
      StepInfo info;
      info.step = p.step;
      info.lr = p.lr;
      info.ms = ms / static_cast<double>(sent.steps.size());
      info.loss = without_nan_sign(*next++);
      info.grad_norm = without_nan_sign(*next++);
      info.skipped = *next++ != 0;
      const double loss_scale = *next++;
      const bool finite = std::isfinite(info.loss) && std::isfinite(info.grad_norm);
      const bool scale_too_large = scaler_.enabled() && std::isfinite(info.loss) && loss_scale_ > kSmallestLossScale;
      if (!finite && !scale_too_large && options_.on_nan == OnNan::Stop)
        throw Error(
            fmt::format("train: loss {} with a gradient of norm {} at step {}", info.loss, info.grad_norm, info.step));
      if (p.loss_scale.defined()) loss_scale_ = loss_scale;
      info.loss_scale = loss_scale_;
      result_.skipped += info.skipped;
      result_.steps.push_back(info);
    }
    for (StepInfo& info : std::span(result_.steps).last(sent.steps.size()))
      if (callbacks_.on_step) callbacks_.on_step(info);
  }

  // Reads what all steps so far came to.
  void report() {
    if (!pending_.empty()) send();
    receive();
  }

  std::optional<double> validate() {
    if (!result_.evals.empty() && result_.evals.back().step == step_) return result_.evals.back().loss;
    report();
    optimizer_->zero_grad();
    const amp::Autocast region = autocast(options_.amp, options_.lower_residual);
    const std::optional<double> loss = evaluate(model_, *data_.validation, options_.batch, ranks_, callbacks_.stop);
    if (!loss) return loss;
    result_.evals.push_back({step_, *loss});
    if (callbacks_.on_eval) callbacks_.on_eval(result_.evals.back());
    return loss;
  }

  void save() {
    report();
    if (!file_.exists()) return;
    const auto phase = ranks_.in(dist::Phase::Checkpoint);
    Checkpoint out;
    add_part(out, "model.", model_.state_dict());
    add_part(out, "optimizer.", optimizer_->state_dict());
    add_part(out, "scaler.", scaler_.state_dict());
    std::vector<std::vector<double>> steps, evals;
    for (const StepInfo& s : result_.steps) steps.push_back({s.loss, s.ms, s.lr, s.grad_norm, s.skipped ? 1.0 : 0.0});
    for (const EvalInfo& e : result_.evals) evals.push_back({static_cast<double>(e.step), e.loss});
    out.tensors.emplace("history.steps", ranks_.of_first(table(steps, 5)));  // each rank measured other times
    out.tensors.emplace("history.evals", table(evals, 2));
    const nlohmann::json state{{"step", step_}};
    out.metadata = {{"kind", "gpt"},
                    {"config", config_to_json(options_).dump()},
                    {"state", state.dump()},
                    {"vocabulary", data_.tokenizer.vocabulary()}};
    file_.save(out, ranks_.group);
    if (callbacks_.on_checkpoint) callbacks_.on_checkpoint(step_);
  }

  void restore();
  void restore_history(const Checkpoint& from);

  TrainOptions options_;
  const TrainCallbacks& callbacks_;
  Ranks ranks_;
  StateDict initial_;
  TextData data_;
  GPT model_;
  std::unique_ptr<optim::AdamW> optimizer_;
  amp::GradScaler scaler_;
  optim::Schedule schedule_;
  DataLoader loader_;
  dist::GradientSum gradients_;
  CheckpointFile file_;
  int64_t step_ = 0;
  std::vector<Pending> pending_;
  std::optional<Sent> sent_;
  tessera::Stream reader_{options_.device};  // beside that of the steps
  std::optional<Mark> last_;                 // where the steps that were not sent began
  double loss_scale_ = 1;                    // after the last step that was reported
  TrainResult result_;
};

Checkpoint load_gpt_checkpoint(const std::string& file) { return load_checkpoint_of(file, "gpt", "a GPT"); }

// The options of a run that goes on from a checkpoint, which must be of the same configuration. Its weights are there,
// and so is the size of a vocabulary that came from a text or a file.
TrainOptions resumed(TrainOptions o) {
  const Checkpoint from = load_gpt_checkpoint(o.checkpoint);
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

void Run::restore() {
  const std::string& file = options_.checkpoint;
  const Checkpoint from = load_gpt_checkpoint(file);
  blame(file, [&] {
    model_.load_state_dict(part(from, "model."));
    optimizer_->load_state_dict(part(from, "optimizer."));
    scaler_.load_state_dict(part(from, "scaler."));
  });
  const nlohmann::json state = parse_object(metadata(from, file, "state"), file);
  auto count = [&](const nlohmann::json& json) {
    if (!json.is_number_unsigned()) throw FileError(file + ": damaged checkpoint: bad state");
    return json.get<uint64_t>();
  };
  const uint64_t step = count(state.value("step", nlohmann::json()));
  if (step > kMostBatches / static_cast<uint64_t>(options_.accumulate))
    throw FileError(file + ": damaged checkpoint: bad state");
  step_ = static_cast<int64_t>(step);
  loader_.seek(step_ * own());
  restore_history(from);
}

void Run::restore_history(const Checkpoint& from) {
  const std::string& file = options_.checkpoint;
  const Tensor steps = read_table(from, file, "history.steps", 5), evals = read_table(from, file, "history.evals", 2);
  if (steps.size(0) != step_) throw FileError(options_.checkpoint + ": damaged checkpoint: bad history.steps");
  for (int64_t i = 0; i < step_; ++i) {
    const double* r = steps.data<double>() + 5 * i;
    result_.steps.push_back({i + 1, r[0], r[1], r[2], r[3], r[4] != 0, 1});
    result_.skipped += r[4] != 0;
  }
  for (int64_t i = 0; i < evals.size(0); ++i) {
    const double* r = evals.data<double>() + 2 * i;
    if (!(r[0] >= 0 && r[0] <= static_cast<double>(step_)))
      throw FileError(options_.checkpoint + ": damaged checkpoint: bad history.evals");
    result_.evals.push_back({static_cast<int64_t>(r[0]), r[1]});
  }
}

}  // namespace

std::vector<std::string> train_presets() { return {"shakespeare-char-cpu", "gpt2-124m"}; }

TrainOptions train_preset(const std::string& name) {
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
  require(o.steps <= static_cast<int64_t>(kMostBatches) / o.accumulate, "steps", o.steps);
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
  require(o.model.init_std >= 0 && std::isfinite(o.model.init_std), "init_std", o.model.init_std);
  require(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "weight_decay", o.weight_decay);
  if (o.lower_residual && o.amp == Amp::Off) throw Error("train: a lower residual stream needs amp");
  if (o.resume && o.checkpoint.empty()) throw Error("train: resume needs a checkpoint to go on from");
}

TrainResult train_gpt(const TrainOptions& options, const TrainCallbacks& callbacks, const dist::Group* group) {
  validate(options);
  if (group && options.accumulate % group->size() != 0)
    throw Error(
        fmt::format("train: {} ranks do not divide the {} batches of a step: give an --accumulation that they do",
                    group->size(), options.accumulate));
  return Run(options.resume ? resumed(options) : options, callbacks, group).train();
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
