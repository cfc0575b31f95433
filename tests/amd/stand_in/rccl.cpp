// A stand-in for librccl.so: the part of it that dist's engine calls, between made-up cards of one process. A
// communicator has a thread of its own, which does what it was given in turn, behind the stream that it was queued on.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "control.h"

namespace {

enum Result { success = 0, invalid_argument = 4, in_progress = 7 };
enum Type { int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16 };
enum Op { sum, product, max, min, mean };
enum class Kind { all_reduce, reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, recv };

struct UniqueId {
  char bytes[128];
};

size_t size_of(Type type) {
  constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

struct BFloat16 {
  uint16_t bits;
  operator float() const {
    const uint32_t wide = uint32_t{bits} << 16;
    float out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
  }
  BFloat16& operator=(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    bits = static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
    return *this;
  }
};

template <class T, class Wide>
void combine_as(const std::vector<const char*>& parts, char* out, size_t count, Op op) {
  for (size_t i = 0; i < count; ++i) {
    const auto of = [&](size_t r) { return static_cast<Wide>(reinterpret_cast<const T*>(parts[r])[i]); };
    Wide all = of(0);
    for (size_t r = 1; r < parts.size(); ++r)
      all = op == max       ? std::max(all, of(r))
            : op == min     ? std::min(all, of(r))
            : op == product ? all * of(r)
                            : all + of(r);
    if (op == mean) all = all / static_cast<Wide>(parts.size());
    T one;
    one = static_cast<Wide>(all);
    reinterpret_cast<T*>(out)[i] = one;
  }
}

void combine(const std::vector<const char*>& parts, char* out, size_t count, Type type, Op op) {
  switch (type) {
    case int8:
      return combine_as<int8_t, int8_t>(parts, out, count, op);
    case uint8:
      return combine_as<uint8_t, uint8_t>(parts, out, count, op);
    case int32:
      return combine_as<int32_t, int32_t>(parts, out, count, op);
    case uint32:
      return combine_as<uint32_t, uint32_t>(parts, out, count, op);
    case int64:
      return combine_as<int64_t, int64_t>(parts, out, count, op);
    case uint64:
      return combine_as<uint64_t, uint64_t>(parts, out, count, op);
    case float16:
      return combine_as<_Float16, float>(parts, out, count, op);
    case float32:
      return combine_as<float, float>(parts, out, count, op);
    case float64:
      return combine_as<double, double>(parts, out, count, op);
    case bfloat16:
      return combine_as<BFloat16, float>(parts, out, count, op);
  }
}

struct Call {
  Kind kind;
  const char* in;
  char* out;
  size_t count;
  Type type = uint8;
  Op op = sum;
  int root = 0;  // or the other rank of a message
  bool is_like(const Call& other) const {
    return std::tie(kind, count, type, op, root) == std::tie(other.kind, other.count, other.type, other.op, other.root);
  }
};

using Bytes = std::vector<char>;

/// What communicators of one id share.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, came = 0;
  struct Posted {
    Call call;
    Bytes in;
  };
  struct Round {
    std::map<int, Posted> posted;
    int left = 0;
  };
  std::map<uint64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<Bytes>> messages;  // from, to
};

struct Aborted {};

struct Batch final : StandInPending {
  std::vector<Call> calls;
  Pendings before;  // of the stream

  bool is_done() override {
    const std::lock_guard lock(mutex);
    return done;
  }
  void wait() override {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  void end() {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  }

 private:
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

class Comm {
 public:
  Comm(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {
    thread_ = std::thread([this] { work(); });
  }
  ~Comm() { thread_.join(); }
  bool is_ready() const { return ready_; }
  void add(std::shared_ptr<Batch> batch) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(batch));
    more_.notify_all();
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    more_.notify_all();
  }
  void abort() {
    aborted_ = true;
    finish();
    const std::lock_guard lock(shared_->mutex);
    shared_->changed.notify_all();
  }

 private:
  /// Waits for what other ranks do.
  template <class Fn>
  void until(std::unique_lock<std::mutex>& lock, const Fn& has_happened) {
    shared_->changed.wait(lock, [&] { return aborted_ || has_happened(); });
    if (aborted_) throw Aborted();
  }

  void work() {
    try {
      std::unique_lock lock(shared_->mutex);
      ++shared_->came;
      shared_->changed.notify_all();
      until(lock, [&] { return shared_->came >= shared_->size; });
    } catch (const Aborted&) {
    }
    ready_ = true;
    for (;;) {
      std::shared_ptr<Batch> batch;
      {
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return ends_ || !queue_.empty(); });
        if (queue_.empty()) return;
        batch = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        for (const auto& pending : batch->before) pending->wait();
        for (const Call& call : batch->calls)
          if (call.kind == Kind::send) send(call);
        for (const Call& call : batch->calls) run(call);
      } catch (const Aborted&) {
      }
      batch->end();
    }
  }

