// Group normalisation is layer normalisation of other rows: the operator normalises the rows of any matrix, and views
// say which elements of an image make a row.
#include <tessera/parallel.h>
#include <tessera/tile/kernels/evaluate.h>

#include "check.h"

// ---- the operator
using namespace tessera::tile;

template <class X, class G, class Y>  // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, along every row
void normalize_rows(tessera::Executor& executor, const X& x, const G& gamma, const G& beta, const Y& y, float epsilon) {
  executor.parallel(x.length(0), [&](i64 row, int thread) {
    OneThread here(executor, thread);
    const auto line = [&](auto view) { return transform(view, slice(row, i64{1}), pass()); };
    float statistics[2];
    const auto mean = strided(&statistics[0], {1, 1}, {0, 0}), scale = strided(&statistics[1], {1, 1}, {0, 0});
    const auto deviation = load(line(x)) - load(mean);
    fold_rows<MeanFold>(here, load(line(x)), store(mean, acc));
    fold_rows<MeanFold>(here, square(deviation), store(scale, rsqrt(acc + epsilon)));
    map(here, store(line(y), deviation * load(scale) * load(line(gamma)) + load(line(beta))));
  });
}

template <class X>  // images [batch, channels, pixels] as a matrix with a row for every group of channels
auto group_rows(const X& images, i64 groups) {
  const auto split = transform(images, pass(), unmerge({groups, images.length(1) / groups}), pass());
  return transform(split, merge<0, 1>(), merge<2, 3>());
}
// ---- the end of the operator

struct GroupNorm {
  i64 batch, channels, pixels, groups;
  example::Floats x, gamma, beta, result;

  explicit GroupNorm(const example::Sizes& s)
      : batch(s[0]),
        channels(s[1] * s[3]),
        pixels(s[2]),
        groups(s[3]),
        x(example::random_floats(batch * channels * pixels)),
        gamma(example::random_floats(channels)),
        beta(example::random_floats(channels)),
        result(x.size()) {}

  void compute() {
    const auto rows = [&](auto* p) { return group_rows(packed(p, {batch, channels, pixels}), groups); };
    const auto per_channel = [&](const float* p) {
      return group_rows(strided(p, {batch, channels, pixels}, {0, 1, 0}), groups);
    };
    normalize_rows(tessera::executor(), rows(x.data()), per_channel(gamma.data()), per_channel(beta.data()),
                   rows(result.data()), 1e-5f);
  }

  example::Doubles reference() const {
    example::Doubles y(x.size());
    const i64 n = channels / groups * pixels;
    for (i64 g = 0; g < batch * groups; ++g) {
      double mean = 0, variance = 0;
      for (i64 i = g * n; i < (g + 1) * n; ++i) mean += x[i] / double(n);
      for (i64 i = g * n; i < (g + 1) * n; ++i) variance += (x[i] - mean) * (x[i] - mean) / double(n);
      for (i64 i = g * n; i < (g + 1) * n; ++i) {
        const i64 c = i / pixels % channels;
        y[i] = (x[i] - mean) / std::sqrt(variance + 1e-5f) * gamma[c] + beta[c];
      }
    }
    return y;
  }
  double flops() const { return 8.0 * x.size(); }
};

/// Layer norm of a matrix [batch, channels]: one group of images of one pixel.
struct LayerNorm : GroupNorm {
  using GroupNorm::GroupNorm;
  void compute() {
    const i64 m = batch, n = channels;
    normalize_rows(tessera::executor(), packed(x.data(), {m, n}), strided(gamma.data(), {m, n}, {0, 1}),
                   strided(beta.data(), {m, n}, {0, 1}), packed(result.data(), {m, n}), 1e-5f);
  }
};

int main(int argc, char** argv) {
  const int failed =
      example::run<GroupNorm>(argc, argv, "BATCH CHANNELS_PER_GROUP PIXELS GROUPS",
                              {{1, 1, 2, 1}, {2, 3, 35, 2}, {3, 1, 143, 5}, {1, 17, 1147, 3}}, {8, 8, 3136, 8});
  if (failed != 0 || argc > 1) return failed;
  std::printf("layer norm:\n");
  return example::run<LayerNorm>(argc, argv, "", {{1, 2, 1, 1}, {7, 37, 1, 1}, {31, 1031, 1, 1}}, {4096, 768, 1, 1});
}
