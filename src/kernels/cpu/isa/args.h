// What crosses from code compiled once into code compiled per instruction set: plain data without functions.
#pragma once

namespace tessera::cpu {

inline constexpr int max_rank = 8;

/// Element types in memory.
enum class Scalar : unsigned char { f64, f32, f16, bf16, i64, i32, i8, u8, boolean };
inline constexpr int scalar_count = 9;

/// A strided operand of a kernel; strides are in elements and may be zero (broadcast) or negative.
struct TensorArg {
  void* data;
  Scalar type;
  long long strides[max_rank];
};

}  // namespace tessera::cpu
