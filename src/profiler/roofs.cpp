// What a device reaches at most: products and copies that are measured once in a process.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "core/gpu/backend.h"
#include "kernels/kernel_lists.h"
#include "profiler/analysis.h"
#include "profiler/assemble.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::profiler {
namespace {

// Seconds of fn() at best.
template <class Fn>
double best_of(Device device, int times, const Fn& fn) {
  fn();
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    if (device.is_gpu()) {
      Event begin(device, true), end(device, true);
      begin.record(current_stream(device));
      fn();
      end.record(current_stream(device));
      end.synchronize();
      best = std::min(best, static_cast<double>(end.milliseconds_since(begin)) * 1e-3);
    } else {
      const int64_t begin = now();
      fn();
      best = std::min(best, static_cast<double>(now() - begin) * 1e-9);
    }
  }
  return best;
}

// FLOP/s of square products of normal numbers; 0 where there is no memory for them.
double products(Device device, DType dtype) {
  const int64_t n = device.is_gpu() ? 4096 : 640;
  Generator generator(1);
  const Tensor a = randn({n, n}, generator, dtype, device), b = randn({n, n}, generator, dtype, device);
  Tensor y;
  return 2.0 * static_cast<double>(n * n * n) / best_of(device, 3, [&] { y = matmul(a, b); });
}

// On the host beside the allocator, which would keep what is larger than a small program.
Tensor room_for_copies(int64_t n, Device device) {
  if (device.is_gpu()) return empty({n}, Float32, device);
  const std::shared_ptr<void> memory(std::aligned_alloc(64, static_cast<size_t>(n) * 4), std::free);
  if (!memory) throw OutOfMemoryError("out of memory");
  return from_memory(memory.get(), {n}, Float32, memory);
}

double copies(Device device) {
  const int64_t n = device.is_gpu() ? int64_t{1} << 26 : int64_t{1} << 23;
  Tensor x = room_for_copies(n, device), y = room_for_copies(n, device);
  x.fill_(1.5);
  return 8.0 * static_cast<double>(n) / best_of(device, 3, [&] { y.copy_(x); });
}

Roof measured(Device device) {
  const NoGrad no_grad;
  const amp::NoAutocast as_given;
  Roof roof;
  try {
    roof.bytes_per_second = copies(device);
    roof.f32 = products(device, Float32);
    roof.bf16 = products(device, BFloat16);
    roof.f16 = products(device, Float16);
    roof.f64 = products(device, Float64);
    if (device.type == DeviceType::CUDA) {
      const bool allowed = tf32_allowed();
      allow_tf32(true);
      roof.tf32 = products(device, Float32);
      allow_tf32(allowed);
    }
  } catch (const OutOfMemoryError&) {  // what is there stays 0: not known
  }
  return roof;
}

const Roof& roof_of(Device device) {
  static auto* const known = new std::map<std::pair<DeviceType, int>, Roof>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = known->try_emplace({device.type, device.index});
  if (fresh) at->second = measured(device);
  return at->second;
}

}  // namespace

void measure_roofs(Device device) {
  (void)roof_of(device);
  empty_cache(device);
}

namespace {

Device device_of(int index) {
  if (index < 0) return cpu();
  return device_count(DeviceType::CUDA) > index ? cuda(index) : hip(index);
}

DeviceInfo host() {
  DeviceInfo info;
  info.name = cpu_description();
  info.memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return info;
}

}  // namespace

void describe_devices(Trace& trace) {
  std::set<int> ids = {-1};
  for (const Span& s : trace.spans) ids.insert(s.device);
  for (const MemoryChange& m : trace.memory) ids.insert(m.device);
  const bool on_cards = ids.size() > 1;
  for (const int id : ids) {
    const Device device = device_of(id);
    DeviceInfo info = id < 0 ? host() : DeviceInfo();
    if (id >= 0) {
      const DeviceProperties p = properties(device);
      const gpu::Multiprocessor on = gpu::state(device).runtime.multiprocessor(id);
      info.id = id;
      info.name = p.name;
      info.memory = static_cast<int64_t>(p.memory);
      info.multiprocessors = p.multiprocessors;
      info.warp_size = p.warp_size;
      info.threads_per_multiprocessor = on.threads;
      info.blocks_per_multiprocessor = on.blocks;
      info.registers_per_multiprocessor = on.registers;
      info.shared_per_multiprocessor = on.shared_bytes;
      info.shared_reserved = on.reserved_bytes;
      info.architecture = p.architecture;
    }
    if (id >= 0 || !on_cards) info.roof = roof_of(device);
    trace.devices.push_back(std::move(info));
  }
  for (const Span& s : trace.spans)
    if (const DeviceInfo* info = trace.launch_of(s) ? device_info(trace, s.device) : nullptr)
      trace.launches[static_cast<size_t>(s.detail)].occupancy = occupancy_of(*trace.launch_of(s), *info);
}

}  // namespace tessera::profiler
