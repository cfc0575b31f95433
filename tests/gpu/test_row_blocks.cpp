// Kernels of rows, run block by block on a simulated card and compared with float64: softmax and norms, forward and
// backward, by warps and by blocks that hold rows in registers, keep them in shared memory or stream them.
#define TESSERA_SIMULATED_GPU "../../../../tests/gpu/simulated_gpu.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/gpu/device/rows/norm_rows.h"
#include "kernels/gpu/device/rows/softmax_rows.h"
#include "tile/arch/gpu/block_rows.h"

namespace {
using namespace tessera::tile;
using namespace tessera::gpu_kernels;

std::mt19937 random_numbers(2026);
float normal() { return std::normal_distribution<float>()(random_numbers); }

/// Rows `pitch` elements apart, the first `phase` elements behind a multiple of 16 bytes; all else is NaN.
template <class T>
class RowsInMemory {
 public:
  RowsInMemory(i64 rows, i64 n, i64 pitch, i64 phase, bool random = true)
      : rows_(rows), n_(n), pitch_(pitch), memory_(rows * pitch + 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data() + 16);
    data_ = memory_.data() + 16 + (16 - address % 16) % 16 / sizeof(T) + phase;
    std::memset(static_cast<void*>(memory_.data()), 0xff, memory_.size() * sizeof(T));
    for (i64 r = 0; random && r < rows; ++r)
      for (i64 c = 0; c < n; ++c) data_[r * pitch + c] = convert_element<T>(normal());
  }
  Rows<T> rows() { return {data_, pitch_}; }
  Rows<const T> input() const { return {data_, pitch_}; }
  double at(i64 r, i64 c) const { return static_cast<double>(convert_element<compute_t<T>>(data_[r * pitch_ + c])); }
  bool others_untouched() const {
    std::vector<T> rest = memory_;
    for (i64 r = 0; r < rows_; ++r)
      std::memset(static_cast<void*>(rest.data() + (data_ - memory_.data()) + r * pitch_), 0xff, n_ * sizeof(T));
    const auto* bytes = reinterpret_cast<const unsigned char*>(rest.data());
    return std::all_of(bytes, bytes + rest.size() * sizeof(T), [](unsigned char x) { return x == 0xff; });
  }

 private:
  i64 rows_, n_, pitch_;
  std::vector<T> memory_;
  T* data_;
};

struct Shape {
  i64 rows, n, pitch, phase;
};
const Shape some_shapes[] = {{3, 1, 1, 0},     {9, 7, 9, 3},       {2, 31, 40, 0},  {5, 64, 64, 0},
                             {3, 257, 257, 1}, {2, 1000, 1003, 5}, {2, 509, 512, 0}};

/// The relative distance of results from what `expected(row, column)` says.
template <class T, class Fn>
double distance(const RowsInMemory<T>& y, const Shape& s, const Fn& expected) {
  double off = 0, all = 0;
  for (i64 r = 0; r < s.rows; ++r)
    for (i64 c = 0; c < s.n; ++c) {
      const double want = expected(r, c), d = y.at(r, c) - want;
      off += d * d;
      all += want * want;
    }
  return std::sqrt(off / std::max(all, 1e-30));
}
template <class T>
double tolerance() {
  return is_same_v<T, float> ? 2e-6 : is_same_v<T, f16> ? 6e-4 : is_same_v<T, double> ? 1e-13 : 5e-3;
}

/// A way to hold rows; `threads`: of a block, 0 where the group says that.
template <class Group_, int width_, int held_, Turns turns_ = Turns::one, int threads = 0, int kept_ = 0,
          int blocks = 0>
