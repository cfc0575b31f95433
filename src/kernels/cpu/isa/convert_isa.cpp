#include "internal.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

/// Elements of u64 for kernels of i64 that compare: with its first bit turned, each stands where it stood in order.
struct OrderedU64 {
  u64 bits;
  explicit OrderedU64(i64 ordered) : bits(static_cast<u64>(ordered) ^ first_bit) {}
  explicit operator i64() const { return static_cast<i64>(bits ^ first_bit); }

 private:
  static constexpr u64 first_bit = u64{1} << 63;
};

/// Types in the order of Scalar.
template <class... T>
struct Types {
  static ConvertFn find(Scalar to, Scalar from) {
    static constexpr ConvertFn (*to_types[])(Scalar) = {from_type<T>...};
    return to_types[static_cast<int>(to)](from);
  }

 private:
  template <class To>
  static ConvertFn from_type(Scalar from) {
    static constexpr ConvertFn from_types[] = {convert_run<To, T>...};
    return from_types[static_cast<int>(from)];
  }
};

}  // namespace

ConvertFn converter(Scalar to, Scalar from) {
  return Types<bool, u8, i8, i16, u16, i32, u32, i64, u64, f16, bf16, float, double>::find(to, from);
}

ConvertFn order_preserving(Scalar to, Scalar from) {
  if (to == Scalar::i64 && from == Scalar::u64) return convert_run<i64, OrderedU64>;
  if (to == Scalar::u64 && from == Scalar::i64) return convert_run<OrderedU64, i64>;
  return converter(to, from);
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
