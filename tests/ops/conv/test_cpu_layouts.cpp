// Convolutions on the CPU of images whose channels do not lie last: those that are faster that way turn them round, as
// a whole or a block at a time, which nobody can tell from the results.
#include "core/plan.h"
#include "ops/conv.h"
#include "ops/conv_act.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

struct Problem {
  const char* name;
  Shape x, w;
  Conv2dOptions options;
  const char *forward = "direct", *images = "direct", *filters = "direct";  // the kernels that are to be picked
};

// Rows and channels beyond whole blocks of a transposition, channels that lie 2 KB apart, padding, strides, windows of
// one column, groups, and channels of one filter each.
std::vector<Problem> problems() {
  const char *copied = "copied_direct", *depthwise = "copied_depthwise", *gemm = "implicit_gemm", *planes = "planes",
             *scatter = "scatter";
  return {
      {"channels beyond blocks", {2, 37, 18, 21}, {19, 37, 5, 3}, {.padding = {2, 1}}, scatter, copied, "direct"},
      {"512 channels", {1, 512, 3, 11}, {4, 512, 2, 3}, {}, scatter, copied, "direct"},
      {"one column, stride 3", {2, 18, 9, 35}, {13, 18, 4, 1}, {.stride = {1, 3}}, copied, copied, "direct"},
      {"points, stride 2", {2, 20, 9, 35}, {13, 20, 1, 1}, {.stride = {2, 2}}, planes, planes, "direct"},
      {"dilated", {1, 33, 15, 17}, {12, 33, 3, 3}, {.padding = {1, 2}, .dilation = {1, 2}}, scatter, copied, "direct"},
      {"groups", {2, 36, 11, 20}, {45, 4, 3, 3}, {.padding = {1, 1}, .groups = 9}, planes, planes, "direct"},
      {"groups of more filters",
       {2, 36, 11, 20},
       {117, 12, 3, 3},
       {.padding = {1, 1}, .groups = 3},
       copied,
       scatter,
       "direct"},
      {"groups of few points", {2, 36, 11, 40}, {45, 4, 1, 1}, {.groups = 9}, planes, planes, planes},
      {"points of few channels", {2, 12, 11, 40}, {15, 12, 1, 1}, {}, planes, planes, planes},
      {"few points, stride 3", {2, 16, 9, 35}, {40, 2, 1, 1}, {.stride = {2, 3}, .groups = 8}, planes, planes, planes},
      {"depthwise",
       {2, 21, 12, 20},
       {21, 1, 3, 3},
       {.stride = {2, 1}, .padding = {1, 1}, .groups = 21},
       depthwise,
       depthwise,
       depthwise},
      {"depthwise of long rows",
       {2, 21, 12, 80},
       {21, 1, 3, 3},
       {.stride = {2, 1}, .padding = {1, 1}, .groups = 21},
       planes,
       planes,
       planes},
      {"depthwise of few channels",
       {2, 5, 9, 11},
       {5, 1, 3, 3},
       {.padding = {1, 1}, .groups = 5},
       depthwise,
       depthwise,
       planes},
      {"long rows", {1, 9, 18, 48}, {6, 9, 5, 3}, {}, planes, planes, "direct"},
      {"one long row", {1, 52, 4, 129}, {17, 52, 4, 4}, {}, gemm, copied, "direct"},
      {"tiles of many channels",
       {1, 33, 57, 54},
       {48, 33, 3, 3},
       {.padding = {1, 1}},
       "winograd",
       "winograd",
       "direct"},
  };
}

// The result and both gradients.
Tensors results(const Problem& p, const Tensor& x, const Tensor& w, const Tensor& dy) {
  const Tensors leaves{x.detach().set_requires_grad(), w.detach().set_requires_grad()};
  const Tensor y = conv2d(leaves[0], leaves[1], {}, p.options);
  Tensors out = grad({y}, leaves, {dy});
  out.push_back(y);
  return out;
}

const char* picked(const char* op, const Tensors& in, const Attrs& attrs, const Tensor& out) {
  Tensors all = in;
  all.resize(3);
  const auto in_metas = metas_of(all, cpu()), out_metas = metas_of(std::span(&out, 1), cpu());
  return make_plan(find_op(op), {in_metas.data(), op == std::string("conv2d_input_grad") ? 2u : 3u}, attrs,
                   {out_metas.data(), 1})
      ->kernel()
      ->name;
}

