// What sorts, counts and scans, against plain loops.
#include <algorithm>
#include <map>
#include <numeric>

#include "core/gpu_check.h"
#include "ops/composed_check.h"
#include "tessera/ops_indexing.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;
using Places = std::vector<int64_t>;

// f on each line of x [a, n, b] along dim 1 gives values and places; all of them in row-major order.
template <class F>
std::pair<Numbers, Places> by_line(const Tensor& x, const F& f) {
  const int64_t outer = x.size(0), n = x.size(1), inner = x.size(2);
  Numbers values;
  Places places;
  int64_t count = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < inner; ++i) {
      Numbers line;
      for (int64_t k = 0; k < n; ++k) line.push_back(x.data<double>()[(o * n + k) * inner + i]);
      const std::pair<Numbers, Places> got = f(line);
      count = static_cast<int64_t>(std::max(got.first.size(), got.second.size()));
      values.insert(values.end(), got.first.begin(), got.first.end());
      places.insert(places.end(), got.second.begin(), got.second.end());
    }
  const auto in_place = [&]<class T>(const std::vector<T>& lines) {
    std::vector<T> out(lines.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto k = static_cast<int64_t>(i) % count, line = static_cast<int64_t>(i) / count;
      out[static_cast<size_t>((line / inner * count + k) * inner + line % inner)] = lines[i];
    }
    return out;
  };
  return {in_place(values), in_place(places)};
}

Places sorted_places(const Numbers& line, bool descending) {
  Places order(line.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double x = line[static_cast<size_t>(a)], y = line[static_cast<size_t>(b)];
    return descending ? x > y : x < y;
  });
  return order;
}
Numbers at_places(const Numbers& line, const Places& places) {
  Numbers out;
  for (int64_t p : places) out.push_back(line[static_cast<size_t>(p)]);
  return out;
}

// With ties.
Tensor few_values(const Shape& shape, Generator& g) { return round(uniform64(shape, g, -3, 3)); }

TEST(Order, SortsStably) {
  Generator g(3);
  for (int64_t n : {1, 2, 7, 67})
    for (bool descending : {false, true}) {
      const Tensor x = few_values({2, n, 3}, g);
      const auto [values, places] = by_line(x, [&](const Numbers& line) {
        const Places order = sorted_places(line, descending);
        return std::pair{at_places(line, order), order};
      });
      const auto [got, index] = sort(x, 1, descending);
      EXPECT_EQ(got.to_vector<double>(), values);
      EXPECT_EQ(index.to_vector<int64_t>(), places);
      EXPECT_EQ(argsort(x, -2, descending).to_vector<int64_t>(), places);
    }
  expect_gradients([](const Tensors& in) { return sort(in[0], 0).first; }, {uniform64({5, 3}, g)}, "sort");
  EXPECT_EQ(argsort(tensor<double>({NAN, 1, -INFINITY, INFINITY}, {4})).to_vector<int64_t>(), (Places{2, 1, 3, 0}));
  EXPECT_EQ(sort(full({}, 5)).second.item<int64_t>(), 0);
}

TEST(Order, ElementsByRank) {
  Generator g(5);
  const Tensor x = few_values({2, 9, 3}, g);
  for (int64_t k : {1, 4, 9}) {
    const auto [values, places] = by_line(x, [&](const Numbers& line) {
      const Places one = {sorted_places(line, false)[static_cast<size_t>(k - 1)]};
      return std::pair{at_places(line, one), one};
    });
    const auto [got, index] = kthvalue(x, k, 1);
    EXPECT_EQ(to_string(got.shape()), "[2, 3]");
    EXPECT_EQ(got.to_vector<double>(), values);
    EXPECT_EQ(index.to_vector<int64_t>(), places);
  }
  EXPECT_EQ(median(tensor<float>({4, 1, 3, 2}, {2, 2})).item(), 2);
  EXPECT_EQ(median(tensor<float>({4, 1, 3, 2, 9, 0}, {2, 3}), 1).first.to_vector<double>(), (Numbers{3, 2}));
  EXPECT_EQ(to_string(median(x, 1, true).second.shape()), "[2, 1, 3]");
  expect_gradients([](const Tensors& in) { return median(in[0], 1).first; }, {uniform64({3, 5}, g)}, "median");
  const auto [nan, at] = median(tensor<float>({0, NAN, 2, NAN}, {4}), 0);
  EXPECT_TRUE(std::isnan(nan.item()));
  EXPECT_EQ(at.item<int64_t>(), 1);
  EXPECT_TRUE(std::isnan(median(ones({0, 4})).item()));
  EXPECT_EQ(error_of([&] { kthvalue(x, 10, 1); }), "kthvalue: no element 10 among 9 along dim 1 of [2, 9, 3]");
  EXPECT_EQ(error_of([] { median(ones({2, 0}), 1); }), "median: no elements to choose from along dim 1 of [2, 0]");
}

