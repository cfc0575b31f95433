#include "dist/nccl.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string_view>

namespace tessera::dist {
namespace {

using Library = NcclLibrary;
using namespace std::chrono_literals;

constexpr int64_t kSecond = 1'000'000'000, kSpin = 200'000;  // nanoseconds
constexpr size_t kMostWatched = 16;                          // calls with an event at a time

/// Bytes where elements are only moved.
Library::Type type_of(DType dtype) {
  switch (dtype) {
    case Int8:
      return Library::int8;
    case Int32:
      return Library::int32;
    case Int64:
      return Library::int64;
    case Float16:
      return Library::float16;
    case BFloat16:
      return Library::bfloat16;
    case Float32:
      return Library::float32;
    case Float64:
      return Library::float64;
    default:
      return Library::uint8;  // bools, too: the larger is any, the smaller all
  }
}

Library::Op op_of(ReduceOp op) {
  constexpr Library::Op ops[] = {Library::sum, Library::mean, Library::product, Library::max, Library::min};
  return ops[static_cast<int>(op)];
}

size_t bytes_of(const Call& call) { return static_cast<size_t>(call.count) * size_of(call.dtype); }

/// The same for ranks of one card alone.
int64_t card_of(Device device) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const char* visible = std::getenv(device.type == DeviceType::HIP ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
  const std::string text = fmt::format("{}/{}/{}", host, visible ? visible : "", static_cast<int>(device.index));
  return static_cast<int64_t>(std::hash<std::string>()(text) >> 2) << 1;
}

/// One rank's text for all.
std::string told(Engine& host, std::string text, int root) {
  text.resize(256);
  const Call call{.kind = Call::Kind::Broadcast, .dtype = UInt8, .root = root, .count = 256, .dims = 1, .shape = {256}};
  host.broadcast(call, text.data());
  return text.c_str();
}

}  // namespace

std::unique_ptr<Nccl> Nccl::create(std::shared_ptr<Control> control, std::vector<int> members, int rank, Engine& host,
                                   Device device, std::string& why_not) {
  const int size = static_cast<int>(members.size());
  // Whether each rank can, by turns the first that cannot says why.
  const auto all_can = [&](const std::string& problem) {
    const std::vector<int64_t> fails = numbers_of_ranks(host, size, !problem.empty());
    const auto first = std::find(fails.begin(), fails.end(), 1);
    if (first == fails.end()) return true;
    const int root = static_cast<int>(first - fails.begin());
    why_not = fmt::format("rank {}: {}", members[static_cast<size_t>(root)], told(host, problem, root));
    return false;
  };
  const auto failure_of = [](const auto& fn) {
    try {
      fn();
      return std::string();
    } catch (const Aborted&) {
      throw;
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };

  std::unique_ptr<Nccl> engine;
  if (!all_can(failure_of([&] { engine.reset(new Nccl(std::move(control), members, rank, device)); }))) return {};
  const std::vector<int64_t> cards = numbers_of_ranks(host, size, card_of(device));
  for (int r = 0; r < size; ++r)
    if (const auto other = std::find(cards.begin() + r + 1, cards.end(), cards[static_cast<size_t>(r)]);
        other != cards.end()) {
      why_not = fmt::format("ranks {} and {} share a card", members[static_cast<size_t>(r)],
                            members[static_cast<size_t>(other - cards.begin())]);
      return {};
    }
  Library::UniqueId id{};
  const std::string refused = failure_of([&] {
    if (rank == 0) engine->check(engine->library_.get_unique_id(&id));
  });
  if (!all_can(refused)) return {};
  const Call call{.kind = Call::Kind::Broadcast, .dtype = UInt8, .count = sizeof(id), .dims = 1, .shape = {sizeof(id)}};
  host.broadcast(call, id.bytes);
  if (!all_can(failure_of([&] { engine->join(id); }))) return {};
  engine->watcher_ = std::thread([e = engine.get()] { e->watch(); });
  return engine;
}

Nccl::Nccl(std::shared_ptr<Control> control, std::vector<int> members, int rank, Device device)
    : library_(nccl_library(device.type)),
      control_(std::move(control)),
      members_(std::move(members)),
      rank_(rank),
      device_(device),
      on_(gpu::state(device)) {}

Nccl::~Nccl() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (comm_) {
    // Others may have died, so that this does not wait long for them.
    Library::Result result = library_.finalize(comm_);
    for (int i = 0; i < 2000 && result == Library::in_progress; ++i) {
      std::this_thread::sleep_for(1ms);
      library_.async_error(comm_, &result);
    }
    result == Library::success ? library_.destroy(comm_) : library_.abort(comm_);
  }
  for (const Queued& q : queued_) on_.runtime.destroy_event(q.event);
  for (const gpu::EventHandle event : free_) on_.runtime.destroy_event(event);
}

void Nccl::check(Library::Result result) {
  if (result == Library::success || result == Library::in_progress) return;
  const char* const more = comm_ ? library_.last_error(comm_) : nullptr;
  throw Error(fmt::format("{}: {}{}{}", name(), library_.error_string(result), more && *more ? ": " : "",
                          more && *more ? more : ""));
}

void Nccl::settle(Library::Result result) {
  check(result);
  const int64_t began = now_ns();
  last_.since = began;
  for (result = Library::in_progress; result == Library::in_progress;) {
    check(library_.async_error(comm_, &result));
    if (result != Library::in_progress) break;
    control_->check();
    name_late(last_);
    if (now_ns() - began > kSpin) std::this_thread::sleep_for(50us);
  }
  place().waits_for.store(0, std::memory_order_relaxed);
  check(result);
}

// Whether that rank of this host has called the same. Throws Error where it called something else.
bool Nccl::has_come(int r, const Queued& queued) const {
  const Place& other = control_->place(r);
  if (!control_->is_local(r)) return other.calls.load(std::memory_order_relaxed) >= queued.begun.number;
  if (queued.begun.in_group == 0) return true;  // a message, which that rank need not know yet
  const std::optional<CallRecord> theirs = control_->recorder(r).find(log_->group(), queued.begun.in_group);
  if (theirs && !(theirs->call == queued.call))
    throw Error(fmt::format("collective {} differs: {} on rank {}, {} on rank {}", queued.begun.in_group,
                            to_string(queued.call), me(), to_string(theirs->call), r));
  return theirs.has_value();
}

// Whose turn it is, once a call has waited a second.
void Nccl::name_late(const Queued& queued) {
  const int64_t waited = now_ns() - queued.since;
  if (waited < kSecond) return;
  const double seconds = static_cast<double>(waited) * 1e-9;
  for (const int r : members_) {
    if (r == me() || has_come(r, queued)) continue;
    place().since.store(queued.since, std::memory_order_relaxed);
    place().waits_for.store(r + 1, std::memory_order_relaxed);
    if (control_->place(r).has_left) throw Error(fmt::format("rank {} has ended, and rank {} waits for it", r, me()));
    if (seconds > control_->timeout) throw Error(fmt::format("it has waited {:g} s for rank {}", control_->timeout, r));
    return;
  }
  if (seconds > control_->timeout) throw Error(fmt::format("{}: a call took {:g} s", name(), control_->timeout));
}

void Nccl::join(const Library::UniqueId& id) {
  gpu::enter(on_);
  const auto group = static_cast<uint64_t>(std::hash<std::string_view>()({id.bytes, sizeof id.bytes}));
  log_.emplace(*control_, me(), group, size());
  Library::Config config;
  settle(library_.init(&comm_, size(), id, rank_, &config));
}

void Nccl::queue(const Call& call, const std::function<void(Library::Stream)>& fn) {
  control_->check();
  last_ = {log_->begin(call), call, 0};
  gpu::enter(on_);
  const gpu::StreamHandle stream = gpu::stream_of(on_).handle;
  const std::lock_guard lock(mutex_);
  if (!comm_) throw Error(fmt::format("{}: its calls were ended", name()));
  fn(stream);
  if (gpu::capture_on(on_) || queued_.size() >= kMostWatched) return;
  if (free_.empty()) free_.push_back(on_.runtime.create_event(false));
  on_.runtime.record(free_.back(), stream);
  queued_.push_back({last_.begun, call, now_ns(), free_.back()});
  free_.pop_back();
}

void Nccl::queue_group(const Call& call, const std::function<void(Library::Stream)>& fn) {
  queue(call, [&](Library::Stream stream) {
    check(library_.group_start());
    fn(stream);
    settle(library_.group_end());
  });
}

void Nccl::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    ending_.wait_for(lock, 20ms);
    if (ends_ || !comm_) continue;
    try {
      look();
    } catch (const Error& error) {
      control_->abort(fmt::format("rank {}: {}", me(), error.what()));
    }
    if (control_->abort_reason().empty()) continue;
    library_.abort(comm_);  // kernels that wait for others end
    comm_ = nullptr;
  }
}

