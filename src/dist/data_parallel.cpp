// Data parallelism: what a model's ranks agree on, and how their gradients become one.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/capture_state.h"
#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::dist {
namespace {

int64_t hash_of(const std::string& text) { return static_cast<int64_t>(std::hash<std::string>()(text) >> 1); }

// One line for each tensor that ranks share.
std::vector<std::string> descriptions(const nn::NamedTensors& tensors) {
  std::vector<std::string> out;
  for (const auto& [name, t] : tensors)
    out.push_back(fmt::format("{} {}{}", name, tessera::name(t.dtype()), to_string(t.shape())));
  return out;
}

void check_alike(const char* what, const nn::NamedTensors& tensors, const Group& group) {
  const std::vector<std::string> mine = descriptions(tensors);
  const auto count = static_cast<int64_t>(mine.size());
  const int64_t first_count = broadcast(tensor(std::vector<int64_t>{count}, {1}), 0, group).item<int64_t>();
  if (count != first_count)
    throw Error(fmt::format("DataParallel: rank {} has {} {}, rank 0 has {}", group.rank(), count, what, first_count));
  std::vector<int64_t> hashes;
  for (const std::string& line : mine) hashes.push_back(hash_of(line));
  const std::vector<int64_t> first = broadcast(tensor(hashes, {count}), 0, group).to_vector<int64_t>();
  for (size_t i = 0; i < mine.size(); ++i)
    if (hashes[i] != first[i])
      throw Error(fmt::format("DataParallel: {} differ: rank {} has \"{}\", and rank 0 another in its place", what,
                              group.rank(), mine[i]));
}

// As rank 0 has them.
void make_alike(const nn::NamedTensors& tensors, const Group& group) {
  const NoGrad no_grad;
  for (const auto& [name, t] : tensors) Tensor(t).copy_(broadcast(t, 0, group));
}

// earlier + later, in the memory of the earlier ones; an undefined tensor is zero.
std::vector<Tensor> added(std::vector<Tensor> earlier, std::vector<Tensor> later) {
  for (size_t i = 0; i < earlier.size(); ++i) {
    if (!later[i].defined()) continue;
    if (!earlier[i].defined()) earlier[i] = std::move(later[i]);
    else earlier[i].add_(later[i]);
  }
  return earlier;
}

}  // namespace

struct DataParallel::NoSync::State {
  Group group;
  DataParallelOptions options;
  std::vector<Tensor> parameters;
  nn::NamedTensors buffers;
  std::vector<uint64_t> callbacks;
  int no_sync = 0;      // scopes that are open
  bool queued = false;  // for the end of the backward that goes on

  State(Group group, const DataParallelOptions& options) : group(std::move(group)), options(options) {}
  ~State() {
    for (size_t i = 0; i < callbacks.size(); ++i) remove_gradient_callback(parameters[i], callbacks[i]);
  }

  // The gradient of a parameter is complete.
  void ready(size_t parameter) {
    if (buckets_.empty()) {
      arrived_.push_back(static_cast<int64_t>(parameter));
      return;
    }
    --buckets_[bucket_of_[parameter]].missing;
    while (next_ < buckets_.size() && buckets_[next_].missing == 0) launch(buckets_[next_++]);
  }

  void reduce() {
    if (!group.state().engine || parameters.empty()) return;
    const NoGrad no_grad;
    if (buckets_.empty()) {
      complete();
      std::map<DType, Tensors> gradients;
      for (const Tensor& p : parameters)
        if (const Tensor grad = p.grad(); grad.defined()) gradients[grad.dtype()].push_back(grad);
      for (const auto& [dtype, tensors] : gradients) sum(tensors);
      if (overlaps()) make_buckets();
    } else {
      finish_buckets();
    }
    begin();
    make_alike(buffers, group);
  }

  // Nothing of a backward has come yet.
  void begin() {
    next_ = 0;
    arrived_.clear();
    for (Bucket& b : buckets_) b.missing = b.members.size();
    filled_.assign(parameters.size(), false);
  }

 private:
  struct Bucket {
    std::vector<size_t> members;
    size_t missing = 0;  // gradients that this backward has not made
  };

  void sum(const Tensors& gradients) const {
    const std::optional<DType> dtype = options.gradient_dtype;
    if (!dtype || *dtype == gradients[0].dtype() || !is_floating(gradients[0].dtype()))
      return all_reduce_(gradients, group, options.op);
    Tensors sent;
    for (const Tensor& t : gradients) sent.push_back(cast(t, *dtype));
    all_reduce_(sent, group, options.op);
    for (size_t i = 0; i < sent.size(); ++i) Tensor(gradients[i]).copy_(sent[i]);
  }

  // Of each parameter whether any rank has a gradient.
  std::vector<uint8_t> used_anywhere(std::vector<uint8_t> used) const {
    const auto n = static_cast<int64_t>(used.size());
    const PauseCapture now;  // a captured step uses the same in each run
    return all_reduce(tensor(used, {n}), group, Max).to_vector<uint8_t>();
  }

  // Where this rank has no gradient and another has, zeros take its place.
  void complete() {
    std::vector<uint8_t> used;
    for (const Tensor& p : parameters) used.push_back(p.grad().defined());
    const std::vector<uint8_t> anywhere = used_anywhere(used);
    for (size_t i = 0; i < used.size(); ++i)
      if (anywhere[i] && !used[i]) fill(i);
  }
  void fill(size_t parameter) {
    const Tensor& p = parameters[parameter];
    p.set_grad(zeros(p.shape(), p.dtype(), p.device()));
  }

