// Windows of planes, resizing and padding on a GPU, if there is one, against float64 on the CPU.
#include <fmt/format.h>

#include "ops/gpu_against_float64.h"
#include "tessera/ops_image.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_pool.h"

namespace tessera {
namespace {

class GpuPlanes : public GpuAgainstFloat64 {
 protected:
  static constexpr DType dtypes[] = {Float32, Float64, Float16, BFloat16};
  static double limit(DType dtype) {
    return dtype == Float64 ? 1e-12 : dtype == Float32 ? 1e-5 : dtype == Float16 ? 1e-3 : 8e-3;
  }

  /// fn(x) and its gradient.
  template <class Fn>
  void check(const Fn& fn, const Tensor& x, DType dtype) {
    const auto run = [&](const Tensors& in) { return fn(in[0]); };
    const Tensor want = fn(x), g = values(want.shape(), dtype);
    const Tensor near = x.to(dtype).to(card()), got = fn(near);
    EXPECT_EQ(got.dtype(), dtype);
    EXPECT_LE(error(got, want), limit(dtype));
    EXPECT_LE(error(gradients(run, {near}, g.to(dtype).to(card()))[0], gradients(run, {x}, g)[0]), limit(dtype));
  }
  /// Of numbers that differ in every dtype.
  Tensor different(const Shape& shape) {
    const int64_t count = shape.numel().value();
    const Tensor order = argsort(uniform64({count}, generator));
    return reshape(add(remainder(order.to(Float64), full({}, 251, Float64)), -125), shape);
  }
};

TEST_F(GpuPlanes, MaximaAndTheirPlaces) {
  const Windows all[] = {{.size = {3, 3}, .stride = {2, 2}, .low = {1, 1}, .high = {1, 1}},
                         {.size = {2, 3}, .stride = {3, 1}, .dilation = {2, 1}},
                         {.size = {7, 9}, .stride = {1, 2}},
                         {.size = {3, 2}, .stride = {2, 2}, .low = {0, 1}, .high = {2, 0}, .ceil = true}};
  for (const DType dtype : dtypes)
    for (const Windows& w : all) {
      const Tensor x = different({2, 3, 13, 19});
      const auto want = max_pool_with_indices(x, w), got = max_pool_with_indices(x.to(dtype).to(card()), w);
      EXPECT_EQ(error(got.first, want.first), 0);
      EXPECT_EQ(got.second.to(cpu()).to_vector<int64_t>(), want.second.to_vector<int64_t>());
      check([&](const Tensor& t) { return max_pool_with_indices(t, w).first; }, x, dtype);
    }
  const Windows deep{.size = {2, 3, 2}, .stride = {2, 2, 1}, .low = {0, 1, 1}, .high = {0, 1, 1}};
  check([&](const Tensor& t) { return max_pool_with_indices(t, deep).first; }, different({2, 3, 5, 7, 6}), Float32);
  check([&](const Tensor& t) { return max_pool(t, deep); }, different({2, 3, 5, 7, 6}), Float32);
  check([&](const Tensor& t) { return max_pool(t, all[3]); }, different({2, 3, 13, 19}), Float16);
  const Windows line{.size = {64}, .stride = {5}};
  check([&](const Tensor& t) { return max_pool_with_indices(t, line).first; }, different({3, 5, 311}), Float32);
}

TEST_F(GpuPlanes, MaximaOfNumbersThatAreNone) {
  const Tensor x = tensor<float>({1, NAN, 3, NAN, 2, 0, -INFINITY, -INFINITY}, {1, 1, 8});
  const Windows w{.size = {4}, .stride = {2}};
  const auto [y, places] = max_pool_with_indices(x.to(card()), w);
  EXPECT_EQ(places.to(cpu()).to_vector<int64_t>(), (std::vector<int64_t>{3, 3, 4}));
}

TEST_F(GpuPlanes, AdaptivePools) {
  for (const DType dtype : dtypes) {
    check([](const Tensor& x) { return adaptive_max_pool(x, {5}); }, different({3, 4, 211}), dtype);
    check([](const Tensor& x) { return adaptive_max_pool(x, {5, 4}); }, different({3, 4, 13, 9}), dtype);
    check([](const Tensor& x) { return adaptive_max_pool(x, {3, 5, 2}); }, different({2, 3, 7, 5, 9}), dtype);
    check([](const Tensor& x) { return adaptive_avg_pool(x, {5}); }, values({3, 4, 211}, dtype), dtype);
    check([](const Tensor& x) { return adaptive_avg_pool(x, {5, 4}); }, values({3, 4, 13, 9}, dtype), dtype);
    check([](const Tensor& x) { return adaptive_avg_pool(x, {3, 5, 2}); }, values({2, 3, 7, 5, 9}, dtype), dtype);
  }
}

TEST_F(GpuPlanes, Folds) {
  const Windows w{.size = {3, 2}, .stride = {2, 1}, .low = {1, 0}, .high = {1, 1}, .dilation = {1, 2}};
  for (const DType dtype : dtypes)
    check([&](const Tensor& x) { return fold(x, {9, 7}, w); }, values({2, 18, 30}, dtype), dtype);
  check([](const Tensor& x) { return fold(x, {11}, {.size = {3}}); }, values({2, 6, 9}, Float32), Float32);
}

TEST_F(GpuPlanes, ResizesAndPads) {
  for (const DType dtype : {Float32, Float16}) {
    const Tensor x = values({2, 3, 11, 14}, dtype), line = values({2, 3, 37}, dtype);
    for (const auto mode : {Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic}) {
      check([&](const Tensor& t) { return resize(t, {2, 3}, {22, 28}, {.interpolation = mode}); }, x, dtype);
      check([&](const Tensor& t) { return resize(t, {2, 3}, {7, 33}, {.interpolation = mode}); }, x, dtype);
      check([&](const Tensor& t) { return resize(t, {2}, {75}, {.interpolation = mode}); }, line, dtype);
    }
    const Tensor volumes = values({2, 3, 5, 7, 9}, dtype);
    for (const auto& sizes : {Shape{10, 14, 18}, Shape{9, 3, 11}, Shape{1, 7, 20}}) {
      const ResizeOptions linear{.interpolation = Interpolation::Linear};
      check([&](const Tensor& t) { return resize(t, {2, 3, 4}, sizes, linear); }, volumes, dtype);
    }
    for (const auto mode : {Padding::Edge, Padding::Reflect, Padding::Wrap}) {
      check([&](const Tensor& t) { return pad(t, {3, 1}, {0, 2}, mode); }, x, dtype);
      check([&](const Tensor& t) { return pad(t, {2}, {3}, mode); }, line, dtype);
    }
  }
}

TEST_F(GpuPlanes, AddsManyRowsToPlaces) {
  for (const DType dtype : {Float32, Float64, BFloat16})
    for (const int64_t dim : {0, 1}) {
      const Tensor x = values({37, 41}, dtype), index = indices({500}, 37, generator);
      const Tensor source = values(dim == 0 ? Shape{500, 41} : Shape{37, 500}, dtype);
      const Tensor want = index_add(x, dim, index, source);
      const auto run = [&] {
        return index_add(x.to(dtype).to(card()), dim, index.to(card()), source.to(dtype).to(card())).to(cpu());
      };
      const Tensor got = run();
      EXPECT_LE(error(got, want), limit(dtype));
      EXPECT_EQ(error(run(), got.to(Float64)), 0);
      allow_nondeterministic(true);
      EXPECT_LE(error(run(), want), limit(dtype)) << "in any order";
      allow_nondeterministic(false);
    }
}

TEST_F(GpuPlanes, TurnsRowsOfAnyLength) {
  for (const DType dtype : dtypes)
    for (const int64_t columns : {1, 3, 4, 85, 130}) {
      const Tensor x = values({7, 11, columns}, dtype), there = x.to(dtype).to(card());
      for (const Dims& dims : {Dims{2}, Dims{0, 2}, Dims{0, 1, 2}, Dims{1}})
        EXPECT_EQ(error(flip(there, dims), flip(x, dims)), 0) << columns;
      EXPECT_EQ(error(repeat(there, {2, 1, 3}), repeat(x, {2, 1, 3})), 0) << columns;
    }
}

TEST_F(GpuPlanes, WritesOneValueToPlaces) {
  const Tensor x = values({3, 40}, Float32), index = indices({3, 30}, 40, generator), value = full({}, 0.5, Float64);
  const Tensor one = full({}, 0.5, Float32, card());
  const Tensor got = scatter(x.to(Float32).to(card()), 1, index.to(card()), expand(one, {3, 30}));
  EXPECT_EQ(error(got, scatter(x, 1, index, expand(value, {3, 30}).contiguous())), 0);
}

TEST_F(GpuPlanes, CollectsNeighboursThatLieApart) {
  for (const DType dtype : dtypes)
    for (const int64_t factor : {2, 3, 4, 5}) {
      const Tensor x = values({2, 2 * factor * factor, 7, 13}, dtype), near = x.to(dtype).to(card());
      EXPECT_EQ(error(pixel_shuffle(near, factor), pixel_shuffle(x, factor)), 0);
      EXPECT_EQ(error(repeat_interleave(near, factor, 1), repeat_interleave(x, factor, 1)), 0);
      const Dims order{3, 2, 0, 1};
      EXPECT_EQ(error(permute(near, order).contiguous(), permute(x, order).contiguous()), 0);
    }
}

TEST_F(GpuPlanes, CombinesLongLines) {
  const Tensor x = values({3, 40}, Float32), index = indices({3, 300}, 40, generator);
  const Tensor source = add(mul(values({3, 300}, Float32), 0.01), 1);
  for (const auto how : {ScatterReduction::Sum, ScatterReduction::Prod, ScatterReduction::Max, ScatterReduction::Min}) {
    const auto run = [&] {
      return scatter_reduce(x.to(Float32).to(card()), 1, index.to(card()), source.to(Float32).to(card()), how, true);
    };
    const Tensor got = run().to(cpu());
    EXPECT_LE(error(got, scatter_reduce(x, 1, index, source.to(Float32).to(Float64), how, true)), 1e-5);
    EXPECT_EQ(error(run(), got.to(Float64)), 0);
  }
}

}  // namespace
}  // namespace tessera
