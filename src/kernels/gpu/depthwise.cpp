#include "kernels/gpu/depthwise.h"

#include "kernels/shared/conv.h"

namespace tessera::gpu_kernels {
namespace {

template <ConvPart part>
struct DepthwiseCall {
  const Operand &x, &w, &y;
  const bool last;  // whether the images lie so, and then everything is to

  explicit DepthwiseCall(const Call& call)
      : x(part == ConvPart::images ? call.out[0] : call.in[0]),
        w(part == ConvPart::filters ? call.out[0] : call.in[1]),
        y(part == ConvPart::forward ? call.out[0] : call.in[part == ConvPart::images ? 0 : 1]),
        last(!call.in[0].is_contiguous() && lies_channels_last(call.in[0])) {}

  DepthwiseArgs args(const Call& call) const {
    const ConvArgs conv = sizes(call, x, w);
    DepthwiseArgs args{};
    args.type = conv.type;
    args.channels_last = last;
    args.images = conv.images;
    args.channels = conv.channels;
    args.multiplier = conv.filters / std::max<long long>(conv.channels, 1);
    std::copy(conv.size, conv.size + 2, args.size);
    std::copy(conv.filter, conv.filter + 2, args.filter);
    std::copy(conv.stride, conv.stride + 2, args.stride);
    std::copy(conv.dilation, conv.dilation + 2, args.dilation);
    std::copy(conv.padding, conv.padding + 2, args.padding);
    // A window with one place has one result whatever its stride, which may as well be that of the other dim.
    for (int d = 0; d < 2; ++d)
      if (args.size[d] + 2 * args.padding[d] - args.dilation[d] * (args.filter[d] - 1) == 1)
        args.stride[d] = args.stride[1 - d];
    return args;
  }
  // Where an operand lies for the kernels, which write the last one that is asked for.
  void* place(Workspace& workspace, const Operand& t, bool written) const {
    const bool images = &t != &w, fits = images && last ? lies_channels_last(t) : t.is_contiguous();
    const Strides strides = images && last ? channels_last(t) : Strides{};
    return written ? workspace.write(t, t.dtype(), fits, false, strides).data
                   : workspace.read(t, t.dtype(), fits, strides).data;
  }
};

}  // namespace

// Kernels count vectors, and bytes of a row, in 32 bits.
template <ConvPart part>
Reason takes_any_depthwise(const Call& call) {
  const DepthwiseCall<part> of(call);
  const DepthwiseArgs args = of.args(call);
  if (!tables().depthwise) return Reason::Hardware;
  if (args.type == Scalar::f64) return Reason::DType;
  if (call.attrs.as<ConvAttrs>().groups != args.channels || of.w.size(0) != args.channels * args.multiplier)
    return Reason::Shape;
  if (args.multiplier > 1 && of.last) return Reason::Layout;
  constexpr long long most = 1 << 30;
  const long long vector = of.last && args.channels % 4 == 0 ? 4 : 1;
  for (const Operand* t : {&of.x, &of.w, &of.y})
    if (t->numel() == 0 || t->numel() / vector >= most) return Reason::Shape;
  for (int d = 0; d < 2; ++d)
    if (args.size[d] + 2 * args.padding[d] >= most || args.dilation[d] >= most) return Reason::Shape;
  return args.size[1] * (of.last ? args.channels : 1) >= most / 4 ? Reason::Shape : Reason::Ok;
}
template <ConvPart part>
Reason takes_depthwise(const Call& call) {
  const Reason any = takes_any_depthwise<part>(call);
  if (any != Reason::Ok) return any;
  const DepthwiseArgs args = DepthwiseCall<part>(call).args(call);
  // Channels that lie last and are no fours are summed up one at a time: the vendor takes half as long.
  const bool single = part == ConvPart::filters && args.channels_last && args.channels % 4 != 0 && vendor_tables();
  return tables().depthwise->is_fast(args) && !single ? Reason::Ok : Reason::Shape;
}

template <ConvPart part>
Reason takes_depthwise_windows(const Call& call) {
  const Reason any = takes_any_depthwise<part>(call);
  if (any != Reason::Ok) return any;
  const DepthwiseCall<part> of(call);
  const DepthwiseArgs args = of.args(call);
  const long long taps = args.filter[0] * args.filter[1], steps = args.stride[0] * args.stride[1];
  const bool dilated = taps > 1 && (args.dilation[0] > 1 || args.dilation[1] > 1);
  const bool odd_square = args.filter[0] == args.filter[1] && taps % 2 == 1 && !dilated;
  if (of.last) {  // the vendor has good kernels for squares of odd sides, and for places of images that many windows
                  // see
    if (part == ConvPart::images) return steps >= 3 ? Reason::Ok : Reason::Shape;
    return odd_square && args.stride[0] == args.stride[1] && steps <= 4 ? Reason::Shape : Reason::Ok;
  }
  if (args.multiplier > 1) return Reason::Ok;
  if (taps == 1 && steps == 1) return Reason::Shape;
  // Of planes it has good ones for squares of odd sides, and none for few channels.
  const bool good = odd_square && args.channels >= 32 && (part == ConvPart::forward || steps == 1);
  return part == ConvPart::filters || !good ? Reason::Ok : Reason::Shape;
}

template <ConvPart part>
void depthwise(const Call& call, Workspace& workspace) {
  const DepthwiseCall<part> of(call);
  const DepthwiseTable& table = *tables().depthwise;
  DepthwiseArgs args = of.args(call);
  args.x = of.place(workspace, of.x, part == ConvPart::images);
  args.w = of.place(workspace, of.w, part == ConvPart::filters);
  args.y = of.place(workspace, of.y, part == ConvPart::forward);
  if (part == ConvPart::forward && call.in[2].defined())
    args.bias = workspace.read(call.in[2], call.in[2].dtype(), call.in[2].is_contiguous()).data;
  if (part == ConvPart::filters) args.workspace = workspace.take(table.filters_workspace(args));
  workspace.launch("depthwise",
                   part == ConvPart::forward  ? table.forward
                   : part == ConvPart::images ? table.backward_images
                                              : table.backward_filters,
                   args);
}

#define TESSERA_DEPTHWISE(part)                                         \
  template void depthwise<ConvPart::part>(const Call&, Workspace&);     \
  template Reason takes_depthwise<ConvPart::part>(const Call&);         \
  template Reason takes_depthwise_windows<ConvPart::part>(const Call&); \
  template Reason takes_any_depthwise<ConvPart::part>(const Call&);
TESSERA_DEPTHWISE(forward)
TESSERA_DEPTHWISE(images)
TESSERA_DEPTHWISE(filters)
#undef TESSERA_DEPTHWISE

}  // namespace tessera::gpu_kernels