TEST(Order, ExtremesWithTheirPlaces) {
  Generator g(7);
  const Tensor x = few_values({2, 9, 3}, g);
  const auto expect = [&](const std::pair<Tensor, Tensor>& got, auto before, bool last) {
    const auto [values, places] = by_line(x, [&](const Numbers& line) {
      int64_t best = 0;
      for (int64_t i = 1; i < 9; ++i) {
        const double a = line[static_cast<size_t>(i)], b = line[static_cast<size_t>(best)];
        if (before(a, b) || (last && a == b)) best = i;
      }
      return std::pair{at_places(line, {best}), Places{best}};
    });
    if (got.first.defined()) {
      EXPECT_EQ(got.first.to_vector<double>(), values);
    }
    EXPECT_EQ(got.second.to_vector<int64_t>(), places);
  };
  expect(max_with_index(x, 1), std::greater<>(), false);
  expect(min_with_index(x, 1, true), std::less<>(), false);
  expect({{}, argmax_last(x, 1)}, std::greater<>(), true);
  expect({{}, argmin_last(x, 1, true)}, std::less<>(), true);
  EXPECT_EQ(to_string(min_with_index(x, 1, true).first.shape()), "[2, 1, 3]");
  expect_gradients([](const Tensors& in) { return max_with_index(in[0], 1).first; }, {uniform64({3, 5}, g)}, "max");
  EXPECT_EQ(error_of([&] { max_with_index(x, 3); }), "max_with_index: dim 3 is out of range for [2, 9, 3]");
}

TEST(Order, PlacesInWhatIsSorted) {
  Generator g(9);
  for (int64_t n : {0, 1, 2, 7, 64}) {
    const Tensor sorted = n ? sort(few_values({3, n}, g), 1).first : zeros({3, 0}, Float64);
    const Tensor values = few_values({3, 5}, g) + 0.0;
    for (bool right : {false, true}) {
      Places want;
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t i = 0; i < 5; ++i) {
          const double *begin = sorted.data<double>() + r * n, v = values.data<double>()[r * 5 + i];
          want.push_back((right ? std::upper_bound(begin, begin + n, v) : std::lower_bound(begin, begin + n, v)) -
                         begin);
        }
      EXPECT_EQ(searchsorted(sorted, values, right).to_vector<int64_t>(), want) << n;
    }
  }
  EXPECT_EQ(bucketize(tensor<float>({0, 1, 5, 9}, {2, 2}), tensor<float>({1, 5, 7}, {3})).to_vector<int64_t>(),
            (Places{0, 0, 1, 3}));
  const Tensor few = tensor<float>({0, 1, 2}, {3}), odd = tensor<float>({NAN, INFINITY, -INFINITY, 1}, {4});
  EXPECT_EQ(searchsorted(few, odd).to_vector<int64_t>(), (Places{3, 3, 0, 1}));
  EXPECT_EQ(searchsorted(few, odd, true).to_vector<int64_t>(), (Places{3, 3, 0, 2}));
  EXPECT_EQ(error_of([] {
              searchsorted(ones({2, 3}), ones({3, 3}));
            }),
            "searchsorted: rows of [3, 3] do not match those of [2, 3]");
  EXPECT_EQ(error_of([] { bucketize(ones({2}), ones({2, 3})); }), "bucketize: the boundaries [2, 3] are not 1-d");
}

