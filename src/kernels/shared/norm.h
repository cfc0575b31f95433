// Normalisations: from tensors to what kernels take. The kernels want contiguous rows or planes; other layouts are
// copied. What the lists of the CPU and of GPUs share.
#pragma once
#include "kernels/shared/channels_last.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {

// What a kernel is given: x of a half type is widened beside f32 weights.
inline DType common_dtype(const Operand& x, const Operand& weight) {
  return weight.defined() ? weight.dtype() : x.dtype();
}

// A hidden statistic, in the workspace where no gradient will need it.
inline void* statistic(Workspace& workspace, const Call& call, size_t output, long long count) {
  const Operand& t = call.out[output];
  if (t.defined()) return t.data_ptr();
  return workspace.take(count * static_cast<long long>(size_of(statistics_dtype(call.in[0]))));
}

// A gradient that is empty where its weight is absent.
inline void* gradient(Workspace& workspace, const Operand& t, const Operand& weight) {
  return weight.defined() ? workspace.write(t, t.dtype(), t.is_contiguous()).data : nullptr;
}

// ---- layer_norm, rms_norm

inline int64_t normalized_dims(const Operand& weight) { return weight.defined() ? weight.dim() : 1; }

// Whether a GPU's kernels with types of their own take these as they lie: rows of `inner` dims that begin at whole 16
// bytes, of halves or f32, and of weights f32 or halves.
bool lie_in_columns(int64_t inner, std::initializer_list<const Operand*> rows);
inline bool is_half(const Operand& t) { return t.dtype() == Float16 || t.dtype() == BFloat16; }

// y = the norm of the rows of x, with statistics as outputs from `first` on. `columns`: types stay as they are.
inline LayerNormArgs row_norm_args(const Call& call, Workspace& workspace, const Operand& x, const Operand& y,
                                   const Operand& weight, const Operand& bias, size_t first, bool rms, bool columns) {
  const DType dtype = columns ? x.dtype() : common_dtype(x, weight), y_dtype = columns ? y.dtype() : dtype;
  const DType weight_dtype = columns && weight.defined() ? weight.dtype() : dtype;
  const int64_t inner = normalized_dims(weight);
  LayerNormArgs args{};
  args.type = scalar_of(dtype);
  args.y_type = scalar_of(y_dtype);
  args.weight_type = scalar_of(weight_dtype);
  args.rms = rms;
  args.n = inner_size(x, inner);
  args.rows = x.numel() / args.n;
  args.x = read_rows(workspace, x, inner, dtype);
  args.y = write_rows(workspace, y, inner, y_dtype);
  args.weight = read_contiguous(workspace, weight, weight_dtype);
  args.bias = read_contiguous(workspace, bias, weight_dtype);
  if (!rms) args.mean = statistic(workspace, call, first, args.rows);
  args.rstd = statistic(workspace, call, rms ? first : first + 1, args.rows);
  args.eps = call.attrs.as<NormAttrs>().eps;
  return args;
}

template <bool rms>
void layer_norm(const Call& call, Workspace& workspace) {
  static const Operand none;
  const Operand &x = call.in[0], &weight = call.in[1], &bias = rms ? none : call.in[2];
  const bool columns = weight.defined() && is_half(x) && weight.dtype() == Float32 &&
                       lie_in_columns(weight.dim(), {&x, &call.out[0], &weight, &bias});
  workspace.launch("layer_norm", norm_table().layer_norm,
                   row_norm_args(call, workspace, x, call.out[0], weight, bias, 1, rms, columns));
}

