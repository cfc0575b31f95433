// Products of halves by Hopper's own instructions, on a card that has them, against float64.
#include "core/gpu_check.h"
#include "core/op.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

class Sm90Products : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const Tensor x = zeros({128, 128}, Float16, card());
    const ForceKernel forced("matmul", "sm90");
    const std::string error = error_of([&] { matmul(x, x); });
    if (error.find("instructions that this device lacks") != std::string::npos) GTEST_SKIP() << error;
    ASSERT_EQ(error, "no error");
  }

  static double limit(DType dtype) { return dtype == Float16 ? 6e-4 : 5e-3; }
  Tensor values(const Shape& shape, DType dtype) { return normal64(shape, generator).to(dtype).to(Float64); }

  /// On the card, the last dim padded to whole units of 16 bytes by what no kernel may read.
  static Tensor there(const Tensor& t, DType dtype) {
    const int64_t length = t.size(-1), units = (length + 7) / 8 * 8;
    if (units == length) return t.to(dtype).to(card());
    Shape rest = t.shape();
    rest[rest.size() - 1] = units - length;
    return concat({t.to(dtype).to(card()), full(rest, NAN, dtype, card())}, -1).slice(-1, 0, length);
  }
  /// The same, its columns in memory one after the other if `turned`.
  static Tensor there(const Tensor& t, DType dtype, bool turned) {
    return turned ? there(t.transpose(-2, -1), dtype).transpose(-2, -1) : there(t, dtype);
  }
  /// What f gives with this pipeline, which no CPU has.
  template <class F>
  static Tensor by_sm90(const F& f) {
    const ForceKernel product("matmul", "sm90"), linear("linear", "sm90");
    return f();
  }
  static Tensor product(const Tensor& a, const Tensor& b) {
    return by_sm90([&] { return matmul(a, b); });
  }
  static Tensor back(const Tensor& t) { return t.to(cpu()).to(Float64); }

  Generator generator{23};
};

TEST_F(Sm90Products, InEveryOrientation) {
  NoGrad guard;
  for (ProductSize s : {ProductSize{128, 128, 64},
                        {128, 256, 128},
                        {129, 136, 65},
                        {131, 1000, 72},
                        {257, 191, 515},
                        {384, 193, 200},
                        {640, 776, 80},
                        {1031, 1033, 128},
                        {1001, 1003, 715},
                        {1280, 1161, 131},
                        {260, 196, 2050},
                        {128, 2500, 96},
                        {3000, 130, 64}})
    for (DType dtype : {Float16, BFloat16}) {
      const ForceKernel forced("matmul_wide", "sm90");
      const Tensor a = values({s.m, s.k}, dtype), b = values({s.k, s.n}, dtype), want = matmul(a, b);
      for (bool turn_a : {false, true})
        for (bool turn_b : {false, true}) {
          const Tensor left = there(a, dtype, turn_a), right = there(b, dtype, turn_b);
          const auto f32 = [&] {
            (void)full({s.m, s.n}, NAN, Float32, card());
            return dispatch_one(find_op("matmul_wide"), {left, right});
          };
          const Tensor got = product(left, right), wide = f32();
          EXPECT_LE(relative_error(back(got), want), limit(dtype))
              << s.m << " x " << s.n << " x " << s.k << " " << name(dtype) << turn_a << turn_b;
          EXPECT_LE(relative_error(back(wide), want), 1e-5)
              << s.m << " x " << s.n << " x " << s.k << " " << name(dtype) << turn_a << turn_b;
          EXPECT_EQ(relative_error(back(f32()), back(wide)), 0);
        }
    }
}

