// Convolutions on GPUs: the vendor's, Hopper's own, 1x1 windows as products, and products of implicit matrices.
#include "kernels/shared/conv.h"

#include "kernels/args/gpu/tables.h"
#include "kernels/gpu/depthwise.h"
#include "kernels/gpu/padded_conv.h"
#include "kernels/gpu/pointwise.h"
#include "kernels/gpu/sm90_reason.h"

namespace tessera::gpu_kernels {

DType conv_dtype(const Operand& t) { return t.dtype(); }

namespace {

// ---- the vendor's, where its library is installed

template <ConvPart part>
ConvArgs args_of(const Call& call, Workspace& workspace, bool channels_last = false) {
  const Last last = channels_last ? Last::All : Last::None;
  if constexpr (part == ConvPart::forward) return forward_args(call, workspace, last);
  else if constexpr (part == ConvPart::images) return images_args(call, workspace, last);
  else return filters_args(call, workspace, last);
}

// Whether the tensor is dense in this order of its dims; then its strides say so in dims of one element, too.
bool straighten(ConvTensor& t, std::array<long long, 4> lengths, bool channels_last) {
  constexpr int order[2][4] = {{3, 2, 1, 0}, {1, 3, 2, 0}};
  long long stride = 1;
  for (int d : order[channels_last]) {
    if (lengths[d] != 1 && t.strides[d] != stride) return false;
    t.strides[d] = stride;
    stride *= lengths[d];
  }
  return true;
}

std::array<long long, 2> places(const ConvArgs& a) {
  std::array<long long, 2> n;
  for (int d = 0; d < 2; ++d)
    n[d] = (a.size[d] + 2 * a.padding[d] - a.dilation[d] * (a.filter[d] - 1) - 1) / a.stride[d] + 1;
  return n;
}

bool straighten(ConvArgs& args) {
  const auto [height, width] = places(args);
  for (bool last : {false, true}) {
    ConvArgs straight = args;
    if (straighten(straight.x, {args.images, args.channels, args.size[0], args.size[1]}, last) &&
        straighten(straight.w, {args.filters, args.channels / args.groups, args.filter[0], args.filter[1]}, last) &&
        straighten(straight.y, {args.images, args.filters, height, width}, last)) {
      args = straight;
      return true;
    }
  }
  return false;
}

// Whether the images lie channels last, where filters are copied to lie so, too. One place of each image lies in either
// order: then the other operands say which.
bool lies_last(const Operand& t) { return t.defined() && !t.is_contiguous() && lies_channels_last(t); }
template <ConvPart part>
bool lies_last(const Call& call) {
  const Operand& images = call.in[0];
  if (!images.is_contiguous() || !lies_channels_last(images)) return lies_last(images);
  return lies_last(call.in[1]) || (part != ConvPart::filters && lies_last(call.out[0]));
}

// Halves for matrix cores, with steps, dilation and much to do.
bool steps_and_dilates(const ConvArgs& a) {
  constexpr double much = 1e8;  // multiplications
  const auto above_one = [](const long long(&n)[2]) { return n[0] > 1 || n[1] > 1; };
  const auto [height, width] = places(a);
  const double work = static_cast<double>(a.images * a.filters * height * width) *
                      static_cast<double>(a.channels / a.groups * a.filter[0] * a.filter[1]);
  return a.type != Scalar::f32 && above_one(a.stride) && above_one(a.dilation) && a.channels / a.groups >= 8 &&
         a.filters / a.groups >= 8 && work >= much;
}

template <ConvPart part>
Reason vendor_takes(const Call& call) {
  const VendorConvTable* vendor = vendor_tables() ? tables().vendor_conv : nullptr;
  if (!vendor) return Reason::Library;
  Trial trial(call);
  ConvArgs args = args_of<part>(call, trial.workspace, lies_last<part>(call));
  if (args.type == Scalar::f64) return Reason::DType;
  if (!straighten(args)) return Reason::Layout;
  if (vendor->workspace(part, args) < 0) return Reason::Shape;
  // Of some gradients with steps and dilation cuDNN has no plan on matrix cores with sums in f32, and takes up to 146
  // times our time.
  const bool may_be_slow = part == ConvPart::images && steps_and_dilates(args);
  return may_be_slow && !vendor->on_matrix_cores(part, args) ? Reason::Shape : Reason::Ok;
}

template <ConvPart part>
long long vendor_bytes(const ConvArgs& args) {
  ConvArgs straight = args;
  straighten(straight);
  return tables().vendor_conv->workspace(part, straight);
}

template <ConvPart part>
void run_vendor(const ConvArgs& args, Executor& executor) {
  ConvArgs straight = args;
  straighten(straight);
  tables().vendor_conv->run(part, straight, executor);
  if (part != ConvPart::forward || !args.bias) return;
  MapArgs add{};
  add.op = MapOp::add;
  add.compute = Scalar::f32;
  add.rank = 4;
  add.inputs = 2;
  const auto [height, width] = places(args);
  const long long lengths[] = {args.images, args.filters, height, width};
  std::copy(lengths, lengths + 4, add.lengths);
  TensorArg y{args.y.data, args.type, {}};
  std::copy(straight.y.strides, straight.y.strides + 4, y.strides);
  add.tensor[0] = add.tensor[1] = y;
  add.tensor[2] = {const_cast<void*>(args.bias), args.type, {0, 1, 0, 0}};
  elementwise_table().map(add, executor);
}

template <ConvPart part>
void vendor(const Call& call, Workspace& workspace) {
  convolve(call, workspace, args_of<part>(call, workspace, lies_last<part>(call)), vendor_bytes<part>,
           run_vendor<part>);
  if (call.out[0].numel() > 0) workspace.plan().calls_library("cudnn", tables().vendor_conv->version());
}

// ---- by Hopper's own instructions

template <ConvPart part>
Reason sm90_takes(const Call& call) {
  const Sm90ConvTable* sm90 = tables().sm90_conv;
  if (!sm90) return Reason::Hardware;
  Trial trial(call);
  return reason_of(sm90->refuses(part, args_of<part>(call, trial.workspace, true)));
}
template <ConvPart part>
long long sm90_bytes(const ConvArgs& args) {
  return tables().sm90_conv->workspace(part, args);
}
template <ConvPart part>
void run_sm90(const ConvArgs& args, Executor& executor) {
  tables().sm90_conv->run(part, args, executor);
}
template <ConvPart part>
void sm90(const Call& call, Workspace& workspace) {
  convolve(call, workspace, args_of<part>(call, workspace, true), sm90_bytes<part>, run_sm90<part>);
}
// Not as large as 256x512x7x7 with 512 filters, whose tiles fill an H100 one and a half times.
bool is_small(const ConvArgs& args) {
  constexpr double most = 16e9;  // multiplications
  const auto [height, width] = places(args);
  const auto of_filter = static_cast<double>(args.channels * args.filter[0] * args.filter[1]);
  return static_cast<double>(args.images * args.filters * height * width) * of_filter <= most;
}
// Of gradients of images, blocks of 128 pixels and 128 channels, which few of would leave processors idle.
bool fills_card(const ConvArgs& args) {
  constexpr long long block = 128, processors = 132;
  const auto blocks = [](long long n) { return (n + block - 1) / block; };
  return blocks(args.images * args.size[0] * args.size[1]) * blocks(args.channels) >= processors;
}
// Where it is faster than the vendor's: images that need not be copied, whose channels fill most of the 64 that are
// loaded at a time, their gradients with strides of 1, those of more than 64 filters.
template <ConvPart part>
Reason sm90_leads(const Call& call) {
  if (!lies_last<part>(call)) return Reason::Layout;
  auto& a = call.attrs.as<ConvAttrs>();
  if (part == ConvPart::images && (a.stride[0] > 1 || a.stride[1] > 1)) return Reason::Shape;
  Trial trial(call);
  const ConvArgs args = args_of<part>(call, trial.workspace, true);
  if (part == ConvPart::forward && args.channels < 32) return Reason::Shape;
  if (part == ConvPart::images && !fills_card(args)) return Reason::Shape;
  if (part == ConvPart::filters && (args.filters <= 64 || args.channels < 64)) return Reason::Shape;
  return is_small(args) ? sm90_takes<part>(call) : Reason::Shape;
}
template <ConvPart part>
constexpr Kernel sm90_leading_kernel = staged_kernel<sm90<part>>("sm90.as-they-lie", sm90_leads<part>);
template <ConvPart part>
constexpr Kernel sm90_kernel = staged_kernel<sm90<part>>("sm90.windows", sm90_takes<part>);

template <ConvPart part>
constexpr Kernel depthwise_kernel = staged_kernel<depthwise<part>>("depthwise", takes_depthwise<part>);
template <ConvPart part>
constexpr Kernel depthwise_windows_kernel = staged_kernel<depthwise<part>>("depthwise.windows",
                                                                           takes_depthwise_windows<part>);
template <ConvPart part>
constexpr Kernel any_depthwise_kernel = staged_kernel<depthwise<part>>("depthwise.any", takes_any_depthwise<part>);

// Gradients of filters of a point, of large planes that no piece of whole vectors divides: cuBLAS, which sums each in
// one piece or reads it element by element, takes up to 2.9 times cuDNN's time.
Reason vendor_leads_planes(const Call& call) {
  constexpr long long vectors = 16, large = 4096;
  if (const Reason reason = takes_pointwise_weight_grad(call); reason != Reason::Ok) return reason;
  const long long pixels = call.in[0].size(2) * call.in[0].size(3);
  if (call.in[0].dtype() == Float32 || pixels < large || pixels % vectors == 0) return Reason::Shape;
  return vendor_takes<ConvPart::filters>(call);
}
constexpr Kernel vendor_planes_kernel = staged_kernel<vendor<ConvPart::filters>>("vendor.planes", vendor_leads_planes);

template <ConvPart part>
constexpr Kernel vendor_kernel = staged_kernel<vendor<part>>("vendor", vendor_takes<part>);

template <PaddedPass pass>
constexpr Kernel padded_kernel = staged_kernel<plan_padded<pass>>("padded", takes_padded<pass>);

template <PaddedPass pass>
constexpr Kernel groups_kernel = staged_kernel<plan_groups<pass>>("each_group", takes_groups<pass>);

template <PaddedPass pass>
constexpr Kernel copies_kernel = staged_kernel<plan_copies<pass>>("dense_copies", takes_copies<pass>);

// norm_conv2d as a convolution, whose attributes live as long as this does.
struct ConvolutionOf {
  explicit ConvolutionOf(const Call& of)
      : attrs(of.attrs.as<NormConvAttrs>().conv),
        call{of.op, of.in.first(3), attrs, of.out.first(std::min<size_t>(of.out.size(), 1))} {}
  ConvolutionOf(const ConvolutionOf&) = delete;

