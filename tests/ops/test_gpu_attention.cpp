// Attention's kernels on a GPU, where there is one: the fused one by name, against float64 on the CPU.
#include "check.h"
#include "ops/op_table.h"
#include "tessera/device.h"

namespace tessera {
namespace {

constexpr auto kForward = "scaled_dot_product_attention", kBackward = "scaled_dot_product_attention_backward";

class GpuAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count(DeviceType::CUDA) == 0) GTEST_SKIP() << "no GPU: " << why_unavailable(cuda());
  }
};

struct Use {
  Shape q, k, v;
  bool causal;
};

// y, dq, dk and dv for a random dy.
Tensors results(const Tensors& qkv, bool causal) {
  Tensors in = qkv;
  for (Tensor& t : in) t = t.detach().set_requires_grad();
  Tensor y = scaled_dot_product_attention(in[0], in[1], in[2], {.causal = causal});
  Generator generator(99);
  Tensors out = grad({y}, in, {normal64(y.shape(), generator).to(BFloat16).to(y.dtype()).to(y.device())});
  out.push_back(y.detach());
  for (Tensor& t : out) t = t.to(cpu());
  return out;
}

TEST_F(GpuAttention, FlashMatchesFloat64) {
  Generator g(5);
  for (const Use& use : {Use{{2, 3, 257, 64}, {2, 3, 257, 64}, {2, 3, 257, 64}, true},
                         Use{{1, 4, 129, 128}, {1, 2, 129, 128}, {1, 2, 129, 128}, true},
                         Use{{2, 2, 5, 8}, {2, 2, 300, 8}, {2, 2, 300, 24}, false},
                         Use{{1, 2, 300, 96}, {1, 1, 70, 96}, {1, 1, 70, 32}, true},
                         Use{{1, 1, 1, 40}, {1, 1, 1, 40}, {1, 1, 1, 40}, false}}) {
    for (DType dtype : {Float16, BFloat16}) {
      Tensors half = {normal64(use.q, g).to(dtype), normal64(use.k, g).to(dtype), normal64(use.v, g).to(dtype)};
      Tensors exact, there;
      for (const Tensor& t : half) exact.push_back(t.to(Float64)), there.push_back(t.to(cuda()));
      ForceKernel forward(kForward, "flash"), backward(kBackward, "flash");
      Tensors got = results(there, use.causal), again = results(there, use.causal), want = results(exact, use.causal);
      for (size_t i = 0; i < got.size(); ++i) {
        const bool is_zero = use.k[2] == Dim(1) && i < 2;  // of one probability nothing can change
        EXPECT_LE(is_zero ? 0 : relative_error(got[i], want[i]), 4 * tolerance(kForward, dtype)) << i;
        EXPECT_EQ(got[i].to_vector<float>(), again[i].to_vector<float>()) << "not deterministic: " << i;
      }
    }
  }
}

// Scores of heads of 64 with elements of 60 times the usual size do not fit into fp16; no kernel holds them in it.
TEST_F(GpuAttention, LargeScoresStayFinite) {
  Generator g(6);
  Shape s{1, 2, 130, 64};
  auto large = [&] { return (normal64(s, g) * 60).to(Float16).to(cuda()); };
  Tensor q = large(), k = large(), v = large();
  NoGrad guard;
  EXPECT_GT(sum(isinf(matmul(q, transpose(k, -2, -1))).to(Int64)).item(), 0);
  for (const char* kernel : {"flash", "math"}) {
    ForceKernel force(kForward, kernel);
    Tensor y = scaled_dot_product_attention(q, k, v);
    EXPECT_EQ(sum(logical_not(isfinite(y)).to(Int64)).item(), 0) << kernel;
  }
}

TEST_F(GpuAttention, FlashSaysWhatItDoesNotTake) {
  ForceKernel flash(kForward, "flash");
  auto attend = [](const Tensor& x) { return error_of([=] { scaled_dot_product_attention(x, x, x); }); };
  EXPECT_NE(attend(zeros({1, 1, 3, 8}, Float32, cuda())).find("does not compute in this dtype"), std::string::npos);
  EXPECT_NE(attend(zeros({1, 1, 3, 9}, Float16, cuda())).find("does not take this head dim"), std::string::npos);
  EXPECT_NE(attend(zeros({1, 1, 3, 136}, Float16, cuda())).find("does not take this head dim"), std::string::npos);
  EXPECT_NE(attend(zeros({1, 1, 8, 3}, Float16, cuda()).transpose(2, 3)).find("needs another memory layout"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
