// What crosses from code compiled once into code compiled per instruction set: plain data without functions.
#pragma once

namespace tessera::cpu_kernels {

inline constexpr int max_rank = 8;

/// Element types in memory, in the order of tessera::DType.
enum class Scalar : unsigned char { boolean, u8, i8, i32, i64, f16, bf16, f32, f64 };
inline constexpr int scalar_count = 9;

/// A strided operand of a kernel; strides are in elements and may be zero (broadcast) or negative.
struct TensorArg {
  void* data;
  Scalar type;
  long long strides[max_rank];
};

}  // namespace tessera::cpu_kernels
