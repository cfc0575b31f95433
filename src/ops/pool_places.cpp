#include "ops/pool_places.h"

#include <cmath>

#include "ops/on_host.h"
#include "ops/precise.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// The largest of some elements, and NaN where one of them is NaN. Runs go in strips, which become vectors; the last one
// lies over the one before.
template <class T>
class Largest {
 public:
  void add(const T* x, int64_t count, int64_t step) {
    if (step != 1 || count < half) {
      for (int64_t i = 0; i < count; ++i) single_ = larger(single_, x[i * step]);
      return;
    }
    strips_ = true;
    if (count < strip) return add_strip(x, x + count - half);
    for (int64_t i = 0; i + strip <= count; i += strip) add_strip(x + i, x + i + half);
    if (count % strip) add_strip(x + count - strip, x + count - half);
  }
  T get() const {
    T best = single_;
    if (!strips_) return best;
    for (const T v : lanes_)
      if (best == best) best = larger(best, v);
    return best;
  }

 private:
  static constexpr int64_t strip = 8, half = strip / 2;
  static constexpr T low = -static_cast<T>(INFINITY);
  static T larger(T a, T v) { return a >= v || a != a ? a : v; }
  void add_strip(const T* x, const T* y) {
    for (int64_t k = 0; k < half; ++k) lanes_[k] = larger(lanes_[k], x[k]);
    for (int64_t k = 0; k < half; ++k) lanes_[half + k] = larger(lanes_[half + k], y[k]);
  }
  bool strips_ = false;
  T single_ = low, lanes_[strip] = {low, low, low, low, low, low, low, low};
};

// Three dims, of which the first may be 1.
struct PlaneWindow {
  int64_t first[3], count[3], step[3], size[3];
  int64_t run(int64_t i, int64_t j) const {
    return ((first[0] + i * step[0]) * size[1] + first[1] + j * step[1]) * size[2] + first[2];
  }
  template <class Fn>
  void each_run(const Fn& fn) const {
    for (int64_t i = 0; i < count[0]; ++i)
      for (int64_t j = 0; j < count[1]; ++j) fn(run(i, j));
  }
};

template <class T>
int64_t place_in_box(const T* plane, const PlaneWindow& box) {
  Largest<T> largest;
  box.each_run([&](int64_t at) { largest.add(plane + at, box.count[2], box.step[2]); });
  const T best = largest.get();
  const bool bad = best != best;
  int64_t found = -1;
  for (int64_t i = 0; i < box.count[0]; ++i)
    for (int64_t j = 0; j < box.count[1]; ++j) {
      const int64_t at = box.run(i, j);
      for (int64_t k = 0; k < box.count[2]; ++k) {
        const int64_t place = at + k * box.step[2];
        if (bad ? plane[place] == plane[place] : plane[place] != best) continue;
        found = place;
        if (!bad) return found;
      }
    }
  return found;
}

template <class T>
void find_places(const Tensor& x, const std::vector<WindowLine>& lines, const Tensor& places) {
  static const WindowLine one{{0}, {1}, 1};
  const WindowLine* along[3] = {&one, &one, &one};
  PlaneWindow whole{{}, {}, {}, {1, 1, 1}};
  for (size_t d = 0; d < lines.size(); ++d) {
    along[3 - lines.size() + d] = &lines[d];
    whole.size[3 - lines.size() + d] = x.size(static_cast<int64_t>(2 + d));
  }
  int64_t windows = 1, taps = 1, plane = 1;
  for (int d = 0; d < 3; ++d) {
    whole.step[d] = along[d]->step;
    windows *= static_cast<int64_t>(along[d]->first.size());
    taps *= along[d]->count[0];
    plane *= whole.size[d];
  }
  each_part(x.size(0) * x.size(1), windows * taps * 2, [&](int64_t begin, int64_t end) {
    int64_t* to = places.data<int64_t>() + begin * windows;
    const T* const all = x.data<T>();
    PlaneWindow box = whole;
    const auto set = [&](int d, size_t i) { box.first[d] = along[d]->first[i], box.count[d] = along[d]->count[i]; };
    for (int64_t p = begin; p < end; ++p)
      for (size_t i = 0; i < along[0]->first.size(); ++i) {
        set(0, i);
        for (size_t j = 0; j < along[1]->first.size(); ++j) {
          set(1, j);
          for (size_t k = 0; k < along[2]->first.size(); ++k) {
            set(2, k);
            *to++ = place_in_box(all + p * plane, box);
          }
        }
      }
  });
}

}  // namespace

Tensor places_of_largest(const Tensor& x, const std::vector<WindowLine>& lines) {
  const auto forward = [lines](const Tensors& in) {
    const Tensor from = contiguous(cast(in[0], in[0].dtype() == Float64 ? Float64 : Float32));
    Shape shape{from.shape()[0], from.shape()[1]};
    for (const WindowLine& line : lines) shape.push_back(static_cast<int64_t>(line.first.size()));
    const Tensor places = empty(shape, Int64);
    if (places.numel() == 0) return Tensors{places};
    if (from.dtype() == Float64) find_places<double>(from, lines, places);
    else find_places<float>(from, lines, places);
    return Tensors{places};
  };
  return custom_function("places_of_largest", {x.detach()}, forward, {})[0];
}

}  // namespace tessera
