#include "ops/pad_on_host.h"

#include <memory>
#include <numeric>

#include "core/element.h"
#include "ops/on_host.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

using PlaceLists = std::vector<std::vector<int64_t>>;
using Kept = std::shared_ptr<const PlaceLists>;  // by the closures of all calls

// The shape of the padded dims on both sides, all dims before them as one.
struct RepeatedRows {
  const PlaceLists& places;
  std::vector<int64_t> sizes;  // of x
  int64_t outer = 1, from = 1, to = 1, begin = 0,
          end = 0;  // the last dim's places from begin to end are those of a row
  RepeatedRows(const Shape& x, const PlaceLists& p) : places(p) {
    const size_t first = x.size() - p.size();
    for (size_t d = 0; d < x.size(); ++d) {
      if (d < first) outer *= x[d].value();
      else sizes.push_back(x[d].value()), from *= x[d].value(), to *= static_cast<int64_t>(p[d - first].size());
    }
    const std::vector<int64_t>& last = p.back();
    const auto count = static_cast<int64_t>(last.size());
    int64_t longest = 0;
    for (int64_t i = 0, run = 0; i < count; i += run) {
      for (run = 1; i + run < count && last[static_cast<size_t>(i + run)] == last[static_cast<size_t>(i)] + run;) ++run;
      if (run > longest) longest = run, begin = i, end = i + run;
    }
  }
  // fn(row of x, row of the result) for the rows of one block, as offsets in it.
  template <class Fn>
  void each_row(const Fn& fn, size_t d = 0, int64_t at = 0, int64_t row = 0) const {
    const auto width = static_cast<int64_t>(places[d].size());
    if (d + 1 == places.size()) return fn(at * sizes[d], row * width);
    for (int64_t i = 0; i < width; ++i)
      each_row(fn, d + 1, at * sizes[d] + places[d][static_cast<size_t>(i)], row * width + i);
  }
};

Tensor repeated_backwards(const Tensor& g, const Shape& x, const Kept& kept);

Tensor repeated_forwards(const Tensor& x, const Kept& kept) {
  const auto forward = [kept](const Tensors& in) {
    const PlaceLists& places = *kept;
    const Tensor from = contiguous(in[0]);
    Shape shape = from.shape();
    for (size_t d = 0; d < places.size(); ++d)
      shape[shape.size() - places.size() + d] = static_cast<int64_t>(places[d].size());
    const Tensor out = empty(shape, from.dtype());
    const RepeatedRows p(from.shape(), places);
    with_element_type(from.dtype(), [&]<class T>(T*) {
      const T* const all = from.data<T>();
      T* const made = out.data<T>();
      each_part(p.outer, p.to, [&](int64_t begin, int64_t end) {
        const int64_t* const last = places.back().data();
        const auto width = static_cast<int64_t>(places.back().size());
        for (int64_t o = begin; o < end; ++o)
          p.each_row([&](int64_t at, int64_t row) {
            const T* const source = all + o * p.from + at;
            T* const to = made + o * p.to + row;
            for (int64_t i = 0; i < p.begin; ++i) to[i] = source[last[i]];
            std::copy_n(source + last[p.begin], p.end - p.begin, to + p.begin);
            for (int64_t i = p.end; i < width; ++i) to[i] = source[last[i]];
          });
      });
    });
    return Tensors{out};
  };
  const auto backward = [kept](const Tensors& in, const Tensors&, const Tensors& grads) {
    return Tensors{repeated_backwards(grads[0], in[0].shape(), kept)};
  };
  return custom_function("pad_repeated", {x}, forward, backward)[0];
}

// What comes to each element is added up, in order.
Tensor repeated_backwards(const Tensor& given, const Shape& x, const Kept& kept) {
  const auto forward = [kept, x](const Tensors& in) {
    const PlaceLists& places = *kept;
    const Tensor g = contiguous(in[0]), out = zeros(x, g.dtype());
    const RepeatedRows p(x, places);
    with_element_type(g.dtype(), [&]<class T>(T*) {
      if constexpr (!std::is_same_v<T, bool>) {
        const T* const all = g.data<T>();
        T* const made = out.data<T>();
        each_part(p.outer, p.to, [&](int64_t begin, int64_t end) {
          const int64_t* const last = places.back().data();
          const auto width = static_cast<int64_t>(places.back().size());
          for (int64_t o = begin; o < end; ++o)
            p.each_row([&](int64_t at, int64_t row) {
              T* const to = made + o * p.from + at;
              const T* const source = all + o * p.to + row;
              const auto add = [](T& sum, T v) { sum = static_cast<T>(sum + v); };
              for (int64_t i = 0; i < p.begin; ++i) add(to[last[i]], source[i]);
              T* const whole = to + last[p.begin];
              for (int64_t i = p.begin; i < p.end; ++i) add(whole[i - p.begin], source[i]);
              for (int64_t i = p.end; i < width; ++i) add(to[last[i]], source[i]);
            });
        });
      }
    });
    return Tensors{out};
  };
  const auto backward = [kept](const Tensors&, const Tensors&, const Tensors& grads) {
    return Tensors{repeated_forwards(grads[0], kept)};
  };
  return custom_function("pad_repeated_backward", {given}, forward, backward)[0];
}

}  // namespace

Tensor repeated_places(const Tensor& x, PlaceLists places) {
  for (size_t d = 0; d < places.size(); ++d) {
    if (!places[d].empty()) continue;
    places[d].resize(static_cast<size_t>(x.size(static_cast<int64_t>(x.dim() - places.size() + d))));
    std::iota(places[d].begin(), places[d].end(), 0);
  }
  const auto first = std::find_if(places.begin(), places.end(), [&](const auto& list) {
    const int64_t d = x.dim() - (places.end() - places.begin()) + (&list - places.data());
    return static_cast<int64_t>(list.size()) != x.size(d);
  });
  places.erase(places.begin(), first);
  return places.empty() ? x : repeated_forwards(x, std::make_shared<const PlaceLists>(std::move(places)));
}

}  // namespace tessera
