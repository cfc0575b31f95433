#include "internal.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

template <class To>
ConvertFn from_type(Scalar from) {
  switch (from) {
    case Scalar::f64:
      return convert_run<To, double>;
    case Scalar::f32:
      return convert_run<To, float>;
    case Scalar::f16:
      return convert_run<To, f16>;
    case Scalar::bf16:
      return convert_run<To, bf16>;
    case Scalar::i64:
      return convert_run<To, i64>;
    case Scalar::i32:
      return convert_run<To, i32>;
    case Scalar::i8:
      return convert_run<To, i8>;
    case Scalar::u8:
      return convert_run<To, u8>;
    case Scalar::boolean:
      return convert_run<To, bool>;
  }
  return nullptr;
}

}  // namespace

ConvertFn converter(Scalar to, Scalar from) {
  switch (to) {
    case Scalar::f64:
      return from_type<double>(from);
    case Scalar::f32:
      return from_type<float>(from);
    case Scalar::f16:
      return from_type<f16>(from);
    case Scalar::bf16:
      return from_type<bf16>(from);
    case Scalar::i64:
      return from_type<i64>(from);
    case Scalar::i32:
      return from_type<i32>(from);
    case Scalar::i8:
      return from_type<i8>(from);
    case Scalar::u8:
      return from_type<u8>(from);
    case Scalar::boolean:
      return from_type<bool>(from);
  }
  return nullptr;
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
