// Random operators: each takes a state, an i64[2] of seed and first block, and is a function of it. No mask is ever
// saved: the backward of dropout draws the same words again.
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "ops/random.h"

#include "ops/check.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

void check_state(std::string_view op, const TensorMeta& state) {
  bool fits =
      state.dtype == Int64 && state.shape.size() == 1 && (state.shape[0] == Dim(2) || state.shape[0].is_symbolic());
  if (!fits) throw Error(fmt::format("{}: the state is {}, not i64[2]", op, describe(state)));
}

Metas infer_generate(std::span<const TensorMeta> in, const Attrs& attrs) {
  check_state("random", in[0]);
  const auto& a = attrs.as<CreateAttrs>();
  return {{require_sizes(a.shape.shape()), a.dtype, in[0].device}};
}

Metas infer_dropout(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("dropout", in);
  check_state("dropout", in[1]);
  double p = attrs.as<DropoutAttrs>().p;
  if (!(p >= 0 && p <= 1)) throw Error(fmt::format("dropout: the probability is {}, not between 0 and 1", p));
  if (!is_floating(in[0].dtype)) throw Error(fmt::format("dropout: {} is not floating", describe(in[0])));
  return {in[0]};
}
Tensors dropout_vjp(const Saved& s, const Tensors& grads);

Metas infer_multinomial(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("multinomial", in);
  check_state("multinomial", in[1]);
  const auto& a = attrs.as<MultinomialAttrs>();
  Shape shape = in[0].shape;
  if (shape.empty() || shape.size() > 2 || !is_floating(in[0].dtype))
    throw Error(
        fmt::format("multinomial: the probabilities are {}, not floating and [n] or [rows, n]", describe(in[0])));
  Dim n = shape.back();
  if (a.samples < 1 || (!a.replacement && !n.is_symbolic() && a.samples > n.value()))
    throw Error(fmt::format("multinomial: {} samples {} replacement of {}", a.samples,
                            a.replacement ? "with" : "without", to_string(shape)));
  shape.back() = a.samples;
  return {{shape, Int64, in[0].device}};
}

// ---- references

// Word i of a state's stream: Philox 4x32-10 by its definition.
uint32_t word(const Tensor& state, uint64_t i) {
  const auto* s = state.data<int64_t>();
  uint64_t block = static_cast<uint64_t>(s[1]) + i / 4;
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0};
  uint32_t k[2] = {static_cast<uint32_t>(s[0]), static_cast<uint32_t>(static_cast<uint64_t>(s[0]) >> 32)};
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xd2511f53} * c[0], b = uint64_t{0xcd9e8d57} * c[2];
    uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
                        static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, c);
    k[0] += 0x9e3779b9;
    k[1] += 0xbb67ae85;
  }
  return c[i % 4];
}
uint64_t two_words(const Tensor& state, uint64_t i) {
  return uint64_t{word(state, 2 * i)} << 32 | word(state, 2 * i + 1);
}

double unit(const Tensor& state, DType dtype, uint64_t i) {
  if (dtype == Float64) return static_cast<double>(two_words(state, i) >> 11) * 0x1p-53;
  return static_cast<double>(word(state, i) >> 8) * 0x1p-24;
}

template <class F>
Tensors generate_reference(const Attrs& attrs, F value) {
  const auto& a = attrs.as<CreateAttrs>();
  uint64_t n = 0;
  return {reference::generate(a.shape.shape(), a.dtype, [&](auto&) { return value(a, n++); })};
}
Tensors uniform_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return generate_reference(attrs, [&](auto& a, uint64_t i) { return a.a + (a.b - a.a) * unit(in[0], a.dtype, i); });
}
Tensors normal_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return generate_reference(attrs, [&](auto& a, uint64_t i) {
    double radius = std::sqrt(-2 * std::log(1 - unit(in[0], a.dtype, i & ~uint64_t{1})));
    double angle = 2 * std::numbers::pi * unit(in[0], a.dtype, i | 1);
    return a.a + a.b * radius * (i % 2 ? std::sin(angle) : std::cos(angle));
  });
}
Tensors randint_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return generate_reference(attrs, [&](auto& a, uint64_t i) {
    auto range = static_cast<unsigned __int128>(a.b - a.a);
    return a.a + static_cast<double>(static_cast<uint64_t>(two_words(in[0], i) * range >> 64));
  });
}
Tensors dropout_reference(std::span<const Tensor> in, const Attrs& attrs) {
  double p = attrs.as<DropoutAttrs>().p;
  uint64_t n = 0;
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) {
    return word(in[1], n++) >= p * 0x1p32 ? reference::get(in[0], i) / (1 - p) : 0.0;
  })};
}

// ---- the ops

const Op uniform_op = {.name = "uniform",
                       .inputs = "state",
                       .outputs = "y",
                       .attrs = attrs_of<CreateAttrs>,
                       .infer = infer_generate,
                       .reference = uniform_reference};
