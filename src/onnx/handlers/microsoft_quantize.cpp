// ONNX Runtime's operators on quantised tensors. What stays quantised goes through f32, or f64 where sums are exact.
#include "onnx/handlers/microsoft.h"
#include "onnx/handlers/window.h"
#include "tessera/ops.h"
#include "tessera/ops_math.h"
#include "tessera/ops_quantize.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

/// The numbers of input i, with its scale and zero point behind it.
Tensor numbers_of(const Call& c, size_t i) { return dequantize(c.in(i), c.in(i + 1), c.optional(i + 2)); }
/// y by the scale and zero point that begin at input i. Without the latter it is of the type of `like`.
Tensor quantised(const Call& c, const Tensor& y, size_t i, const Tensor& like) {
  return quantize(y, c.in(i), c.optional(i + 1), c.has(i + 1) ? c.in(i + 1).dtype() : like.dtype());
}

// ---- elementwise and the like

template <Tensor (*function)(Tensor, Tensor)>
Values of_two(const Call& c) {
  return {quantised(c, function(numbers_of(c, 0), numbers_of(c, 3)), 6, c.in(0))};
}
Values sigmoid_of(const Call& c) { return {quantised(c, sigmoid(numbers_of(c, 0)), 3, c.in(0))}; }
Values leaky_relu_of(const Call& c) {
  return {quantised(c, leaky_relu(numbers_of(c, 0), c.real("alpha", 0.01f)), 3, c.in(0))};
}
Values chosen(const Call& c) {
  return {quantised(c, tessera::where(c.in(0), numbers_of(c, 1), numbers_of(c, 4)), 7, c.in(1))};
}
Values joined(const Call& c) {
  if (c.inputs() < 5 || c.inputs() % 3 != 2) c.fail("{} inputs are no tensors with scales and zero points", c.inputs());
  Tensors parts;
  for (size_t i = 2; i < c.inputs(); i += 3) parts.push_back(numbers_of(c, i));
  return {quantised(c, concat(parts, c.integer("axis", 0)), 0, c.in(2))};
}
Values softmax_of(const Call& c) {
  const Tensor x = numbers_of(c, 0);
  if (c.integer("opset", 13) >= 13) return {quantised(c, softmax(x, c.integer("axis", -1)), 3, c.in(0))};
  const int64_t axis = c.axis(1, x.dim());
  return {quantised(c, reshape(softmax(flatten(x, axis, -1), axis), x.shape()), 3, c.in(0))};
}
Values means(const Call& c) {
  const std::vector<int64_t> axes = c.integers("axes");
  return {quantised(c, mean(numbers_of(c, 0), Dims(axes), c.flag("keepdims", true)), 3, c.in(0))};
}

/// Each of five tables has its scale 6 inputs behind it, its zero point 11.
Values embed(const Call& c) {
  const auto table = [&](size_t i) {
    return c.has(i) ? dequantize(c.in(i), c.in(i + 6), c.optional(i + 11)) : Tensor();
  };
  return embed_and_norm(c, {.word = table(2),
                            .position = table(3),
                            .segment = table(4),
                            .weight = table(5),
                            .bias = table(6),
                            .position_ids = {}});
}

// ---- images, which may lie channels last

template <class Function>
Values of_images(const Call& c, const Function& function) {
  const bool last = c.flag("channels_last", false);
  const Tensor x = numbers_of(c, 0), y = function(last ? movedim(x, -1, 1) : x);
  return {quantised(c, last ? movedim(y, 1, -1) : y, 3, c.in(0))};
}
Values pool_averages(const Call& c) {
  return of_images(
      c, [&](const Tensor& x) { return avg_pool(x, pool_windows(c, x.shape()), c.flag("count_include_pad", false)); });
}
Values pool_all(const Call& c) {
  return of_images(c, [](const Tensor& x) { return global_avg_pool(x); });
}

// ---- products

/// A weight [k, n] less its zero points, in f32, with the scales of its columns apart: sums of small integers are
/// nearly exact, and what is known of it is computed once.
Tensor columns(const Tensor& x, const Tensor& point) {
  const Tensor wide = cast(x, Float32);
  return point.defined() ? sub(wide, cast(point, Float32)) : wide;
}
Values product_of_floats(const Call& c) {  // A is quantised by its range
  const Quantized a = dynamic_quantize(cast(c.in(0), Float32));
  Tensor y = matmul(columns(a.values, a.zero_point), columns(c.in(1), c.optional(3)));
  y = mul(y, mul(a.scale, c.in(2)));
  return {c.has(4) ? add(y, c.in(4)) : y};
}
/// A direction of DynamicQuantizeLSTM. What products take is quantised by its range, each step's hidden state, too.
struct QuantisedLstm {
  Tensor of_x, of_hidden;              // [k, 4 hidden] less their zero points, in f32
  Tensor x_scale, hidden_scale, bias;  // of the weights: [] or [4 hidden]