  const Attrs attrs;
  const Call call;
};

}  // namespace

// The statistics of y are found before it leaves. Where it leads without them; y need not be there yet.
Reason sm90_takes_moments(const Call& call) {
  const Sm90ConvTable* sm90 = tables().sm90_conv;
  const Operand &x = call.in[0], &w = call.in[1];
  if (!sm90) return Reason::Hardware;
  if (!lies_last(x)) return Reason::Layout;
  Trial trial(call);
  const Operands operands(trial.workspace, conv_dtype(x), true);
  ConvArgs args = sizes(call, x, w);
  const auto [height, width] = places(args);
  args.x = operands.read(x);
  args.w = operands.read(w);
  args.y = {nullptr, {height * width * args.filters, 1, width * args.filters, args.filters}};
  if (args.images * height * width < 2) return Reason::Small;
  return is_small(args) ? reason_of(sm90->refuses(ConvPart::forward, args)) : Reason::Shape;
}
void sm90_moments(const Call& call, Workspace& workspace) {
  ConvArgs args = forward_args(call, workspace, Last::All);
  args.mean = static_cast<float*>(call.out[1].data_ptr());
  args.variance = static_cast<float*>(call.out[2].data_ptr());
  convolve(call, workspace, args, sm90_bytes<ConvPart::forward>, run_sm90<ConvPart::forward>);
}

// y need not be there yet.
Reason sm90_takes_norm_windows(const Call& call) {
  const Sm90NormConvTable* sm90 = tables().sm90_norm_conv;
  const Operand &x = call.in[0], &w = call.in[1];
  const NormAttrs& norm = call.attrs.as<NormConvAttrs>().norm;
  if (!sm90) return Reason::Hardware;
  if (!call.in[3].defined() || norm.training || !norm.relu) return Reason::Shape;
  for (const Operand& t : call.in.subspan(2))
    if (t.defined() && !t.is_contiguous()) return Reason::Layout;
  if (!lies_last(x)) return Reason::Layout;
  const ConvolutionOf convolution(call);
  Trial trial(convolution.call);
  const Operands operands(trial.workspace, conv_dtype(x), true);
  ConvArgs args = sizes(convolution.call, x, w);
  const auto [height, width] = places(args);
  args.x = operands.read(x);
  args.w = operands.read(w);
  args.y = {nullptr, {height * width * args.filters, 1, width * args.filters, args.filters}};
  return is_small(args) ? reason_of(sm90->refuses(args)) : Reason::Shape;
}
namespace {
struct NormWindows {
  ConvArgs args;
  PlanesNorm norm;
};
void launch_norm_windows(const NormWindows& w, Executor& executor) {
  tables().sm90_norm_conv->run(w.args, w.norm, executor);
}
}  // namespace
void sm90_norm_windows(const Call& call, Workspace& workspace) {
  const ConvArgs args = forward_args(ConvolutionOf(call).call, workspace, Last::All);
  workspace.launch("norm_conv.sm90", launch_norm_windows, {args, norm_before(call)});
}

namespace {

// On an H200, 64 -> 64 and 256 -> 256 channels and 3x3 windows, in each direction: the vendor's take 0.007 to 0.05 of
// our implicit product's time in f16, 0.09 to 0.63 in f32.
constexpr Kernel conv2d_list[] = {
    {.name = "linear", .supports = takes_linear_forward, .plan = linear_forward},
    staged_kernel<sm90_pointwise_forward>("sm90", sm90_takes_pointwise_forward),
    staged_kernel<vendor_pointwise_forward>("vendor_pointwise", vendor_takes_pointwise_forward),
    staged_kernel<pointwise_forward>("pointwise", takes_pointwise_forward),
    depthwise_kernel<ConvPart::forward>,
    depthwise_windows_kernel<ConvPart::forward>,
    sm90_leading_kernel<ConvPart::forward>,
    vendor_kernel<ConvPart::forward>,
    copies_kernel<PaddedPass::Forward>,
    padded_kernel<PaddedPass::Forward>,
    sm90_kernel<ConvPart::forward>,
    any_depthwise_kernel<ConvPart::forward>,
    groups_kernel<PaddedPass::Forward>,
    staged_kernel<conv2d_gemm>("implicit_gemm")};
constexpr Kernel input_grad_list[] = {
    {.name = "linear", .supports = takes_linear_input_grad, .plan = linear_input_grad},
    staged_kernel<sm90_pointwise_input_grad>("sm90", sm90_takes_pointwise_input_grad),
    staged_kernel<vendor_pointwise_input_grad>("vendor_pointwise", vendor_takes_pointwise_input_grad),
    staged_kernel<pointwise_input_grad>("pointwise", takes_pointwise_input_grad),
    depthwise_kernel<ConvPart::images>,
    depthwise_windows_kernel<ConvPart::images>,
    sm90_leading_kernel<ConvPart::images>,
    vendor_kernel<ConvPart::images>,
    copies_kernel<PaddedPass::InputGrad>,
    padded_kernel<PaddedPass::InputGrad>,
    sm90_kernel<ConvPart::images>,
    any_depthwise_kernel<ConvPart::images>,
    groups_kernel<PaddedPass::InputGrad>,
    staged_kernel<input_grad_gemm>("implicit_gemm")};
constexpr Kernel weight_grad_list[] = {
    {.name = "linear", .supports = takes_linear_weight_grad, .plan = linear_weight_grad},
    vendor_planes_kernel,
    staged_kernel<vendor_pointwise_weight_grad>("vendor_pointwise", vendor_takes_pointwise_weight_grad),
    staged_kernel<pointwise_weight_grad>("pointwise", takes_pointwise_weight_grad),
    depthwise_kernel<ConvPart::filters>,
    depthwise_windows_kernel<ConvPart::filters>,
    sm90_leading_kernel<ConvPart::filters>,
    vendor_kernel<ConvPart::filters>,
    copies_kernel<PaddedPass::WeightGrad>,
    padded_kernel<PaddedPass::WeightGrad>,
    sm90_kernel<ConvPart::filters>,
    any_depthwise_kernel<ConvPart::filters>,
    groups_kernel<PaddedPass::WeightGrad>,
    staged_kernel<weight_grad_gemm>("implicit_gemm")};

}  // namespace

std::span<const KernelTableEntry> conv_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"conv2d", conv2d_list},
      {"conv2d_input_grad", input_grad_list},
      {"conv2d_weight_grad", weight_grad_list},
      {"conv_transpose2d", transpose_list},
  };
  return entries;
}

}  // namespace tessera::gpu_kernels
