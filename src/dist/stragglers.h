// What ranks that are late now and then cost, and what other ways to train together would save: a simulation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dist.h"

namespace tessera::dist {

/// What each rank does in each step, in milliseconds.
struct RankTimes {
  int ranks = 1;
  double step = 0;                ///< of every rank in every step, on its device
  std::vector<float> stall = {};  ///< [steps, ranks]: before it, on the host
  int64_t steps() const { return static_cast<int64_t>(stall.size()) / ranks; }
};

struct StragglerModel {
  double probability = 0.01;  ///< of a stall, of each rank in each step
  double stall = 1000;        ///< milliseconds
  bool persistent = false;    ///< as many ranks as that stall in every step, always the same ones
};
/// Draws who stalls when. Throws Error at what cannot be.
RankTimes draw_times(int ranks, int64_t steps, double step, const StragglerModel& model, uint64_t seed);

/// How ranks train together. Averages are as LocalSGD has them, by its rule and without a warm-up.
struct AveragingScheme {
  std::vector<AveragingLevel> hierarchy = {{1, 0}};  ///< this one waits as synchronous training does
  int ranks_of_host = 1;                             ///< neighbours whose gradients are one in every step
  /// A host prepares a step while its device is in the one before, and waits before an average for its own device
  /// alone, as PyTorch's averagers do. Otherwise whatever is in common is a barrier: strict.
  bool one_step_ahead = false;
};
/// When all ranks have made each step, in milliseconds. Exchanges take no time. Throws Error where levels do not nest.
std::vector<double> simulate(const RankTimes& times, const AveragingScheme& scheme);
/// The same where each rank averages with its two neighbours in a ring in every step: Lian et al. 2017.
std::vector<double> simulate_gossip(const RankTimes& times);
/// The same where a step has the gradients of all ranks but the last `backups` of them: Chen et al. 2016. A rank that
/// was left out begins with the step that the others are in.
std::vector<double> simulate_backups(const RankTimes& times, int backups);

/// Why ranks of a synchronous run waited for each other.
struct WaitingCauses {
  double lost = 0;         ///< share of their time in which they did
  double slow = 0;         ///< share of all ranks' steps that took half as much again as the median
  int latest = 0;          ///< the rank that was waited for the longest
  double latest_part = 0;  ///< its part in the waiting, which who is later than the mean divides
};
WaitingCauses explain_waiting(const RankTimes& times);
/// Why no hierarchy pays where the best one makes a run so many times faster; empty where it does.
std::string why_not_worth(const RankTimes& times, double best);

}  // namespace tessera::dist
