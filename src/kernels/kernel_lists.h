// The ordered lists of kernels of each kind of device.
#pragma once
#include "core/kernel.h"

namespace tessera {

/// A device's table: op name and its ordered kernels, the last of which supports every call.
struct KernelTableEntry {
  std::string_view op;
  KernelList kernels;
};
std::span<const KernelTableEntry> cpu_kernel_table();
/// One table for every kind of GPU; its kernels ask the plugin of the call's device.
std::span<const KernelTableEntry> gpu_kernel_table();
/// What Plan::run takes for each: the thread pool, and the stream of the call that this thread is dispatching.
void* cpu_executor();
void* gpu_executor();
/// What the CPU's kernels run on: "avx2, 2 threads, AMD EPYC 9654".
std::string cpu_description();
/// The vendor's libraries behind the kernels of the call's GPU, with their versions: "cublasLt 130100, cudnn 91900".
std::string gpu_libraries();

}  // namespace tessera
