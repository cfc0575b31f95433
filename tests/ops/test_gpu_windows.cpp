// Convolutions by Hopper's own instructions, on a card that has them, against float64.
#include <fmt/format.h>

#include "core/op.h"
#include "gpu_against_float64.h"

namespace tessera {
namespace {

struct Size {
  int64_t images, channels, filters, height, width, rows, columns;
  Conv2dOptions options;
};

class Sm90Windows : public GpuAgainstFloat64 {
 protected:
  void SetUp() override {
    GpuAgainstFloat64::SetUp();
    if (IsSkipped()) return;
    const std::string why = refusal({1, 8, 8, 3, 3, 1, 1, {{1, 1}, {0, 0}, {1, 1}}});
    if (why.find("instructions that this device lacks") != std::string::npos) GTEST_SKIP() << why;
    ASSERT_EQ(why, "no error");
  }

  /// Channels last in memory or, as they come, first.
  static Tensor there(const Tensor& t, DType dtype, bool channels_last) {
    const Tensor moved = t.to(dtype).to(gpu());
    return channels_last ? moved.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : moved;
  }
  static std::string refusal(const Size& s, DType dtype = Float16) {
    const ForceKernel forced("conv2d", "sm90.windows");
    return error_of([&] {
      conv2d(zeros({s.images, s.channels, s.height, s.width}, dtype, gpu()),
             zeros({s.filters, s.channels / s.options.groups, s.rows, s.columns}, dtype, gpu()), {}, s.options);
    });
  }

