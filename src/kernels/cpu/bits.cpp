// Operators on the bits of integers.
#include <functional>

#include "kernels/cpu/walk.h"
#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

struct Bits {
  int64_t numel;
  int rank;
  DType dtype;
  int64_t length[max_rank];
  TensorArg to, a, b;
};

template <class Combine>
void run_bits(const Bits& bits, Executor&) {
  int64_t strides[3][max_rank];
  const TensorArg* const tensors[] = {&bits.to, &bits.a, &bits.b};
  for (int k = 0; k < 3; ++k) std::copy(tensors[k]->strides, tensors[k]->strides + bits.rank, strides[k]);
  with_size(bits.dtype, [&]<class T>(T*) {
    T* const to = static_cast<T*>(bits.to.data);
    const T *const a = static_cast<const T*>(bits.a.data), *const b = static_cast<const T*>(bits.b.data);
    split(bits.numel, 1, [&](int64_t begin, int64_t end, int) {
      Walk<3> walk(bits.rank, bits.length, {strides[0], strides[1], strides[2]}, begin);
      for (int64_t i = begin; i < end; ++i, walk.next())
        to[walk.offset[0]] = static_cast<T>(Combine()(a[walk.offset[1]], b[walk.offset[2]]));
    });
  });
}

template <class Combine>
void bits(const Call& call, Plan& plan) {
  const Operand& out = call.out[0];
  Bits args{};
  args.numel = out.numel();
  args.rank = checked_rank(call, out);
  args.dtype = out.dtype();
  for (int d = 0; d < args.rank; ++d) args.length[d] = out.size(d);
  args.to = operand(out, args.rank);
  args.a = operand(call.in[0], args.rank);
  args.b = operand(call.in[1], args.rank);
  if (args.numel > 0) plan.launch("bits", run_bits<Combine>, args);
}

template <class Combine>
constexpr Kernel bits_kernels[] = {{.name = "loop", .plan = bits<Combine>}};

}  // namespace

std::span<const KernelTableEntry> bit_kernels() {
  static constexpr KernelTableEntry entries[] = {{"bitwise_and", bits_kernels<std::bit_and<>>},
                                                 {"bitwise_or", bits_kernels<std::bit_or<>>},
                                                 {"bitwise_xor", bits_kernels<std::bit_xor<>>}};
  return entries;
}

}  // namespace tessera::cpu_kernels
