// Windows of planes, as one thread takes them and as several share them.
#include "tile/kernels/planes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tessera::tile {
namespace {

PlaneWindows windows_of(PlaneLine depth, PlaneLine rows, PlaneLine columns) { return {{depth, rows, columns}}; }
const PlaneWindows kWindows[] = {
    windows_of({1, 1, 1, 1, 1, 0}, {13, 4, 7, 2, 1, 1}, {11, 3, 5, 3, 1, 2}),
    windows_of({5, 2, 0, 1, 1, 0}, {6, 4, 0, 1, 1, 0}, {7, 3, 0, 1, 1, 0}),
    windows_of({6, 3, 2, 2, 3, 1}, {9, 5, 3, 1, 2, 0}, {8, 4, 3, 2, 1, 1}),
};

std::vector<float> plane_of(const PlaneWindows& p, bool with_nan, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> value(-4, with_nan ? 5 : 4);  // many are equal
  std::vector<float> x(static_cast<size_t>(p.elements()));
  for (float& v : x) v = static_cast<float>(value(generator));
  if (with_nan)
    for (float& v : x) v = v == 5 ? NAN : v;
  return x;
}

TEST(Planes, ThreadsTogetherFindWhatOneDoes) {
  for (const PlaneWindows& p : kWindows)
    for (const bool with_nan : {false, true}) {
      const std::vector<float> x = plane_of(p, with_nan, 7);
      for (i32 i = 0; i < p.windows(); ++i) {
        LargestPlace<float> together{0};
        for (i32 lane = 31; lane >= 0; --lane) {
          const auto part = largest_in_window<float>(p, i, x.data(), lane, 32);
          if (part.place >= 0) together.add(part.value, part.place);
        }
        EXPECT_EQ(together.place, largest_in_window<float>(p, i, x.data(), 0, 1).place) << i;
      }
    }
}

TEST(Planes, GradientsReachEachPlaceOnce) {
  for (const PlaneWindows& p : kWindows) {
    const std::vector<float> x = plane_of(p, false, 11);
    std::vector<i64> places;
    std::vector<float> dy, want(x.size(), 0);
    for (i32 i = 0; i < p.windows(); ++i) {
      places.push_back(largest_in_window<float>(p, i, x.data(), 0, 1).place);
      dy.push_back(static_cast<float>(i + 1));
      want[static_cast<size_t>(places.back())] += dy.back();
    }
    for (i32 at = 0; at < p.elements(); ++at)
      EXPECT_EQ(gradient_of_place<float>(p, at, dy.data(), places.data()), want[static_cast<size_t>(at)]) << at;
  }
}

}  // namespace
}  // namespace tessera::tile
