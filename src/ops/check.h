// What infer functions check with: each failure names the op, the rule and the shapes.
#pragma once
#include <fmt/format.h>

#include "core/op.h"

namespace tessera {

template <class... A>
[[noreturn]] void fail(std::string_view op, fmt::format_string<A...> rule, A&&... values) {
  throw Error(fmt::format("{}: {}", op, fmt::format(rule, std::forward<A>(values)...)));
}

/// All present inputs among the first `count` are floating and of one dtype.
inline void require_one_floating_dtype(std::string_view op, std::span<const TensorMeta> in, size_t count) {
  if (!is_floating(in[0].dtype)) fail(op, "takes floating-point tensors, not {}", describe(in[0]));
  for (size_t i = 1; i < count; ++i)
    if (in[i].dtype != in[0].dtype && !is_absent(in[i]))
      fail(op, "dtypes differ: {} and {}", describe(in[0]), describe(in[i]));
}

/// `what` is absent or has that shape.
inline void require_shape(std::string_view op, std::string_view what, const TensorMeta& meta, const Shape& wanted) {
  if (!is_absent(meta) && !(meta.shape == wanted))
    fail(op, "{} has shape {}, not {}", what, to_string(meta.shape), to_string(wanted));
}

inline void require_rank(std::string_view op, std::string_view what, const TensorMeta& meta, int64_t rank) {
  if (meta.shape.rank() != rank) fail(op, "{} must have {} dims, not shape {}", what, rank, to_string(meta.shape));
}

/// Dims as an attribute.
inline IntList dim_list(std::string_view op, const Dims& dims) {
  if (dims.size() > 8) fail(op, "a list of {} dims: at most 8 are supported", dims.size());
  return IntList(std::span<const int64_t>(dims));
}

/// For rules that symbols cannot decide, such as divisibility.
inline bool provably_different(Dim a, Dim b) { return a.high() < b.low() || b.high() < a.low(); }

/// The dtype in which statistics of a tensor are kept.
inline DType statistics_dtype(DType dtype) { return dtype == Float64 ? Float64 : Float32; }

/// A shape that a tensor can have. Throws Error on a negative size.
inline Shape require_sizes(Shape shape) {
  for (const Dim d : shape)
    if (!d.is_symbolic() && d.value() < 0) throw Error("empty: negative size in " + to_string(shape));
  return shape;
}

}  // namespace tessera
