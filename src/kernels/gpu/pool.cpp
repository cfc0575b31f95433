// Pooling on GPUs: of dense images at the speed of memory, of others by the kernel for any strides.
#include "kernels/shared/pool.h"

#include "kernels/args/gpu/tables.h"
#include "kernels/shared/channels_last.h"

namespace tessera::gpu_kernels {
namespace {

// Which order images, results and taps lie in without gaps; in both, channels first. Empty where it is neither.
std::optional<bool> lie_channels_last(const Call& call) {
  bool planes = true, last = true;
  for (auto tensors : {call.in, call.out})
    for (const Operand& t : tensors) {
      if (!t.defined()) continue;
      planes = planes && t.is_contiguous();
      last = last && lies_channels_last(t);
    }
  if (planes) return false;
  return last ? std::optional(true) : std::nullopt;
}

// Kernels count in 32 bits; taps have a byte.
template <PoolArgs (*args_of)(const Call&)>
Reason dense_takes(const Call& call) {
  if (!tables().dense_pool) return Reason::Hardware;
  const PoolArgs args = args_of(call);
  if (args.x.type == Scalar::f64) return Reason::DType;
  const std::optional<bool> last = lie_channels_last(call);
  if (!last) return Reason::Layout;
  constexpr long long most = 1 << 30;
  const long long width = 16 / static_cast<long long>(size_of(call.in[0].dtype()));
  const bool in_vectors = *last && args.channels % width == 0;
  if ((args.taps.data && args.taps.type != Scalar::u8) || args.window[0] * args.window[1] >= most) return Reason::Shape;
  for (const Operand& t : {call.in[0], call.out[0]})
    if (t.numel() / (in_vectors ? width : 1) >= most) return Reason::Shape;
  for (int d = 0; d < 2; ++d)
    if (args.size[d] + 2 * args.padding[d] >= most || args.dilation[d] >= most) return Reason::Shape;
  return Reason::Ok;
}

template <PoolArgs (*args_of)(const Call&), auto function>
constexpr Kernel dense_kernel(std::source_location where = std::source_location::current()) {
  return {.name = "dense",
          .supports = dense_takes<args_of>,
          .plan =
              [](const Call& call, Plan& plan) {
                PoolArgs args = args_of(call);
                args.channels_last = *lie_channels_last(call);
                if (call.out[0].numel() > 0) plan.launch("pool", tables().dense_pool->*function, args);
              },
          .where = where};
}

constexpr Kernel max_list[] = {dense_kernel<max_pool2d_args, &PoolTable::max>(),
                               windows_kernel<max_pool2d_args, &PoolTable::max>()};
constexpr Kernel max_backward_list[] = {dense_kernel<max_pool2d_backward_args, &PoolTable::max_backward>(),
                                        windows_kernel<max_pool2d_backward_args, &PoolTable::max_backward>()};
constexpr Kernel average_list[] = {dense_kernel<avg_pool2d_args, &PoolTable::average>(),
                                   windows_kernel<avg_pool2d_args, &PoolTable::average>()};
constexpr Kernel average_backward_list[] = {dense_kernel<avg_pool2d_backward_args, &PoolTable::average_backward>(),
                                            windows_kernel<avg_pool2d_backward_args, &PoolTable::average_backward>()};

}  // namespace

std::span<const KernelTableEntry> pool_kernels() {
  static constexpr KernelTableEntry entries[] = {{"max_pool2d", max_list},
                                                 {"max_pool2d_backward", max_backward_list},
                                                 {"avg_pool2d", average_list},
                                                 {"avg_pool2d_backward", average_backward_list}};
  return entries;
}

}  // namespace tessera::gpu_kernels
