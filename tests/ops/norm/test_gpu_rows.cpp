// Norms, softmax, cross-entropy and GELU on a GPU, if there is one, against float64: rows from one element to more than
// a block holds, that begin anywhere within 16 bytes; and steps of optimizers on halves and on rows with gaps.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/gpu_against_float64.h"
#include "tessera/amp.h"
#include "tessera/autograd.h"
#include "tessera/optim.h"

namespace tessera {
namespace {

class GpuRows : public GpuAgainstFloat64 {
 protected:
  static double limit(DType dtype) {
    return dtype == Float64 ? 1e-12 : dtype == Float32 ? 1e-5 : dtype == Float16 ? 2e-3 : 1.2e-2;
  }
  /// On the GPU, as a part of rows that are `more` elements longer, from element `more / 2` on.
  static Tensor there(const Tensor& t, DType dtype, int64_t more = 0) {
    if (more == 0 || t.dim() < 2) return t.to(dtype).to(card());
    return part_of(t, dtype, t.size(1) + more, more / 2);
  }
  /// The same of rows of `pitch`, from element `begin` on; neighbours are NaN.
  static Tensor part_of(const Tensor& t, DType dtype, int64_t pitch, int64_t begin) {
    const Tensor wide = full({t.size(0), pitch}, std::nan(""), dtype, card());
    Tensor part = wide.slice(1, begin, begin + t.size(1));
    part.copy_(t.to(dtype).to(card()));
    return part;
  }
};

std::string length_of(const testing::TestParamInfo<int64_t>& info) { return std::to_string(info.param); }

class GpuRowsOfLength : public GpuRows, public testing::WithParamInterface<int64_t> {};
using GpuRowsOfLogits = GpuRowsOfLength;

struct RowOperator {
  const char* name;
  size_t inputs;
  std::function<Tensor(const Tensors&)> run;
};
const char* const gelu = "gelu_tanh";
const RowOperator row_operators[] = {
    {"layer_norm", 3, [](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }},
    {"rms_norm", 2, [](const Tensors& in) { return rms_norm(in[0], in[1]); }},
    {"softmax", 1, [](const Tensors& in) { return softmax(in[0], -1); }},
    {"log_softmax", 1, [](const Tensors& in) { return log_softmax(in[0], -1); }},
    {gelu, 1, [](const Tensors& in) { return gelu_tanh(in[0]); }},
};

TEST_P(GpuRowsOfLength, OfAnyAlignment) {
  const int64_t n = GetParam(), rows = n > 5000 ? 3 : 37;
  for (DType dtype : {Float32, BFloat16, Float16, Float64})
    for (int64_t more : {0, 1, 3, 16}) {
      const Tensors in{values({rows, n}, dtype), values({n}, dtype), values({n}, dtype)};
      const Tensor g = values({rows, n}, dtype);
      for (const auto& [what, inputs, run] : row_operators) {
        const Tensors of(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(inputs));
        Tensors on;
        for (const Tensor& t : of) on.push_back(there(t, dtype, more));
        const std::string label = fmt::format("{} + {} {}", what, more, name(dtype));
        if (n == 1 && what != gelu) continue;  // zeros
        EXPECT_LE(error(run(on), run(of)), 4 * limit(dtype)) << label;
        const Tensors wanted = gradients(run, of, g), found = gradients(run, on, there(g, dtype, more));
        for (size_t i = 0; i < inputs; ++i)
          EXPECT_LE(error(found[i], wanted[i]), 8 * limit(dtype)) << label << " input " << i;
      }
    }
}

// The small ones are what racecheck takes, here and below.
INSTANTIATE_TEST_SUITE_P(Small, GpuRowsOfLength, testing::Values(1, 7, 8, 9, 100, 768, 1000, 1001), length_of);
INSTANTIATE_TEST_SUITE_P(Large, GpuRowsOfLength, testing::Values(1024, 1032, 2047, 4096, 8200, 24577, 50257),
                         length_of);

// Operands that each lie in their own way within 16 bytes: padded rows beside dense ones, and parts of longer rows.
TEST_P(GpuRowsOfLength, WhoseOperandsLieOtherwise) {
  const int64_t n = GetParam();
  const bool is_long = n > 20000;  // more rows than clusters have at once, and half of those of the next turn
  const int64_t rows = is_long ? 69 : 21;
  const auto lie = [&](const Tensor& t, DType dtype, int how) {
    const int64_t unit = 16 / static_cast<int64_t>(size_of(dtype));
    if (how == 0) return t.to(dtype).to(card()).contiguous();
    if (how == 1) return part_of(t, dtype, (n + unit - 1) / unit * unit, 0);
    return part_of(t, dtype, n + 2 * unit + 1, unit + 3);
  };
  for (DType dtype : {BFloat16, Float16, Float32}) {
    const Tensors in{values({rows, n}, dtype), values({n}, dtype), values({n}, dtype)};
    const Tensor g = values({rows, n}, dtype);
    for (const auto& [what, inputs, run] : row_operators) {
      if (n == 1 && what != gelu) continue;  // zeros
      const Tensors of(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(inputs));
      const Tensor y = run(of);
      const Tensors wanted = gradients(run, of, g);
      for (int x_lies : {0, 1, 2})
        for (int g_lies : {0, 1, 2}) {
          if (is_long && x_lies * g_lies > 1) continue;
          Tensors on{lie(in[0], dtype, x_lies)};
          for (size_t i = 1; i < inputs; ++i) on.push_back(there(in[i], dtype));
          const std::string label = fmt::format("{} {}, {} {}", what, name(dtype), x_lies, g_lies);
          EXPECT_LE(error(run(on), y), 4 * limit(dtype)) << label;
          const Tensors found = gradients(run, on, lie(g, dtype, g_lies));
          for (size_t i = 0; i < inputs; ++i)
            EXPECT_LE(error(found[i], wanted[i]), 8 * limit(dtype)) << label << " input " << i;
        }
    }
  }
}

// More of them than a kernel holds at once: on Hopper blocks, or clusters of them, take such rows in turns. Bits
// repeat.
class GpuManyRows : public GpuRows, public testing::WithParamInterface<std::pair<int64_t, int64_t>> {};

TEST_P(GpuManyRows, Repeat) {
  const std::function<Tensor(const Tensors&)> operators[] = {
      [](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); },
      [](const Tensors& in) { return rms_norm(in[0], in[1]); },
      [](const Tensors& in) { return softmax(in[0], -1); },
  };
  for (DType dtype : {Float32, BFloat16, Float16})
    for (int64_t more : {0, 3}) {
      const auto [rows, n] = GetParam();
      const Tensors in{values({rows, n}, dtype), values({n}, dtype), values({n}, dtype)};
      const Tensor g = values({rows, n}, dtype), g_there = there(g, dtype, more);
      for (size_t op = 0; op < std::size(operators); ++op) {
        const size_t inputs = op == 0 ? 3 : op == 1 ? 2 : 1;
        const Tensors of(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(inputs));
        Tensors on;
        for (const Tensor& t : of) on.push_back(there(t, dtype, more));
        const std::string label = fmt::format("operator {} + {} {}", op, more, name(dtype));
        EXPECT_LE(error(operators[op](on), operators[op](of)), 4 * limit(dtype)) << label;
        const Tensors wanted = gradients(operators[op], of, g), found = gradients(operators[op], on, g_there),
                      again = gradients(operators[op], on, g_there);
        for (size_t i = 0; i < inputs; ++i) {
          EXPECT_LE(error(found[i], wanted[i]), 8 * limit(dtype)) << label << " input " << i;
          EXPECT_EQ(error(found[i], again[i].to(cpu()).to(Float64)), 0) << label << " input " << i;
        }
      }
    }
}

INSTANTIATE_TEST_SUITE_P(OfLength, GpuManyRows,
                         testing::Values(std::pair{1003, 4099}, std::pair{401, 10007}, std::pair{67, 32771}),
                         [](const auto& info) { return std::to_string(info.param.second); });

TEST_P(GpuRowsOfLogits, OfAnyAlignment) {
  const int64_t n = GetParam();
  for (DType dtype : {Float32, BFloat16, Float16})
    for (int64_t more : {0, 1, 16}) {
      const Tensor logits = values({19, n}, dtype), target = randint(0, n, {19}, generator);
      const auto loss = [&](const Tensor& of) {
        return [of](const Tensors& in) { return cross_entropy(in[0], of, -100, 0.1); };
      };
      const Tensor one = full({}, 1.0, Float64);
      const Tensors wanted = gradients(loss(target), {logits}, one);
      const Tensors found =
          gradients(loss(target.to(card())), {there(logits, dtype, more)}, one.to(Float32).to(card()));
      EXPECT_LE(error(found[0], wanted[0]), 4 * limit(dtype)) << "+ " << more << ' ' << name(dtype);
    }
}

INSTANTIATE_TEST_SUITE_P(Small, GpuRowsOfLogits, testing::Values(2, 9, 768, 1001), length_of);
INSTANTIATE_TEST_SUITE_P(Large, GpuRowsOfLogits, testing::Values(5000, 50257), length_of);

// Without smoothing: on Hopper such rows are streamed, and each block takes several. Bits repeat.
TEST_P(GpuManyRows, CrossEntropyRepeats) {
  const auto [rows, n] = GetParam();
  Tensor target = randint(0, n, {rows}, generator);
  target.data<int64_t>()[1] = -100;
  target.data<int64_t>()[2] = n - 1;
  for (DType dtype : {Float32, BFloat16, Float16})
    for (int64_t more : {0, 3}) {
      const Tensor logits = values({rows, n}, dtype), on = there(logits, dtype, more), target_there = target.to(card());
      const auto loss = [&] { return cross_entropy(on, target_there).item(); };
      const double found = loss(), wanted = cross_entropy(logits, target).item();
      EXPECT_NEAR(found, wanted, 1e-6 * wanted) << more << ' ' << name(dtype);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(loss(), found) << more << ' ' << name(dtype);
    }
}

TEST_F(GpuRows, HalvesRoundToNearestEvenAndKeepWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = tensor(
      std::vector<float>{1.00390625f, 1.01171875f, -1.00390625f, 1.00391f, 3.4e38f, inf, -inf, 1e-40f}, Shape{8});
  const Tensor y = x.to(card()).to(BFloat16).to(cpu()).to(Float32);
  const float want[] = {1.0f, 1.015625f, -1.0f, 1.0078125f, inf, inf, -inf};
  for (size_t i = 0; i < std::size(want); ++i) EXPECT_EQ(y.data<float>()[i], want[i]) << i;
  EXPECT_TRUE(std::isnan(full({3}, std::nan("")).to(card()).to(BFloat16).to(cpu()).to(Float32).data<float>()[2]));
  const Tensor g = gelu_tanh(x.to(card()).to(BFloat16)).to(cpu()).to(Float32);
  EXPECT_EQ(g.data<float>()[5], inf);
  EXPECT_EQ(g.data<float>()[6], 0.0f);
}

TEST_F(GpuRows, AdamWOnHalves) {
  for (DType dtype : {BFloat16, Float16, Float32})
    for (int64_t n : {1, 4, 1003, 4096, 100001, 100004}) {
      const Tensor p = values({n}, dtype), g = values({n}, dtype);
      const auto step = [&](DType type, Device device) {
        Tensor parameter = p.clone().to(type).to(device).set_requires_grad();
        optim::AdamW optimizer({parameter}, {.lr = 0.1, .weight_decay = 0.1});
        for (int i = 0; i < 3; ++i) {
          parameter.set_grad(g.to(type).to(device));
          optimizer.step();
        }
        return parameter.detach();
      };
      EXPECT_LE(error(step(dtype, card()), step(Float64, cpu())), 3 * limit(dtype)) << n << ' ' << name(dtype);
    }
}

// Parameters and gradients with gaps between rows, of which some are too short or too far apart for kernels.
TEST_F(GpuRows, OptimizersPassOverGaps) {
  for (DType dtype : {BFloat16, Float16, Float32})
    for (int64_t n : {3, 4, 67, 1001, 4097})
      for (auto [p_gap, g_gap] : {std::pair{0, 5}, {7, 0}, {3, 3}, {1, 300}, {300, 2}}) {
        const int64_t rows = 37;
        const Tensor p = values({rows, n}, dtype), g = values({rows, n}, dtype);
        const auto make = [&](const Tensor& t, DType type, Device device, int64_t gap) {
          Tensor wide = full({rows, n + gap}, 7, type, device);
          wide.slice(1, 0, n).copy_(t.to(type).to(device));
          return wide;
        };
        const auto results = [&](DType type, Device device) {
          Tensors out, wides;
          for (bool adam : {true, false}) {
            wides = {make(p, type, device, p_gap), make(g, type, device, g_gap)};
            Tensor parameter = wides[0].slice(1, 0, n).detach().set_requires_grad();
            parameter.set_grad(wides[1].slice(1, 0, n));
            out.push_back(optim::grad_norm({parameter}).to(Float64));
            const auto steps = [&](auto&& optimizer) {
              for (int i = 0; i < 3; ++i) optimizer.step();
              if (dtype == Float16) return;  // which scalers refuse
              amp::GradScaler scaler({.init_scale = 8});
              scaler.scale(full({}, 1, Float32, device));
              scaler.unscale_(optimizer);
            };
            if (adam) steps(optim::AdamW({parameter}, {.lr = 0.1, .weight_decay = 0.1}));
            else steps(optim::SGD({parameter}, {.lr = 0.1, .momentum = 0.9}));
            out.append(wides.begin(), wides.end());
          }
          return out;
        };
        const Tensors found = results(dtype, card()), wanted = results(Float64, cpu());
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_LE(error(found[i], wanted[i]), 3 * limit(dtype))
              << fmt::format("{} + {}, {} {}: {}", n, p_gap, g_gap, name(dtype), i);
      }
}

}  // namespace
}  // namespace tessera
