// From a dtype known at run time to a type known to the compiler.
#pragma once
#include "tessera/dtype.h"

namespace tessera {

/// Calls fn(static_cast<T*>(nullptr)) with the C++ type of the elements.
template <class F>
decltype(auto) with_element_type(DType dtype, F&& fn) {
  switch (dtype) {
    case Bool:
      return fn(static_cast<bool*>(nullptr));
    case UInt8:
      return fn(static_cast<uint8_t*>(nullptr));
    case Int8:
      return fn(static_cast<int8_t*>(nullptr));
    case Int16:
      return fn(static_cast<int16_t*>(nullptr));
    case UInt16:
      return fn(static_cast<uint16_t*>(nullptr));
    case Int32:
      return fn(static_cast<int32_t*>(nullptr));
    case UInt32:
      return fn(static_cast<uint32_t*>(nullptr));
    case Int64:
      return fn(static_cast<int64_t*>(nullptr));
    case UInt64:
      return fn(static_cast<uint64_t*>(nullptr));
    case Float16:
      return fn(static_cast<f16*>(nullptr));
    case BFloat16:
      return fn(static_cast<bf16*>(nullptr));
    case Float32:
      return fn(static_cast<float*>(nullptr));
    default:
      return fn(static_cast<double*>(nullptr));
  }
}

}  // namespace tessera
