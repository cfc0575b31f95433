#include <cmath>
#include <vector>

#include "core/element.h"
#include "kernels/shared/lies_alike.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::cpu_kernels {
namespace {

// A number that is read when the plan runs; `absent` where the call has none.
struct NumberArg {
  const void* data = nullptr;
  DType dtype = Float32;
  double absent = 0;
  double read() const {
    double value = absent;
    if (data) with_element_type(dtype, [&]<class T>(T*) { value = static_cast<double>(*static_cast<const T*>(data)); });
    return value;
  }
};
NumberArg number(const Operand& t, double absent = 0) {
  return t.defined() ? NumberArg{t.data_ptr(), t.dtype(), absent} : NumberArg{nullptr, Float32, absent};
}

// A number that is written when the plan runs.
struct ResultArg {
  void* data;
  DType dtype;
  explicit ResultArg(const Operand& t) : data(t.data_ptr()), dtype(t.dtype()) {}
  void write(double value) const {
    with_element_type(dtype, [&]<class T>(T*) { *static_cast<T*>(data) = static_cast<T>(value); });
  }
};

// Steps walk contiguous memory: a tensor that is not contiguous is copied to the workspace, and written back.
void* contiguous(Workspace& workspace, const Operand& t, bool written) {
  return (written ? workspace.write(t, t.dtype(), t.is_contiguous(), true)
                  : workspace.read(t, t.dtype(), t.is_contiguous()))
      .data;
}

// What is written back is as it was where found_inf says that nothing changes.
struct Step {
  StepArgs args;
  NumberArg step, lr, grad_scale, found_inf;
  ResultArg counter;
};
void run_step(const Step& s, Executor& executor) {
  if (s.found_inf.read() != 0) return;
  StepArgs args = s.args;
  args.lr = s.lr.read();
  args.grad_scale = s.grad_scale.read();
  args.step = s.step.read();
  optim_table().step(args, executor);
  s.counter.write(args.step + 1);
}

// Inputs: n params, `states` tensors and a copy? for each, step | n grads, lr, grad_scale?, found_inf? (see
// ops/optim.cpp).
template <bool adam>
void plan_step(const Call& call, Workspace& workspace) {
  const OptimAttrs& o = call.attrs.as<OptimAttrs>();
  const size_t states = adam ? 2 : o.momentum != 0 ? 1 : 0, n = (call.in.size() - 4) / (2 + states + o.copies);
  const size_t step = (1 + states + o.copies) * n, lr = step + 1 + n;
  std::vector<StepTensor> tensors;
  for (size_t i = 0; i < n; ++i) {
    const StepOperands own(call, i, n, states, o.copies);
    StepTensor t{own.param.numel(),
                 contiguous(workspace, own.param, true),
                 contiguous(workspace, own.grad, false),
                 {},
                 scalar_of(own.param.dtype()),
                 scalar_of(own.grad.dtype())};
    for (size_t s = 0; s < states; ++s) t.state[s] = contiguous(workspace, own.states[s], true);
    if (own.copy.defined()) {
      t.lower = contiguous(workspace, own.copy, true);
      t.lower_type = scalar_of(own.copy.dtype());
    }
    tensors.push_back(t);
  }
  StepArgs args{};
  args.adam = adam;
  args.states = static_cast<int>(states);
  args.tensors = static_cast<long long>(n);
  args.tensor = workspace.plan().keep(tensors.data(), n);
  args.beta1 = o.beta1;
  args.beta2 = o.beta2;
  args.eps = o.eps;
  args.weight_decay = o.weight_decay;
  args.momentum = o.momentum;
  args.dampening = o.dampening;
  args.decoupled = o.decoupled;
  args.nesterov = o.nesterov;
  workspace.launch("step", run_step,
                   {args, number(call.in[step]), number(call.in[lr]), number(call.in[lr + 1], 1),
                    number(call.in[lr + 2]), ResultArg(call.in[step])});
}

struct GlobalNorm {
  SquaresArgs args;
  ResultArg out;
};
void run_global_norm(const GlobalNorm& norm, Executor& executor) {
  norm.out.write(std::sqrt(optim_table().squares(norm.args, executor)));
}
void plan_global_norm(const Call& call, Workspace& workspace) {
  std::vector<StepTensor> tensors;
  for (const Operand& t : call.in) {
    StepTensor s{};
    s.count = t.numel();
    s.grad = contiguous(workspace, t, false);
    s.grad_type = scalar_of(t.dtype());
    tensors.push_back(s);
  }
  const StepTensor* const kept = workspace.plan().keep(tensors.data(), tensors.size());
  workspace.launch("global_norm", run_global_norm,
                   {{static_cast<long long>(tensors.size()), kept}, ResultArg(call.out[0])});
}

struct Unscale {
  UnscaleArgs args;
  NumberArg scale;
  ResultArg found_inf;
};
void run_unscale(const Unscale& u, Executor& executor) {
  UnscaleArgs args = u.args;
  args.factor = 1 / u.scale.read();
  if (optim_table().unscale(args, executor)) u.found_inf.write(1);
}
// Inputs: n grads, found_inf | scale.
void plan_unscale(const Call& call, Workspace& workspace) {
  const size_t n = call.in.size() - 2;
  std::vector<StepTensor> tensors;
  for (const Operand& t : call.in.first(n)) {
    StepTensor s{};
    s.count = t.numel();
    s.param = contiguous(workspace, t, true);
    s.param_type = scalar_of(t.dtype());
    tensors.push_back(s);
  }
  const StepTensor* const kept = workspace.plan().keep(tensors.data(), n);
  workspace.launch("unscale", run_unscale,
                   {{static_cast<long long>(n), kept, 1}, number(call.in[n + 1]), ResultArg(call.in[n])});
}

struct UpdateScale {
  NumberArg scale, tracker, found_inf;
  ResultArg new_scale, new_tracker;
  double growth, backoff;
  int64_t interval;
};
void run_update_scale(const UpdateScale& u, Executor&) {
  double scale = u.scale.read();
  int count = static_cast<int>(u.tracker.read());
  optim_table().update_scale(scale, count, u.found_inf.read() != 0, u.growth, u.backoff, u.interval);
  u.new_scale.write(scale);
  u.new_tracker.write(count);
}
// Inputs: scale, growth_tracker | found_inf.
void plan_update_scale(const Call& call, Plan& plan) {
  const ScaleAttrs& a = call.attrs.as<ScaleAttrs>();
  plan.launch("update_scale", run_update_scale,
              {number(call.in[0]), number(call.in[1]), number(call.in[2]), ResultArg(call.in[0]), ResultArg(call.in[1]),
               a.growth, a.backoff, a.interval});
}

constexpr Kernel adam[] = {staged_kernel<plan_step<true>>("multi_tensor")};
constexpr Kernel sgd[] = {staged_kernel<plan_step<false>>("multi_tensor")};
constexpr Kernel global_norm[] = {staged_kernel<plan_global_norm>("multi_tensor")};
constexpr Kernel unscale[] = {staged_kernel<plan_unscale>("multi_tensor")};
constexpr Kernel update_scale[] = {{.name = "scalar", .plan = plan_update_scale}};

const KernelTableEntry table[] = {{"adam_", adam},
                                  {"sgd_", sgd},
                                  {"global_norm", global_norm},
                                  {"unscale_", unscale},
                                  {"update_scale_", update_scale}};

}  // namespace

std::span<const KernelTableEntry> optim_kernels() { return table; }

}  // namespace tessera::cpu_kernels
