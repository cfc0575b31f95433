#include "tessera/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <utility>

#include "data/download.h"
#include "io/kept_checkpoints.h"
#include "tessera/autograd.h"
#include "tessera/profiler.h"
#include "train/averaging.h"
#include "train/microbatch.h"
#include "train/ranks.h"
#include "train/saved.h"
#include "train/step_reader.h"

namespace tessera::train {
namespace {

constexpr double kSmallestLossScale = 0x1p-10;  // gradients that overflow below it are not finite

// Random numbers belong to a batch, whichever rank takes it: so many blocks of the stream are its own.
constexpr int kDrawsOfBatch = 36;
constexpr uint64_t kMostBatches = uint64_t{1} << (63 - kDrawsOfBatch);

constexpr std::chrono::seconds kPatienceWithinStep{5};

constexpr int64_t kStepColumns = 5, kEvalColumns = 2;  // of the history

std::vector<Tensor> floating_buffers(const nn::Module& model) {
  std::vector<Tensor> out;
  for (const auto& [name, t] : model.named_buffers())
    if (is_floating(t.dtype())) out.push_back(t);
  return out;
}

}  // namespace

std::string name(Amp amp) { return amp == Amp::Off ? "off" : amp == Amp::BFloat16 ? "bf16" : "fp16"; }

amp::Autocast autocast(Amp amp, bool lower_residual) {
  return amp::Autocast(amp == Amp::Float16 ? Float16 : BFloat16,
                       {.enabled = amp != Amp::Off, .lower_residual = lower_residual});
}

class Trainer::Run {
 public:
  Run(nn::Module& model, optim::Optimizer& optimizer, Work work, Options options, const dist::Group* group)
      : model_(model),
        optimizer_(optimizer),
        work_(std::move(work)),
        options_(std::move(options)),
        ranks_{group},
        own_(checked_share()),
        averaging_(options_.local_sgd, ranks_),
        own_time_(ranks_),
        microbatch_(options_.microbatch),
        scaler_({.enabled = options_.amp == Amp::Float16}),
        loader_([this](int64_t i) { return read_batch(i); }, 2, work_.resident ? cpu() : options_.device),
        gradients_(model.parameters()),
        buffers_(options_.accumulate > 1 || options_.microbatch ? floating_buffers(model) : std::vector<Tensor>()),
        buffer_sum_(buffers_),
        resumed_(agreed_resume()),
        file_(options_.checkpoint, resumed_, static_cast<int>(options_.keep)),
        reader_(options_.device, [this](std::vector<StepInfo> steps) { read(std::move(steps)); }) {
    check_modules();
    if (group && group->engine() != "none" && !averaging_.is_on())
      parallel_.emplace(model, *group,
                        dist::DataParallelOptions{.op = dist::Sum, .gradient_dtype = options_.gradient_dtype});
    const StateDict averages = resumed_ ? restore() : StateDict();
    if (resumed_) blame(options_.checkpoint, [&] { averaging_.begin(model, step_, averages); });
    else averaging_.begin(model, step_, averages);
    loss_scale_ = scaler_.current_scale();
  }

  Result run(const Callbacks& callbacks) {
    callbacks_ = &callbacks;
    stop_ = callbacks.stop;
    std::optional<CaughtSignals> signals;
    if (options_.catch_signals) signals.emplace();
    reset_peak_memory(options_.device);
    profiler::parameters(model_.parameters());
    std::vector<Tensor> states;
    for (const auto& [name, state] : optimizer_.state_dict()) states.push_back(state);
    profiler::optimizer_state(states);
    const bool has_work = !resumed_ || !done();
    if (!has_work)
      note_ +=
          fmt::format("{}there is nothing to do: the checkpoint has made {} steps", note_.empty() ? "" : "; ", step_);
    if (!note_.empty() && callbacks.on_note) callbacks.on_note(note_);
    if (callbacks.on_start) callbacks.on_start(step_);
    while (!done()) {
      own_time_.begin();
      begin_step();
      if (averaging_.all_met() && ranks_.any(stopped())) break;
      const int64_t step = step_, items = result_.items;
      const bool made = this->step();
      profiler::step();
      if (reader_.waiting() >= options_.report_interval) send();
      if (made) own_time_.end();
      if (!made || done()) continue;
      if (due(options_.evaluate, step, items)) validate();
      if (due(options_.save, step, items)) save();
    }
    reader_.report();
    unite();
    result_.own_ms = own_time_.of_all_ranks();
    if (done()) result_.val_loss = validate();
    result_.stopped = !done();
    result_.microbatch = microbatch_.size();
    optimizer_.zero_grad();
    note_memory();
    if (has_work) save();
    return std::move(result_);
  }

