// Views: a pointer and a descriptor.
//
//   auto x = strided(ptr, {n, h, w, c}, {h * w * c, w * c, c, 1});
//   auto padded = transform(x, pass(), pad(1, 1), pad(1, 1), pass());
//   auto windows = transform(padded, pass(), embed({3, oh}, {1, 1}), embed({3, ow}, {1, 1}), pass());
//   auto a = transform(windows, merge<0, 2, 4>(), merge<1, 3, 5>());  // the left matrix of a convolution
//
// Nothing is copied, and what only changes strides (slice, fix, unmerge, ...) stays a StridedView.
#pragma once
#include "descriptor.h"

TESSERA_TILE_BEGIN

/// Elements of type T laid out by a descriptor; T may be const. The memory is the caller's.
template <class T, class Desc>
struct View {
  using Element = T;
  using Descriptor = Desc;
  using Index = typename Desc::Index;
  using Coords = typename Desc::Coords;
  static constexpr int rank = Desc::rank;
  /// Whether offsets are sums of coordinate * stride(d) and every element is valid.
  static constexpr bool is_strided = Desc::is_strided;

  T* data;
  Desc desc;

  constexpr TESSERA_HD i64 length(int d) const {
    i64 n = 0;
    unroll<rank>([&](auto k) { n = k == d ? static_cast<i64>(desc.template length<k>()) : n; });
    return n;
  }
  /// Length of dimension D with its static type.
  template <int D>
  constexpr TESSERA_HD auto length() const {
    return desc.template length<D>();
  }
  /// Distance in elements of neighbours along `d`.
  constexpr TESSERA_HD i64 stride(int d) const requires is_strided { return desc.stride(d); }
  /// Elements along D, aligned to their number, that are contiguous, aligned and of one validity for sure.
  template <int D>
  static constexpr TESSERA_HD int width() {
    return Desc::template width<D>();
  }

  /// Offset in elements of a coordinate inside the lengths; 0 <= c < length.
  template <Number... C>
  constexpr TESSERA_HD i64 offset(C... c) const {
    return desc.offset(coords(c...));
  }
  constexpr TESSERA_HD i64 offset(const Coords& c) const { return desc.offset(c); }

  /// Whether the element exists; padding is not to be read or written.
  template <Number... C>
  constexpr TESSERA_HD bool valid(C... c) const {
    return desc.valid(coords(c...));
  }
  constexpr TESSERA_HD bool valid(const Coords& c) const { return desc.valid(c); }

  template <Number... C>
  constexpr TESSERA_HD T& at(C... c) const {
    return data[desc.offset(coords(c...))];
  }
  constexpr TESSERA_HD T& at(const Coords& c) const { return data[offset(c)]; }

  /// The longest stretch from `c` along `dim`, at most `limit` elements, at one stride and of one validity.
  constexpr TESSERA_HD Run run(const Coords& c, int dim, i64 limit = i64{1} << 62) const {
    limit = min(limit, length(dim) - static_cast<i64>(c[dim]));
    Run run = segment(c, dim, limit);
    while (run.length < limit) {  // pieces that follow each other in memory are one run
      Coords after = c;
      after[dim] += static_cast<Index>(run.length);
      const Run more = segment(after, dim, limit - run.length);
      const i64 stride = run.length == 1 ? more.offset - run.offset : run.stride;
      if (more.valid != run.valid) break;
      if (more.valid && more.offset != run.offset + run.length * stride) break;
      if (more.valid && more.length > 1 && more.stride != stride) break;
      run.stride = stride;
      run.length += more.length;
    }
    return run;
  }

 private:
  template <class... C>
  static constexpr TESSERA_HD Coords coords(C... c) {
    static_assert(sizeof...(C) == rank, "view: one coordinate per dimension");
    return {{static_cast<Index>(c)...}};
  }
  constexpr TESSERA_HD Run segment(const Coords& c, int dim, i64 limit) const {
    return desc.walk(c, Motion<Index>{dim, 1, static_cast<Index>(limit)}, true);
  }
};
template <class T, class D>
constexpr TESSERA_HD View<T, D> make_view(T* data, const D& desc) {
  return {data, desc};
}

