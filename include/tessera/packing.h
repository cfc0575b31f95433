// Weights that stay the same from call to call, packed once into the layout that a kernel reads.
//
//   NoGrad evaluation;
//   const Tensor packed = pack_linear(weight);  // beside the weight, which is as it was
//   Tensor y = linear(x, packed, bias);         // the kernel packs nothing
//
// Modules do this themselves: nn::Module::pack().
#pragma once
#include "tessera/tensor.h"

namespace tessera {

/// weight [out, in] for linear() and mlp(), as the kernel of its device wants it; `weight` itself where that wants
/// nothing else. The copy knows nothing of later changes and has no gradient. Only those two read it, without
/// gradients, and only with the instruction set that it was made for; contiguous() and clone() give the plain tensor,
/// and all else throws Error. Throws Error unless the weight has two dims.
Tensor pack_linear(const Tensor& weight);

}  // namespace tessera
