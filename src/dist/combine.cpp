#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "core/element.h"
#include "dist/engine.h"
#include "tessera/error.h"

namespace tessera::dist {
namespace {

constexpr int64_t kBlock = 512;  // elements of each part that are combined in the cache
constexpr size_t kFew = 8;

template <class T>
constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;
/// What elements are combined in.
template <class T>
using Accumulator = std::conditional_t<is_half<T>, float, std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;

template <class A>
A apply(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::Max:
      return a > b || a != a ? a : b;
    case ReduceOp::Min:
      return a < b || a != a ? a : b;
    case ReduceOp::Product:
      if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      else return a * b;
    default:
      if constexpr (std::is_integral_v<A>) return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      else return a + b;
  }
}

template <class T, class A>
void combine_as(std::span<const char* const> parts, char* out, int64_t count, ReduceOp op) {
  std::vector<A> rest(parts.size() > kFew ? parts.size() * kBlock : 0);
  A few[kFew * kBlock];
  A* const room = rest.empty() ? few : rest.data();
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    for (size_t p = 0; p < parts.size(); ++p) {
      const T* from = reinterpret_cast<const T*>(parts[p]) + at;
      for (int64_t i = 0; i < n; ++i) room[p * kBlock + i] = static_cast<A>(from[i]);
    }
    const auto pair = [&](size_t left, size_t right, auto&& fn) {
      A* const a = room + left * kBlock;
      const A* const b = room + right * kBlock;
      for (int64_t i = 0; i < n; ++i) a[i] = fn(a[i], b[i]);
    };
    for (size_t stride = 1; stride < parts.size(); stride *= 2)
      for (size_t left = 0; left + stride < parts.size(); left += 2 * stride) {
        if (op == ReduceOp::Sum || op == ReduceOp::Mean)  // a loop without a choice in it
          pair(left, left + stride, [](A a, A b) { return apply(ReduceOp::Sum, a, b); });
        else pair(left, left + stride, [op](A a, A b) { return apply(op, a, b); });
      }
    if constexpr (std::is_floating_point_v<A>)
      if (op == ReduceOp::Mean)
        for (int64_t i = 0; i < n; ++i) room[i] /= static_cast<A>(parts.size());
    T* const to = reinterpret_cast<T*>(out) + at;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(room[i]);
  }
}

}  // namespace

void combine(std::span<const char* const> parts, char* out, int64_t count, DType dtype, ReduceOp op) {
  if (parts.size() == 1) {
    if (parts[0] != out) std::memcpy(out, parts[0], static_cast<size_t>(count) * size_of(dtype));
    return;
  }
  with_element_type(dtype, [&]<class T>(T*) { combine_as<T, Accumulator<T>>(parts, out, count, op); });
}

void check_combines(std::string_view what, DType dtype, ReduceOp op) {
  if (op == ReduceOp::Mean && !is_floating(dtype))
    throw Error(fmt::format("{}: a mean of {} is none of it", what, name(dtype)));
  if (dtype == Bool && op != ReduceOp::Max && op != ReduceOp::Min)
    throw Error(fmt::format("{}: of bool there are Max, which is any, and Min, which is all", what));
}

}  // namespace tessera::dist
