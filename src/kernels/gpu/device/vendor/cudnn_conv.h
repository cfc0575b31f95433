// Convolutions as graphs of cuDNN. Without a call of the run-time library, so that tests plan without a card.
#pragma once
#include "cudnn_operand.h"

namespace tessera::gpu_kernels::cudnn {

/// Sums in f32; f32 stays f32, or where tf32 is allowed is taken like a half. Algorithms that trade precision for
/// speed have no part, and those whose result varies only where that is allowed.
inline constexpr Rules half_rules = {Note::nondeterministic,
                                     Note::reduces_in_lower_precision,
                                     Note::fft,
                                     Note::winograd,
                                     Note::winograd_4x4,
                                     Note::winograd_6x6,
                                     Note::winograd_13x13};
inline constexpr Rules f32_rules = {Note::nondeterministic,
                                    Note::reduces_in_lower_precision,
                                    Note::fft,
                                    Note::winograd_4x4,
                                    Note::winograd_6x6,
                                    Note::winograd_13x13,
                                    Note::tensor_core,
                                    Note::down_converts};

inline constexpr int64_t id_x = 1, id_w = 2, id_y = 3;

/// Null where the library has no plan that fits. Throws Refusal.
inline std::optional<Plan> plan_convolution(const Target& target, ConvPart part, const ConvArgs& args,
                                            int64_t most_workspace) {
  int64_t pad[2], step[2], dilation[2], out[2];
  for (int d = 0; d < 2; ++d) {
    pad[d] = args.padding[d];
    step[d] = args.stride[d];
    dilation[d] = args.filter[d] == 1 ? 1 : args.dilation[d];  // a single tap is not dilated
    out[d] = (args.size[d] + 2 * pad[d] - dilation[d] * (args.filter[d] - 1) - 1) / step[d] + 1;
    if (pad[d] >= int64_t(1) << 30 || dilation[d] >= int64_t(1) << 30 || step[d] >= int64_t(1) << 30) return {};
  }
  const int64_t x[4] = {args.images, args.channels, args.size[0], args.size[1]};
  const int64_t w[4] = {args.filters, args.channels / args.groups, args.filter[0], args.filter[1]};
  const int64_t y[4] = {args.images, args.filters, out[0], out[1]};
  if (!is_countable(x, args.x.strides) || !is_countable(w, args.w.strides) || !is_countable(y, args.y.strides))
    return {};
  Graph graph;
  const auto operand = [&](int64_t id, const int64_t(&lengths)[4], const ConvTensor& t) {
    const int64_t strides[4] = {t.strides[0], t.strides[1], t.strides[2], t.strides[3]};
    return graph.keep(tensor(id, data_type(args.type), lengths, strides, alignment_of(t.data)));
  };
  const Ref images = operand(id_x, x, args.x), filters = operand(id_w, w, args.w),
            out_images = operand(id_y, y, args.y);
  Object convolution(Kind::convolution);
  using Span = std::span<const int64_t>;
  convolution.set(Attribute::convolution_type, DataType::f32)
      .set(Attribute::convolution_mode, ConvolutionMode::cross_correlation)
      .set(Attribute::convolution_dims, int64_t(2))
      .set(Attribute::convolution_dilations, Span(dilation))
      .set(Attribute::convolution_strides, Span(step))
      .set(Attribute::convolution_pre_paddings, Span(pad))
      .set(Attribute::convolution_post_paddings, Span(pad));
  const auto [kind, first] = part == ConvPart::forward ? std::pair(Kind::convolution_forward, Attribute::forward_alpha)
                             : part == ConvPart::images
                                 ? std::pair(Kind::convolution_backward_images, Attribute::backward_images_alpha)
                                 : std::pair(Kind::convolution_backward_filters, Attribute::backward_filters_alpha);
  // The operands' order behind alpha, beta and the convolution: w x y, w dx dy, dw x dy.
  Object operation(kind);
  operation.set(first, 1.f).set(first + 1, 0.f).set(first + 2, graph.keep(convolution));
  operation.set(first + 3, filters).set(first + 4, images).set(first + 5, out_images);
  graph.add(operation);
  const bool exact = args.type == Scalar::f32 && !args.tf32;
  const Rules rules = exact ? f32_rules : half_rules;
  return find_plan(target, std::move(graph), args.in_any_order ? rules.without(Note::nondeterministic) : rules,
                   most_workspace);
}

}  // namespace tessera::gpu_kernels::cudnn
