// Attention with caches, windows and bounded scores, rotations and linear attention, against loops in f64.
#include <array>

#include "ops/composed_check.h"
#include "ops/reference.h"
#include "tessera/ops_attention.h"

namespace tessera {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kQueries = 5, kPast = 3, kDim = 6, kDv = 4;
constexpr int64_t kKeys = kPast + kQueries;

struct Drawn {
  Tensor q, k, v, past_k, past_v;
  explicit Drawn(int64_t dv = kDim) {
    Generator g(5);
    q = normal64({kBatch, kHeads, kQueries, kDim}, g);
    k = normal64({kBatch, kKvHeads, kQueries, kDim}, g);
    v = normal64({kBatch, kKvHeads, kQueries, dv}, g);
    past_k = normal64({kBatch, kKvHeads, kPast, kDim}, g);
    past_v = normal64({kBatch, kKvHeads, kPast, dv}, g);
  }
};

double at(const Tensor& t, std::vector<int64_t> index) { return reference::get(t, index); }

// sees(b, i, j): whether query i of sample b attends key j of those in `keys`.
template <class Sees>
std::vector<double> by_loops(const Tensor& q, const Tensor& keys, const Tensor& values, double cap, const Sees& sees) {
  std::vector<double> out;
  const int64_t n = keys.size(2);
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < q.size(2); ++i) {
        std::vector<double> weights;
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) {
          double score = 0;
          for (int64_t d = 0; d < kDim; ++d) score += at(q, {b, h, i, d}) * at(keys, {b, h / 2, j, d});
          score /= std::sqrt(double{kDim});
          if (cap > 0) score = cap * std::tanh(score / cap);
          weights.push_back(sees(b, i, j) ? std::exp(score) : 0);
          sum += weights.back();
        }
        for (int64_t d = 0; d < values.size(3); ++d) {
          double y = 0;
          for (int64_t j = 0; j < n; ++j)
            y += sum > 0 ? weights[static_cast<size_t>(j)] / sum * at(values, {b, h / 2, j, d}) : 0;
          out.push_back(y);
        }
      }
  return out;
}

TEST(CachedAttention, AttendsWhatIsPast) {
  const Drawn d;
  const CachedAttention a =
      cached_attention(d.q, d.k, d.v, {.past_keys = d.past_k, .past_values = d.past_v, .causal = true});
  EXPECT_EQ(a.keys.shape(), (Shape{kBatch, kKvHeads, kKeys, kDim}));
  expect_elements(a.output,
                  by_loops(d.q, a.keys, a.values, 0, [](auto, int64_t i, int64_t j) { return j <= i + kPast; }),
                  "linear");
  EXPECT_FALSE(a.scores.defined());
}

TEST(CachedAttention, WindowsCapsAndLengths) {
  const Drawn d(kDv);
  const CachedAttention a = cached_attention(d.q, d.k, d.v,
                                             {.past_keys = d.past_k,
                                              .past_values = d.past_v,
                                              .left_window = 2,
                                              .right_window = 1,
                                              .lengths = tensor<int64_t>({7, 2}, {2}),
                                              .soft_cap = 1.5});
  const auto sees = [](int64_t b, int64_t i, int64_t j) {
    const int64_t own = i + kPast;
    return j >= own - 2 && j <= own + 1 && j < (b == 0 ? 7 : 2);  // of sample 1 some queries see nothing
  };
  expect_elements(a.output, by_loops(d.q, a.keys, a.values, 1.5, sees), "linear");
}

TEST(CachedAttention, ShortMasksHideTheRestAndWeightsSumToOne) {
  const Drawn d;
  const Tensor mask = ne(tensor<int64_t>({1, 0, 1}, {3}), full({}, 0, Int64));
  const CachedAttention a = cached_attention(d.q, d.k, d.v, {.mask = mask, .scores = Scores::Weights});
  expect_elements(a.output, by_loops(d.q, a.keys, a.values, 0, [](auto, auto, int64_t j) { return j == 0 || j == 2; }),
                  "linear");
  expect_elements(sum(a.scores, {-1}), std::vector<double>(kBatch * kHeads * kQueries, 1), "sum");
}

TEST(CachedAttention, HasGradients) {
  const Drawn d;
  expect_gradients(
      [&](const Tensors& in) {
        return cached_attention(in[0], in[1], in[2],
                                {.past_keys = d.past_k, .past_values = d.past_v, .causal = true, .soft_cap = 2})
            .output;
      },
      {d.q, d.k, d.v});
}

