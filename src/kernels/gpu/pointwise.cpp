#include "kernels/gpu/pointwise.h"

#include <optional>

#include "kernels/args/gpu/tables.h"
#include "kernels/gpu/sm90_reason.h"
#include "kernels/shared/matmul.h"

namespace tessera::gpu_kernels {
namespace {

// How far the pixels of a plane are apart, if they lie in one row.
std::optional<long long> pixel_step(const Operand& t) {
  if (t.size(2) == 1) return t.strides()[3];
  if (t.size(3) == 1) return t.strides()[2];
  return t.strides()[2] == t.strides()[3] * t.size(3) ? std::optional<long long>(t.strides()[3]) : std::nullopt;
}
long long pixels(const Operand& t) { return t.size(2) * t.size(3); }

// [channels, pixels] of each image.
void set_planes(Products& p, Products::Role which, const Operand& t) {
  p.set(which, t, t.strides()[1], *pixel_step(t), 1);
}

bool is_pointwise(const ConvAttrs& a, const Operand& weight) {
  for (int d = 0; d < 2; ++d)
    if (weight.size(2 + d) != 1 || a.stride[d] != 1 || a.padding[d] != 0) return false;
  return a.groups == 1;
}

Reason fits(const Call& call, const Operand& image, const Operand& weight, const Operand& result) {
  if (!is_pointwise(call.attrs.as<ConvAttrs>(), weight)) return Reason::Shape;
  if (image.numel() == 0 || weight.numel() == 0 || result.numel() == 0) return Reason::Small;
  return pixel_step(image) && pixel_step(result) ? Reason::Ok : Reason::Layout;
}

// y = w x + bias
Products forward_products(const Call& call) {
  const Operand &x = call.in[0], &weight = call.in[1], &y = call.out[0];
  Products p(weight.size(0), pixels(x), weight.size(1));
  p.set(Products::A, weight, weight.strides()[0], weight.strides()[1], 0);
  set_planes(p, Products::B, x);
  set_planes(p, Products::C, y);
  return p;
}
// dx = w^T dy
Products input_grad_products(const Call& call) {
  const Operand &dy = call.in[0], &weight = call.in[1], &dx = call.out[0];
  Products p(weight.size(1), pixels(dy), weight.size(0));
  p.set(Products::A, weight, weight.strides()[1], weight.strides()[0], 0);
  set_planes(p, Products::B, dy);
  set_planes(p, Products::C, dx);
  return p;
}

struct ChannelProduct {
  GemmArgs args;
  void* workspace;
};
void launch_vendor(Workspace& workspace, const GemmArgs& args, void* room) {
  const auto run =
      +[](const ChannelProduct& p, Executor& executor) { tables().vendor_gemm->run(p.args, 0, p.workspace, executor); };
  workspace.launch("cublasLt", run, ChannelProduct{args, room});
  workspace.plan().calls_library("cublasLt", tables().vendor_gemm->version());
}

// `fits` unless our own kernel does not take the call either.
Reason vendor_takes(const Call& call, Reason fits, Products (*products)(const Call&)) {
  if (fits != Reason::Ok) return fits;
  const VendorGemmTable* vendor = vendor_tables() ? tables().vendor_gemm : nullptr;
  if (!vendor) return Reason::Library;
  bool all = true;
  products(call).each([&](const GemmArgs& args) { all = all && vendor->supports(args); });
  return all ? Reason::Ok : Reason::Shape;
}
void plan_vendor(const Call& call, Workspace& workspace, Products (*products)(const Call&)) {
  void* room = workspace.take(vendor_workspace);
  products(call).each([&](const GemmArgs& args) { launch_vendor(workspace, args, room); });
}

// y += bias
void add_bias(Plan& plan, const Operand& y, const Operand& bias) {
  MapArgs args{};
  args.op = MapOp::add;
  args.compute = y.dtype() == Float64 ? Scalar::f64 : Scalar::f32;
  args.rank = 4;
  args.inputs = 2;
  set_lengths(args.lengths, y);
  args.tensor[0] = args.tensor[1] = operand(y, 4);
  args.tensor[2] = {bias.data_ptr(), scalar_of(bias.dtype()), {}};
  args.tensor[2].strides[1] = bias.strides()[0];
  launch_map(plan, args);
}

// ---- gradient of the weights: sums over the pixels of few products are cut into pieces, and those are added up

// Pieces of an image, all of one length: the same on every card.
long long pieces_of(const Operand& x) {
  constexpr long long most = 64, least_pixels = 512, images_enough = 16;
  long long pieces = 1;
  if (x.size(0) >= images_enough) return 1;
  while (pieces < most && pixels(x) % (pieces * 16) == 0 && pixels(x) >= pieces * 2 * least_pixels) pieces *= 2;
  return pieces;
}

struct WeightGrad {
  explicit WeightGrad(const Call& call)
      : x(call.in[0]),
        dy(call.in[1]),
        dw(call.out[0]),
        pieces(pieces_of(x)),
        parts(x.size(0) * pieces),
        dtype(parts == 1 || dw.dtype() == Float64 ? dw.dtype() : Float32) {}

