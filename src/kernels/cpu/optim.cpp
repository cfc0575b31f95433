#include <cmath>
#include <vector>

#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

// Steps walk contiguous memory: a tensor that is not contiguous is staged in the workspace, and written back.
size_t staged_bytes(const Call& call) {
  size_t bytes = 0;
  for (const Tensor& t : call.in)
    if (t.defined() && !t.is_contiguous()) bytes += (t.numel() * size_of(t.dtype()) + 63) / 64 * 64;
  return bytes;
}

class Staging {
 public:
  explicit Staging(const Call& call) : call_(call), next_(static_cast<char*>(call.workspace)) {}
  void* take(const Tensor& t) {
    if (t.is_contiguous()) return t.data_ptr();
    void* place = next_;
    next_ += (t.numel() * size_of(t.dtype()) + 63) / 64 * 64;
    move(t, place, false);
    return place;
  }
  void put_back(const Tensor& t, void* place) {
    if (place != t.data_ptr()) move(t, place, true);
  }

 private:
  void move(const Tensor& t, void* place, bool back) {
    CopyArgs args;
    args.rank = checked_rank(call_, t);
    set_lengths(args.lengths, t);
    TensorArg staged{place, scalar_of(t.dtype()), {}};
    long long step = 1;
    for (int d = args.rank - 1; d >= 0; step *= args.lengths[d--]) staged.strides[d] = step;
    args.to = back ? operand(t, args.rank) : staged;
    args.from = back ? staged : operand(t, args.rank);
    elementwise_table().copy(args, executor());
  }
  const Call& call_;
  char* next_;
};

// Inputs: n params, `states` tensors for each, step | n grads, lr, grad_scale?, found_inf? (see ops/optim.cpp).
struct StepInputs {
  size_t states, n, first_grad, lr;
  StepInputs(const Call& call, size_t states)
      : states(states), n((call.in.size() - 4) / (2 + states)), first_grad((1 + states) * n + 1), lr(first_grad + n) {}
  size_t state(size_t s, size_t i) const { return (1 + s) * n + i; }
};

// Kept from step to step: a step allocates nothing after the first.
thread_local std::vector<StepTensor> tensors;

void gather(const Call& call, const StepInputs& at, Staging& staging) {
  tensors.clear();
  for (size_t i = 0; i < at.n; ++i) {
    const Tensor &param = call.in[i], &grad = call.in[at.first_grad + i];
    StepTensor t{param.numel(),          staging.take(param), staging.take(grad), {}, scalar_of(param.dtype()),
                 scalar_of(grad.dtype())};
    for (size_t s = 0; s < at.states; ++s) t.state[s] = staging.take(call.in[at.state(s, i)]);
    tensors.push_back(t);
  }
}

void put_back(const Call& call, const StepInputs& at, Staging& staging) {
  for (size_t i = 0; i < at.n; ++i) {
    staging.put_back(call.in[i], tensors[i].param);
    for (size_t s = 0; s < at.states; ++s) staging.put_back(call.in[at.state(s, i)], tensors[i].state[s]);
  }
}

template <bool adam>
void run_step(const Call& call) {
  const OptimAttrs& o = call.attrs.as<OptimAttrs>();
  StepInputs at(call, adam ? 2 : o.momentum != 0 ? 1 : 0);
  auto scalar = [&](size_t i, double absent) { return call.in[i].defined() ? call.in[i].item() : absent; };
  if (scalar(at.lr + 2, 0) != 0) return;  // found_inf: nothing changes
  Staging staging(call);
  gather(call, at, staging);
  const Tensor& step = call.in[at.first_grad - 1];
  StepArgs args{};
  args.adam = adam;
  args.states = static_cast<int>(at.states);
  args.tensors = static_cast<long long>(at.n);
  args.tensor = tensors.data();
  args.lr = scalar(at.lr, 0);
  args.grad_scale = scalar(at.lr + 1, 1);
  args.step = step.item();
  args.beta1 = o.beta1;
  args.beta2 = o.beta2;
  args.eps = o.eps;
  args.weight_decay = o.weight_decay;
  args.momentum = o.momentum;
  args.dampening = o.dampening;
  args.decoupled = o.decoupled;
  args.nesterov = o.nesterov;
  optim_table().step(args, executor());
  put_back(call, at, staging);
  fill(call, step, args.step + 1);
}

void run_global_norm(const Call& call) {
  Staging staging(call);
  tensors.clear();
  for (const Tensor& t : call.in) {
    StepTensor s{};
    s.count = t.numel();
    s.grad = staging.take(t);
    s.grad_type = scalar_of(t.dtype());
    tensors.push_back(s);
  }
  double total = optim_table().squares({static_cast<long long>(tensors.size()), tensors.data()}, executor());
  fill(call, call.out[0], std::sqrt(total));
}

// Inputs: n grads, found_inf | scale.
void run_unscale(const Call& call) {
  const size_t n = call.in.size() - 2;
  Staging staging(call);
  tensors.clear();
  for (const Tensor& t : call.in.first(n)) {
    StepTensor s{};
    s.count = t.numel();
    s.param = staging.take(t);
    s.param_type = scalar_of(t.dtype());
    tensors.push_back(s);
  }
  const bool found =
      optim_table().unscale({static_cast<long long>(n), tensors.data(), 1 / call.in[n + 1].item()}, executor());
  for (size_t i = 0; i < n; ++i) staging.put_back(call.in[i], tensors[i].param);
  if (found) fill(call, call.in[n], 1);
}

// Inputs: scale, growth_tracker | found_inf.
void run_update_scale(const Call& call) {
  const ScaleAttrs& a = call.attrs.as<ScaleAttrs>();
  double scale = call.in[0].item();
  int count = static_cast<int>(call.in[1].item<int64_t>());
  optim_table().update_scale(scale, count, call.in[2].item() != 0, a.growth, a.backoff, a.interval);
  fill(call, call.in[0], scale);
  fill(call, call.in[1], count);
}

constexpr Kernel adam[] = {{.name = "multi_tensor", .workspace_bytes = staged_bytes, .run = run_step<true>}};
constexpr Kernel sgd[] = {{.name = "multi_tensor", .workspace_bytes = staged_bytes, .run = run_step<false>}};
constexpr Kernel global_norm[] = {{.name = "multi_tensor", .workspace_bytes = staged_bytes, .run = run_global_norm}};

constexpr Kernel unscale[] = {{.name = "multi_tensor", .workspace_bytes = staged_bytes, .run = run_unscale}};
constexpr Kernel update_scale[] = {{.name = "scalar", .run = run_update_scale}};

const KernelTableEntry table[] = {{"adam_", adam},
                                  {"sgd_", sgd},
                                  {"global_norm", global_norm},
                                  {"unscale_", unscale},
                                  {"update_scale_", update_scale}};

}  // namespace

std::span<const KernelTableEntry> optim_kernels() { return table; }

}  // namespace tessera::cpu_kernels
