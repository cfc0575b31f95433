// Who waits for whom in a run, seen from beside it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "dist/control.h"

namespace tessera::dist {

/// What was found: a line for people, and the ranks whose stacks would say more.
struct Waited {
  std::string line;
  std::vector<int> causes;
};

/// Names ranks that others wait for. It costs the ranks nothing: they say where they are anyway.
class WaitingRanks {
 public:
  /// `patience`: seconds of waiting after which a rank is named, once.
  WaitingRanks(const Control& control, double patience);
  /// What was found since the last look.
  std::vector<Waited> look();

 private:
  Waited describe(const std::vector<int>& waiting, int cause) const;
  const Control& control_;
  double patience_;
  std::vector<uint64_t> named_;  // for each rank the number of its collectives when it was named, and one
};

/// Who kept others waiting in a run of so many seconds, in a few lines: each rank's share of all ranks' time, what it
/// did meanwhile, and whether it was mostly the same one. Empty where it was little.
std::vector<std::string> waiting_table(const Control& control, double seconds);

/// What a process is doing, as a letter of /proc/PID/stat; 'X' where there is none.
char letter_of_process(int pid);
/// The same in words: "is stopped", "computes", "sleeps", "is gone".
std::string_view state_of_process(char letter);

}  // namespace tessera::dist
