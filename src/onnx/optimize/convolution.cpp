// Convolutions and what is behind them.
#include "onnx/optimize/rewriter.h"
#include "tessera/ops.h"

namespace tessera::onnx {

void fold_batch_norm(Rewriter& r, int at) {
  if (!r.is(at, "BatchNormalization")) return;
  const Step& norm = r.step(at);
  if (integer_of(norm, "training_mode", 0) || norm.in.size() != 5 || norm.in[0] < 0) return;
  for (size_t i = 1; i < norm.out.size(); ++i)
    if (r.is_used(norm.out[i])) return;
  const int before = r.own_maker(norm.in[0], "Conv");
  if (before < 0) return;
  const Step& conv = r.step(before);
  const Tensor filters = r.constant(conv, 1), conv_bias = r.constant(conv, 2);
  const bool has_bias = conv.in.size() > 2 && conv.in[2] >= 0;
  if (!filters.defined() || (has_bias && !conv_bias.defined()) || !is_floating(filters.dtype())) return;
  for (size_t i = 1; i < 5; ++i) {
    const Tensor t = r.constant(norm, i);
    if (!t.defined() || t.dim() != 1 || t.size(0) != filters.size(0)) return;
  }
  const auto wide = [](const Tensor& t) { return cast(t, Float64); };
  const auto of_norm = [&](size_t i) { return wide(r.constant(norm, i)); };
  const Tensor scale = mul(of_norm(1), rsqrt(of_norm(4) + real_of(norm, "epsilon", 1e-5f)));
  Tensor bias = neg(of_norm(3));
  if (has_bias) bias = add(bias, wide(conv_bias));
  bias = add(mul(bias, scale), of_norm(2));
  Shape per_filter(std::vector<int64_t>(static_cast<size_t>(filters.dim()), 1));
  per_filter[0] = scale.size(0);
  const Tensor folded = mul(wide(filters), reshape(scale, per_filter));
  r.replace(at, before, conv.entry,
            {conv.in[0], r.add_constant(cast(folded, filters.dtype())), r.add_constant(cast(bias, filters.dtype()))},
            conv.attributes);
}

void lay_filters(Rewriter& r, int at) {
  if (!r.is(at, "Conv")) return;
  const Step& conv = r.step(at);
  const Tensor filters = r.constant(conv, 1);
  if (!filters.defined() || filters.dim() != 4) return;
  const Tensor lowered = filters.dtype() == Float32 ? cast(filters, r.products()) : filters;
  std::vector<int> in = conv.in;
  in[1] = r.add_constant(lowered.to(ChannelsLast));
  r.replace(at, at, conv.entry, in, conv.attributes);
}

}  // namespace tessera::onnx
