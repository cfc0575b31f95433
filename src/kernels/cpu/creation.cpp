#include <algorithm>

#include "core/element.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

void full(const Call& call, Plan& plan) { fill(call, plan, call.out[0], call.attrs.as<CreateAttrs>().a); }

struct RangeArgs {
  void* out;
  DType dtype;
  int64_t n;
  double start, step;
};
void run_range(const RangeArgs& a, Executor& executor) {
  const int64_t part = 1 << 14;
  with_element_type(a.dtype, [&]<class T>(T*) {
    T* to = static_cast<T*>(a.out);
    executor.parallel((a.n + part - 1) / part, [&](int64_t index, int) {
      for (int64_t i = index * part; i < std::min(a.n, (index + 1) * part); ++i)
        to[i] = static_cast<T>(a.start + static_cast<double>(i) * a.step);
    });
  });
}
void arange(const Call& call, Plan& plan) {
  const auto& attrs = call.attrs.as<CreateAttrs>();
  const Operand& out = call.out[0];
  plan.launch("range", run_range, {out.data_ptr(), out.dtype(), out.numel(), attrs.a, attrs.b});
}

constexpr Kernel full_kernels[] = {{.name = "fill", .plan = full}};
constexpr Kernel arange_kernels[] = {{.name = "loop", .plan = arange}};

}  // namespace

std::span<const KernelTableEntry> creation_kernels() {
  static constexpr KernelTableEntry entries[] = {{"full", full_kernels}, {"arange", arange_kernels}};
  return entries;
}

}  // namespace tessera::cpu_kernels
