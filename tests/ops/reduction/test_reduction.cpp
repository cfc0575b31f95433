#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/ops_check.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

TEST(Reduction, ResultsHaveTheirDtypes) {
  Tensor i = ones({2, 3}, Int32), b = ones({2, 3}, Bool), h = ones({2, 3}, Float16);
  EXPECT_EQ(sum(i).dtype(), Int64);
  EXPECT_EQ(sum(b).item<int64_t>(), 6);
  EXPECT_EQ(mean(i).dtype(), Float32);
  EXPECT_EQ(amax(i).dtype(), Int32);
  EXPECT_EQ(sum(h).dtype(), Float16);
  EXPECT_EQ(any(h).dtype(), Bool);
  EXPECT_EQ(argmax(h, 1).dtype(), Int64);
}

TEST(Reduction, LosesNothingOverManyElements) {
  Tensor x = full({1000003}, 0.1);
  EXPECT_NEAR(sum(x).item(), 1000003 * static_cast<double>(0.1f), 0.1);
  EXPECT_NEAR(mean(x).item(), static_cast<double>(0.1f), 1e-7);
  Tensor far = arange(0, 100000, 1, Float32) * 1e-3 + 1e4;
  EXPECT_NEAR(var(far).item(), 1e-6 * 100000.0 * 100001.0 / 12, 1.0);
}

TEST(Reduction, MeansOfIntegersAreNotRounded) {
  for (const DType dtype : {Int64, Int32, UInt8, Bool}) {
    const Tensor x = tensor(std::vector<int64_t>{1, 0, 1, 1, 0, 1}, {2, 3}).to(dtype);
    EXPECT_EQ(mean(x, {0}).to_vector<float>(), (std::vector<float>{1, 0, 1})) << name(dtype);
    EXPECT_EQ(mean(x, {1}).to_vector<float>(), (std::vector<float>{2 / 3.0f, 2 / 3.0f})) << name(dtype);
    EXPECT_EQ(mean(x).item<float>(), 4 / 6.0f) << name(dtype);
  }
}

TEST(Reduction, TreatsSpecialValues) {
  double inf = std::numeric_limits<double>::infinity();
  Tensor x = tensor<double>({1, std::nan(""), 3, -inf, -inf, -inf}, {2, 3});
  EXPECT_TRUE(std::isnan(amax(x, {1}).to_vector<double>()[0]));
  EXPECT_EQ(argmax(x, 1).to_vector<int64_t>(), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(logsumexp(x, {1}).to_vector<double>()[1], -inf);
  EXPECT_EQ(sum(zeros({0, 3})).item(), 0);
  EXPECT_EQ(prod(zeros({0})).item(), 1);
  EXPECT_TRUE(std::isnan(mean(zeros({0})).item()));
  EXPECT_EQ(argmax(tensor<float>({2, 7, 7, 1}, {4}), 0).item<int64_t>(), 1);
}

// Rows of a few vectors and their rest.
TEST(Reduction, FoldsRowsOfAnyLength) {
  Generator g(11);
  for (const int64_t n : {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 70, 129, 1025}) {
    const Tensor x = normal64({3, n}, g).to(Float32);
    const std::vector<float> all = x.to_vector<float>();
    const auto largest = max_with_index(x, 1), smallest = min_with_index(x, 1);
    for (int64_t row = 0; row < 3; ++row) {
      const auto begin = all.begin() + row * n, end = begin + n;
      EXPECT_EQ(select(largest.second, 0, row).item<int64_t>(), std::max_element(begin, end) - begin) << n;
      EXPECT_EQ(select(smallest.second, 0, row).item<int64_t>(), std::min_element(begin, end) - begin) << n;
      EXPECT_EQ(select(largest.first, 0, row).item<float>(), *std::max_element(begin, end)) << n;
      EXPECT_NEAR(select(sum(x, {1}), 0, row).item<float>(), std::accumulate(begin, end, 0.0), 2e-6 * double(n)) << n;
    }
    EXPECT_EQ(argmax(full({2, n}, 3), 1).to_vector<int64_t>(), (std::vector<int64_t>{0, 0})) << n;
    const Tensor last = arange(0, double(n)),
                 bad = where(eq(last, full({}, double(n - 1), last.dtype())), full({}, NAN), full({}, 1.0));
    EXPECT_EQ(argmax(bad, 0).item<int64_t>(), n - 1);
    EXPECT_TRUE(std::isnan(amax(bad, {0}).item<float>())) << n;
  }
}

TEST(Reduction, TheDeviationOfWhatDoesNotVaryHasNoSlope) {
  for (const int64_t n : {1, 3}) {
    Tensor x = full({n}, 2.0, Float64).set_requires_grad();
    std_dev(x, {}, 0).backward();
    EXPECT_EQ(x.grad().to_vector<double>(), zeros({n}).to_vector<double>()) << n;
  }
}

TEST(Reduction, SumsToBroadcastShapes) {
  Generator g(3);
  Tensor x = normal64({2, 3, 5}, g);
  EXPECT_LE(relative_error(sum_to(x, {3, 1}), sum(x, {0, 2}, true).reshape({3, 1})), 1e-15);
  EXPECT_LE(relative_error(sum_to(x, {}), sum(x)), 1e-14);
  EXPECT_TRUE(same(sum_to(x, {2, 3, 5}), x));
  EXPECT_EQ(error_of([&] { sum_to(x, {4}); }), "sum_to: [4] does not broadcast to [2, 3, 5]");
  EXPECT_EQ(error_of([&] { sum_to(x, {1, 2, 3, 5}); }), "sum_to: [1, 2, 3, 5] does not broadcast to [2, 3, 5]");
}

TEST(Reduction, IsEqualForAnyNumberOfThreads) {
  Generator g(5);
  Tensor x = randn({257, 1031}, g);
  int before = num_threads();
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    auto all = sum(x).to_vector<float>(), rows = sum(x, {1}).to_vector<float>(),
         columns = mean(x, {0}).to_vector<float>();
    all.insert(all.end(), rows.begin(), rows.end());
    all.insert(all.end(), columns.begin(), columns.end());
    results.push_back(all);
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Reduction, NamesTheRuleThatIsBroken) {
  Tensor x = ones({2, 3});
  EXPECT_EQ(error_of([&] { sum(x, {2}); }), "sum: dim 2 is out of range for [2, 3]");
  EXPECT_EQ(error_of([&] { sum(x, {1, -1}); }), "sum: dim -1 of [2, 3] is named twice");
  EXPECT_EQ(error_of([&] { amax(zeros({0, 3}), {0}); }), "amax: no elements to choose from in [0, 3]");
  EXPECT_EQ(error_of([&] { argmin(zeros({0}), 0); }), "argmin: no elements to choose from in [0]");
  EXPECT_EQ(error_of([&] { topk(x, 4); }), "topk: 4 of dim 1 of [2, 3]");
  EXPECT_EQ(error_of([&] { cumsum(x, 5); }), "cumsum: dim 5 is out of range for [2, 3]");
  EXPECT_EQ(error_of([&] { mean(Tensor()); }), "mean: input 0 is undefined");
}

}  // namespace
}  // namespace tessera