/// Lines that begin where TMA cannot find them are copied first.
TEST_F(Sm90Products, OfLinesThatBeginAnywhere) {
  NoGrad guard;
  const int64_t m = 515, n = 1031, k = 1003;
  const DType dtype = BFloat16;
  const auto lying = [&](const Tensor& t, bool turned) {
    const auto dense = [&](const Tensor& t) { return t.contiguous().to(dtype).to(card()).contiguous(); };
    return turned ? dense(t.transpose(-2, -1)).transpose(-2, -1) : dense(t);
  };
  for (const Shape& batch : {Shape{}, Shape{3}, Shape{2, 2}}) {
    const auto matrix = [&](int64_t rows, int64_t columns) {
      Shape shape = batch;
      shape.push_back(rows);
      shape.push_back(columns);
      return values(shape, dtype);
    };
    const Tensor a = matrix(m, k), b = matrix(k, n), want = matmul(a, b);
    for (bool turn_a : {false, true})
      for (bool turn_b : {false, true}) {
        const Tensor left = lying(a, turn_a), right = lying(b, turn_b);
        EXPECT_LE(relative_error(back(matmul(left, right)), want), limit(dtype)) << to_string(batch);
        if (batch.size() == 2) continue;  // two dims of a batch are not for this pipeline
        EXPECT_LE(relative_error(back(product(left, right)), want), limit(dtype)) << to_string(batch);
      }
  }
  const Tensor wide = values({m, k + 1}, dtype), right = values({k, n}, dtype);  // lines begin off whole units
  const Tensor got = product(there(wide, dtype).slice(-1, 1, k + 1), there(right, dtype));
  EXPECT_LE(relative_error(back(got), matmul(wide.slice(-1, 1, k + 1), right)), limit(dtype));
}

/// Forward and both gradients of a layer whose operands are dense: lines of 1003 and 1031 halves.
TEST_F(Sm90Products, GradientsOfLinesThatBeginAnywhere) {
  const int64_t m = 515, n = 1031, k = 1003;
  for (DType dtype : {Float16, BFloat16}) {
    const Tensor dy = values({m, n}, dtype);
    Tensors near, wide;
    for (const Tensor& t : {values({m, k}, dtype), values({n, k}, dtype), values({n}, dtype)}) {
      near.push_back(t.to(dtype).to(card()).contiguous().set_requires_grad());
      wide.push_back(t.detach().set_requires_grad());
    }
    const auto layer = [](const Tensors& in) { return linear(in[0], in[1], in[2]); };
    const Tensor got = layer(near), want = layer(wide);
    EXPECT_LE(relative_error(back(got.detach()), want.detach()), limit(dtype));
    const Tensors got_grads = grad({got}, near, {dy.to(dtype).to(card())}), want_grads = grad({want}, wide, {dy});
    for (size_t i = 0; i < near.size(); ++i)
      EXPECT_LE(relative_error(back(got_grads[i]), want_grads[i]), limit(dtype)) << name(dtype) << " gradient " << i;
  }
}

/// Columns behind the last whole unit of 16 bytes are stored by lanes, since TMA would write all of it.
TEST_F(Sm90Products, NothingBesideTheResultIsWritten) {
  NoGrad guard;
  const DType dtype = BFloat16;
  for (ProductSize s : {ProductSize{700, 1031, 128}, {300, 2049, 72}, {515, 771, 1003}}) {
    const Tensor a = values({s.m, s.k}, dtype), b = values({s.k, s.n}, dtype), want = matmul(a, b);
    const Tensor in[] = {there(a, dtype), there(b, dtype)};
    const Tensor lines = full({s.m, (s.n + 7) / 8 * 8}, NAN, dtype, card()), out[] = {lines.slice(1, 0, s.n)};
    const ForceKernel forced("matmul", "sm90");
    run_op(find_op("matmul"), in, {}, out);
    EXPECT_LE(relative_error(back(out[0]), want), limit(dtype));
    const Tensor gaps = back(lines.slice(1, s.n, lines.size(1)));
    EXPECT_EQ(sum(isnan(gaps).to(Float64)).item<double>(), static_cast<double>(gaps.numel())) << s.n;
  }
}

/// Products so long that pairs of blocks share columns of b, and sums so long that they share rows of a; beside the
/// same by ordinary cores in f32.
TEST_F(Sm90Products, PairsOfBlocks) {
  NoGrad guard;
  for (ProductSize s : {ProductSize{4104, 4104, 8200}, {8600, 376, 10312}, {8400, 760, 10312}}) {
    const Tensor a = randn({s.m, s.k}, generator).to(card()).to(BFloat16),
                 b = randn({s.k, s.n}, generator).to(card()).to(BFloat16);
    const Tensor want = back(matmul(a.to(Float32), b.to(Float32))), at = a.transpose(0, 1).contiguous().transpose(0, 1),
                 bt = b.transpose(0, 1).contiguous().transpose(0, 1);
    for (const Tensor& left : {a, at})
      for (const Tensor& right : {b, bt}) {
        const Tensor got = product(left, right);
        EXPECT_LE(relative_error(back(got), want), limit(BFloat16)) << s.m << " x " << s.n << " x " << s.k;
        EXPECT_EQ(relative_error(back(product(left, right)), back(got)), 0);
      }
  }
}