// x, branch, branch_bias?, weight?, bias? -> sum, y, mean, rstd
inline void add_layer_norm(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &branch = call.in[1], &branch_bias = call.in[2], &weight = call.in[3],
                &bias = call.in[4], &sum = call.out[0], &y = call.out[1];
  const int64_t inner = normalized_dims(weight);
  const bool fused = is_half(branch) && (x.dtype() == Float32 || x.dtype() == branch.dtype()) &&
                     lie_in_columns(inner, {&x, &branch, &branch_bias, &weight, &bias, &sum, &y});
  if (!fused) {
    const Staged shift = branch_bias.defined() ? workspace.read(branch_bias, branch.dtype()) : Staged();
    combine(call, workspace.plan(), MapOp::add, sum, x, branch);
    if (branch_bias.defined())
      combine(call, workspace.plan(), MapOp::add, sum, sum, operand(shift, checked_rank(call, sum)));
  }
  auto args = row_norm_args(call, workspace, fused ? x : sum, y, weight, bias, 2, false, fused);
  if (fused) {
    args.sum = write_rows(workspace, sum, inner, sum.dtype());
    args.branch = read_rows(workspace, branch, inner, branch.dtype());
    args.branch_bias = branch_bias.defined() ? branch_bias.data_ptr() : nullptr;
    args.branch_bias_type = branch_bias.defined() ? scalar_of(branch_bias.dtype()) : Scalar::f32;
  }
  workspace.launch("layer_norm", norm_table().layer_norm, args);
}

// dy, x, weight?, mean?, rstd, addend? -> dx, dweight, dbias?
inline LayerNormBackwardArgs row_norm_backward_args(const Call& call, Workspace& workspace, bool rms, bool columns) {
  const Operand &dy = call.in[0], &x = call.in[1], &weight = call.in[2];
  const DType dtype = columns ? x.dtype() : common_dtype(x, weight), dy_dtype = columns ? dy.dtype() : dtype;
  const DType weight_dtype = columns && weight.defined() ? weight.dtype() : dtype;
  const int64_t inner = normalized_dims(weight);
  LayerNormBackwardArgs args{};
  args.type = scalar_of(dtype);
  args.y_type = scalar_of(dy_dtype);
  args.weight_type = scalar_of(weight_dtype);
  args.rms = rms;
  args.n = inner_size(x, inner);
  args.rows = x.numel() / args.n;
  args.dy = read_rows(workspace, dy, inner, dy_dtype);
  args.x = read_rows(workspace, x, inner, dtype);
  args.dx = write_rows(workspace, call.out[0], inner, dtype);
  args.weight = read_contiguous(workspace, weight, weight_dtype);
  args.dweight = gradient(workspace, call.out[1], weight);
  if (!rms) {
    if (call.attrs.as<NormAttrs>().dbias) args.dbias = gradient(workspace, call.out[2], weight);
    args.mean = read_contiguous(workspace, call.in[3], statistics_dtype(x));
    if (call.in[5].defined()) args.addend = read_rows(workspace, call.in[5], inner, dtype);
  }
  args.rstd = read_contiguous(workspace, call.in[rms ? 3 : 4], statistics_dtype(x));
  args.workspace = workspace.take(norm_table().layer_norm_backward_workspace(args.type, args.rows, args.n));
  return args;
}

template <bool rms>
void layer_norm_backward(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[1], &weight = call.in[2], addend = rms ? Operand() : call.in[5];
  const bool columns = weight.defined() && is_half(x) && weight.dtype() == Float32 &&
                       lie_in_columns(weight.dim(), {&call.in[0], &x, &call.out[0], &weight, &addend});
  const auto args = row_norm_backward_args(call, workspace, rms, columns);
  workspace.launch("layer_norm_backward", norm_table().layer_norm_backward, args);
}

inline TensorArg matrix(const RowArg& rows, Scalar type) { return {rows.data, type, {rows.pitch, 1}}; }

