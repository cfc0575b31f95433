// The engine of ranks that have a GPU each: NCCL or RCCL, on the caller's stream.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/gpu/backend.h"
#include "dist/control.h"
#include "dist/nccl_library.h"

namespace tessera::dist {

/// Memory is the device's; calls return when they are queued, and a captured graph may hold them. A thread of its own
/// watches them: it names whom they wait for, and ends them when the run is ended, which the library alone would not.
class Nccl final : public Engine {
 public:
  /// Called by all ranks of the group together, with devices of one type; `host` carries what they tell each other.
  /// Null on all of them, with the reason of one, where one of them has no library or two share a card.
  static std::unique_ptr<Nccl> create(std::shared_ptr<Control> control, std::vector<int> members, int rank,
                                      Engine& host, Device device, std::string& why_not);
  ~Nccl() override;

  std::string_view name() const override { return device_.type == DeviceType::HIP ? "rccl" : "nccl"; }
  void all_reduce(const Call& call, std::span<const Segment> data) override;
  void reduce_scatter(const Call& call, const char* in, char* out) override;
  void reduce(const Call& call, char* data) override;
  void all_gather(const Call& call, const char* in, char* out) override;
  void gather(const Call& call, const char* in, char* out) override;
  void scatter(const Call& call, const char* in, char* out) override;
  void broadcast(const Call& call, char* data) override;
  void all_to_all(const Call& call, const char* in, char* out) override;
  void barrier() override;
  void send(const char* data, int64_t bytes, int to) override;
  void recv(char* data, int64_t bytes, int from) override;

 private:
  using Library = NcclLibrary;
  /// A call that is queued, and the event behind it.
  struct Queued {
    CallLog::Begun begun;
    Call call;
    int64_t since;  // when it became the first, in nanoseconds
    gpu::EventHandle event = {};
  };
  Nccl(std::shared_ptr<Control> control, std::vector<int> members, int rank, Device device);
  int size() const { return static_cast<int>(members_.size()); }
  int me() const { return members_[static_cast<size_t>(rank_)]; }
  Place& place() const { return control_->place(me()); }
  /// Joins the others; throws Error where the library will not.
  void join(const Library::UniqueId& id);
  /// Waits until the library has taken what it was given.
  void settle(Library::Result result);
  void check(Library::Result result);
  /// fn(stream) queues a call.
  void queue(const Call& call, const std::function<void(Library::Stream)>& fn);
  /// The same of several calls that the library takes as one.
  void queue_group(const Call& call, const std::function<void(Library::Stream)>& fn);
  void name_late(const Queued& queued);
  bool has_come(int r, const Queued& queued) const;
  void watch();
  void look();

  const Library& library_;
  std::shared_ptr<Control> control_;
  std::vector<int> members_;
  int rank_;
  Device device_;
  gpu::DeviceState& on_;
  Library::Comm comm_ = nullptr;
  std::optional<CallLog> log_;
  Queued last_{};  // that was begun

  std::mutex mutex_;  // of what follows, and of comm_
  std::condition_variable ending_;
  bool ends_ = false;
  std::deque<Queued> queued_;
  std::vector<gpu::EventHandle> free_;
  std::thread watcher_;
};

}  // namespace tessera::dist