  void send(const Call& call) {
    const std::lock_guard lock(shared_->mutex);
    shared_->messages[{rank_, call.root}].emplace_back(call.in, call.in + call.count * size_of(call.type));
    shared_->changed.notify_all();
  }

  void run(const Call& call) {
    if (call.kind == Kind::send) return;
    std::unique_lock lock(shared_->mutex);
    if (call.kind == Kind::recv) {
      auto& mail = shared_->messages[{call.root, rank_}];
      until(lock, [&] { return !mail.empty(); });
      std::copy(mail.front().begin(), mail.front().end(), call.out);
      mail.pop_front();
      return;
    }
    const uint64_t number = ++calls_;
    Shared::Round& round = shared_->rounds[number];
    const auto ranks = static_cast<size_t>(shared_->size);
    const size_t bytes = call.count * size_of(call.type);
    const bool gives_all = call.kind == Kind::all_to_all || call.kind == Kind::reduce_scatter;
    round.posted[rank_] = {call, Bytes(call.in, call.in + (gives_all ? ranks : 1) * bytes)};
    shared_->changed.notify_all();
    until(lock, [&] {  // ranks that call different things never meet, as in the library
      return round.posted.size() == ranks && std::all_of(round.posted.begin(), round.posted.end(),
                                                         [&](const auto& p) { return p.second.call.is_like(call); });
    });
    give(call, round, bytes);
    if (++round.left == shared_->size) shared_->rounds.erase(number);
  }

