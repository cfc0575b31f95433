#include "ops/reference.h"

#include "core/element.h"

namespace tessera::reference {
namespace {

std::byte* address(const Tensor& t, std::span<const int64_t> index) {
  int64_t offset = 0, shift = static_cast<int64_t>(index.size()) - t.dim();
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) != 1) offset += index[d + shift] * t.strides()[d];
  return static_cast<std::byte*>(t.data_ptr()) + offset * static_cast<int64_t>(size_of(t.dtype()));
}

}  // namespace

double get(const Tensor& t, std::span<const int64_t> index) {
  return with_element_type(t.dtype(),
                           [&]<class T>(T*) { return static_cast<double>(*reinterpret_cast<T*>(address(t, index))); });
}

void set(const Tensor& t, std::span<const int64_t> index, double value) {
  with_element_type(t.dtype(), [&]<class T>(T*) { *reinterpret_cast<T*>(address(t, index)) = static_cast<T>(value); });
}

}  // namespace tessera::reference
