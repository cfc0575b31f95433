// Functions that loop over elements on the host give what the operators give that they are made of elsewhere: a
// captured function is made of these. The same of their gradients.
#include <cmath>

#include "ops/capture.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"
#include "tessera/ops_image.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_loss.h"
#include "tessera/ops_math.h"
#include "tessera/ops_pool.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

struct OnHost {
  const char* name;
  std::function<Tensors(const Tensor&)> run;
};

Tensors both(const std::pair<Tensor, Tensor>& p) { return {p.first, p.second}; }

void expect_as_captured(const OnHost& f, const Tensor& x) {
  SCOPED_TRACE(f.name);
  const auto run = [&](const Tensors& in) { return f.run(in[0]); };
  const Tensors got = f.run(x), want = capture(run, {x})({x});
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(to_string(got[i].shape()), to_string(want[i].shape()));
    if (!is_floating(got[i].dtype())) EXPECT_EQ(got[i].to_vector<int64_t>(), want[i].to_vector<int64_t>()) << i;
    else EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << i;
  }
  if (!f.run(x.detach().set_requires_grad())[0].requires_grad()) return;
  const auto slope = [&](const Tensors& in) {
    const Tensor leaf = in[0].detach().set_requires_grad(), y = f.run(leaf)[0];
    return Tensors{grad({sum(y * sin(y))}, {leaf})[0]};
  };
  EXPECT_LE(relative_error(slope({x})[0], capture(slope, {x})({x})[0]), 1e-11) << "gradient";
}

// Of the gradient's own gradient.
void expect_second_derivative(const OnHost& f, const Tensor& x) {
  SCOPED_TRACE(f.name);
  const auto slope = [&](const Tensors& in) {
    const Tensor leaf = in[0].detach().set_requires_grad(), y = f.run(leaf)[0];
    const Tensor first = grad({sum(y * sin(y))}, {leaf}, {}, false, true)[0];
    return Tensors{grad({sum(square(first))}, {leaf})[0]};
  };
  EXPECT_LE(relative_error(slope({x})[0], capture(slope, {x})({x})[0]), 1e-10);
}

TEST(OnHost, LinesAreAsMadeOfOperators) {
  Generator g(3);
  const Tensor sorted = cumsum(uniform64({17}, g, 0.1, 1), 0) + -4.0;
  const std::vector<OnHost> functions = {
      {"cummax", [](const Tensor& x) { return both(cummax(x, 1)); }},
      {"cummin", [](const Tensor& x) { return both(cummin(x, 0)); }},
      {"cumprod along rows", [](const Tensor& x) { return Tensors{cumprod(x, 2)}; }},
      {"cumprod along columns", [](const Tensor& x) { return Tensors{cumprod(x, 0)}; }},
      {"cumprod with zeros",
       [](const Tensor& x) {
         return Tensors{cumprod(where(lt(x, full({}, -1.0, Float64)), full({}, 0.0, Float64), x), 1)};
       }},
      {"logcumsumexp along rows", [](const Tensor& x) { return Tensors{logcumsumexp(x, 2)}; }},
      {"logcumsumexp along columns", [](const Tensor& x) { return Tensors{logcumsumexp(x * 9, 0)}; }},
      {"kthvalue", [](const Tensor& x) { return both(kthvalue(x, 23, 2)); }},
      {"kthvalue of columns", [](const Tensor& x) { return both(kthvalue(x, 2, 0, true)); }},
      {"median", [](const Tensor& x) { return both(median(x, 2)); }},
      {"median of equal ones", [](const Tensor& x) { return both(median(round(x), 2, true)); }},
      {"median of all", [](const Tensor& x) { return Tensors{median(x)}; }},
      {"searchsorted", [=](const Tensor& x) { return Tensors{searchsorted(sorted, x)}; }},
      {"searchsorted, right", [=](const Tensor& x) { return Tensors{searchsorted(round(sorted), round(x), true)}; }},
      {"searchsorted by rows", [](const Tensor& x) { return Tensors{searchsorted(cumsum(abs(x), 2), x)}; }},
      {"histc", [](const Tensor& x) { return Tensors{histc(x, 9, -1, 1.5)}; }},
      {"repeat_interleave", [](const Tensor& x) { return Tensors{repeat_interleave(x, 3, 1)}; }},
      {"repeat_interleave of elements", [](const Tensor& x) { return Tensors{repeat_interleave(x, 2, 2)}; }}};
  for (const Shape& shape : {Shape{3, 4, 29}, Shape{5, 1, 31}, Shape{2, 19, 23}}) {
    const Tensor x = uniform64(shape, g);
    for (const OnHost& f : functions) expect_as_captured(f, x);
  }
}

