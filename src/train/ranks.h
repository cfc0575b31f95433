// Which part of the work is this rank's, and what ranks tell each other.
#pragma once
#include <chrono>
#include <optional>
#include <vector>

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

/// How long each step took on this rank's host, without what it waited for other ranks.
class OwnTime {
 public:
  explicit OwnTime(const Ranks& ranks) : ranks_(ranks) {}
  void begin() { began_ = now(); }
  void end() { steps_.push_back(now() - began_); }
  /// Milliseconds [rank][step]. All ranks ask, after as many steps.
  std::vector<std::vector<double>> of_all_ranks() const {
    const auto n = static_cast<int64_t>(steps_.size());
    if (ranks_.size() == 1 || n == 0) return {};
    const std::vector<double> all = ranks_.all(tensor(steps_, {n})).to_vector<double>();
    std::vector<std::vector<double>> out;
    for (auto at = all.begin(); at != all.end(); at += n) out.emplace_back(at, at + n);
    return out;
  }

 private:
  double now() const {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(since).count() -
           (ranks_.group ? dist::milliseconds_waited(*ranks_.group) : 0);
  }
  Ranks ranks_;
  double began_ = 0;
  std::vector<double> steps_;
};

}  // namespace tessera::train
