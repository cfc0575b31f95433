#include "copies.h"
#include "tile/kernels/transpose.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

using namespace tile;

namespace {

/// Elements of one type, also backwards, which compilers make vectors of where they see the stride.
template <class T>
void copy_elements(void* to, i64 to_stride, const void* from, i64 from_stride, i64 n) {
  constexpr i64 size = sizeof(T);
  if (to_stride != size || from_stride != -size) return convert_run<T, T>(to, to_stride, from, from_stride, n);
  auto* const t = static_cast<T*>(to);
  auto* const f = static_cast<const T*>(from);
  for (i64 i = 0; i < n; ++i) t[i] = f[-i];
}
ConvertFn conversion_of(const CopyArgs& args) {
  if (args.to.type == args.from.type) {
    if (size_of(args.to.type) == 4) return copy_elements<u32>;
    if (size_of(args.to.type) == 8) return copy_elements<u64>;
  }
  return converter(args.to.type, args.from.type);
}

/// One element for all of a large tensor without gaps.
bool stream_fill(const CopyArgs& args, const LoopNest& loops, Executor& executor) {
  const i64 size = size_of(args.to.type), bytes = loops.total() * size;
  if (bytes < cpu::streamed_bytes || !is_dense(loops, 0, size)) return false;
  for (int d = 0; d < loops.rank; ++d)
    if (loops.lengths[d] != 1 && loops.strides[1][d] != 0) return false;
  constexpr i64 room = 4096;
  alignas(64) char filled[room];
  converter(args.to.type, args.from.type)(filled, size, args.from.data, 0, room / size);
  split_range(ExecutorRef(executor), bytes / size, 1, room, [&](i64 begin, i64 end, int) {
    auto* const to = static_cast<char*>(args.to.data);
    for (i64 at = begin * size; at < end * size; at += room) cpu::stream(to + at, filled, min(room, end * size - at));
    cpu::fence();
  });
  return true;
}

}  // namespace

void copy(const CopyArgs& args, Executor& executor) {
  LoopNest loops;
  loops.rank = args.rank;
  loops.operands = 2;
  for (int d = 0; d < args.rank; ++d) loops.lengths[d] = args.lengths[d];
  set_strides(loops, 0, args.to);
  set_strides(loops, 1, args.from);
  if (stream_fill(args, loops, executor)) return;
  run_copy(loops, args.to.data, args.from.data, args.to.type == args.from.type ? size_of(args.to.type) : 0,
           conversion_of(args), ExecutorRef(executor));
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
