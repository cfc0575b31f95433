// Memory of tensors: the GPUs' from their allocators (core/gpu); the CPU's from a caching allocator, where blocks come
// back to lists by size, so that a training step touches no fresh pages.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <pthread.h>

#include "core/capture_state.h"
#include "core/gpu/backend.h"
#include "core/util/allocation_limit.h"
#include "core/util/bytes.h"
#include "core/util/debug.h"
#include "core/util/memory_limit.h"
#include "core/util/observers.h"
#include "tessera/tensor.h"

#if defined(__SANITIZE_ADDRESS__)
#define TESSERA_CACHE_BLOCKS 0  // reuse would hide use-after-free from the sanitizer
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)  // as clang says the same
#define TESSERA_CACHE_BLOCKS 0
#endif
#endif
#ifndef TESSERA_CACHE_BLOCKS
#define TESSERA_CACHE_BLOCKS 1
#endif

namespace tessera {
namespace {

constexpr size_t kAlignment = 64, kHugePage = size_t(2) << 20;

// Size classes: eight per power of two, so that rounding wastes at most an eighth.
struct SizeClass {
  int index;
  size_t bytes;
};
SizeClass size_class(size_t bytes) {
  bytes = std::max<size_t>(bytes, kAlignment);
  int log = std::bit_width(bytes - 1);  // bytes <= 2^log
  size_t step = std::max<size_t>(size_t(1) << log >> 4, kAlignment);
  size_t rounded = (bytes + step - 1) / step * step;
  int eighth = static_cast<int>((rounded - (size_t(1) << log >> 1)) / step);
  return {log * 9 + eighth, rounded};
}

// What the machine could still give: free memory, within the container's limit.
size_t available_memory() {
  size_t available = SIZE_MAX;
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key && std::getline(info, rest);)
    if (key == "MemAvailable:") available = std::strtoull(rest.c_str(), nullptr, 10) << 10;
  std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  size_t most, now;
  if (limit >> most && used >> now) available = std::min(available, most > now ? most - now : 0);
  return available;
}

class CachingAllocator {
 public:
  static CachingAllocator& get() {
    static auto* allocator = new CachingAllocator;  // never destroyed: tensors may outlive static destructors
    return *allocator;
  }

  void* allocate(size_t bytes) {
    if (bytes > size_t(1) << 62)
      throw OutOfMemoryError(fmt::format("out of memory: {} asked for", describe_bytes(bytes)));
    SizeClass c = size_class(bytes);
    std::lock_guard lock(mutex_);
    limit_.check(bytes, stats_.allocated, "cpu");
    auto& free = free_[c.index];
    void* p = nullptr;
    if (!free.empty()) {
      p = free.back();
      free.pop_back();
    } else {
      p = fresh(bytes, c.bytes);
      stats_.reserved += c.bytes;
      stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
    }
    stats_.allocated += bytes;
    stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
    if (poison) std::memset(p, 0xff, bytes);
    return p;
  }

  void release(void* p, size_t bytes) noexcept {
    SizeClass c = size_class(bytes);
    std::lock_guard lock(mutex_);
    stats_.allocated -= bytes;
    if (TESSERA_CACHE_BLOCKS) {
      free_[c.index].push_back(p);
    } else {
      std::free(p);
      stats_.reserved -= c.bytes;
    }
  }

  std::atomic<bool> poison{false};

  void empty_cache() {
    std::lock_guard lock(mutex_);
    trim();
  }
  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void set_limit(int64_t bytes) {
    std::lock_guard lock(mutex_);
    limit_.set(bytes);
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak_allocated = stats_.allocated;
    stats_.peak_reserved = stats_.reserved;
  }

 private:
  CachingAllocator() {
    // A child of fork must find the lock free and the lists whole.
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); }, [] { get().mutex_.unlock(); });
  }

  void* fresh(size_t bytes, size_t rounded) {
    // Linux grants more than it has and kills later: ask before large requests.
    constexpr size_t kLarge = size_t(256) << 20;
    if (rounded >= kLarge && rounded > available_memory()) trim();
    void* p = TESSERA_CACHE_BLOCKS && rounded < kHugePage ? cut(rounded) : nullptr;
    size_t available = rounded >= kLarge ? available_memory() : SIZE_MAX;
    if (!p && rounded <= available) {
      p = std::aligned_alloc(rounded >= kHugePage ? kHugePage : kAlignment,
                             rounded >= kHugePage ? (rounded + kHugePage - 1) / kHugePage * kHugePage : rounded);
      if (!p) {
        trim();
        p = std::aligned_alloc(kAlignment, rounded);
      }
    }
    if (!p)
      throw OutOfMemoryError(fmt::format("out of memory on cpu: {} asked for, {} held by tensors, {} available",
                                         describe_bytes(bytes), describe_bytes(static_cast<size_t>(stats_.allocated)),
                                         describe_bytes(available == SIZE_MAX ? available_memory() : available)));
    if (rounded >= kHugePage) madvise(p, rounded, MADV_HUGEPAGE);
    return p;
  }
  // Small blocks lie side by side in huge pages, because a step meets more ordinary ones than the processor remembers.
  // They never go back to the system.
  void* cut(size_t rounded) {
    constexpr size_t kSlab = size_t(32) << 20;  // what it does not use of them is not there
    if (slab_left_ < rounded) {
      void* slab = std::aligned_alloc(kHugePage, kSlab);
      if (!slab) return nullptr;
      madvise(slab, kSlab, MADV_HUGEPAGE);
      slab_ = static_cast<char*>(slab);
      slab_left_ = kSlab;
    }
    slab_left_ -= rounded;
    return std::exchange(slab_, slab_ + rounded);
  }
  void trim() {
    for (size_t i = 0; i < free_.size(); ++i) {
      if (TESSERA_CACHE_BLOCKS && bytes_of(i) < kHugePage) continue;
      for (void* p : free_[i]) std::free(p);
      stats_.reserved -= static_cast<int64_t>(free_[i].size() * bytes_of(i));
      free_[i].clear();
    }
  }
  static size_t bytes_of(size_t index) {
    size_t log = index / 9, step = std::max<size_t>(size_t(1) << log >> 4, kAlignment);
    return (size_t(1) << log >> 1) + index % 9 * step;
  }

  std::mutex mutex_;
  std::array<std::vector<void*>, 64 * 9> free_;
  MemoryStats stats_;
  MemoryLimit limit_;
  char* slab_ = nullptr;
  size_t slab_left_ = 0;
};