// The same with dx in the dtype of dy, and its sum over the rows, behind it.
inline void add_layer_norm_backward(const Call& call, Workspace& workspace) {
  const Operand &dy = call.in[0], &x = call.in[1], &weight = call.in[2], &branch_bias = call.in[6],
                &narrow = call.out[3], &sums = call.out[4];
  const int64_t inner = normalized_dims(weight);
  const bool converts = dy.dtype() != x.dtype();
  const bool fused = is_half(dy) && (x.dtype() == Float32 || !converts) &&
                     lie_in_columns(inner, {&dy, &x, &weight, &call.in[5], &call.out[0]});
  auto args = row_norm_backward_args(call, workspace, false, fused);
  RowArg to{};
  if (converts) to = write_rows(workspace, narrow, inner, narrow.dtype());
  void* const bias_sums = gradient(workspace, sums, branch_bias);
  if (fused) {
    args.dbranch = to;
    args.dbranch_bias = bias_sums;
    args.branch_bias_type = scalar_of(sums.dtype());
  }
  workspace.launch("layer_norm_backward", norm_table().layer_norm_backward, args);
  if (fused) return;
  if (converts) {
    CopyArgs copy{};
    copy.rank = 2;
    copy.lengths[0] = args.rows;
    copy.lengths[1] = args.n;
    copy.to = matrix(to, scalar_of(narrow.dtype()));
    copy.from = matrix(args.dx, args.type);
    launch_copy(workspace.plan(), copy);
  }
  if (!branch_bias.defined()) return;
  ReduceArgs reduce{};
  reduce.op = ReduceOp::sum;
  reduce.compute = args.type == Scalar::f64 ? Scalar::f64 : Scalar::f32;
  reduce.rank = 2;
  reduce.lengths[0] = args.rows;
  reduce.lengths[1] = args.n;
  reduce.reduced[0] = true;
  reduce.in = matrix(args.dx, args.type);
  reduce.out = {bias_sums, scalar_of(sums.dtype()), {0, 1}};
  reduce.workspace = workspace.take(reduce_table().workspace(reduce));
  workspace.launch("reduce", reduce_table().reduce, reduce);
}

// ---- group_norm, batch_norm: [batch, channels, ...] as planes

inline PlanesArg planes(const Operand& t, const Staged& s) {
  return {s.data, s.strides[0], t.shape()[1] == Dim(1) ? 0 : s.strides[1]};
}
inline bool has_planes(const Operand& t) {
  int64_t size = 1;
  for (int64_t d = t.dim() - 1; d >= 2; --d) {
    if (t.size(d) != 1 && t.strides()[d] != size) return false;
    size *= t.size(d);
  }
  return true;
}
inline PlanesArg read_planes(Workspace& workspace, const Operand& t, DType dtype, bool lines = false) {
  if (lines) return {workspace.read(t, dtype, lies_channels_last(t), channels_last(t)).data, 0, 0};
  return planes(t, workspace.read(t, dtype, has_planes(t)));
}
inline PlanesArg write_planes(Workspace& workspace, const Operand& t, DType dtype, bool lines = false) {
  if (lines) return {workspace.write(t, dtype, lies_channels_last(t), false, channels_last(t)).data, 0, 0};
  return planes(t, workspace.write(t, dtype, has_planes(t)));
}

// Whether batch norm takes x by lines of channels.
inline bool has_lines(const Operand& x) { return x.dim() == 4 && !has_planes(x) && lies_channels_last(x); }
// Whether it adds a residual to what it makes of x in its own pass.
bool adds_residual(const Operand& x);
// Bytes of workspace of batch norm and of its gradient.
long long batch_norm_bytes(long long channels, long long elements, bool lines);

// What a kernel over planes is given: GPUs take halves beside f32 weights.
DType planes_dtype(const Operand& x, const Operand& weight);

template <class Args>
Args plane_args(const Operand& x, const Operand& weight) {
  Args args{};
  args.type = scalar_of(planes_dtype(x, weight));
  args.weight_type = scalar_of(common_dtype(x, weight));
  args.batch = x.size(0);
  args.channels = x.size(1);
  args.size = Shape(x.shape().begin() + 2, x.shape().end()).numel().value();
  return args;
}

// x -> y and what differs; weight? and bias? are inputs from `first` on.
template <class Args>
Args plane_forward_args(const Call& call, Workspace& workspace, size_t first = 1, bool lines = false) {
  const Operand &x = call.in[0], &weight = call.in[first];
  Args args = plane_args<Args>(x, weight);
  args.x = read_planes(workspace, x, planes_dtype(x, weight), lines);
  args.y = write_planes(workspace, call.out[0], planes_dtype(x, weight), lines);
  args.weight = read_contiguous(workspace, weight, common_dtype(x, weight));
  args.bias = read_contiguous(workspace, call.in[first + 1], common_dtype(x, weight));
  args.eps = call.attrs.as<NormAttrs>().eps;
  return args;
}

