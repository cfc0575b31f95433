// Sums of products over named dims, against a loop over all values of all letters; and small matrices.
#include <map>

#include "ops/composed_check.h"
#include "ops/reference.h"
#include "tessera/autograd.h"
#include "tessera/observer.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

using reference::Index;

// An equation without "...": the sum over every letter that is not in the result.
Tensor by_definition(const std::vector<std::string>& terms, const std::string& result, const Tensors& operands) {
  std::map<char, int64_t> sizes;
  for (size_t t = 0; t < terms.size(); ++t)
    for (size_t d = 0; d < terms[t].size(); ++d)
      sizes[terms[t][d]] = std::max(sizes[terms[t][d]], operands[t].size(static_cast<int64_t>(d)));
  Shape all, shape;
  std::string letters;
  for (const auto& [letter, size] : sizes) all.push_back(size), letters += letter;
  for (char c : result) shape.push_back(sizes[c]);
  Tensor out = zeros(shape, Float64);
  reference::each_index(all, [&](const Index& at) {
    const auto place = [&](const std::string& names) {
      Index i;
      for (char c : names) i.push_back(at[letters.find(c)]);
      return i;
    };
    double product = 1;
    for (size_t t = 0; t < terms.size(); ++t) product *= reference::get(operands[t], place(terms[t]));
    reference::set(out, place(result), reference::get(out, place(result)) + product);
  });
  return out;
}

struct Equation {
  const char* text;
  std::vector<std::string> terms;
  std::string result;
  std::vector<Shape> shapes;
};

std::vector<Equation> equations() {
  return {{"ij,jk->ik", {"ij", "jk"}, "ik", {{3, 5}, {5, 2}}},
          {"ij,jk", {"ij", "jk"}, "ik", {{3, 5}, {5, 2}}},
          {"ba", {"ba"}, "ab", {{3, 5}}},
          {"ij->", {"ij"}, "", {{3, 5}}},
          {"ij->j", {"ij"}, "j", {{3, 5}}},
          {"ii->i", {"ii"}, "i", {{4, 4}}},
          {"ii", {"ii"}, "", {{4, 4}}},
          {"iji->ij", {"iji"}, "ij", {{4, 3, 4}}},
          {"i,i", {"i", "i"}, "", {{5}, {5}}},
          {"i,j->ji", {"i", "j"}, "ji", {{3}, {5}}},
          {"bij, bjk -> bik", {"bij", "bjk"}, "bik", {{2, 3, 5}, {2, 5, 4}}},
          {"bhqd,bhkd->bhqk", {"bhqd", "bhkd"}, "bhqk", {{2, 3, 4, 5}, {2, 3, 2, 5}}},
          {"ij,kl->", {"ij", "kl"}, "", {{3, 2}, {2, 4}}},
          {"ij,jk,kl->li", {"ij", "jk", "kl"}, "li", {{2, 3}, {3, 4}, {4, 5}}},
          {"ij,ij,ik->kj", {"ij", "ij", "ik"}, "kj", {{3, 2}, {3, 2}, {3, 4}}},
          {"Aa,aA->aA", {"Aa", "aA"}, "aA", {{3, 2}, {2, 3}}},
          {"ij,jk->ik", {"ij", "jk"}, "ik", {{3, 1}, {5, 2}}},
          {"...ij,...jk->...ik", {"xij", "yxjk"}, "yxik", {{3, 2, 5}, {4, 3, 5, 2}}},
          {"...ij,...jk", {"xij", "xjk"}, "xik", {{3, 2, 5}, {1, 5, 2}}},
          {"i...->...", {"ixy"}, "xy", {{3, 2, 5}}},
          {"...,...->...", {"x", "x"}, "x", {{5}, {5}}}};
}

