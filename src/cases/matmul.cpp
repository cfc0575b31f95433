#include "cases/cases.h"

#include "tessera/ops.h"

namespace tessera {
namespace {

OpCase matmul_case(std::string label, Shape a, Shape b) {
  return {.op = "matmul",
          .label = std::move(label),
          .attrs = {},
          .inputs = [=](Generator& g) -> Tensors {
            return {normal64(a, g), normal64(b, g)};
          },
          .gradients = 0b11};
}

OpCase matmul_wide_case(std::string label, Shape a, Shape b) {
  OpCase c = matmul_case(std::move(label), a, b);
  c.op = "matmul_wide";
  return c;
}

// Operands as transposed views: the kernel gets their strides.
OpCase transposed_case(std::string label, Shape a, Shape b) {
  OpCase c = matmul_case(std::move(label), a, b);
  c.inputs = [=](Generator& g) -> Tensors {
    return {transpose(normal64(a, g), -2, -1), transpose(normal64(b, g), -2, -1)};
  };
  c.gradients = 0;
  return c;
}

OpCase linear_case(std::string label, Shape x, int64_t out, Activation activation, bool bias, bool residual) {
  return {.op = "linear",
          .label = std::move(label),
          .attrs = LinearAttrs{activation},
          .inputs = [=](Generator& g) -> Tensors {
            Shape y = x;
            y.back() = out;
            return {normal64(x, g), normal64({Dim(out), x.back()}, g), bias ? normal64({out}, g) : Tensor(),
                    residual ? normal64(y, g) : Tensor()};
          },
          .gradients = 0b11u | bias << 2 | residual << 3};
}

// Sums in f32 of halves that were rounded on their way are no better than these.
std::vector<DType> dtypes_of_sums(bool wide) {
  return wide ? std::vector{Float32, Float64} : std::vector{Float32, Float64, Float16, BFloat16};
}

OpCase mul_sum_case(std::string label, Shape a, Shape b, bool factor, bool rows, bool columns, bool wide = false) {
  return {.op = "matmul_mul_sum",
          .label = std::move(label),
          .attrs = LineSumAttrs{rows, columns, wide},
          .inputs = [=](Generator& g) -> Tensors {
            const Tensor left = normal64(a, g), right = normal64(b, g);
            return {left, right, factor ? normal64(matmul(left, right).shape(), g) : Tensor()};
          },
          .gradients = 0b11u | factor << 2,
          .dtypes = dtypes_of_sums(wide)};
}

OpCase gelu_grad_case(std::string label, int64_t m, int64_t n, int64_t k, bool wide = false) {
  return {.op = "matmul_gelu_grad",
          .label = std::move(label),
          .attrs = LineSumAttrs{false, true, wide},
          .inputs = [=](Generator& g) -> Tensors {
            return {normal64({m, k}, g), normal64({k, n}, g), normal64({m, n}, g)};
          },
          .dtypes = dtypes_of_sums(wide)};
}

OpCase mlp_case(std::string label, Shape x, int64_t hidden, int64_t out, Activation activation, bool biases,
                bool residual) {
  return {.op = "mlp",
          .label = std::move(label),
          .attrs = LinearAttrs{activation},
          .inputs = [=](Generator& g) -> Tensors {
            Shape y = x;
            y.back() = out;
            return {normal64(x, g),
                    normal64({Dim(hidden), x.back()}, g),
                    biases ? normal64({hidden}, g) : Tensor(),
                    normal64({out, hidden}, g),
                    biases ? normal64({out}, g) : Tensor(),
                    residual ? normal64(y, g) : Tensor()};
          },
          .gradients = 0b1011u | biases << 2 | biases << 4 | residual << 5};
}

OpCase fused_gemm_case(std::string label, int64_t m, int64_t n, int64_t k, std::string epilogue, int addends) {
  return {.op = "fused_gemm",
          .label = std::move(label),
          .attrs = FusedGemmAttrs{.epilogue = std::move(epilogue)},
          .inputs = [=](Generator& g) -> Tensors {
            Tensors in{normal64({m, k}, g), normal64({k, n}, g)};
            for (int i = 0; i < addends; ++i) in.push_back(normal64({m, n}, g));
            return in;
          },
          .dtypes = {Float32, Float16, BFloat16}};
}

OpCase timed(OpCase c, double m, double n, double k) {
  c.benchmark = true;
  c.gradients = 0;
  c.flops = 2 * m * n * k;
  return c;
}

}  // namespace

std::vector<OpCase> matmul_cases() {
  using enum Activation;
  std::vector<OpCase> cases = {
      fused_gemm_case("two addends", 31, 40, 24, "gelu_tanh(acc + load(d0) + load(d1))", 2),
      fused_gemm_case("none", 64, 72, 65, "relu(acc)", 0),
      matmul_case("one element", {1, 1}, {1, 1}),
      matmul_case("row by column", {1, 37}, {37, 1}),
      matmul_case("column by row", {17, 1}, {1, 19}),
      matmul_case("row by matrix", {1, 23}, {23, 53}),
      matmul_case("matrix by column", {53, 23}, {23, 1}),
      matmul_case("prime sizes", {31, 29}, {29, 41}),
      matmul_case("off the tile", {97, 65}, {65, 113}),
      matmul_case("deep", {13, 523}, {523, 17}),
      matmul_wide_case("f32 of halves", {31, 29}, {29, 41}),
      matmul_wide_case("f32 of halves, on the tile", {128, 64}, {64, 256}),
      matmul_case("batched", {5, 7, 11}, {5, 11, 3}),
      matmul_case("a matrix for all of a batch", {2, 3, 7, 5}, {5, 9}),
      matmul_case("broadcast left", {7, 5}, {3, 5, 2}),
      matmul_case("broadcast both", {2, 1, 3, 5}, {7, 5, 4}),
      matmul_case("no rows", {0, 5}, {5, 3}),
      matmul_case("nothing to sum", {3, 0}, {0, 5}),
      transposed_case("transposed", {29, 31}, {41, 29}),
      transposed_case("transposed batch", {3, 11, 7}, {3, 5, 11}),
      linear_case("plain", {7, 5}, 11, None, false, false),
      linear_case("bias", {3, 7, 13}, 17, None, true, false),
      linear_case("one element", {1, 1}, 1, None, false, false),
      linear_case("vector", {19}, 23, GeluTanh, true, false),
      linear_case("residual", {5, 31}, 37, None, true, true),
      linear_case("relu", {5, 3}, 4, Relu, true, false),
      linear_case("gelu_tanh", {2, 3, 7}, 5, GeluTanh, true, true),
      linear_case("gelu without bias", {9, 7}, 5, GeluErf, false, true),
      linear_case("silu", {9, 7}, 5, Silu, true, false),
      linear_case("tanh off the tile", {67, 33}, 101, Tanh, true, true),
      mul_sum_case("product alone", {7, 5}, {5, 3}, false, false, false),
      mul_sum_case("one element", {1, 1}, {1, 1}, true, true, true),
      mul_sum_case("factor", {19, 31}, {31, 23}, true, false, false),
      mul_sum_case("column sums off the tile", {131, 17}, {17, 67}, true, false, true),
      mul_sum_case("row sums off the tile", {67, 17}, {17, 131}, true, true, false),
      mul_sum_case("wide sums", {31, 17}, {17, 67}, true, true, true, true),
      mul_sum_case("both of a batch", {3, 29, 13}, {3, 13, 37}, true, true, true),
      mul_sum_case("rows of one for a batch", {5, 1, 13}, {13, 11}, false, true, true),
      mul_sum_case("broadcast batch", {2, 1, 7, 5}, {3, 5, 9}, false, true, true),
      mul_sum_case("no rows", {0, 5}, {5, 3}, false, true, true),
      mul_sum_case("nothing to sum", {3, 0}, {0, 5}, false, true, true),
      gelu_grad_case("one element", 1, 1, 1),
      gelu_grad_case("off the tile", 131, 67, 17),
      gelu_grad_case("rows of whole units", 257, 136, 72),
      gelu_grad_case("wide sums", 31, 67, 17, true),
      gelu_grad_case("no rows", 0, 5, 3),
      gelu_grad_case("nothing to sum", 3, 5, 0),
      mlp_case("vector", {13}, 17, 11, GeluErf, true, false),
      mlp_case("one element", {1, 1}, 1, 1, Tanh, true, true),
      mlp_case("gelu_tanh", {2, 5, 7}, 29, 7, GeluTanh, true, true),
      mlp_case("relu without biases", {11, 5}, 9, 3, Relu, false, false),
      mlp_case("silu off the tile", {67, 33}, 131, 33, Silu, true, true),
      mlp_case("no activation", {5, 3}, 7, 2, None, true, false),
      timed(matmul_case("1024x1024x1024", {1024, 1024}, {1024, 1024}), 1024, 1024, 1024),
      timed(matmul_case("768x3072x768", {768, 768}, {768, 3072}), 768, 3072, 768),
      timed(mul_sum_case("3072x3072x768 factor, sums of columns", {3072, 768}, {768, 3072}, true, false, true), 3072,
            3072, 768),
      timed(linear_case("768x3072x768 gelu_tanh", {768, 768}, 3072, GeluTanh, true, true), 768, 3072, 768),
  };
  for (OpCase& c : cases)
    if (c.label == "no rows" || c.label == "nothing to sum") c.gradients = 0;
  return cases;
}

}  // namespace tessera