struct Way {
  using Group = Group_;
  static constexpr int kept = kept_;
  template <class Work>
  static void run(const Work& work) {
    std::vector<char> room(1 << 20);
    char* const aligned = room.data() + (128 - reinterpret_cast<std::uintptr_t>(room.data()) % 128);
    const i64 count = blocks > 0 ? blocks : ceil_div<i64>(work.count, Group::rows);
    simulated::blocks_in_grid = static_cast<int>(count);
    for (i64 b = 0; b < count; ++b)
      simulated::run_block(b, threads > 0 ? threads : Group::threads, [&] {
        BlockRows<Group, width_, held_, turns_> rows(work.count, work.n, work.to[Group::row()], kept, aligned);
        work.run(rows);
      });
  }
};
/// Ways for rows of any length, of which threads have up to 32 elements; and for rows that lie anyhow.
template <class T>
struct Ways {
  static constexpr int width = 16 / sizeof(T), held = 32 / width;
  using Warp = Way<Team<32>, width, held>;
  using Block = Way<BlockOf<128>, width, held, Turns::one, 64>;
  using Kept = Way<Team<64>, width, 0, Turns::one, 0, 2>;
  using Streamed = Way<Team<64>, width, 0>;
  using Apart = Way<Team<64>, width, apart, Turns::one, 0, 1>;
};

#define EACH_WAY(T, fn)                      \
  for (const Shape& s : some_shapes) {       \
    if (!can_simulate) GTEST_SKIP();         \
    fn<T, typename Ways<T>::Warp>(s, 0);     \
    fn<T, typename Ways<T>::Block>(s, 0);    \
    fn<T, typename Ways<T>::Kept>(s, 0);     \
    fn<T, typename Ways<T>::Streamed>(s, 0); \
    fn<T, typename Ways<T>::Apart>(s, 0);    \
    fn<T, typename Ways<T>::Apart>(s, 1);    \
  }

// ---- softmax

template <class T, class W>
void expect_softmax(const Shape& s, int apart_by) {
  for (const bool log : {false, true}) {
    RowsInMemory<T> x(s.rows, s.n, s.pitch + apart_by, s.phase), y(s.rows, s.n, s.pitch, s.phase, false);
    W::run(Softmax<T>{s.rows, s.n, log, y.rows(), x.input()});
    std::vector<double> lse(s.rows);
    for (i64 r = 0; r < s.rows; ++r) {
      double sum = 0;
      for (i64 c = 0; c < s.n; ++c) sum += std::exp(x.at(r, c));
      lse[r] = std::log(sum);
    }
    const auto expected = [&](i64 r, i64 c) { return log ? x.at(r, c) - lse[r] : std::exp(x.at(r, c) - lse[r]); };
    EXPECT_LT(distance(y, s, expected), log && s.n == 1 ? 1.0 : tolerance<T>()) << s.n << " log " << log;
    EXPECT_TRUE(y.others_untouched()) << s.n;

    RowsInMemory<T> dy(s.rows, s.n, s.pitch + 2 * apart_by, s.phase), dx(s.rows, s.n, s.pitch, s.phase, false);
    W::run(SoftmaxBackward<T>{s.rows, s.n, log, dx.rows(), dy.input(), y.input()});
    const auto gradient = [&](i64 r, i64 c) {
      double sum = 0;
      for (i64 k = 0; k < s.n; ++k) sum += log ? dy.at(r, k) : dy.at(r, k) * y.at(r, k);
      return log ? dy.at(r, c) - std::exp(y.at(r, c)) * sum : y.at(r, c) * (dy.at(r, c) - sum);
    };
    if (s.n > 1) {
      EXPECT_LT(distance(dx, s, gradient), 2 * tolerance<T>()) << s.n << " log " << log;
    }
    EXPECT_TRUE(dx.others_untouched()) << s.n;
  }
}
TEST(RowBlocks, SoftmaxOfFloats){EACH_WAY(float, expect_softmax)} TEST(RowBlocks, SoftmaxOfHalves){
    EACH_WAY(f16, expect_softmax) EACH_WAY(bf16, expect_softmax)} TEST(RowBlocks, InfiniteElements) {
  if (!can_simulate) GTEST_SKIP();
  RowsInMemory<float> x(2, 40, 40, 0), y(2, 40, 40, 0, false);
  for (int c = 0; c < 40; ++c) x.rows()[0][c] = c == 3 ? 1.0f : -INFINITY;
  Ways<float>::Warp::run(Softmax<float>{2, 40, false, y.rows(), x.input()});
  for (int c = 0; c < 40; ++c) EXPECT_EQ(y.at(0, c), c == 3 ? 1.0 : 0.0);
}

