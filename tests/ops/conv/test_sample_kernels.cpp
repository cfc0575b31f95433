// The operators behind grid_sample() and roi_align() on GPUs, which run on CPUs, too.
#include "core/sample_attrs.h"
#include "ops/op_table.h"
#include "ops/ops_check.h"
#include "tessera/autograd.h"
#include "tessera/ops_image.h"

namespace tessera {
namespace {

const Op& op(std::string_view name) { return find_op(name); }

TEST(SampleKernels, AreWhatIsMadeOfOperators) {
  Generator g(6);
  const Tensor x = normal64({2, 9, 5, 6}, g), grid = uniform64({2, 4, 3, 2}, g, -1.5, 1.5);
  const auto both = [&](const auto& fn) {
    const Tensors in{x.detach().set_requires_grad(), grid.detach().set_requires_grad()};
    const Tensor y = fn(in);
    Tensors all{y.detach()};
    for (const Tensor& t : grad({sum(square(y))}, in)) all.push_back(t);
    return all;
  };
  for (const int64_t interpolation : {1, 2})
    for (const int64_t beyond : {0, 1, 2}) {
      const Tensors want = both([&](const Tensors& in) {
        return grid_sample(in[0], in[1], {static_cast<Interpolation>(interpolation), static_cast<Beyond>(beyond)});
      });
      const Tensors got = both([&](const Tensors& in) {
        return dispatch_one(op("grid_sample"), Tensors(in), GridSampleAttrs{interpolation, beyond, false});
      });
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(relative_error(got[i], want[i]), 1e-12) << interpolation << beyond << " " << i;
    }
}

TEST(SampleKernels, SayWhatTheyDoNotTake) {
  const Tensor x = zeros({1, 2, 4, 5}), grid = zeros({1, 3, 3, 2});
  const auto sampled = [&](const Tensor& image, const Tensor& points, const GridSampleAttrs& attrs) {
    return error_of([&] { dispatch_one(op("grid_sample"), {image, points}, attrs); });
  };
  EXPECT_EQ(sampled(x, grid, {3, 0, false}), "grid_sample: interpolation must be 0, 1 or 2, not 3");
  EXPECT_EQ(sampled(x, grid, {1, -1, false}), "grid_sample: beyond must be 0, 1 or 2, not -1");
  EXPECT_EQ(sampled(x, zeros({1, 3, 3, 3}), {}), "grid_sample: grid [1, 3, 3, 3] does not fit x [1, 2, 4, 5]");
  const auto aligned = [&](const Tensor& regions, const Tensor& batch, const RoiAlignAttrs& attrs) {
    return error_of([&] { dispatch_one(op("roi_align"), {x, regions, batch}, attrs); });
  };
  const Tensor regions = ones({2, 4}), batch = zeros({2}, Int64);
  EXPECT_EQ(aligned(zeros({2, 5}), batch, {}), "roi_align: regions must have shape [r, 4], not [2, 5]");
  EXPECT_EQ(aligned(regions, zeros({3}, Int64), {}), "roi_align: batch has shape [3], not [2]");
  EXPECT_EQ(aligned(regions, batch, {.rows = 0}), "roi_align: 0 rows and 1 columns");
}

}  // namespace
}  // namespace tessera
