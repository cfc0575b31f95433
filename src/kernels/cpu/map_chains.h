// Runs of maps that are joined to chains, which keep what they make in registers.
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/args/map_program.h"

namespace tessera::cpu_kernels {

/// A program of maps while it is made.
struct MapSteps {
  std::vector<MapValue> values;
  std::vector<Scalar> types;  // of values
  std::vector<MapStep> steps;
  std::vector<std::vector<MapLink>> chains;  // of steps whose `links` are not 0, at the place that `to` says

  /// fn(value) for what a step reads from memory, and what it writes there.
  template <class Fn>
  void each_read(const MapStep& step, const Fn& fn) const {
    if (step.links == 0)
      for (short k = 0; k < step.inputs; ++k) fn(step.from[k]);
    else
      for (const MapLink& link : chain_of(step))
        for (const short v : link.value)
          if (v >= 0) fn(v);
  }
  template <class Fn>
  void each_written(const MapStep& step, const Fn& fn) const {
    if (step.links == 0) return fn(step.to);
    for (const MapLink& link : chain_of(step))
      if (link.to >= 0) fn(link.to);
  }
  const std::vector<MapLink>& chain_of(const MapStep& step) const { return chains[static_cast<std::size_t>(step.to)]; }
};

/// Joins steps from the first one on. The first `outputs` values are read by others, too.
void join_chains(MapSteps& program, std::size_t first, int outputs);

}  // namespace tessera::cpu_kernels