TEST(CpuLayouts, ImagesAreTurnedRoundOnTheWay) {
  Generator g(17);
  for (const Problem& p : problems()) {
    SCOPED_TRACE(p.name);
    const Tensor x = normal64(p.x, g), w = normal64(p.w, g);
    const Tensor dy = normal64(conv2d(x, w, {}, p.options).shape(), g);
    const Tensors want = results(p, x, w, dy);
    const Tensor xs = x.to(Float32), ws = w.to(Float32), dys = dy.to(Float32);
    const Tensors got = results(p, xs, ws, dys);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(relative_error(got[i], want[i]), 2e-6) << i;
      EXPECT_TRUE(got[i].is_contiguous()) << i;
    }
    ConvAttrs attrs = conv_attrs(p.options);
    EXPECT_STREQ(picked("conv2d", {xs, ws}, attrs, dys), p.forward);
    for (int d : {0, 1}) attrs.size[d] = xs.size(2 + d);
    EXPECT_STREQ(picked("conv2d_input_grad", {dys, ws}, attrs, xs), p.images);
    for (int d : {0, 1}) attrs.size[d] = ws.size(2 + d);
    EXPECT_STREQ(picked("conv2d_weight_grad", {xs, dys}, attrs, ws), p.filters);
  }
}

// Of each tensor alone: the filters' gradient takes either order.
TEST(CpuLayouts, MayDiffer) {
  Generator g(18);
  const Problem p = problems()[0];
  const Tensor x = normal64(p.x, g), w = normal64(p.w, g);
  const Tensor dy = normal64(conv2d(x, w, {}, p.options).shape(), g);
  const Tensors want = results(p, x, w, dy);
  for (const MemoryFormat of_x : {Contiguous, ChannelsLast})
    for (const MemoryFormat of_dy : {Contiguous, ChannelsLast}) {
      const Tensors got = results(p, x.to(Float32).to(of_x), w.to(Float32), dy.to(Float32).to(of_dy));
      for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 2e-6) << i;
    }
  const Tensor wide = normal64({2, 37, 18, 42}, g).to(Float32), apart = wide.slice(3, 0, 42, 2);  // rows with gaps
  const Tensors exact = results(p, apart.to(Float64).contiguous(), w, dy);
  const Tensors got = results(p, apart, w.to(Float32), dy.to(Float32));
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_LE(relative_error(got[i], exact[i]), 2e-6) << i;
}

// Results of two images go past the caches, those of one do not.
TEST(CpuLayouts, LargeResultsAreTheSame) {
  Generator g(19);
  for (const Shape& filters : {Shape{32, 8, 1, 1}, Shape{32, 8, 3, 3}, Shape{36, 8, 1, 1}}) {
    const Tensor x = normal64({2, 8, 250, 390}, g).to(Float32).to(ChannelsLast), w = normal64(filters, g).to(Float32);
    const Tensor bias = normal64({filters[0]}, g).to(Float32), residual = conv2d(x, w, bias);
    const auto run = [&](const Tensor& images, const Tensor& added) {
      return conv2d_act(images, w, bias, {}, Activation::Silu, INFINITY, added).contiguous();
    };
    const auto image = [](const Tensor& t, int64_t i) { return slice(t, 0, i, i + 1); };
    const Tensor plain = conv2d(x, w), both = run(x, {}), added = run(x, residual);
    for (const int64_t i : {0, 1}) {
      EXPECT_EQ(image(plain.contiguous(), i).to_vector<float>(),
                conv2d(image(x, i), w).contiguous().to_vector<float>());
      EXPECT_EQ(image(both, i).to_vector<float>(), run(image(x, i), {}).to_vector<float>());
      EXPECT_EQ(image(added, i).to_vector<float>(), run(image(x, i), image(residual, i)).to_vector<float>());
    }
  }
}

// Over channels that lie last, few results are worth turning images round where rows are long and have taps.
TEST(CpuLayouts, FewResultsOfManyTapsRunAlongRows) {
  for (const auto& [channels, filters, taps, width, kernel] : {std::tuple{24, 3, 5, 100, "planes"},
                                                               {24, 3, 2, 100, "direct"},
                                                               {6, 4, 2, 100, "planes"},
                                                               {6, 8, 5, 100, "planes"},
                                                               {6, 9, 5, 100, "direct"},
                                                               {256, 4, 3, 9, "direct"},
                                                               {64, 8, 1, 100, "direct"}}) {
    const Tensor x = empty({1, channels, 9, width}).to(ChannelsLast), w = empty({filters, channels, taps, taps});
    const Tensor y = empty({1, filters, 10 - taps, width + 1 - taps}).to(ChannelsLast);
    EXPECT_STREQ(picked("conv2d", {x, w}, conv_attrs({}), y), kernel) << channels << " to " << filters;
  }
}

