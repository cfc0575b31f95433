#include "dist/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "tessera/error.h"

namespace tessera::dist {
namespace {

/// What was tried at the first use.
struct Opened {
  std::optional<NcclLibrary> library;
  std::string why_not;
};

template <class F>
bool find(void* handle, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(handle, name));
  return function;
}

Opened open_library(const char* variable, const char* usual) {
  const char* const chosen = std::getenv(variable);
  const char* const file = chosen && *chosen ? chosen : usual;
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return {{}, fmt::format("{} was not found ({} may name it)", file, variable)};
  NcclLibrary l{};
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!find(handle, name, function)) missing = name;
  };
  need("ncclGetVersion", l.get_version);
  need("ncclGetUniqueId", l.get_unique_id);
  need("ncclCommInitRankConfig", l.init);
  need("ncclCommGetAsyncError", l.async_error);
  need("ncclCommFinalize", l.finalize);
  need("ncclCommDestroy", l.destroy);
  need("ncclCommAbort", l.abort);
  need("ncclAllReduce", l.all_reduce);
  need("ncclReduce", l.reduce);
  need("ncclReduceScatter", l.reduce_scatter);
  need("ncclAllGather", l.all_gather);
  need("ncclBroadcast", l.broadcast);
  need("ncclSend", l.send);
  need("ncclRecv", l.recv);
  need("ncclGroupStart", l.group_start);
  need("ncclGroupEnd", l.group_end);
  need("ncclGetErrorString", l.error_string);
  need("ncclGetLastError", l.last_error);
  if (missing) return {{}, fmt::format("{} has no {}: it is too old", file, missing)};
  if (!find(handle, "ncclAlltoAll", l.all_to_all)) find(handle, "ncclAllToAll", l.all_to_all);
  return {l, {}};
}

}  // namespace

const NcclLibrary& nccl_library(DeviceType type) {
  static std::mutex mutex;
  static std::optional<Opened> opened[kDeviceTypeCount];
  const std::lock_guard lock(mutex);
  std::optional<Opened>& found = opened[static_cast<int>(type)];
  if (!found)
    found = type == DeviceType::HIP ? open_library("TESSERA_RCCL", "librccl.so.1")
                                    : open_library("TESSERA_NCCL", "libnccl.so.2");
  if (!found->library) throw Error(found->why_not);
  return *found->library;
}

}  // namespace tessera::dist