// Whether calls go on.
void Nccl::look() {
  Library::Result result = Library::success;
  check(library_.async_error(comm_, &result));
  check(result);
  gpu::enter(on_);
  while (!queued_.empty() && on_.runtime.has_happened(queued_.front().event)) {
    log_->end(queued_.front().begun.number);
    free_.push_back(queued_.front().event);
    queued_.pop_front();
    if (!queued_.empty()) queued_.front().since = now_ns();
    place().waits_for.store(0, std::memory_order_relaxed);
  }
  if (!queued_.empty()) name_late(queued_.front());
}

void Nccl::all_reduce(const Call& call, std::span<const Segment> data) {
  queue_group(call, [&](Library::Stream stream) {
    for (const Segment& s : data)
      check(library_.all_reduce(s.data, s.data, static_cast<size_t>(s.count), type_of(call.dtype), op_of(call.op),
                                comm_, stream));
  });
}

void Nccl::reduce_scatter(const Call& call, const char* in, char* out) {
  queue(call, [&](Library::Stream stream) {
    settle(library_.reduce_scatter(in, out, static_cast<size_t>(call.count), type_of(call.dtype), op_of(call.op), comm_,
                                   stream));
  });
}

void Nccl::reduce(const Call& call, char* data) {
  queue(call, [&](Library::Stream stream) {
    settle(library_.reduce(data, data, static_cast<size_t>(call.count), type_of(call.dtype), op_of(call.op), call.root,
                           comm_, stream));
  });
}

