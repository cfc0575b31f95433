// Copies of strided tensors: run by run where both sides are walked in the same order, and in square blocks where one
// of them is transposed, so that every cache line that is fetched is used whole.
#pragma once

#include "../arch/cpu/pack.h"
#include "../arch/cpu/partial.h"
#include "elementwise.h"

TESSERA_TILE_BEGIN
namespace detail {

/// to[r * to_stride + c] = from[c * from_stride + r] for r < rows and c < columns; strides in elements.
template <class U>
inline void transpose_block(U* to, i64 to_stride, const U* from, i64 from_stride, i64 rows, i64 columns) {
  using V = NativeVec<U>;
  constexpr i64 n = V::lanes;
  if constexpr (sizeof(U) >= 4) {
    if (rows == n && columns == n) {
      V block[n];
      TESSERA_UNROLL
      for (int i = 0; i < V::lanes; ++i) block[i] = load<V>(from + i * from_stride);
      cpu::detail::transpose(block);
      TESSERA_UNROLL
      for (int i = 0; i < V::lanes; ++i) store(to + i * to_stride, block[i]);
      return;
    }
    if (4 * rows * columns >= n * n) {  // a part that takes longer element by element
      V block[n];
      TESSERA_UNROLL
      for (int i = 0; i < V::lanes; ++i)
        block[i] = i < columns ? load<V>(from + i * from_stride, static_cast<int>(rows)) : V(U(0));
      cpu::detail::transpose(block);
      TESSERA_UNROLL
      for (int i = 0; i < V::lanes; ++i) {
        if (i < rows && columns == n) store(to + i * to_stride, block[i]);
        if (i < rows && columns < n) cpu::store_part(to + i * to_stride, block[i], static_cast<int>(columns));
      }
      return;
    }
  }
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < columns; ++c) to[r * to_stride + c] = from[c * from_stride + r];
  }
}

/// to[r * columns + c] = from[c * from_stride + r]: few planes become the channels of one image.
template <class U, int columns>
inline void interleave(U* to, const U* from, i64 from_stride, i64 rows) {
  for (i64 r = 0; r < rows; ++r) {
    TESSERA_UNROLL
    for (int c = 0; c < columns; ++c) to[r * columns + c] = from[c * from_stride + r];
  }
}

/// The two innermost loops (rows, columns), of which `from` is contiguous along the first and `to` along the second.
template <class U>
__attribute__((noinline)) void transpose_plane(char* to, i64 to_stride, const char* from, i64 from_stride, i64 rows,
                                               i64 columns) {
  constexpr i64 size = sizeof(U), block = sizeof(U) >= 4 ? NativeVec<U>::lanes : 16;
  const i64 to_step = to_stride / size, from_step = from_stride / size;
  auto* t = reinterpret_cast<U*>(to);
  auto* f = reinterpret_cast<const U*>(from);
  if (columns == to_step && columns == 2) return interleave<U, 2>(t, f, from_step, rows);
  if (columns == to_step && columns == 3) return interleave<U, 3>(t, f, from_step, rows);
  for (i64 r = 0; r < rows; r += block) {
    for (i64 c = 0; c < columns; c += block) {
      transpose_block(t + r * to_step + c, to_step, f + c * from_step + r, from_step, min(block, rows - r),
                      min(block, columns - c));
    }
  }
}

using TransposeFn = void (*)(char*, i64, const char*, i64, i64, i64);
inline TransposeFn transpose_of(int size) {
  switch (size) {
    case 1:
      return transpose_plane<u8>;
    case 2:
      return transpose_plane<u16>;
    case 4:
      return transpose_plane<float>;
    case 8:
      return transpose_plane<double>;
    default:
      return nullptr;
  }
}

/// Moves the loop along which operand 1 is contiguous to the second innermost place; false where the nest is not a
/// transposition worth blocks.
inline bool as_transposition(LoopNest& loops, int size) {
  const int last = loops.rank - 1;
  if (loops.rank < 2 || loops.strides[0][last] != size || loops.strides[1][last] == size) return false;
  for (int d = 0; d < last; ++d) {
    const bool few = loops.strides[0][d] == loops.lengths[last] * size;  // which lie together
    if (loops.strides[1][d] != size || loops.lengths[d] < 4 || loops.lengths[last] < (few ? 2 : 4)) continue;
    for (int k = d; k + 1 < last; ++k) swap_loops(loops, k, k + 1);
    return true;
  }
  return false;
}

/// Rows whose elements lie together on both sides, as those of channels that are put together. Copying ends in a
/// vector that overlaps the one before.
inline void copy_rows(char* to, i64 to_stride, const char* from, i64 from_stride, i64 rows, i64 bytes) {
  constexpr i64 v = 64;
  for (i64 r = 0; r < rows; ++r, to += to_stride, from += from_stride) {
    if (bytes < v) {
      __builtin_memcpy(to, from, static_cast<size_t>(bytes));
      continue;
    }
    for (i64 at = 0; at + v <= bytes; at += v) __builtin_memcpy(to + at, from + at, v);
    __builtin_memcpy(to + bytes - v, from + bytes - v, v);
  }
}

