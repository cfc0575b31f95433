// Copies between devices: bytes, in the order of the streams involved. Other layouts are made dense where they lie.
#include <cstring>

#include "core/gpu/backend.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::TESSERA_KERNELS {
namespace {

void transfer(const Call& call, Workspace& workspace) {
  const Tensor &from = call.in[0], &to = call.out[0];
  const void* data = workspace.read(from, from.dtype(), from.is_contiguous()).data;
  const size_t bytes = static_cast<size_t>(from.numel()) * size_of(from.dtype());
  if (workspace.counting() || bytes == 0) return;
  if (from.device().is_gpu() || to.device().is_gpu()) gpu::copy(to, data, *from.storage());
  else std::memcpy(to.data_ptr(), data, bytes);
}

constexpr Kernel transfer_list[] = {staged_kernel<transfer>("bytes")};

}  // namespace

std::span<const KernelTableEntry> transfer_kernels() {
  static constexpr KernelTableEntry entries[] = {{"to_device", transfer_list}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
