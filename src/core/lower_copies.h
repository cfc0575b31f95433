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

/// The copy, if there is one that is the parameter as it is now: of that dtype, or of any. Undefined otherwise: also
/// after a replay of any graph, which may have written the parameter.
Tensor lower_copy(const Tensor& parameter, DType dtype);
Tensor lower_copy(const Tensor& parameter);

/// The running call writes the parameter in place, and wrote its copy.
void wrote_lower_copy(const Tensor& parameter);

}  // namespace tessera