void Nccl::all_gather(const Call& call, const char* in, char* out) {
  queue(call, [&](Library::Stream stream) {
    settle(library_.all_gather(in, out, bytes_of(call), Library::uint8, comm_, stream));
  });
}

void Nccl::gather(const Call& call, const char* in, char* out) {
  const size_t bytes = bytes_of(call);
  queue_group(call, [&](Library::Stream stream) {
    check(library_.send(in, bytes, Library::uint8, call.root, comm_, stream));
    for (int r = 0; r < size() && call.root == rank_; ++r)
      check(library_.recv(out + static_cast<size_t>(r) * bytes, bytes, Library::uint8, r, comm_, stream));
  });
}

void Nccl::scatter(const Call& call, const char* in, char* out) {
  const size_t bytes = bytes_of(call);
  queue_group(call, [&](Library::Stream stream) {
    for (int r = 0; r < size() && call.root == rank_; ++r)
      check(library_.send(in + static_cast<size_t>(r) * bytes, bytes, Library::uint8, r, comm_, stream));
    check(library_.recv(out, bytes, Library::uint8, call.root, comm_, stream));
  });
}

void Nccl::broadcast(const Call& call, char* data) {
  queue(call, [&](Library::Stream stream) {
    settle(library_.broadcast(data, data, bytes_of(call), Library::uint8, call.root, comm_, stream));
  });
}

void Nccl::all_to_all(const Call& call, const char* in, char* out) {
  const size_t bytes = bytes_of(call);
  if (library_.all_to_all)
    return queue(call, [&](Library::Stream stream) {
      settle(library_.all_to_all(in, out, bytes, Library::uint8, comm_, stream));
    });
  queue_group(call, [&](Library::Stream stream) {
    for (int r = 0; r < size(); ++r) {
      const size_t at = static_cast<size_t>(r) * bytes;
      check(library_.send(in + at, bytes, Library::uint8, r, comm_, stream));
      check(library_.recv(out + at, bytes, Library::uint8, r, comm_, stream));
    }
  });
}

void Nccl::barrier() { throw Error("nccl: a barrier is of the host"); }

void Nccl::send(const char* data, int64_t bytes, int to) {
  queue(message(Call::Kind::Send, bytes, to), [&](Library::Stream stream) {
    settle(library_.send(data, static_cast<size_t>(bytes), Library::uint8, to, comm_, stream));
  });
}

void Nccl::recv(char* data, int64_t bytes, int from) {
  queue(message(Call::Kind::Recv, bytes, from), [&](Library::Stream stream) {
    settle(library_.recv(data, static_cast<size_t>(bytes), Library::uint8, from, comm_, stream));
  });
}

}  // namespace tessera::dist
