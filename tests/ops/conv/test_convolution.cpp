#include "ops/reference.h"
#include "ops/slope_check.h"
#include "tessera/ops_pool.h"

namespace tessera {
namespace {

using reference::Index;

int64_t number(const Dims& list, int64_t d, int64_t otherwise) { return list.empty() ? otherwise : list[d]; }

// fn(index of x, index of weight, index of y) for every product of a convolution x -> y.
template <class F>
void each_tap(const Shape& x, const Shape& weight, const Shape& y, const ConvOptions& o, F fn) {
  const int64_t spatial = x.rank() - 2;
  const Shape taps(weight.begin() + 1, weight.end());
  reference::each_index(y, [&](const Index& i) {
    reference::each_index(taps, [&](const Index& k) {
      Index from{i[0], i[1] / (y[1].value() / o.groups) * weight[1].value() + k[0]}, at{i[1]};
      for (const int64_t n : k) at.push_back(n);
      for (int64_t d = 0; d < spatial; ++d) {
        from.push_back(i[2 + d] * number(o.stride, d, 1) - number(o.low, d, 0) + k[1 + d] * number(o.dilation, d, 1));
        if (from.back() < 0 || from.back() >= x[2 + d].value()) return;
      }
      fn(from, at, i);
    });
  });
}

struct ConvUse {
  Shape x, weight, out;
  ConvOptions o;
};

TEST(Conv, OfOneToThreeDims) {
  Generator g(1);
  for (const ConvUse& use : std::vector<ConvUse>{
           {{2, 4, 11}, {6, 4, 3}, {9}, {}},
           {{2, 4, 11}, {6, 2, 3}, {5}, {.stride = {2}, .low = {0}, .high = {2}, .dilation = {2}, .groups = 2}},
           {{1, 3, 7, 6}, {5, 3, 2, 3}, {4, 2}, {.stride = {2, 3}, .low = {1, 0}, .high = {0, 1}}},
           {{1, 3, 7, 6}, {5, 3, 3, 1}, {7, 6}, {.low = {2, 0}, .high = {0, 0}}},
           {{2, 4, 5, 6, 4}, {6, 4, 2, 3, 2}, {4, 4, 3}, {}},
           {{2, 4, 5, 6, 4},
            {6, 2, 2, 3, 2},
            {3, 3, 5},
            {.stride = {2, 2, 1}, .low = {1, 0, 2}, .high = {1, 1, 0}, .dilation = {2, 1, 1}, .groups = 2}}}) {
    const Tensor x = normal64(use.x, g), weight = normal64(use.weight, g), bias = normal64({use.weight[0]}, g);
    Shape shape{use.x[0], use.weight[0]};
    for (const Dim d : use.out) shape.push_back(d);
    const Tensor want =
        reference::generate(shape, Float64, [&](const Index& i) { return reference::get(bias, Index{i[1]}); });
    each_tap(use.x, use.weight, shape, use.o, [&](const Index& from, const Index& at, const Index& to) {
      reference::set(want, to, reference::get(want, to) + reference::get(x, from) * reference::get(weight, at));
    });
    const auto run = [&](const Tensors& in) { return conv(in[0], in[1], in[2], use.o); };
    EXPECT_LE(relative_error(run({x, weight, bias}), want), 1e-14) << to_string(use.x);
    expect_slopes(run, {x, weight, bias});
  }
}

struct TransposeUse {
  Shape x, weight, out;
  ConvTransposeOptions o;
};

TEST(ConvTranspose, OfOneToThreeDims) {
  Generator g(2);
  for (const TransposeUse& use : std::vector<TransposeUse>{
           {{2, 4, 5}, {4, 3, 3}, {7}, {}},
           {{2, 4, 5}, {4, 3, 3}, {12}, {.stride = {2}, .low = {1}, .output_padding = {2}}},
           {{1, 4, 5, 4}, {4, 3, 3, 2}, {9, 8}, {.stride = {2, 2}, .low = {1, 0}, .high = {1, 0}}},
           {{1, 4, 5, 4}, {4, 3, 3, 2}, {8, 10}, {.stride = {2, 2}, .low = {3, -1}, .high = {0, -1}}},
           {{1, 4, 5, 4},
            {4, 3, 3, 2},
            {13, 6},
            {.stride = {2, 1}, .output_padding = {0, 1}, .dilation = {2, 1}, .groups = 2}},
           {{2, 4, 3, 2, 4}, {4, 2, 2, 3, 2}, {4, 4, 5}, {}},
           {{2, 4, 3, 2, 4},
            {4, 2, 2, 3, 2},
            {6, 4, 8},
            {.stride = {2, 1, 2},
            .low = {1, 0, 0},
            .high = {0, 0, 1},
            .output_padding = {0, 0, 1},
            .dilation = {2, 1, 1},
            .groups = 2}}}) {
    const Tensor x = normal64(use.x, g), weight = normal64(use.weight, g);
    const int64_t out = use.weight[1].value() * use.o.groups;
    const Tensor bias = normal64({out}, g);
    Shape shape{use.x[0], out};
    for (const Dim d : use.out) shape.push_back(d);
    const Tensor want =
        reference::generate(shape, Float64, [&](const Index& i) { return reference::get(bias, Index{i[1]}); });
    const ConvOptions reverse{
        .stride = use.o.stride, .low = use.o.low, .dilation = use.o.dilation, .groups = use.o.groups};
    each_tap(shape, use.weight, use.x, reverse, [&](const Index& to, const Index& at, const Index& from) {
      reference::set(want, to, reference::get(want, to) + reference::get(x, from) * reference::get(weight, at));
    });
    const auto run = [&](const Tensors& in) { return conv_transpose(in[0], in[1], in[2], use.o); };
    EXPECT_EQ(run({x, weight, bias}).shape(), shape);
    EXPECT_LE(relative_error(run({x, weight, bias}), want), 1e-14) << to_string(use.x);
    expect_slopes(run, {x, weight, bias});
  }
}

TEST(ConvTranspose, HasTheSizesThatAreWanted) {
  const Tensor x = zeros({1, 2, 3, 4}), weight = zeros({2, 5, 3, 3});
  const ConvTransposeOptions o{.stride = {3, 2}};
  for (const bool upper : {false, true}) {
    const auto sized = with_output_sizes(o, x.shape(), weight.shape(), {10, 8}, upper);
    EXPECT_EQ(conv_transpose(x, weight, {}, sized).shape(), (Shape{1, 5, 10, 8}));
    EXPECT_EQ(sized.low[1], upper ? 0 : 1);
  }
}

TEST(Conv, PaddingMayBeWiderThanTheWindowWhereItMoves) {
  Generator g(8);
  for (const auto& [channels, filters, edge] : {std::tuple{16, 24, 12}, {3, 40, 9}, {24, 3, 33}}) {
    const ConvOptions o{.stride = {2, 3}, .low = {4, 5}, .high = {4, 5}};
    const Tensor x = randn({2, channels, edge, edge}, g, Float64), w = randn({filters, channels, 2, 3}, g, Float64);
    const auto results = [&](DType dtype) {
      const Tensors leaves{x.to(dtype).set_requires_grad(), w.to(dtype).set_requires_grad()};
      const Tensor y = conv(leaves[0], leaves[1], {}, o);
      Tensors out = grad({sum(square(y))}, leaves);
      out.push_back(y);
      return out;
    };
    const Tensors got = results(Float32), want = results(Float64);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 2e-6) << channels << " " << i;
  }
}

TEST(Conv, AnEmptyBatchGivesFiltersNoGradient) {
  for (const Shape& edges : {Shape{7}, Shape{7, 9}, Shape{5, 7, 9}}) {
    Shape image{0, 4}, filters{5, 4};
    image.append(edges.begin(), edges.end());
    for (int64_t d = 0; d < edges.rank(); ++d) filters.push_back(3);
    for (const bool transposed : {false, true}) {
      if (transposed) filters[0] = 4;
      const Tensor x = zeros(image);
      Tensor w = ones(filters).set_requires_grad();
      sum(transposed ? conv_transpose(x, w) : conv(x, w)).backward();
      EXPECT_EQ(w.grad().to_vector<double>(), zeros(filters).to_vector<double>()) << edges.rank();
    }
  }
}

TEST(Conv, NamesTheRuleThatIsBroken) {
  const Tensor x = zeros({1, 4, 7}), w = zeros({6, 4, 3});
  EXPECT_EQ(error_of([&] { conv(zeros({4, 7}), w); }), "conv: x must have one to three spatial dims, not shape [4, 7]");
  EXPECT_EQ(error_of([&] { conv(x, zeros({6, 4, 3, 3})); }), "conv: weight must have 3 dims, not shape [6, 4, 3, 3]");
  EXPECT_EQ(error_of([&] { conv(x, w, {}, {.groups = 3}); }), "conv: 4 channels do not split into 3 groups");
  EXPECT_EQ(error_of([&] { conv(x, w, {}, {.groups = 2}); }),
            "conv: weight [6, 4, 3] in 2 groups does not fit [1, 4, 7]");
  EXPECT_EQ(error_of([&] { conv(x, w, {}, {.stride = {1, 2}}); }), "conv: stride has 2 numbers for 1 spatial dims");
  EXPECT_EQ(error_of([&] { conv(x, w, {}, {.dilation = {4}}); }),
            "conv: a window of 3 with dilation 4 exceeds the size 7 padded by 0 and 0");
  EXPECT_EQ(error_of([&] { conv(x, w, zeros({4})); }), "conv2d: bias has shape [4], not [6]");
  EXPECT_EQ(error_of([&] { conv_transpose(x, w); }), "conv_transpose: weight [6, 4, 3] does not fit [1, 4, 7]");
  EXPECT_EQ(error_of([&] {
              conv_transpose(x, zeros({4, 2, 3}), zeros({3}));
            }),
            "conv_transpose: bias has shape [3], not [2]");
  EXPECT_EQ(error_of([&] {
              conv_transpose(x, zeros({4, 2, 3}), {}, {.low = {5}, .high = {4}});
            }),
            "conv_transpose: padding 5 and 4 leaves 0 of dim 3 of the result");
  EXPECT_EQ(error_of([&] {
              with_output_sizes({}, x.shape(), w.shape(), {3, 3});
            }),
            "with_output_sizes: 2 sizes for [1, 4, 7]");
}

}  // namespace
}  // namespace tessera
