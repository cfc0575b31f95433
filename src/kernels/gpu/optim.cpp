#include "kernels/args/gpu/optim.h"

#include <limits>
#include <vector>

#include "kernels/gpu/rows.h"
#include "kernels/shared/lies_alike.h"
#include "kernels/shared/tables.h"

namespace tessera::gpu_kernels {
namespace {

ScalarArg scalar(const Operand& t) { return t.defined() ? ScalarArg{t.data_ptr(), scalar_of(t.dtype())} : ScalarArg{}; }

// The gap that kernels walk over in `t`: a few elements between rows, or none in a dense one; -1 in other layouts.
int gap_of(const Operand& t) {
  const long long gap = gap_of_rows(t).value_or(-1);
  if (gap > std::numeric_limits<unsigned char>::max()) return -1;
  return gap > 0 && t.size(-1) > std::numeric_limits<int>::max() / 2 ? -1 : static_cast<int>(gap);
}

// Other layouts than those are staged in the workspace, and written back.
void* staged(Workspace& workspace, const Operand& t, bool written) {
  return (written ? workspace.write(t, t.dtype(), false, true) : workspace.read(t, t.dtype(), false)).data;
}
void* place(Workspace& workspace, const Operand& t, bool written, StepTensor& to, unsigned char& gap) {
  const int found = gap_of(t);
  if (found < 0) return staged(workspace, t, written);
  if (found > 0) to.length = to.width = static_cast<int>(t.size(-1));
  gap = static_cast<unsigned char>(found);
  return t.data_ptr();
}

// Counts places as `like` lies, with the gaps between its rows, if it has any and fours of places are whole in it.
bool counts_gaps(StepTensor& t, const Operand& like) {
  const int gap = gap_of(like);
  if (gap <= 0 || (like.size(-1) + gap) % 4 != 0) return false;
  t.length = static_cast<int>(like.size(-1));
  t.width = t.length + gap;
  t.count = t.count / t.length * t.width;
  return true;
}
// What lies as places are counted.
void* counted(Workspace& workspace, const Operand& t, bool written, bool with_gaps) {
  return with_gaps || t.is_contiguous() ? t.data_ptr() : staged(workspace, t, written);
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
    const Operand &param = own.param, &grad = own.grad;
    StepTensor t{param.numel(), nullptr, nullptr, {}, scalar_of(param.dtype()), scalar_of(grad.dtype())};
    t.param = place(workspace, param, true, t, t.param_gap);
    t.grad = place(workspace, grad, false, t, t.grad_gap);
    if (own.copy.defined()) {
      t.lower = place(workspace, own.copy, true, t, t.lower_gap);
      t.lower_type = scalar_of(own.copy.dtype());
    }
    bool alike = t.param == param.data_ptr();
    for (size_t s = 0; s < states; ++s) alike = alike && gap_of(own.states[s]) == t.param_gap;
    // Without states as with those that zeros_beside makes: of short rows the ends would cost more than packs gain.
    const bool gaps = alike && (states > 0 || t.length >= 2048) && counts_gaps(t, param);
    for (size_t s = 0; s < states; ++s) t.state[s] = counted(workspace, own.states[s], true, gaps);
    tensors.push_back(t);
  }
  DeviceStepArgs args{};
  args.adam = adam;
  args.states = static_cast<int>(states);
  args.tensors = static_cast<long long>(n);
  args.tensor = workspace.plan().keep(tensors.data(), tensors.size());
  args.step = scalar(call.in[step]);
  args.lr = scalar(call.in[lr]);
  args.grad_scale = scalar(call.in[lr + 1]);
  args.found_inf = scalar(call.in[lr + 2]);
  args.beta1 = o.beta1;
  args.beta2 = o.beta2;
  args.eps = o.eps;
  args.weight_decay = o.weight_decay;
  args.momentum = o.momentum;
  args.dampening = o.dampening;
  args.decoupled = o.decoupled;
  args.nesterov = o.nesterov;
  workspace.launch("step", step_table().step, args);
}

void plan_global_norm(const Call& call, Workspace& workspace) {
  std::vector<StepTensor> tensors;
  for (const Operand& t : call.in) {
    StepTensor s{};
    s.count = t.numel();
    s.grad = counted(workspace, t, false, counts_gaps(s, t));
    s.grad_type = scalar_of(t.dtype());
    tensors.push_back(s);
  }
  const auto n = static_cast<long long>(tensors.size());
  void* sums = workspace.take(step_table().norm_bytes(n, tensors.data()));
  const StepTensor* const kept = workspace.plan().keep(tensors.data(), tensors.size());
  workspace.launch("norm", step_table().norm, {n, kept, scalar(call.out[0]), sums});
}

// Inputs: n grads, found_inf | scale.
void plan_unscale(const Call& call, Workspace& workspace) {
  const size_t n = call.in.size() - 2;
  std::vector<StepTensor> tensors;
  for (const Operand& t : call.in.first(n)) {
    StepTensor s{};
    s.count = t.numel();
    s.param = counted(workspace, t, true, counts_gaps(s, t));
    s.param_type = scalar_of(t.dtype());
    tensors.push_back(s);
  }
  const StepTensor* const kept = workspace.plan().keep(tensors.data(), tensors.size());
  workspace.launch("unscale", step_table().unscale,
                   {static_cast<long long>(n), kept, scalar(call.in[n + 1]), scalar(call.in[n])});
}

// Inputs: scale, growth_tracker | found_inf.
void update_scale_on_device(const Call& call, Plan& plan) {
  const ScaleAttrs& a = call.attrs.as<ScaleAttrs>();
  plan.launch("update_scale", step_table().update_scale,
              {scalar(call.in[0]), static_cast<int*>(call.in[1].data_ptr()),
               static_cast<const bool*>(call.in[2].data_ptr()), a.growth, a.backoff, a.interval});
}

constexpr Kernel adam[] = {staged_kernel<plan_step<true>>("multi_tensor")};
constexpr Kernel sgd[] = {staged_kernel<plan_step<false>>("multi_tensor")};
constexpr Kernel global_norm[] = {staged_kernel<plan_global_norm>("multi_tensor")};
constexpr Kernel unscale[] = {staged_kernel<plan_unscale>("multi_tensor")};
constexpr Kernel update_scale[] = {{.name = "scalar", .plan = update_scale_on_device}};

const KernelTableEntry table[] = {{"adam_", adam},
                                  {"sgd_", sgd},
                                  {"global_norm", global_norm},
                                  {"unscale_", unscale},
                                  {"update_scale_", update_scale}};

}  // namespace

std::span<const KernelTableEntry> optim_kernels() { return table; }

}  // namespace tessera::gpu_kernels
