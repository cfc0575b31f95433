// Losses that are made together with their gradient.
#pragma once
#include "tessera/ops.h"

namespace tessera {

/// The mean cross entropy of target (see cross_entropy), with which the logits become the gradient of `weight` times
/// it; outside of any graph. A 0-d `weight` has the loss's dtype.
Tensor cross_entropy_and_gradient_(Tensor logits, const Tensor& target, const Tensor& weight);

}  // namespace tessera
