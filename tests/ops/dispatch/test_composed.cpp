// Functions that are made of operators are captured as these are: without memory, and with eager's results.
#include <set>

#include "ops/capture.h"
#include "ops/composed_check.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_math.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

struct Composed {
  const char* name;
  std::function<Tensors(const Tensor&)> run;
};

// Of x [6, 6] between 0 and 1.
std::vector<Composed> composed_functions() {
  const auto one = [](std::function<Tensor(const Tensor&)> f) {
    return [f](const Tensor& x) { return Tensors{f(x)}; };
  };
  const auto both = [](const std::pair<Tensor, Tensor>& p) { return Tensors{p.first, p.second}; };
  static Generator g(5);
  const Tensor at = indices({6, 6}, 6, g), rows = reshape(indices({12}, 6, g), {6, 2});
  return {{"acos", one(acos)},
          {"asinh", one(asinh)},
          {"erfinv", one(erfinv)},
          {"lgamma", one(lgamma)},
          {"mish", one(mish)},
          {"inverse", one(inverse)},
          {"det", one(det)},
          {"glu", [](const Tensor& x) { return Tensors{glu(x, 0)}; }},
          {"atan2", [](const Tensor& x) { return Tensors{atan2(x, select(x, 0, 1))}; }},
          {"isclose", [](const Tensor& x) { return Tensors{isclose(x, transpose(x, 0, 1))}; }},
          {"bits", [](const Tensor& x) { return Tensors{bitwise_xor(cast(x * 99, Int32), full({}, 5, Int32))}; }},
          {"scatter", [=](const Tensor& x) { return Tensors{scatter(x, 0, at, x)}; }},
          {"scatter_reduce",
           [=](const Tensor& x) { return Tensors{scatter_reduce(x, 1, at, x, ScatterReduction::Max, false)}; }},
          {"gather_nd", [=](const Tensor& x) { return Tensors{gather_nd(x, rows)}; }},
          {"sort", [=](const Tensor& x) { return both(sort(x, 0)); }},
          {"median", [=](const Tensor& x) { return both(median(x, 1)); }},
          {"searchsorted", [](const Tensor& x) { return Tensors{searchsorted(cumsum(x, 1), x)}; }},
          {"cumprod", [](const Tensor& x) { return Tensors{cumprod(x, 1)}; }},
          {"cummax", [=](const Tensor& x) { return both(cummax(x, 0)); }},
          {"unique_along", [](const Tensor& x) { return Tensors{unique_along(round(x * 2), 0).counts}; }},
          {"repeat",
           [](const Tensor& x) {
             return Tensors{repeat(x, {2, 1, 3})};
           }},
          {"roll", [](const Tensor& x) { return Tensors{roll(x, {2}, {0})}; }},
          {"diagonal", [](const Tensor& x) { return Tensors{diagonal(x, 1)}; }},
          {"slice_by", [](const Tensor& x) { return Tensors{slice_by(x, 0, 5, 0, -2)}; }},
          {"einsum", [](const Tensor& x) {
             return Tensors{einsum("ij,jk,ll->ki", {x, x, x})};
           }}};
}

// Loops of the host add and multiply in another order than the operators that are captured (test_on_host.cpp).
const std::set<std::string_view> kRoundOtherwise{"inverse", "det", "cumprod"};

TEST(Composed, FunctionsAreCaptured) {
  Generator g(3);
  const Tensor x = uniform64({6, 6}, g, 0.05, 0.95).to(Float32);
  for (const Composed& f : composed_functions()) {
    SCOPED_TRACE(f.name);
    const Program program = capture([&](const Tensors& in) { return f.run(in[0]); }, {x});
    const Tensors want = f.run(x), got = program({x});
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      if (kRoundOtherwise.count(f.name)) EXPECT_LE(relative_error(got[i], want[i]), 1e-6);
      else EXPECT_EQ(got[i].to_vector<double>(), want[i].to_vector<double>());
  }
}

// Dims beside those that a function works along may be symbols.
TEST(Composed, FunctionsTakeASymbolicBatch) {
  const Dim n = Dim::symbol("n");
  const Device device = meta(cpu());
  const Tensor x = empty({n, Dim(4), Dim(4)}, Float32, device), at = empty({n, Dim(4), Dim(4)}, Int64, device);
  const auto shape = [](const Tensor& y) { return to_string(y.shape()); };
  EXPECT_EQ(shape(gather_nd(x, slice(at, 2, 0, 1), 1)), "[n, 4, 4]");
  const Tensor two = empty({Dim(3), Dim(2)}, Int64, device);
  EXPECT_EQ(shape(gather_nd(x.transpose(0, 2), two)), "[3, n]");
  EXPECT_EQ(shape(scatter_nd(x.transpose(0, 2), two, empty({Dim(3), n}, Float32, device))), "[4, 4, n]");
  EXPECT_EQ(shape(scatter(x, 1, at, x)), "[n, 4, 4]");
  EXPECT_EQ(shape(take_along_dim(x, at, 2)), "[n, 4, 4]");
  EXPECT_EQ(shape(sort(x, 1).first), "[n, 4, 4]");
  EXPECT_EQ(shape(median(x, 2).first), "[n, 4]");
  EXPECT_EQ(shape(cumprod(x, 1)), "[n, 4, 4]");
  EXPECT_EQ(shape(cummax(x, 1).first), "[n, 4, 4]");
  EXPECT_EQ(shape(repeat(x, {2, 1, 3})), "[2*n, 4, 12]");
  EXPECT_EQ(shape(roll(x, {1}, {2})), "[n, 4, 4]");
  EXPECT_EQ(shape(diagonal(x, 1, 1, 2)), "[n, 3]");
  EXPECT_EQ(shape(einsum("bij,bjk->bik", {x, x})), "[n, 4, 4]");
  EXPECT_EQ(shape(det(x)), "[n]");
  EXPECT_EQ(shape(inverse(x)), "[n, 4, 4]");
  EXPECT_EQ(shape(glu(x, 1)), "[n, 2, 4]");
  EXPECT_EQ(shape(erfinv(x)), "[n, 4, 4]");
}

}  // namespace
}  // namespace tessera
