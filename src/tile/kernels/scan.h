// Kernels that walk lines along one dimension: running sums and selection of the k largest.
#pragma once

#include "elementwise.h"

TESSERA_TILE_BEGIN

/// Lines along one dimension of an input (operand 0) and up to two outputs (operands 1 and 2).
struct LinePlan {
  LoopNest lines;             // the other dimensions
  i64 length;                 // of the input's lines
  i64 strides[max_operands];  // bytes along the dimension
  void* data[max_operands];
  ConvertFn load, store;            // input to compute type T, T to the first output
  ConvertFn store_index = nullptr;  // i64 to the second output, where there is one
};

namespace detail {

template <class Fn>
inline void for_each_line(const LinePlan& plan, i64 cost, const ExecutorRef& executor, const Fn& fn) {
  LoopNest lines = plan.lines;
  join_loops(lines);
  if (lines.rank == 0) {
    lines.rank = 1;
    lines.lengths[0] = 1;
    for (int k = 0; k < lines.operands; ++k) lines.strides[k][0] = 0;
  }
  split_range(executor, lines.total(), plan.length * cost, 1, [&](i64 begin, i64 end, int thread) {
    LoopWalk walk(lines, begin);
    for (i64 i = begin; i < end; ++i, walk.advance(lines, 1)) {
      char* at[max_operands] = {};
      for (int k = 0; k < lines.operands; ++k) at[k] = static_cast<char*>(plan.data[k]) + walk.offset[k];
      fn(at, thread);
    }
  });
}

/// fn(elements, n, index of the first) over a line, in blocks of T.
template <class T, class Fn>
inline void for_each_block(const LinePlan& plan, const char* line, const Fn& fn) {
  T block[map_block];
  for (i64 i = 0; i < plan.length; i += map_block) {
    const i64 n = min(map_block, plan.length - i);
    plan.load(block, sizeof(T), line + i * plan.strides[0], plan.strides[0], n);
    fn(block, n, i);
  }
}

template <class T>
struct Ranked {
  T value;
  i64 index;
};

/// Whether a comes before b: NaN counts as largest, and of equals the first comes first.
template <class T>
inline bool before(const Ranked<T>& a, const Ranked<T>& b, bool largest) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if (a_nan != b_nan) return a_nan == largest;
  if (!a_nan && a.value != b.value) return (a.value > b.value) == largest;
  return a.index < b.index;
}

/// Restores a heap, whose root is the last in order, after its element `at` has changed.
template <class T>
inline void sift_down(Ranked<T>* heap, i64 n, i64 at, bool largest) {
  const Ranked<T> moved = heap[at];
  for (i64 child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && before(heap[child], heap[child + 1], largest)) ++child;
    if (!before(moved, heap[child], largest)) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}

/// The same of values alone, which are not ranked by their index.
template <bool largest, class T>
inline bool precedes(T a, T b) {
  return largest ? a > b || (a != a && b == b) : a < b || (b != b && a == a);
}

/// Two sorted runs into one; of equals those of the first run come first.
template <bool largest, class T>
inline void merge_runs(const Ranked<T>* a, const Ranked<T>* a_end, const Ranked<T>* b, const Ranked<T>* b_end,
                       Ranked<T>* out) {
  while (a != a_end && b != b_end) {
    const bool second = precedes<largest>(b->value, a->value);
    *out++ = second ? *b : *a;
    b += second;
    a += !second;
  }
  while (a != a_end) *out++ = *a++;
  while (b != b_end) *out++ = *b++;
}