TEST(Order, CountsInParts) {
  Generator g(11);
  const Tensor x = uniform64({5, 31}, g, -2, 3);
  Numbers want(7);
  for (double v : x.to_vector<double>())
    if (v >= -1 && v <= 2) ++want[static_cast<size_t>(std::min(6.0, std::floor((v + 1) / 3 * 7)))];
  EXPECT_EQ(histc(x, 7, -1, 2).to_vector<double>(), want);
  EXPECT_EQ(sum(histc(x, 9)).item(), 155);
  EXPECT_EQ(histc(full({4}, 3.0), 2).to_vector<double>(), (Numbers{0, 4}));

  const Tensor whole = indices({50}, 6, g), weights = uniform64({50}, g);
  Numbers counts(9), sums(6);
  for (size_t i = 0; i < 50; ++i) {
    const auto at = static_cast<size_t>(whole.data<int64_t>()[i]);
    ++counts[at];
    sums[at] += weights.data<double>()[i];
  }
  EXPECT_EQ(bincount(whole, {}, 9).to_vector<double>(), counts);
  expect_elements(bincount(whole, weights), sums, "bincount");
  EXPECT_EQ(bincount(zeros({0}, Int64)).numel(), 0);
  EXPECT_EQ(error_of([] { histc(ones({3}), 0); }), "histc: 0 bins");
  EXPECT_EQ(error_of([] { histc(ones({3}), 2, 1, 0); }), "histc: no range from 1 to 0");
  EXPECT_EQ(error_of([] { bincount(ones({3})); }), "bincount: takes a 1-d tensor of integers, not f32[3] on cpu");
  EXPECT_EQ(error_of([] { bincount(full({1}, -1, Int64), {}, 3); }), "bincount: index -1 is out of range");
}

template <class F>
std::pair<Numbers, Places> scanned(const Tensor& x, F step) {
  return by_line(x, [&](const Numbers& line) {
    Numbers values;
    Places places;
    for (size_t i = 0; i < line.size(); ++i) {
      const double before = i ? values.back() : 0;
      const auto [value, taken] = i ? step(before, line[i]) : std::pair{line[0], true};
      values.push_back(value);
      places.push_back(taken ? static_cast<int64_t>(i) : places.back());
    }
    return std::pair{values, places};
  });
}

TEST(Order, Scans) {
  Generator g(13);
  for (int64_t n : {1, 2, 7, 16, 33}) {
    const Tensor x = uniform64({2, n, 3}, g), ties = few_values({2, n, 3}, g);
    expect_elements(cumprod(x, 1),
                    scanned(x,
                            [](double a, double b) {
                              return std::pair{a * b, true};
                            })
                        .first,
                    "cumprod");
    expect_elements(logcumsumexp(x, 1),
                    scanned(x,
                            [](double a, double b) {
                              return std::pair{std::log(std::exp(a) + std::exp(b)), true};
                            })
                        .first,
                    "logcumsumexp");
    const auto largest = scanned(ties, [](double a, double b) { return std::pair{std::max(a, b), b >= a}; });
    const auto smallest = scanned(ties, [](double a, double b) { return std::pair{std::min(a, b), b <= a}; });
    EXPECT_EQ(cummax(ties, 1).first.to_vector<double>(), largest.first);
    EXPECT_EQ(cummax(ties, 1).second.to_vector<int64_t>(), largest.second);
    EXPECT_EQ(cummin(ties, -2).first.to_vector<double>(), smallest.first);
    EXPECT_EQ(cummin(ties, -2).second.to_vector<int64_t>(), smallest.second);
  }
  const Tensor x = uniform64({3, 6}, g);
  expect_gradients([](const Tensors& in) { return cumprod(in[0], 1); }, {x}, "cumprod");
  expect_gradients([](const Tensors& in) { return cumprod(in[0], 0); }, {x * ge(x, zeros({}, Float64)).to(Float64)},
                   "0");
  expect_gradients([](const Tensors& in) { return logcumsumexp(in[0], 1); }, {x}, "logcumsumexp");
  expect_gradients([](const Tensors& in) { return cummax(in[0], 1).first; }, {x}, "cummax");
}

TEST(Order, ScansOfIntegersNumbersAndInfinities) {
  EXPECT_EQ(cumprod(tensor<int32_t>({2, -3, 4}, {3}), 0).to_vector<int64_t>(), (Places{2, -6, -24}));
  EXPECT_EQ(cumprod(full({}, 3.0), 0).item(), 3);
  EXPECT_EQ(cummax(tensor<int64_t>({1, 3, 2, 3}, {4}), 0).second.to_vector<int64_t>(), (Places{0, 1, 1, 3}));
  const auto with_nan = cummin(tensor<double>({1, NAN, 0}, {3}), 0);
  EXPECT_TRUE(std::isnan(with_nan.first.to_vector<double>()[2]));
  EXPECT_EQ(with_nan.second.to_vector<int64_t>(), (Places{0, 1, 1}));
  EXPECT_EQ(logcumsumexp(tensor<double>({-INFINITY, -INFINITY, 0}, {3}), 0).to_vector<double>(),
            (Numbers{-INFINITY, -INFINITY, 0}));
  EXPECT_EQ(error_of([] { cumprod(ones({2}), 1); }), "cumprod: dim 1 is out of range for [2]");
}