  static Tensor product(const Tensor& x, const Tensor& weight, const Tensor& scale) {
    const Quantized q = dynamic_quantize(x);
    return mul(matmul(columns(q.values, q.zero_point), weight), mul(q.scale, scale));
  }
  /// x [steps, batch, k]; the state is overwritten. Gates lie in the order i, o, f, c.
  Tensor run(const Tensor& x, Tensor& hidden, Tensor& cell) const {
    Tensor gates = product(x, of_x, x_scale);
    if (bias.defined()) gates = add(gates, bias);
    const int64_t width = hidden.size(-1);
    Tensors steps;
    for (const Tensor& from_x : unbind(gates, 0)) {
      const Tensor all = add(from_x, product(hidden, of_hidden, hidden_scale));
      const auto gate = [&](int64_t i) { return slice(all, -1, i * width, (i + 1) * width); };
      cell = add(mul(sigmoid(gate(2)), cell), mul(sigmoid(gate(0)), tanh(gate(3))));
      hidden = mul(sigmoid(gate(1)), tanh(cell));
      steps.push_back(hidden);
    }
    return steps.empty() ? zeros({0, x.size(1), width}, Float32, x.device()) : stack(steps, 0);
  }
};
Values quantised_lstm(const Call& c) {
  const Tensor &x = c.in(0), &of_x = c.in(1), &of_hidden = c.in(2);
  if (x.dim() != 3 || of_x.dim() != 3 || of_hidden.dim() != 3 || of_hidden.size(2) != 4 * of_hidden.size(1))
    c.fail("{}, {} and {} are no sequences and weights", describe(x), describe(of_x), describe(of_hidden));
  const std::string way = c.text("direction", "forward");
  const int64_t directions = of_x.size(0), width = of_hidden.size(1), said = c.integer("hidden_size", width);
  if (said != width) c.fail("hidden_size is {}, but the weight is {}", said, describe(of_hidden));
  if ((way != "forward" && way != "reverse" && way != "bidirectional") ||
      directions != (way == "bidirectional" ? 2 : 1))
    c.fail("direction '{}' of weights for {}", way, directions);
  if (c.has(7) || c.has_attribute("activations") || c.has_attribute("clip") || c.flag("input_forget", false))
    c.refuse("peepholes, other activations, clip and input_forget are not supported");
  for (const int64_t length : c.ints(4, {}))
    if (length != x.size(0)) c.refuse("sequences of different lengths are not supported");
  const auto state = [&](size_t i, int64_t d) {
    return c.has(i) ? select(c.in(i), 0, d) : zeros({x.size(1), width}, Float32, x.device());
  };
  Tensors outputs, hiddens, cells;
  for (int64_t d = 0; d < directions; ++d) {
    const auto of = [&](size_t i) { return select(c.in(i), 0, d); };
    QuantisedLstm layer{columns(of(1), of(9)), columns(of(2), of(11)), of(8), of(10), {}};
    if (c.has(3)) layer.bias = add(slice(of(3), 0, 0, 4 * width), slice(of(3), 0, 4 * width, 8 * width));
    const bool backwards = way == "reverse" || d == 1;
    Tensor hidden = state(5, d), cell = state(6, d);
    const Tensor y = layer.run(backwards ? flip(x, {0}) : x, hidden, cell);
    outputs.push_back(backwards ? flip(y, {0}) : y);
    hiddens.push_back(hidden), cells.push_back(cell);
  }
  return {stack(outputs, 1), stack(hiddens, 0), stack(cells, 0)};
}
Values product_to_floats(const Call& c) {
  Tensor y = matmul(columns(c.in(0), c.optional(4)), columns(c.in(1), c.optional(5)));
  y = mul(y, mul(cast(c.in(2), Float32), cast(c.in(3), Float32)));
  if (c.has(6)) y = add(y, cast(c.in(6), Float32));
  return {cast(y, c.in(2).dtype())};
}
Values quantised_gemm(const Call& c) {
  const Tensor& a = c.in(0);
  if (a.dim() != 2 || c.in(3).dim() != 2) c.fail("{} and {} are no matrices", describe(a), describe(c.in(3)));
  const bool turned = c.flag("transB", false);
  const Tensor sums = integer_matmul(c.flag("transA", false) ? transpose(a, 0, 1) : a,
                                     turned ? transpose(c.in(3), 0, 1) : c.in(3), c.optional(2), c.optional(5));
  Tensor y = cast(sums, Float64);
  if (c.has(6)) y = add(y, cast(c.in(6), Float64));
  y = mul(y, mul(cast(c.in(1), Float64), cast(c.in(4), Float64))) * c.real("alpha", 1);
  if (!c.has(7)) return {cast(y, c.in(1).dtype())};
  return {quantised(c, cast(y, Float32), 7, c.in(0))};
}
Values quantised_attention(const Call& c) {
  const Tensor y = matmul(columns(c.in(0), c.optional(6)), columns(c.in(1), c.optional(7)));
  const Tensor scaled = mul(y, mul(cast(c.in(3), Float32), cast(c.in(4), Float32)));
  return attend_packed(c, cast(add(scaled, cast(c.in(2), Float32)), c.in(3).dtype()),
                       {.mask = 5, .past = 8, .scores_bias = 9});
}

