// The operators of products, for those that are made of them.
#pragma once
#include "core/op.h"

namespace tessera {

extern const Op matmul_op, linear_op;

/// The operator of an activation; there is none of None.
const Op& activation_op(Activation activation);
/// The gradient of h from that of activation(h), in the way the activation's own op does it.
Tensor activation_gradient(Activation activation, const Tensor& g, Tensor h);
/// One element, for references.
double activate(Activation activation, double x);

}  // namespace tessera