const Op normal_op = {.name = "normal",
                      .inputs = "state",
                      .outputs = "y",
                      .attrs = attrs_of<CreateAttrs>,
                      .infer = infer_generate,
                      .reference = normal_reference};
const Op randint_op = {.name = "randint",
                       .inputs = "state",
                       .outputs = "y",
                       .attrs = attrs_of<CreateAttrs>,
                       .infer = infer_generate,
                       .reference = randint_reference};
const Op dropout_op = {.name = "dropout",
                       .inputs = "x, state",
                       .outputs = "y",
                       .attrs = attrs_of<DropoutAttrs>,
                       .infer = infer_dropout,
                       .vjp = dropout_vjp,
                       .reference = dropout_reference,
                       .saves = {.inputs = 2}};
const Op multinomial_op = {.name = "multinomial",
                           .inputs = "probabilities, state",
                           .outputs = "index",
                           .attrs = attrs_of<MultinomialAttrs>,
                           .infer = infer_multinomial};

Tensors dropout_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(dropout_op, {grads[0], s.inputs[1]}, s.attrs), {}};
}

// ---- draw: where a stream of words goes on

struct GeneratorObject final : AttrObject {
  explicit GeneratorObject(Generator& generator) : generator(&generator) {}
  std::string text() const override { return "a generator of the program's own"; }
  bool equals(const AttrObject& other) const override {
    const auto* same = dynamic_cast<const GeneratorObject*>(&other);
    return same && same->generator == generator;
  }
  Generator* generator;
};

Metas infer_draw(std::span<const TensorMeta>, const Attrs& attrs) {
  const auto& a = attrs.as<DrawAttrs>();
  if (a.elements.high() < 0) throw Error(fmt::format("draw: {} elements", a.elements.to_string()));
  return {{{2}, Int64, a.device}};
}
Tensors draw_compute(std::span<const Tensor>, const Attrs& attrs) {
  const auto& a = attrs.as<DrawAttrs>();
  const auto* own = dynamic_cast<const GeneratorObject*>(a.generator.get());
  return {(own ? *own->generator : default_generator()).reserve(a.elements.value(), a.device)};
}

const Op draw_op = {.name = "draw",
                    .outputs = "state",
                    .attrs = attrs_of<DrawAttrs>,
                    .infer = infer_draw,
                    .reference = draw_compute,
                    .compute = draw_compute};

// f64 and integers take two words per number.
Tensor generate(const Op& op, const Shape& shape, DType dtype, double a, double b, Generator& generator,
                Device device) {
  const Dim words = shape.numel() * (dtype == Float64 || dtype == Int64 ? 2 : 1);
  return dispatch_one(op, {generator.reserve(words, device)}, CreateAttrs{DimList(shape), dtype, a, b, device});
}

void check_floating(const char* op, DType dtype) {
  if (!is_floating(dtype)) throw Error(fmt::format("{}: {} is not floating", op, name(dtype)));
}

}  // namespace

std::span<const Op* const> random_ops() {
  static constexpr const Op* ops[] = {&uniform_op, &normal_op, &randint_op, &dropout_op, &multinomial_op, &draw_op};
  return ops;
}

Tensor draw_state(Generator& generator, Dim elements, Device device) {
  DrawAttrs attrs{{}, elements, device};
  if (&generator != &default_generator()) attrs.generator = make_ref<GeneratorObject>(generator);
  return dispatch_one(draw_op, {}, attrs);
}

Tensor rand(const Shape& shape, Generator& generator, DType dtype, Device device) {
  check_floating("rand", dtype);
  return generate(uniform_op, shape, dtype, 0, 1, generator, device);
}

Tensor randn(const Shape& shape, Generator& generator, DType dtype, Device device) {
  check_floating("randn", dtype);
  return generate(normal_op, shape, dtype, 0, 1, generator, device);
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, Generator& generator, Device device) {
  constexpr int64_t most = int64_t{1} << 53;  // bounds are kept as doubles
  if (low >= high || low < -most || high > most)
    throw Error(fmt::format("randint: no integers in [{}, {}), or bounds past 2^53", low, high));
  return generate(randint_op, shape, Int64, static_cast<double>(low), static_cast<double>(high), generator, device);
}

Tensor dropout(const Tensor& x, double p, bool training, Generator& generator) {
  if (!training || p == 0) return x;
  return dispatch_one(dropout_op, {x, generator.reserve(x.shape().numel(), x.device())}, DropoutAttrs{p});
}

Tensor multinomial(const Tensor& probabilities, int64_t samples, bool replacement, Generator& generator) {
  if (probabilities.dim() == 0) throw Error("multinomial: the probabilities are a single number");
  const Dim n = probabilities.shape().back(), rows = n == Dim(0) ? Dim(0) : probabilities.shape().numel() / n;
  Tensor state =
      generator.reserve(rows * 2 * (replacement ? Dim(std::max<int64_t>(samples, 0)) : n), probabilities.device());
  return dispatch_one(multinomial_op, {probabilities, state}, MultinomialAttrs{samples, replacement});
}

}  // namespace tessera
