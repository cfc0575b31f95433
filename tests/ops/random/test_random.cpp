#include <numeric>

#include "ops/ops_check.h"
#include "tessera/parallel.h"
#include "tile/random.h"

namespace tessera {
namespace {

double mean_of(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

// Known answers of Random123, the reference implementation of Salmon et al.; our counter's upper half is zero.
TEST(Random, PhiloxGivesTheKnownAnswers) {
  auto made = tile::philox<tile::u64>(0, 0);
  EXPECT_EQ(made.word[0], 0x6627e8d5u);
  EXPECT_EQ(made.word[1], 0xe169c58du);
  EXPECT_EQ(made.word[2], 0xbc57ac4cu);
  EXPECT_EQ(made.word[3], 0x9b00dbd8u);
}

TEST(Random, IsEqualForAnyNumberOfThreads) {
  int before = num_threads();
  std::vector<std::vector<double>> results;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Generator g(42);
    std::vector<double> all;
    for (const Tensor& t :
         {rand({100003}, g), randn({5001}, g), randint(0, 1000, {5001}, g).to(Float64),
          dropout(ones({40001}), 0.3, true, g), multinomial(ones({70, 31}), 5, false, g).to(Float64)}) {
      auto v = t.to_vector<double>();
      all.insert(all.end(), v.begin(), v.end());
    }
    results.push_back(all);
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Random, DrawsContinueOneStream) {
  Generator whole(9), parts(9);
  auto all = rand({24}, whole).to_vector<float>(), some = rand({8}, parts).to_vector<float>(),
       rest = rand({16}, parts).to_vector<float>();
  some.insert(some.end(), rest.begin(), rest.end());
  EXPECT_EQ(all, some);
  parts.set_state(9, 0);
  EXPECT_EQ(rand({24}, parts).to_vector<float>(), all);
  EXPECT_NE(rand({24}, parts).to_vector<float>(), all);
}

TEST(Random, HasTheMomentsOfItsDistributions) {
  Generator g(1);
  const int64_t n = 200000;
  auto error = [&](double deviation) { return 5 * deviation / std::sqrt(static_cast<double>(n)); };
  for (DType dtype : {Float32, Float64}) {
    auto u = rand({n}, g, dtype).to_vector<double>(), z = randn({n}, g, dtype).to_vector<double>();
    EXPECT_NEAR(mean_of(u), 0.5, error(0.289));
    EXPECT_GE(*std::min_element(u.begin(), u.end()), 0);
    EXPECT_LT(*std::max_element(u.begin(), u.end()), 1);
    EXPECT_NEAR(mean_of(z), 0, error(1));
    double squares = 0, cubes = 0, neighbours = 0;
    for (size_t i = 0; i < z.size(); ++i) {
      squares += z[i] * z[i];
      cubes += z[i] * z[i] * z[i];
      if (i) neighbours += z[i] * z[i - 1];
    }
    EXPECT_NEAR(squares / n, 1, error(std::sqrt(2)));
    EXPECT_NEAR(cubes / n, 0, error(std::sqrt(15)));
    EXPECT_NEAR(neighbours / n, 0, error(1));
  }
  auto i = randint(-3, 4, {n}, g).to_vector<double>();
  EXPECT_NEAR(mean_of(i), 0, error(2));
  EXPECT_EQ(*std::min_element(i.begin(), i.end()), -3);
  EXPECT_EQ(*std::max_element(i.begin(), i.end()), 3);
}

TEST(Random, DropoutKeepsTheMeanAndItsMask) {
  Generator g(2);
  Tensor x = ones({200000}).set_requires_grad();
  Tensor y = dropout(x, 0.25, true, g);
  EXPECT_NEAR(mean(y).item(), 1, 0.01);
  y.backward(ones({200000}));
  EXPECT_EQ(x.grad().to_vector<float>(), y.to_vector<float>());
  EXPECT_TRUE(same(dropout(x, 0.25, false, g), x));
  EXPECT_TRUE(same(dropout(x, 0, true, g), x));
  EXPECT_EQ(sum(dropout(x, 1, true, g)).item(), 0);
  Tensor wide = ones({3, 1000}).transpose(0, 1);  // another layout, the same places
  g.seed(5);
  Tensor a = dropout(wide, 0.5, true, g);
  g.seed(5);
  EXPECT_EQ(a.to_vector<float>(), dropout(ones({1000, 3}), 0.5, true, g).to_vector<float>());
}

TEST(Random, MultinomialFollowsItsWeights) {
  Generator g(3);
  Tensor weights = tensor<float>({1, 0, 3, 4}, {4});
  std::vector<double> count(4, 0);
  const int64_t n = 100000;
  for (int64_t i : multinomial(weights, n, true, g).to_vector<int64_t>()) count[i] += 1.0 / n;
  EXPECT_NEAR(count[0], 0.125, 0.006);
  EXPECT_EQ(count[1], 0);
  EXPECT_NEAR(count[2], 0.375, 0.008);
  EXPECT_NEAR(count[3], 0.5, 0.008);
  std::vector<double> first(4, 0);
  Tensor rows = multinomial(expand(weights, {n, 4}), 3, false, g);
  for (int64_t i : rows.select(1, 0).to_vector<int64_t>()) first[i] += 1.0 / n;
  EXPECT_NEAR(first[3], 0.5, 0.008);
  EXPECT_EQ(first[1], 0);
}

TEST(Random, NamesTheRuleThatIsBroken) {
  EXPECT_EQ(error_of([] { rand({2}, default_generator(), Int64); }), "rand: i64 is not floating");
  EXPECT_EQ(error_of([] { randint(3, 3, {2}); }), "randint: no integers in [3, 3), or bounds past 2^53");
  EXPECT_EQ(error_of([] { dropout(ones({2}), 1.5); }), "dropout: the probability is 1.5, not between 0 and 1");
  EXPECT_EQ(error_of([] { dropout(ones({2}, Int64), 0.5); }), "dropout: i64[2] on cpu is not floating");
  EXPECT_EQ(error_of([] { multinomial(ones({3}), 4); }), "multinomial: 4 samples without replacement of [3]");
  EXPECT_EQ(error_of([] { multinomial(ones({}), 1); }), "multinomial: the probabilities are a single number");
  EXPECT_EQ(error_of([] { multinomial(zeros({3}), 1); }),
            "multinomial: the weights of row 0 do not have a positive finite sum");
  EXPECT_EQ(error_of([] { multinomial(full({3}, -1), 1); }),
            "multinomial: the weights of row 0 are not all numbers of at least 0");
  EXPECT_EQ(error_of([] {
              multinomial(tensor<float>({1, 0, 0}, {3}), 2);
            }),
            "multinomial: the weights of row 0 are positive in too few places to draw from without replacement");
}

}  // namespace
}  // namespace tessera
