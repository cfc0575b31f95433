// Pooling: from tensors to what kernels take. The CPU's take any strides and every floating type.
#pragma once
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {

inline PoolArgs pool_args(const Call& call, const Operand& x, const Operand& y) {
  auto& a = call.attrs.as<PoolAttrs>();
  PoolArgs args{};
  args.images = x.size(0);
  args.channels = x.size(1);
  for (int d = 0; d < 2; ++d) {
    args.size[d] = x.size(2 + d);
    args.window[d] = a.window[d];
    args.stride[d] = a.stride[d];
    args.padding[d] = a.padding[d];
    args.dilation[d] = a.dilation[d];
  }
  args.count_padding = a.count_include_pad;
  args.x = operand(x, 4);
  args.y = operand(y, 4);
  return args;
}

inline PoolArgs max_pool2d_args(const Call& call) {
  PoolArgs args = pool_args(call, call.in[0], call.out[0]);
  if (call.out[1].defined()) args.taps = operand(call.out[1], 4);
  return args;
}
inline PoolArgs max_pool2d_backward_args(const Call& call) {
  PoolArgs args = pool_args(call, call.out[0], call.in[0]);
  args.taps = operand(call.in[1], 4);
  return args;
}
inline PoolArgs avg_pool2d_args(const Call& call) { return pool_args(call, call.in[0], call.out[0]); }
inline PoolArgs avg_pool2d_backward_args(const Call& call) { return pool_args(call, call.out[0], call.in[0]); }

/// The one for any strides, by a function of the table.
template <PoolArgs (*args_of)(const Call&), auto function>
constexpr Kernel windows_kernel(std::source_location where = std::source_location::current()) {
  return {.name = "windows",
          .plan = [](const Call& call, Plan& plan) { plan.launch("pool", pool_table().*function, args_of(call)); },
          .where = where};
}

}  // namespace tessera::TESSERA_KERNELS
