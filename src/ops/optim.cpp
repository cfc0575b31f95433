// Optimizer steps. In-place ops come first among the inputs: what they write, then what they read.
#include "ops/optim.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/check.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"

namespace tessera {
namespace {

// ---- inputs: n params, `states` tensors and a copy? for each, step | n grads, lr, grad_scale?, found_inf?

struct Layout {
  size_t n, states, step;
  bool copies;
  size_t param(size_t i) const { return i; }
  size_t state(size_t s, size_t i) const { return (1 + s) * n + i; }
  size_t copy(size_t i) const { return (1 + states) * n + i; }
  size_t grad(size_t i) const { return step + 1 + i; }
  size_t lr() const { return step + 1 + n; }
  size_t grad_scale() const { return lr() + 1; }
  size_t found_inf() const { return lr() + 2; }
};

Layout layout(size_t inputs, size_t states, bool copies) {
  const size_t n = (inputs - 4) / (2 + states + copies);
  return {n, states, (1 + states + copies) * n, copies};
}
size_t adam_states(const Attrs&) { return 2; }
size_t sgd_states(const Attrs& attrs) { return attrs.as<OptimAttrs>().momentum != 0 ? 1 : 0; }

void require_scalar(std::string_view op, std::string_view what, const TensorMeta& meta, bool flag = false) {
  if (is_absent(meta)) return;
  if (!meta.shape.empty() || (flag ? meta.dtype != Bool : meta.dtype != Float32 && meta.dtype != Float64))
    fail(op, "{} must be a 0-d {} tensor, not {}", what, flag ? "bool" : "f32 or f64", describe(meta));
}

void check_copy(std::string_view op, const TensorMeta& param, const TensorMeta& copy) {
  if (is_absent(copy)) return;
  if (param.dtype != statistics_dtype(param.dtype)) fail(op, "only f32 and f64 have copies, not {}", describe(param));
  if (!(copy.shape == param.shape) || (copy.dtype != Float16 && copy.dtype != BFloat16))
    fail(op, "copy in f16 or bf16 of parameter {}: {}", describe(param), describe(copy));
}

template <OpName op, auto states_of>
Metas infer_step(std::span<const TensorMeta> in, const Attrs& attrs) {
  const size_t states = states_of(attrs);
  const bool copies = attrs.as<OptimAttrs>().copies;
  if (in.size() < 4 || (in.size() - 4) % (2 + states + copies) != 0)
    fail(op.view(), "{} inputs do not make a step", in.size());
  const Layout at = layout(in.size(), states, copies);
  for (size_t i = 0; i < at.n; ++i) {
    const TensorMeta &param = in[at.param(i)], &grad = in[at.grad(i)];
    if (!is_floating(param.dtype)) fail(op.view(), "parameter {} is {}", i, describe(param));
    if (!(grad.shape == param.shape) || !is_floating(grad.dtype) || (grad.dtype == Float64) != (param.dtype == Float64))
      fail(op.view(), "gradient {} of parameter {}: {}", i, describe(param), describe(grad));
    for (size_t s = 0; s < states; ++s) {
      const TensorMeta& state = in[at.state(s, i)];
      if (!(state.shape == param.shape) || state.dtype != statistics_dtype(param.dtype))
        fail(op.view(), "state {} of parameter {}: {}", s, describe(param), describe(state));
    }
    if (copies) check_copy(op.view(), param, in[at.copy(i)]);
  }
  require_scalar(op.view(), "step", in[at.step]);
  require_scalar(op.view(), "lr", in[at.lr()]);
  require_scalar(op.view(), "grad_scale", in[at.grad_scale()]);
  require_scalar(op.view(), "found_inf", in[at.found_inf()], true);
  return Metas(in.begin(), in.begin() + at.step + 1);
}

// ---- references: new values of everything that is written

// Calls update(i, index, value) for each element of each parameter, where value(input) reads an input there.
template <auto states_of, class F>
Tensors stepped(std::span<const Tensor> in, const Attrs& attrs, F update) {
  const Layout at = layout(in.size(), states_of(attrs), attrs.as<OptimAttrs>().copies);
  Tensors out;
  for (size_t i = 0; i <= at.step; ++i) out.push_back(in[i].defined() ? in[i].clone() : Tensor());
  if (in[at.found_inf()].defined() && in[at.found_inf()].item() != 0) return out;
  double scale = in[at.grad_scale()].defined() ? in[at.grad_scale()].item() : 1;
  for (size_t i = 0; i < at.n; ++i)
    reference::each_index(in[at.param(i)].shape(), [&](const reference::Index& index) {
      double p = reference::get(out[i], index), g = reference::get(in[at.grad(i)], index) * scale, state[2] = {};
      for (size_t s = 0; s < at.states; ++s) state[s] = reference::get(out[at.state(s, i)], index);
      update(p, g, state, in[at.step].item(), in[at.lr()].item());
      reference::set(out[i], index, p);
      for (size_t s = 0; s < at.states; ++s) reference::set(out[at.state(s, i)], index, state[s]);
      if (at.copies && out[at.copy(i)].defined()) reference::set(out[at.copy(i)], index, p);
    });
  out[at.step].fill_(in[at.step].item() + 1);
  return out;
}

Tensors adam_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const OptimAttrs& o = attrs.as<OptimAttrs>();
  return stepped<adam_states>(in, attrs, [&](double& p, double g, double(&m)[2], double step, double lr) {
    if (o.decoupled) p -= lr * o.weight_decay * p;
    else g += o.weight_decay * p;
    m[0] = o.beta1 * m[0] + (1 - o.beta1) * g;
    m[1] = o.beta2 * m[1] + (1 - o.beta2) * g * g;
    double mean = m[0] / (1 - std::pow(o.beta1, step + 1)), square = m[1] / (1 - std::pow(o.beta2, step + 1));
    p -= lr * mean / (std::sqrt(square) + o.eps);
  });
}

Tensors sgd_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const OptimAttrs& o = attrs.as<OptimAttrs>();
  return stepped<sgd_states>(in, attrs, [&](double& p, double g, double(&m)[2], double step, double lr) {
    g += o.weight_decay * p;
    if (o.momentum != 0) {
      m[0] = step == 0 ? g : o.momentum * m[0] + (1 - o.dampening) * g;
      g = o.nesterov ? g + o.momentum * m[0] : m[0];
    }
    p -= lr * g;
  });
}

