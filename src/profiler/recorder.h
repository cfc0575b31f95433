// Sees what a program does, and keeps it in a bounded room until somebody asks.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>

#include "profiler/counters.h"
#include "profiler/device_events.h"
#include "profiler/trace.h"
#include "tessera/observer.h"
#include "tessera/profiler.h"

namespace tessera::profiler {

/// The clock of traces: nanoseconds since 1970.
int64_t now();

/// A replay of a captured graph, and what is in it.
struct Replay {
  int32_t span = -1;  // the Op that stands for it
  size_t graph = 0;   // in Recorded::graphs
};

/// What a recorder hands over.
struct Recorded {
  Trace trace;
  std::vector<Replay> replays;
  std::vector<std::vector<int32_t>> graphs;  // in Trace::calls, one for each step of the graph; -1: not known
  std::vector<DeviceEvents::Piece> pieces;   // of devices whose library tells nothing
};

class Recorder : public Observer {
 public:
  explicit Recorder(const Options& options);

  /// Forgets what was seen, and begins. Calls that are open go on.
  void begin();
  /// Ends. Spans that are still open end now; a step that is open is none.
  Recorded end();
  /// What end() would give, without the times of events, while it goes on. For functions of an observer.
  Recorded copy() const;
  void begin_step(const std::string& name);
  /// The step that began last is over; where none did, nothing.
  void end_step();

  void begin_range(std::string_view name);
  void end_range();

  void called(const CallSeen& call) override;
  void returned(const CallSeen& call) override;
  void launched(const LaunchSeen& launch) override;
  void allocated(const MemorySeen& memory) override;
  void released(const MemorySeen& memory) override;
  std::string ran_out(Device device, size_t bytes) override;
  void entered(const std::string& path) override;
  void left(const std::string& path) override;

  /// Is told of a recording's first launch on each kind of card; true: launches there are to be timed by events.
  std::function<bool(Device)> on_card;
  /// Is told of memory that ran out, and says what was written about it.
  std::function<std::string(const std::string& what)> on_ran_out;

 private:
  // What a thread is in.
  struct Open {
    int32_t span = -1;  // -1: there was no room for it
    bool launched = false, fresh = false;
    int32_t event = -1;
  };
  struct Thread {
    int64_t id = 0;
    std::vector<Open> calls, ranges, modules;
    std::vector<int32_t> paths;  // in paths_
  };

  Thread& thread();
  int32_t name_of(std::string_view text);
  int32_t path_of(const std::string& path);
  int32_t call_of(const CallSeen& call, Thread& on, bool& fresh);
  size_t graph_of(const LaunchSeen& launch);
  int32_t captured_call(const CapturedCall& call);
  int32_t add_call(Call known);
  bool has_room() const { return kept_ + sizeof(Span) <= room_; }
  Open open(Kind kind, std::string_view name, int32_t detail, Thread& on);
  void close(std::vector<Open>& list);
  void complete(Call& known, const CallSeen& call);
  void change(const MemorySeen& memory, int64_t bytes);
  bool times(Device device);

  const Options& options_;
  std::mutex mutex_;                  // ranges come without that of the observers
  std::map<DeviceType, bool> cards_;  // seen, and whether their launches are timed by events
  size_t room_, kept_ = 0;            // bytes, of spans and of what they are called
  size_t most_changes_;
  Trace trace_;
  std::vector<Replay> replays_;
  std::vector<std::vector<int32_t>> graphs_;
  DeviceEvents device_events_;
  std::unordered_map<std::string, int32_t> names_, paths_;
  std::vector<std::string> path_texts_;
  std::unordered_map<uint64_t, int32_t> calls_;
  std::unordered_map<uint64_t, size_t> graph_numbers_;
  std::map<int64_t, Thread> threads_;
  Open step_;
  Counters counters_;
  StepCounters counted_;  // where the step began
};

}  // namespace tessera::profiler
