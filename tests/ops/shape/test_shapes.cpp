// Functions that move elements, against their definitions.
#include <limits>

#include "ops/composed_check.h"
#include "ops/reference.h"
#include "tessera/ops_indexing.h"
#include "tessera/ops_shape.h"

namespace tessera {
namespace {

using reference::Index;

// Element i of the result is that of x at place(i).
template <class Place>
void expect_moved(const Tensor& got, const Tensor& x, const Shape& shape, const Place& place, const char* what) {
  ASSERT_EQ(to_string(got.shape()), to_string(shape)) << what;
  const Tensor want = reference::generate(shape, Float64, [&](const Index& i) { return reference::get(x, place(i)); });
  EXPECT_EQ(got.to_vector<double>(), want.to_vector<double>()) << what;
}

TEST(Shapes, Repeat) {
  Generator g(3);
  const Tensor x = uniform64({3, 1, 5}, g);
  for (const auto& counts : {std::array<int64_t, 4>{2, 1, 3, 2}, {1, 4, 1, 1}, {1, 1, 1, 1}, {1, 2, 0, 3}}) {
    const Shape shape = {counts[0], 3 * counts[1], counts[2], 5 * counts[3]};
    expect_moved(
        repeat(x, Dims(counts)), x, shape,
        [](const Index& i) {
          return Index{i[1] % 3, 0, i[3] % 5};
        },
        "repeat");
  }
  const Tensor deep = uniform64({2, 3, 2, 1, 2}, g);  // more dims than an operator has, if each were two
  expect_moved(
      repeat(deep, {2, 2, 3, 2, 2}), deep, {4, 6, 6, 2, 4},
      [](const Index& i) {
        return Index{i[0] % 2, i[1] % 3, i[2] % 2, 0, i[4] % 2};
      },
      "repeat of five dims");
  for (const Dims& counts : {Dims{2, 3, 1}, Dims{4, 3, 2, 2}, Dims{1, 2, 1}})
    expect_gradients([&](const Tensors& in) { return repeat(in[0], counts); }, {x}, "repeat");
  EXPECT_EQ(error_of([&] { repeat(x, {2, 2}); }), "repeat: [2, 2] are no counts for each dim of [3, 1, 5]");
  EXPECT_EQ(error_of([&] { repeat(x, {2, 2, -1}); }), "repeat: [2, 2, -1] are no counts for each dim of [3, 1, 5]");
}

TEST(Shapes, RepeatInterleave) {
  Generator g(5);
  const Tensor x = uniform64({3, 4}, g);
  expect_moved(
      repeat_interleave(x, 3, 1), x, {3, 12},
      [](const Index& i) {
        return Index{i[0], i[1] / 3};
      },
      "each");
  const int64_t from[] = {0, 0, 2, 2, 2, 3};
  const Tensor counts = tensor<int64_t>({2, 0, 3, 1}, {4});
  expect_moved(
      repeat_interleave(x, counts, -1), x, {3, 6},
      [&](const Index& i) {
        return Index{i[0], from[i[1]]};
      },
      "by counts");
  expect_gradients([&](const Tensors& in) { return repeat_interleave(in[0], counts, 1); }, {x}, "repeat_interleave");
  EXPECT_EQ(error_of([&] { repeat_interleave(x, -1, 0); }), "repeat_interleave: -1 times");
  EXPECT_EQ(error_of([&] { repeat_interleave(x, counts, 0); }),
            "repeat_interleave: i64[4] on cpu are no counts for dim 0 of [3, 4]");
  EXPECT_EQ(error_of([&] { repeat_interleave(x, -counts, 1); }), "repeat_interleave: a count is negative");
}

TEST(Shapes, Roll) {
  Generator g(7);
  const Tensor x = uniform64({3, 5}, g);
  for (int64_t shift : {0, 1, 4, 5, -2, 13})
    expect_moved(
        roll(x, {shift, -1}, {1, 0}), x, {3, 5},
        [=](const Index& i) {
          return Index{(i[0] + 1) % 3, ((i[1] - shift) % 5 + 5) % 5};
        },
        "roll");
  EXPECT_EQ(error_of([&] { roll(x, {1}, {0, 1}); }), "roll: 1 shifts for 2 dims");
}

TEST(Shapes, Diagonals) {
  Generator g(9);
  const Tensor x = uniform64({3, 2, 5}, g);
  for (int64_t offset = -4; offset <= 6; ++offset) {
    const int64_t row = std::max<int64_t>(-offset, 0), column = std::max<int64_t>(offset, 0);
    const int64_t count = std::max<int64_t>(0, std::min(3 - row, 5 - column));
    expect_moved(
        diagonal(x, offset, 0, 2), x, {2, count},
        [=](const Index& i) {
          return Index{i[1] + row, i[0], i[1] + column};
        },
        "diagonal");
    expect_moved(
        diagonal(x, offset, 2, 0), x, {2, std::max<int64_t>(0, std::min(5 - row, 3 - column))},
        [=](const Index& i) {
          return Index{i[1] + column, i[0], i[1] + row};
        },
        "turned");
  }
  expect_gradients([](const Tensors& in) { return diagonal(in[0], 1, -1, 0); }, {x}, "diagonal");
  EXPECT_EQ(error_of([&] { diagonal(x, 0, 1, 1); }), "diagonal: dim 1 of [3, 2, 5] twice");
}

TEST(Shapes, Made) {
  for (int64_t offset : {-2, 0, 1, 9}) {
    const Tensor want =
        reference::generate({3, 4}, Float64, [=](const Index& i) { return i[0] + offset == i[1] ? 1 : 0; });
    EXPECT_EQ(eye(3, 4, offset, Int32).to_vector<double>(), want.to_vector<double>());
  }
  for (const int64_t offset : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()})
    EXPECT_EQ(sum(eye(3, 4, offset)).item<float>(), 0);
  EXPECT_EQ(to_string(eye(0).shape()), "[0, 0]");
  for (int64_t n : {0, 1, 2, 7, 100}) {
    const auto got = linspace(-1, 0.3, n, Float64).to_vector<double>();
    for (int64_t i = 0; i < n; ++i)
      EXPECT_NEAR(got[static_cast<size_t>(i)], n > 1 ? -1 + 1.3 * double(i) / double(n - 1) : -1, 1e-15);
    if (n > 1) {
      EXPECT_EQ(got.back(), 0.3);
    }
  }
  const Tensor a = arange(0, 3), b = arange(5, 9);
  const Tensors grid = meshgrid({a, b}), turned = meshgrid({a, b}, true);
  expect_moved(
      grid[0], a, {3, 4}, [](const Index& i) { return Index{i[0]}; }, "rows");
  expect_moved(
      grid[1], b, {3, 4}, [](const Index& i) { return Index{i[1]}; }, "columns");
  expect_moved(
      turned[0], a, {4, 3}, [](const Index& i) { return Index{i[1]}; }, "swapped");
  EXPECT_EQ(error_of([] { eye(-2); }), "eye: -2 rows and -2 columns");
  EXPECT_EQ(error_of([] { linspace(0, 1, -1); }), "linspace: -1 steps");
  EXPECT_EQ(error_of([&] { meshgrid({a, ones({2, 2})}); }), "meshgrid: [2, 2] is not 1-d");
}

// Results that go past the caches: fills, copies backwards, rows at places, and numbers counted from both ends.
TEST(Shapes, LargerThanCaches) {
  const int64_t n = 1'700'003, width = 16, rows = 120'001;
  for (const DType dtype : {Float32, Float64, Int8}) {
    const Tensor all = full({n * 8}, 3, dtype);
    EXPECT_EQ(amin(cast(all, Float32)).item<double>(), 3);
    EXPECT_EQ(amax(cast(all, Float32)).item<double>(), 3);
  }
  for (const DType dtype : {Float32, Int64}) {
    const auto got = flip(arange(0, static_cast<double>(n), 1, dtype), {0}).to_vector<double>();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<double>(n - 1 - i)) << i;
  }
  Generator g(9);
  const Tensor weight = normal64({50, width}, g).to(Float32);
  const Tensor places = remainder(arange(0, static_cast<double>(rows), 1, Int64) * 7.0, full({}, 50, Int64));
  const auto found = embedding(places, weight).to_vector<double>(), w = weight.to_vector<double>();
  for (int64_t i = 0; i < rows * width; ++i)
    ASSERT_EQ(found[static_cast<size_t>(i)], w[static_cast<size_t>(i / width * 7 % 50 * width + i % width)]) << i;
  const auto line = linspace(-1, 0.3, n, Float32).to_vector<double>();
  for (int64_t i = 0; i < n; ++i)
    ASSERT_NEAR(line[static_cast<size_t>(i)], -1 + 1.3 * static_cast<double>(i) / static_cast<double>(n - 1), 6e-8);
}