/// Blocks take a second tile and more; memory that results get is NaN before.
TEST_F(Sm90Products, SeveralTilesForEachBlock) {
  NoGrad guard;
  for (DType dtype : {Float16, BFloat16})
    for (ProductSize s :
         {ProductSize{67584, 192, 64}, {67584, 383, 64}, {20000, 1160, 72}, {20000, 1153, 72}, {4000, 1416, 1100}}) {
      const Tensor a = values({s.m, s.k}, dtype), b = values({s.n, s.k}, dtype), bias = values({s.n}, dtype),
                   residual = values({s.m, s.n}, dtype);
      const Tensor left = there(a, dtype), right = there(b, dtype), added = there(residual, dtype);
      const auto run = [&](bool plain) {
        (void)full({s.m, s.n}, NAN, dtype, card());
        return plain ? product(left, right.transpose(0, 1))
                     : by_sm90([&] { return linear_act(left, right, there(bias, dtype), Activation::None, added); });
      };
      for (bool plain : {true, false}) {
        const Tensor want = plain ? matmul(a, b.transpose(0, 1)) : linear_act(a, b, bias, Activation::None, residual);
        const Tensor got = run(plain);
        EXPECT_LE(relative_error(back(got), want), limit(dtype)) << s.m << " x " << s.n << " x " << s.k << plain;
        EXPECT_EQ(relative_error(back(run(plain)), back(got)), 0);
      }
    }
}

/// A factor, and the sums of columns, in the epilogue.
TEST_F(Sm90Products, FactorAndSumsOfColumns) {
  NoGrad guard;
  const DType dtype = BFloat16;
  for (ProductSize s : {ProductSize{128, 128, 64}, {1000, 520, 72}, {1000, 521, 72}, {3001, 3083, 96}}) {
    const Tensor a = values({s.m, s.k}, dtype), b = values({s.k, s.n}, dtype), factor = values({s.m, s.n}, dtype);
    for (bool turn : {false, true})
      for (bool multiply : {false, true}) {
        const Tensor times = multiply ? factor : Tensor();
        const Tensors want = matmul_mul_sum(a, b, times, false, true);
        const ForceKernel forced("matmul_mul_sum", "sm90");
        const auto run = [&] {
          (void)full({s.m, s.n}, NAN, dtype, card());
          return matmul_mul_sum(there(a, dtype, turn), there(b, dtype, turn),
                                multiply ? there(factor, dtype) : Tensor(), false, true);
        };
        const Tensors got = run(), again = run();
        for (size_t i = 0; i < want.size(); ++i) {
          if (!want[i].defined()) continue;
          EXPECT_LE(relative_error(back(got[i]), want[i]), 2 * limit(dtype)) << s.m << " x " << s.n << " " << i;
          EXPECT_EQ(relative_error(back(again[i]), back(got[i])), 0);
        }
      }
  }
}

TEST_F(Sm90Products, Batches) {
  NoGrad guard;
  for (DType dtype : {Float16, BFloat16}) {
    const Tensor a = values({5, 200, 72}, dtype), b = values({5, 72, 136}, dtype), one = values({72, 136}, dtype),
                 left = values({200, 72}, dtype);
    EXPECT_LE(relative_error(back(product(there(a, dtype), there(b, dtype))), matmul(a, b)), limit(dtype));
    EXPECT_LE(relative_error(back(product(there(a, dtype, true), there(b, dtype))), matmul(a, b)), limit(dtype));
    EXPECT_LE(relative_error(back(product(there(a, dtype), there(one, dtype))), matmul(a, one)), limit(dtype));
    EXPECT_LE(relative_error(back(product(there(left, dtype), there(b, dtype))), matmul(left, b)), limit(dtype));
  }
}

