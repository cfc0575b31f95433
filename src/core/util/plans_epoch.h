// What plans depend on besides tensors: whoever changes such a thing has all of them made anew.
#pragma once
#include <cstdint>

namespace tessera {

/// All cached plans are made anew from here on: what they depend on besides tensors, such as the number of threads, has
/// changed.
void forget_plans();
/// Counts calls of forget_plans().
uint64_t plans_epoch();

}  // namespace tessera