TEST(CachedAttention, SaysWhatDoesNotFit) {
  const Drawn d;
  EXPECT_EQ(error_of([&] { cached_attention(d.q, d.k, d.v, {.past_keys = d.past_k}); }),
            "cached_attention: past keys and past values come together");
  EXPECT_EQ(error_of([&] { cached_attention(d.q, d.k, d.v, {.lengths = tensor<int64_t>({1}, {1})}); }),
            "cached_attention: lengths must be integers of shape [2], not i64[1] on cpu");
  EXPECT_EQ(error_of([&] { cached_attention(slice(d.q, 1, 0, 3), d.k, d.v); }),
            "cached_attention: 3 heads on 2 of keys and 2 of values");
}

TEST(WriteCache, BeginsAtAPlaceForEachSample) {
  const Tensor cache = zeros({2, 4, 1}), update = tensor<float>({1, 2, 3, 4}, {2, 2, 1});
  EXPECT_EQ(write_cache(cache, update, {0, 2}).to_vector<float>(), (std::vector<float>{1, 2, 0, 0, 0, 0, 3, 4}));
  EXPECT_EQ(write_cache(cache, update, {3, 1}, 1, true).to_vector<float>(),
            (std::vector<float>{2, 0, 0, 1, 0, 3, 4, 0}));
  EXPECT_EQ(error_of([&] {
              write_cache(cache, update, {3, 1});
            }),
            "write_cache: 2 tokens from 3 on leave the cache of 4");
}

TEST(Rotary, TurnsPairsByTheirPosition) {
  Generator g(7);
  const Tensor x = normal64({1, 2, 3, 6}, g);
  const RotaryAngles angles = rotary_angles(tensor<int64_t>({4, 0, 9}, {3}), 4);
  for (const bool interleaved : {false, true}) {
    std::vector<double> want;
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t t = 0; t < 3; ++t)
        for (int64_t e = 0; e < 6; ++e) {
          const int64_t i = interleaved ? e / 2 : e % 2, other = interleaved ? e ^ 1 : (e + 2) % 4;
          const bool first = interleaved ? e % 2 == 0 : e < 2;
          const double angle = std::array{4, 0, 9}[static_cast<size_t>(t)] / std::pow(10000.0, i * 0.5);
          want.push_back(e >= 4 ? at(x, {0, h, t, e})
                                : std::cos(angle) * at(x, {0, h, t, e}) +
                                      (first ? -1 : 1) * std::sin(angle) * at(x, {0, h, t, other}));
        }
    EXPECT_LE(relative_error(rotary_embedding(x, angles.cosine, angles.sine, interleaved), tensor(want, x.shape())),
              1e-6);
  }
  EXPECT_EQ(error_of([&] { rotary_embedding(slice(x, 3, 0, 2), angles.cosine, angles.sine); }),
            "rotary_embedding: 4 of 2 elements turn");
}

TEST(LinearAttention, GoesOnFromItsState) {
  const Drawn d(kDv);
  Generator g(9);
  const Tensor decay = uniform64({kBatch, kKvHeads, kQueries, 1}, g, -1, 0),
               beta = uniform64({kBatch, kKvHeads, kQueries, 1}, g, 0, 1);
  const LinearAttention all = linear_attention(d.q, d.k, d.v, {.decay = decay, .beta = beta});
  const auto part = [&](const Tensor& t, bool second) { return second ? slice(t, 2, 2, kQueries) : slice(t, 2, 0, 2); };
  Tensor state;
  Tensors outputs;
  for (const bool second : {false, true}) {
    const LinearAttention a =
        linear_attention(part(d.q, second), part(d.k, second), part(d.v, second),
                         {.state = state, .decay = part(decay, second), .beta = part(beta, second)});
    state = a.state;
    outputs.push_back(a.output);
  }
  EXPECT_LE(relative_error(concat(outputs, 2).to(Float64), all.output.to(Float64)), 1e-6);
  EXPECT_LE(relative_error(state.to(Float64), all.state.to(Float64)), 1e-6);
}

TEST(LinearAttention, IsAttentionWithoutSoftmax) {
  const Drawn d(kDv);
  std::vector<double> want;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kQueries; ++i)
        for (int64_t e = 0; e < kDv; ++e) {
          double y = 0;
          for (int64_t j = 0; j <= i; ++j)
            for (int64_t c = 0; c < kDim; ++c)
              y += at(d.q, {b, h, i, c}) * at(d.k, {b, h / 2, j, c}) * at(d.v, {b, h / 2, j, e}) /
                   std::sqrt(double{kDim});
          want.push_back(y);
        }
  const Tensor got = linear_attention(d.q, d.k, d.v).output;
  EXPECT_LE(relative_error(got, tensor(want, got.shape())), 1e-6);
  EXPECT_EQ(error_of([&] { linear_attention(d.q, d.k, d.v, {.state = zeros({1})}); }),
            "linear_attention: the state is f32[1] on cpu for f64[2, 2, 5, 6] on cpu and f64[2, 2, 5, 4] on cpu");
}

}  // namespace
}  // namespace tessera
