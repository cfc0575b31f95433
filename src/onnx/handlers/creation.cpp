// Tensors out of nothing.
#include <cmath>

#include "onnx/handler.h"
#include "tessera/ops.h"
#include "tessera/ops_shape.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 33;  // of what a few numbers ask for

Values constants(const Call& c) {
  if (c.has_attribute("value")) return {c.tensor("value")};
  if (c.has_attribute("value_float")) return {full({}, c.real("value_float", 0), Float32, cpu())};
  if (c.has_attribute("value_int")) return {tensor(std::vector<int64_t>{c.integer("value_int", 0)}, {})};
  if (c.has_attribute("value_ints")) {
    const auto all = c.integers("value_ints");
    return {tensor(all, {static_cast<int64_t>(all.size())})};
  }
  if (c.has_attribute("value_floats")) {
    const auto all = c.reals("value_floats");
    return {tensor(std::vector<float>(all.begin(), all.end()), {static_cast<int64_t>(all.size())})};
  }
  c.refuse("a constant that is no tensor of numbers is not supported");
}
Values constants_of_shape(const Call& c) {
  const std::vector<int64_t> sizes = c.ints(0);
  for (const int64_t n : sizes)
    if (n < 0) c.fail("a size of {}", n);
  const Tensor value = c.has_attribute("value") ? c.tensor("value") : zeros({1}, Float32, cpu());
  if (value.numel() != 1) c.fail("a value of {}", describe(value));
  return {contiguous(expand(reshape(value, {}).to(c.device()), Shape(std::span<const int64_t>(sizes))))};
}
Values range(const Call& c) {
  const Tensor &start = c.in(0), &limit = c.in(1), delta = c.has(2) ? c.in(2) : ones({}, start.dtype());
  if (start.numel() != 1 || limit.numel() != 1 || delta.numel() != 1)
    c.fail("start, limit and delta are one number each");
  if (delta.item() == 0) c.fail("a delta of 0");
  if (is_floating(start.dtype())) {
    const double a = start.item(), d = delta.item(), steps = std::ceil((limit.item() - a) / d);
    if (!(steps < static_cast<double>(kMostElements))) c.fail("{} elements", steps);  // or NaN
    const Tensor at = arange(0, std::max(steps, 0.0), 1, Float64, c.device());
    return {cast(at * d + a, start.dtype())};
  }
  const int64_t a = start.item<int64_t>(), b = limit.item<int64_t>(), d = delta.item<int64_t>();
  const __int128 length = d > 0 ? static_cast<__int128>(b) - a : static_cast<__int128>(a) - b;
  const __int128 step = d > 0 ? d : -static_cast<__int128>(d), count = length > 0 ? (length + step - 1) / step : 0;
  if (count > kMostElements) c.fail("{} elements are too many", static_cast<double>(count));
  const Tensor all = empty_host({static_cast<int64_t>(count)}, Int64);
  for (int64_t i = 0; i < all.numel(); ++i)
    all.data<int64_t>()[i] = static_cast<int64_t>(a + static_cast<__int128>(i) * d);
  return {cast(all, start.dtype())};
}
Values eye_like(const Call& c) {
  const Tensor& x = c.in(0);
  if (x.dim() != 2) c.fail("{} is no matrix", describe(x));
  return {eye(x.size(0), x.size(1), c.integer("k", 0), c.dtype("dtype", x.dtype()), x.device())};
}

// ---- draws: a seed makes them the same each time

Generator seeded(const Call& c) {
  return Generator(
      c.has_attribute("seed")
          ? static_cast<uint64_t>(std::llround(c.real("seed", 0)))
          : static_cast<uint64_t>(randint(0, int64_t{1} << 52, {1}, default_generator(), cpu()).item<int64_t>()));
}
Shape shape_attribute(const Call& c) {
  const auto sizes = c.integers("shape");
  for (const int64_t n : sizes)
    if (n < 0) c.fail("a size of {}", n);
  return Shape(std::span<const int64_t>(sizes));
}
double not_negative(const Call& c, std::string_view name, double value) {
  if (!(value >= 0)) c.fail("{} is {}", name, value);
  return value;
}
Tensor normal(const Call& c, const Shape& shape, DType dtype) {
  Generator generator = seeded(c);
  return cast(
      randn(shape, generator, Float32, c.device()) * not_negative(c, "scale", c.real("scale", 1)) + c.real("mean", 0),
      dtype);
}
Tensor uniform(const Call& c, const Shape& shape, DType dtype) {
  Generator generator = seeded(c);
  const double low = c.real("low", 0), high = c.real("high", 1);
  return cast(rand(shape, generator, Float32, c.device()) * (high - low) + low, dtype);
}
template <Tensor (*draw)(const Call&, const Shape&, DType)>
Values drawn(const Call& c) {
  return {draw(c, shape_attribute(c), c.dtype("dtype", Float32))};
}
template <Tensor (*draw)(const Call&, const Shape&, DType)>
Values drawn_like(const Call& c) {
  return {draw(c, c.in(0).shape(), c.dtype("dtype", c.in(0).dtype()))};
}
Values bernoulli(const Call& c) {
  const Tensor& x = c.in(0);
  Generator generator = seeded(c);
  const Tensor draws = rand(x.shape(), generator, Float32, x.device());
  return {cast(lt(draws, cast(x, Float32)), c.dtype("dtype", x.dtype()))};
}
Values draw_classes(const Call& c) {
  Generator generator = seeded(c);
  return {
      cast(multinomial(softmax(c.in(0), 1), c.integer("sample_size", 1), true, generator), c.dtype("dtype", Int32))};
}

constexpr Entry entries[] = {
    {"Bernoulli", 15, bernoulli, "", true},
    {"Constant", 1, constants},
    {"ConstantOfShape", 9, constants_of_shape},
    {"EyeLike", 9, eye_like},
    {"Multinomial", 7, draw_classes, "", true},
    {"RandomNormal", 1, drawn<normal>, "", true},
    {"RandomNormalLike", 1, drawn_like<normal>, "", true},
    {"RandomUniform", 1, drawn<uniform>, "", true},
    {"RandomUniformLike", 1, drawn_like<uniform>, "", true},
    {"Range", 11, range},
    {"Range", 1, range, "com.microsoft"},
};

}  // namespace

std::span<const Entry> creation_handlers() { return entries; }

}  // namespace tessera::onnx
