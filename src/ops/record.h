// The graph of a call whose result was there already.
#pragma once
#include "core/op.h"

namespace tessera {

/// As dispatch records it if gradients are wanted: `out` becomes the op's result.
void record_call(const Op& op, const Tensors& in, const Tensors& out, const Attrs& attrs);

}  // namespace tessera
