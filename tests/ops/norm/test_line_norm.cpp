// Batch norm of images whose channels lie last, on the CPU: by lines of channels, against the same in float64 by
// planes.
#include "core/plan.h"
#include "ops/batch_norm.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

// Few channels, which are walked several lines at once where their number allows it, and ends of vectors; lines of one
// block and of several, of one slice and of several.
const Shape kShapes[] = {{2, 6, 7, 5},    {3, 83, 9, 11}, {2, 64, 24, 16},
                         {1, 24, 48, 40}, {5, 5, 33, 31}, {4, 300, 19, 13}};

struct Problem {
  bool training, adds;
  Activation activation;
  double high;
};
const Problem kProblems[] = {{true, false, Activation::None, INFINITY}, {true, false, Activation::Relu, 1.5},
                             {true, true, Activation::Relu, INFINITY},  {true, true, Activation::None, INFINITY},
                             {false, false, Activation::Relu, 1.5},     {false, true, Activation::Relu, INFINITY},
                             {false, true, Activation::None, INFINITY}};

// The result, the moved estimates and all gradients.
Tensors results(const Problem& p, const Tensors& in, const Tensor& dy, MemoryFormat format) {
  Tensors leaves;
  for (const Tensor& t : in) leaves.push_back((t.dim() == 4 ? t.to(format) : t).detach().set_requires_grad());
  const DType statistics = in[0].dtype() == Float64 ? Float64 : Float32;
  Tensor mean = full(in[2].shape(), 0.5, statistics), var = full(in[2].shape(), 2, statistics);
  const Tensor y = batch_norm_add(leaves[0], p.adds ? leaves[1] : Tensor(), leaves[2], leaves[3], mean, var, p.training,
                                  0.1, 1e-5, p.activation, p.high);
  if (!p.adds) leaves.erase(leaves.begin() + 1);
  Tensors out = grad({y}, leaves, {dy.to(format)});
  for (const Tensor& t : {y, mean, var}) out.push_back(t);
  return out;
}

Tensors inputs(const Shape& shape, DType dtype) {
  Generator g(11);
  const Shape channel{shape[1]};
  Tensors in = {uniform64(shape, g, -2, 3), normal64(shape, g), uniform64(channel, g, 0.5, 2), normal64(channel, g)};
  for (Tensor& t : in) t = t.to(dtype);
  return in;
}
Tensor gradient(const Shape& shape, DType dtype) {
  Generator g(12);
  return normal64(shape, g).to(dtype);
}

TEST(LineNorm, IsWhatPlanesGiveInFloat64) {
  for (const DType dtype : {Float64, Float32, BFloat16}) {
    const double limit = dtype == Float64 ? 1e-12 : dtype == Float32 ? 2e-6 : 8e-3;
    for (const Shape& shape : kShapes)
      for (const Problem& p : kProblems) {
        if (dtype == BFloat16 && p.adds && p.activation == Activation::Relu) continue;  // y is rounded before its gate
        const Tensors in = inputs(shape, dtype);
        const Tensor dy = gradient(shape, dtype);
        Tensors exact;
        for (const Tensor& t : in) exact.push_back(t.to(Float64));
        const Tensors got = results(p, in, dy, ChannelsLast), want = results(p, exact, dy.to(Float64), Contiguous);
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_LE(relative_error(got[i], want[i]), limit)
              << to_string(shape) << " " << name(dtype) << (p.training ? " training" : "") << (p.adds ? " adds" : "")
              << ", output " << i;
      }
  }
}

// What is left is the rounding of x.
TEST(LineNorm, OfElementsFarFromZero) {
  for (const double middle : {12.0, 300.0, -3000.0}) {
    Tensors in = inputs({4, 10, 19, 24}, Float32);
    in[0] = in[0] + full({}, middle);
    in[0].select(0, 0).select(1, 0).select(1, 0).fill_(0);  // from which a block must not count
    Tensors exact;
    for (const Tensor& t : in) exact.push_back(t.to(Float64));
    const Tensor dy = gradient(in[0].shape(), Float32);
    const Tensors got = results(kProblems[0], in, dy, ChannelsLast),
                  want = results(kProblems[0], exact, dy.to(Float64), Contiguous);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(relative_error(got[i], want[i]), 2e-6 + std::abs(middle) * 2e-7) << middle << ", output " << i;
  }
}

TEST(LineNorm, DoesNotDependOnThreads) {
  const int threads = num_threads();
  const Shape shape{3, 24, 64, 60};
  const Tensors in = inputs(shape, Float32);
  const Tensor dy = gradient(shape, Float32);
  std::vector<Tensors> all;
  for (const int count : {1, 2, 5}) {
    set_num_threads(count);
    all.push_back(results(kProblems[2], in, dy, ChannelsLast));
  }
  set_num_threads(threads);
  for (size_t i = 0; i < all[0].size(); ++i)
    for (const Tensors& other : {all[1], all[2]}) EXPECT_EQ(relative_error(other[i], all[0][i]), 0) << i;
}

// A residual and ReLU are part of one pass; of planes they are passes of their own.
TEST(LineNorm, AddsInItsOwnPass) {
  for (const MemoryFormat format : {ChannelsLast, Contiguous}) {
    const Tensors in = inputs({2, 6, 7, 5}, Float32);
    const Tensors operands = {in[0].to(format), in[1].to(format), in[2], in[3]};
    const Tensor y = empty(in[0].shape()).to(format), statistic = empty({6});
    const Tensors out = {y, statistic, statistic.clone(), statistic.clone()};
    const auto in_metas = metas_of(operands, cpu()), out_metas = metas_of(out, cpu());
    const auto plan = make_plan(find_op("batch_norm_add"), {in_metas.data(), in_metas.size()},
                                NormAttrs{.training = true, .relu = true}, {out_metas.data(), out_metas.size()});
    EXPECT_EQ(plan->launches().size(), format == ChannelsLast ? 1u : 3u);
  }
}

}  // namespace
}  // namespace tessera
