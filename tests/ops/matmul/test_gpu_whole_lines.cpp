// Products in tf32 by the vendor's library of lines that end off whole 16 bytes: these are filled up with zeros where
// nobody has what is behind them, and copied elsewhere, so that results are those of matrices that their user fills up.
#include "core/op.h"
#include "ops/call_plan.h"
#include "ops/gpu_against_float64.h"
#include "tessera/stream.h"

namespace tessera {
namespace {

enum class Lies { Padded, Dense, Inside, WithZeros };

int64_t whole(int64_t n) { return (n + 3) / 4 * 4; }
Tensor turned(const Tensor& t, bool turn) { return turn ? t.transpose(0, 1) : t; }

class GpuWholeLines : public GpuAgainstFloat64 {
 protected:
  void SetUp() override {
    GpuAgainstFloat64::SetUp();
    if (IsSkipped()) return;
    if (card().type != DeviceType::CUDA) GTEST_SKIP() << "only NVIDIA's cards have tf32";
    forced.emplace("matmul", "vendor");
    try {
      matmul(random(8, 8), random(8, 8));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    allow_tf32(true);
  }
  void TearDown() override { allow_tf32(false); }

  Tensor random(int64_t rows, int64_t columns) { return randn({rows, columns}, generator, Float32, card()); }
  static Tensor here(const Tensor& t) { return t.contiguous().to(cpu()).to(Float64); }

  /// t, with NaN behind its lines.
  static Tensor with_spoilt_padding(Tensor t) {
    const Tensor elements = t.to(cpu());
    as_strided(t.storage(), {t.size(0), t.stride(0)}, {t.stride(0), 1}, 0, Float32).fill_(NAN);
    t.copy_(elements);
    return t;
  }
  /// Of t; with zeros, as if it had so many rows and columns. Elsewhere NaN is what nobody or somebody else has.
  static Tensor made(const Tensor& t, Lies lies, int64_t rows, int64_t columns) {
    if (lies == Lies::Dense) return t.contiguous();
    const int64_t n = t.size(1), pitch = n < 256 ? whole(n) : (n + 31) / 32 * 32;
    const Tensor all = full({whole(t.size(0)), pitch}, lies == Lies::WithZeros ? 0 : NAN, Float32, card());
    if (lies == Lies::Padded) return with_spoilt_padding(t + 0.0);
    all.slice(0, 0, t.size(0)).slice(1, 0, n).copy_(t);
    return lies == Lies::WithZeros ? all.slice(0, 0, rows).slice(1, 0, columns)
                                   : all.slice(0, 0, t.size(0)).slice(1, 0, n);
  }
  static void expect_neighbours_of_others(const Tensor& t) {
    const int64_t pitch = t.stride(0), rows = whole(t.size(0));
    const Tensor all = as_strided(t.storage(), {rows, pitch}, {pitch, 1}, 0, Float32);
    EXPECT_EQ(sum(isnan(all).to(Float32)).item(), static_cast<double>(rows * pitch - t.numel()));
  }

  void compare(ProductSize s, bool turn_a, bool turn_b) {
    const Tensor a = turn_a ? random(s.k, s.m) : random(s.m, s.k), b = turn_b ? random(s.n, s.k) : random(s.k, s.n);
    const int64_t m = turn_a ? whole(s.m) : s.m, n = whole(s.n), k = turn_a && !turn_b ? s.k : whole(s.k);
    const auto product = [&](Lies lies_a, Lies lies_b) {
      const Tensor x = made(a, lies_a, turn_a ? k : m, turn_a ? m : k),
                   y = made(b, lies_b, turn_b ? n : k, turn_b ? k : n);
      const Tensor c = matmul(turned(x, turn_a), turned(y, turn_b));
      if (lies_a == Lies::Inside) expect_neighbours_of_others(x);
      if (lies_b == Lies::Inside) expect_neighbours_of_others(y);
      return here(c.slice(0, 0, s.m).slice(1, 0, s.n));
    };
    const Tensor want = product(Lies::WithZeros, Lies::WithZeros);
    EXPECT_LE(relative_error(want, here(matmul(turned(a, turn_a).to(Float64), turned(b, turn_b).to(Float64)))), 1e-3);
    for (Lies lies_a : {Lies::Padded, Lies::Dense, Lies::Inside})
      for (Lies lies_b : {Lies::Padded, Lies::Dense, Lies::Inside})
        EXPECT_EQ(relative_error(product(lies_a, lies_b), want), 0)
            << s.m << " x " << s.n << " x " << s.k << turn_a << turn_b << " " << static_cast<int>(lies_a)
            << static_cast<int>(lies_b);
  }

  std::optional<ForceKernel> forced;
};

TEST_F(GpuWholeLines, MultiplyAsThoseWithZeros) {
  NoGrad guard;
  for (ProductSize s :
       {ProductSize{1003, 1021, 1023}, {1001, 1024, 1023}, {1002, 1023, 1024}, {257, 50269, 131}, {703, 703, 767}})
    for (bool turn_a : {false, true})
      for (bool turn_b : {false, true}) compare(s, turn_a, turn_b);
}

TEST_F(GpuWholeLines, GetZerosAgainWhereSomethingWasWritten) {
  NoGrad guard;
  const Tensor b = random(1023, 1024);
  Tensor x = random(1003, 1023);
  const auto expect_right = [&] {
    const Tensor want = here(matmul(x.contiguous(), b.contiguous()));
    for (int again = 0; again < 2; ++again) EXPECT_EQ(relative_error(here(matmul(x, b)), want), 0);
  };
  expect_right();
  with_spoilt_padding(x);
  expect_right();
  x.add_(made(random(1003, 1023), Lies::Padded, 0, 0));
  expect_right();
  x.copy_(made(random(1003, 1023), Lies::Padded, 0, 0));
  expect_right();
  const Tensor y = made(random(1003, 1023), Lies::Padded, 0, 0);
  Tensor replayed;
  DeviceGraph graph;
  graph.capture(card(), [&] {
    x.copy_(y);
    replayed = matmul(x, b);
  });
  graph.replay();
  expect_right();
  EXPECT_EQ(relative_error(here(replayed), here(matmul(y.contiguous(), b.contiguous()))), 0);
}

TEST_F(GpuWholeLines, TakeABiasAndAnActivation) {
  NoGrad guard;
  const Tensor x = values({1003, 1021}, Float32), w = values({1023, 1021}, Float32) * 0.05,
               bias = values({1023}, Float32);
  const auto there = [](const Tensor& t) { return t.to(Float32).to(card()); };
  for (Activation activation : {Activation::None, Activation::Relu}) {
    const Tensor want = linear_act(x, w, bias, activation);
    const ForceKernel vendor("linear", "vendor");
    EXPECT_LE(error(linear_act(there(x), there(w), there(bias), activation), want), 1e-3);
  }
}

}  // namespace
}  // namespace tessera
