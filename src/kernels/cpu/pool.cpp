// The CPU's pooling: along channels that lie last, or a window after the other.
#include "kernels/shared/pool.h"

namespace tessera::cpu_kernels {
namespace {

Reason lie_last(const Call& call) {
  for (auto tensors : {call.in, call.out})
    for (const Operand& t : tensors)
      if (t.defined() && t.strides()[1] != 1) return Reason::Layout;
  if (call.in[0].size(1) < 4) return Reason::Small;
  const auto& window = call.attrs.as<PoolAttrs>().window;  // taps are counted in the vectors' own type
  return window[0] > 1 << 12 || window[1] > 1 << 12 ? Reason::Shape : Reason::Ok;
}

template <PoolArgs (*args_of)(const Call&), auto function>
constexpr Kernel channels_kernel(std::source_location where = std::source_location::current()) {
  return {.name = "channels",
          .supports = lie_last,
          .plan =
              [](const Call& call, Plan& plan) {
                PoolArgs args = args_of(call);
                args.channels_last = true;
                plan.launch("pool", pool_table().*function, args);
              },
          .where = where};
}

constexpr Kernel max_list[] = {channels_kernel<max_pool2d_args, &PoolTable::max>(),
                               windows_kernel<max_pool2d_args, &PoolTable::max>()};
constexpr Kernel max_backward_list[] = {channels_kernel<max_pool2d_backward_args, &PoolTable::max_backward>(),
                                        windows_kernel<max_pool2d_backward_args, &PoolTable::max_backward>()};
constexpr Kernel average_list[] = {channels_kernel<avg_pool2d_args, &PoolTable::average>(),
                                   windows_kernel<avg_pool2d_args, &PoolTable::average>()};
constexpr Kernel average_backward_list[] = {channels_kernel<avg_pool2d_backward_args, &PoolTable::average_backward>(),
                                            windows_kernel<avg_pool2d_backward_args, &PoolTable::average_backward>()};

}  // namespace

std::span<const KernelTableEntry> pool_kernels() {
  static constexpr KernelTableEntry entries[] = {{"max_pool2d", max_list},
                                                 {"max_pool2d_backward", max_backward_list},
                                                 {"avg_pool2d", average_list},
                                                 {"avg_pool2d_backward", average_backward_list}};
  return entries;
}

}  // namespace tessera::cpu_kernels