// dy, x, weight?, mean, rstd -> dx, dweight, dbias
template <class Args>
Args plane_backward_args(const Call& call, Workspace& workspace, bool lines = false) {
  const Operand &x = call.in[1], &weight = call.in[2];
  const DType dtype = planes_dtype(x, weight);
  Args args = plane_args<Args>(x, weight);
  args.dy = read_planes(workspace, call.in[0], dtype, lines);
  args.x = read_planes(workspace, x, dtype, lines);
  args.dx = write_planes(workspace, call.out[0], dtype, lines);
  args.weight = read_contiguous(workspace, weight, common_dtype(x, weight));
  args.dweight = gradient(workspace, call.out[1], weight);
  args.dbias = gradient(workspace, call.out[2], weight);
  args.mean = read_contiguous(workspace, call.in[3], statistics_dtype(x));
  args.rstd = read_contiguous(workspace, call.in[4], statistics_dtype(x));
  return args;
}

inline void group_norm(const Call& call, Workspace& workspace) {
  auto args = plane_forward_args<GroupNormArgs>(call, workspace);
  args.groups = call.attrs.as<NormAttrs>().groups;
  args.mean = statistic(workspace, call, 1, args.batch * args.groups);
  args.rstd = statistic(workspace, call, 2, args.batch * args.groups);
  args.workspace = workspace.take(
      norm_table().plane_parts_workspace(args.batch * args.groups, args.channels / args.groups * args.size));
  workspace.launch("group_norm", norm_table().group_norm, args);
}

inline void group_norm_backward(const Call& call, Workspace& workspace) {
  auto args = plane_backward_args<GroupNormBackwardArgs>(call, workspace);
  args.groups = call.attrs.as<NormAttrs>().groups;
  args.workspace = workspace.take(norm_table().group_norm_backward_workspace(args.batch, args.channels));
  workspace.launch("group_norm_backward", norm_table().group_norm_backward, args);
}

// x, and weight? and bias? from `first` on; with a residual before them. The batch's variance is a running estimate
// that moves all the way.
inline void batch_norm_of(const Call& call, Workspace& workspace, size_t first, const Operand& residual) {
  const bool lines = has_lines(call.in[0]);
  auto args = plane_forward_args<BatchNormArgs>(call, workspace, first, lines);
  args.lines = lines;
  if (residual.defined())
    args.residual = read_planes(workspace, residual, planes_dtype(call.in[0], call.in[first]), lines);
  args.training = true;
  args.relu = call.attrs.as<NormAttrs>().relu;
  args.high = call.attrs.as<NormAttrs>().high;
  args.mean = call.out[1].data_ptr();
  args.running_variance = call.out[2].data_ptr();
  args.momentum = 1;
  args.rstd = statistic(workspace, call, 3, args.channels);
  args.workspace = workspace.take(batch_norm_bytes(args.channels, args.batch * args.size, lines));
  workspace.launch("batch_norm", norm_table().batch_norm, args);
}

inline void batch_norm(const Call& call, Workspace& workspace) { batch_norm_of(call, workspace, 1, {}); }

// Another operator's kernel, which is done when the next launch begins.
template <auto body>
void plan_inner(Workspace& workspace, const Call& call) {
  Workspace inner(call, workspace.plan());
  body(call, inner);
  inner.finish();
}

// y = y + residual, or relu of that.
inline void add_residual(const Call& call, Plan& plan, const Operand& y, const Operand& residual) {
  const auto& attrs = call.attrs.as<NormAttrs>();
  combine(call, plan, MapOp::add, y, y, residual);
  if (attrs.relu) combine(call, plan, MapOp::maximum, y, y, constant(plan, 0));
}
inline NormAttrs without_relu(const Call& call) {
  NormAttrs attrs = call.attrs.as<NormAttrs>();
  attrs.relu = false;
  return attrs;
}

