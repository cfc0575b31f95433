// Element types and how they combine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

/// IEEE half precision, as storage: arithmetic happens in float.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float value);
  operator float() const;
};
/// The upper half of a float32, rounded to nearest even.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value);
  operator float() const;
};

/// Integers come before floats, in the order of their sizes.
enum class DType : uint8_t {
  Bool,
  UInt8,
  Int8,
  Int16,
  UInt16,
  Int32,
  UInt32,
  Int64,
  UInt64,
  Float16,
  BFloat16,
  Float32,
  Float64
};
using enum DType;
inline constexpr int kDTypeCount = 13;

/// Bytes of one element.
constexpr size_t size_of(DType t) {
  constexpr uint8_t sizes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
  return sizes[static_cast<int>(t)];
}
constexpr bool is_floating(DType t) { return t >= DType::Float16; }
constexpr bool is_unsigned(DType t) {
  return t == DType::UInt8 || t == DType::UInt16 || t == DType::UInt32 || t == DType::UInt64;
}
/// Integers that only the CPU computes with: other devices keep and move them.
constexpr bool is_rare(DType t) {
  return t == DType::Int16 || t == DType::UInt16 || t == DType::UInt32 || t == DType::UInt64;
}
/// Short name as in files and messages: f32, bf16, i64, bool, ...
constexpr std::string_view name(DType t) {
  constexpr std::string_view names[] = {"bool", "u8",  "i8",  "i16",  "u16", "i32", "u32",
                                        "i64",  "u64", "f16", "bf16", "f32", "f64"};
  return names[static_cast<int>(t)];
}
/// The dtype with that short name; fp16 and fp32, as mixed precision calls them, are f16 and f32. Throws Error on an
/// unknown name.
DType parse_dtype(std::string_view name);

/// The smallest dtype that holds both: floating beats integer, f16 with bf16 gives f32, u16 with i16 gives i32. No
/// integer holds u64 and what has a sign: that gives f64. u8 with i8 gives i32, which every device computes with.
DType promote(DType a, DType b);

/// Compile-time map from C++ element types to dtypes.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "not an element type of tessera");
  return DType::Bool;
}();
template <>
inline constexpr DType dtype_of<bool> = DType::Bool;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::UInt8;
template <>
inline constexpr DType dtype_of<int8_t> = DType::Int8;
template <>
inline constexpr DType dtype_of<int16_t> = DType::Int16;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::UInt16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::Int32;
template <>
inline constexpr DType dtype_of<uint32_t> = DType::UInt32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::Int64;
template <>
inline constexpr DType dtype_of<uint64_t> = DType::UInt64;
template <>
inline constexpr DType dtype_of<f16> = DType::Float16;
template <>
inline constexpr DType dtype_of<bf16> = DType::BFloat16;
template <>
inline constexpr DType dtype_of<float> = DType::Float32;
template <>
inline constexpr DType dtype_of<double> = DType::Float64;

}  // namespace tessera
