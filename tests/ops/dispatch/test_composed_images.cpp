// Functions of images and sequences are captured for any number of images, and give eager's results.
#include <algorithm>

#include "ops/capture.h"
#include "ops/ops_check.h"
#include "tessera/ops_image.h"
#include "tessera/ops_recurrent.h"
#include "tessera/ops_signal.h"

namespace tessera {
namespace {

struct OfImages {
  const char* name;
  std::function<Tensor(const Tensor&)> run;
};

// Of x [n, 4, 6, 8].
std::vector<OfImages> functions_of_images() {
  static Generator g(5);
  const Tensor weight = uniform64({6, 4, 3, 3}, g).to(Float32), transposed = uniform64({4, 2, 3, 3}, g).to(Float32);
  const Tensor line = uniform64({6, 4, 3}, g).to(Float32), deep = uniform64({2, 2, 2, 3, 3}, g).to(Float32);
  const Tensor grid = uniform64({5, 5, 2}, g).to(Float32);
  const Windows uneven{.size = {3, 2}, .stride = {2, 2}, .low = {0, 1}, .high = {1, 0}, .ceil = true};
  const auto as_volume = [](const Tensor& x) { return reshape(x, {x.shape()[0], 2, 2, 6, 8}); };
  const auto grids = [=](const Tensor& x) { return expand(grid, {x.shape()[0], 5, 5, 2}); };
  return {
      {"unfold",
       [](const Tensor& x) {
         return unfold(x, {.size = {2, 3}, .stride = {2, 1}});
       }},
      {"max_pool", [=](const Tensor& x) { return max_pool(x, uneven); }},
      {"indices", [=](const Tensor& x) { return max_pool_with_indices(x, uneven).second; }},
      {"avg_pool", [=](const Tensor& x) { return avg_pool(x, uneven, false); }},
      {"avg_pool of volumes",
       [=](const Tensor& x) {
         return avg_pool(as_volume(x), {.size = {2, 3, 3}});
       }},
      {"adaptive_avg_pool",
       [](const Tensor& x) {
         return adaptive_avg_pool(x, {4, 3});
       }},
      {"conv",
       [=](const Tensor& x) {
         return conv(x, weight, {}, {.low = {1, 0}, .high = {0, 2}});
       }},
      {"conv of lines", [=](const Tensor& x) { return conv(flatten(x, 2), line); }},
      {"conv of volumes", [=](const Tensor& x) { return conv(as_volume(x), deep); }},
      {"conv_transpose",
       [=](const Tensor& x) {
         return conv_transpose(x, transposed, {}, {.stride = {2, 2}, .low = {1, 0}, .high = {0, 0}});
       }},
      {"conv_transpose of volumes", [=](const Tensor& x) { return conv_transpose(as_volume(x), deep); }},
      {"resize",
       [](const Tensor& x) {
         return resize(x, {2, 3}, {9, 5}, {.interpolation = Interpolation::Cubic});
       }},
      {"antialias",
       [](const Tensor& x) {
         return resize(x, {2, 3}, {2, 3}, {.antialias = true});
       }},
      {"grid_sample", [=](const Tensor& x) { return grid_sample(x, grids(x)); }},
      {"pixel_shuffle", [](const Tensor& x) { return pixel_unshuffle(pixel_shuffle(x, 2), 2); }},
      {"channel_shuffle", [](const Tensor& x) { return channel_shuffle(x, 2); }},
      {"pad",
       [](const Tensor& x) {
         return pad(x, {2, -1}, {1, 3}, Padding::Reflect);
       }},
      {"local_response_norm", [](const Tensor& x) { return local_response_norm(x, 3); }},
      {"instance_norm", [](const Tensor& x) { return instance_norm(x); }},
      {"lp_normalize", [](const Tensor& x) { return lp_normalize(x, 2, 1); }},
      {"dft", [](const Tensor& x) { return dft(unsqueeze(x, -1), 3, {.onesided = true}); }},
      {"stft", [](const Tensor& x) { return stft(flatten(select(x, 1, 0), 1), hann_window(8), 4); }},
  };
}

// Eager resizing is a product with a sparse matrix, and eager transforms are fast ones, which round otherwise than the
// operators that are captured.
void expect_same(const OfImages& f, const Tensor& captured, const Tensor& eager) {
  constexpr std::string_view kRoundOtherwise[] = {"resize", "antialias", "dft", "stft"};
  if (std::ranges::count(kRoundOtherwise, f.name)) EXPECT_LE(relative_error(captured, eager), 1e-6);
  else EXPECT_EQ(captured.to_vector<double>(), eager.to_vector<double>());
}

TEST(OfImages, AreCapturedForAnyNumber) {
  Generator g(3);
  const Tensor x = uniform64({3, 4, 6, 8}, g, 0.05, 0.95).to(Float32);
  const Dim n = Dim::symbol("n", 1, 64);
  for (const OfImages& f : functions_of_images()) {
    SCOPED_TRACE(f.name);
    const auto fn = [&](const Tensors& in) { return Tensors{f.run(in[0])}; };
    const Program program = capture(fn, {empty({n, 4, 6, 8}, Float32, meta(cpu()))});
    const Tensor captured = program({x})[0], eager = f.run(x);
    expect_same(f, captured, eager);
    if (std::string_view(f.name) != "dft") continue;
    const Tensor exact = f.run(x.to(Float64));
    for (const Tensor& got : {captured, eager}) EXPECT_LE(relative_error(got, exact), 5e-7);
  }
}

TEST(OfImages, GoBackwardInCaptures) {
  Generator g(4);
  const Tensor x = uniform64({3, 4, 6, 8}, g, 0.05, 0.95).to(Float32);
  const Dim n = Dim::symbol("n", 1, 64);
  for (const OfImages& f : functions_of_images()) {
    if (std::string_view(f.name) == "indices") continue;
    SCOPED_TRACE(f.name);
    const auto fn = [&](const Tensors& in) {
      const Tensor leaf = in[0].detach().set_requires_grad();
      return Tensors{grad({sum(square(f.run(leaf)))}, {leaf})[0]};
    };
    expect_same(f, capture(fn, {empty({n, 4, 6, 8}, Float32, meta(cpu()))})({x})[0], fn({x})[0]);
  }
}

TEST(OfSequences, AreCapturedForAnyNumber) {
  Generator g(6);
  const auto random = [&](const Shape& shape) { return uniform64(shape, g).to(Float32); };
  const std::vector<RecurrentWeights> layers{
      {random({2, 12, 5}), random({2, 12, 3}), random({2, 12}), random({2, 12})}};
  const Tensor x = random({4, 2, 5}), lengths = tensor<int64_t>({4, 2}, {2});
  const auto fn = [&](const Tensors& in) {
    const RecurrentResult r = lstm(in[0], layers, {}, {}, in[1], {.direction = Direction::Both});
    return Tensors{r.output, r.hidden, r.cell};
  };
  const Dim n = Dim::symbol("n", 1, 64);
  const Program program =
      capture(fn, {empty({Dim(4), n, Dim(5)}, Float32, meta(cpu())), empty({n}, Int64, meta(cpu()))});
  const Tensors want = fn({x, lengths}), got = program({x, lengths});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(got[i].to_vector<double>(), want[i].to_vector<double>()) << i;
}

}  // namespace
}  // namespace tessera
