// Operators on the bits of integers.
#include "kernels/args/bits.h"

#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"

namespace tessera::cpu_kernels {
namespace {

template <BitOp op>
void bits(const Call& call, Plan& plan) {
  const Operand& out = call.out[0];
  BitsArgs args{};
  args.op = op;
  args.rank = checked_rank(call, out);
  set_lengths(args.lengths, out);
  args.out = operand(out, args.rank);
  args.a = operand(call.in[0], args.rank);
  args.b = operand(call.in[1], args.rank);
  if (out.numel() > 0) plan.launch("bits", bits_table().run, args);
}

template <BitOp op>
constexpr Kernel bits_kernels[] = {{.name = "loop", .plan = bits<op>}};

}  // namespace

std::span<const KernelTableEntry> bit_kernels() {
  static constexpr KernelTableEntry entries[] = {{"bitwise_and", bits_kernels<BitOp::both>},
                                                 {"bitwise_or", bits_kernels<BitOp::either>},
                                                 {"bitwise_xor", bits_kernels<BitOp::one>},
                                                 {"left_shift", bits_kernels<BitOp::left>},
                                                 {"right_shift", bits_kernels<BitOp::right>}};
  return entries;
}

}  // namespace tessera::cpu_kernels