template <class S>
struct RunTimeNumbers;
template <int... I>
struct RunTimeNumbers<Seq<I...>> {
  using type = Tuple<conditional_t<(I >= 0), i64, void>...>;
};
template <int R>
using run_time_numbers = typename RunTimeNumbers<make_seq<R>>::type;

/// The plain case: run-time lengths and strides in elements.
template <class T, int R>
using StridedView = View<T, Strided<run_time_numbers<R>, run_time_numbers<R>>>;

template <int R, class T>
constexpr TESSERA_HD StridedView<T, R> strided(T* data, const i64* lengths, const i64* strides) {
  return with_indices<R>([&]<int... I>(Seq<I...>) {
    return StridedView<T, R>{data, {tuple(lengths[I]...), tuple(strides[I]...)}};
  });
}
/// strided(ptr, {rows, columns}, {pitch, 1}).
template <class T, int R>
constexpr TESSERA_HD StridedView<T, R> strided(T* data, const i64 (&lengths)[R], const i64 (&strides)[R]) {
  return strided<R>(data, &lengths[0], &strides[0]);
}
/// Lengths and strides of which some are static or known by a divisor:
/// strided(ptr, tuple(m, Int<64>{}), tuple(multiple_of<8>(pitch), Int<1>{})).
template <class T, class... L, class... S>
constexpr TESSERA_HD auto strided(T* data, Tuple<L...> lengths, Tuple<S...> strides) {
  static_assert(sizeof...(L) == sizeof...(S), "strided: lengths and strides differ in number");
  return make_view(data, make_strided(lengths, strides));
}
/// Packed row-major memory.
template <class T, int R>
constexpr TESSERA_HD StridedView<T, R> packed(T* data, const i64 (&lengths)[R]) {
  i64 strides[R]{};
  i64 stride = 1;
  for (int d = R - 1; d >= 0; stride *= lengths[d--]) strides[d] = stride;
  return strided<R>(data, &lengths[0], strides);
}
template <class T, class... L>
constexpr TESSERA_HD auto packed(T* data, Tuple<L...> lengths) {
  return make_view(data, make_strided(lengths, row_major_strides(lengths)));
}

/// The same memory seen through transforms side by side; see transform(descriptor, ...).
template <class T, class D, class... R>
requires UsesEachDimensionOnce<D, R...>
constexpr TESSERA_HD auto transform(const View<T, D>& view, R... recipes) {
  const auto desc = transform(view.desc, recipes...);
  if constexpr (D::is_strided && decltype(desc)::is_linear)
    return make_view(view.data + desc.offset({}), collapse(desc));
  else return make_view(view.data, desc);
}

/// A coordinate that moves: updated instead of evaluated, hence without divisions in the main loop of a
/// kernel. The 64-bit offset of the start stays apart from the 32-bit distance from it.
template <class Desc>
class Cursor {
 public:
  using Coords = typename Desc::Coords;
  constexpr TESSERA_HD Cursor(const Desc& desc, const Coords& start)
      : desc_(desc), state_(desc.state(start)), base_(desc.offset(start)) {}

  constexpr TESSERA_HD void move(const Coords& by) { distance_ += static_cast<i32>(desc_.move(state_, by)); }
  constexpr TESSERA_HD i64 base() const { return base_; }
  constexpr TESSERA_HD i32 distance() const { return distance_; }
  constexpr TESSERA_HD i64 offset() const { return base_ + distance_; }
  constexpr TESSERA_HD bool valid() const { return desc_.valid_state(state_); }
  constexpr TESSERA_HD const Coords& coords() const { return state_.at; }

 private:
  Desc desc_;
  typename Desc::State state_;
  i64 base_;
  i32 distance_ = 0;
};

TESSERA_TILE_END