  void check(const Size& s, DType dtype, bool channels_last) {
    const Conv2dOptions& o = s.options;
    const std::string label = fmt::format(
        "{}x{}x{}x{} {} filters {}x{} stride {} {} padding {} {} dilation {} {} {} {}", s.images, s.channels, s.height,
        s.width, s.filters, s.rows, s.columns, o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.dilation[0],
        o.dilation[1], name(dtype), channels_last ? "channels last" : "channels first");
    const double limit = dtype == Float16 ? 6e-4 : 5e-3;
    const Tensor x = values({s.images, s.channels, s.height, s.width}, dtype),
                 w = values({s.filters, s.channels, s.rows, s.columns}, dtype), bias = values({s.filters}, dtype);
    Tensors near{there(x, dtype, channels_last), there(w, dtype, channels_last)}, exact{x, w};
    for (Tensors* list : {&near, &exact})
      for (Tensor& t : *list) t.set_requires_grad();
    const Tensor want = conv2d(exact[0], exact[1], bias, o), g = values(want.shape(), dtype);
    const Tensors wanted = grad({want}, exact, {g});
    const ForceKernel forward("conv2d", "sm90.windows"), weights("conv2d_weight_grad", "sm90.windows"),
        images("conv2d_input_grad", "sm90.windows");
    const Tensor got = conv2d(near[0], near[1], bias.to(dtype).to(gpu()), o);
    EXPECT_LE(error(got.detach(), want.detach()), limit) << label;
    const auto gradients = [&](bool images) {
      return grad({got}, images ? near : Tensors{near[1]}, {there(g, dtype, channels_last)}, true);
    };
    const Tensor first = gradients(false)[0];
    EXPECT_LE(error(first, wanted[1]), limit) << label;
    EXPECT_EQ(error(gradients(false)[0], first.to(cpu()).to(Float64)), 0) << label;
    EXPECT_LE(error(gradients(true)[0], wanted[0]), limit) << label;
  }
};

TEST_F(Sm90Windows, AgainstFloat64) {
  for (const Size& s : {Size{1, 8, 8, 1, 1, 1, 1, {{1, 1}, {0, 0}, {1, 1}}},
                        {3, 24, 40, 7, 5, 1, 1, {{1, 1}, {0, 0}, {1, 1}}},
                        {1, 64, 64, 7, 5, 3, 3, {{1, 1}, {0, 1}, {1, 1}}},
                        {3, 72, 264, 14, 14, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
                        {2, 64, 24, 9, 14, 1, 5, {{1, 1}, {0, 2}, {1, 1}}},
                        {2, 64, 24, 9, 14, 5, 1, {{1, 1}, {3, 0}, {1, 1}}},
                        {3, 256, 72, 7, 5, 5, 5, {{1, 1}, {2, 3}, {1, 1}}},
                        {2, 8, 16, 30, 29, 7, 7, {{2, 2}, {3, 3}, {1, 1}}},
                        {32, 64, 64, 1, 1, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
                        {3, 72, 24, 11, 17, 3, 3, {{3, 2}, {2, 3}, {2, 1}}},
                        {2, 40, 72, 14, 14, 3, 3, {{1, 1}, {2, 3}, {2, 3}}},
                        {32, 64, 128, 14, 14, 3, 3, {{2, 2}, {1, 1}, {1, 1}}},
                        {3, 24, 40, 13, 9, 1, 1, {{3, 2}, {0, 1}, {1, 1}}},
                        {2, 16, 72, 12, 19, 4, 3, {{2, 3}, {1, 2}, {2, 3}}},
                        {5, 40, 64, 33, 3, 2, 5, {{8, 1}, {0, 4}, {1, 2}}},
                        {1, 16, 40, 100, 3, 3, 2, {{1, 1}, {1, 1}, {1, 1}}},
                        {32, 24, 16, 28, 28, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
                        {32, 64, 64, 28, 28, 3, 3, {{1, 1}, {1, 1}, {1, 1}}},
                        {40, 128, 520, 14, 14, 3, 3, {{1, 1}, {1, 1}, {1, 1}}}})
    for (DType dtype : {Float16, BFloat16})
      for (bool channels_last : {true, false}) check(s, dtype, channels_last);
}

// What is made of images with their channels last lies so, too, so that nothing is copied from one to the next.
TEST_F(Sm90Windows, KeepsChannelsLast) {
  const auto lies_last = [](const Tensor& t) { return t.strides()[1] == 1 && t.strides()[3] == t.size(1); };
  const Conv2dOptions options{{1, 1}, {0, 1}, {1, 1}};
  const Tensor exact = values({2, 16, 9, 7}, Float16), filters = values({72, 16, 3, 3}, Float16);
  const Tensor want = conv2d(exact, filters, {}, options);
  const ForceKernel forward("conv2d", "sm90.as-they-lie"), weights("conv2d_weight_grad", "sm90.as-they-lie"),
      images("conv2d_input_grad", "sm90.as-they-lie");
  const Tensor x = there(exact, Float16, true).set_requires_grad(),
               w = there(filters, Float16, false).set_requires_grad();
  const Tensor y = conv2d(x, w, {}, options);
  EXPECT_LE(error(y.detach(), want), 6e-4);
  const Tensors gradients = grad({y}, {x, w}, {y.detach()}, true);
  for (const Tensor& t : {y, relu(y), y + relu(y), cast(y, Float32), y * 2.0, gradients[0]})
    EXPECT_TRUE(lies_last(t)) << describe(t);
  EXPECT_TRUE(contiguous(y).is_contiguous());
  EXPECT_TRUE(gradients[1].is_contiguous());
  EXPECT_EQ(error(contiguous(y).detach(), y.detach().to(cpu()).to(Float64)), 0);
}

TEST_F(Sm90Windows, RefusesWhatItDoesNotTake) {
  const Size good{2, 16, 24, 9, 9, 3, 3, {{1, 1}, {1, 1}, {1, 1}}};
  EXPECT_EQ(refusal(good), "no error");
  const auto changed = [&](auto change) {
    Size s = good;
    change(s);
    return refusal(s);
  };
  const auto is_refused = [](const std::string& why) { return why.find("shapes") != std::string::npos; };
  EXPECT_TRUE(is_refused(changed([](Size& s) { s.channels = 12; })));
  EXPECT_TRUE(is_refused(changed([](Size& s) { s.filters = 12; })));
  EXPECT_TRUE(is_refused(changed([](Size& s) { s.options.padding[0] = 129; })));
  EXPECT_TRUE(is_refused(changed([](Size& s) { s.height = 99, s.options.stride[0] = 9; })));
  EXPECT_TRUE(is_refused(changed([](Size& s) { s.options.groups = 2; })));
  EXPECT_NE(refusal(good, Float32).find("dtype"), std::string::npos);
}

}  // namespace
}  // namespace tessera