/// Sorts stably, in runs that double; what is sorted lies in one of the two places that are given.
template <bool largest, class T>
inline Ranked<T>* sort_runs(Ranked<T>* items, Ranked<T>* spare, i64 n) {
  constexpr i64 shortest = 16;
  for (i64 begin = 0; begin < n; begin += shortest) {
    const i64 end = min(begin + shortest, n);
    for (i64 i = begin + 1; i < end; ++i) {
      const Ranked<T> moved = items[i];
      i64 at = i;
      for (; at > begin && precedes<largest>(moved.value, items[at - 1].value); --at) items[at] = items[at - 1];
      items[at] = moved;
    }
  }
  for (i64 run = shortest; run < n; run *= 2) {
    for (i64 begin = 0; begin < n; begin += 2 * run) {
      const i64 middle = min(begin + run, n), end = min(middle + run, n);
      merge_runs<largest>(items + begin, items + middle, items + middle, items + end, spare + begin);
    }
    Ranked<T>* const sorted = spare;
    spare = items;
    items = sorted;
  }
  return items;
}

}  // namespace detail

/// Running sums along each line in T (double or i64).
template <class T>
inline void run_cumsum(const LinePlan& plan, const ExecutorRef& executor) {
  detail::for_each_line(plan, 4, executor, [&](char* const* at, int) {
    T sum = 0;
    detail::for_each_block<T>(plan, at[0], [&](T* block, i64 n, i64 index) {
      for (i64 i = 0; i < n; ++i) block[i] = sum += block[i];
      plan.store(at[1] + index * plan.strides[1], plan.strides[1], block, sizeof(T), n);
    });
  });
}

namespace detail {
/// The k first of all elements of a line, which are sorted.
template <class T>
inline void run_sort(const LinePlan& plan, i64 k, bool largest, const ExecutorRef& executor) {
  using Item = Ranked<T>;
  for_each_line(plan, 32, executor, [&](char* const* at, int thread) {
    auto* items = static_cast<Item*>(executor.scratch(thread, 2 * plan.length * static_cast<i64>(sizeof(Item))));
    for_each_block<T>(plan, at[0], [&](const T* block, i64 n, i64 index) {
      for (i64 i = 0; i < n; ++i) items[index + i] = {block[i], index + i};
    });
    Item* const spare = items + plan.length;
    const Item* sorted =
        largest ? sort_runs<true>(items, spare, plan.length) : sort_runs<false>(items, spare, plan.length);
    plan.store(at[1], plan.strides[1], &sorted->value, sizeof(Item), k);
    if (plan.store_index) plan.store_index(at[2], plan.strides[2], &sorted->index, sizeof(Item), k);
  });
}
}  // namespace detail

/// The k first elements of each line in order, k <= length: by a heap of k, n log k at worst, or where most of them are
/// wanted by sorting the line.
template <class T>
inline void run_topk(const LinePlan& plan, i64 k, bool largest, const ExecutorRef& executor) {
  using Item = detail::Ranked<T>;
  if (k == 0) return;
  if (2 * k > plan.length) return detail::run_sort<T>(plan, k, largest, executor);
  detail::for_each_line(plan, 8, executor, [&](char* const* at, int thread) {
    auto* heap = static_cast<Item*>(executor.scratch(thread, k * static_cast<i64>(sizeof(Item))));
    i64 held = 0;
    detail::for_each_block<T>(plan, at[0], [&](const T* block, i64 n, i64 index) {
      for (i64 i = 0; i < n; ++i) {
        const Item item{block[i], index + i};
        if (held < k) {
          heap[held++] = item;
          if (held == k) {
            for (i64 j = k / 2; j-- > 0;) detail::sift_down(heap, k, j, largest);
          }
        } else if (detail::before(item, heap[0], largest)) {
          heap[0] = item;
          detail::sift_down(heap, k, 0, largest);
        }
      }
    });
    for (i64 n = k - 1; n > 0; --n) {  // heap sort: the last in order moves to the end
      const Item last = heap[0];
      heap[0] = heap[n];
      detail::sift_down(heap, n, 0, largest);
      heap[n] = last;
    }
    plan.store(at[1], plan.strides[1], &heap[0].value, sizeof(Item), k);
    plan.store_index(at[2], plan.strides[2], &heap[0].index, sizeof(Item), k);
  });
}

TESSERA_TILE_END
