// One struct per use of an op: it is the op's test, its gradient check and its benchmark, on every backend.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/op.h"
#include "tessera/random.h"

namespace tessera {

struct OpCase {
  std::string_view op;
  std::string label = {};  ///< what is special about it: "broadcast", "prime sizes", "768x3072x768"
  Attrs attrs = {};
  /// Fresh inputs, floating ones in float64 with values for which the op is smooth; undefined where optional and
  /// absent.
  std::function<Tensors(Generator&)> inputs = {};
  /// Bit i: the gradient of input i is checked against finite differences.
  uint32_t gradients = 0;
  /// Dtypes in which the floating inputs are tried; the result is compared with the reference on float64.
  std::vector<DType> dtypes = {Float32, Float64, Float16, BFloat16};
  /// The shapes of the inputs may be symbols; false where the parameters fix sizes.
  bool symbolic = true;
  /// Large enough to time; not run by the tests.
  bool benchmark = false;
  /// Bytes that must move and floating-point operations, for the benchmark's rates.
  double bytes = 0, flops = 0;
  /// For ops whose result is random or undefined in part: checks it in place of the comparison. Throws Error.
  std::function<void(const Tensors& in, const Tensors& out)> check = {};
};

/// Every case of every family.
std::vector<OpCase> op_cases();

// Each family gives its cases in its own file, cases/<family>.cpp.
std::vector<OpCase> creation_cases();
std::vector<OpCase> elementwise_cases();
std::vector<OpCase> reduction_cases();
std::vector<OpCase> shape_cases();
std::vector<OpCase> indexing_cases();
std::vector<OpCase> bit_cases();
std::vector<OpCase> recurrent_cases();
std::vector<OpCase> line_cases();
std::vector<OpCase> plane_cases();
std::vector<OpCase> sample_cases();
std::vector<OpCase> matmul_cases();
std::vector<OpCase> conv_cases();
std::vector<OpCase> norm_cases();
std::vector<OpCase> loss_cases();
std::vector<OpCase> attention_cases();
std::vector<OpCase> random_cases();
std::vector<OpCase> optim_cases();
std::vector<OpCase> function_cases();

/// Largest relative L2 error against float64 that an op may show in a dtype: the one table of tolerances.
double tolerance(std::string_view op, DType dtype);

// Inputs for cases, float64 on the CPU.
Tensor uniform64(const Shape& shape, Generator& generator, double low = -1, double high = 1);
Tensor normal64(const Shape& shape, Generator& generator);
/// i64 in [0, n).
Tensor indices(const Shape& shape, int64_t n, Generator& generator);

}  // namespace tessera
