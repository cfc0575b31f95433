// Norms as exporters spell them.
#include <algorithm>

#include "onnx/optimize/rewriter.h"
#include "ops/batch_norm.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

/// The axes of a reduction, which are an input from opset 18 on.
std::vector<int64_t> reduced_axes(const Rewriter& r, const Step& step) {
  if (step.in.size() > 1 && step.in[1] >= 0) return r.integers(step.in[1]).value_or(std::vector<int64_t>());
  const AttributeProto* a = attribute_of(step, "axes");
  return a ? a->ints : std::vector<int64_t>();
}
/// The step that makes `slot` as the mean of the last dim, which is kept; -1 where none does.
int mean_of_last(const Rewriter& r, int slot) {
  const int at = r.maker(slot, "ReduceMean");
  if (at < 0 || !integer_of(r.step(at), "keepdims", 1)) return -1;
  return reduced_axes(r, r.step(at)) == std::vector<int64_t>{-1} ? at : -1;
}
/// What `slot` is the difference of: a value and the mean of its last dim; -1 where it is none.
int centred(const Rewriter& r, int slot) {
  const int at = r.maker(slot, "Sub");
  if (at < 0 || r.step(at).in.size() != 2) return -1;
  const int x = r.step(at).in[0], mean = mean_of_last(r, r.step(at).in[1]);
  return mean >= 0 && r.step(mean).in[0] == x ? x : -1;
}
/// The value whose square is in `slot`.
int squared(const Rewriter& r, int slot) {
  if (r.only_user(slot) < 0) return -1;
  const int at = r.maker(slot);
  if (!r.is(at, "Mul") && !r.is(at, "Pow")) return -1;
  const Step& step = r.step(at);
  if (step.in.size() != 2) return -1;
  const bool by_power = r.is(at, "Pow");
  return (by_power ? r.number(step.in[1]) == 2.0 : step.in[0] == step.in[1]) ? step.in[0] : -1;
}

/// A step of two inputs, one of which is known, and is used by nothing else.
struct WithKnown {
  int at = -1, known = -1;
};
WithKnown behind(const Rewriter& r, int slot, std::string_view op) {
  const int at = r.only_user(slot, op);
  const int other = at < 0 ? -1 : other_input(r.step(at), slot);
  return r.constant(other).defined() ? WithKnown{at, other} : WithKnown{};
}

/// Sizes that a Reshape is given, of which 0 keeps the size of x.
Shape sizes_for(const Call& c, std::vector<int64_t> sizes, const Tensor& x) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 0) continue;
    if (d >= static_cast<size_t>(x.dim())) c.fail("size 0 keeps dim {}, which {} lacks", d, describe(x));
    sizes[d] = x.size(static_cast<int64_t>(d));
  }
  return Shape(std::span<const int64_t>(sizes));
}

/// x, [n, groups, the rest], the sizes behind that or those of x, and what is multiplied with and added in the end. One
/// group norm where that is what sizes come to.
Values fused_group_norm(const Call& c) {
  const Tensor &x = c.in(0), weight = c.optional(3), bias = c.optional(4);
  const std::vector<int64_t> sizes = c.ints(1);
  const double eps = c.real("epsilon", 1e-5f);
  const int64_t groups = sizes[1];
  const auto of_channels = [&](const Tensor& t) {
    return !t.defined() || (t.dim() >= x.dim() - 1 && t.dim() <= x.dim() && t.numel() == x.size(1) &&
                            t.size(t.dim() - x.dim() + 1) == x.size(1));
  };
  const int64_t planes = x.dim() >= 2 && groups <= x.size(1) ? x.size(0) * groups : 0;  // whatever a file asks for
  const bool plain = planes > 0 && (sizes[0] == 0 || sizes[0] == x.size(0)) && x.size(1) % groups == 0 &&
                     (sizes[2] == -1 || sizes[2] == x.numel() / planes);
  const bool as_before = !c.has(2) || Shape(std::span<const int64_t>(c.ints(2))) == x.shape();
  if (plain && as_before && of_channels(weight) && of_channels(bias)) {
    const auto flat = [&](const Tensor& t) { return t.defined() ? reshape(t, {x.size(1)}) : t; };
    return {group_norm(x, groups, flat(weight), flat(bias), eps)};
  }
  const Tensor parts = reshape(x, sizes_for(c, sizes, x)), normal = group_norm(parts, groups, {}, {}, eps);
  Tensor y = reshape(normal, c.has(2) ? sizes_for(c, c.ints(2), normal) : x.shape());
  if (weight.defined()) y = mul(y, weight);
  return {bias.defined() ? add(y, bias) : y};
}
constexpr Entry group_norm_entry{"GroupNorm", 1, fused_group_norm, "tessera"};

