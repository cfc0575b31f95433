// Which pipeline a product takes, and its division among the threads.
#pragma once

#include "skinny.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Whether each of `count` products is one thread's work.
inline bool one_thread_each(const ExecutorRef& executor, i64 count) { return executor.threads() < 2 * count; }

/// Which part of a product a task computes, in a grid of at most as many parts as there are threads.
struct Cell {
  i64 row, column;
};

/// Whether each thread had better keep to one part of the steps of k, and add it to all cells of the grid in turns:
/// where these are rows of both matrices, which the same thread may have written, and all that happens to the sums is
/// addition.
template <class T>
bool gains_by_turns(const Product<T>& product, i64 threads) {
  constexpr i64 least = 768 / static_cast<i64>(sizeof(T));
  const bool rows = product.a.data && product.b.data && product.a.outer_stride == 1 && product.b.outer_stride == 1;
  return rows && product.epilogue.direct && threads > 1 && product.extent.k >= least * threads;
}

/// `count` products of one extent; get(i, cell, f) calls f with the i-th Product, of which `cell` will be computed. A
/// config, where given, is a valid one.
template <class T, class Get>
void multiply_all(const ExecutorRef& executor, const Extent& e, i64 count, const Get& get,
                  const Config* config = nullptr) {
  if (e.m <= 0 || e.n <= 0 || count <= 0) return;
  const double work = static_cast<double>(count) * static_cast<double>(e.m) * static_cast<double>(e.n) *
                      static_cast<double>(max<i64>(e.k, 1));
  const i64 threads = work < 4e5 ? 1 : executor.threads();
  const i64 threads_each = max<i64>(1, threads / count);
  bool skinny = false, in_turns = false;  // the same for all: they differ in their data only
  if (config == nullptr && (min(e.m, e.n) <= skinny_limit || (threads > 1 && count == 1)))
    get(0, Cell{0, 0}, [&](const Product<T>& product) {
      skinny = min(e.m, e.n) <= skinny_limit && SkinnyTask<T>::fits(product);
      in_turns = !skinny && count == 1 && gains_by_turns(product, threads);
    });
  const Grid grid = choose_grid<T>(e, threads_each);
  const i64 lines = max(e.m, e.n), line_unit = block_columns<T>;
  const i64 parts = skinny ? min(threads_each, ceil_div(lines, line_unit)) : grid.m * grid.n;
  constexpr i64 most_shared = 64;
  PanelCursor cursors[most_shared];
  const bool shared = !skinny && !in_turns && count == 1 && grid.m > 1 && parts <= most_shared;
  for (i64 i = 0; shared && i < parts; ++i) cursors[i].close();
  const i64 turns = in_turns ? parts : 1;
  i64 turn = 0;
  const auto run = [&](i64 index, int thread) {
    const i64 cell = (index + turn) % parts;
    const i64 across = skinny ? (e.m <= e.n ? parts : 1) : grid.n;
    get(index / parts, Cell{cell / across, cell % across}, [&](const Product<T>& product) {
      if (skinny) {
        SkinnyTask<T> task(product, part(lines, parts, cell, line_unit));
        task.run(executor.scratch(thread, task.scratch_bytes()));
      } else {
        const i64 row = cell / grid.n, column = cell % grid.n;
        const Span columns = part(e.n, grid.n, column, line_unit);
        const Places places{product.b.place != nullptr, product.a.data != nullptr && product.a.outer_stride == 1,
                            product.b.panels != nullptr, product.b.panels != nullptr && e.m <= skinny_limit};
        const Span steps = part({0, e.k}, turns, index % turns);
        const Extent tallest{part(e.m, grid.m, 0).size(), columns.size(), steps.size()};  // a column's are cut alike
        BlockedTask<T> task(product, part(e.m, grid.m, row), columns, steps, turn > 0,
                            config ? *config : default_config<T>(tallest, places));
        task.run(executor.scratch(thread, task.scratch_bytes()), shared ? &cursors[cell] : nullptr);
        for (i64 i = 1; shared && i < grid.m; ++i) {
          const i64 other = (row + i) % grid.m;
          task.help(part(e.m, grid.m, other), cursors[other * grid.n + column]);
        }
      }
    });
  };
  for (; turn < turns; ++turn) {
    if (threads == 1) {
      for (i64 i = 0; i < count * parts; ++i) run(i, 0);
    } else {
      executor.parallel(count * parts, run);
    }
  }
}

/// to[i * step] = the sum of place i of `lines` lines of `length`, in their order.
template <class T, class To>
void add_lines(const T* line, i64 lines, i64 length, To* to, i64 step) {
  for (i64 i = 0; i < length; ++i) {
    T total = 0;
    for (i64 j = 0; j < lines; ++j) total += line[j * length + i];
    to[i * step] = convert_element<To>(total);
  }
}

}  // namespace cpu
TESSERA_TILE_END
