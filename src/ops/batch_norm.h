// Batch norm of which something is added to the result, as at the end of a block of a residual network.
#pragma once
#include <cmath>

#include "tessera/tensor.h"

namespace tessera {

/// batch_norm of x, plus `residual` of its shape and dtype where that is defined, then the activation (none or ReLU),
/// which without a residual may give at most `high`, as ReLU6 does. One operator does all of it, and one its backward.
Tensor batch_norm_add(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                      Tensor running_mean, Tensor running_var, bool training, double momentum, double eps,
                      Activation activation, double high = INFINITY);

/// relu(x), of at most `high`, and a + b by the norm that waits (core/util/waiting.h), where x, or one of a and b, is
/// what it gives and nobody else holds that. Undefined where it is not so: then the call goes its own way.
Tensor relu_of_waiting(Tensor& x, double high = INFINITY);
Tensor add_to_waiting(Tensor& a, Tensor& b);
/// For tests, which compare: on the CPU norms wait unless somebody outside has the address of what they read.
void let_norms_wait_on_cpu(bool on);

}  // namespace tessera