/// relu of a batch norm for inference, whose inputs and attributes it has.
Values normalized_relu(const Call& c) {
  const Tensor& x = c.in(0);
  if (x.dim() < 2 || c.in(1).dtype() != x.dtype())
    return {relu(find_handler("", "BatchNormalization", c.opset())->run(c)[0].tensor())};
  return {
      batch_norm_add(x, {}, c.in(1), c.in(2), c.in(3), c.in(4), false, 0, c.real("epsilon", 1e-5f), Activation::Relu)};
}
constexpr Entry normalized_relu_entry{"BatchNormRelu", 1, normalized_relu, "tessera"};

bool is_all(const Tensor& t, double value) {
  if (!t.defined()) return false;
  const std::vector<double> elements = t.to(cpu()).to_vector<double>();
  return std::all_of(elements.begin(), elements.end(), [&](double e) { return e == value; });
}
/// Whether no size is kept by a 0 that counts as 0.
bool keeps_zeros(const Step& reshape) { return integer_of(reshape, "allowzero", 0) == 0; }

}  // namespace

// (x - mean) / sqrt(mean((x - mean)²) + eps) * weight + bias
void fuse_layer_norm(Rewriter& r, int at) {
  if (!r.is(at, "Div") || r.step(at).in.size() != 2) return;
  const int centre = r.step(at).in[0], root = r.own_maker(r.step(at).in[1], "Sqrt");
  const int sum = root < 0 ? -1 : r.own_maker(r.step(root).in[0], "Add");
  if (sum < 0 || r.step(sum).in.size() != 2) return;
  const std::optional<double> eps = r.number(r.step(sum).in[1]);
  const int variance = eps && r.only_user(r.step(sum).in[0]) >= 0 ? mean_of_last(r, r.step(sum).in[0]) : -1;
  if (variance < 0) return;
  const int square = r.step(variance).in[0], base = squared(r, square);
  const int x = centred(r, centre);
  if (x < 0 || base < 0 || centred(r, base) != x) return;
  const std::vector<int> within = {at, r.maker(square), r.maker(centre), r.maker(base)};
  for (const int value : {centre, base, r.step(r.maker(centre)).in[1], r.step(r.maker(base)).in[1]})
    if (!r.is_seen_only_by(value, within)) return;
  const WithKnown weight = behind(r, r.step(at).out[0], "Mul");
  if (weight.at < 0 || r.constant(weight.known).dim() != 1) return;
  WithKnown bias = behind(r, r.step(weight.at).out[0], "Add");
  if (bias.at >= 0 && r.constant(bias.known).shape() != r.constant(weight.known).shape()) bias = {};
  std::vector<int> in = {x, weight.known};
  if (bias.at >= 0) in.push_back(bias.known);
  r.replace(bias.at >= 0 ? bias.at : weight.at, at, find_handler("", "LayerNormalization", 17), std::move(in),
            {{.name = "axis", .type = kIntAttribute, .i = -1},
             {.name = "epsilon", .type = kFloatAttribute, .f = static_cast<float>(*eps)}});
}

