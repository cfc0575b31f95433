// Activations as exporters spell them.
#include <algorithm>
#include <cmath>

#include "onnx/optimize/rewriter.h"

namespace tessera::onnx {
namespace {

/// The value that is added to a number by the step which makes `slot`; -1 where it is no such sum.
int plus(const Rewriter& r, int slot, double number) {
  const int at = r.own_maker(slot, "Add");
  if (at < 0 || r.step(at).in.size() != 2) return -1;
  for (size_t i = 0; i < 2; ++i)
    if (const auto known = r.number(r.step(at).in[i]); known && *known == number) return r.step(at).in[1 - i];
  return -1;
}
bool is_only(const Factors& f, const std::vector<int>& slots, double number) {
  return f.slots == slots && is_close(f.number, number);
}

/// Whether a value is erf(x / sqrt 2).
bool is_erf_of(const Rewriter& r, int slot, int x) {
  const int at = r.own_maker(slot, "Erf");
  if (at < 0) return false;
  const int scaled = r.maker(r.step(at).in[0]);
  return (r.is(scaled, "Mul") || r.is(scaled, "Div")) && is_only(factors_of(r, scaled), {x}, std::sqrt(0.5));
}

/// Whether it is tanh(sqrt(2 / pi) (x + 0.044715 x³)), or with x taken out of the brackets.
bool is_tanh_of(const Rewriter& r, int slot, int x) {
  constexpr double kCubed = 0.044715, kScale = 0.79788456080286535588;
  const int at = r.own_maker(slot, "Tanh");
  if (at < 0) return false;
  const int scaled = r.maker(r.step(at).in[0]);
  if (!r.is(scaled, "Mul")) return false;
  const Factors f = factors_of(r, scaled);
  if (!is_close(f.number, kScale)) return false;
  const auto is_cube = [&](int value, size_t power) {
    const int made = r.only_user(value) < 0 ? -1 : r.maker(value);
    return r.is(made, "Mul") && is_only(factors_of(r, made), std::vector<int>(power, x), kCubed);
  };
  if (f.slots.size() == 1) {
    const int sum = r.own_maker(f.slots[0], "Add");
    return sum >= 0 && is_cube(other_input(r.step(sum), x), 3);
  }
  if (f.slots.size() != 2 || std::count(f.slots.begin(), f.slots.end(), x) != 1) return false;
  const int other = f.slots[0] == x ? f.slots[1] : f.slots[0], square = plus(r, other, 1);
  return square >= 0 && is_cube(square, 2);
}

}  // namespace

void fuse_activation(Rewriter& r, int at) {
  if (!r.is(at, "Mul") && !r.is(at, "Div")) return;
  const Factors f = factors_of(r, at);
  if (f.slots.size() != 2) return;
  for (size_t i = 0; i < 2; ++i) {
    const int x = f.slots[i], gate = f.slots[1 - i];
    if (f.number == 1) {
      if (const int sigmoid = r.own_maker(gate, "Sigmoid"); sigmoid >= 0 && r.step(sigmoid).in[0] == x)
        return r.replace(at, at, find_handler("", "Swish", 24), {x});
      if (const int hard = r.own_maker(gate, "HardSigmoid"); hard >= 0 && r.step(hard).in[0] == x)
        if (is_close(real_of(r.step(hard), "alpha", 0.2f), 1.f / 6) && real_of(r.step(hard), "beta", 0.5) == 0.5)
          return r.replace(at, at, find_handler("", "HardSwish", 14), {x});
    }
    if (f.number != 0.5) continue;
    const int curve = plus(r, gate, 1);
    if (curve < 0) continue;
    const bool by_tanh = is_tanh_of(r, curve, x);
    if (!by_tanh && !is_erf_of(r, curve, x)) continue;
    std::vector<AttributeProto> attributes;
    if (by_tanh) attributes.push_back({.name = "approximate", .type = kStringAttribute, .s = "tanh"});
    return r.replace(at, at, find_handler("", "Gelu", 20), {x}, std::move(attributes));
  }
}

}  // namespace tessera::onnx