// ---- norms

struct Statistics {
  double mean = 0, rstd = 0;
};
template <class X>
Statistics statistics(const X& x, i64 r, i64 n, bool rms) {
  Statistics s;
  for (i64 c = 0; !rms && c < n; ++c) s.mean += x(r, c) / n;
  double squares = 0;
  for (i64 c = 0; c < n; ++c) squares += (x(r, c) - s.mean) * (x(r, c) - s.mean);
  s.rstd = 1 / std::sqrt(squares / n + 1e-5);
  return s;
}

template <class T, class W>
void expect_norm(const Shape& s, int apart_by) {
  using C = compute_t<T>;
  for (const bool rms : {false, true})
    for (const bool weights : {false, true}) {
      RowsInMemory<T> x(s.rows, s.n, s.pitch + apart_by, s.phase), y(s.rows, s.n, s.pitch, s.phase, false);
      RowsInMemory<T> weight(1, s.n, s.n, 1), bias(1, s.n, s.n, 2);
      std::vector<C> mean(s.rows), rstd(s.rows);
      W::run(LayerNorm<T>{s.rows, s.n, rms, C(1e-5), C(1) / static_cast<C>(s.n), y.rows(), x.input(),
                          weights ? weight.input().data : nullptr, weights ? bias.input().data : nullptr, mean.data(),
                          rstd.data()});
      std::vector<Statistics> of(s.rows);
      for (i64 r = 0; r < s.rows; ++r) {
        of[r] = statistics([&](i64 r, i64 c) { return x.at(r, c); }, r, s.n, rms);
        EXPECT_NEAR(mean[r], of[r].mean, 1e-6);
        EXPECT_NEAR(rstd[r] / of[r].rstd, 1, 1e-4) << s.n;  // of one element, of rounding alone
      }
      const auto expected = [&](i64 r, i64 c) {
        const double v = (x.at(r, c) - mean[r]) * rstd[r];
        return weights ? v * weight.at(0, c) + bias.at(0, c) : v;
      };
      if (s.n > 1) {
        EXPECT_LT(distance(y, s, expected), tolerance<T>()) << s.n << " rms " << rms;
      }
      EXPECT_TRUE(y.others_untouched()) << s.n;
    }
}
TEST(RowBlocks, NormOfFloats){EACH_WAY(float, expect_norm)} TEST(RowBlocks, NormOfHalves) {
  EACH_WAY(f16, expect_norm)
  EACH_WAY(bf16, expect_norm)
}

/// What a norm's gradients are made of.
template <class T, class Y>
struct Gradients {
  using C = compute_t<T>;
  RowsInMemory<T> x, addend, dx;
  RowsInMemory<Y> dy, branch;
  RowsInMemory<T> weight;
  std::vector<C> mean, rstd, partial;
  int groups;

