// What dispatch does to the inputs of a call under autocast.
#pragma once
#include "core/op.h"
#include "tessera/autocast.h"

namespace tessera::amp {

// All that a call costs without autocast is a look at `devices`.
extern constinit thread_local AutocastState autocast_state;

/// Casts what the op's policy says, if autocast is on for the device of its inputs.
void autocast(const Op& op, Tensors& in);

/// The same for a function that is made of several ops, such as a loss.
Tensor autocast_to_float32(const Tensor& x);

/// Whether a residual stream keeps a wider dtype than that of the products added to it.
bool is_wide_residual(const Tensor& x);

}  // namespace tessera::amp