/// Few results of long sums are shared by the blocks of clusters, in each of the tiles that there are for that, or, of
/// transposed operands, in parts of k that go through memory, and are the same every time.
TEST_F(Sm90Products, SumsSharedByClusters) {
  NoGrad guard;
  for (DType dtype : {Float16, BFloat16})
    for (ProductSize s : {ProductSize{136, 200, 20011},
                          {256, 128, 8192},
                          {768, 764, 4100},
                          {777, 133, 5003},
                          {2304, 768, 4096},
                          {3072, 776, 4096}}) {
      const Tensor x = values({s.k, s.m}, dtype), y = values({s.k, s.n}, dtype);
      const Tensor left = there(x, dtype).transpose(0, 1), right = there(y, dtype), got = product(left, right);
      EXPECT_LE(relative_error(back(got), matmul(x.transpose(0, 1), y)), 4 * limit(dtype))
          << s.m << " x " << s.n << " x " << s.k << " " << name(dtype);
      EXPECT_EQ(relative_error(back(product(left, right)), back(got)), 0);
      const Tensor weight = values({s.n, s.k}, dtype), bias = values({s.n}, dtype),
                   residual = values({s.m, s.n}, dtype), rows = values({s.m, s.k}, dtype);
      const Tensor sum = by_sm90([&] {
        return linear_act(there(rows, dtype), there(weight, dtype), there(bias, dtype), Activation::None,
                          there(residual, dtype));
      });
      EXPECT_LE(relative_error(back(sum), linear_act(rows, weight, bias, Activation::None, residual)),
                4 * limit(dtype));
    }
}

/// Few results in f32, as gradients of weights are: in parts of k that go through memory, or shared by clusters.
TEST_F(Sm90Products, LongSumsInF32) {
  NoGrad guard;
  const ForceKernel forced("matmul_wide", "sm90");
  for (DType dtype : {Float16, BFloat16})
    for (ProductSize s : {ProductSize{136, 200, 20011},
                          {256, 128, 520},
                          {768, 764, 4100},
                          {777, 132, 5003},
                          {777, 133, 5003},
                          {2300, 764, 4100}}) {
      const Tensor x = values({s.k, s.m}, dtype), y = values({s.k, s.n}, dtype), want = matmul(x.transpose(0, 1), y);
      const auto run = [&] {
        (void)full({s.m, s.n}, NAN, Float32, card());
        return dispatch_one(find_op("matmul_wide"), {there(x, dtype).transpose(0, 1), there(y, dtype)});
      };
      const Tensor got = run();
      EXPECT_EQ(got.dtype(), Float32);
      EXPECT_LE(relative_error(back(got), want), 1e-4) << s.m << " x " << s.n << " x " << s.k << " " << name(dtype);
      EXPECT_EQ(relative_error(back(run()), back(got)), 0);
    }
}

TEST_F(Sm90Products, LinearWithItsEpilogues) {
  for (DType dtype : {Float16, BFloat16})
    for (ProductSize s : {ProductSize{200, 264, 128}, {129, 131, 65}, {1000, 520, 96}, {300, 1033, 72}})
      for (Activation activation : {Activation::None, Activation::Relu, Activation::GeluTanh, Activation::GeluErf,
                                    Activation::Silu, Activation::Tanh}) {
        const Tensor x = values({s.m, s.k}, dtype), weight = (values({s.n, s.k}, dtype) * 0.1).to(dtype).to(Float64),
                     bias = values({s.n}, dtype), residual = values({s.m, s.n}, dtype);
        const auto compare = [&](const Tensor& with_bias, const Tensor& with_residual) {
          const auto on_card = [&](const Tensor& t) { return t.defined() ? there(t, dtype) : t; };
          const Tensor got = by_sm90([&] {
            return linear_act(on_card(x), on_card(weight), on_card(with_bias), activation, on_card(with_residual));
          });
          EXPECT_LE(relative_error(back(got), linear_act(x, weight, with_bias, activation, with_residual)),
                    4 * limit(dtype))
              << s.m << " x " << s.n << " x " << s.k << " " << name(dtype) << static_cast<int>(activation);
        };
        compare({}, {});
        compare(bias, {});
        compare({}, residual);
        compare(bias, residual);
        // What backward needs of the activation is stored, too.
        Tensors near = {there(x, dtype).detach().set_requires_grad()}, wide = {x.detach().set_requires_grad()};
        const Tensor weights = values({s.m, s.n}, dtype);
        const Tensor result =
            by_sm90([&] { return linear_act(near[0], there(weight, dtype), there(bias, dtype), activation); });
        const Tensors got = grad({result}, near, {there(weights, dtype)});
        const Tensors want = grad({linear_act(wide[0], weight, bias, activation)}, wide, {weights});
        EXPECT_LE(relative_error(back(got[0]), want[0]), 8 * limit(dtype)) << static_cast<int>(activation);
      }
}

