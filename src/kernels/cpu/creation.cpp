#include <algorithm>

#include "core/element.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

void full(const Call& call) { fill(call, call.out[0], call.attrs.as<CreateAttrs>().a); }

void arange(const Call& call) {
  const auto& attrs = call.attrs.as<CreateAttrs>();
  const Tensor& out = call.out[0];
  const int64_t n = out.numel(), part = 1 << 14;
  with_element_type(out.dtype(), [&]<class T>(T*) {
    T* to = out.data<T>();
    executor().parallel((n + part - 1) / part, [&](int64_t index, int) {
      for (int64_t i = index * part; i < std::min(n, (index + 1) * part); ++i)
        to[i] = static_cast<T>(attrs.a + static_cast<double>(i) * attrs.b);
    });
  });
}

constexpr Kernel full_kernels[] = {{.name = "fill", .run = full}};
constexpr Kernel arange_kernels[] = {{.name = "loop", .run = arange}};

}  // namespace

std::span<const KernelTableEntry> creation_kernels() {
  static constexpr KernelTableEntry entries[] = {{"full", full_kernels}, {"arange", arange_kernels}};
  return entries;
}

}  // namespace tessera::cpu_kernels