// Over channels that lie last, all filters of groups of few are lanes.
TEST(CpuLayouts, GroupsOfFewChannelsAreSpreadOverLanes) {
  const char *spread = "spread", *direct = "direct", *planes = "planes";
  const std::vector<Problem> problems{
      {"points", {2, 16, 14, 15}, {32, 1, 1, 1}, {.stride = {2, 2}, .groups = 16}, spread, spread, spread},
      {"windows", {2, 48, 9, 11}, {64, 3, 3, 3}, {.padding = {1, 1}, .groups = 16}, spread, spread, spread},
      {"a dilated row", {1, 32, 13, 9}, {32, 4, 3, 2}, {.dilation = {2, 1}, .groups = 8}, spread, spread, spread},
      {"dilated both ways", {1, 32, 13, 9}, {32, 4, 3, 2}, {.dilation = {2, 2}, .groups = 8}, spread, spread, spread},
      {"channels of many vectors", {2, 256, 14, 15}, {32, 8, 1, 1}, {.groups = 32}, spread, direct, spread},
      {"many channels a group", {1, 256, 9, 9}, {16, 32, 3, 3}, {.groups = 8}, direct, direct, direct},
      {"beyond the caches", {31, 20, 82, 82}, {8, 5, 7, 7}, {.padding = {3, 0}, .groups = 4}, planes, planes, direct}};
  Generator g(19);
  for (const Problem& p : problems) {
    SCOPED_TRACE(p.name);
    const Tensor some = empty(p.x), w = randn(p.w, g);
    const bool large = some.numel() > 1 << 20;
    const Tensor x = large ? some : randn(p.x, g), last = x.to(ChannelsLast);
    const Shape out = conv2d(x, w, {}, p.options).shape();
    const Tensor dy = large ? empty(out) : randn(out, g), dy_last = dy.to(ChannelsLast);
    if (!large) {
      const Tensors want = results(p, x.to(Float64), w.to(Float64), dy.to(Float64)), got = results(p, last, w, dy_last);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(got[i], want[i]), 2e-6) << i;
    }
    ConvAttrs attrs = conv_attrs(p.options);
    EXPECT_STREQ(picked("conv2d", {last, w}, attrs, dy_last), p.forward);
    for (int d : {0, 1}) attrs.size[d] = x.size(2 + d);
    EXPECT_STREQ(picked("conv2d_input_grad", {dy_last, w}, attrs, last), p.images);
    for (int d : {0, 1}) attrs.size[d] = w.size(2 + d);
    EXPECT_STREQ(picked("conv2d_weight_grad", {last, dy_last}, attrs, w), p.filters);
  }
}

// Over channels that lie last, results of few channels are bound by writing them: in order, by products of pixels.
TEST(CpuLayouts, GradientsOfManyImagesByFewFiltersAreScattered) {
  struct Case {
    Shape x, w;
    Conv2dOptions options;
  };
  const std::vector<Case> cases{{{1, 600, 90, 91}, {7, 600, 1, 1}, {.stride = {1, 2}}},
                                {{9, 190, 67, 65}, {6, 190, 1, 7}, {.stride = {3, 3}}}};
  for (const Case& c : cases) {
    const Tensor x = empty(c.x).to(ChannelsLast), w = empty(c.w), dy = conv2d(x, w, {}, c.options);
    ConvAttrs attrs = conv_attrs(c.options);
    for (int d : {0, 1}) attrs.size[d] = x.size(2 + d);
    EXPECT_STREQ(picked("conv2d_input_grad", {dy, w}, attrs, x), "scatter");
  }
}

// Where rows lie, points of several groups run along planes: products of few channels, and those that scatter results.
TEST(CpuLayouts, PointsOfGroupsRunAlongPlanes) {
  const Conv2dOptions dense{.groups = 4}, apart{.stride = {3, 1}, .groups = 4};
  const Tensor x = empty({5, 44, 21, 23}), w = empty({52, 11, 1, 1}), large = empty({2, 160, 45, 47}),
               wide = empty({192, 40, 1, 1});
  EXPECT_STREQ(picked("conv2d", {x, w}, conv_attrs(dense), conv2d(x, w, {}, dense)), "planes");
  ConvAttrs attrs = conv_attrs(apart);
  for (int d : {0, 1}) attrs.size[d] = large.size(2 + d);
  EXPECT_STREQ(picked("conv2d_input_grad", {conv2d(large, wide, {}, apart), wide}, attrs, large), "planes");
}

