// A group's state: its engine and the thread that works for it.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "dist/control.h"
#include "dist/engine.h"

namespace tessera::dist {

struct Group::State {
  std::shared_ptr<Control> control;  ///< null where this rank is alone
  std::vector<int> members;          ///< ranks of the run
  int rank = 0;
  std::unique_ptr<Engine> engine;  ///< null where the group has one rank

  State() = default;
  ~State();
  int size() const { return static_cast<int>(members.size()); }
  /// Runs it in the group's thread, behind what was given to it before.
  void later(std::function<void()> task);

 private:
  struct Worker;
  std::shared_ptr<Worker> worker_;  // its thread may be the one that lets go of the group
};

/// A run of that many ranks on this host.
std::shared_ptr<Control> create_run(int ranks);
/// All ranks of it, as one of them.
std::shared_ptr<Group::State> make_world(std::shared_ptr<Control> control, int rank);

/// The variables by which a launcher tells a process its place.
constexpr const char* kMemoryVariable = "TESSERA_WORLD_MEMORY";  // a file descriptor
constexpr const char* kRankVariable = "RANK";
constexpr const char* kSizeVariable = "WORLD_SIZE";

}  // namespace tessera::dist
