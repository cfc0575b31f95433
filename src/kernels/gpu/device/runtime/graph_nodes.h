// What is in a captured graph, as the vendor's run-time library tells it.
#pragma once
#include <algorithm>
#include <string>

#include "core/gpu/runtime.h"
#include "core/util/demangled.h"
#include "host.h"
#if !defined(__HIP__)
#include "driver.h"
#endif

namespace tessera::gpu_kernels {

using GraphNode = TESSERA_RT(GraphNode_t);

/// How a kernel is launched, and its name; without one where the library does not say.
inline gpu::GraphNode kernel_node(GraphNode node) {
#if defined(__HIP__)
  hipKernelNodeParams p{};
  if (hipGraphKernelNodeGetParams(node, &p) != hipSuccess) return {"a kernel"};
  gpu::GraphNode out{"a kernel", {p.gridDim.x, p.gridDim.y, p.gridDim.z}, {p.blockDim.x, p.blockDim.y, p.blockDim.z}};
  out.shared_bytes = p.sharedMemBytes;
  if (const char* name = hipKernelNameRefByPtr(p.func, nullptr)) out.name = demangled(name);
  hipFuncAttributes attributes{};
  if (hipFuncGetAttributes(&attributes, p.func) == hipSuccess) {
    out.registers = attributes.numRegs;
    out.shared_bytes += attributes.sharedSizeBytes;
  }
  return out;
#else  // by the driver, which knows the kernels of all libraries
  static const auto params_of = driver_function<decltype(&::cuGraphKernelNodeGetParams)>("cuGraphKernelNodeGetParams");
  static const auto function_of = driver_function<decltype(&::cuKernelGetFunction)>("cuKernelGetFunction");
  static const auto name_of = driver_function<decltype(&::cuFuncGetName)>("cuFuncGetName", 12030);
  static const auto attribute_of = driver_function<decltype(&::cuFuncGetAttribute)>("cuFuncGetAttribute");
  static const auto launched_with =
      driver_function<decltype(&::cuGraphKernelNodeGetAttribute)>("cuGraphKernelNodeGetAttribute");
  CUDA_KERNEL_NODE_PARAMS p{};
  if (!params_of || params_of(node, &p) != CUDA_SUCCESS) return {"a kernel"};
  gpu::GraphNode out{"a kernel", {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}};
  out.shared_bytes = p.sharedMemBytes;
  CUfunction function = p.func;
  if (!function && p.kern && function_of) (void)function_of(&function, p.kern);
  const char* name = nullptr;
  if (function && name_of && name_of(&name, function) == CUDA_SUCCESS) out.name = demangled(name);
  int value = 0;
  if (function && attribute_of(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function) == CUDA_SUCCESS) out.registers = value;
  if (function && attribute_of(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function) == CUDA_SUCCESS)
    out.shared_bytes += static_cast<size_t>(value);
  CUkernelNodeAttrValue cluster{};
  if (launched_with && launched_with(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster) == CUDA_SUCCESS)
    out.cluster = std::max(cluster.clusterDim.x, 1u) * std::max(cluster.clusterDim.y, 1u);
  return out;
#endif
}

inline gpu::GraphNode describe_node(GraphNode node) {
  TESSERA_RT(GraphNodeType) type{};
  if (TESSERA_RT(GraphNodeGetType)(node, &type) != TESSERA_RT(Success)) return {"unknown"};
  switch (type) {
    case TESSERA_RT(GraphNodeTypeKernel):
      return kernel_node(node);
    case TESSERA_RT(GraphNodeTypeMemset):
      return {"memset"};
    case TESSERA_RT(GraphNodeTypeMemcpy):
      return {"memcpy"};
    default:
      return {"a node without work"};
  }
}

}  // namespace tessera::gpu_kernels
