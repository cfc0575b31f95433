// Losses of classes as kernels of rows, where operators would be many passes.
#pragma once
#include "ops/losses_on_host.h"

namespace tessera {

/// host_nll_loss() where on_card(x).
Tensor card_nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight, int64_t ignore_index,
                     Reduction reduction, const Composed& composed);

/// host_margins() where on_card(x).
Tensor card_margins(const Tensor& x, const Tensor& target, int64_t p, double margin, const Composed& composed);

/// Whether card_listed_margins() takes rows of so many classes.
bool card_takes_lists(const Tensor& x);
/// host_listed_margins() where on_card(x).
Tensor card_listed_margins(const Tensor& x, const Tensor& lists, const Composed& composed);

}  // namespace tessera