// x, residual, weight?, bias?
inline void batch_norm_add(const Call& call, Workspace& workspace) {
  if (adds_residual(call.in[0])) return batch_norm_of(call, workspace, 2, call.in[1]);
  const Operand in[] = {call.in[0], call.in[2], call.in[3]};
  const Attrs attrs = without_relu(call);
  plan_inner<batch_norm>(workspace, {call.op, in, attrs, call.out});
  add_residual(call, workspace.plan(), call.out[0], call.in[1]);
}

// running mean and variance, which move, towards a batch's
inline void move_estimates(const Call& call, Workspace& workspace) {
  const DType dtype = call.in[0].dtype();
  const auto estimate = [&](const Operand& t) { return workspace.write(t, dtype, t.is_contiguous(), true).data; };
  const EstimatesArgs args{scalar_of(dtype),
                           call.in[0].numel(),
                           estimate(call.out[0]),
                           estimate(call.out[1]),
                           read_contiguous(workspace, call.in[2], dtype),
                           read_contiguous(workspace, call.in[3], dtype),
                           call.attrs.as<ScalarAttrs>().value};
  if (args.channels > 0) workspace.launch("move_estimates", norm_table().move_estimates, args);
}

// x, mean, variance, weight?, bias?, residual?
inline void batch_norm_inference(const Call& call, Workspace& workspace) {
  const Operand residual = call.in.size() > 5 ? call.in[5] : Operand();
  if (residual.defined() && !adds_residual(call.in[0])) {
    const Attrs attrs = without_relu(call);
    plan_inner<batch_norm_inference>(workspace, {call.op, call.in.first(5), attrs, call.out});
    return add_residual(call, workspace.plan(), call.out[0], residual);
  }
  const bool lines = has_lines(call.in[0]);
  auto args = plane_forward_args<BatchNormArgs>(call, workspace, 3, lines);
  args.lines = lines;
  args.relu = call.attrs.as<NormAttrs>().relu;
  args.high = call.attrs.as<NormAttrs>().high;
  if (residual.defined()) args.residual = read_planes(workspace, residual, planes_dtype(call.in[0], call.in[3]), lines);
  args.running_mean = read_contiguous(workspace, call.in[1], statistics_dtype(call.in[0]));
  args.running_variance = read_contiguous(workspace, call.in[2], statistics_dtype(call.in[0]));
  args.correction = 1;
  workspace.launch("batch_norm", norm_table().batch_norm, args);
}

inline BatchNormBackwardArgs batch_norm_backward_args(const Call& call, Workspace& workspace, bool lines = false) {
  auto args = plane_backward_args<BatchNormBackwardArgs>(call, workspace, lines);
  args.lines = lines;
  args.training = call.attrs.as<NormAttrs>().training;
  args.relu = call.attrs.as<NormAttrs>().relu;
  args.high = call.attrs.as<NormAttrs>().high;
  if (args.relu) args.bias = read_contiguous(workspace, call.in[5], common_dtype(call.in[1], call.in[2]));
  args.workspace = workspace.take(batch_norm_bytes(args.channels, args.batch * args.size, lines));
  return args;
}
// dy, x, weight?, mean, rstd, bias?, y? -> dx, dweight, dbias, dresidual
inline void batch_norm_backward(const Call& call, Workspace& workspace) {
  const Operand y = call.in.size() > 6 ? call.in[6] : Operand();
  if (y.defined() && !adds_residual(call.in[1])) {
    const Operand& dresidual = call.out[3];
    combine(call, workspace.plan(), MapOp::relu_backward, dresidual, call.in[0], y);
    const Operand in[] = {dresidual, call.in[1], call.in[2], call.in[3], call.in[4], call.in[5]};
    const Attrs attrs = without_relu(call);
    return plan_inner<batch_norm_backward>(workspace, {call.op, in, attrs, call.out});
  }
  const bool lines = has_lines(call.in[1]);
  BatchNormBackwardArgs args = batch_norm_backward_args(call, workspace, lines);
  if (y.defined()) {
    const DType dtype = planes_dtype(call.in[1], call.in[2]);
    args.y = read_planes(workspace, y, dtype, lines);
    args.dresidual = write_planes(workspace, call.out[3], dtype, lines);
  }
  workspace.launch("batch_norm_backward", norm_table().batch_norm_backward, args);
}