  Gradients(const Shape& s, int apart_by, int groups)
      : x(s.rows, s.n, s.pitch + apart_by, s.phase),
        addend(s.rows, s.n, s.pitch + 3 * apart_by, s.phase),
        dx(s.rows, s.n, s.pitch, s.phase, false),
        dy(s.rows, s.n, s.pitch + 2 * apart_by, s.phase),
        branch(s.rows, s.n, s.pitch, s.phase, false),
        weight(1, s.n, s.n, 0),
        mean(s.rows),
        rstd(s.rows),
        partial(groups * 3 * s.n),
        groups(groups) {
    for (i64 r = 0; r < s.rows; ++r) {
      const Statistics of = statistics([&](i64 r, i64 c) { return x.at(r, c); }, r, s.n, false);
      mean[r] = static_cast<C>(of.mean), rstd[r] = static_cast<C>(of.rstd);
    }
  }
  template <bool adds, bool branches>
  NormBackward<T, Y, const T*, adds, branches> work(const Shape& s, bool rms, int sums) {
    NormBackward<T, Y, const T*, adds, branches> work{};
    work.count = s.rows, work.n = s.n;
    work.to = dx.rows();
    work.dy = dy.input();
    work.x = x.input();
    if (adds) work.addend = addend.input();
    if (branches) work.branch = branch.rows();
    work.weight = weight.input().data;
    work.mean = rms ? nullptr : mean.data();
    work.rstd = rstd.data();
    work.share = C(1) / static_cast<C>(s.n);
    work.partial = partial.data();
    work.sums = sums;
    return work;
  }
  void expect(const Shape& s, bool rms, bool adds, bool branches, int sums) const {
    std::vector<double> want[3];
    for (auto& of : want) of.assign(s.n, 0);
    const auto normal_at = [&](i64 r, i64 c) { return (x.at(r, c) - (rms ? 0 : mean[r])) * rstd[r]; };
    std::vector<double> all(s.rows * s.n);
    for (i64 r = 0; r < s.rows; ++r) {
      double first = 0, second = 0;
      for (i64 c = 0; c < s.n; ++c) {
        const double g = dy.at(r, c) * weight.at(0, c);
        first += g / s.n;
        second += g * normal_at(r, c) / s.n;
      }
      for (i64 c = 0; c < s.n; ++c) {
        double& to = all[r * s.n + c];
        to = (dy.at(r, c) * weight.at(0, c) - (rms ? 0 : first) - normal_at(r, c) * second) * rstd[r];
        if (adds) to += addend.at(r, c);
        want[0][c] += dy.at(r, c) * normal_at(r, c);
        want[1][c] += dy.at(r, c);
        want[2][c] += to;
      }
    }
    const auto expected = [&](i64 r, i64 c) { return all[r * s.n + c]; };
    const double most = s.n == 1 ? 1e9 : 4 * tolerance<T>();  // of one column, of rounding alone
    EXPECT_LT(distance(dx, s, expected), most) << s.n << " rms " << rms;
    EXPECT_TRUE(dx.others_untouched()) << s.n;
    if (branches) {
      EXPECT_LT(distance(branch, s, expected), 4 * tolerance<Y>()) << s.n;
    }
    for (int k = 0; k < sums; ++k) {
      double off = 0, sum = 0;
      for (i64 c = 0; c < s.n; ++c) {
        double got = -want[k][c];
        for (int g = 0; g < groups; ++g) got += static_cast<double>(partial[(g * sums + k) * s.n + c]);
        off += got * got, sum += want[k][c] * want[k][c];
      }
      EXPECT_LT(std::sqrt(off / sum), 5e-6) << s.n << " sum " << k;
    }
  }
};

template <class T, class W>
void expect_norm_backward(const Shape& s, int apart_by) {
  for (const bool rms : {false, true}) {
    Gradients<T, T> g(s, apart_by, 1);
    W::run(g.template work<true, false>(s, rms, 0));
    g.expect(s, rms, true, false, 0);
  }
}
TEST(RowBlocks, NormBackwardOfFloats){EACH_WAY(float, expect_norm_backward)} TEST(RowBlocks, NormBackwardOfHalves) {
  EACH_WAY(bf16, expect_norm_backward)
}