  const Operand &x, &dy, &dw;
  long long pieces, parts;
  DType dtype;  // of the sums of each part

  // Those of all parts, into `sums` [images, pieces, filters, channels].
  GemmArgs products(void* sums) const {
    const long long length = pixels(x) / pieces;
    GemmArgs args{};
    args.m = dw.size(0);
    args.n = dw.size(1);
    args.k = length;
    args.alpha = args.beta = 1;
    args.tf32 = tf32_allowed();
    args.a = {dy.data_ptr(), scalar_of(dy.dtype()), dy.strides()[1], *pixel_step(dy), {}};
    args.b = {x.data_ptr(), scalar_of(x.dtype()), *pixel_step(x), x.strides()[1], {}};
    args.c = {sums, scalar_of(dtype), dw.size(1), 1, {}};
    add_batch(args, x.size(0), dy.strides()[0], x.strides()[0], pieces * dw.numel());
    add_batch(args, pieces, length * args.a.column, length * args.b.row, dw.numel());
    return args;
  }

  // dw = the sum of all parts
  ReduceArgs join(void* sums) const {
    ReduceArgs args{};
    args.op = ReduceOp::sum;
    args.compute = scalar_of(dtype);
    args.rank = 2;
    args.lengths[0] = parts;
    args.lengths[1] = dw.numel();
    args.reduced[0] = true;
    args.in = {sums, scalar_of(dtype), {dw.numel(), 1}};
    args.out = {dw.data_ptr(), scalar_of(dw.dtype()), {0, 1}};
    return args;
  }

  template <class Multiply>
  void plan(Workspace& workspace, const Multiply& multiply) const {
    if (parts == 1) return multiply(products(dw.data_ptr()));
    void* sums = workspace.take(parts * dw.numel() * static_cast<long long>(size_of(dtype)));
    ReduceArgs reduce = join(sums);
    reduce.workspace = workspace.take(reduce_table().workspace(reduce));
    multiply(products(sums));
    workspace.launch("reduce", reduce_table().reduce, reduce);
  }