// ---- convolutions of what batch norm makes of x, one after the other

inline Operand scratch(Workspace& workspace, const Shape& shape, DType dtype, Device device) {
  const long long bytes = shape.numel().value() * static_cast<long long>(size_of(dtype));
  return Operand({shape, dtype, device}, workspace.take(bytes));
}

// x, mean, var, weight?, bias? -> y, rstd; statistics are found once more
inline void batch_norm_known(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &mean = call.in[1];
  const auto statistics = [&] { return scratch(workspace, mean.shape(), mean.dtype(), x.device()); };
  const Operand in[] = {x, call.in[3], call.in[4]}, out[] = {call.out[0], statistics(), statistics(), call.out[1]};
  plan_inner<batch_norm>(workspace, {call.op, in, call.attrs, out});
}
// to = (from + addend) ^ exponent, of one dim
inline void power(Plan& plan, const Operand& to, const Operand& from, double exponent, double addend) {
  MapArgs args{};
  args.compute = scalar_of(to.dtype());
  args.rank = args.inputs = 1;
  set_lengths(args.lengths, to);
  const TensorArg result = operand(to, 1);
  args.op = MapOp::scale_shift;
  args.scalars[0] = 1;
  args.scalars[1] = addend;
  args.tensor[0] = result;
  args.tensor[1] = operand(from, 1);
  launch_map(plan, args);
  args.op = MapOp::pow_scalar;
  args.scalars[0] = exponent;
  args.tensor[1] = result;
  launch_map(plan, args);
}

// db = the sums of dy over images and positions
inline ReduceArgs sums_of_channels(const Operand& dy, const Operand& db) {
  ReduceArgs args{};
  args.op = ReduceOp::sum;
  args.compute = dy.dtype() == Float64 ? Scalar::f64 : Scalar::f32;
  args.rank = 4;
  set_lengths(args.lengths, dy);
  for (int d : {0, 2, 3}) args.reduced[d] = true;
  args.in = operand(dy, 4);
  args.out = {db.data_ptr(), scalar_of(db.dtype()), {0, db.strides()[0], 0, 0}};
  return args;
}

// Mean and variance of y's channels; what else batch norm gives is dropped.
inline void moments(const Call& call, Workspace& workspace, const Operand& y, const Operand& mean, const Operand& var) {
  const Operand in[] = {y, {}, {}}, out[] = {scratch(workspace, y.shape(), y.dtype(), y.device()), mean, var, {}};
  const Attrs attrs = NormAttrs{.training = true};
  plan_inner<batch_norm>(workspace, {call.op, in, attrs, out});
}

// x, filters, bias?, mean?, var?, weight?, bias? -> y, [mean, var,] rstd
inline void norm_conv2d(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &mean = call.in[3], &y = call.out[0];
  const auto& attrs = call.attrs.as<NormConvAttrs>();
  const Attrs norm = attrs.norm;
  const bool training = attrs.norm.training;
  Operand a = x;
  if (mean.defined()) {
    a = scratch(workspace, x.shape(), x.dtype(), x.device());
    const auto statistics = [&] { return scratch(workspace, mean.shape(), mean.dtype(), x.device()); };
    if (training) {  // whose statistics are those of x
      const Operand in[] = {x, call.in[5], call.in[6]}, out[] = {a, statistics(), statistics(), call.out[3]};
      plan_inner<batch_norm>(workspace, {call.op, in, norm, out});
    } else {
      const Operand in[] = {x, mean, call.in[4], call.in[5], call.in[6]};
      plan_inner<batch_norm_inference>(workspace, {call.op, in, norm, {&a, 1}});
      if (call.out[1].defined()) power(workspace.plan(), call.out[1], call.in[4], -0.5, attrs.norm.eps);
    }
  }
  const Operand in[] = {a, call.in[1], call.in[2]};
  plan_call(*call.op.made_of, in, attrs.conv, {&y, 1}, workspace.plan());
  if (training) moments(call, workspace, y, call.out[1], call.out[2]);
}