 private:
  bool stopped() const {
    const std::atomic<bool>* const flag = stop_;
    return (flag && *flag) || (options_.catch_signals && stop_requested());
  }

  // Micro-batches of each step that are this rank's, one after another.
  int64_t checked_share() const {
    const auto require = [](bool ok, const char* what) {
      if (!ok) throw Error(fmt::format("train: {} is out of range", what));
    };
    require(options_.accumulate >= 1, "accumulation");
    require(options_.microbatch >= kAutoMicrobatch, "microbatch");
    require(options_.until.count >= 0, "the length of the run");
    require(options_.report_interval >= 1, "report_interval");
    require(options_.keep >= 1 && options_.keep <= 1000, "keep");
    require(options_.clip >= 0 && std::isfinite(options_.clip), "clip");
    require(work_.items >= 0 && work_.epoch >= 0 && work_.validation_batches >= 0, "a number of items or batches");
    for (const Every& every : {options_.until, options_.evaluate, options_.save}) {
      require(every.count >= 0, "an interval");
      if (every.unit == Every::Unit::Epochs && work_.epoch == 0)
        throw Error("train: an interval in epochs needs to know how many batches an epoch has");
    }
    if (options_.microbatch == kAutoMicrobatch && options_.local_sgd)
      throw Error("train: no microbatch can be found by ranks that step by themselves: give its size");
    if (options_.gradient_dtype && (options_.local_sgd || !is_floating(*options_.gradient_dtype)))
      throw Error("train: gradients travel in a dtype of floating point, and not with local SGD");
    if (!work_.batches || !(work_.loss || work_.loss_and_backward)) throw Error("train: needs batches and a loss");
    if (options_.local_sgd && work_.count && work_.items == 0)
      for (const Every& every : {options_.until, options_.evaluate, options_.save})
        if (every.count > 0 && every.unit == Every::Unit::Items)
          throw Error("train: with local SGD an interval in items needs batches that all have as many");
    if (options_.resume == Resume::Always && options_.checkpoint.empty())
      throw Error("train: resume needs a checkpoint to go on from");
    if (options_.accumulate % ranks_.size() != 0)
      throw Error(
          fmt::format("train: {} ranks do not divide the {} batches of a step: give an accumulation that they do",
                      ranks_.size(), options_.accumulate));
    return options_.accumulate / ranks_.size();
  }

  // Where a rank that runs out of memory leaves others waiting within the model, no size can be tried.
  void check_modules() const {
    if (!microbatch_.is_searched() || ranks_.size() == 1) return;
    for (const auto& [name, module] : model_.named_modules())
      if (module.as<dist::SyncBatchNorm2d>())
        throw Error(fmt::format("train: no microbatch can be found for {}, whose ranks wait for each other", name));
  }

  // Rank 0 knows: others may not see a file at once.
  bool agreed_resume() const {
    const bool mine = resumes(options_.resume, options_.checkpoint);
    if (ranks_.size() == 1) return mine;
    return ranks_.of_first(tensor(std::vector<int32_t>{mine}, {1})).item<int32_t>() != 0;
  }

  // The number of this rank's i-th batch among all batches.
  int64_t number_of(int64_t i) const { return i / own_ * options_.accumulate + ranks_.rank() * own_ + i % own_; }