 private:
  static void add_batch(GemmArgs& args, long long count, long long a, long long b, long long c) {
    if (count == 1) return;
    const int d = args.batch_rank++;
    args.batch[d] = count;
    args.a.batch[d] = a;
    args.b.batch[d] = b;
    args.c.batch[d] = c;
  }
};

}  // namespace

Reason takes_pointwise_forward(const Call& call) { return fits(call, call.in[0], call.in[1], call.out[0]); }
Reason takes_pointwise_input_grad(const Call& call) { return fits(call, call.in[0], call.in[1], call.out[0]); }
Reason takes_pointwise_weight_grad(const Call& call) {
  const Operand &x = call.in[0], &dy = call.in[1], &dw = call.out[0];
  if (const Reason reason = fits(call, x, dw, dy); reason != Reason::Ok) return reason;
  if (!dw.is_contiguous()) return Reason::Layout;
  // Many small images with many channels: their sums would take more memory than the images.
  constexpr int64_t always = int64_t{1} << 24;
  const int64_t sums = WeightGrad(call).parts * dw.numel();
  return sums > always && sums > 2 * (x.numel() + dy.numel()) ? Reason::Shape : Reason::Ok;
}

void pointwise_forward(const Call& call, Workspace& workspace) {
  const Operand& bias = call.in[2];
  Products p = forward_products(call);
  if (bias.defined()) p.set(Products::Bias, bias, bias.strides()[0], 0, 0);
  p.launch(workspace.plan());
}
void pointwise_input_grad(const Call& call, Workspace& workspace) {
  input_grad_products(call).launch(workspace.plan());
}
void pointwise_weight_grad(const Call& call, Workspace& workspace) {
  WeightGrad(call).plan(workspace, [&](const GemmArgs& args) { workspace.launch("gemm", gemm_table().run, args); });
}

// ---- images whose channels lie last: [pixels of all images, channels]

namespace {

std::optional<Operand> pixel_rows(const Operand& t) {
  const Strides& s = t.strides();
  if (t.size(1) > 1 && s[1] != 1) return {};
  int64_t step = 0, reached = 0;  // between two pixels; what the dims seen so far span
  for (const int64_t d : {3, 2, 0}) {
    if (t.size(d) == 1) continue;
    if (step == 0) step = reached = s[static_cast<size_t>(d)];
    if (s[static_cast<size_t>(d)] != reached) return {};
    reached *= t.size(d);
  }
  if (step == 0) step = t.size(1);
  if (step < t.size(1)) return {};
  return t.as_strided({t.size(0) * pixels(t), t.size(1)}, {step, 1});
}
Operand filter_rows(const Operand& w) {
  return w.as_strided({w.size(0), w.size(1)}, {w.strides()[0], w.size(1) == 1 ? 1 : w.strides()[1]});
}

Reason fits_linear(const Call& call, const Operand& image, const Operand& weight, const Operand& result) {
  if (!is_pointwise(call.attrs.as<ConvAttrs>(), weight)) return Reason::Shape;
  if (image.numel() == 0 || weight.numel() == 0 || result.numel() == 0) return Reason::Small;
  return pixel_rows(image) && pixel_rows(result) ? Reason::Ok : Reason::Layout;
}

}  // namespace

Reason takes_linear_forward(const Call& call) { return fits_linear(call, call.in[0], call.in[1], call.out[0]); }
Reason takes_linear_input_grad(const Call& call) { return fits_linear(call, call.in[0], call.in[1], call.out[0]); }
Reason takes_linear_weight_grad(const Call& call) { return fits_linear(call, call.in[0], call.out[0], call.in[1]); }

// y = x w^T + bias
void linear_forward(const Call& call, Plan& plan) {
  const Operand in[] = {*pixel_rows(call.in[0]), filter_rows(call.in[1]), call.in[2], {}};
  const Operand out[] = {*pixel_rows(call.out[0]), {}};
  plan_call(*call.op.made_of, in, LinearAttrs{}, out, plan);
}
// dx = dy w
void linear_input_grad(const Call& call, Plan& plan) {
  const Operand in[] = {*pixel_rows(call.in[0]), filter_rows(call.in[1])}, out = *pixel_rows(call.out[0]);
  plan_call(*call.op.made_of, in, NoAttrs{}, {&out, 1}, plan);
}
// dw = dy^T x
void linear_weight_grad(const Call& call, Plan& plan) {
  const Operand dy = *pixel_rows(call.in[1]);
  const Operand in[] = {dy.as_strided({dy.size(1), dy.size(0)}, {1, dy.stride(0)}), *pixel_rows(call.in[0])};
  const Operand out = filter_rows(call.out[0]);
  plan_call(*call.op.made_of, in, NoAttrs{}, {&out, 1}, plan);
}

// The vendor has no bias for rows, so that a pass follows, which costs less than what its products save.
Reason vendor_takes_pointwise_forward(const Call& call) {
  return vendor_takes(call, takes_pointwise_forward(call), forward_products);
}
void vendor_pointwise_forward(const Call& call, Workspace& workspace) {
  plan_vendor(call, workspace, forward_products);
  if (call.in[2].defined()) add_bias(workspace.plan(), call.out[0], call.in[2]);
}

Reason vendor_takes_pointwise_input_grad(const Call& call) {
  return vendor_takes(call, takes_pointwise_input_grad(call), input_grad_products);
}
void vendor_pointwise_input_grad(const Call& call, Workspace& workspace) {
  plan_vendor(call, workspace, input_grad_products);
}

Reason vendor_takes_pointwise_weight_grad(const Call& call) {
  if (const Reason reason = takes_pointwise_weight_grad(call); reason != Reason::Ok) return reason;
  const VendorGemmTable* vendor = vendor_tables() ? tables().vendor_gemm : nullptr;
  if (!vendor) return Reason::Library;
  return vendor->supports(WeightGrad(call).products(call.out[0].data_ptr())) ? Reason::Ok : Reason::Shape;
}
void vendor_pointwise_weight_grad(const Call& call, Workspace& workspace) {
  void* room = workspace.take(vendor_workspace);
  WeightGrad(call).plan(workspace, [&](const GemmArgs& args) { launch_vendor(workspace, args, room); });
}

// ---- by Hopper's own instructions

namespace {

bool pixels_are_neighbours(const Operand& t) { return pixels(t) == 1 || pixel_step(t) == 1; }
PlanesArg planes(const Operand& t) { return {t.data_ptr(), t.strides()[0], t.strides()[1]}; }

float* floats(const Operand& t) { return static_cast<float*>(t.data_ptr()); }

template <class Args>
void set_sizes(Args& args, const Operand& x, long long filters) {
  args.type = scalar_of(x.dtype());
  args.images = x.size(0);
  args.channels = x.size(1);
  args.filters = filters;
  args.pixels = pixels(x);
}

// y = w x for the output y, which may not be there yet; `filters` is the dim of w that y's channels are.
PointwiseArgs pointwise_args(const Operand& x, const Operand& w, int filters, const Operand* y) {
  PointwiseArgs args{};
  set_sizes(args, x, w.size(filters));
  args.x = planes(x);
  if (y) args.y = planes(*y);
  args.w = w.data_ptr();
  const auto step = [&](int d) { return w.size(d) == 1 ? 1 : w.strides()[d]; };
  args.w_filter = step(filters);
  args.w_channel = step(1 - filters);
  return args;
}

bool all_contiguous(std::initializer_list<const Operand*> tensors) {
  for (const Operand* t : tensors)
    if (t->defined() && !t->is_contiguous()) return false;
  return true;
}

Reason sm90_takes(const Call& call, int filters) {
  if (!tables().sm90_pointwise) return Reason::Hardware;
  const Operand &x = call.in[0], &w = call.in[1], &y = call.out[0];
  if (const Reason reason = fits(call, x, w, y); reason != Reason::Ok) return reason;
  if (!pixels_are_neighbours(x) || !pixels_are_neighbours(y)) return Reason::Layout;
  return reason_of(tables().sm90_pointwise->refuses(pointwise_args(x, w, filters, &y)));
}

// Statistics, weight and bias of a norm, each of one element a channel.
PlanesNorm norm_of(const Operand& mean, const Operand& weight, const Operand& bias, const NormAttrs& attrs) {
  PlanesNorm norm{};
  if (!mean.defined()) return norm;
  norm.mean = floats(mean);
  norm.correction = 1;
  norm.eps = attrs.eps;
  norm.relu = attrs.relu;
  norm.weight_type = Scalar::f32;
  if (weight.defined()) {
    norm.weight = weight.data_ptr();
    norm.weight_type = scalar_of(weight.dtype());
  }
  if (bias.defined()) norm.bias = bias.data_ptr();
  return norm;
}

PointwiseArgs norm_conv_args(const Call& call, const Operand* y) {
  const Operand& bias = call.in[2];
  PointwiseArgs args = pointwise_args(call.in[0], call.in[1], 0, y);
  if (bias.defined()) args.bias = bias.data_ptr();
  args.norm = norm_before(call);
  return args;
}

PointwiseGradArgs norm_conv_grad_args(const Call& call) {
  const Operand &x = call.in[0], &dy = call.in[1], &mean = call.in[2];
  PointwiseGradArgs args{};
  set_sizes(args, x, dy.size(1));
  args.x = planes(x);
  args.dy = planes(dy);
  args.norm = norm_of(mean, call.in[4], call.in[5], call.attrs.as<NormConvAttrs>().norm);
  if (mean.defined()) args.norm.rstd = floats(call.in[3]);
  return args;
}

}  // namespace

PlanesNorm norm_before(const Call& call) {
  const Operand &x = call.in[0], &mean = call.in[3];
  const NormAttrs& attrs = call.attrs.as<NormConvAttrs>().norm;
  PlanesNorm norm = norm_of(mean, call.in[5], call.in[6], attrs);
  if (!mean.defined()) return norm;
  norm.variance = floats(call.in[4]);
  const double count = static_cast<double>(x.size(0) * pixels(x));
  if (attrs.training) norm.correction = (count - 1) / count;
  if (!call.out.empty() && call.out.back().defined()) norm.rstd = floats(call.out.back());
  return norm;
}

Reason sm90_takes_pointwise_forward(const Call& call) {
  return all_contiguous({&call.in[2]}) ? sm90_takes(call, 0) : Reason::Layout;
}
void sm90_pointwise_forward(const Call& call, Workspace& workspace) {
  PointwiseArgs args = pointwise_args(call.in[0], call.in[1], 0, &call.out[0]);
  if (call.in[2].defined()) args.bias = call.in[2].data_ptr();
  workspace.launch("pointwise.sm90", tables().sm90_pointwise->run, args);
}
Reason sm90_takes_pointwise_input_grad(const Call& call) { return sm90_takes(call, 1); }
void sm90_pointwise_input_grad(const Call& call, Workspace& workspace) {
  workspace.launch("pointwise.sm90", tables().sm90_pointwise->run,
                   pointwise_args(call.in[0], call.in[1], 1, &call.out[0]));
}

Reason sm90_takes_norm_conv(const Call& call) {
  if (!tables().sm90_pointwise) return Reason::Hardware;
  const Operand& x = call.in[0];
  if (x.numel() == 0 || call.in[1].numel() == 0) return Reason::Small;
  if (!is_pointwise(call.attrs.as<NormConvAttrs>().conv, call.in[1])) return Reason::Shape;
  if (x.dtype() != Float16 && x.dtype() != BFloat16) return Reason::DType;
  if (!pixels_are_neighbours(x) || !all_contiguous({&call.in[2], &call.in[3], &call.in[4], &call.in[5], &call.in[6]}))
    return Reason::Layout;
  return reason_of(tables().sm90_pointwise->refuses(norm_conv_args(call, nullptr)));
}
void sm90_norm_conv(const Call& call, Workspace& workspace) {
  PointwiseArgs args = norm_conv_args(call, &call.out[0]);
  if (call.attrs.as<NormConvAttrs>().norm.training) {
    args.mean = floats(call.out[1]);
    args.variance = floats(call.out[2]);
  }
  args.workspace = workspace.take(tables().sm90_pointwise->workspace(args));
  workspace.launch("sm90_pointwise.run", tables().sm90_pointwise->run, args);
}

Reason sm90_takes_norm_conv_grad(const Call& call) {
  if (!tables().sm90_pointwise) return Reason::Hardware;
  const Operand &x = call.in[0], &dy = call.in[1];
  if (x.numel() == 0 || dy.numel() == 0) return Reason::Small;
  if (!is_pointwise(call.attrs.as<NormConvAttrs>().conv, call.out[0])) return Reason::Shape;
  if (x.dtype() != Float16 && x.dtype() != BFloat16) return Reason::DType;
  if (!pixels_are_neighbours(x) || !pixels_are_neighbours(dy) ||
      !all_contiguous({&call.in[2], &call.in[3], &call.in[4], &call.in[5]}))
    return Reason::Layout;
  return reason_of(tables().sm90_pointwise->refuses_grad(norm_conv_grad_args(call)));
}
void sm90_norm_conv_grad(const Call& call, Workspace& workspace) {
  PointwiseGradArgs args = norm_conv_grad_args(call);
  args.dw = call.out[0].data_ptr();
  args.db = call.out[1].data_ptr();
  args.workspace = workspace.take(tables().sm90_pointwise->grad_workspace(args));
  workspace.launch("sm90_pointwise.run_grad", tables().sm90_pointwise->run_grad, args);
}

}  // namespace tessera::gpu_kernels