// As Python's range of slice.indices.
TEST(Shapes, SlicesBackwards) {
  const Tensor x = arange(0, 7);
  for (int64_t step : {-3, -2, -1, 1, 2})
    for (int64_t start = -9; start <= 9; ++start)
      for (int64_t end = -9; end <= 9; ++end) {
        const int64_t least = step < 0 ? -1 : 0, most = step < 0 ? 6 : 7;
        const int64_t first = std::clamp(start < 0 ? start + 7 : start, least, most);
        const int64_t last = std::clamp(end < 0 ? end + 7 : end, least, most);
        std::vector<int64_t> want;
        for (int64_t i = first; step < 0 ? i > last : i < last; i += step) want.push_back(i);
        EXPECT_EQ(slice_by(x, 0, start, end, step).to_vector<int64_t>(), want) << start << " " << end << " " << step;
      }
  EXPECT_EQ(slice_by(x, 0, INT64_MAX, INT64_MIN, -1).numel(), 7);
  EXPECT_EQ(slice_by(x, 0, INT64_MAX, INT64_MIN, INT64_MIN).to_vector<int64_t>(), (std::vector<int64_t>{6}));
  EXPECT_EQ(error_of([&] { slice_by(x, 0, 0, 1, 0); }), "slice_by: the step is 0");
}

TEST(Shapes, MovesAndTakesDims) {
  Generator g(11);
  const Tensor x = uniform64({2, 3, 4, 5}, g);
  expect_moved(
      movedim(x, 0, 2), x, {3, 4, 2, 5},
      [](const Index& i) {
        return Index{i[2], i[0], i[1], i[3]};
      },
      "back");
  expect_moved(
      movedim(x, -1, 1), x, {2, 5, 3, 4},
      [](const Index& i) {
        return Index{i[0], i[2], i[3], i[1]};
      },
      "front");
  const Tensors parts = unbind(x, 1);
  ASSERT_EQ(parts.size(), 3u);
  expect_moved(
      parts[2], x, {2, 4, 5},
      [](const Index& i) {
        return Index{i[0], 2, i[1], i[2]};
      },
      "unbind");
  EXPECT_EQ(error_of([&] { movedim(x, 4, 0); }), "movedim: dim 4 is out of range for [2, 3, 4, 5]");
}

}  // namespace
}  // namespace tessera
