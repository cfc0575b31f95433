// The gradient of filters where a group has few channels or filters: sums over places of planes (conv_planes.h), of
// which each lane of a vector keeps its own until the end.
#pragma once

#include "conv_planes.h"

TESSERA_TILE_BEGIN
namespace detail {

template <class V>
element_t<V> sum_of_lanes(V v) {
  if constexpr (lanes_v < V >> 4) {
    const auto halves = bit_cast<Halves<V>>(v);
    return sum_of_lanes(halves.low + halves.high);
  } else {
    element_t<V> sum = v[0];
    for (int i = 1; i < lanes_v<V>; ++i) sum += v[i];
    return sum;
  }
}

}  // namespace detail

/// The gradient gw (k, r, s, c) of filters in groups, from images (n, h, w, c) and the gradient of the output (n, ho,
/// wo, k), all of any strides.
template <class T>
class PlanesFilters {
  using V = NativeVec<T>;
  using Memory = cpu::Workspace<T>;

 public:
  PlanesFilters(i64 groups, const StridedView<const T, 4>& x, const Sweep& h, const Sweep& w,
                const StridedView<const T, 4>& dy, const StridedView<T, 4>& gw, i64 threads)
      : groups_(groups),
        channels_(x.length(3) / groups),
        filters_(dy.length(3) / groups),
        x_(x),
        dy_(dy),
        gw_(gw),
        plan_(part(x, 0, channels_), h, w, parts_wanted(groups, threads)),
        parts_(max<i64>(1, min(parts_wanted(groups, threads), plan_.blocks()))),
        flat_(plan_.pitch() < round_up(w.outputs, i64{V::lanes})),
        copies_dy_(flat_ || dy.stride(2) != 1) {}

  /// Elements of memory that run() needs.
  i64 memory_size() const { return parts_ == 1 ? 0 : parts_ * groups_ * size(); }

  void run(const ExecutorRef& executor, T* memory) const {
    if (groups_ * size() == 0) return;
    const i64 tasks = groups_ * parts_, shares = min(tasks, 8 * i64{executor.threads()});
    executor.parallel(shares, [&](i64 index, int thread) {
      Memory scratch(executor.scratch(thread, Memory::bytes(offsets_size()) + Memory::bytes(plan_.copied_size()) +
                                                  Memory::bytes(copied_dy_size()) + Memory::bytes(size() * V::lanes)));
      i64* const offsets = reinterpret_cast<i64*>(scratch.take(offsets_size()));
      T* const images = scratch.take(plan_.copied_size());
      T* const gradients = scratch.take(copied_dy_size());
      T* const sums = scratch.take(size() * V::lanes);
      plan_.find_offsets(part(x_, 0, channels_), offsets);
      const cpu::Span mine = cpu::part(tasks, shares, index);
      for (i64 i = mine.begin; i < mine.end; ++i) {
        const i64 group = i % groups_, share = i / groups_;
        for (i64 j = 0; j < size() * V::lanes; j += V::lanes) store(sums + j, V(T(0)));
        const cpu::Span blocks = cpu::part(plan_.blocks(), parts_, share);
        for (i64 b = blocks.begin; b < blocks.end; ++b) add(group, plan_.block(b), offsets, images, gradients, sums);
        const auto sum = [&](i64 j) { return detail::sum_of_lanes(load<V>(sums + j * V::lanes)); };
        T* const to = memory + (share * groups_ + group) * size();
        if (parts_ == 1) put(group, sum);
        for (i64 j = 0; parts_ > 1 && j < size(); ++j) to[j] = sum(j);
      }
    });
    for (i64 group = 0; parts_ > 1 && group < groups_; ++group) {
      put(group, [&](i64 j) {
        T sum = 0;
        for (i64 share = 0; share < parts_; ++share) sum += memory[(share * groups_ + group) * size() + j];
        return sum;
      });
    }
  }

 private:
  static i64 parts_wanted(i64 groups, i64 threads) { return threads == 1 ? 1 : ceil_div(2 * threads, groups); }
  i64 size() const { return filters_ * plan_.depth(); }
  i64 offsets_size() const { return plan_.depth() * static_cast<i64>(sizeof(i64) / sizeof(T)); }
  i64 copied_dy_size() const { return copies_dy_ ? filters_ * plan_.plane() : 0; }

  static StridedView<const T, 4> part(const StridedView<const T, 4>& v, i64 group, i64 count) {
    return strided(v.data + group * count * v.stride(3), {v.length(0), v.length(1), v.length(2), count},
                   {v.stride(0), v.stride(1), v.stride(2), v.stride(3)});
  }
  /// The gradient of a group's filters: sum(index) of (k, c, r, s).
  template <class Sum>
  void put(i64 group, const Sum& sum) const {
    i64 j = 0;
    for (i64 k = 0; k < filters_; ++k) {
      T* const filter = gw_.data + (group * filters_ + k) * gw_.stride(0);
      for (i64 c = 0; c < channels_; ++c) {
        for (i64 r = 0; r < gw_.length(1); ++r) {
          T* const to = filter + c * gw_.stride(3) + r * gw_.stride(1);
          for (i64 s = 0; s < gw_.length(2); ++s) to[s * gw_.stride(2)] = sum(j++);
        }
      }
    }
  }

