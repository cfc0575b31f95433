// The operators of products, for those that are made of them.
#pragma once
#include "core/op.h"

namespace tessera {

extern const Op matmul_op, linear_op;

}  // namespace tessera
