// A residual stream of f32 between branches of halves, summed and normalised at once, against float64; with the CPU's
// kernels and those of a GPU, if there is one.
#include "core/gpu_check.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

// x, branch, the branch's bias, weight, bias; then weights of both results, from which a loss is made.
Tensors inputs_of(const Shape& shape, DType stream, DType branch, Generator& g) {
  const Shape columns{shape.back()};
  Tensors in{normal64(shape, g).to(stream), normal64(shape, g).to(branch)};
  for (int i = 0; i < 3; ++i) in.push_back(normal64(columns, g).to(Float32));
  for (int i = 0; i < 2; ++i) in.push_back(normal64(shape, g).to(i ? branch : stream));
  return in;
}

// sum, y and the gradients of the first five.
Tensors results_of(const Tensors& given, Device device, bool exact) {
  Tensors in;
  for (const Tensor& t : given) in.push_back((exact ? t.to(Float64) : t).to(device).detach());
  for (size_t i = 0; i < 5; ++i) in[i].set_requires_grad();
  auto [total, y] = add_layer_norm(in[0], in[1], in[2], in[3], in[4]);
  const auto loss = [&](const Tensor& t, const Tensor& w) { return sum(cast(t * w, exact ? Float64 : Float32)); };
  (loss(total, in[5]) + loss(y, in[6])).backward();
  Tensors out{total.detach(), y.detach()};
  for (size_t i = 0; i < 5; ++i) out.push_back(in[i].grad());
  return out;
}

void check(Device device) {
  Generator g(41);
  for (DType branch : {Float16, BFloat16})
    for (DType stream : {Float32, branch})
      for (const Shape& shape : {Shape{37, 768}, {3, 5, 1600}, {1, 8}, {1031, 64}, {7, 53}, {2, 4104}, {6, 1032}}) {
        SCOPED_TRACE(std::string(name(stream)) + " + " + std::string(name(branch)) + " " + to_string(shape));
        const Tensors in = inputs_of(shape, stream, branch, g);
        Tensors rounded = in;
        rounded[2] = in[2].to(branch);  // as a bias of the product itself
        const Tensors got = results_of(in, device, false), want = results_of(rounded, cpu(), true);
        for (size_t i = 0; i < got.size(); ++i) {
          const DType dtype = got[i].dtype();
          EXPECT_EQ(dtype, i == 1 ? branch : i == 0 ? stream : in[i - 2].dtype());
          // Beside a stream of halves everything starts from a sum that was rounded to it.
          const double unit = branch == Float16 ? 1e-3 : 8e-3;
          EXPECT_LE(relative_error(got[i].to(cpu()).to(Float64), want[i]),
                    dtype == Float32 && stream == Float32 ? 1e-5 : unit)
              << "result " << i;
        }
      }
}

TEST(AddLayerNorm, OfAWideStreamOnTheCpu) { check(cpu()); }

class GpuAddLayerNorm : public GpuTest {};
TEST_F(GpuAddLayerNorm, OfAWideStream) { check(card()); }

TEST(AddLayerNorm, WithoutAGradientOfEitherResult) {
  Generator g(42);
  for (bool of_sum : {false, true}) {
    Tensor x = normal64({5, 16}, g).set_requires_grad(), branch = normal64({5, 16}, g).set_requires_grad();
    auto [total, y] = add_layer_norm(x, branch);
    sum(of_sum ? total : y * y * y).backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_LE(relative_error(x.grad(), branch.grad()), 0);
  }
}

TEST(AddLayerNorm, SaysWhatDoesNotFit) {
  const Tensor x = zeros({3, 8});
  EXPECT_EQ(error_of([&] { add_layer_norm(x, zeros({3, 4})); }), "add_layer_norm: branch has shape [3, 4], not [3, 8]");
  EXPECT_EQ(error_of([&] { add_layer_norm(x, {}); }), "add_layer_norm: input 1 is undefined");
  EXPECT_EQ(error_of([&] { add_layer_norm(x, x, zeros({4})); }),
            "add_layer_norm: the bias of the branch has shape [4], not [8]");
  EXPECT_EQ(error_of([&] { add_layer_norm(x, x, {}, zeros({8}, Float16)); }),
            "add_layer_norm: dtypes differ: f32[3, 8] on cpu and f16[8] on cpu");
}

}  // namespace
}  // namespace tessera
