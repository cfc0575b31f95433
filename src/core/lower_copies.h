// Copies of f32 parameters in halves, which stay from step to step: autocast makes them, and the kernels that step
// parameters on a GPU write them, too, so that no cast follows.
#pragma once
#include "tessera/tensor.h"

namespace tessera {

/// From now on, until as many calls of drop_lower_copy, the parameter may have a copy: its optimizer lives.
void allow_lower_copy(const Tensor& parameter);
void drop_lower_copy(const Tensor& parameter);

/// Keeps `copy`, which is the parameter as it is now, if it may have one. Not while a graph is captured, whose replays
/// must cast anew.
void keep_lower_copy(const Tensor& parameter, const Tensor& copy);

/// The copy, if there is one of that dtype that is the parameter as it is now. Undefined otherwise: also after a replay
/// of any graph, which may have written the parameter.
Tensor lower_copy(const Tensor& parameter, DType dtype);

/// The same in any dtype, for the running call to write with the parameter; undefined where somebody else holds it,
/// too, such as a graph that backward has yet to walk.
Tensor writable_lower_copy(const Tensor& parameter);
/// The running call writes the parameter in place, and has written the copy whose memory this is.
void wrote_lower_copy(const Tensor& parameter, const void* copy);

/// The parameter's memory is another now: its copy and what is known of the old memory go.
void forget_lower_copy(const Tensor& parameter);

}  // namespace tessera