TEST(Einsum, IsTheSumOfProducts) {
  Generator g(3);
  for (const Equation& e : equations()) {
    Tensors in;
    for (const Shape& shape : e.shapes) in.push_back(uniform64(shape, g));
    const Tensor got = einsum(e.text, in), want = by_definition(e.terms, e.result, in);
    ASSERT_EQ(to_string(got.shape()), to_string(want.shape())) << e.text;
    EXPECT_LE(relative_error(got, want), tolerance("einsum", Float64)) << e.text;
    expect_gradients([&](const Tensors& x) { return einsum(e.text, x); }, in, e.text);
    Tensors whole;
    for (const Tensor& t : in) whole.push_back(round(t * 9).to(Int64));
    Tensors exact;
    for (const Tensor& t : whole) exact.push_back(t.to(Float64));
    EXPECT_EQ(einsum(e.text, whole).to_vector<double>(), by_definition(e.terms, e.result, exact).to_vector<double>());
  }
}

// Whose gradients are products of columns by rows: elements alone.
TEST(Einsum, DotsHaveNoProductsInTheirGradient) {
  struct : Observer {
    int products = 0;
    void called(const CallSeen& call) override { products += call.op == "matmul"; }
  } seen;
  Generator g(31);
  const Tensor a = normal64({7, 13}, g).set_requires_grad(), b = normal64({7, 13}, g).set_requires_grad();
  const Tensor weight = normal64({7}, g), y = einsum("ij,ij->i", {a, b});
  const Observing guard(seen);
  const Tensors got = grad({y}, {a, b}, {weight});
  EXPECT_EQ(seen.products, 0);
  const Tensor column = reshape(weight, {7, 1});
  EXPECT_LT(relative_error(got[0], b.detach() * column), 1e-15);
  EXPECT_LT(relative_error(got[1], a.detach() * column), 1e-15);
}

TEST(Einsum, NamesTheRuleThatIsBroken) {
  const Tensor x = ones({2, 3});
  EXPECT_EQ(error_of([&] { einsum("ij,jk", {x}); }), "einsum: ij,jk: 1 operands, not 2");
  EXPECT_EQ(error_of([&] { einsum("i1", {x}); }), "einsum: i1: 'i1' is neither letters nor one ...");
  EXPECT_EQ(error_of([&] { einsum("ijk", {x}); }), "einsum: ijk: 'ijk' does not name the dims of [2, 3]");
  EXPECT_EQ(error_of([&] { einsum("i", {x}); }), "einsum: i: 'i' does not name the dims of [2, 3]");
  EXPECT_EQ(error_of([&] { einsum("ij->ik", {x}); }), "einsum: ij->ik: the result names 'k' which no operand has");
  EXPECT_EQ(error_of([&] { einsum("ij->ii", {x}); }), "einsum: ij->ii: the result names 'i' twice");
  EXPECT_EQ(error_of([&] {
              einsum("ij,ij->ij", {x, ones({2, 4})});
            }),
            "einsum: ij,ij->ij: a dim is 3 in one operand and 4 in another");
}

TEST(Einsum, Tensordot) {
  Generator g(5);
  const Tensor a = uniform64({2, 3, 4}, g), b = uniform64({4, 5, 3}, g);
  EXPECT_LE(relative_error(tensordot(a, b, {1, 2}, {2, 0}), by_definition({"ijk", "klj"}, "il", {a, b})), 1e-14);
  EXPECT_LE(relative_error(tensordot(a, b, {-1}, {0}), by_definition({"ijk", "klm"}, "ijlm", {a, b})), 1e-14);
  EXPECT_EQ(to_string(tensordot(a, b, {}, {}).shape()), "[2, 3, 4, 4, 5, 3]");
  EXPECT_EQ(error_of([&] { tensordot(a, b, {0}, {0}); }),
            "tensordot: dims [0] of [2, 3, 4] do not match dims [0] of [4, 5, 3]");
}

// ---- small matrices

Tensor identity(int64_t n) { return eye(n, -1, 0, Float64); }