  bool overlaps() {
    using Overlap = DataParallelOptions::Overlap;
    if (options.overlap != Overlap::Auto) return options.overlap == Overlap::Always;
    return group.state().engine_on(parameters[0].device(), false) != nullptr;
  }

  // In the order in which rank 0's gradients came; those that it did not use are last.
  void make_buckets() {
    const auto n = static_cast<int64_t>(parameters.size());
    std::vector<bool> known(parameters.size(), false);
    for (const int64_t i : arrived_) known[static_cast<size_t>(i)] = true;
    for (int64_t i = n - 1; i >= 0; --i)
      if (!known[static_cast<size_t>(i)]) arrived_.push_back(i);
    const PauseCapture now;
    const std::vector<int64_t> order = broadcast(tensor(arrived_, {n}), 0, group).to_vector<int64_t>();
    bucket_of_.resize(parameters.size());
    int64_t bytes = 0;
    for (const int64_t i : order) {
      const Tensor& p = parameters[static_cast<size_t>(i)];
      const int64_t most = buckets_.size() == 1 ? options.first_bucket_bytes : options.bucket_bytes;
      const bool fits =
          !buckets_.empty() && bytes < most && parameters[buckets_.back().members[0]].dtype() == p.dtype();
      if (!fits) {
        buckets_.emplace_back();
        bytes = 0;
      }
      bytes += p.numel() * static_cast<int64_t>(size_of(p.dtype()));
      buckets_.back().members.push_back(static_cast<size_t>(i));
      bucket_of_[static_cast<size_t>(i)] = buckets_.size() - 1;
    }
    if (const Device device = parameters[0].device(); device.is_gpu()) stream_.emplace(device);
  }

  // All ranks launch the buckets in their order.
  void launch(const Bucket& bucket) {
    const NoGrad no_grad;
    Tensors gradients;
    for (const size_t i : bucket.members) {
      if (!parameters[i].grad().defined()) {
        fill(i);
        filled_[i] = true;
      }
      gradients.push_back(parameters[i].grad());
    }
    if (!stream_ || is_capturing()) return sum(gradients);
    const Device device = stream_->device();
    Event made(device);
    made.record(current_stream(device));
    made.wait(*stream_);
    const StreamGuard guard(*stream_);
    sum(gradients);
  }

  void finish_buckets() {
    while (next_ < buckets_.size()) launch(buckets_[next_++]);
    if (stream_ && !is_capturing()) {
      Event done(stream_->device());
      done.record(*stream_);
      done.wait(current_stream(stream_->device()));
    }
    std::vector<uint8_t> used;
    for (const bool filled : filled_) used.push_back(!filled);
    const std::vector<uint8_t> anywhere = used_anywhere(std::move(used));
    for (size_t i = 0; i < anywhere.size(); ++i)
      if (!anywhere[i]) parameters[i].set_grad({});
  }

  std::vector<int64_t> arrived_;  // parameters, in the order of their gradients
  std::vector<Bucket> buckets_;   // none before the first backward has shown the order
  std::vector<size_t> bucket_of_;
  std::vector<bool> filled_;      // parameters without a gradient of this rank
  size_t next_ = 0;               // bucket to launch
  std::optional<Stream> stream_;  // of a GPU
};

DataParallel::NoSync::NoSync(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->no_sync; }
DataParallel::NoSync::~NoSync() { --state_->no_sync; }

DataParallel::DataParallel(const nn::Module& model, const Group& group, const DataParallelOptions& options)
    : state_(std::make_shared<NoSync::State>(group, options)) {
  if (options.op != Mean && options.op != Sum)
    throw Error(fmt::format("DataParallel: gradients are not reduced by {}", name(options.op)));
  if (!group.state().engine) return;
  check_alike("parameters", model.named_parameters(), group);
  check_alike("buffers", model.named_buffers(), group);
  make_alike(model.named_parameters(), group);
  make_alike(model.named_buffers(), group);
  state_->buffers = model.named_buffers();
  for (const Tensor& p : model.parameters())
    if (p.requires_grad()) state_->parameters.push_back(p);
  state_->begin();
  for (size_t i = 0; i < state_->parameters.size(); ++i)
    state_->callbacks.push_back(
        on_gradient_ready(state_->parameters[i], [weak = std::weak_ptr(state_), i](const Tensor&) {
          const auto state = weak.lock();
          if (!state || state->no_sync > 0) return;
          if (!std::exchange(state->queued, true)) {
            // Dropped, too, where backward fails.
            const std::shared_ptr<void> ends(nullptr, [state](void*) {
              if (std::exchange(state->queued, false)) state->begin();
            });
            at_end_of_backward([state, ends] { state->reduce(); });
          }
          state->ready(i);
        }));
}

DataParallel::NoSync DataParallel::no_sync() const { return NoSync(state_); }
void DataParallel::reduce() const { state_->reduce(); }

void GradientSum::add() {
  std::vector<Tensor> sum;
  for (const Tensor& p : parameters_) {
    sum.push_back(p.grad());
    p.set_grad({});
  }
  const NoGrad no_grad;
  size_t level = 0;
  for (; level < levels_.size() && !levels_[level].empty(); ++level)
    sum = added(std::exchange(levels_[level], {}), std::move(sum));
  if (level == levels_.size()) levels_.emplace_back();
  levels_[level] = std::move(sum);
}

void GradientSum::finish() {
  const NoGrad no_grad;
  std::vector<Tensor> sum;
  for (std::vector<Tensor>& level : levels_) {
    if (level.empty()) continue;
    sum = sum.empty() ? std::exchange(level, {}) : added(std::exchange(level, {}), std::move(sum));
  }
  for (size_t i = 0; i < sum.size(); ++i) parameters_[i].set_grad(sum[i]);
}

}  // namespace tessera::dist