// x, filters, bias? -> y, mean, var
inline void conv2d_moments(const Call& call, Workspace& workspace) {
  plan_call(*call.op.made_of, call.in, call.attrs, call.out.first(1), workspace.plan());
  moments(call, workspace, call.out[0], call.out[1], call.out[2]);
}

// x, dy, mean?, rstd?, weight?, bias? -> dfilters, dbias
inline void norm_conv2d_weight_grad(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &dy = call.in[1], &mean = call.in[2];
  Operand a = x;
  if (mean.defined()) {
    a = scratch(workspace, x.shape(), x.dtype(), x.device());
    const Operand var = scratch(workspace, mean.shape(), mean.dtype(), x.device());
    power(workspace.plan(), var, call.in[3], -2, 0);
    NormAttrs given = call.attrs.as<NormConvAttrs>().norm;
    given.eps = 0;
    const Attrs norm = given;
    const Operand in[] = {x, mean, var, call.in[4], call.in[5]};
    plan_inner<batch_norm_inference>(workspace, {call.op, in, norm, {&a, 1}});
  }
  ReduceArgs sums = sums_of_channels(dy, call.out[1]);
  sums.workspace = workspace.take(reduce_table().workspace(sums));
  const Operand in[] = {a, dy, {}};
  plan_call(*call.op.made_of, in, call.attrs.as<NormConvAttrs>().conv, {&call.out[0], 1}, workspace.plan());
  workspace.launch("reduce", reduce_table().reduce, sums);
}

// dy of one filter as the gradient of every channel, but for the filter's weights.
inline Operand of_channels(const Operand& dy, const Operand& x) {
  const Strides& s = dy.strides();
  return dy.as_strided(x.shape(), {s[0], 0, s[2], s[3]});
}

// x, dy, filters, mean, rstd, weight?, bias? -> dx, dweight, dbias, dfilters, dbias of the filter
inline void one_filter_backward(const Call& call, Workspace& workspace) {
  const Operand &x = call.in[0], &dy = call.in[1], &filters = call.in[2], &mean = call.in[3], &rstd = call.in[4];
  const Operand gradient = scratch(workspace, x.shape(), x.dtype(), x.device());
  combine(call, workspace.plan(), MapOp::mul, gradient, of_channels(dy, x), filters);
  const Operand in[] = {gradient, x, call.in[5], mean, rstd, call.in[6]};
  const Attrs norm = call.attrs.as<NormConvAttrs>().norm;
  plan_inner<batch_norm_backward>(workspace, {call.op, in, norm, call.out.first(3)});
  const Operand factors[] = {x, dy, mean, rstd, call.in[5], call.in[6]};
  plan_call(*call.op.made_of, factors, call.attrs, call.out.subspan(3), workspace.plan());
}

// ---- kernels that are the same on both

template <auto body>
inline constexpr Kernel norm_list[] = {staged_kernel<body>("rows")};
template <bool rms>
inline constexpr Kernel row_list[] = {staged_kernel<layer_norm<rms>>("rows")};
template <auto body>
inline constexpr Kernel plane_list[] = {staged_kernel<body>("planes")};

inline constexpr Kernel composed = staged_kernel<norm_conv2d>("composed");
inline constexpr Kernel composed_grad = staged_kernel<norm_conv2d_weight_grad>("composed");
inline constexpr Kernel composed_moments = staged_kernel<conv2d_moments>("composed");
inline constexpr Kernel composed_known = staged_kernel<batch_norm_known>("composed");

}  // namespace tessera::TESSERA_KERNELS
