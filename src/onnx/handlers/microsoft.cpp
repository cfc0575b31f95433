// ONNX Runtime's operators but attention and quantised ones: fused activations, products and norms, and older forms of
// operators that ONNX has today.
#include "onnx/handlers/microsoft.h"

#include <cmath>

#include "onnx/handlers/window.h"
#include "tessera/ops.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_loss.h"
#include "tessera/ops_math.h"
#include "tessera/ops_shape.h"
#include "tessera/ops_signal.h"

namespace tessera::onnx {
namespace {

constexpr double kEpsilon = 1e-12f;  // of norms of sums

}  // namespace

Values embed_and_norm(const Call& c, const Embeddings& e) {
  const Tensor& ids = c.in(0);
  if (ids.dim() != 2) c.fail("input 0 must be [batch, tokens], not {}", describe(ids));
  const Tensor positions =
      e.position_ids.defined() ? embedding(e.position_ids, e.position) : slice(e.position, 0, 0, ids.size(1));
  Tensor sum = add(embedding(ids, e.word), positions);
  if (c.has(1) != e.segment.defined()) c.fail("segments need both their ids and their embedding");
  if (c.has(1)) sum = add(sum, embedding(c.in(1), e.segment));
  Tensor lengths = zeros({ids.size(0)}, Int32, ids.device());
  if (c.has(7)) lengths = cast(tessera::sum(eq(c.in(7), full({}, 1, c.in(7).dtype(), ids.device())), {1}), Int32);
  return {layer_norm(sum, e.weight, e.bias, c.real("epsilon", kEpsilon)), lengths, sum};
}

namespace {

// ---- activations

Values gelu_of_input(const Call& c) { return {gelu(c.in(0))}; }
Values gelu_with_bias(const Call& c) { return {gelu(add(c.in(0), c.in(1)))}; }
Values gelu_by_tanh(const Call& c) { return {gelu_tanh(c.has(1) ? add(c.in(0), c.in(1)) : c.in(0))}; }
Values gelu_by_sigmoid(const Call& c) {
  const Tensor& x = c.in(0);
  return {mul(x, sigmoid(x * c.real("alpha", 1.702f)))};
}
Values gelu_of_half(const Call& c) {
  const Tensor x = add(c.in(0), c.in(1));
  const int64_t width = x.size(-1) / 2;
  return {mul(slice(x, -1, 0, width), gelu(slice(x, -1, width, 2 * width)))};
}

/// Parameter i of the activation behind a product, as FusedConv or FusedGemm spells it.
using Parameter = double (*)(const Call& c, size_t i, double otherwise);
double listed(const Call& c, size_t i, double otherwise) {
  const std::vector<double> all = c.reals("activation_params");
  return i < all.size() ? all[i] : otherwise;
}
double named(const Call& c, size_t i, double otherwise) {
  constexpr std::string_view names[] = {"activation_alpha", "activation_beta", "activation_gamma"};
  return c.real(names[i], otherwise);
}
Tensor activated(const Call& c, const Tensor& x, Parameter parameter) {
  const std::string how = c.text("activation", "");
  const auto at = [&](size_t i, double otherwise) { return parameter(c, i, otherwise); };
  if (how.empty()) return x;
  if (how == "Relu") return relu(x);
  if (how == "Tanh") return tanh(x);
  if (how == "Sigmoid") return sigmoid(x);
  if (how == "LeakyRelu") return leaky_relu(x, at(0, 0.01f));
  if (how == "Clip") return clamp(x, at(0, -INFINITY), at(1, INFINITY));
  if (how == "HardSigmoid") return hardsigmoid(x, at(0, 0.2f), at(1, 0.5));
  if (how == "HardSwish") return mul(x, hardsigmoid(x, at(0, 1.0f / 6), at(1, 0.5)));
  if (how == "Elu") return elu(x, at(0, 1));
  if (how == "Selu") return selu(x, at(0, 1.67326319217681884765625), at(2, 1.05070102214813232421875));
  if (how == "Softplus") return softplus(x);
  if (how == "Softsign") return softsign(x);
  if (how == "ThresholdedRelu") return thresholded_relu(x, at(0, 1));
  c.refuse("the activation '{}' is not supported", how);
}

// ---- products

/// Dim 0 becomes the one before the last.
Tensor batch_turned(const Tensor& x) {
  if (x.dim() < 3) return x;
  Dims order;
  for (int64_t d = 1; d + 1 < x.dim(); ++d) order.push_back(d);
  order.push_back(0);
  order.push_back(x.dim() - 1);
  return permute(x, order);
}
Values scaled_product(const Call& c) {
  c.check_types();
  const auto operand = [&](size_t i, const char* batch, const char* last) {
    const Tensor x = c.flag(batch, false) ? batch_turned(c.in(i)) : c.in(i);
    return c.flag(last, false) && x.dim() > 1 ? transpose(x, -2, -1) : x;
  };
  const Tensor y = matmul(operand(0, "transBatchA", "transA"), operand(1, "transBatchB", "transB"));
  const double alpha = c.real("alpha", 1);
  return {alpha == 1 ? y : y * alpha};
}
Values gemm_and_activation(const Call& c) { return {activated(c, gemm(c)[0].tensor(), named)}; }
Values conv_and_activation(const Call& c) {
  Tensor x = c.in(0);
  if (c.channels_last() && x.dim() == 4) x = x.to(ChannelsLast);
  Tensor y = conv(x, c.in(1), c.optional(2), conv_options(c, x.shape(), c.in(1)));
  if (c.has(3)) y = add(y, c.in(3));
  return {activated(c, y, listed)};
}
Values conv_channels_last(const Call& c) {
  const Tensor x = movedim(c.in(0), -1, 1);
  return {movedim(conv(x, c.in(1), c.optional(2), conv_options(c, x.shape(), c.in(1))), 1, -1)};
}

// ---- norms

/// The sum of input, skip and bias: a skip may be one for all samples.
Tensor with_skip(const Call& c, size_t bias) {
  Tensor out = c.in(0);
  if (c.has(bias)) out = add(out, c.in(bias));
  return add(out, c.in(1));
}
void refuse_statistics(const Call& c) {
  if (c.wants(1) || c.wants(2)) c.refuse("means and deviations of training are not supported");
}
Values layer_norm_of_sum(const Call& c) {
  refuse_statistics(c);
  const Tensor &x = c.in(0), &skip = c.in(1);
  const double eps = c.real("epsilon", kEpsilon);
  if (skip.shape() == x.shape() && skip.dtype() == x.dtype() && c.in(2).dtype() == x.dtype()) {
    const auto [sum, y] = add_layer_norm(skip, x, c.optional(4), c.in(2), c.optional(3), eps);
    return {y, Value(), Value(), sum};
  }
  const Tensor sum = with_skip(c, 4);  // wider than the weight where products run in a lower type
  const Tensor shift = c.has(3) ? cast(c.in(3), sum.dtype()) : Tensor();
  return {layer_norm(sum, cast(c.in(2), sum.dtype()), shift, eps), Value(), Value(), sum};
}
Values rms_norm_of_sum(const Call& c) {
  refuse_statistics(c);
  const Tensor sum = with_skip(c, 3);
  return {rms_norm(sum, cast(c.in(2), sum.dtype()), c.real("epsilon", kEpsilon)), Value(), Value(), sum};
}
Values embed(const Call& c) {
  return embed_and_norm(c, {.word = c.in(2),
                            .position = c.in(3),
                            .segment = c.optional(4),
                            .weight = c.in(5),
                            .bias = c.in(6),
                            .position_ids = c.optional(8)});
}

Tensor group_norm_of(const Call& c, const Tensor& x) {
  const bool last = c.flag("channels_last", true);
  const int64_t how = c.integer("activation", 0), groups = c.integer("groups", 0);
  if (how < 0 || how > 1) c.fail("activation {} is not known", how);
  if (x.dim() != 4 || groups <= 0 || x.size(last ? 3 : 1) % groups) c.fail("{} groups of {}", groups, describe(x));
  Tensor y = group_norm(last ? movedim(x, -1, 1) : x, groups, cast(c.in(1), x.dtype()), cast(c.in(2), x.dtype()),
                        c.real("epsilon", 1e-5f));
  if (how == 1) y = silu(y);
  return last ? movedim(y, 1, -1) : y;
}
Values group_norms(const Call& c) { return {group_norm_of(c, c.in(0))}; }
Values group_norm_of_sum(const Call& c) {
  const Tensor& x = c.in(0);
  const bool last = c.flag("channels_last", true);
  const auto of_channels = [&](const Tensor& t) {  // [c] or [n, c], beside images
    const Tensor row = t.dim() == 1 ? unsqueeze(t, 0) : t;
    return last ? unsqueeze(unsqueeze(row, 1), 1) : unsqueeze(unsqueeze(row, -1), -1);
  };
  Tensor sum = add(x, c.in(3).dim() == 2 ? of_channels(c.in(3)) : c.in(3));
  if (c.has(4)) sum = add(sum, of_channels(c.in(4)));
  return {group_norm_of(c, sum), sum};
}

/// Whether the bias repeats along inner or outer dims (`is_inner_broadcast`), its shape says so, too.
Values softmax_with_bias(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.axis(1, x.dim());
  const Tensor scores = add(x, c.in(1));
  return {reshape(softmax(flatten(scores, axis, -1), axis), scores.shape())};
}

// ---- older forms

Values bias_and_skip(const Call& c) { return {add(add(c.in(0), c.in(1)), c.in(2))}; }
Values inverse_matrix(const Call& c) { return {inverse(c.in(0))}; }
Values new_dim(const Call& c) {
  const int64_t rank = c.in(0).dim();
  return {unsqueeze(c.in(0), c.axis_in(c.whole(1, -rank - 1, rank), rank + 1))};
}
Values distances(const Call& c) {
  const std::string metric = c.text("metric", "sqeuclidean");
  const Tensor &a = c.in(0), &b = c.in(1);
  if (metric == "euclidean") return {cdist(a, b)};
  if (metric != "sqeuclidean") c.refuse("the metric '{}' is not supported", metric);
  return {square(cdist(a, b))};
}
Values unique_in_order(const Call& c) {
  if (c.in(0).dim() != 1) c.fail("input 0 must be a list, not {}", describe(c.in(0)));
  const UniqueAlong u = unique_along(c.in(0), 0, false);
  return {u.values, u.inverse, u.counts};
}
Values real_transform(const Call& c) {
  if (c.integer("signal_ndim", 1) != 1) c.refuse("transforms of more than one dim are not supported");
  if (c.flag("normalized", false) || !c.flag("onesided", true))
    c.refuse("only plain onesided transforms are supported");
  if (c.op() == "Rfft") return {dft(unsqueeze(c.in(0), -1), -2, {.onesided = true})};
  return {squeeze(dft(c.in(0), -2, {.inverse = true, .onesided = true}), -1)};
}

constexpr Entry entries[] = {
    {"BiasAdd", 1, bias_and_skip, kMicrosoft},
    {"BiasGelu", 1, gelu_with_bias, kMicrosoft},
    {"BiasSoftmax", 1, softmax_with_bias, kMicrosoft},
    {"BiasSplitGelu", 1, gelu_of_half, kMicrosoft},
    {"CDist", 1, distances, kMicrosoft},
    {"EmbedLayerNormalization", 1, embed, kMicrosoft},
    {"ExpandDims", 1, new_dim, kMicrosoft},
    {"FastGelu", 1, gelu_by_tanh, kMicrosoft},
    {"FusedConv", 1, conv_and_activation, kMicrosoft},
    {"FusedGemm", 1, gemm_and_activation, kMicrosoft},
    {"FusedMatMul", 1, scaled_product, kMicrosoft},
    {"Gelu", 1, gelu_of_input, kMicrosoft},
    {"GroupNorm", 1, group_norms, kMicrosoft},
    {"Inverse", 1, inverse_matrix, kMicrosoft},
    {"Irfft", 1, real_transform, kMicrosoft},
    {"NhwcConv", 1, conv_channels_last, kMicrosoft},
    {"QuickGelu", 1, gelu_by_sigmoid, kMicrosoft},
    {"Rfft", 1, real_transform, kMicrosoft},
    {"SkipGroupNorm", 1, group_norm_of_sum, kMicrosoft},
    {"SkipLayerNormalization", 1, layer_norm_of_sum, kMicrosoft},
    {"SkipSimplifiedLayerNormalization", 1, rms_norm_of_sum, kMicrosoft},
    {"TransposeMatMul", 1, scaled_product, kMicrosoft},
    {"Unique", 1, unique_in_order, kMicrosoft},
};

}  // namespace

std::span<const Entry> microsoft_handlers() { return entries; }

}  // namespace tessera::onnx