const Op adam_op = {
    .name = "adam_",
    .inputs = "params..., exp_avgs..., exp_avg_sqs..., lower_params..., step, grads..., lr, grad_scale?, found_inf?",
    .outputs = "params..., exp_avgs..., exp_avg_sqs..., lower_params..., step",
    .attrs = attrs_of<OptimAttrs>,
    .infer = infer_step<"adam_", adam_states>,
    .reference = adam_reference,
    .in_place = true};
const Op sgd_op = {.name = "sgd_",
                   .inputs = "params..., momenta..., lower_params..., step, grads..., lr, grad_scale?, found_inf?",
                   .outputs = "params..., momenta..., lower_params..., step",
                   .attrs = attrs_of<OptimAttrs>,
                   .infer = infer_step<"sgd_", sgd_states>,
                   .reference = sgd_reference,
                   .in_place = true};

// ---- global_norm: any number of tensors -> sqrt of the sum of all squares

Metas infer_global_norm(std::span<const TensorMeta> in, const Attrs&) {
  if (in.empty()) fail("global_norm", "no tensors");
  DType dtype = Float32;
  for (const TensorMeta& t : in) {
    if (!is_floating(t.dtype)) fail("global_norm", "takes floating-point tensors, not {}", describe(t));
    if (t.dtype == Float64) dtype = Float64;
  }
  return {{Shape(), dtype, in[0].device}};
}

Tensors global_norm_reference(std::span<const Tensor> in, const Attrs&) {
  double total = 0;
  for (const Tensor& t : in)
    reference::each_index(t.shape(), [&](const reference::Index& i) { total += std::pow(reference::get(t, i), 2); });
  return {full({}, std::sqrt(total), in[0].dtype())};
}

const Op global_norm_op = {.name = "global_norm",
                           .inputs = "tensors...",
                           .outputs = "norm",
                           .infer = infer_global_norm,
                           .reference = global_norm_reference};

// ---- unscale_: n grads, found_inf | scale

Metas infer_unscale(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs("unscale_", in);
  if (in.size() < 2) fail("unscale_", "{} inputs are no gradients with found_inf and scale", in.size());
  const size_t n = in.size() - 2;
  for (const TensorMeta& t : in.first(n))
    if (!is_floating(t.dtype)) fail("unscale_", "takes floating-point tensors, not {}", describe(t));
  require_scalar("unscale_", "found_inf", in[n], true);
  require_scalar("unscale_", "scale", in[n + 1]);
  return Metas(in.begin(), in.begin() + n + 1);
}

Tensors unscale_reference(std::span<const Tensor> in, const Attrs&) {
  const size_t n = in.size() - 2;
  Tensors out;
  bool found = in[n].item() != 0;
  for (const Tensor& t : in.first(n))
    out.push_back(reference::generate(t.shape(), t.dtype(), [&](auto& i) {
      const double value = reference::get(t, i) / in[n + 1].item();
      found |= !std::isfinite(value);
      return value;
    }));
  out.push_back(full({}, found, Bool));
  return out;
}

const Op unscale_op = {.name = "unscale_",
                       .inputs = "grads..., found_inf, scale",
                       .outputs = "grads..., found_inf",
                       .infer = infer_unscale,
                       .reference = unscale_reference,
                       .in_place = true};

