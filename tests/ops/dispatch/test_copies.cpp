// Copies on the CPU: few planes that become the channels of one image, and rows that are put together.
#include <gtest/gtest.h>

#include "tessera/ops.h"

namespace tessera {
namespace {

// x[i], row-major, is i: so that elements say where they were.
Tensor numbered(const Shape& shape, DType dtype) {
  return reshape(remainder(arange(0, static_cast<double>(shape.numel().value()), 1, Float64), full({}, 251, Float64)),
                 shape)
      .to(dtype);
}

TEST(Copies, PlanesBecomeChannels) {
  for (const DType dtype : {UInt8, Float16, Float32, Float64})
    for (const int64_t channels : {1, 2, 3, 4, 5, 17})
      for (const int64_t pixels : {1, 3, 4, 64, 5000}) {
        const Tensor x = numbered({2, channels, pixels}, dtype), y = contiguous(permute(x, {0, 2, 1}));
        const auto from = x.to(Float64).to_vector<double>(), to = y.to(Float64).to_vector<double>();
        for (int64_t n = 0, at = 0; n < 2; ++n)
          for (int64_t p = 0; p < pixels; ++p)
            for (int64_t c = 0; c < channels; ++c, ++at)
              ASSERT_EQ(to[static_cast<size_t>(at)], from[static_cast<size_t>((n * channels + c) * pixels + p)])
                  << describe(x) << " at " << n << ", " << p << ", " << c;
        EXPECT_EQ(contiguous(permute(y, {0, 2, 1})).to(Float64).to_vector<double>(), from);
      }
}

TEST(Copies, RowsArePutTogether) {
  const int64_t rows = 37;
  for (const DType dtype : {UInt8, Float16, Float32, Float64}) {
    Tensors parts;
    int64_t width = 0;
    for (const int64_t columns : {1, 7, 15, 16, 17, 33, 64, 100, 1030}) {
      parts.push_back(numbered({rows, columns}, dtype));
      width += columns;
    }
    const Tensor y = concat(parts, 1);
    ASSERT_EQ(y.shape(), (Shape{rows, width}));
    const auto all = y.to(Float64).to_vector<double>();
    int64_t begin = 0;
    for (const Tensor& part : parts) {
      const auto want = part.to(Float64).to_vector<double>();
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < part.size(1); ++c)
          ASSERT_EQ(all[static_cast<size_t>(r * width + begin + c)], want[static_cast<size_t>(r * part.size(1) + c)]);
      EXPECT_EQ(contiguous(slice(y, 1, begin, begin + part.size(1))).to(Float64).to_vector<double>(), want);
      begin += part.size(1);
    }
  }
}

TEST(Copies, OfNothingReadNothing) {
  const Tensor x = concat({zeros({3, 0}), zeros({3, 4}), zeros({3, 0})}, 1);
  EXPECT_EQ(contiguous(slice(x, 1, 1, 1)).shape(), (Shape{3, 0}));
  EXPECT_EQ(contiguous(permute(zeros({2, 0, 5}), {2, 0, 1})).shape(), (Shape{5, 2, 0}));
}

}  // namespace
}  // namespace tessera
