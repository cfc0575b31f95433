// Which part of the work is this rank's, and what ranks tell each other.
#pragma once
#include <optional>

#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::train {

struct Ranks {
  const dist::Group* group = nullptr;  // null: one rank

  int size() const { return group ? group->size() : 1; }
  int rank() const { return group ? group->rank() : 0; }
  void at_step(int64_t step) const {
    if (group) dist::set_step(*group, step);
  }
  // What this rank does in the scope.
  std::optional<dist::InPhase> in(dist::Phase phase) const {
    std::optional<dist::InPhase> scope;
    if (group) scope.emplace(*group, phase);
    return scope;
  }
  // Of numbers that each rank has its part of, [parts], all: [size parts].
  Tensor all(const Tensor& parts) const { return group ? dist::all_gather(parts, *group) : parts; }
  Tensor sum_of(const Tensor& mine) const { return group ? dist::all_reduce(mine, *group) : mine; }
  Tensor of_first(const Tensor& mine) const { return group ? dist::broadcast(mine, 0, *group) : mine; }
  // Whether any rank says so; all of them ask.
  bool any(bool mine) const {
    if (size() == 1) return mine;
    return dist::all_reduce(tensor(std::vector<int32_t>{mine}, {1}), *group, dist::Max).item<int32_t>() != 0;
  }
};

}  // namespace tessera::train
