// A group's state: its engine and the thread that works for it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/control.h"
#include "dist/engine.h"
#include "dist/mesh.h"
#include "dist/page_locked.h"

namespace tessera::dist {

struct Group::State {
  std::shared_ptr<Control> control;  ///< null where this rank is alone
  std::vector<int> members;          ///< ranks of the run
  int rank = 0;
  int local_rank = 0;
  std::string asked_engine;        ///< by its name; empty: the first one that can
  std::string asked_gpu_engine;    ///< "host", "nccl" or "rccl"; empty: the first one that can
  std::shared_ptr<Mesh> mesh;      ///< null where all ranks of the run share memory
  std::unique_ptr<Engine> engine;  ///< of tensors of the host; null where the group has one rank, but for even_alone
  /// What moves tensors from device to device, or why nothing does and their bytes go through the host.
  struct OnDevice {
    Device device;
    std::unique_ptr<Engine> engine;
    std::string why_not;
  };
  std::vector<OnDevice> on_devices;
  PageLocked page_locked;  ///< of tensors of GPUs that go through the host

  State() = default;
  ~State();
  int size() const { return static_cast<int>(members.size()); }
  /// That of a GPU, or null. It is made at the first call `of_all` ranks; those of two find it or do without.
  Engine* engine_on(Device device, bool of_all);
  /// Whether the ranks read each other's memory, which decides what make_engine makes. Throws Error where the engine
  /// that was asked for cannot be had.
  bool share_memory() const;
  /// `place`: a number that the first rank of the group told the others.
  void make_engine(uint64_t place);
  /// That of the host which make_engine makes. Throws Error likewise.
  uint8_t engine_number() const;
  /// Runs it in the group's thread, behind what was given to it before.
  void later(std::function<void()> task);

 private:
  struct Worker;
  std::shared_ptr<Worker> worker_;  // its thread may be the one that lets go of the group
};

/// A run of that many ranks on this host.
std::shared_ptr<Control> create_run(int ranks);
/// A part of a run, whose other ranks are on other hosts.
std::shared_ptr<Control> create_part(const Begin& begin, const HostAddress& hub, const Key& key);
/// All ranks of it, as one of them.
std::shared_ptr<Group::State> make_world(std::shared_ptr<Control> control, int rank, const WorldOptions& options);

}  // namespace tessera::dist
