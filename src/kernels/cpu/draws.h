// Draws on the CPU, whose state is read when they run.
#pragma once
#include "kernels/shared/arguments.h"

namespace tessera::cpu_kernels {

/// A generator's state as an operand: its seed, and the first block behind it.
struct StateArg {
  const long long* seed;
  const long long* block;
  explicit StateArg(const Operand& state)
      : seed(static_cast<const long long*>(state.data_ptr())), block(seed + state.strides()[0]) {}
};

/// Arguments whose seed and block come from a state.
template <class Args>
struct Drawn {
  Args args;
  StateArg state;
  Args read() const {
    Args read = args;
    read.seed = static_cast<unsigned long long>(*state.seed);
    read.block = static_cast<unsigned long long>(*state.block);
    return read;
  }
};

inline void launch_dropout(Plan& plan, const Operand& state, const DropoutArgs& args) {
  const auto run = +[](const Drawn<DropoutArgs>& d, Executor& executor) { random_table().dropout(d.read(), executor); };
  plan.launch("dropout", run, Drawn<DropoutArgs>{args, StateArg(state)});
}

}  // namespace tessera::cpu_kernels
