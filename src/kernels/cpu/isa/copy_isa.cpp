#include "copies.h"
#include "tile/kernels/transpose.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using namespace tile;

void copy(const CopyArgs& args, Executor& executor) {
  LoopNest loops;
  loops.rank = args.rank;
  loops.operands = 2;
  for (int d = 0; d < args.rank; ++d) loops.lengths[d] = args.lengths[d];
  set_strides(loops, 0, args.to);
  set_strides(loops, 1, args.from);
  run_copy(loops, args.to.data, args.from.data, args.to.type == args.from.type ? size_of(args.to.type) : 0,
           converter(args.to.type, args.from.type), ExecutorRef(executor));
}

namespace {

// Elements only move: T is an integer of their size.
template <class T>
void triangle_of(const TriangleArgs& a, Executor& executor) {
  const int last = a.rank - 1;
  const i64 rows = a.lengths[last - 1], columns = a.lengths[last];
  const i64 to_step = a.to.strides[last], from_step = a.from.strides[last];
  i64 lines = columns > 0 ? 1 : 0;
  for (int d = 0; d < last; ++d) lines *= a.lengths[d];
  T otherwise;
  converter(a.to.type, Scalar::f64)(&otherwise, 0, &a.otherwise, 0, 1);
  ExecutorRef(executor).parallel(lines, [&](i64 line, int) {
    T* to = static_cast<T*>(a.to.data);
    const T* from = static_cast<const T*>(a.from.data);
    i64 rest = line;
    for (int d = last - 1; d >= 0; --d) {
      const i64 at = rest % a.lengths[d];
      rest /= a.lengths[d];
      to += at * a.to.strides[d];
      from += at * a.from.strides[d];
    }
    const i64 row = line % rows, limit = row + a.diagonal + (a.upper ? 0 : 1), edge = max(i64(0), min(columns, limit));
    const i64 begin = a.upper ? edge : 0, end = a.upper ? columns : edge;  // of what is kept
    if (to != from || to_step != from_step)
      for (i64 c = begin; c < end; ++c) to[c * to_step] = from[c * from_step];
    for (i64 c = 0; c < begin; ++c) to[c * to_step] = otherwise;
    for (i64 c = end; c < columns; ++c) to[c * to_step] = otherwise;
  });
}

}  // namespace

void triangle(const TriangleArgs& args, Executor& executor) {
  switch (size_of(args.to.type)) {
    case 1:
      return triangle_of<u8>(args, executor);
    case 2:
      return triangle_of<u16>(args, executor);
    case 4:
      return triangle_of<u32>(args, executor);
    default:
      return triangle_of<u64>(args, executor);
  }
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