  /// Adds the products of a block.
  void add(i64 group, const detail::PlanesBlock& block, const i64* offsets, T* images, T* gradients, T* sums) const {
    const T* const from = plan_.planes(part(x_, group, channels_), block, images);
    const auto dy = part(dy_, group, filters_);
    const i64 pitch = plan_.pitch(), rows = block.rows.size(), held = plan_.held_rows(block), columns = dy.length(2);
    if (flat_) {
      copy_dy(dy, block, gradients);
      const i64 places = ((block.images.size() - 1) * held + rows - 1) * pitch + columns;
      return multiply({1, places, 0, 0}, gradients, plan_.plane(), from, offsets, sums);
    }
    if (copies_dy_) copy_dy(dy, block, gradients);
    for (i64 i = 0; i < block.images.size(); ++i) {
      const T* const right = from + i * held * pitch;
      if (copies_dy_) {
        multiply({rows, columns, pitch, pitch}, gradients + i * held_dy(block) * pitch, plan_.plane(), right, offsets,
                 sums);
      } else {
        const T* const left = dy.data + (block.images.begin + i) * dy.stride(0) + block.rows.begin * dy.stride(1);
        multiply({rows, columns, dy.stride(1), pitch}, left, dy.stride(3), right, offsets, sums);
      }
    }
  }
  i64 held_dy(const detail::PlanesBlock& block) const { return max(plan_.held_rows(block), block.rows.size()); }

  /// The gradient of the output at the places of its windows; zero at others.
  void copy_dy(const StridedView<const T, 4>& dy, const detail::PlanesBlock& block, T* to) const {
    const i64 pitch = plan_.pitch(), columns = dy.length(2), held = held_dy(block);
    if (filters_ > 1 && dy.stride(3) == 1 && dy.stride(2) != 1) return turn_dy(dy, block, to);
    for (i64 k = 0; k < filters_; ++k, to += plan_.plane()) {
      T* line = to;
      for (i64 image = block.images.begin; image < block.images.end; ++image) {
        const T* const from = dy.data + image * dy.stride(0) + k * dy.stride(3);
        for (i64 i = 0; i < held; ++i, line += pitch) {
          const bool exists = i < block.rows.size();
          if (exists) {
            const i64 row = block.rows.begin + i;
            detail::PlanesPlan<T>::copy_line(from + row * dy.stride(1), dy.stride(2), columns, line);
          }
          const i64 begin = exists ? columns : 0;
          detail::zero_run(line + begin, pitch - begin);
        }
      }
    }
  }

  /// The same where filters are contiguous: pixels are read once.
  void turn_dy(const StridedView<const T, 4>& dy, const detail::PlanesBlock& block, T* to) const {
    constexpr i64 size = sizeof(T);
    const i64 pitch = plan_.pitch(), columns = dy.length(2), held = held_dy(block);
    for (i64 image = block.images.begin; image < block.images.end; ++image) {
      for (i64 i = 0; i < held; ++i, to += pitch) {
        const bool exists = i < block.rows.size();
        const T* const from = dy.data + image * dy.stride(0) + (block.rows.begin + i) * dy.stride(1);
        if (exists)
          tile::detail::transpose_plane<T>(reinterpret_cast<char*>(to), plan_.plane() * size,
                                           reinterpret_cast<const char*>(from), dy.stride(2) * size, filters_, columns);
        const i64 begin = exists ? columns : 0;
        for (i64 k = 0; k < filters_; ++k) detail::zero_run(to + k * plan_.plane() + begin, pitch - begin);
      }
    }
  }

  // So many places at a time: the sums of many rows would be too large for what the next places add.
  static constexpr i64 kPlaces = 4096;
  void multiply(const cpu::PlaceRows& rows, const T* a, i64 a_pitch, const T* b, const i64* offsets, T* sums) const {
    const i64 count = max<i64>(1, kPlaces / max<i64>(1, rows.length)), length = rows.count == 1 ? kPlaces : rows.length;
    for (i64 row = 0; row < rows.count; row += count)
      for (i64 j = 0; j < rows.length; j += length)
        multiply_some({min(count, rows.count - row), min(length, rows.length - j), rows.a_row, rows.b_row},
                      a + row * rows.a_row + j, a_pitch, b + row * rows.b_row + j, offsets, sums);
  }

  void multiply_some(const cpu::PlaceRows& rows, const T* a, i64 a_pitch, const T* b, const i64* offsets,
                     T* sums) const {
    const i64 panels = ceil_div(filters_, i64{cpu::sums_rows}), depth = plan_.depth();
    for (i64 p = 0; p < panels; ++p) {
      const cpu::Span k = cpu::part(filters_, panels, p);
      const int count = static_cast<int>(k.size());
      const i64 parts = ceil_div(depth, i64{cpu::sums_steps(count)});
      for (i64 i = 0; i < parts; ++i) {
        const cpu::Span steps = cpu::part(depth, parts, i);
        const auto kernel = cpu::pick_sums<V>(count, static_cast<int>(steps.size()));
        kernel(rows, a + k.begin * a_pitch, a_pitch, b, offsets + steps.begin,
               sums + (k.begin * depth + steps.begin) * V::lanes, depth);
      }
    }
  }

  i64 groups_, channels_, filters_;
  StridedView<const T, 4> x_, dy_;
  StridedView<T, 4> gw_;
  detail::PlanesPlan<T> plan_;
  i64 parts_;
  bool flat_, copies_dy_;
};

TESSERA_TILE_END