Ref<Storage> allocate_on_gpu(size_t bytes, Device device) {
  gpu::DeviceState& state = gpu::state(device);
  gpu::enter(state);
  const gpu::StreamHandle stream = gpu::stream_of(state).handle;
  auto storage = make_ref<Storage>();
  gpu::Block* block = state.allocator.allocate(bytes, stream, gpu::graph_being_captured(device));
  storage->data = gpu::Allocator::data(block);
  storage->bytes = bytes;
  storage->device = device;
  storage->owner = block;
  storage->release = [](Storage& s) {
    gpu::DeviceState& state = gpu::state(s.device);
    try {
      gpu::enter(state);
    } catch (const Error&) {  // a lost device; its memory is lost with it
    }
    state.allocator.release(static_cast<gpu::Block*>(s.owner));
    if (observers::exist()) observers::released({s.device, s.bytes, s.data});
  };
  if (CachingAllocator::get().poison) state.runtime.fill(storage->data, 0xff, bytes, stream);
  if (observers::exist()) observers::allocated({device, bytes, storage->data});
  return storage;
}

}  // namespace

void poison_allocations(bool on) { CachingAllocator::get().poison = on; }

namespace {

// Of tensors without memory, on all devices together.
std::atomic<int64_t> meta_bytes{0}, meta_peak{0};

Ref<Storage> allocate_nothing(size_t bytes, Device device) {
  auto storage = make_ref<Storage>();
  storage->bytes = bytes;
  storage->device = meta(device);
  storage->release = [](Storage& s) {
    meta_bytes -= static_cast<int64_t>(s.bytes);
    if (observers::exist()) observers::released({s.device, s.bytes, s.data});
  };
  const int64_t now = meta_bytes += static_cast<int64_t>(bytes);
  for (int64_t peak = meta_peak; peak < now && !meta_peak.compare_exchange_weak(peak, now);) {
  }
  if (observers::exist()) observers::allocated({storage->device, bytes, nullptr});
  return storage;
}

}  // namespace

static Ref<Storage> allocate_on_cpu(size_t bytes, Device device) {
  auto storage = make_ref<Storage>();
  storage->data = CachingAllocator::get().allocate(bytes);
  storage->bytes = bytes;
  storage->device = device;
  storage->release = [](Storage& s) {
    CachingAllocator::get().release(s.data, s.bytes);
    if (observers::exist()) observers::released({s.device, s.bytes, s.data});
  };
  if (observers::exist()) observers::allocated({device, bytes, storage->data});
  return storage;
}

constinit thread_local size_t AllocationLimit::most_ = SIZE_MAX;

static void check_limit(size_t bytes) {
  if (bytes > AllocationLimit::most())
    throw OutOfMemoryError(fmt::format("{} asked for, of {} that are allowed", describe_bytes(bytes),
                                       describe_bytes(AllocationLimit::most())));
}

void check_allocation(std::initializer_list<int64_t> sizes) {
  constexpr size_t kLarge = size_t(256) << 20;
  size_t bytes = 8;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(std::max<int64_t>(size, 0)), &bytes)) bytes = SIZE_MAX / 2;
  check_limit(bytes);
  if (bytes >= kLarge && bytes > available_memory())
    throw OutOfMemoryError(fmt::format("out of memory: {} asked for", describe_bytes(bytes)));
}

Ref<Storage> allocate(size_t bytes, Device device) {
  if (device.meta || is_capturing()) return allocate_nothing(bytes, device);
  check_limit(bytes);
  try {
    return device.is_gpu() ? allocate_on_gpu(bytes, device) : allocate_on_cpu(bytes, device);
  } catch (const OutOfMemoryError& e) {
    if (!observers::exist()) throw;
    throw OutOfMemoryError(e.what() + observers::ran_out(device, bytes));
  }
}

MemoryStats memory_stats(Device device) {
  if (device.meta) return {meta_bytes, meta_peak, meta_bytes, meta_peak};
  return device.is_gpu() ? gpu::state(device).allocator.stats() : CachingAllocator::get().stats();
}
void reset_peak_memory(Device device) {
  if (device.meta) return meta_peak.store(meta_bytes);
  if (device.is_gpu()) gpu::state(device).allocator.reset_peak();
  else CachingAllocator::get().reset_peak();
}
void set_memory_limit(int64_t bytes, Device device) {
  if (device.meta) throw Error("set_memory_limit: " + to_string(device) + " has no memory");
  if (device.is_gpu()) gpu::state(device).allocator.set_limit(bytes);
  else CachingAllocator::get().set_limit(bytes);
}
void empty_cache(Device device) {
  if (device.meta) return;
  if (!device.is_gpu()) return CachingAllocator::get().empty_cache();
  gpu::DeviceState& state = gpu::state(device);
  gpu::enter(state);
  state.allocator.empty_cache();
}

}  // namespace tessera