  // How far it is in the unit, at a step with so many items before; for epochs, in batches.
  int64_t progress(Every::Unit unit, int64_t step, int64_t items) const {
    if (unit == Every::Unit::Items) return items;
    return unit == Every::Unit::Steps ? step : step * options_.accumulate;
  }
  int64_t length(const Every& every) const {
    return every.count * (every.unit == Every::Unit::Epochs ? work_.epoch : 1);
  }
  bool done() const { return progress(options_.until.unit, step_, result_.items) >= length(options_.until); }
  // Whether an interval has ended since then.
  bool due(const Every& every, int64_t step, int64_t items) const {
    if (every.count == 0) return false;
    const int64_t n = length(every);
    return progress(every.unit, step_, result_.items) / n > progress(every.unit, step, items) / n;
  }

  // False if stopped: the step is taken anew when the run goes on.
  bool step() {
    MadeStep made;
    optimizer_.scale_lr(options_.schedule(step_));
    optimizer_.zero_grad();
    if (!accumulate_gradients(made)) {
      seek(step_ * own_);
      return false;
    }
    made.step = ++step_;
    made.lr = optimizer_.lr();
    update(made);
    reader_.add(std::move(made));
    return true;
  }

  // In the loader's thread. A run that is to stop does not wait for another machine; within a step of several ranks it
  // does a little, since all of them save only after it.
  Tensors read_batch(int64_t i) {
    std::optional<std::chrono::steady_clock::time_point> since;
    const DownloadsEnd end([this, since]() mutable {
      if (!stopped()) return false;
      if (!since) since = std::chrono::steady_clock::now();
      return may_end_ || std::chrono::steady_clock::now() - *since > kPatienceWithinStep;
    });
    return work_.batches(number_of(i));
  }

  // A step begins with its first batch, before ranks say whether they go on. Absent if stopped.
  void begin_step() {
    reader_.begin();
    ranks_.at_step(step_ + 1);
    may_end_ = averaging_.all_met();
    if (!at_hand_) at_hand_ = next_batch();
    may_end_ = ranks_.size() == 1;
  }

  // Absent if one rank alone is stopped, or all may be.
  std::optional<Tensors> next_batch() {
    if (at_hand_) return std::exchange(at_hand_, {});
    const profiler::Range range("data");
    const auto phase = ranks_.in(dist::Phase::Data);
    try {
      return loader_.next();
    } catch (const FileError& e) {
      if (!stopped()) throw;
      if (may_end_) return {};
      throw FileError(
          fmt::format("{}: step {} is interrupted, and what was saved before it stays", e.what(), step_ + 1));
    }
  }

  void seek(int64_t position) {
    at_hand_.reset();
    loader_.seek(position);
  }

  int64_t count_of(const Tensors& batch) const { return work_.count ? work_.count(batch) : 1; }

  // This rank's micro-batches of a step, where they do not all count the same, and the share of each in the loss.
  struct Weighed {
    std::vector<Tensors> batches;
    std::vector<double> shares;
    int64_t items = 0;
  };
  // Those that have a step in common: all, or this one alone.
  Ranks common() const { return averaging_.is_on() && !averaging_.is_warming_up() ? Ranks() : ranks_; }
  // Absent if stopped.
  std::optional<Weighed> weigh() {
    Weighed out;
    if (!work_.count || work_.items > 0) {
      out.shares.assign(static_cast<size_t>(own_), 1.0 / static_cast<double>(own_ * common().size()));
      out.items = options_.accumulate * std::max<int64_t>(work_.items, 1);
      return out;
    }
    std::vector<int64_t> counts;
    for (int64_t i = 0; i < own_; ++i) {
      std::optional<Tensors> batch = next_batch();
      if (!batch) return {};
      out.batches.push_back(std::move(*batch));
      counts.push_back(count_of(out.batches.back()));
    }
    for (const int64_t n : common().all(tensor(counts, {own_})).to_vector<int64_t>()) out.items += n;
    if (out.items <= 0) throw Error(fmt::format("train: the batches of step {} count {} items", step_ + 1, out.items));
    for (const int64_t n : counts) out.shares.push_back(static_cast<double>(n) / static_cast<double>(out.items));
    return out;
  }

