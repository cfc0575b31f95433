// A small pool of our own: workers spin briefly before they sleep, because a training step of a small model launches
// hundreds of parallel regions of a few microseconds each.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/util/plans_epoch.h"
#include "core/util/processors.h"
#include "tessera/error.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 10000;  // some 130 us: a small model's steps are 70 us apart, and waking a thread takes as long
constexpr long long kPage = 4096, kLargePage = 2 << 20;
constexpr long long kPacked = 64 << 10;  // from which scratch, packed matrices mostly, lies in huge pages

struct alignas(64) Scratch {
  void* data = nullptr;
  long long bytes = 0;
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { std::free(data); }
  void* reserve(long long wanted) {
    if (bytes >= wanted) return data;
    std::free(data);
    bytes = 0;
    const long long page = wanted >= kPacked ? kLargePage : kPage, size = (wanted + page - 1) / page * page;
    data = std::aligned_alloc(page, size);
    if (!data) throw OutOfMemoryError("out of memory: " + std::to_string(wanted) + " bytes of kernel scratch");
    if (page == kLargePage) madvise(data, size, MADV_HUGEPAGE);
    bytes = size;
    return data;
  }
};

// What a thread is doing: outside of any region, in a region it runs alone, or in one shared by the pool.
enum class Region { None, Alone, Shared };
struct ThreadState {
  Region region = Region::None;
  int thread = 0;
  Scratch outside, alone;
};
thread_local ThreadState state;

// What TESSERA_THREADS says, or all processors.
int default_threads() {
  const char* const text = std::getenv("TESSERA_THREADS");
  if (!text || !*text) return available_processors();
  char* end = nullptr;
  const long n = std::strtol(text, &end, 10);
  if (*end || n < 1 || n > kMaxThreads)
    throw Error(std::string("TESSERA_THREADS=") + text + " is not a number from 1 to 1024");
  return static_cast<int>(n);
}