// ---- blocks of few bits

/// The numbers of `bits` that bytes [rows, n] hold, the lowest bits first: f32 [rows, n * 8 / bits].
Tensor unpacked(const Tensor& bytes, int64_t bits) {
  Tensor rest = cast(bytes, Float32);
  if (bits == 8) return rest;
  const double base = static_cast<double>(int64_t{1} << bits);
  Tensors parts;
  for (int64_t i = 0; i < 8 / bits; ++i) {
    const Tensor next = floor(rest * (1 / base));
    parts.push_back(sub(rest, next * base));
    rest = next;
  }
  return flatten(stack(parts, -1), -2, -1);
}
}  // namespace

Tensor weight_of_blocks(const Blocks& b) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto require = [](bool holds, const std::string& text) {
    if (!holds) throw Error(text);
  };
  require(b.n > 0 && b.k > 0 && b.n <= kMost && b.k <= kMost, fmt::format("a weight of {} x {}", b.n, b.k));
  require(b.bits == 2 || b.bits == 4 || b.bits == 8, fmt::format("weights of {} bits are not supported", b.bits));
  require(b.block >= 16 && b.block <= kMost && (b.block & (b.block - 1)) == 0, fmt::format("blocks of {}", b.block));
  const int64_t blocks = (b.k + b.block - 1) / b.block, bytes = blocks * (b.block * b.bits / 8);
  require(b.packed.dtype() == UInt8 && b.packed.numel() % bytes == 0 && b.packed.numel() / bytes == b.n &&
              b.scales.numel() == b.n * blocks,
          fmt::format("{} and {} are no {} rows of {} blocks of {} bits", describe(b.packed), describe(b.scales), b.n,
                      blocks, b.bits));
  const Tensor values = reshape(unpacked(reshape(b.packed, {b.n, bytes}), b.bits), {b.n, blocks, b.block});
  Tensor zero = full({}, static_cast<double>(int64_t{1} << (b.bits - 1)), Float32, b.packed.device());
  if (b.points.defined()) {
    const bool packed = b.points.dtype() == UInt8;
    const int64_t width = packed ? (blocks * b.bits + 7) / 8 : blocks;
    require(b.points.numel() == b.n * width,
            fmt::format("{} are no zero points of {} rows of {}", describe(b.points), b.n, blocks));
    const Tensor rows = reshape(b.points, {b.n, width});
    zero = unsqueeze(packed ? slice(unpacked(rows, b.bits), 1, 0, blocks) : cast(rows, Float32), -1);
  }
  const Tensor scales = reshape(cast(b.scales, Float32), {b.n, blocks, 1});
  return slice(reshape(mul(sub(values, zero), scales), {b.n, blocks * b.block}), 1, 0, b.k);
}

namespace {

/// Where the weight is known, optimize/product.cpp has taken this node's place.
Values product_of_blocks(const Call& c) {
  if (c.has(4) || c.integer("weight_prepacked", 0) != 0) c.refuse("g_idx and packed layouts are not supported");
  const Tensor weight = weight_of_blocks({.packed = c.in(1),
                                          .scales = c.in(2),
                                          .points = c.optional(3),
                                          .n = c.integer("N", 0),
                                          .k = c.integer("K", 0),
                                          .bits = c.integer("bits", 4),
                                          .block = c.integer("block_size", 0)});
  return {linear(c.in(0), cast(weight, c.in(0).dtype()), c.optional(5))};
}

constexpr Entry entries[] = {
    {"DynamicQuantizeLSTM", 1, quantised_lstm, kMicrosoft},
    {"DynamicQuantizeMatMul", 1, product_of_floats, kMicrosoft},
    {"MatMulIntegerToFloat", 1, product_to_floats, kMicrosoft},
    {"MatMulNBits", 1, product_of_blocks, kMicrosoft},
    {"QAttention", 1, quantised_attention, kMicrosoft},
    {"QEmbedLayerNormalization", 1, embed, kMicrosoft},
    {"QGemm", 1, quantised_gemm, kMicrosoft},
    {"QLinearAdd", 1, of_two<add>, kMicrosoft},
    {"QLinearAveragePool", 1, pool_averages, kMicrosoft},
    {"QLinearConcat", 1, joined, kMicrosoft},
    {"QLinearGlobalAveragePool", 1, pool_all, kMicrosoft},
    {"QLinearLeakyRelu", 1, leaky_relu_of, kMicrosoft},
    {"QLinearMul", 1, of_two<mul>, kMicrosoft},
    {"QLinearReduceMean", 1, means, kMicrosoft},
    {"QLinearSigmoid", 1, sigmoid_of, kMicrosoft},
    {"QLinearSoftmax", 1, softmax_of, kMicrosoft},
    {"QLinearWhere", 1, chosen, kMicrosoft},
};

}  // namespace

std::span<const Entry> microsoft_quantize_handlers() { return entries; }

}  // namespace tessera::onnx