/// Of rows that take turns, with sums of columns.
template <class T, class Y, bool adds, bool branches, class W>
void expect_sums(const Shape& s, int groups) {
  if (!can_simulate) GTEST_SKIP();
  for (const bool rms : {false, true}) {
    constexpr int sums = branches ? 3 : 2;
    Gradients<T, Y> g(s, 0, groups);
    W::run(g.template work<adds, branches>(s, rms, sums));
    g.expect(s, rms, adds, branches, sums);
  }
}
TEST(RowBlocks, WarpsThatTakeTurns) {
  expect_sums<bf16, bf16, false, false, Way<FourWarps, 8, 4, Turns::several, 0, 0, 2>>({13, 1024, 1024, 0}, 2);
  expect_sums<f16, f16, true, false, Way<FourWarps, 8, 4, Turns::several, 0, 0, 2>>({3, 264, 272, 0}, 2);
  expect_sums<f16, f16, false, false, Way<FourWarps, 8, 4, Turns::several, 0, 0, 1>>({1, 8, 8, 0}, 1);
}
TEST(RowBlocks, BlocksThatFetchAhead) {
  expect_sums<float, float, true, true, Way<BlockOf<256>, 4, 1, Turns::ahead, 96, 0, 3>>({11, 376, 376, 0}, 3);
  expect_sums<float, bf16, true, true, Way<BlockOf<512>, 4, 2, Turns::ahead, 64, 0, 3>>({2, 504, 512, 0}, 3);
  expect_sums<bf16, bf16, false, true, Way<BlockOf<256>, 8, 1, Turns::ahead, 32, 0, 2>>({5, 200, 200, 0}, 2);
}

TEST(RowBlocks, NormOfASum) {
  if (!can_simulate) GTEST_SKIP();
  using W = Way<BlockOf<256>, 4, 1, Turns::one_whole, 96>;
  const Shape s{5, 376, 384, 0};
  RowsInMemory<float> x(s.rows, s.n, s.pitch, 0), sum(s.rows, s.n, s.pitch, 0, false);
  RowsInMemory<bf16> branch(s.rows, s.n, s.pitch, 0), y(s.rows, s.n, s.pitch, 0, false);
  RowsInMemory<float> weight(1, s.n, s.n, 0), bias(1, s.n, s.n, 0), shift(1, s.n, s.n, 0);
  std::vector<float> mean(s.rows), rstd(s.rows);
  for (const bool summed : {true, false}) {
    SumNorm<float, bf16, const float*> work{{s.rows, s.n, false, 1e-5f, 1.0f / s.n, y.rows(), x.input(),
                                             weight.input().data, bias.input().data, mean.data(), rstd.data()},
                                            {nullptr, 0},
                                            {nullptr, 0},
                                            nullptr};
    if (summed) work.sum = sum.rows(), work.branch = branch.input(), work.shift = shift.input().data;
    W::run(work);
    const auto all = [&](i64 r, i64 c) {
      return x.at(r, c) + (summed ? branch.at(r, c) + static_cast<float>(bf16(static_cast<float>(shift.at(0, c)))) : 0);
    };
    if (summed) {
      EXPECT_LT(distance(sum, s, all), tolerance<float>());
    }
    const auto expected = [&](i64 r, i64 c) {
      const Statistics of = statistics(all, r, s.n, false);
      return (all(r, c) - of.mean) * of.rstd * weight.at(0, c) + bias.at(0, c);
    };
    EXPECT_LT(distance(y, s, expected), tolerance<bf16>()) << summed;
    EXPECT_TRUE(y.others_untouched());
  }
}

/// In place: each thread stores what it alone has read.
TEST(RowBlocks, ResultsInTheirOperandsPlace) {
  if (!can_simulate) GTEST_SKIP();
  const Shape s{3, 257, 257, 1};
  RowsInMemory<float> x(s.rows, s.n, s.pitch, s.phase), y(s.rows, s.n, s.pitch, s.phase, false);
  Ways<float>::Kept::run(Softmax<float>{s.rows, s.n, false, y.rows(), x.input()});
  Ways<float>::Streamed::run(Softmax<float>{s.rows, s.n, false, x.rows(), x.input()});
  EXPECT_LT(distance(x, s, [&](i64 r, i64 c) { return y.at(r, c); }), 1e-6);
}

}  // namespace