/// An entry of their own, before the vendor's, and the same kernel.
TEST_F(Sm90Products, LargeResultsComeFirst) {
  const int64_t n = 4096, m = 7 * 128 * 192 * properties(card()).multiprocessors / n, k = 64;
  const auto random = [&](const Shape& shape) { return randn(shape, generator).to(BFloat16).to(card()); };
  const Tensor x = random({m, k}).set_requires_grad(), weight = random({n, k}), bias = random({n}), dy = random({m, n});
  const auto all = [&] {
    return Tensors{linear_act(x, weight, bias, Activation::GeluTanh), linear(x, weight, bias),
                   matmul(x, weight.transpose(0, 1))};
  };
  const auto by = [&](const char* kernel) {
    const ForceKernel product("matmul", kernel), linear("linear", kernel);
    return all();
  };
  const Tensors want = by("sm90");
  for (const Tensors& got : {all(), by("sm90.large")})
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(relative_error(back(got[i].detach()), back(want[i].detach())), 0) << i;
      const auto gradient = [&](const Tensor& y) { return back(grad({y}, {x}, {dy}, true)[0]); };
      EXPECT_EQ(relative_error(gradient(got[i]), gradient(want[i])), 0) << i;
    }
  const ForceKernel forced("matmul", "sm90.large");
  EXPECT_NE(error_of([&] { matmul(x.slice(0, 0, m - 1), weight.transpose(0, 1)); }).find("small"), std::string::npos);
}

TEST_F(Sm90Products, OddLinesGiveWhatThosePaddedWithZerosDo) {
  NoGrad guard;
  const int64_t m = 1024, n = 1277, k = 1003;
  for (const DType dtype : {Float16, BFloat16}) {
    const Tensor x = values({m, k}, dtype), weight = values({n, k}, dtype),
                 bias = values({n}, dtype).to(dtype).to(card());
    const auto dense = [&](const Tensor& t) { return t.to(dtype).to(card()).contiguous(); };
    const auto padded = [&](const Tensor& t) { return dense(concat({t, zeros({t.size(0), 5}, Float64)}, -1)); };
    const auto all = [&](const Tensor& x, const Tensor& weight) {
      return Tensors{matmul(x, weight.transpose(0, 1)), linear(x, weight, bias),
                     linear_act(x, weight, bias, Activation::GeluTanh)};
    };
    const Tensors of_rows_with_gaps = all(there(x, dtype), there(weight, dtype)),
                  of_dense_rows = all(dense(x), dense(weight));
    const ForceKernel product("matmul", "sm90"), biased("linear", "sm90");
    const Tensors want = all(padded(x), padded(weight));
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(relative_error(back(of_rows_with_gaps[i]), back(want[i])), 0) << i;
      EXPECT_EQ(relative_error(back(of_dense_rows[i]), back(want[i])), 0) << i;
    }
  }
}

TEST_F(Sm90Products, RefusesWhatItDoesNotTake) {
  NoGrad guard;
  const ForceKernel forced("matmul", "sm90");
  const auto refusal = [&](const Tensor& a, const Tensor& b) -> std::string {
    try {
      matmul(a, b);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const Tensor good = there(values({256, 256}, Float16), Float16);
  const auto odd = [&](int64_t columns) { return values({256, columns}, Float16).to(Float16).to(card()).contiguous(); };
  EXPECT_NE(refusal(odd(257).slice(-1, 0, 256), good).find("memory layout"), std::string::npos);
  EXPECT_NE(refusal(odd(264).slice(-1, 1, 257), good).find("memory layout"), std::string::npos);
  EXPECT_NE(refusal(good.slice(0, 0, 100), good).find("small"), std::string::npos);
  EXPECT_NE(refusal(good.to(Float32), good.to(Float32)).find("dtype"), std::string::npos);
}

}  // namespace
}  // namespace tessera
