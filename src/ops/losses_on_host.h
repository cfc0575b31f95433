// Losses of classes as loops over rows, where operators would be many passes.
#pragma once
#include <functional>

#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {

/// The same made of operators, of x alone: for gradients that are differentiated again.
using Composed = std::function<Tensor(const Tensor&)>;

/// The first output of a function of inputs[0]. `slopes` makes its gradient of inputs, outputs and the gradient of that
/// output; the gradient's own gradient is that of `composed`.
Tensor loss_of_rows(const char* name, const Tensors& inputs, const CustomForward& forward, const CustomForward& slopes,
                    const Composed& composed);

/// nll_loss of rows [n, classes] of f32 or f64 with an i64 target [n]. `weight` [classes] may be undefined.
Tensor host_nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight, int64_t ignore_index,
                     Reduction reduction, const Composed& composed);

/// cross_entropy over dim 1 of [outer, classes, inner], f32 or f64, with an i64 target [outer, inner].
Tensor host_cross_entropy(const Tensor& x, const Tensor& target, int64_t ignore_index, Reduction reduction,
                          const Composed& composed);

/// A number for each row of [n, classes], f32 or f64: the sum over other classes of max(0, x[row, class] + margin -
/// x[row, target])^p, p being 1 or 2.
Tensor host_margins(const Tensor& x, const Tensor& target, int64_t p, double margin, const Composed& composed);

/// The same for all classes that a row's list names, up to its first negative number; others are those in no list.
Tensor host_listed_margins(const Tensor& x, const Tensor& lists, const Composed& composed);

}  // namespace tessera