TEST(OnHost, NaNIsWhatComesOfALine) {
  const double nan = NAN;
  const Tensor x = tensor<double>({3, nan, 1, 2, 5, 4, nan, 0}, {2, 4});
  const auto [value, index] = median(x, 1);
  EXPECT_TRUE(std::isnan(value.to_vector<double>()[0]) && std::isnan(value.to_vector<double>()[1]));
  EXPECT_EQ(index.to_vector<int64_t>(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(kthvalue(x, 3, 1).first.to_vector<double>(), (std::vector<double>{3, 5}));  // NaN comes last
  EXPECT_EQ(cummax(x, 1).second.to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 1, 1, 0, 0, 2, 2}));
  const auto [most, at] = max_pool_with_indices(reshape(x, {1, 1, 2, 4}), {.size = {2, 2}});
  EXPECT_TRUE(std::isnan(most.to_vector<double>()[0]) && std::isnan(most.to_vector<double>()[1]));
  EXPECT_EQ(at.to_vector<int64_t>(), (std::vector<int64_t>{1, 6}));
}

TEST(OnHost, ExtremesOfEveryNumberOfLines) {
  Generator g(6);
  for (const int64_t lines : {1, 3, 4, 7, 33})
    for (const int64_t dim : {0, 1}) {
      const Tensor rows = uniform64({lines, 19}, g), x = dim == 1 ? rows : transpose(rows, 0, 1).contiguous();
      expect_as_captured({"cummax", [=](const Tensor& t) { return both(cummax(t, dim)); }}, x);
      expect_as_captured({"cummin", [=](const Tensor& t) { return both(cummin(t, dim)); }}, x);
    }
  EXPECT_EQ(cummax(zeros({3, 0}), 1).second.numel(), 0);  // of lines without elements
}

TEST(OnHost, MatricesAreAsMadeOfOperators) {
  Generator g(4);
  for (const int64_t n : {1, 2, 5, 9}) {
    const Tensor b = uniform64({n, 3}, g), root = uniform64({4, n, n}, g);
    const Tensor x = matmul(root, transpose(root, 1, 2)) + eye(n, -1, 0, Float64);
    const std::vector<OnHost> functions = {{"det", [](const Tensor& a) { return Tensors{det(a)}; }},
                                           {"inverse", [](const Tensor& a) { return Tensors{inverse(a)}; }},
                                           {"solve", [=](const Tensor& a) { return Tensors{solve(a, b)}; }},
                                           {"solve for b", [=](const Tensor& a) { return Tensors{solve(x, a)}; }},
                                           {"cholesky", [](const Tensor& a) { return Tensors{cholesky(a)}; }}};
    for (const OnHost& f : functions) {
      expect_as_captured(f, x);
      expect_second_derivative(f, x);
    }
  }
  const Tensor singular = tensor<double>({1, 2, 2, 4}, {1, 2, 2});
  const Tensor leaf = singular.detach().set_requires_grad();
  EXPECT_EQ(grad({det(leaf)}, {leaf}, {ones({1}, Float64)})[0].to_vector<double>(),
            (std::vector<double>{4, -2, -2, 1}));
}

TEST(OnHost, DistancesAreAsMadeOfOperators) {
  Generator g(5);
  const OnHost rows{"pdist", [](const Tensor& x) { return Tensors{pdist(x)}; }};
  for (const Shape& shape : {Shape{2, 1}, Shape{9, 5}, Shape{17, 8}, Shape{33, 19}}) {
    const Tensor x = uniform64(shape, g);
    expect_as_captured(rows, x);
    expect_second_derivative(rows, x);
    expect_as_captured({"cdist", [=](const Tensor& a) { return Tensors{cdist(a, x + 0.25)}; }}, x);
  }
  EXPECT_EQ(pdist(ones({1, 3}, Float64)).numel(), 0);
  const Tensor same = ones({3, 2}, Float64).set_requires_grad();
  EXPECT_EQ(sum(abs(grad({sum(pdist(same))}, {same})[0])).item(), 0);  // equal rows are 0 apart, without a slope
}

