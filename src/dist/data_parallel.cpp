// Data parallelism: what a model's ranks agree on, and how their gradients become one.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

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

  // Which parameters have a gradient on any rank; where this one has none, zeros take its place.
  void complete() {
    std::vector<uint8_t> used;
    for (const Tensor& p : parameters) used.push_back(p.grad().defined());
    const Tensor all = all_reduce(tensor(used, {static_cast<int64_t>(used.size())}), group, Max);
    const std::vector<uint8_t> anywhere = all.to_vector<uint8_t>();
    for (size_t i = 0; i < used.size(); ++i)
      if (anywhere[i] && !used[i]) {
        const Tensor& p = parameters[i];
        p.set_grad(zeros(p.shape(), p.dtype(), p.device()));
      }
  }

  void reduce() {
    if (group.size() == 1 || parameters.empty()) return;
    const NoGrad no_grad;
    complete();
    std::map<DType, Tensors> gradients;
    for (const Tensor& p : parameters)
      if (const Tensor grad = p.grad(); grad.defined()) gradients[grad.dtype()].push_back(grad);
    for (const auto& [dtype, tensors] : gradients) all_reduce_(tensors, group, options.op);
    make_alike(buffers, group);
  }
};

DataParallel::NoSync::NoSync(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->no_sync; }
DataParallel::NoSync::~NoSync() { --state_->no_sync; }

DataParallel::DataParallel(const nn::Module& model, const Group& group, const DataParallelOptions& options)
    : state_(std::make_shared<NoSync::State>(group, options)) {
  if (options.op != Mean && options.op != Sum)
    throw Error(fmt::format("DataParallel: gradients are not reduced by {}", name(options.op)));
  if (group.size() == 1) return;
  check_alike("parameters", model.named_parameters(), group);
  check_alike("buffers", model.named_buffers(), group);
  make_alike(model.named_parameters(), group);
  make_alike(model.named_buffers(), group);
  state_->buffers = model.named_buffers();
  for (const Tensor& p : model.parameters())
    if (p.requires_grad()) state_->parameters.push_back(p);
  for (const Tensor& p : state_->parameters)
    state_->callbacks.push_back(on_gradient_ready(p, [weak = std::weak_ptr(state_)](const Tensor&) {
      const auto state = weak.lock();
      if (!state || state->no_sync > 0 || std::exchange(state->queued, true)) return;
      // Dropped, too, where backward fails.
      const std::shared_ptr<void> ends(nullptr, [state](void*) { state->queued = false; });
      at_end_of_backward([state, ends] { state->reduce(); });
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