TEST(SmallMatrices, SystemsOfEquationsAndInverses) {
  Generator g(7);
  for (int64_t n : {1, 2, 3, 7, 16}) {
    const Tensor a = uniform64({3, n, n}, g), b = uniform64({2, 1, n, 4}, g);
    EXPECT_LE(relative_error(matmul(a, solve(a, b)), expand(b, {2, 3, n, 4})), 1e-10) << n;
    EXPECT_LE(relative_error(matmul(inverse(a), a), expand(identity(n), {3, n, n})), 1e-10) << n;
  }
  const Tensor a = uniform64({2, 3, 3}, g) + identity(3) * 2.0, b = uniform64({3, 2}, g);
  expect_gradients([](const Tensors& in) { return solve(in[0], in[1]); }, {a, b}, "solve");
  expect_gradients([](const Tensors& in) { return inverse(in[0]); }, {a}, "inverse");
  EXPECT_EQ(error_of([] { inverse(ones({2, 2})); }), "inverse: matrix 0 of [2, 2] is singular");
  EXPECT_EQ(error_of([] {
              solve(stack({eye(2), zeros({2, 2})}, 0), ones({2, 1}));
            }),
            "solve: matrix 1 of [2, 2, 2] is singular");
  EXPECT_EQ(inverse(identity(2) * 1e-200).to_vector<double>()[0], 1e200);
  EXPECT_EQ(error_of([] {
              inverse(ones({2, 3}));
            }),
            "inverse: takes square matrices of a floating dtype, not f32[2, 3] on cpu");
  EXPECT_EQ(error_of([] {
              solve(ones({2, 2}), ones({3, 1}));
            }),
            "solve: f32[2, 2] on cpu and f32[3, 1] on cpu are no system of equations");
}

// Laplace's expansion along the first row.
double minor_sum(const std::vector<double>& a, int64_t n) {
  if (n == 0) return 1;
  double sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    std::vector<double> rest;
    for (int64_t r = 1; r < n; ++r)
      for (int64_t c = 0; c < n; ++c)
        if (c != k) rest.push_back(a[static_cast<size_t>(r * n + c)]);
    sum += (k % 2 ? -1 : 1) * a[static_cast<size_t>(k)] * minor_sum(rest, n - 1);
  }
  return sum;
}

TEST(SmallMatrices, Determinants) {
  Generator g(9);
  for (int64_t n : {0, 1, 2, 3, 6}) {
    const Tensor a = uniform64({2, n, n}, g), got = det(a);
    for (int64_t i = 0; i < 2; ++i)
      EXPECT_NEAR(got.to_vector<double>()[static_cast<size_t>(i)], minor_sum(select(a, 0, i).to_vector<double>(), n),
                  1e-12);
  }
  EXPECT_EQ(det(tensor<float>({0, 2, 3, 0}, {2, 2})).item(), -6);
  EXPECT_EQ(det(ones({3, 3})).item(), 0);
  expect_gradients([](const Tensors& in) { return det(in[0]); }, {uniform64({2, 3, 3}, g)}, "det");
  EXPECT_EQ(error_of([] { det(ones({3})); }), "det: takes square matrices of a floating dtype, not f32[3] on cpu");
}

TEST(SmallMatrices, Cholesky) {
  Generator g(11);
  for (int64_t n : {1, 2, 5, 9}) {
    const Tensor root = uniform64({2, n, n}, g), a = matmul(root, transpose(root, 1, 2)) + identity(n);
    const Tensor l = cholesky(a);
    EXPECT_LE(relative_error(matmul(l, transpose(l, 1, 2)), a), 1e-13) << n;
    EXPECT_EQ(sum(abs(triu(l, 1))).item(), 0);
  }
  expect_gradients([](const Tensors& in) { return cholesky(in[0]); }, {uniform64({3, 3}, g) * 0.3 + identity(3) * 2.0},
                   "cholesky");
  EXPECT_EQ(error_of([] { cholesky(full({1, 1}, -1.0)); }), "cholesky: matrix 0 of [1, 1] is not positive definite");
  EXPECT_EQ(error_of([] {
              cholesky(ones({2, 3}));
            }),
            "cholesky: takes square matrices of a floating dtype, not f32[2, 3] on cpu");
}

}  // namespace
}  // namespace tessera
