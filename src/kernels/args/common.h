// What crosses from code compiled once into code compiled per instruction set: plain data without functions.
#pragma once

// The code that hands tensors to kernels is compiled twice: for the CPU, and for GPUs with TESSERA_GPU_KERNELS. Each
// has its namespace, its tables and its Executor: the thread pool there, a stream here. What is compiled with the
// kernels themselves, and so once per instruction set, has a namespace for each.
#ifdef TESSERA_GPU_KERNELS
#define TESSERA_KERNELS gpu_kernels
#define TESSERA_ISA_KERNELS gpu_kernels
#else
#define TESSERA_KERNELS cpu_kernels
#define TESSERA_ISA_KERNELS cpu_kernels::TESSERA_ISA
#endif

namespace tessera::gpu {
struct Fault;
}

namespace tessera::TESSERA_KERNELS {

inline constexpr int max_rank = 8;

/// Element types in memory, in the order of tessera::DType.
enum class Scalar : unsigned char { boolean, u8, i8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64 };
inline constexpr int scalar_count = 13;

/// A strided operand of a kernel; strides are in elements and may be zero (broadcast) or negative.
struct TensorArg {
  void* data;
  Scalar type;
  long long strides[max_rank];
  bool constant = false;  ///< one value that lies in the host's memory, whatever the device; strides are zero
};

#ifdef TESSERA_GPU_KERNELS
/// Where a call's kernels go.
struct Executor {
  void* stream;  // of the vendor's run-time library
  int multiprocessors;
  gpu::Fault* fault;  // what is wrong with the data is written here, see core/gpu/runtime.h
};
#endif

}  // namespace tessera::TESSERA_KERNELS