TEST(Order, SlicesThatAreThereOnce) {
  Generator g(17);
  const Tensor x = indices({23, 2}, 3, g);
  std::map<Places, Places> rows;
  for (int64_t i = 0; i < 23; ++i) rows[{x.data<int64_t>()[2 * i], x.data<int64_t>()[2 * i + 1]}].push_back(i);
  Places values, first, counts, inverse(23);
  for (int64_t n = 0; const auto& [row, where] : rows) {
    values.insert(values.end(), row.begin(), row.end());
    first.push_back(where[0]);
    counts.push_back(static_cast<int64_t>(where.size()));
    for (int64_t i : where) inverse[static_cast<size_t>(i)] = n;
    ++n;
  }
  const UniqueAlong u = unique_along(x, 0);
  EXPECT_EQ(u.values.to_vector<int64_t>(), values);
  EXPECT_EQ(u.first.to_vector<int64_t>(), first);
  EXPECT_EQ(u.counts.to_vector<int64_t>(), counts);
  EXPECT_EQ(u.inverse.to_vector<int64_t>(), inverse);

  const UniqueAlong seen = unique_along(transpose(x, 0, 1), 1, false);
  EXPECT_TRUE(std::is_sorted(first.begin(), first.end()) || seen.first.to_vector<int64_t>() != first);
  const auto order = seen.first.to_vector<int64_t>();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(index_select(seen.values, 1, seen.inverse).to_vector<int64_t>(), transpose(x, 0, 1).to_vector<int64_t>());
  EXPECT_EQ(sum(seen.counts).item(), 23);
  EXPECT_EQ(unique_along(zeros({0, 3}), 0).counts.numel(), 0);
  EXPECT_EQ(error_of([&] { unique_along(x, 2); }), "unique_along: dim 2 is out of range for [23, 2]");
}

TEST(Order, SlicesAreComparedInRowMajorOrder) {
  // Along the last dim the slices are (1, 0, 1, 0) and (1, 1, 0, 0): they differ first at [0, 1].
  const Tensor x = tensor<int64_t>({1, 1, 0, 1, 1, 0, 0, 0}, {2, 2, 2});
  EXPECT_EQ(unique_along(x, 2).first.to_vector<int64_t>(), (Places{0, 1}));
}

// Lines that are sorted by a few threads, by many, and by the bytes of their keys.
TEST(GpuOrder, SortsNanAndInfinitiesAsTheCpu) {
  if (!card().is_gpu()) GTEST_SKIP() << "no GPU";
  Generator g(18);
  const double rare[] = {NAN, INFINITY, -INFINITY, -0.0};
  for (const int64_t n : {1, 7, 100, 1500, 5000, 70001})
    for (const DType dtype : {Float32, Float64, Float16, BFloat16, Int8, Int32, Int64}) {
      const Tensor x = floor(uniform64({3, n}, g) * 100.0);
      if (is_floating(dtype))
        for (int64_t i = 0; i < x.numel(); i += 5) x.data<double>()[i] = rare[i / 5 % 4];
      const Tensor here = cast(x, dtype), there = here.to(card());
      for (const bool descending : {false, true}) {
        SCOPED_TRACE(std::to_string(n) + " " + std::string(name(dtype)) + (descending ? " down" : ""));
        const auto want = sort(here, 1, descending), got = sort(there, 1, descending);
        EXPECT_EQ(got.second.to(cpu()).to_vector<int64_t>(), want.second.to_vector<int64_t>());
        EXPECT_EQ(bitcast(got.first.to(cpu()), UInt8).to_vector<int64_t>(),
                  bitcast(want.first, UInt8).to_vector<int64_t>());
        const auto columns = sort(there.transpose(0, 1).contiguous(), 0, descending);
        EXPECT_EQ(columns.second.to(cpu()).transpose(0, 1).contiguous().to_vector<int64_t>(),
                  want.second.to_vector<int64_t>());
      }
    }
}

}  // namespace
}  // namespace tessera