  void give(const Call& call, Shared::Round& round, size_t bytes) const {
    const auto me = static_cast<size_t>(rank_);
    const auto from = [&](size_t r) { return round.posted[static_cast<int>(r)].in.data(); };
    const auto ranks = static_cast<size_t>(shared_->size);
    const bool is_root = rank_ == call.root;
    std::vector<const char*> parts;
    switch (call.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
      case Kind::reduce_scatter:
        for (size_t r = 0; r < ranks; ++r)
          parts.push_back(from(r) + (call.kind == Kind::reduce_scatter ? me * bytes : 0));
        if (call.kind != Kind::reduce || is_root) combine(parts, call.out, call.count, call.type, call.op);
        return;
      case Kind::broadcast:
        std::memcpy(call.out, from(static_cast<size_t>(call.root)), bytes);
        return;
      default:
        for (size_t r = 0; r < ranks; ++r)
          std::memcpy(call.out + r * bytes, from(r) + (call.kind == Kind::all_to_all ? me * bytes : 0), bytes);
    }
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
  uint64_t calls_ = 0;
  std::atomic<bool> ready_{false}, aborted_{false};
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::shared_ptr<Batch>> queue_;
  bool ends_ = false;
  std::thread thread_;
};

struct Grouped {
  Comm* comm;
  void* stream;
  Call call;
};
thread_local int group_depth = 0;
thread_local std::vector<Grouped> grouped;

void queue_calls(Comm* comm, void* stream, const std::vector<Call>& calls) {
  static auto* const queue_behind = reinterpret_cast<StandInQueue*>(dlsym(RTLD_DEFAULT, "stand_in_queue"));
  queue_behind(stream, [comm, calls](const Pendings& before) {
    auto batch = std::make_shared<Batch>();
    batch->calls = calls;
    batch->before = before;
    comm->add(batch);
    return std::shared_ptr<StandInPending>(batch);
  });
}

Result add(void* comm, void* stream, const Call& call) {
  if (!comm || !static_cast<Comm*>(comm)->is_ready()) return invalid_argument;
  grouped.push_back({static_cast<Comm*>(comm), stream, call});
  if (group_depth > 0) return success;
  const Grouped only = grouped.back();
  grouped.clear();
  queue_calls(only.comm, only.stream, {only.call});
  return success;
}

const char* bytes(const void* data) { return static_cast<const char*>(data); }
char* bytes(void* data) { return static_cast<char*>(data); }

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = 21700;
  return success;
}
Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<uint64_t> last{0};
  *id = {};
  const uint64_t number = ++last;
  std::memcpy(id->bytes, &number, sizeof number);
  return success;
}
Result ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, void*) {
  static std::mutex mutex;
  static auto* const all = new std::map<uint64_t, std::weak_ptr<Shared>>;
  uint64_t number;
  std::memcpy(&number, id.bytes, sizeof number);
  const std::lock_guard lock(mutex);
  std::shared_ptr<Shared> shared = (*all)[number].lock();
  if (!shared) (*all)[number] = shared = std::make_shared<Shared>();
  shared->size = size;
  *comm = new Comm(shared, rank);
  return in_progress;
}
Result ncclCommGetAsyncError(void* comm, Result* result) {
  *result = static_cast<Comm*>(comm)->is_ready() ? success : in_progress;
  return success;
}
Result ncclCommFinalize(void* comm) {
  static_cast<Comm*>(comm)->finish();
  return success;
}
Result ncclCommDestroy(void* comm) {
  delete static_cast<Comm*>(comm);
  return success;
}
Result ncclCommAbort(void* comm) {
  static_cast<Comm*>(comm)->abort();
  delete static_cast<Comm*>(comm);
  return success;
}
Result ncclAllReduce(const void* in, void* out, size_t count, Type type, Op op, void* comm, void* stream) {
  return add(comm, stream, {Kind::all_reduce, bytes(in), bytes(out), count, type, op});
}
Result ncclReduce(const void* in, void* out, size_t count, Type type, Op op, int root, void* comm, void* stream) {
  return add(comm, stream, {Kind::reduce, bytes(in), bytes(out), count, type, op, root});
}
Result ncclReduceScatter(const void* in, void* out, size_t count, Type type, Op op, void* comm, void* stream) {
  return add(comm, stream, {Kind::reduce_scatter, bytes(in), bytes(out), count, type, op});
}
Result ncclAllGather(const void* in, void* out, size_t count, Type type, void* comm, void* stream) {
  return add(comm, stream, {Kind::all_gather, bytes(in), bytes(out), count, type});
}
Result ncclBroadcast(const void* in, void* out, size_t count, Type type, int root, void* comm, void* stream) {
  return add(comm, stream, {Kind::broadcast, bytes(in), bytes(out), count, type, sum, root});
}
Result ncclAllToAll(const void* in, void* out, size_t count, Type type, void* comm, void* stream) {
  return add(comm, stream, {Kind::all_to_all, bytes(in), bytes(out), count, type});
}
Result ncclSend(const void* in, size_t count, Type type, int to, void* comm, void* stream) {
  return add(comm, stream, {Kind::send, bytes(in), nullptr, count, type, sum, to});
}
Result ncclRecv(void* out, size_t count, Type type, int from, void* comm, void* stream) {
  return add(comm, stream, {Kind::recv, nullptr, bytes(out), count, type, sum, from});
}
Result ncclGroupStart() {
  ++group_depth;
  return success;
}
Result ncclGroupEnd() {
  if (--group_depth > 0 || grouped.empty()) return success;
  std::vector<Call> calls;
  for (const Grouped& g : grouped) calls.push_back(g.call);
  const Grouped first = grouped.front();  // dist groups calls of one communicator and stream
  grouped.clear();
  queue_calls(first.comm, first.stream, calls);
  return success;
}
const char* ncclGetErrorString(Result result) { return result == success ? "no error" : "invalid argument"; }
const char* ncclGetLastError(void*) { return ""; }

}  // extern "C"
