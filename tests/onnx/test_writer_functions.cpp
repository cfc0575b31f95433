// Functions that are made of operators, written and read back.
#include <gtest/gtest.h>

#include <cmath>

#include "cases/cases.h"
#include "onnx/kept.h"
#include "onnx/written.h"
#include "tessera/ops_image.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_math.h"
#include "tessera/ops_pool.h"
#include "tessera/ops_shape.h"
#include "tessera/ops_signal.h"

namespace tessera::onnx {
namespace {

struct Written {
  const char* name;
  Shape shape;  // of x, between 0 and 1
  std::function<Tensors(const Tensor&)> run;
  bool open = true;  // whether the first size may be open
};

Tensors both_of(const std::pair<Tensor, Tensor>& pair) { return {pair.first, pair.second}; }

std::vector<Written> functions_of_elements() {
  const Shape s{4, 5};
  const auto one = [&](const char* name, std::function<Tensor(const Tensor&)> f) {
    return Written{name, s, [f](const Tensor& x) { return Tensors{f(x)}; }};
  };
  const auto all = [&](const char* name, std::function<Tensor(const Tensor&)> f) {
    return Written{name, s, [f](const Tensor& x) { return Tensors{f(x)}; }};
  };
  const auto whole = [](const Tensor& x) { return cast(x * 99, Int32); };
  return {one("acos", acos),
          one("asin", asin),
          one("sinh", sinh),
          one("cosh", cosh),
          one("asinh", asinh),
          all("acosh", [](const Tensor& x) { return acosh(x + 1.0); }),
          one("atanh", atanh),
          all("atan2", [](const Tensor& x) { return atan2(x + -0.5, flip(x, {1})); }),
          one("log2", log2),
          one("log10", log10),
          all("hypot", [](const Tensor& x) { return hypot(x, flip(x, {1})); }),
          one("erfinv", erfinv),
          one("lgamma", lgamma),
          one("digamma", digamma),
          all("fmod", [](const Tensor& x) { return fmod(x + -0.5, x * 0.3); }),
          all("div_trunc", [=](const Tensor& x) { return div_trunc(whole(x + -0.5), whole(flip(x, {1}))); }),
          all("lerp", [](const Tensor& x) { return lerp(x, flip(x, {1}), 0.3); }),
          all("nan_to_num", [](const Tensor& x) { return nan_to_num(log(x + -0.5), 3, 4, -5); }),
          all("isclose", [](const Tensor& x) { return isclose(x, flip(x, {1}), 0.3); }),
          all("shifts",
              [=](const Tensor& x) { return right_shift(left_shift(whole(x), whole(x * 0.05)), whole(x * 0.02)); }),
          all("bitwise_not", [=](const Tensor& x) { return bitwise_not(whole(x)); }),
          all("elu", [](const Tensor& x) { return elu(x + -0.5, 0.7); }),
          all("selu", [](const Tensor& x) { return selu(x + -0.5); }),
          all("celu", [](const Tensor& x) { return celu(x + -0.5, 0.7); }),
          all("leaky_relu", [](const Tensor& x) { return leaky_relu(x + -0.5); }),
          all("prelu",
              [](const Tensor& x) {
                return prelu(x + -0.5, tensor(std::vector<float>{0.1f, 0.2f, 0, 1, 2}, {5}));
              }),
          all("thresholded_relu", [](const Tensor& x) { return thresholded_relu(x, 0.4); }),
          all("hardswish", [](const Tensor& x) { return hardswish(x * 9.0 + -4.0); }),
          all("hardtanh", [](const Tensor& x) { return hardtanh(x, 0.2, 0.7); }),
          one("mish", mish),
          one("softsign", softsign),
          all("softshrink", [](const Tensor& x) { return softshrink(x + -0.5, 0.1); }),
          all("hardshrink", [](const Tensor& x) { return hardshrink(x + -0.5, 0.1); }),
          one("tanhshrink", tanhshrink),
          one("log_sigmoid", log_sigmoid),
          all("glu", [](const Tensor& x) { return glu(slice(x, 1, 0, 4)); }),
          one("relu6", relu6)};
}

// Types that meet, and integers of both signs.
std::vector<Written> functions_of_types() {
  const auto all = [](const char* name, std::function<Tensors(const Tensor&, const Tensor&)> f) {
    return Written{name, {4, 5}, [f](const Tensor& x) {
                     const Tensor whole = cast(x * 20 + -10.0, Int64);
                     return f(whole,
                              where(eq(flip(whole, {1}), full({}, 0, Int64)), full({}, 3, Int64), flip(whole, {1})));
                   }};
  };
  return {
      all("integer_divisions",
          [](const Tensor& a, const Tensor& b) {
            return Tensors{floor_div(a, b), remainder(a, b), div(a, b)};
          }),
      all("integers_to_integers",
          [](const Tensor& a, const Tensor& b) {
            return Tensors{
                maximum(a, b),     minimum(a, b), abs(a),  neg(a),   sign(a),   square(a),       relu(a),
                floor(a),          trunc(a),      a * 3.0, a + -2.0, pow(a, 3), clamp(a, -3, 4), clamp(a, 0, INFINITY),
                cast(a, Int32) * b};
          }),
      all("integers_to_floats",
          [](const Tensor& a, const Tensor& b) {
            return Tensors{exp(a * 0.1),         sqrt(abs(a)),
                           sigmoid(a),           a + 0.5,
                           a * cast(b, Float32), cast(a, Float64) * cast(b, Float32),
                           mean(a, {1}),         norm(a),
                           var(a, {1})};
          }),
      all("integer_reductions",
          [](const Tensor& a, const Tensor&) {
            return Tensors{sum(a, {1}),        prod(slice(a, 1, 0, 2), {1}),
                           amax(a, {1}, true), amin(a),
                           cumsum(a, 1),       argmax(a, 1),
                           any(a, {1}),        tessera::all(a)};
          }),
      all("comparisons",
          [](const Tensor& a, const Tensor& b) {
            const Tensor small = lt(a, b), few = gt(a, full({}, 2, Int64));
            return Tensors{small,
                           le(cast(a, Float32), b),
                           ge(a, b),
                           eq(small, few),
                           lt(small, few),
                           ne(a, full({}, 1.5)),
                           logical_and(a, few),
                           logical_not(a),
                           sum(small, {1}),
                           amax(small, {1}),
                           where(small, a, cast(b, Float32)),
                           small * few,
                           bitwise_and(small, few)};
          }),
      all("casts",
          [](const Tensor& a, const Tensor&) {
            return Tensors{cast(a, Bool), cast(cast(a, Float32) * 0.3, Int32), cast(a, Int8),
                           cast(cast(a, Float16), Float32)};
          }),
  };
}

std::vector<Written> functions_of_shapes() {
  static Generator g(5);
  const Tensor at = indices({6, 6}, 6, g), rows = reshape(indices({12}, 6, g), {6, 2}), line = indices({6}, 6, g);
  const Shape s{6, 6};
  const auto all = [&](const char* name, std::function<Tensors(const Tensor&)> f, bool open = true) {
    return Written{name, s, std::move(f), open};
  };
  return {
      all("repeat",
          [](const Tensor& x) {
            return Tensors{repeat(x, {2, 1, 3})};
          }),
      all("repeat_interleave", [](const Tensor& x) { return Tensors{repeat_interleave(x, 3, 1)}; }),
      all("roll", [](const Tensor& x) { return Tensors{roll(x, {2}, {1})}; }),
      all(
          "diagonal", [](const Tensor& x) { return Tensors{diagonal(x, 1)}; }, false),
      all("eye", [](const Tensor& x) { return Tensors{matmul(x, eye(6, 4, 1))}; }),
      all("linspace", [](const Tensor& x) { return Tensors{x * linspace(0, 2, 6)}; }),
      all("meshgrid",
          [](const Tensor& x) {
            return meshgrid({select(x, 1, 0), select(x, 1, 1)});
          }),
      all("slice_by", [](const Tensor& x) { return Tensors{slice_by(x, 1, 5, 0, -2)}; }),
      all("movedim", [](const Tensor& x) { return Tensors{movedim(x, 0, 1)}; }),
      all("unbind", [](const Tensor& x) { return unbind(x, 1); }),
      all(
          "einsum",
          [](const Tensor& x) {
            return Tensors{einsum("ij,jk,ll->ki", {x, x, x})};
          },
          false),
      all("tensordot", [](const Tensor& x) { return Tensors{tensordot(x, x, {1}, {1})}; }),
      all(
          "det", [](const Tensor& x) { return Tensors{det(x)}; }, false),
      all(
          "inverse", [](const Tensor& x) { return Tensors{inverse(x + eye(6) * 9.0)}; }, false),
      all(
          "solve", [](const Tensor& x) { return Tensors{solve(x + eye(6) * 9.0, x)}; }, false),
      all(
          "cholesky", [](const Tensor& x) { return Tensors{cholesky(matmul(x, transpose(x, 0, 1)) + eye(6))}; }, false),
      all(
          "scatter", [=](const Tensor& x) { return Tensors{scatter(x, 0, at, x * 2.0)}; }, false),
      all(
          "scatter_reduce",
          [=](const Tensor& x) {
            Tensors out;
            using enum ScatterReduction;
            for (const auto how : {Sum, Mean, Prod, Max, Min})
              for (const bool self : {true, false}) out.push_back(scatter_reduce(x, 1, at, x + -0.5, how, self));
            return out;
          },
          false),
      all(
          "gather_nd", [=](const Tensor& x) { return Tensors{gather_nd(x, rows)}; }, false),
      all(
          "scatter_nd",
          [=](const Tensor& x) { return Tensors{scatter_nd(x, rows, select(x, 0, 1), ScatterReduction::Sum)}; }, false),
      all(
          "take_along_dim", [=](const Tensor& x) { return Tensors{take_along_dim(x, at, 1)}; }, false),
      all(
          "index_put", [=](const Tensor& x) { return Tensors{index_put(x, {line}, select(x, 0, 1), true)}; }, false),
      all("index_add", [=](const Tensor& x) { return Tensors{index_add(x, 1, line, x, 0.5)}; }),
      all("masked_select", [](const Tensor& x) { return Tensors{masked_select(x, gt(x, full({}, 0.5)))}; }),
      all("sort", [](const Tensor& x) { return both_of(sort(x, 1, true)); }),
      all("kthvalue", [](const Tensor& x) { return both_of(kthvalue(x, 3, 1)); }),
      all("median", [](const Tensor& x) { return both_of(median(x, 1)); }),
      all("max_with_index", [](const Tensor& x) { return both_of(max_with_index(x, 1)); }),
      all("argmin_last", [](const Tensor& x) { return Tensors{argmin_last(round(x * 3.0), 1)}; }),
      all("searchsorted", [](const Tensor& x) { return Tensors{searchsorted(cumsum(x, 1), x)}; }),
      all("histc", [](const Tensor& x) { return Tensors{histc(x, 7, 0.1, 0.9)}; }),
      all("cumprod", [](const Tensor& x) { return Tensors{cumprod(x, 1)}; }),
      all("cummax", [](const Tensor& x) { return both_of(cummax(x, 1)); }),
      all("logcumsumexp", [](const Tensor& x) { return Tensors{logcumsumexp(x, 1)}; }),
      all(
          "unique_along", [](const Tensor& x) { return Tensors{unique_along(round(x * 2.0), 0).counts}; }, false),
  };
}

std::vector<Written> functions_of_images() {
  static Generator g(6);
  const Shape image{2, 3, 7, 6}, line{2, 3, 9}, block{2, 3, 4, 5, 6}, squares{2, 8, 4, 6};
  const Windows w{.size = {3, 2}, .stride = {2, 1}, .low = {1, 0}, .high = {0, 1}, .ceil = true};
  const auto all = [](const char* name, const Shape& shape, std::function<Tensors(const Tensor&)> f, bool open = true) {
    return Written{name, shape, std::move(f), open};
  };
  const Tensor w1 = randn({4, 3, 3}, g), w2 = randn({4, 3, 3, 2}, g), w3 = randn({4, 3, 2, 3, 2}, g),
               bias = randn({4}, g);
  const Tensor t1 = randn({3, 4, 3}, g), t2 = randn({3, 4, 3, 2}, g);
  return {
      all("conv1d", line, [=](const Tensor& x) { return Tensors{conv(x, w1, bias, {.stride = {2}, .low = {1}})}; }),
      all("conv2d", image,
          [=](const Tensor& x) {
            return Tensors{conv(x, w2, bias, {.low = {1, 0}, .high = {2, 1}})};
          }),
      all("conv3d", block,
          [=](const Tensor& x) {
            return Tensors{conv(x, w3, bias, {.low = {1, 1, 0}})};
          }),
      all("conv_transpose1d", line,
          [=](const Tensor& x) { return Tensors{conv_transpose(x, t1, bias, {.stride = {2}, .low = {1}})}; }),
      all("conv_transpose2d", image,
          [=](const Tensor& x) {
            return Tensors{conv_transpose(x, t2, bias, {.stride = {2, 3}, .output_padding = {1, 2}})};
          }),
      all("max_pool", image, [=](const Tensor& x) { return Tensors{max_pool(x, w)}; }),
      all("max_pool_with_indices", image, [=](const Tensor& x) { return both_of(max_pool_with_indices(x, w)); }),
      all("avg_pool", image,
          [=](const Tensor& x) {
            return Tensors{avg_pool(x, w), avg_pool(x, w, false)};
          }),
      all("max_pool3d", block,
          [](const Tensor& x) {
            return Tensors{max_pool(x, {.size = {2, 2, 3}})};
          }),
      all("lp_pool", image, [=](const Tensor& x) { return Tensors{lp_pool(x, w, 3)}; }),
      all("adaptive_pools", image,
          [](const Tensor& x) {
            return Tensors{adaptive_max_pool(x, {3, 4}), adaptive_avg_pool(x, {3, 4})};
          }),
      all("global_pools", image,
          [](const Tensor& x) {
            return Tensors{global_max_pool(x), global_avg_pool(x), global_lp_pool(x)};
          }),
      all("max_unpool", image,
          [](const Tensor& x) {
            const auto [y, places] = max_pool_with_indices(x, {.size = {2, 2}});
            return Tensors{max_unpool(y, places, {7, 6})};
          }),
      all("unfold", image,
          [=](const Tensor& x) {
            return Tensors{unfold(x, {.size = {3, 2}, .stride = {2, 1}})};
          }),
      all("fold", {2, 12, 6},
          [](const Tensor& x) {
            return Tensors{fold(x, {4, 5}, {.size = {3, 2}, .stride = {2, 2}, .low = {1, 0}, .high = {1, 1}})};
          }),
      all("resize", image,
          [](const Tensor& x) {
            return Tensors{resize(x, {2, 3}, {11, 4}),
                           resize(x, {2, 3}, {5, 9}, {.interpolation = Interpolation::Cubic}),
                           resize(x, {2, 3}, {14, 12}, {.interpolation = Interpolation::Nearest})};
          }),
      all(
          "grid_sample", image,
          [](const Tensor& x) {
            const Tensor theta = tensor(std::vector<float>{0.9f, 0.2f, 0, -0.1f, 1.1f, 0.3f}, {1, 2, 3});
            const Tensor grid = expand(affine_grid(theta, {5, 4}), {x.shape()[0], Dim(5), Dim(4), Dim(2)});
            return Tensors{grid_sample(x, grid)};
          },
          false),
      all("pixel_shuffle", squares,
          [](const Tensor& x) {
            return Tensors{pixel_shuffle(x, 2), depth_to_space(x, 2)};
          }),
      all("pixel_unshuffle", squares,
          [](const Tensor& x) {
            return Tensors{pixel_unshuffle(x, 2), space_to_depth(x, 2)};
          }),
      all("channel_shuffle", squares, [](const Tensor& x) { return Tensors{channel_shuffle(x, 4)}; }),
      all("pads", image,
          [](const Tensor& x) {
            return Tensors{pad(x, {2, 1}, {0, 3}, Padding::Reflect), pad(x, {2, 1}, {0, 3}, Padding::Edge),
                           pad(x, {2, 1}, {0, 3}, Padding::Wrap), pad(x, {2, -1}, {0, 3}, Padding::Constant, 0.5)};
          }),
      all("norms", image,
          [](const Tensor& x) {
            return Tensors{local_response_norm(x, 3), instance_norm(x), lp_normalize(x, 2, 1),
                           mean_variance_norm(x, {0, 2, 3})};
          }),
      all("group_norm", squares,
          [](const Tensor& x) {
            return Tensors{group_norm(x, 4), group_norm(x, 8)};
          }),
  };
}

void expect_functions(const std::vector<Written>& functions) {
  TemporaryFolder folder;
  Generator g(3);
  for (const Written& f : functions) {
    SCOPED_TRACE(f.name);
    const FunctionOf module([&](const Tensors& in) { return f.run(in[0]); });
    const auto drawn = [&](int64_t more) {
      Shape shape = f.shape;
      shape[0] = shape[0].value() + more;
      return Tensors{uniform64(shape, g, 0.05, 0.95).to(Float32)};
    };
    try {
      const std::string path = folder / "m.onnx";
      save(module, drawn(0), path, {.batch = f.open ? "batch" : ""});
      const Tensors x = drawn(f.open ? 2 : 0);
      EXPECT_LE(error_of_file(path, module, x), 1e-5);
      keep_case(f.name, path, module, x);
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
}

TEST(OnnxWriterFunctions, OfElements) { expect_functions(functions_of_elements()); }
TEST(OnnxWriterFunctions, OfOtherTypes) { expect_functions(functions_of_types()); }
TEST(OnnxWriterFunctions, OfShapesAndPlaces) { expect_functions(functions_of_shapes()); }
TEST(OnnxWriterFunctions, OfImages) { expect_functions(functions_of_images()); }

}  // namespace
}  // namespace tessera::onnx