  // The share of a batch in the loss of its step.
  Tensor add_gradients(const Tensors& batch, double share) {
    // Shares are of a sum over ranks, of whose gradients the warm-up of averages takes the mean.
    const double ranks = averaging_.is_on() ? common().size() : 1;
    const Tensor weight = scaler_.scale(full({}, share * ranks, Float32, options_.device));
    Tensor loss;
    {  // Of one batch: where gradients of a cast meet others would depend on the batch that cast first.
      const amp::Autocast region = autocast(options_.amp, options_.lower_residual);
      loss = work_.loss_and_backward ? work_.loss_and_backward(batch, weight) : work_.loss(batch);
    }
    if (!work_.loss_and_backward) {
      (loss * weight).backward();
      loss = loss.detach();
    }
    return share == 1 ? loss : loss * share;
  }

  // False if stopped.
  bool accumulate_gradients(MadeStep& made) {
    const auto phase = ranks_.in(dist::Phase::Compute);
    const int64_t first = step_ * own_;
    const std::optional<Weighed> read = weigh();
    if (!read) return false;
    const Weighed& weighed = *read;
    Tensors losses, before;
    for (const Tensor& b : buffers_) before.push_back(b.clone());
    for (bool fits = false; !fits;) {
      std::optional<std::string> failure;
      try {
        if (!own_gradients(first, weighed, before, losses)) return forget(before), false;
      } catch (const OutOfMemoryError& e) {
        if (!microbatch_.is_searched()) throw;
        failure = e.what();
      }
      fits = microbatch_.agree(ranks_, failure);
      if (!fits) begin_again(first, weighed, before);
    }
    if (const auto found = microbatch_.news(); found && callbacks_->on_microbatch)
      callbacks_->on_microbatch(found->samples, found->too_many);
    if (const auto* p = parallel()) p->reduce();
    mean_buffers();
    const NoGrad no_grad;
    made.loss = sum(common().all(concat(losses, 0)));
    const bool is_part = common().size() < ranks_.size() && !weighed.batches.empty();
    (is_part ? own_items_ : result_.items) += weighed.items;
    return true;
  }

  // What makes gradients of ranks one in this step.
  const dist::DataParallel* parallel() const { return parallel_ ? &*parallel_ : averaging_.parallel(); }

  // The sum of this rank's gradients, without a word to others. False if stopped.
  bool own_gradients(int64_t first, const Weighed& weighed, const Tensors& before, Tensors& losses) {
    losses.clear();
    microbatch_.begin();
    for (int64_t i = 0; i < own_; ++i) {
      if (ranks_.size() == 1 && stopped()) return false;
      default_generator().set_state(options_.seed, static_cast<uint64_t>(number_of(first + i)) << kDrawsOfBatch);
      const auto at = static_cast<size_t>(i);
      const std::optional<Tensors> batch = weighed.batches.empty() ? next_batch() : weighed.batches[at];
      if (!batch) return false;
      losses.push_back(reshape(batch_gradients(*batch, weighed.shares[at], before), {1}));
      if (own_ > 1) gradients_.add();
    }
    if (own_ > 1) gradients_.finish();
    return true;
  }

  // The share of a batch in the loss of its step, whose gradients its parts add up.
  Tensor batch_gradients(const Tensors& batch, double share, const Tensors& before) {
    const std::vector<Tensors> parts = counted_parts(batch);
    Tensor loss;
    for (const Tensors& part : parts) {
      const double weight = parts.size() == 1 ? share : share * share_of(part, batch);
      const Tensor own = cast(local_gradients(part, weight), Float64);
      loss = loss.defined() ? loss + own : own;
      take_buffers(before, parts.size());
    }
    if (!buffers_.empty()) buffer_sum_.add();
    return loss;
  }

