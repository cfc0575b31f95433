// Running sums and top-k along lines, against the standard library.
#include "tile/kernels/scan.h"

#include <algorithm>
#include <numeric>

#include "rows_check.h"

namespace tessera::tile {
namespace {

/// A plan over a [rows, n] matrix, lines along the rows when `across`, else along the columns.
template <class T, class C>
LinePlan plan_of(std::vector<T>& in, i64 rows, i64 columns, bool across, void* out, i64 out_columns) {
  LinePlan plan;
  plan.lines.rank = 1;
  plan.lines.operands = 3;
  plan.length = across ? columns : rows;
  plan.lines.lengths[0] = across ? rows : columns;
  plan.load = convert_run<C, T>;
  plan.store = convert_run<T, C>;
  plan.store_index = convert_run<i64, i64>;
  plan.data[0] = in.data();
  plan.data[1] = out;
  const i64 steps[] = {columns, out_columns, out_columns}, sizes[] = {sizeof(T), sizeof(T), 8};
  for (int k = 0; k < 3; ++k) {
    plan.strides[k] = (across ? 1 : steps[k]) * sizes[k];
    plan.lines.strides[k][0] = (across ? steps[k] : 1) * sizes[k];
  }
  return plan;
}

TEST(Scan, CumulativeSums) {
  for (const bool across : {true, false}) {
    const i64 rows = 37, columns = 523;
    auto x = converted<float>(random_values(rows * columns, 1));
    std::vector<float> y(x.size());
    LinePlan plan = plan_of<float, double>(x, rows, columns, across, y.data(), columns);
    plan.lines.operands = 2;
    run_cumsum<double>(plan, ExecutorRef(executor()));
    std::vector<double> want(x.size());
    for (i64 i = 0; i < rows; ++i)
      for (i64 j = 0; j < columns; ++j) {
        const i64 at = i * columns + j, before = across ? at - 1 : at - columns;
        want[at] = x[at] + ((across ? j : i) > 0 ? want[before] : 0);
      }
    EXPECT_LT(relative_l2(widened(y), want), 1e-7);
  }
}

template <class T, class C>
void check_topk(i64 n, i64 k, bool largest, bool repeats) {
  const i64 rows = 5;
  auto x = converted<T>(random_values(rows * n, n + k));
  if (repeats) {
    for (T& v : x) v = convert_element<T>(std::floor(convert_element<double>(v)));
  } else if (static_cast<T>(0.5) != 0) {
    x[n / 2] = static_cast<T>(NAN);
  }
  std::vector<T> values(rows * k);
  std::vector<i64> indices(rows * k);
  LinePlan plan = plan_of<T, C>(x, rows, n, true, values.data(), k);
  plan.data[2] = indices.data();
  run_topk<C>(plan, k, largest, ExecutorRef(executor()));
  for (i64 r = 0; r < rows; ++r) {
    std::vector<i64> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) {
      const auto rank = [&](i64 i) { return std::isnan(double(x[r * n + i])) ? INFINITY : double(x[r * n + i]); };
      return largest ? rank(a) > rank(b) : rank(a) < rank(b);
    });
    for (i64 i = 0; i < k; ++i) {
      ASSERT_EQ(indices[r * k + i], order[i]) << n << ' ' << k << ' ' << i;
      if (!std::isnan(double(x[r * n + order[i]]))) {
        ASSERT_EQ(values[r * k + i], x[r * n + order[i]]);
      }
    }
  }
}

TEST(Scan, TopkInOrder) {
  for (const bool largest : {true, false}) {
    for (const auto& [n, k] : {std::pair<i64, i64>{1, 1}, {7, 7}, {300, 1}, {1000, 17}, {515, 515}, {9, 0}}) {
      check_topk<float, double>(n, k, largest, false);
      check_topk<float, double>(n, k, largest, true);
      check_topk<i64, i64>(n, k, largest, true);
    }
  }
}

}  // namespace
}  // namespace tessera::tile