// Groups read lines again only where images or gradients alone are beyond the caches, not both together.
TEST(CpuLayouts, FiltersOfGroupsOfSmallImagesRunAlongPlanes) {
  const Conv2dOptions options{.stride = {2, 3}, .padding = {1, 1}, .groups = 4};
  const Tensor x = empty({90, 4, 71, 31}).to(ChannelsLast), w = empty({12, 1, 3, 3}), dy = conv2d(x, w, {}, options);
  ConvAttrs attrs = conv_attrs(options);
  for (int d : {0, 1}) attrs.size[d] = w.size(2 + d);
  EXPECT_STREQ(picked("conv2d_weight_grad", {x, dy}, attrs, w), "planes");
}

// Two groups share each line of memory, and meet it twice.
TEST(CpuLayouts, FiltersOfFewChannelsBeyondTheCachesRunAlongPlanes) {
  const Conv2dOptions options{.padding = {0, 4}, .dilation = {2, 2}, .groups = 2};
  const Tensor x = empty({38, 4, 172, 172}).to(ChannelsLast), w = empty({4, 2, 4, 2}), dy = conv2d(x, w, {}, options);
  ConvAttrs attrs = conv_attrs(options);
  for (int d : {0, 1}) attrs.size[d] = w.size(2 + d);
  EXPECT_STREQ(picked("conv2d_weight_grad", {x, dy}, attrs, w), "planes");
}

// Filters beyond the second-level cache are read in parts, and results beyond it are computed in blocks of pixels; each
// image is the same alone.
TEST(CpuLayouts, DirectKernelsCutWhatExceedsACache) {
  const std::vector<Problem> problems{
      {"7 filters of 300 channels", {3, 300, 12, 11}, {7, 300, 7, 7}, {.padding = {3, 2}}},
      {"a filter and a half panel", {3, 153, 14, 12}, {49, 153, 6, 5}, {.stride = {2, 1}, .padding = {5, 0}}},
      {"dilated", {2, 410, 13, 9}, {17, 410, 5, 3}, {.padding = {4, 2}, .dilation = {2, 2}}},
      {"channels apart by 2 KB", {2, 512, 9, 8}, {19, 512, 3, 5}, {.padding = {1, 1}}},
      {"groups", {2, 602, 9, 10}, {18, 301, 5, 5}, {.padding = {2, 0}, .groups = 2}},
      {"a gradient of 300 filters", {3, 7, 12, 11}, {300, 7, 7, 7}, {.stride = {1, 2}, .padding = {3, 2}}},
      {"many results of points", {3, 5, 41, 31}, {389, 5, 1, 1}, {}},
      {"many gradients of points", {3, 389, 41, 31}, {5, 389, 1, 1}, {}},
      {"many results of windows", {3, 4, 41, 31}, {389, 4, 3, 2}, {.padding = {1, 0}}}};
  Generator g(20);
  for (const Problem& p : problems) {
    SCOPED_TRACE(p.name);
    const Tensor x = normal64(p.x, g), w = normal64(p.w, g), bias = normal64({p.w[0]}, g);
    const Tensor xs = x.to(Float32).to(ChannelsLast), ws = w.to(Float32), bs = bias.to(Float32);
    const Tensor plain = conv2d(x, w, {}, p.options), added = normal64(plain.shape(), g);
    const Tensor dy = normal64(plain.shape(), g), residual = added.to(Float32).to(ChannelsLast);
    const Tensor want = relu(conv2d(x, w, bias, p.options) + added);
    ConvAttrs attrs = conv_attrs(p.options);
    for (int d : {0, 1}) attrs.size[d] = x.size(2 + d);
    const Tensor gradient = dispatch_one(conv2d_input_grad_op, {dy, w}, attrs);
    const ForceKernel forward("conv2d", p.forward), act("conv2d_act", p.forward), images("conv2d_input_grad", p.images);
    const auto finished = [&](const Tensor& in, const Tensor& more) {
      return conv2d_act(in, ws, bs, p.options, Activation::Relu, INFINITY, more);
    };
    const Tensor got = finished(xs, residual);
    EXPECT_LE(relative_error(conv2d(xs, ws, {}, p.options), plain), 2e-6);
    EXPECT_LE(relative_error(got, want), 2e-6);
    const Tensor back = dispatch_one(conv2d_input_grad_op, {dy.to(Float32).to(ChannelsLast), ws}, attrs);
    EXPECT_LE(relative_error(back, gradient), 2e-6);
    for (int64_t i = 0; i < x.size(0); ++i) {
      const auto image = [&](const Tensor& t) { return slice(t, 0, i, i + 1); };
      EXPECT_EQ(finished(image(xs), image(residual)).to_vector<float>(), image(got).to_vector<float>());
    }
  }
}

}  // namespace
}  // namespace tessera
