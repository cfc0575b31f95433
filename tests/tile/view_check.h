// Compares a view with a plain index computation: offsets, validity, runs and cursors.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "tile/view.h"

namespace tessera::tile {

/// Of views that nobody reads through.
inline constexpr float memory[1]{};

/// The offset that a coordinate should have, or -1 where the view should be invalid.
template <class V>
using Expected = std::function<i64(const typename V::Coords&)>;

/// All coordinates of the view, the last dimension running fastest.
template <class V>
std::vector<typename V::Coords> all_coords(const V& view) {
  std::vector<typename V::Coords> all;
  i64 count = 1;
  for (int d = 0; d < V::rank; ++d) count *= view.length(d);
  for (i64 i = 0; i < count; ++i) {
    typename V::Coords c{};
    i64 rest = i;
    for (int d = V::rank - 1; d >= 0; --d) {
      c[d] = static_cast<typename V::Index>(rest % view.length(d));
      rest /= view.length(d);
    }
    all.push_back(c);
  }
  return all;
}

/// Offsets, validity and, from every coordinate along every dimension, that run() tells the truth and stops
/// only where it must.
template <class V>
void check_view(const V& view, const Expected<V>& expected) {
  const auto position = [&](const auto& c) { return view.valid(c) ? view.offset(c) : -1; };
  for (const auto& c : all_coords(view)) {
    ASSERT_EQ(position(c), expected(c));
    for (int dim = 0; dim < V::rank; ++dim) {
      const Run run = view.run(c, dim);
      ASSERT_GE(run.length, 1);
      ASSERT_LE(c[dim] + run.length, view.length(dim));
      auto at = c;
      for (i64 i = 0; i < run.length; ++i, ++at[dim]) {
        ASSERT_EQ(run.valid ? run.offset + i * run.stride : -1, expected(at)) << "along " << dim << " at " << i;
      }
      if (at[dim] == view.length(dim)) continue;
      if (run.valid && run.length > 1) {
        // Two elements always lie at some stride: a run may stop before a piece of another stride.
        const bool could_go_on = expected(at) == run.offset + run.length * run.stride;
        if (could_go_on && at[dim] + 1 < view.length(dim)) {
          auto after = at;
          ++after[dim];
          ASSERT_NE(expected(after), expected(at) + run.stride) << "run along " << dim << " stops early";
        }
      }
      if (!run.valid) {
        ASSERT_NE(expected(at), -1) << "run along " << dim << " stops early";
      }
    }
  }
}

/// A cursor that jumps about at random always agrees with evaluation.
template <class V>
void check_cursor(const V& view, unsigned seed) {
  std::mt19937 random(seed);
  const auto all = all_coords(view);
  const auto any = [&] { return all[random() % all.size()]; };
  auto at = any();
  Cursor cursor(view.desc, at);
  const i64 start = view.offset(at);
  for (int i = 0; i < 200; ++i) {
    const auto to = any();
    typename V::Coords by{};
    for (int d = 0; d < V::rank; ++d) by[d] = to[d] - at[d];
    cursor.move(by);
    at = to;
    ASSERT_EQ(cursor.valid(), view.valid(at));
    if (!cursor.valid()) continue;
    ASSERT_EQ(cursor.offset(), view.offset(at));
    ASSERT_EQ(cursor.base(), start);
  }
}

}  // namespace tessera::tile