// Indices that a thread takes before it helps the others. A region deals out contiguous shares, so that a thread meets
// the rows again that it wrote in the region before, and that are in its cache.
struct alignas(64) Share {
  std::atomic<long long> next{0};
  long long end = 0;
};

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : scratch_(threads), shares_(threads) {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  }
  ~ThreadPool() {
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (auto& w : workers_) w.join();
  }

  int threads() const override { return static_cast<int>(scratch_.size()); }

  void* scratch(int thread, long long bytes) override {
    if (state.region == Region::Shared) return scratch_[thread].reserve(bytes);
    return (state.region == Region::Alone ? state.alone : state.outside).reserve(bytes);
  }

 protected:
  void run(long long count, void (*fn)(void*, long long, int), void* arg) override {
    if (count <= 0) return;
    // Serial where there is nothing to share, inside a parallel region, or while another host thread has the pool.
    if (count == 1 || workers_.empty() || state.region != Region::None) return run_serially(count, fn, arg);
    std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock) return run_serially(count, fn, arg);
    fn_ = fn;
    arg_ = arg;
    const auto parts = static_cast<long long>(shares_.size());
    for (long long t = 0; t < parts; ++t) {
      shares_[t].next.store(count / parts * t + std::min(t, count % parts), std::memory_order_relaxed);
      shares_[t].end = count / parts * (t + 1) + std::min(t + 1, count % parts);
    }
    gate_.fetch_add(kPhase, std::memory_order_acq_rel);
    generation_.fetch_add(1);  // ordered before the look at sleepers_, or a worker could sleep through it
    if (sleepers_.load() > 0) generation_.notify_all();
    drain(0);
    gate_.fetch_add(kPhase, std::memory_order_acq_rel);
    // A worker that the system has put aside needs this processor more than the wait does.
    for (int spins = 0; gate_.load(std::memory_order_acquire) % kPhase != 0; ++spins)
      spins < kSpins ? relax() : std::this_thread::yield();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static void run_serially(long long count, void (*fn)(void*, long long, int), void* arg) {
    struct Restore {  // a nested region keeps its thread's number and scratch
      Region saved = state.region;
      Restore() {
        if (saved == Region::None) state.region = Region::Alone;
      }
      ~Restore() { state.region = saved; }
    } restore;
    int thread = state.region == Region::Shared ? state.thread : 0;
    for (long long i = 0; i < count; ++i) fn(arg, i, thread);
  }

  void drain(int thread) {
    state.region = Region::Shared;
    state.thread = thread;
    try {
      for (size_t k = 0; k < shares_.size(); ++k) {
        Share& share = shares_[(thread + k) % shares_.size()];
        for (long long i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) fn_(arg_, i, thread);
      }
    } catch (...) {
      for (Share& share : shares_) share.next.store(share.end, std::memory_order_relaxed);
      std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
    state.region = Region::None;
  }

  void work(int thread) {
    for (unsigned seen = 0;;) {
      unsigned now = wait_for_change(seen);
      if (stop_.load(std::memory_order_relaxed)) return;
      seen = now;
      if (!enter(now)) continue;
      drain(thread);
      gate_.fetch_sub(1, std::memory_order_release);
    }
  }

  // Whether the region of that generation is still open. A worker that comes late has nothing to do there, and nobody
  // waits for it: on a busy machine the caller has taken its share.
  bool enter(unsigned generation) {
    const auto is_open = [&](uint64_t gate) { return gate / kPhase == uint64_t{generation} * 2; };
    if (!is_open(gate_.load(std::memory_order_relaxed))) return false;
    if (is_open(gate_.fetch_add(1, std::memory_order_acq_rel))) return true;
    gate_.fetch_sub(1, std::memory_order_release);
    return false;
  }

  unsigned wait_for_change(unsigned seen) {
    unsigned now;
    for (int i = 0; i < kSpins; ++i) {
      if ((now = generation_.load(std::memory_order_acquire)) != seen) return now;
      relax();
    }
    sleepers_.fetch_add(1);
    while ((now = generation_.load()) == seen) generation_.wait(seen);
    sleepers_.fetch_sub(1);
    return now;
  }

  std::vector<std::thread> workers_;
  std::vector<Scratch> scratch_;
  std::vector<Share> shares_;
  std::mutex busy_, error_mutex_;
  std::exception_ptr error_;
  void (*fn_)(void*, long long, int) = nullptr;
  void* arg_ = nullptr;
  // Workers that are within a region, and above them its phase: twice the generation while it is open, one more behind.
  static constexpr uint64_t kPhase = uint64_t{1} << 31;
  alignas(64) std::atomic<uint64_t> gate_{kPhase};
  alignas(64) std::atomic<unsigned> generation_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

std::mutex pool_mutex;
std::atomic<ThreadPool*> pool{nullptr};
int wanted_threads = 0;

// The threads of a forked process are gone: its first use makes a new pool, and the old one is left as it was.
void install_fork_handler() {
  static bool once = (pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                                     [] {
                                       state.region = Region::None;
                                       pool.store(nullptr);
                                       pool_mutex.unlock();
                                     }),
                      true);
  (void)once;
}

}  // namespace

int available_processors() {
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota, period;
  if (file >> quota >> period && period > 0) n = std::min(n, static_cast<int>(std::ceil(quota / period)));
  return std::clamp(n, 1, kMaxThreads);
}

Executor& executor() {
  if (ThreadPool* p = pool.load(std::memory_order_acquire)) return *p;
  std::lock_guard lock(pool_mutex);
  install_fork_handler();
  if (!pool.load()) {
    if (!wanted_threads) wanted_threads = default_threads();
    pool.store(new ThreadPool(wanted_threads), std::memory_order_release);
  }
  return *pool.load();
}

void set_num_threads(int n) {
  if (n < 1 || n > kMaxThreads) throw Error("threads: " + std::to_string(n) + " is not between 1 and 1024");
  if (state.region != Region::None) throw Error("the number of threads cannot change inside a parallel region");
  std::lock_guard lock(pool_mutex);
  wanted_threads = n;
  delete pool.exchange(nullptr);
  forget_plans();
}

int num_threads() { return executor().threads(); }

}  // namespace tessera