// ---- update_scale_: scale, growth_tracker | found_inf

Metas infer_update_scale(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("update_scale_", in);
  auto& a = attrs.as<ScaleAttrs>();
  require_scalar("update_scale_", "scale", in[0]);
  if (!in[1].shape.empty() || in[1].dtype != Int32)
    fail("update_scale_", "growth_tracker must be a 0-d i32 tensor, not {}", describe(in[1]));
  require_scalar("update_scale_", "found_inf", in[2], true);
  if (!(a.growth > 0 && a.backoff > 0) || a.interval < 1)
    fail("update_scale_", "growth {} and backoff {} must be positive, and the interval {}", a.growth, a.backoff,
         a.interval);
  return {in[0], in[1]};
}

Tensors update_scale_reference(std::span<const Tensor> in, const Attrs& attrs) {
  auto& a = attrs.as<ScaleAttrs>();
  double scale = in[0].item(), count = in[1].item() + 1;
  if (in[2].item() != 0) {
    scale *= a.backoff;
    count = 0;
  } else if (count >= static_cast<double>(a.interval)) {
    if (scale * a.growth <= std::numeric_limits<float>::max()) scale *= a.growth;
    count = 0;
  }
  return {full({}, scale, in[0].dtype()), full({}, count, Int32)};
}

const Op update_scale_op = {.name = "update_scale_",
                            .inputs = "scale, growth_tracker, found_inf",
                            .outputs = "scale, growth_tracker",
                            .attrs = attrs_of<ScaleAttrs>,
                            .infer = infer_update_scale,
                            .reference = update_scale_reference,
                            .in_place = true};

// Kernels read gradients in any lower dtype beside f32 and below, and f64 beside f64.
Tensors readable(const Tensors& params, const Tensors& grads) {
  Tensors out = grads;
  for (size_t i = 0; i < std::min(params.size(), grads.size()); ++i)
    if ((grads[i].dtype() == Float64) != (params[i].dtype() == Float64)) out[i] = grads[i].to(params[i].dtype());
  return out;
}

void step(const Op& op, std::initializer_list<const Tensors*> groups, const Tensor& step, const Tensors& grads,
          const StepInputs& inputs, OptimAttrs attrs, const Tensors& copies) {
  attrs.copies = std::any_of(copies.begin(), copies.end(), [](const Tensor& t) { return t.defined(); });
  Tensors in;
  in.reserve((groups.size() + 2) * grads.size() + 4);
  for (const Tensors* group : groups) in.append(group->begin(), group->end());
  if (attrs.copies) in.append(copies.begin(), copies.end());
  in.push_back(step);
  const Tensors read = readable(**groups.begin(), grads);
  in.append(read.begin(), read.end());
  for (const Tensor& t : {inputs.lr, inputs.grad_scale, inputs.found_inf}) in.push_back(t);
  for (const Tensors* group : groups)
    if (group->size() != grads.size()) fail(op.name, "{} gradients for {} tensors", grads.size(), group->size());
  if (attrs.copies && copies.size() != grads.size())
    fail(op.name, "{} copies for {} gradients", copies.size(), grads.size());
  dispatch(op, std::move(in), attrs);
}

}  // namespace

std::span<const Op* const> optim_ops() {
  static constexpr const Op* ops[] = {&adam_op, &sgd_op, &global_norm_op, &unscale_op, &update_scale_op};
  return ops;
}

void adam_(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq, const Tensor& step_count,
           const Tensors& grads, const StepInputs& inputs, const OptimAttrs& attrs, const Tensors& copies) {
  step(adam_op, {&params, &exp_avg, &exp_avg_sq}, step_count, grads, inputs, attrs, copies);
}
void sgd_(const Tensors& params, const Tensors& momentum, const Tensor& step_count, const Tensors& grads,
          const StepInputs& inputs, const OptimAttrs& attrs, const Tensors& copies) {
  if (attrs.momentum != 0) step(sgd_op, {&params, &momentum}, step_count, grads, inputs, attrs, copies);
  else step(sgd_op, {&params}, step_count, grads, inputs, attrs, copies);
}

void unscale_(const Tensors& grads, const Tensor& found_inf, const Tensor& scale) {
  Tensors in = grads;
  in.push_back(found_inf);
  in.push_back(scale);
  dispatch(unscale_op, std::move(in));
}
void update_scale_(const Tensor& scale, const Tensor& growth_tracker, const Tensor& found_inf,
                   const ScaleAttrs& attrs) {
  dispatch(update_scale_op, {scale, growth_tracker, found_inf}, attrs);
}

Tensor global_norm(const Tensors& tensors) { return dispatch_one(global_norm_op, Tensors(tensors)); }

}  // namespace tessera