namespace {

/// A value and the eps of the root of its mean square, which is in `slot`; x is -1 where it is none.
struct RootMeanSquare {
  int x = -1;
  double eps = 0;
};
RootMeanSquare root_mean_square(const Rewriter& r, int slot) {
  const int root = r.own_maker(slot, "Sqrt"), sum = root < 0 ? -1 : r.own_maker(r.step(root).in[0], "Add");
  if (sum < 0 || r.step(sum).in.size() != 2) return {};
  for (size_t i = 0; i < 2; ++i) {
    const std::optional<double> eps = r.number(r.step(sum).in[i]);
    const int mean = eps && r.only_user(r.step(sum).in[1 - i]) >= 0 ? mean_of_last(r, r.step(sum).in[1 - i]) : -1;
    if (mean >= 0) return {squared(r, r.step(mean).in[0]), *eps};
  }
  return {};
}
/// The same of its reciprocal.
RootMeanSquare inverse_root(const Rewriter& r, int slot) {
  if (const int at = r.own_maker(slot, "Reciprocal"); at >= 0) return root_mean_square(r, r.step(at).in[0]);
  const int at = r.own_maker(slot, "Div");
  if (at < 0 || r.step(at).in.size() != 2 || r.number(r.step(at).in[0]) != 1.0) return {};
  return root_mean_square(r, r.step(at).in[1]);
}

}  // namespace

// x / sqrt(mean(x²) + eps) * weight
void fuse_rms_norm(Rewriter& r, int at) {
  const bool divides = r.is(at, "Div");
  if ((!divides && !r.is(at, "Mul")) || r.step(at).in.size() != 2) return;
  const WithKnown weight = behind(r, r.step(at).out[0], "Mul");
  if (weight.at < 0 || r.constant(weight.known).dim() != 1) return;
  for (size_t i = 0; i < (divides ? 1 : 2); ++i) {
    const int x = r.step(at).in[i], other = r.step(at).in[1 - i];
    const RootMeanSquare found = divides ? root_mean_square(r, other) : inverse_root(r, other);
    if (x < 0 || found.x != x) continue;
    return r.replace(weight.at, at, find_handler("", "RMSNormalization", 23), {x, weight.known},
                     {{.name = "axis", .type = kIntAttribute, .i = -1},
                      {.name = "epsilon", .type = kFloatAttribute, .f = static_cast<float>(found.eps)}});
  }
}

// As before the convolutions of a DenseNet.
void fuse_batch_norm_relu(Rewriter& r, int at) {
  if (!r.is(at, "BatchNormalization")) return;
  const Step& norm = r.step(at);
  if (integer_of(norm, "training_mode", 0) || !integer_of(norm, "spatial", 1) || norm.in.size() != 5) return;
  for (size_t i = 1; i < norm.out.size(); ++i)
    if (r.is_used(norm.out[i])) return;
  const int next = r.only_user(norm.out[0], "Relu");
  if (next >= 0) r.replace(next, at, &normalized_relu_entry, norm.in, norm.attributes);
}

// PyTorch's exporter has no group norm: groups become channels, which an instance norm without weights normalises.
void fuse_group_norm(Rewriter& r, int at) {
  if (!r.is(at, "InstanceNormalization") || r.step(at).in.size() != 3) return;
  const Step& norm = r.step(at);
  const int apart = r.own_maker(norm.in[0], "Reshape"), together = r.only_user(norm.out[0], "Reshape");
  if (apart < 0 || together < 0 || !keeps_zeros(r.step(apart)) || !keeps_zeros(r.step(together))) return;
  const Step &first = r.step(apart), &second = r.step(together);
  if (first.in.size() != 2 || second.in.size() != 2 || second.in[0] != norm.out[0]) return;
  const auto sizes = r.integers(first.in[1]);
  if (!sizes || sizes->size() != 3 || (*sizes)[1] <= 0) return;
  if (!is_all(r.constant(norm, 1), 1) || !is_all(r.constant(norm, 2), 0)) return;
  const int shape = r.maker(second.in[1], "Shape"), x = first.in[0];
  const bool as_before = shape >= 0 && r.step(shape).in[0] == x && !attribute_of(r.step(shape), "end") &&
                         integer_of(r.step(shape), "start", 0) == 0;
  if (!as_before && !r.integers(second.in[1])) return;
  int last = together;
  const WithKnown weight = behind(r, second.out[0], "Mul");
  if (weight.at >= 0) last = weight.at;
  const WithKnown bias = behind(r, r.step(last).out[0], "Add");
  if (bias.at >= 0) last = bias.at;
  r.replace(last, at, &group_norm_entry, {x, first.in[1], as_before ? -1 : second.in[1], weight.known, bias.known},
            {{.name = "epsilon", .type = kFloatAttribute, .f = static_cast<float>(real_of(norm, "epsilon", 1e-5f))}});
}

}  // namespace tessera::onnx
