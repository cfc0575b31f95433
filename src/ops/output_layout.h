// How new tensors lie in memory: the one place where that is decided.
#pragma once
#include "core/op.h"

namespace tessera {

/// How an output of `op` lies: `meta`, of which inference says shape, dtype and device, with strides and pitch
/// (docs/memory.md says what lies how on a GPU). Shapes with symbols lie dense.
TensorMeta output_layout(const Op& op, std::span<const TensorMeta> in, const TensorMeta& meta, bool hidden = false);
/// A new tensor that lies so.
Tensor make_output(const TensorMeta& layout);

/// Whether its rows are padded as make_output pads them, and lie as in a dense tensor but for that.
bool lies_in_padded_rows(const TensorMeta& meta);
inline bool lies_in_padded_rows(const Tensor& t) { return t.defined() && lies_in_padded_rows(t.meta()); }

/// Zeros of another dtype that lie as `t` does on a GPU if its rows are padded and long, with as many elements a row;
/// dense elsewhere. A step over shorter rows would lose more at their ends (67: a third, 997: a tenth; an H100).
Tensor zeros_beside(const Tensor& t, DType dtype);

/// For tests: small matrices of halves and f32 have padded rows on GPUs, too.
void pad_small_rows(bool on);

}  // namespace tessera