TEST(OnHost, LossesAreAsMadeOfOperators) {
  Generator g(7);
  for (const Shape& shape : {Shape{1, 2}, Shape{5, 7}, Shape{19, 37}}) {
    const Tensor x = uniform64(shape, g), weight = uniform64({shape[1].value()}, g, 0.5, 2);
    const Tensor target = indices({shape[0].value()}, shape[1].value(), g);
    const Tensor lists = indices({shape[0].value(), shape[1].value()}, shape[1].value(), g) + -2.0;
    std::vector<OnHost> functions;
    for (const Reduction r : {Reduction::None, Reduction::Mean, Reduction::Sum}) {
      functions.push_back({"nll_loss", [=](const Tensor& v) { return Tensors{nll_loss(v, target, {}, 1, r)}; }});
      functions.push_back({"nll_loss, weighted",
                           [=](const Tensor& v) { return Tensors{nll_loss(v, target.to(Int32), weight, 1, r)}; }});
      functions.push_back(
          {"multilabel_margin_loss", [=](const Tensor& v) { return Tensors{multilabel_margin_loss(v, lists, r)}; }});
      for (const int64_t p : {1, 2})
        functions.push_back({"multi_margin_loss", [=](const Tensor& v) {
                               return Tensors{multi_margin_loss(v, target, p, 0.7, weight, r)};
                             }});
    }
    for (const OnHost& f : functions) {
      if (shape[0] == Dim(1) && std::string_view(f.name).starts_with("nll")) continue;  // the only row may not count
      expect_as_captured(f, x);
      expect_second_derivative(f, x);
    }
  }
}

TEST(OnHost, ImagesAreAsMadeOfOperators) {
  Generator g(6);
  const Windows uneven{.size = {3, 2}, .stride = {2, 2}, .low = {0, 1}, .high = {1, 0}, .ceil = true};
  const Windows even{.size = {3, 3}, .stride = {2, 1}, .low = {1, 1}, .high = {1, 1}};
  const Windows dilated{.size = {2, 3}, .stride = {1, 2}, .low = {1, 0}, .high = {1, 0}, .dilation = {2, 2}};
  const auto as_volume = [](const Tensor& x) { return reshape(x, {x.shape()[0], 2, 2, x.shape()[2], x.shape()[3]}); };
  std::vector<OnHost> functions = {
      {"indices of volumes",
       [=](const Tensor& x) {
         return both(max_pool_with_indices(as_volume(x), {.size = {2, 3, 2}, .low = {1, 1, 0}, .high = {0, 1, 1}}));
       }},
      {"indices of lines",
       [](const Tensor& x) {
         return both(max_pool_with_indices(flatten(x, 2), {.size = {5}, .stride = {3}, .low = {2}, .high = {2}}));
       }},
      {"indices of large windows",
       [](const Tensor& x) {
         return both(max_pool_with_indices(pad(x, {20, 20}, {20, 20}, Padding::Edge), {.size = {17, 19}}));
       }},
      {"adaptive_max_pool",
       [](const Tensor& x) {
         return Tensors{adaptive_max_pool(x, {3, 5})};
       }},
      {"adaptive_max_pool of volumes",
       [=](const Tensor& x) {
         return Tensors{adaptive_max_pool(as_volume(x), {1, 4, 3})};
       }},
      {"adaptive_max_pool of lines", [](const Tensor& x) { return Tensors{adaptive_max_pool(flatten(x, 2), {2})}; }},
      {"adaptive_avg_pool",
       [](const Tensor& x) {
         return Tensors{adaptive_avg_pool(x, {3, 5})};
       }},
      {"adaptive_avg_pool to one",
       [](const Tensor& x) {
         return Tensors{adaptive_avg_pool(x, {1, 1})};
       }},
      {"nearest",
       [](const Tensor& x) {
         return Tensors{resize(x, {2, 3}, {9, 5}, {})};
       }},
      {"linear",
       [](const Tensor& x) {
         return Tensors{resize(x, {2, 3}, {9, 21}, {.interpolation = Interpolation::Linear})};
       }},
      {"fold",
       [](const Tensor& x) {
         const Windows w{.size = {2, 3}, .stride = {1, 2}, .low = {1, 0}, .high = {0, 1}, .dilation = {1, 2}};
         return Tensors{fold(unfold(x, w), {x.size(2), x.size(3)}, w)};
       }},
      {"fold of lines", [](const Tensor& x) {
         return Tensors{fold(unfold(flatten(x, 2), {.size = {5}, .stride = {2}}), {x.size(2) * x.size(3)},
                             {.size = {5}, .stride = {2}})};
       }}};
  for (const Windows& w : {uneven, even, dilated})
    functions.push_back({"indices", [=](const Tensor& x) { return both(max_pool_with_indices(x, w)); }});
  for (const Padding padding : {Padding::Edge, Padding::Reflect, Padding::Wrap})
    functions.push_back({"pad", [=](const Tensor& x) { return Tensors{pad(x, {2, -1}, {1, 3}, padding)}; }});
  for (const Shape& shape : {Shape{2, 4, 6, 8}, Shape{1, 4, 7, 11}}) {
    const Tensor x = uniform64(shape, g);
    for (const OnHost& f : functions) {
      expect_as_captured(f, x);
      expect_second_derivative(f, x);
    }
  }
}

}  // namespace
}  // namespace tessera
