// NVIDIA's NCCL, or AMD's RCCL which has the same functions: opened at the first use, each found by its name.
#pragma once
#include <climits>
#include <cstddef>
#include <cstdint>

#include "tessera/device.h"

namespace tessera::dist {

struct NcclLibrary {
  using Comm = void*;
  using Stream = void*;
  enum Result : int { success = 0, invalid_usage = 5, in_progress = 7 };
  enum Type : int { int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16 };
  enum Op : int { sum, product, max, min, mean };
  struct UniqueId {
    char bytes[128];
  };
  /// As of version 2.17, which later ones understand by its size.
  struct Config {
    size_t size = sizeof(Config);
    uint32_t magic = 0xcafebeef, version = 21700;
    int blocking = 0;
    int cluster_size = INT_MIN, least_blocks = INT_MIN, most_blocks = INT_MIN;  // INT_MIN: as the library likes
    const char* network = nullptr;
  };

  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*init)(Comm*, int size, UniqueId, int rank, Config*);
  Result (*async_error)(Comm, Result*);
  Result (*finalize)(Comm);
  Result (*destroy)(Comm);
  Result (*abort)(Comm);
  Result (*all_reduce)(const void*, void*, size_t, Type, Op, Comm, Stream);
  Result (*reduce)(const void*, void*, size_t, Type, Op, int root, Comm, Stream);
  Result (*reduce_scatter)(const void*, void*, size_t, Type, Op, Comm, Stream);
  Result (*all_gather)(const void*, void*, size_t, Type, Comm, Stream);
  Result (*broadcast)(const void*, void*, size_t, Type, int root, Comm, Stream);
  Result (*send)(const void*, size_t, Type, int to, Comm, Stream);
  Result (*recv)(void*, size_t, Type, int from, Comm, Stream);
  Result (*group_start)();
  Result (*group_end)();
  const char* (*error_string)(Result);
  const char* (*last_error)(Comm);
  /// ncclAlltoAll, which RCCL calls ncclAllToAll; null in versions that lack it.
  Result (*all_to_all)(const void*, void*, size_t, Type, Comm, Stream);
};

/// The library for the ranks' kind of device: that which TESSERA_NCCL or TESSERA_RCCL names, or else libnccl.so.2 or
/// librccl.so.1. Throws Error where there is none, or one that is too old.
const NcclLibrary& nccl_library(DeviceType type);

}  // namespace tessera::dist
