// What operators make of elements that metas carry: how sizes are computed before there is memory.
#pragma once
#include "core/op.h"

namespace tessera {

/// Those of a call's first output, which has no memory; null where they are not known.
Elements carried_elements(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, const TensorMeta& out);

// ---- for Op::elements

/// Of an operator that only moves elements of the inputs in `data`, a bit mask: other inputs are places.
Elements moved_elements(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, uint32_t data);
template <uint32_t data>
Elements moved(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, const TensorMeta&) {
  return moved_elements(op, in, attrs, data);
}

/// fn(elements of the inputs at one place), which broadcast.
Elements mapped_elements(std::span<const TensorMeta> in, const TensorMeta& out,
                         const std::function<Dim(std::span<const Dim>)>& fn);
template <auto fn>
Elements mapped(const Op&, std::span<const TensorMeta> in, const Attrs&, const TensorMeta& out) {
  return mapped_elements(in, out, [](std::span<const Dim> e) {
    if constexpr (std::is_invocable_v<decltype(fn), Dim>) return fn(e[0]);
    else return fn(e[0], e[1]);
  });
}

/// A whole number, or Error.
Dim whole_number(double value);

}  // namespace tessera
