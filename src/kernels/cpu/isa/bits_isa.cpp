#include "kernels/args/bits.h"

#include "copies.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

struct Both {
  template <class V>
  V operator()(V a, V b) const {
    return a & b;
  }
};
struct Either {
  template <class V>
  V operator()(V a, V b) const {
    return a | b;
  }
};
struct One {
  template <class V>
  V operator()(V a, V b) const {
    return a ^ b;
  }
};
/// 0, or where bits move to the right the sign, for counts below 0 or past all bits.
struct Left {
  template <class V>
  V operator()(V a, V n) const {  // unsigned
    constexpr element_t<V> bits = 8 * sizeof(element_t<V>);
    return select(n < V(bits), a << (n & V(bits - 1)), V(0));
  }
};
struct Right {
  template <class V>
  V operator()(V a, V n) const {
    using T = element_t<V>;
    constexpr T bits = 8 * sizeof(T);
    const auto inside = (n >= V(0)) & (n < V(bits));
    if constexpr (T(-1) < T(0)) return a >> select(inside, n, V(bits - 1));
    else return select(inside, a >> (n & V(bits - 1)), V(0));
  }
};

template <class T>
StripFn strip_of(BitOp op) {
  switch (op) {
    case BitOp::both:
      return map_strip<Both, T, T, T>;
    case BitOp::either:
      return map_strip<Either, T, T, T>;
    case BitOp::one:
      return map_strip<One, T, T, T>;
    case BitOp::left:
      return map_strip<Left, T, T, T>;
    default:
      return map_strip<Right, T, T, T>;
  }
}

StripFn strip_of(BitOp op, Scalar type) {
  const bool minds_the_sign = op == BitOp::right;
  if (minds_the_sign && type == Scalar::i8) return map_strip<Right, signed char, signed char, signed char>;
  if (minds_the_sign && type == Scalar::i16) return map_strip<Right, short, short, short>;
  if (minds_the_sign && type == Scalar::i32) return map_strip<Right, i32, i32, i32>;
  if (minds_the_sign && type == Scalar::i64) return map_strip<Right, i64, i64, i64>;
  switch (size_of(type)) {
    case 1:
      return strip_of<u8>(op);
    case 2:
      return strip_of<u16>(op);
    case 4:
      return strip_of<u32>(op);
    default:
      return strip_of<u64>(op);
  }
}

void run(const BitsArgs& args, Executor& executor) {
  const TensorArg* const tensors[] = {&args.out, &args.a, &args.b};
  MapPlan plan;
  plan.loops.rank = args.rank;
  plan.loops.operands = 3;
  for (int d = 0; d < args.rank; ++d) plan.loops.lengths[d] = args.lengths[d];
  for (int k = 0; k < 3; ++k) {
    const Scalar type = tensors[k]->type;
    plan.operand[k] = {tensors[k]->data, size_of(type), size_of(type), true, converter(type, type)};
    set_strides(plan.loops, k, *tensors[k]);
  }
  plan.strip = strip_of(args.op, args.out.type);
  plan.context = nullptr;
  plan.cost = 2;
  run_map(plan, ExecutorRef(executor));
}

}  // namespace

extern const BitsTable bits_table;
const BitsTable bits_table = {run};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
