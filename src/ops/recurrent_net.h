// Layers of a recurrent net in one operator, where a kernel of the device takes them all.
#pragma once
#include <optional>

#include "core/net_attrs.h"
#include "core/op.h"
#include "tessera/ops_recurrent.h"

namespace tessera {

extern const Op recurrent_net_op, recurrent_net_backward_op;

/// x [steps, batch, in], layers of one width with both biases or none, states as of lstm(). Without a value where no
/// kernel takes it: on CPUs, while something is captured, in f64, and where the states' shapes are wrong.
std::optional<RecurrentResult> recurrent_net(const Tensor& x, const std::vector<RecurrentWeights>& layers,
                                             const Tensor& hidden, const Tensor& cell, NetAttrs attrs);

}  // namespace tessera
