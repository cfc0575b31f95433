// What the ranks of a host and their launcher know of each other: who is where, and whether the run goes on.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "dist/engine.h"
#include "dist/flight_recorder.h"
#include "dist/shared_memory.h"
#include "dist/stack_trace.h"
#include "dist/wire.h"

namespace tessera::dist {

constexpr int kMaxRanks = 1024;
constexpr int kPhases = 4;  ///< of Phase

using PhaseTimes = std::array<int64_t, kPhases>;  ///< nanoseconds in each

/// Which phase of training a rank is in, and how long it was in each.
struct PhaseClock {
  std::atomic<uint8_t> now;    ///< a Phase; the first member, to which InPhase points
  std::atomic<int64_t> since;  ///< nanoseconds of the steady clock
  std::atomic<int64_t> ended[kPhases];

  /// Returns the phase before.
  uint8_t enter(uint8_t phase);
  /// Up to now. Differences of two of them count.
  PhaseTimes times() const;
};

/// Where a rank is. Written by it, read by the launcher; those of other hosts are as their launchers said last.
struct alignas(64) Place {
  std::atomic<int32_t> pid;        ///< 0: of another host
  std::atomic<int32_t> waits_for;  ///< that rank and one; 0: for none
  std::atomic<int64_t> since;      ///< nanoseconds of the steady clock, while it waits
  std::atomic<uint64_t> calls;     ///< collectives that it began
  std::atomic<uint8_t> kind;       ///< of the last of them
  std::atomic<int64_t> step;       ///< of training
  PhaseClock phase;
  std::atomic<uint8_t> has_left;  ///< it is done, and nobody need wait for it
  std::atomic<uint8_t> process;   ///< of another host: a letter of /proc/PID/stat
  std::atomic<uint8_t> engine;    ///< of tensors of the host, as engine_name() knows it; 0: not yet
  std::atomic<uint16_t> port;     ///< at which it takes streams; 0: not yet
  HostAddress address;            ///< written before the port
  /// Nanoseconds that others have waited for it, as the last to come, by its phase.
  std::atomic<int64_t> kept_waiting[kPhases];
  std::atomic<int64_t> waited;  ///< nanoseconds that it has waited for others
};

/// What ranks of several hosts know from the beginning.
struct Hosts {
  int first = 0, count = 0;  ///< ranks of this host, which are neighbours; count 0: all
  HostAddress hub{};         ///< where the hub is
  Key key{};                 ///< of streams between ranks
};

/// The beginning of the memory that all ranks of a host share.
struct ControlBlock {
  static constexpr uint32_t kMagic = 0x7e55e4a3;
  std::atomic<uint32_t> magic, ranks;
  Hosts hosts;
  std::atomic<uint32_t> aborted;  ///< 1: somebody writes the reason, 2: it is there
  char reason[500];
  std::atomic<uint64_t> used;   ///< bytes of the memory, this block included
  std::atomic<uint64_t> world;  ///< where the engine of all ranks keeps its part
  Place places[kMaxRanks];
};

/// This rank's view of it.
class Control {
 public:
  /// A run of that many ranks in new memory.
  static std::shared_ptr<Control> create(int ranks, const Hosts& hosts = {});
  /// The run whose memory this process inherited as that descriptor. Throws Error if it is none.
  static std::shared_ptr<Control> join(int fd);

  int ranks() const { return static_cast<int>(block().ranks.load()); }
  Place& place(int rank) const { return block().places[rank]; }
  const Hosts& hosts() const { return block().hosts; }
  bool is_local(int rank) const { return rank >= hosts().first && rank < hosts().first + hosts().count; }
  /// Ends the run for everybody: whoever waits throws Aborted. The first reason stands.
  void abort(const std::string& reason);
  /// Empty while the run goes on.
  std::string abort_reason() const;
  void check() const;
  /// Zeroed memory, at the same place of it for all ranks. Throws Error if there is no more.
  uint64_t allocate(uint64_t bytes);
  uint64_t world() const { return block().world.load(); }
  void set_world(uint64_t at) { block().world = at; }
  char* at(uint64_t offset) const { return memory_.data() + offset; }
  const SharedMemory& memory() const { return memory_; }
  /// Waits until a rank's counter has come that far, as `self`. Throws Aborted, also after `timeout` seconds.
  void wait(Counter& counter, uint32_t target, int self, int other);
  /// The same for what is waited for elsewhere, from time to time: `began` in now_ns().
  void look(int64_t began, int self, int other);
  /// Says that `self` waits for `other`, for a scope.
  class Waiting {
   public:
    Waiting(const Control& control, int self, int other, int64_t began);
    ~Waiting();
    Waiting(const Waiting&) = delete;

   private:
    Place& me_;
    int64_t began_;
  };
  /// Of a rank of this host: its last collectives, and where it is if it was asked.
  FlightRecorder& recorder(int rank) const { return of_rank(rank).recorder; }
  StackTrace& stack(int rank) const { return of_rank(rank).stack; }
  /// Notes that others have waited so long for that rank, in that phase.
  void charge(int other, uint8_t phase, int64_t ns);
  /// The same in the phases that it was in since its clock showed `before`.
  void charge(int other, const PhaseTimes& before, int64_t ns);
  bool is_crowded() const { return is_crowded_; }
  double timeout = 1800;

 private:
  Control(SharedMemory memory, int ranks_of_host);
  struct OfRank {
    FlightRecorder recorder;
    StackTrace stack;
  };
  OfRank& of_rank(int rank) const;
  ControlBlock& block() const { return *reinterpret_cast<ControlBlock*>(memory_.data()); }
  SharedMemory memory_;
  bool is_crowded_;  // more ranks of this host than processors
};

int64_t now_ns();

/// What a rank says of the calls of one group: where it is, and what it called last.
class CallLog {
 public:
  /// `group`: a number that the ranks of the group share and no other group of the host has.
  CallLog(Control& control, int self, uint64_t group, int ranks)
      : control_(control), self_(self), group_(group), ranks_(ranks) {}
  struct Begun {
    uint64_t number = 0, in_group = 0;  ///< among the calls of the rank, and of the group; messages have none there
  };
  Begun begin(const Call& call);
  void end(uint64_t number) const { control_.recorder(self_).end(number, now_ns()); }
  /// A call from its beginning to the end of a scope, where nothing was thrown.
  class Scope {
   public:
    Scope(CallLog& log, const Call& call) : log_(log), number_(log.begin(call).number) {}
    ~Scope() {
      if (std::uncaught_exceptions() == thrown_) log_.end(number_);
    }
    Scope(const Scope&) = delete;

   private:
    CallLog& log_;
    uint64_t number_;
    int thrown_ = std::uncaught_exceptions();
  };
  uint64_t group() const { return group_; }
  /// Collectives that were begun; messages do not count.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

 private:
  Control& control_;
  int self_;
  uint64_t group_;
  int ranks_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace tessera::dist
