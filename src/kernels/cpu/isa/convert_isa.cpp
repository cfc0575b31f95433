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

template <class T>
inline constexpr bool is_integer =
    !is_same_v<T, bool> && !is_same_v<T, f16> && !is_same_v<T, bf16> && !is_same_v<T, float> && !is_same_v<T, double>;

/// Pairs of types with the same bits share an instance: low bits do not depend on signs, and a bool is a small number.
template <class To, class From>
constexpr ConvertFn conversion() {
  if constexpr (is_same_v<To, bool>) {
    return convert_run<bool, From>;
  } else if constexpr (is_same_v<From, bool>) {
    return conversion<To, u8>();
  } else if constexpr (is_integer<To> && is_integer<From>) {
    using Signed = typename SignedOfSize<sizeof(From)>::type;
    using Source = conditional_t<sizeof(From) >= sizeof(To), Signed, From>;
    return convert_run<typename SignedOfSize<sizeof(To)>::type, Source>;
  } else {
    return convert_run<To, From>;
  }
}

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
    static constexpr ConvertFn from_types[] = {conversion<To, T>()...};
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