  // The parts of a batch, without those that count nothing and therefore have no mean.
  std::vector<Tensors> counted_parts(const Tensors& batch) {
    std::vector<Tensors> parts = microbatch_.parts_of(batch);
    if (parts.size() > 1) std::erase_if(parts, [&](const Tensors& part) { return share_of(part, batch) == 0; });
    return parts;
  }

  // How much of a batch a part of it counts.
  double share_of(const Tensors& part, const Tensors& batch) const {
    const bool counts = work_.count && work_.count(batch) > 0;
    const auto size = [&](const Tensors& b) {
      return static_cast<double>(counts ? work_.count(b) : Microbatch::rows_of(b));
    };
    return size(part) / size(batch);
  }

  Tensor local_gradients(const Tensors& batch, double share) {
    if (!parallel()) return add_gradients(batch, share);
    const auto local = parallel()->no_sync();
    return add_gradients(batch, share);
  }

  // After an attempt at a step that some rank had no memory for.
  void begin_again(int64_t first, const Weighed& weighed, const Tensors& before) {
    forget(before);
    optimizer_.zero_grad();
    empty_cache(options_.device);
    if (weighed.batches.empty()) seek(first);
  }

  void forget(const Tensors& before) {
    gradients_.clear();
    buffer_sum_.clear();
    const NoGrad no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i].copy_(before[i]);
      buffers_[i].set_grad({});
    }
  }

  // Buffers are added up as gradients are, each as the mean over the parts of a batch; each part begins with those of
  // the step before.
  void take_buffers(const Tensors& before, size_t parts) {
    const NoGrad no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const Tensor mine = parts == 1 ? buffers_[i].clone() : buffers_[i] * (1.0 / static_cast<double>(parts));
      const Tensor sum = buffers_[i].grad();
      buffers_[i].set_grad(sum.defined() ? sum + mine : mine);
      buffers_[i].copy_(before[i]);
    }
  }
  void mean_buffers() {
    if (buffers_.empty()) return;
    const NoGrad no_grad;
    buffer_sum_.finish();
    for (Tensor& b : buffers_) {
      b.copy_(common().sum_of(b.grad()) * (1.0 / static_cast<double>(own_ * common().size())));
      b.set_grad({});
    }
  }

  // A step that must be skipped is skipped by the device, which nobody waits for.
  void update(MadeStep& made) {
    scaler_.unscale_(optimizer_);
    NoGrad no_grad;
    made.norm = optim::grad_norm(model_.parameters());
    const Tensor finite = logical_and(isfinite(made.loss), isfinite(made.norm));
    made.skipped = scaler_.step(
        optimizer_,
        {options_.clip > 0 ? optim::clip_coefficient(made.norm, options_.clip) : Tensor(), logical_not(finite)});
    scaler_.update();
    averaging_.step(made.lr);
    if (scaler_.enabled()) made.loss_scale = scaler_.state_dict().at("scale").clone();
  }

  void send() {
    reader_.send();
    if (options_.report_interval == 1) reader_.receive();
  }

  void read(std::vector<StepInfo> steps) {
    for (StepInfo& info : steps) {
      const bool finite = std::isfinite(info.loss) && std::isfinite(info.grad_norm);
      const bool scale_too_large = scaler_.enabled() && std::isfinite(info.loss) && loss_scale_ > kSmallestLossScale;
      if (!finite && !scale_too_large && options_.on_nan == OnNan::Stop)
        throw Error(
            fmt::format("train: loss {} with a gradient of norm {} at step {}", info.loss, info.grad_norm, info.step));
      loss_scale_ = info.loss_scale;
      result_.skipped += info.skipped;
      result_.steps.push_back(info);
    }
    for (const StepInfo& info : steps)
      if (callbacks_->on_step) callbacks_->on_step(info);
  }

  std::optional<double> validate() {
    if (!work_.validation) return {};
    if (!result_.evals.empty() && result_.evals.back().step == step_) return result_.evals.back().loss;
    reader_.report();
    unite();
    optimizer_.zero_grad();
    const std::optional<double> loss = validation_loss();
    if (!loss) return loss;
    result_.evals.push_back({step_, *loss});
    if (callbacks_->on_eval) callbacks_->on_eval(result_.evals.back());
    return loss;
  }

  // The mean over the items; ranks take batches in turn. Absent if stopped.
  std::optional<double> validation_loss() {
    const amp::Autocast region = autocast(options_.amp, options_.lower_residual);
    NoGrad no_grad;
    nn::EvalMode eval(model_);
    Tensors parts;
    int64_t items = 0;
    for (int64_t number = 0; number < work_.validation_batches; ++number) {
      if (ranks_.size() == 1 && stopped()) return std::nullopt;
      if (number % ranks_.size() != ranks_.rank()) {
        parts.push_back(zeros({1}, Float64, options_.device));
        continue;
      }
      Tensors batch = work_.validation(number);
      const int64_t count = count_of(batch);
      if (!work_.resident)
        for (Tensor& t : batch) t = t.to(options_.device);
      const std::vector<Tensors> microbatches = counted_parts(batch);
      Tensor loss = zeros({1}, Float64, options_.device);
      for (const Tensors& part : microbatches) {
        const double share = microbatches.size() == 1 ? 1 : share_of(part, batch);
        loss = loss + cast(work_.loss(part), Float64) * (static_cast<double>(count) * share);
      }
      parts.push_back(loss);
      items += count;
    }
    const Tensor all = sum(ranks_.sum_of(concat(parts, 0)));
    const double counted = static_cast<double>(ranks_.sum_of(tensor(std::vector<int64_t>{items}, {1})).item<int64_t>());
    return without_nan_sign(all.item() / counted);
  }

  void note_memory() {
    result_.peak_memory_bytes =
        std::max(result_.peak_memory_bytes, static_cast<int64_t>(memory_stats(options_.device).peak_allocated));
  }

  // All ranks that stepped by themselves.
  void unite() {
    if (!averaging_.unite(model_, optimizer_, scaler_)) return;
    result_.items += ranks_.sum_of(tensor(std::vector<int64_t>{std::exchange(own_items_, 0)}, {1})).item<int64_t>();
  }

  void save() {
    reader_.report();
    if (!file_.exists()) return;
    unite();
    const auto phase = ranks_.in(dist::Phase::Checkpoint);
    note_memory();
    Checkpoint out;
    add_part(out, "model.", model_.state_dict());
    add_part(out, "optimizer.", optimizer_.state_dict());
    add_part(out, "scaler.", scaler_.state_dict());
    add_part(out, "averaging.", averaging_.state_dict());
    std::vector<std::vector<double>> steps, evals;
    for (const StepInfo& s : result_.steps) steps.push_back({s.loss, s.ms, s.lr, s.grad_norm, s.skipped ? 1.0 : 0.0});
    for (const EvalInfo& e : result_.evals) evals.push_back({static_cast<double>(e.step), e.loss});
    // Each rank measured other times.
    out.tensors.emplace("history.steps", ranks_.of_first(table(steps, kStepColumns)));
    out.tensors.emplace("history.evals", table(evals, kEvalColumns));
    out.metadata = options_.metadata;
    const nlohmann::json state{{"step", step_},
                               {"items", result_.items},
                               {"bytes", result_.peak_memory_bytes},
                               {"microbatch", microbatch_.size()}};
    out.metadata["state"] = state.dump();
    file_.save(out, ranks_.group);
    if (callbacks_->on_checkpoint) callbacks_->on_checkpoint(step_);
  }

  // What averages go on from.
  StateDict restore() {
    const std::string& file = options_.checkpoint;
    WholeCheckpoint found = file_.load(ranks_.group);
    if (found.age > 0)
      note_ = fmt::format("{}: the run goes on from {}, which was saved before it", found.why,
                          checkpoint_of_age(file, found.age));
    Checkpoint& from = found.checkpoint;
    if (options_.on_load) options_.on_load(from);
    blame(file, [&] {
      model_.load_state_dict(part(from, "model."));
      optimizer_.load_state_dict(part(from, "optimizer."));
      scaler_.load_state_dict(part(from, "scaler."));
    });
    const nlohmann::json state = parse_object(metadata(from, file, "state"), file);
    const auto count = [&](const char* key, const nlohmann::json& otherwise) {
      const nlohmann::json json = state.value(key, otherwise);
      if (!json.is_number_unsigned() || json.get<uint64_t>() > INT64_MAX)
        throw FileError(file + ": damaged checkpoint: bad state");
      return static_cast<int64_t>(json.get<uint64_t>());
    };
    step_ = count("step", nlohmann::json());
    if (step_ > static_cast<int64_t>(kMostBatches) / options_.accumulate)
      throw FileError(file + ": damaged checkpoint: bad state");
    result_.items = count("items", uint64_t{0});
    if (!state.contains("items")) result_.items = step_ * options_.accumulate * std::max<int64_t>(work_.items, 1);
    result_.peak_memory_bytes = count("bytes", uint64_t{0});
    microbatch_.go_on_with(count("microbatch", uint64_t{0}));
    seek(step_ * own_);
    restore_history(from);
    return part(from, "averaging.");
  }

  void restore_history(const Checkpoint& from) {
    const std::string& file = options_.checkpoint;
    const Tensor steps = read_table(from, file, "history.steps", kStepColumns);
    const Tensor evals = read_table(from, file, "history.evals", kEvalColumns);
    if (steps.size(0) != step_) throw FileError(file + ": damaged checkpoint: bad history.steps");
    for (int64_t i = 0; i < step_; ++i) {
      const double* r = steps.data<double>() + kStepColumns * i;
      result_.steps.push_back({i + 1, r[0], r[1], r[2], r[3], r[4] != 0, 1});
      result_.skipped += r[4] != 0;
    }
    for (int64_t i = 0; i < evals.size(0); ++i) {
      const double* r = evals.data<double>() + kEvalColumns * i;
      if (!(r[0] >= 0 && r[0] <= static_cast<double>(step_)))
        throw FileError(file + ": damaged checkpoint: bad history.evals");
      result_.evals.push_back({static_cast<int64_t>(r[0]), r[1]});
    }
  }

  nn::Module& model_;
  optim::Optimizer& optimizer_;
  Work work_;
  Options options_;
  const Callbacks* callbacks_ = nullptr;
  std::atomic<const std::atomic<bool>*> stop_ = nullptr;  // of the callbacks, for the loader's thread, too
  std::atomic<bool> may_end_ = true;                      // what that thread reads, where the run is to stop
  std::optional<Tensors> at_hand_;                        // the next batch, where it was awaited
  Ranks ranks_;
  int64_t own_;
  Averaging averaging_;
  int64_t own_items_ = 0;  // of this rank alone, since ranks were one
  OwnTime own_time_;
  Microbatch microbatch_;
  amp::GradScaler scaler_;
  DataLoader loader_;
  dist::GradientSum gradients_;
  std::vector<Tensor> buffers_;  // of several micro-batches, those that can have a mean
  dist::GradientSum buffer_sum_;
  std::optional<dist::DataParallel> parallel_;
  bool resumed_;
  CheckpointFile file_;
  std::string note_;  // of the checkpoint that it goes on from
  int64_t step_ = 0;
  double loss_scale_ = 1;  // after the last step that was read
  Result result_;
  StepReader reader_;
};

Trainer::Trainer(nn::Module& model, optim::Optimizer& optimizer, Work work, Options options, const dist::Group* group)
    : run_(std::make_unique<Run>(model, optimizer, std::move(work), std::move(options), group)) {}
Trainer::~Trainer() = default;
Result Trainer::run(const Callbacks& callbacks) { return run_->run(callbacks); }

}  // namespace tessera::train