/// Elements [begin, end) of a copy to memory without gaps, past the caches: short runs are gathered first.
inline void stream_copy(const LoopNest& loops, char* to, const char* from, i64 size, ConvertFn convert, i64 begin,
                        i64 end) {
  constexpr i64 room = 4096, long_run = 1024;
  alignas(64) char gathered[room];
  i64 held = 0;
  const i64 stride = loops.strides[1][loops.rank - 1];
  const auto write = [&](const char* bytes, i64 n) {
    cpu::stream(to, bytes, n);
    to += n;
  };
  to += begin * size;
  LoopWalk walk(loops, begin);
  for (i64 at = begin, n = 0; at < end; at += n) {
    n = min(walk.run(loops), end - at);
    const char* const run = from + walk.offset[1];
    if (stride == size && n * size >= long_run) {
      write(gathered, held);
      write(run, n * size);
      held = 0;
    } else {
      n = min(n, (room - held) / size);
      convert(gathered + held, size, run, stride, n);
      held += n * size;
      if (held + size > room) {
        write(gathered, held);
        held = 0;
      }
    }
    walk.advance(loops, n);
  }
  write(gathered, held);
  cpu::fence();
}

}  // namespace detail

/// Operand 1 of the loops to operand 0, converted. `size` is that of an element where both have one type, else 0.
inline void run_copy(LoopNest& loops, void* to, const void* from, int size, ConvertFn convert,
                     const ExecutorRef& executor) {
  sort_loops(loops, 0, loops.rank);
  join_loops(loops);
  if (loops.rank == 0) return convert(to, 0, from, 0, 1);
  auto* t = static_cast<char*>(to);
  auto* f = static_cast<const char*>(from);
  if (size > 0 && detail::as_transposition(loops, size)) {
    const auto transpose = detail::transpose_of(size);
    const int row = loops.rank - 2, column = loops.rank - 1;
    const i64 rows = loops.lengths[row], columns = loops.lengths[column];
    LoopNest outer = loops;
    outer.rank = row;
    const i64 band = columns < 4 ? 4096 : 64;  // rows of a task
    const i64 bands = ceil_div(rows, band);
    split_range(executor, outer.total() * bands, band * columns * 2, 1, [&](i64 begin, i64 end, int) {
      for (i64 i = begin; i < end; ++i) {
        const LoopWalk at(outer, i / bands);
        const i64 first = i % bands * band, count = min(band, rows - first);
        transpose(t + at.offset[0] + first * loops.strides[0][row], loops.strides[0][row],
                  f + at.offset[1] + first * size, loops.strides[1][column], count, columns);
      }
    });
    return;
  }
  const int last = loops.rank - 1;
  const bool streams = size > 0 && is_dense(loops, 0, size) && loops.total() * size >= cpu::streamed_bytes;
  constexpr i64 short_row = 4096;  // bytes, of which a call of memcpy would be a good part
  const i64 row_bytes = loops.lengths[last] * size;
  if (row_bytes > 0 && row_bytes <= short_row && !streams && last > 0 && loops.strides[0][last] == size &&
      loops.strides[1][last] == size) {
    LoopNest outer = loops;
    outer.rank = last;
    split_range(executor, outer.total(), loops.lengths[last], 1, [&](i64 begin, i64 end, int) {
      LoopWalk at(outer, begin);
      for (i64 row = begin, n = 0; row < end; row += n) {
        n = min(at.run(outer), end - row);
        detail::copy_rows(t + at.offset[0], outer.strides[0][last - 1], f + at.offset[1], outer.strides[1][last - 1], n,
                          row_bytes);
        at.advance(outer, n);
      }
    });
    return;
  }
  split_range(executor, loops.total(), 1, strip_unit, [&](i64 begin, i64 end, int) {
    if (streams) return detail::stream_copy(loops, t, f, size, convert, begin, end);
    LoopWalk walk(loops, begin);
    for (i64 at = begin, n = 0; at < end; at += n) {
      n = min(walk.run(loops), end - at);
      convert(t + walk.offset[0], loops.strides[0][last], f + walk.offset[1], loops.strides[1][last], n);
      walk.advance(loops, n);
    }
  });
}

/// Copies a strided view to another of the same lengths, with conversion.
template <class Executor, class Out, class In>
void copy_view(Executor& executor, const Out& out, const In& in) {
  static_assert(Out::is_strided && In::is_strided && Out::rank == In::rank, "copy_view: strided views of one rank");
  using T = typename Out::Element;
  using S = remove_cvref_t<typename In::Element>;
  LoopNest loops;
  loops.rank = Out::rank;
  loops.operands = 2;
  for (int d = 0; d < Out::rank; ++d) {
    loops.lengths[d] = out.length(d);
    loops.strides[0][d] = out.stride(d) * static_cast<i64>(sizeof(T));
    loops.strides[1][d] = in.stride(d) * static_cast<i64>(sizeof(S));
  }
  run_copy(loops, out.data, in.data, is_same_v<T, S> ? sizeof(T) : 0, convert_run<T, S>, ExecutorRef(executor));
}

TESSERA_TILE_END
