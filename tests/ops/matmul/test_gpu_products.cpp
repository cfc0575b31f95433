// Products and convolutions on a GPU, if there is one, off and on the tiles of its kernels, against float64.
#include <array>
#include <optional>

#include "core/gpu_check.h"
#include "core/op.h"
#include "gpu_memory.h"
#include "ops/call_plan.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/stream.h"

namespace tessera {
namespace {

constexpr DType float_types[] = {Float64, Float32, Float16, BFloat16};

class GpuProducts : public GpuTest {
 protected:
  static double limit(DType dtype) {
    return dtype == Float64 ? 1e-13 : dtype == Float32 ? 2e-6 : dtype == Float16 ? 6e-4 : 5e-3;
  }
  /// Values that `dtype` holds exactly, in float64.
  Tensor values(const Shape& shape, DType dtype) { return normal64(shape, generator).to(dtype).to(Float64); }
  static Tensor there(const Tensor& t, DType dtype) { return t.defined() ? t.to(dtype).to(card()) : t; }

  /// The transpose of a matrix, in memory, seen as the matrix.
  static Tensor column_major(const Tensor& t) { return t.transpose(-2, -1).contiguous().transpose(-2, -1); }

  Generator generator{17};
};

TEST_F(GpuProducts, MatmulInEveryOrientation) {
  NoGrad guard;
  for (ProductSize s : {ProductSize{1, 1, 1},
                        {1, 8, 16},
                        {33, 64, 40},
                        {65, 127, 31},
                        {128, 128, 64},
                        {257, 129, 515},
                        {1, 1000, 24},
                        {1024, 1, 72},
                        {640, 776, 8},
                        {1031, 1033, 1}}) {
    for (DType dtype : float_types) {
      const Tensor a = values({s.m, s.k}, dtype), b = values({s.k, s.n}, dtype), want = matmul(a, b);
      const Tensor left = there(a, dtype), right = there(b, dtype);
      for (bool turn_a : {false, true})
        for (bool turn_b : {false, true}) {
          const Tensor got = matmul(turn_a ? column_major(left) : left, turn_b ? column_major(right) : right);
          EXPECT_LE(relative_error(got.to(cpu()).to(Float64), want), limit(dtype))
              << s.m << " x " << s.n << " x " << s.k << " " << name(dtype) << turn_a << turn_b;
        }
    }
  }
}

/// Those that cost the host more by the vendor's library than the card by ours, in any layout.
TEST_F(GpuProducts, SmallOnesAreOurs) {
  NoGrad guard;
  for (DType dtype : float_types)
    for (ProductSize s : {ProductSize{1, 1, 1}, {7, 13, 5}, {64, 64, 256}}) {
      const Tensor a = values({s.m, s.k}, dtype), b = values({s.n, s.k}, dtype), bias = values({s.n}, dtype);
      const Tensor left = there(a, dtype), right = there(b, dtype), want = linear(a, b, bias);
      const auto run = [&] { return linear(column_major(left), right, there(bias, dtype)); };
      const Tensor got = run();
      EXPECT_LE(relative_error(got.to(cpu()).to(Float64), want), limit(dtype)) << name(dtype) << s.m;
      const ForceKernel forced("linear", "gemm.small");
      EXPECT_EQ(relative_error(run().to(cpu()), got.to(cpu())), 0);
    }
  const ForceKernel forced("matmul", "gemm.small");
  const Tensor a = zeros({65, 8}, Float32, card()), b = zeros({8, 64}, Float32, card());
  EXPECT_NE(error_of([&] { matmul(a, b); }).find("gemm.small"), std::string::npos);
}

TEST_F(GpuProducts, BatchesBroadcastAndStridesAreAny) {
  NoGrad guard;
  for (DType dtype : float_types) {
    const Tensor a = values({3, 1, 37, 48}, dtype), b = values({5, 48, 72}, dtype);
    const Tensor want = matmul(a, b);
    EXPECT_LE(relative_error(matmul(there(a, dtype), there(b, dtype)).to(cpu()).to(Float64), want), limit(dtype));
    // Heads out of [batch, time, heads, width], as attention takes them.
    const Tensor q = values({2, 19, 3, 16}, dtype), q_there = there(q, dtype);
    const auto scores = [](const Tensor& t) {
      const Tensor heads = t.permute({0, 2, 1, 3});
      return matmul(heads, heads.transpose(-2, -1));
    };
    EXPECT_LE(relative_error(scores(q_there).to(cpu()).to(Float64), scores(q)), limit(dtype)) << name(dtype);
    const Tensor both = q.permute({1, 3, 0, 2}), both_there = q_there.permute({1, 3, 0, 2});  // no stride is 1
    EXPECT_LE(relative_error(matmul(both_there, both_there.transpose(-2, -1)).to(cpu()).to(Float64),
                             matmul(both, both.transpose(-2, -1))),
              limit(dtype));
  }
}

TEST_F(GpuProducts, LongSumsKeepTheirPrecision) {
  NoGrad guard;
  for (DType dtype : float_types) {
    const Tensor x = values({20011, 48}, dtype), y = values({20011, 72}, dtype);
    const Tensor got = matmul(there(x, dtype).transpose(0, 1), there(y, dtype));
    EXPECT_LE(relative_error(got.to(cpu()).to(Float64), matmul(x.transpose(0, 1), y)), 4 * limit(dtype)) << name(dtype);
  }
}

/// Rows that are padded to whole 16 bytes, as a vocabulary of 50257 has them: large products of them, and their
/// gradients.
TEST_F(GpuProducts, LargeOnesOffTheMultiples) {
  for (DType dtype : {Float16, BFloat16}) {
    const int64_t m = 1100, n = 1033, k = 1000;
    const Tensors exact = {values({m, k}, dtype), values({n, k}, dtype) * 0.05, values({n}, dtype)};
    const Tensor targets = randint(0, n, {m}, generator);
    const auto f = [&](const Tensors& in) {
      const Tensor logits = linear_act(in[0], in[1], in[2], Activation::None, {});
      return std::pair{logits.detach().to(cpu()).to(Float64).contiguous(),
                       cross_entropy(logits, targets.to(logits.device())) * 1000.0};
    };
    Tensors half, wide;
    for (const Tensor& t : exact) {
      half.push_back(there(t, dtype).detach().set_requires_grad());
      wide.push_back(half.back().detach().to(cpu()).to(Float64).set_requires_grad());
    }
    const auto [got, got_loss] = f(half);
    const auto [want, want_loss] = f(wide);
    EXPECT_LE(relative_error(got, want), 2 * limit(dtype)) << name(dtype);
    const Tensors got_grads = grad({got_loss}, half), want_grads = grad({want_loss}, wide);
    for (int i = 0; i < 3; ++i)
      EXPECT_LE(relative_error(got_grads[i].to(cpu()).to(Float64), want_grads[i]), 8 * limit(dtype))
          << name(dtype) << " gradient " << i;
  }
}

/// Logits of more than 2^31 elements, and the gradients that they give as they lie there.
TEST_F(GpuProducts, VocabularyOfMoreThanTwoToThe31Elements) {
  if (properties(card()).memory < size_t{12} << 30) GTEST_SKIP() << "needs 12 GB";
  const WholeCard held;
  NoGrad guard;
  const int64_t m = 43008, n = 50257, k = 64;
  const DType dtype = BFloat16;
  const Tensor x = values({m, k}, dtype), w = values({n, k}, dtype) * 0.25;
  const Tensor x_there = there(x, dtype), w_there = there(w, dtype);
  const Tensor logits = linear_act(x_there, w_there, {}, Activation::None, {});
  const auto here = [](const Tensor& t) { return t.contiguous().to(cpu()).to(Float64); };
  const Tensor last_column = here(logits.slice(1, n - 1, n)), last_rows = here(logits.slice(0, m - 3, m));
  EXPECT_LE(relative_error(last_column, matmul(x, w.slice(0, n - 1, n).transpose(0, 1))), limit(dtype));
  EXPECT_LE(relative_error(last_rows, matmul(x.slice(0, m - 3, m), w.transpose(0, 1))), limit(dtype));
  const Tensor dx = here(matmul(logits, w_there).slice(0, m - 3, m));
  EXPECT_LE(relative_error(dx, matmul(last_rows, w)), 2 * limit(dtype));
  const Tensor dw = here(matmul(logits.transpose(0, 1), x_there).slice(0, n - 1, n));
  EXPECT_LE(relative_error(dw, matmul(last_column.transpose(0, 1), x)), 2 * limit(dtype));
}

/// Few results of long sums are summed up in parts, which are added before anything else is done with them.
TEST_F(GpuProducts, LongSumsInParts) {
  NoGrad guard;
  for (DType dtype : {Float32, Float16, BFloat16})
    for (ProductSize s : {ProductSize{96, 72, 8192}, {33, 51, 5003}, {256, 200, 4096}, {1, 7, 9001}}) {
      const Tensor x = values({s.m, s.k}, dtype), weight = values({s.n, s.k}, dtype) * 0.02,
                   bias = values({s.n}, dtype), residual = values({s.m, s.n}, dtype);
      const Tensor weight_there = there(weight, dtype), exact = weight_there.to(cpu()).to(Float64);
      const ForceKernel ours("linear", "gemm");
      for (Activation activation : {Activation::None, Activation::GeluTanh}) {
        const auto got =
            linear_act(there(x, dtype), weight_there, there(bias, dtype), activation, there(residual, dtype));
        const auto again =
            linear_act(there(x, dtype), weight_there, there(bias, dtype), activation, there(residual, dtype));
        EXPECT_LE(relative_error(got.to(cpu()).to(Float64), linear_act(x, exact, bias, activation, residual)),
                  4 * limit(dtype))
            << s.m << " x " << s.n << " x " << s.k << " " << name(dtype);
        EXPECT_EQ(relative_error(again.to(cpu()).to(Float64), got.to(cpu()).to(Float64)), 0);
      }
    }
  for (DType dtype : {Float32, BFloat16}) {  // a batch, and gradients of weights as they come
    const ForceKernel ours("matmul", "gemm");
    const Tensor x = values({3, 4099, 40}, dtype), y = values({3, 4099, 56}, dtype);
    const Tensor got = matmul(there(x, dtype).transpose(-2, -1), there(y, dtype));
    EXPECT_LE(relative_error(got.to(cpu()).to(Float64), matmul(x.transpose(-2, -1), y)), 4 * limit(dtype));
  }
}

TEST_F(GpuProducts, Tf32IsUsedWhereItIsAllowed) {
  if (card().type != DeviceType::CUDA) GTEST_SKIP() << "only NVIDIA's cards have tf32";
  NoGrad guard;
  for (ProductSize s : {ProductSize{65, 127, 31}, {128, 256, 512}, {257, 130, 515}, {96, 72, 8192}}) {
    const Tensor a = values({s.m, s.k}, Float32), b = values({s.k, s.n}, Float32), want = matmul(a, b);
    const Tensor left = there(a, Float32), right = there(b, Float32);
    for (bool turn_a : {false, true})
      for (bool turn_b : {false, true}) {
        const Tensor x = turn_a ? column_major(left) : left, y = turn_b ? column_major(right) : right;
        const auto error = [&] { return relative_error(matmul(x, y).to(cpu()).to(Float64), want); };
        EXPECT_LE(error(), limit(Float32));
        for (const char* kernel : {"", "tf32"}) {
          std::optional<ForceKernel> ours;
          if (*kernel) ours.emplace("matmul", kernel);
          allow_tf32(true);
          const double rounded = error();
          allow_tf32(false);
          EXPECT_LE(rounded, 1e-3) << s.m << " x " << s.n << " x " << s.k << turn_a << turn_b;
          EXPECT_GE(rounded, 1e-5);
        }
      }
  }
  // Large ones, whose lines begin or end off whole 16 bytes; where k lies along
  // rows, zeros go to the padding behind them, and the plan says so.
  const Tensor a = values({1027, 1031}, Float32), b = values({1031, 1029}, Float32), want = matmul(a, b);
  const auto padded = [](const Tensor& t) { return empty_pitched(t.shape(), 1032, Float32, card()).copy_(t); };
  for (const auto& [turn_a, turn_b] : {std::pair{false, false}, {false, true}, {true, false}})
    for (bool pads : {false, true}) {
      const auto lies = [&](const Tensor& t, bool turned) {
        const Tensor x = there(turned ? t.transpose(0, 1) : t, Float32), y = pads ? padded(x) : x.contiguous();
        return turned ? y.transpose(0, 1) : y;
      };
      const Tensor x = lies(a, turn_a), y = lies(b, turn_b);
      allow_tf32(true);
      const double rounded = relative_error(matmul(x, y).to(cpu()).to(Float64), want);
      allow_tf32(false);
      EXPECT_LE(rounded, 1e-3) << turn_a << turn_b << pads;
      EXPECT_GE(rounded, 1e-5);
      allow_tf32(true);
      const auto metas = metas_of(std::array{x, y}, card());
      const std::span<const TensorMeta> in(metas.data(), metas.size());
      const Op& op = find_op("matmul");
      const Metas out = infer_outputs(op, in, {}, card(), false);
      const std::string plan = make_plan(op, in, {}, {out.data(), out.size()})->describe();
      allow_tf32(false);
      for (const char* input : {"0", "1"})
        EXPECT_EQ(plan.find(std::string("zeros to the padding of input ") + input) != plan.npos,
                  pads && !turn_a && plan.find("cublasLt") != plan.npos)
            << plan;
    }
  for (const char* kernel : {"", "implicit_gemm"}) {
    std::optional<ForceKernel> ours;
    if (*kernel) ours.emplace("conv2d", kernel);
    const Tensor images = values({2, 19, 23, 17}, Float32), filters = values({37, 19, 3, 3}, Float32);
    const Tensor want = conv2d(images, filters, {}, {.padding = {1, 1}});
    allow_tf32(true);
    const Tensor got = conv2d(there(images, Float32), there(filters, Float32), {}, {.padding = {1, 1}});
    allow_tf32(false);
    EXPECT_LE(relative_error(got.to(cpu()).to(Float64), want), 1e-3);
  }
  const ForceKernel forced("matmul", "tf32");
  const Tensor x = there(values({8, 8}, Float32), Float32);
  EXPECT_THROW(matmul(x, x), Error);  // not allowed any more
}

TEST_F(GpuProducts, SumsOfMixedTypes) {
  NoGrad guard;
  for (DType half : {Float16, BFloat16})
    for (const Shape& shape : {Shape{64, 96}, Shape{7, 13}, Shape{3, 5, 40}}) {
      const Tensor a = values(shape, Float32), b = values(shape, half), row = values({shape[shape.size() - 1]}, half),
                   column = values({shape[shape.size() - 2], 1}, half);
      const Tensor wide = there(a, Float32), low = there(b, half);
      const auto check = [](const Tensor& got, const Tensor& want) {
        EXPECT_EQ(got.dtype(), Float32);
        EXPECT_LE(relative_error(got.to(cpu()).to(Float64), want), 1e-6);
      };
      check(wide + low, a + b);
      check(low * wide, b * a);
      check(wide + there(row, half), a + row);
      check(there(column, half) + wide, column + a);
      check(low.transpose(-2, -1) + wide.transpose(-2, -1), (a + b).transpose(-2, -1));
      Tensor sum = low.clone();
      sum.add_(wide);
      EXPECT_LE(relative_error(sum.to(cpu()).to(Float64), a + b), limit(half));
    }
}

TEST_F(GpuProducts, LinearWithItsEpilogues) {
  for (DType dtype : {Float32, Float16, BFloat16})
    for (ProductSize s : {ProductSize{200, 264, 128}, {77, 51, 33}})
      for (Activation activation : {Activation::None, Activation::Relu, Activation::GeluTanh, Activation::GeluErf,
                                    Activation::Silu, Activation::Tanh}) {
        // No weight is subnormal in f16: AMD's MI200 multiplies such as zeros, and a sum next to 0 gets another slope.
        Tensor weight = values({s.n, s.k}, dtype) * 0.1;
        weight = where(lt(abs(weight), full({}, 0x1p-13, Float64)), full({}, 0x1p-13, Float64), weight);
        const Tensors exact = {values({s.m, s.k}, dtype), weight, values({s.n}, dtype), values({s.m, s.n}, dtype)};
        const auto f = [&](const Tensors& in) { return linear_act(in[0], in[1], in[2], activation, in[3]); };
        Tensors wide, half;
        for (const Tensor& t : exact) {
          half.push_back(there(t, dtype));
          wide.push_back(half.back().to(cpu()).to(Float64));
        }
        EXPECT_LE(relative_error(f(half).to(cpu()).to(Float64), f(wide)), 4 * limit(dtype));
        for (Tensor* t : {&half[0], &half[1], &wide[0], &wide[1]}) *t = t->detach().set_requires_grad();
        const Tensor weights = values({s.m, s.n}, dtype);
        const Tensors got = grad({f(half)}, {half[0], half[1]}, {there(weights, dtype)});
        const Tensors want = grad({f(wide)}, {wide[0], wide[1]}, {weights});
        for (int i = 0; i < 2; ++i)
          EXPECT_LE(relative_error(got[i].to(cpu()).to(Float64), want[i]), 8 * limit(dtype))
              << name(dtype) << " activation " << static_cast<int>(activation) << " gradient " << i;
      }
}

double norm_of(const Tensor& t) { return std::sqrt(sum(t * t).item<double>()); }

/// By the vendor's or Hopper's product and a pass behind it, in the epilogue of our tiles, or behind a product on
/// ordinary cores.
TEST_F(GpuProducts, FactorAndSumsOfLines) {
  NoGrad guard;
  for (const char* kernel : {"vendor", "vendor.1", "vendor.7", "sm90", "gemm"}) {
    std::string refusal;
    int compared = 0;
    for (DType dtype : float_types)
      for (ProductSize s : {ProductSize{1, 1, 1},
                            {33, 64, 40},
                            {65, 127, 31},
                            {128, 128, 64},
                            {257, 387, 72},
                            {1000, 1, 8},
                            {1, 1000, 8},
                            {1200, 1300, 24},
                            {77, 130, 4096}})
        for (int form = 0; form < 8; ++form) {
          const Tensor a = values({s.m, s.k}, dtype), b = values({s.k, s.n}, dtype), factor = values({s.m, s.n}, dtype);
          const Tensor left = there(a, dtype), right = there(form & 1 ? column_major(b) : b, dtype);
          const Tensor times = form & 2 ? there(factor, dtype) : Tensor();
          const bool rows = form != 2, columns = form < 6;
          const auto run = [&] {
            try {
              const ForceKernel forced("matmul_mul_sum", kernel);
              return matmul_mul_sum(form & 4 ? column_major(left) : left, right, times, rows, columns);
            } catch (const Error& error) {  // not every product is one of the vendor's or Hopper's
              refusal = error.what();
              if (refusal.find("which is forced") == std::string::npos) throw;
              return Tensors();
            }
          };
          const Tensors got = run(), again = run();
          if (got.empty()) continue;
          ++compared;
          const Tensors want = matmul_mul_sum(a, b, form & 2 ? factor : Tensor(), rows, columns);
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < got.size(); ++i) {
            const Tensor difference = got[i].to(cpu()).to(Float64) - want[i];
            // Terms that cancel leave a small sum with the errors of all of them.
            const double size = std::max(norm_of(want[i]), norm_of(want[0]));
            EXPECT_LE(norm_of(difference), 2 * limit(dtype) * size)
                << kernel << " " << s.m << " x " << s.n << " x " << s.k << " " << name(dtype) << " form " << form
                << " output " << i;
            EXPECT_EQ(relative_error(again[i].to(cpu()).to(Float64), got[i].to(cpu()).to(Float64)), 0);
          }
        }
    const bool missing = refusal.find("its library is not installed") != std::string::npos ||
                         refusal.find("instructions that this device lacks") != std::string::npos;
    EXPECT_TRUE(compared > 0 || missing) << kernel << ": " << refusal;
  }
}

TEST_F(GpuProducts, MlpAndItsGradients) {
  for (DType dtype : {Float32, Float16, BFloat16})
    for (ProductSize s : {ProductSize{200, 264, 128}, {77, 51, 33}}) {
      const Tensors exact = {values({s.m, s.k}, dtype),  values({s.n, s.k}, dtype) * 0.1,
                             values({s.n}, dtype) * 0.1, values({s.k, s.n}, dtype) * 0.1,
                             values({s.k}, dtype),       values({s.m, s.k}, dtype)};
      const auto f = [](const Tensors& in) {
        return mlp(in[0], in[1], in[2], Activation::GeluTanh, in[3], in[4], in[5]);
      };
      Tensors wide, near;
      for (const Tensor& t : exact) {
        near.push_back(there(t, dtype));
        wide.push_back(near.back().to(cpu()).to(Float64));
      }
      {
        NoGrad guard;
        EXPECT_LE(relative_error(f(near).to(cpu()).to(Float64), f(wide)), 4 * limit(dtype)) << name(dtype);
      }
      for (Tensors* all : {&near, &wide})
        for (Tensor& t : *all) t = t.detach().set_requires_grad();
      const Tensor weights = values({s.m, s.k}, dtype);
      const Tensors got = grad({f(near)}, near, {there(weights, dtype)}), want = grad({f(wide)}, wide, {weights});
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(relative_error(got[i].to(cpu()).to(Float64), want[i]), 8 * limit(dtype))
            << name(dtype) << " gradient " << i;
    }
}

/// GELU's input instead of its slope, beside the result or before it, by each kernel of both lists, on and off whole
/// units and below the sizes that the vendor's epilogue takes; weights are padded views, so that rows are, too.
TEST_F(GpuProducts, GeluKeepsItsInput) {
  const DType dtype = BFloat16;
  for (const char* kernel : {"vendor", "vendor.2", "vendor.7", "sm90", "sm90.at_once", "gemm"})
    for (ProductSize s :
         {ProductSize{200, 264, 128}, {77, 51, 33}, {129, 136, 72}, {64, 64, 64}, {67, 133, 131}, {1, 8, 8}, {1, 1, 1}})
      for (bool bias : {true, false}) {
        Tensors near, wide;
        for (const Tensor& t : {values({s.m, s.k}, dtype), values({s.n, s.k}, dtype) * 0.1, values({s.n}, dtype) * 0.1,
                                values({s.k, s.n}, dtype) * 0.1}) {
          near.push_back(there(t, dtype).detach().set_requires_grad());
          wide.push_back(near.back().detach().to(cpu()).to(Float64).set_requires_grad());
        }
        const auto f = [&](const Tensors& in) {
          return mlp(in[0], in[1], bias ? in[2] : Tensor(), Activation::GeluTanh, in[3]);
        };
        const auto single = [&](const Tensors& in) {
          return linear_act(in[0], in[1], bias ? in[2] : Tensor(), Activation::GeluTanh);
        };
        const Tensor weights = values({s.m, s.k}, dtype), others = values({s.m, s.n}, dtype);
        const auto compare = [&](const auto& fn, const Tensor& by, bool down) {
          Tensors of_near = {near[0], near[1]}, of_wide = {wide[0], wide[1]};
          for (size_t i : {size_t{2}, size_t{3}})
            if (i == 2 ? bias : down) {
              of_near.push_back(near[i]);
              of_wide.push_back(wide[i]);
            }
          const Tensor got = fn(near), want = fn(wide);
          EXPECT_LE(relative_error(got.detach().to(cpu()).to(Float64), want.detach()), 4 * limit(dtype));
          const Tensors a = grad({got}, of_near, {there(by, dtype)}), b = grad({want}, of_wide, {by});
          for (size_t i = 0; i < a.size(); ++i)
            EXPECT_LE(relative_error(a[i].to(cpu()).to(Float64), b[i]), 8 * limit(dtype))
                << kernel << " " << s.m << " x " << s.n << " x " << s.k << (bias ? " bias" : "") << " gradient " << i;
        };
        try {
          const bool at_once = std::string(kernel) == "sm90.at_once";  // an entry of the backward's list alone
          const ForceKernel forward("linear", at_once ? "sm90" : kernel), backward("matmul_gelu_grad", kernel);
          compare(f, weights, true);
          compare(single, others, false);
        } catch (const Error& error) {  // small or narrow ones are not Hopper's
          if (std::string(error.what()).find("which is forced") == std::string::npos) throw;
        }
      }
}

/// Sums that end in a f32 gradient are not rounded to halves on their way.
TEST_F(GpuProducts, BiasesUnderAutocastKeepTheirSums) {
  for (DType dtype : {Float16, BFloat16})
    for (ProductSize s : {ProductSize{200, 264, 128}, {77, 51, 33}}) {
      const auto parameter = [&](const Shape& shape) {
        return there(values(shape, Float32) * 0.1, Float32).detach().set_requires_grad();
      };
      const Tensor up = parameter({s.n, s.k}), first = parameter({s.n}), down = parameter({s.k, s.n}),
                   second = parameter({s.k});
      const Tensor x = there(values({s.m, s.k}, dtype), dtype), dy = values({s.m, s.k}, dtype);
      Tensor y;
      {
        const amp::Autocast region(dtype);
        y = mlp(x, up, first, Activation::GeluTanh, down, second);
      }
      y.backward(there(dy, dtype));
      EXPECT_EQ(first.grad().dtype(), Float32);
      EXPECT_LE(relative_error(second.grad().to(cpu()), sum(dy, {0})), 1e-6);
      const auto wide = [](const Tensor& t) { return t.detach().to(cpu()).to(Float64).set_requires_grad(); };
      const Tensors w = {wide(x), wide(up), wide(first), wide(down)};
      const Tensor want = grad({mlp(w[0], w[1], w[2], Activation::GeluTanh, w[3])}, {w[2]}, {dy})[0];
      EXPECT_LE(relative_error(first.grad().to(cpu()).to(Float64), want), 8 * limit(dtype)) << name(dtype);
    }
}

/// In a graph, and twice over one graph of operators.
TEST_F(GpuProducts, GeluKeepsItsInputInGraphs) {
  const DType dtype = BFloat16;
  const Tensor x = there(values({192, 128}, dtype), dtype).set_requires_grad();
  const Tensor up = there(values({256, 128}, dtype) * 0.1, dtype).set_requires_grad();
  const Tensor bias = there(values({256}, dtype), dtype).set_requires_grad();
  const Tensor down = there(values({128, 256}, dtype) * 0.1, dtype).set_requires_grad();
  const Tensor weights = there(values({192, 128}, dtype), dtype);
  const auto f = [&] { return mlp(x, up, bias, Activation::GeluTanh, down); };
  const Tensors all = {x, up, bias, down}, want = grad({f()}, all, {weights});
  const Tensor y = f();
  const auto once = [&] { return grad({y}, all, {weights}, true); };
  Tensors first = once(), second = once(), captured;
  DeviceGraph graph;
  graph.capture(card(), [&] { captured = grad({f()}, all, {weights}); });
  graph.replay();
  for (size_t i = 0; i < want.size(); ++i)
    for (const Tensors* got : {&first, &second, &captured})
      EXPECT_EQ(relative_error((*got)[i].to(cpu()).to(Float64), want[i].to(cpu()).to(Float64)), 0) << i;
}

struct ConvCase {
  Shape x, weight;
  Conv2dOptions options;
};

class GpuConvolutions : public GpuProducts {
 protected:
  static std::vector<ConvCase> cases() {
    const int64_t most = int64_t(1) << 31;
    return {
        {{2, 37, 19, 23}, {70, 37, 3, 3}, {.padding = {1, 1}}},
        {{3, 16, 33, 17}, {24, 16, 5, 3}, {.stride = {2, 3}, .padding = {2, 0}, .dilation = {1, 2}}},
        {{2, 12, 9, 11}, {30, 4, 3, 3}, {.stride = {3, 2}, .padding = {3, 1}, .dilation = {2, 1}, .groups = 3}},
        {{4, 130, 14, 14}, {132, 130, 1, 1}, {}},
        {{2, 8, 6, 5}, {12, 8, 3, 3}, {.padding = {1, 1}}},
        {{3, 4, 11, 16}, {5, 4, 3, 4}, {.padding = {2, 3}, .dilation = {2, 3}}},
        {{2, 24, 5, 9}, {68, 12, 2, 3}, {.padding = {0, 2}, .groups = 2}},
        {{1, 3, 224, 64}, {8, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
        {{1, 8, 9, 9}, {8, 1, 3, 3}, {.padding = {1, 1}, .groups = 8}},
        {{1, 2, 5, 5}, {3, 2, 3, 3}, {.stride = {most, most}}},
    };
  }

  /// All three by the named kernel.
  struct By {
    ForceKernel forward, images, filters;
    explicit By(const char* kernel)
        : forward("conv2d", kernel), images("conv2d_input_grad", kernel), filters("conv2d_weight_grad", kernel) {}
  };

  /// By `kernel`, or by what the lists choose for null.
  void compare(const ConvCase& c, DType dtype, bool channels_last, const char* kernel) {
    const Tensor bias = values({c.weight[0].value()}, dtype);
    Tensors wide = {values(c.x, dtype), values(c.weight, dtype)}, near;
    for (Tensor& t : wide) {
      Tensor there = t.to(dtype).to(card());
      if (channels_last) there = there.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
      near.push_back(there.detach().set_requires_grad());
      t = t.detach().set_requires_grad();
    }
    const Tensor want = conv2d(wide[0], wide[1], bias, c.options), weights = values(want.shape(), dtype);
    const Tensors want_grads = grad({want}, wide, {weights});
    std::optional<By> forced;
    if (kernel) forced.emplace(kernel);
    const Tensor got = conv2d(near[0], near[1], there(bias, dtype), c.options);
    EXPECT_LE(relative_error(got.detach().to(cpu()).to(Float64), want), 2 * limit(dtype)) << name(dtype);
    const Tensors got_grads = grad({got}, near, {there(weights, dtype)});
    for (int i = 0; i < 2; ++i)
      EXPECT_LE(relative_error(got_grads[i].to(cpu()).to(Float64), want_grads[i]), 4 * limit(dtype))
          << name(dtype) << (i ? " weight " : " x ") << to_string(c.x) << to_string(c.weight);
  }
};

TEST_F(GpuConvolutions, AndTheirGradients) {
  for (DType dtype : float_types)
    for (const ConvCase& c : cases())
      for (const char* kernel : {static_cast<const char*>(nullptr), "implicit_gemm"})
        for (bool channels_last : {false, true}) compare(c, dtype, channels_last, kernel);
}

TEST_F(GpuConvolutions, MeetNothingBesideTheRowsOfATap) {
  const ForceKernel kernel("conv2d_weight_grad", "implicit_gemm");
  for (DType dtype : {Float32, Float16, BFloat16}) {
    const Tensor x = values({2, 3, 6, 11}, dtype), g = values({2, 5, 4, 9}, dtype);
    const auto gradient = [&](double last) {
      Tensor at = x.clone();
      at.slice(3, 10, 11).fill_(last);  // which the last tap of a row alone meets
      const Tensor weight = there(zeros({5, 3, 3, 3}, Float64), dtype).set_requires_grad();
      const Tensor out = conv2d(there(at, dtype), weight);
      return grad({out}, {weight}, {there(g, dtype)})[0].to(cpu()).to(Float64).slice(3, 0, 2).contiguous();
    };
    EXPECT_EQ(relative_error(gradient(INFINITY), gradient(0)), 0) << name(dtype);
  }
}

class VendorConvolutions : public GpuConvolutions {
 protected:
  void SetUp() override {
    GpuConvolutions::SetUp();
    if (IsSkipped()) return;
    NoGrad guard;
    const By vendor("vendor");
    try {
      conv2d(there(values({1, 8, 8, 8}, Float16), Float16), there(values({8, 8, 3, 3}, Float16), Float16));
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(VendorConvolutions, AndTheirGradients) {
  int refused = 0;
  for (DType dtype : {Float32, Float16, BFloat16})
    for (const ConvCase& c : cases()) try {
        compare(c, dtype, false, "vendor");
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("does not take these shapes"), std::string::npos) << error.what();
        ++refused;
      }
  EXPECT_LE(refused, 3);
}

TEST_F(VendorConvolutions, OfLargePlanesThatDoNotSplit) {
  for (DType dtype : {Float16, BFloat16}) {
    compare({{2, 5, 65, 67}, {70, 5, 1, 1}, {}}, dtype, false, nullptr);
    compare({{1, 33, 64, 65}, {9, 33, 1, 1}, {}}, dtype, false, nullptr);
  }
}

TEST_F(VendorConvolutions, AreTheSameEachTimeAndInGraphs) {
  const By vendor("vendor");
  const Tensor x = there(values({4, 48, 20, 20}, Float16), Float16).set_requires_grad();
  const Tensor weight = there(values({64, 48, 3, 3}, Float16), Float16).set_requires_grad();
  const Tensor weights = there(values({4, 64, 18, 18}, Float16), Float16);
  const auto gradients = [&] { return grad({conv2d(x, weight)}, {x, weight}, {weights}); };
  const Tensors first = gradients(), second = gradients();
  Tensors captured;
  DeviceGraph graph;
  graph.capture(card(), [&] { captured = gradients(); });
  graph.replay();
  for (int i = 0; i < 2; ++i) {
    const Tensor want = first[i].to(cpu()).to(Float64);
    EXPECT_EQ(relative_error(second[i].to(cpu()).to(Float64), want), 0);
    EXPECT_EQ(relative_error(captured[i].to(cpu()).to(Float64), want), 0);
  }
}

TEST_F(GpuProducts, PoolingGathersItsGradients) {
  for (DType dtype : float_types)
    for (Pool2dOptions o : {Pool2dOptions{.window = {3, 2}, .stride = {2, 1}, .padding = {1, 1}},
                            {.window = {2, 3}, .stride = {1, 2}, .padding = {1, 0}, .count_include_pad = false}}) {
      const Tensor x = values({2, 5, 13, 17}, dtype);
      for (auto* pool : {max_pool2d, avg_pool2d}) {
        const Tensor wide = x.detach().set_requires_grad(), near = there(x, dtype).set_requires_grad();
        const Tensor want = pool(wide, o), got = pool(near, o);
        EXPECT_LE(relative_error(got.detach().to(cpu()).to(Float64), want), 2 * limit(dtype));
        const Tensor weights = values(want.shape(), dtype);
        EXPECT_LE(relative_error(grad({got}, {near}, {there(weights, dtype)})[0].to(cpu()).to(Float64),
                                 grad({want}, {wide}, {weights})[0]),
                  2 * limit(dtype));
      }
    }
}

}  // namespace
}  // namespace tessera
