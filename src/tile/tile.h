// Tile operators on registers: transfer between views and tiles, elementwise maps, reductions and their spreading
// back. A tile is what one thread holds of a distributed block (distribution.h); on a CPU one thread holds all of
// it, as vectors. A kernel is a loop over the blocks of its views and, inside, these operators:
//
//   struct Strip { static constexpr TESSERA_HD auto layout() { return named("n", repeat(4) * vec(8)); } };
//   auto x = load_tile<Strip>(view, {column}, thread);
//   auto largest = reduce_tile<0>(x, [](auto a, auto b) TESSERA_LAMBDA { return max(a, b); });
//   store_tile(view, {column}, map_tile([](auto v, auto m) TESSERA_LAMBDA { return exp(v - m); }, x, spread(largest)),
//   thread);
//
// Coordinates beyond the lengths of a view are neither read nor written.
#pragma once

#include "distribution.h"
#include "math.h"
#include "view.h"

/// Behind the parameters of a lambda in a tile operator: registers must not pass through memory to a call.
#if TESSERA_GPU_COMPILER
#define TESSERA_LAMBDA
#else
#define TESSERA_LAMBDA __attribute__((always_inline))
#endif

TESSERA_TILE_BEGIN

/// The layout of a reduction over dimension Dim of Layout: length 1 there, and every lane and warp along it holds
/// the same values.
template <class Layout, int Dim>
struct Reduced {
  using Full = Layout;
  static constexpr int dim = Dim;
  static constexpr TESSERA_HD auto layout() {
    auto d = Layout::layout();
    for (int f = 0; f < d.factor_count; ++f) {
      if (d.factors[f].holder == Holder::registers) d.factors[f].extent[Dim] = 1;
    }
    return d;
  }
};

namespace detail {

template <class Layout>
inline constexpr bool is_reduced = false;
template <class Layout, int Dim>
inline constexpr bool is_reduced<Reduced<Layout, Dim>> = true;

/// The dimension along which the registers of one vector lie.
template <class Layout>
consteval int vector_dim() {
  constexpr auto d = Layout::layout();
  int dim = d.rank - 1;
  for (int i = 0; i < d.rank; ++i) {
    if (d.factors[d.factor_count - 1].vector && d.factors[d.factor_count - 1].extent[i] > 1) dim = i;
  }
  return dim;
}

/// Coordinates of a thread's first element in its tile. Lanes along a reduced dimension all stand at 0.
template <class Layout>
constexpr TESSERA_HD auto first_coords(int thread) {
  auto c = thread_coords<Layout>(thread);
  if constexpr (is_reduced<Layout>) c[Layout::dim] = 0;
  return c;
}

/// Whether this thread is the one to store a value that several hold.
template <class Layout>
constexpr TESSERA_HD bool is_writer(int thread) {
  if constexpr (is_reduced<Layout>) {
    return thread_coords<typename Layout::Full>(thread)[Layout::dim] == 0 && is_writer<typename Layout::Full>(thread);
  } else {
    return true;
  }
}

}  // namespace detail

/// The part of one thread: vectors of as many elements as the layout's vec(), in the order of its registers.
template <class T, class L>
struct Tile {
  using Element = T;
  using Layout = L;
  static constexpr int rank = L::layout().rank;
  static constexpr int registers = L::layout().registers();
  static constexpr int lanes = L::layout().vector();
  static constexpr int vectors = registers / lanes;
  using V = conditional_t<lanes == 1, T, Vec<T, lanes>>;

  V part[vectors];
};

/// The same value everywhere.
template <class T, class Layout>
TESSERA_HD Tile<T, Layout> fill_tile(T value) {
  Tile<T, Layout> t;
  unroll<t.vectors>([&](auto i) TESSERA_LAMBDA { t.part[i] = typename Tile<T, Layout>::V(value); });
  return t;
}

// ---- transfer -------------------------------------------------------------------------------------------

namespace detail {

/// Whether all of the tile that starts at `origin` lies inside the view.
template <class Layout, class V>
TESSERA_HD bool lies_inside(const V& view, const typename V::Coords& origin) {
  bool inside = true;
  unroll<V::rank>(
      [&](auto d) TESSERA_LAMBDA { inside &= origin[d] + Layout::layout().length(d) <= view.template length<d>(); });
  return inside;
}

/// fn(Int<vector>, coordinates of its first element, count) for each vector of a tile that starts at `origin`;
/// `count` of its elements, lanes or fewer or none, lie inside the view.
template <class Layout, bool Inside, class V, class Fn>
TESSERA_HD void for_each_vector(const V& view, const typename V::Coords& origin, int thread, const Fn& fn) {
  using T = Tile<float, Layout>;
  constexpr int along = vector_dim<Layout>();
  const auto first = first_coords<Layout>(thread);
  unroll<T::vectors>([&](auto i) TESSERA_LAMBDA {
    constexpr auto offset = register_coords<Layout>(i * T::lanes);
    typename V::Coords c{};
    unroll<T::rank>([&](auto d) TESSERA_LAMBDA { c[d] = origin[d] + first[d] + offset[d]; });
    int count = T::lanes;
    if constexpr (!Inside) {
      unroll<T::rank>([&](auto d) TESSERA_LAMBDA {
        const i64 left = static_cast<i64>(view.template length<d>()) - c[d];
        count = d == along ? static_cast<int>(max(i64(0), min<i64>(left, count))) : left <= 0 ? 0 : count;
      });
    }
    fn(i, c, count);
  });
}

/// Whether the processor loads and stores the first lanes of a vector by a mask, without conversion.
template <class V, class S>
inline constexpr bool has_masks = has_simd<V>&& native_bytes >= 32 && is_same_v<element_t<V>, S>;

/// The first `count` lanes from contiguous elements. Where no mask does it they pass through a buffer: less code than
/// lane by lane, and this is in every kernel several times.
template <class V, class S>
TESSERA_HD V load_first(const S* p, int count) {
  if constexpr (has_masks<V, S> || TESSERA_GPU_COMPILER) {
    return load<V>(p, count);
  } else {
    alignas(64) S buffer[lanes_v<V>] = {};
    __builtin_memcpy(buffer, p, count * sizeof(S));
    return load<V>(static_cast<const S*>(buffer));
  }
}
template <class V, class S>
TESSERA_HD void store_first(S* p, V v, int count) {
  if constexpr (has_masks<V, S> || TESSERA_GPU_COMPILER) {
    store(p, v, count);
  } else {
    alignas(64) S buffer[lanes_v<V>];
    store(static_cast<S*>(buffer), v);
    __builtin_memcpy(p, buffer, count * sizeof(S));
  }
}

template <class V, int Along, class View>
TESSERA_HD V load_vector(const View& view, const typename View::Coords& c, int count) {
  if constexpr (View::is_strided) {
    const auto* p = view.data + view.offset(c);
    const i64 stride = view.stride(Along);
    if (stride != 1) return load_strided<V>(p, stride, count);
    return count == lanes_v<V> ? load<V>(p) : load_first<V>(p, count);
  } else {
    const Run run = view.run(c, Along, count);
    if (run.valid && run.length >= count && (run.stride == 1 || count == 1)) {
      return count == lanes_v<V> ? load<V>(view.data + run.offset) : load_first<V>(view.data + run.offset, count);
    }
    V v(element_t<V>(0));
    auto at = c;
    for (int i = 0; i < count; ++i, ++at[Along]) {
      if (view.valid(at)) set(v, i, convert_element<element_t<V>>(view.at(at)));
    }
    return v;
  }
}

template <int Along, class V, class View>
TESSERA_HD void store_vector(const View& view, const typename View::Coords& c, V v, int count) {
  if constexpr (View::is_strided) {
    auto* p = view.data + view.offset(c);
    const i64 stride = view.stride(Along);
    if (stride != 1) store_strided(p, stride, v, count);
    else if (count == lanes_v<V>) store(p, v);
    else store_first(p, v, count);
  } else {
    auto at = c;
    for (int i = 0; i < count; ++i, ++at[Along]) {
      if (view.valid(at)) view.at(at) = convert_element<typename View::Element>(get(v, i));
    }
  }
}

/// Ragged edges are rare and long: on a CPU they stay out of the loops.
#if TESSERA_GPU_COMPILER
#define TESSERA_EDGE TESSERA_HD
#else
#define TESSERA_EDGE __attribute__((noinline))
#endif

template <class Layout, class T, class V>
TESSERA_EDGE Tile<T, Layout> load_edge(const V& view, const typename V::Coords& origin, int thread, T outside) {
  using R = Tile<T, Layout>;
  R t;
  for_each_vector<Layout, false>(view, origin, thread, [&](auto i, const auto& c, int count) TESSERA_LAMBDA {
    typename R::V v(outside);
    if (count > 0) {
      const auto inside = load_vector<typename R::V, vector_dim<Layout>()>(view, c, count);
      if constexpr (R::lanes == 1) {
        v = inside;
      } else {
        using I = rebind_t<typename R::V, typename SignedOfSize<sizeof(T)>::type>;
        v = count == R::lanes ? inside : select(iota<I>() < I(static_cast<element_t<I>>(count)), inside, v);
      }
    }
    t.part[i] = v;
  });
  return t;
}

template <class V, class T, class Layout>
TESSERA_EDGE void store_edge(const V& view, const typename V::Coords& origin, const Tile<T, Layout>& tile, int thread) {
  for_each_vector<Layout, false>(view, origin, thread, [&](auto i, const auto& c, int count) TESSERA_LAMBDA {
    if (count > 0) store_vector<vector_dim<Layout>()>(view, c, tile.part[i], count);
  });
}
#undef TESSERA_EDGE

}  // namespace detail

/// The tile of a view that starts at `origin`, converted to T; what lies outside the view is `outside`, padding
/// inside it is zero.
template <class Layout, class T, class V>
TESSERA_HD Tile<T, Layout> load_tile(const V& view, const typename V::Coords& origin, int thread, T outside) {
  static_assert(V::rank == Tile<T, Layout>::rank, "load_tile: view and layout differ in rank");
  using R = Tile<T, Layout>;
  if (!detail::lies_inside<Layout>(view, origin)) return detail::load_edge<Layout, T>(view, origin, thread, outside);
  R t;
  detail::for_each_vector<Layout, true>(view, origin, thread, [&](auto i, const auto& c, int count) TESSERA_LAMBDA {
    t.part[i] = detail::load_vector<typename R::V, detail::vector_dim<Layout>()>(view, c, count);
  });
  return t;
}
template <class Layout, class V>
TESSERA_HD auto load_tile(const V& view, const typename V::Coords& origin, int thread = 0) {
  using T = compute_t<typename V::Element>;
  return load_tile<Layout, T>(view, origin, thread, T(0));
}

/// Stores what lies inside the view, converted to its element type.
template <class V, class T, class Layout>
TESSERA_HD void store_tile(const V& view, const typename V::Coords& origin, const Tile<T, Layout>& tile,
                           int thread = 0) {
  static_assert(V::rank == Tile<T, Layout>::rank, "store_tile: view and layout differ in rank");
  if (!detail::is_writer<Layout>(thread)) return;
  if (!detail::lies_inside<Layout>(view, origin)) {
    const Tile<T, Layout> in_memory = tile;  // the tile itself stays in registers
    return detail::store_edge(view, origin, in_memory, thread);
  }
  detail::for_each_vector<Layout, true>(view, origin, thread, [&](auto i, const auto& c, int count) TESSERA_LAMBDA {
    detail::store_vector<detail::vector_dim<Layout>()>(view, c, tile.part[i], count);
  });
}

/// Calls fn(origin) for the blocks of Layout that cover a view, the last dimension fastest.
template <class Layout, class V, class Fn>
TESSERA_HD void for_each_tile(const V& view, const Fn& fn) {
  constexpr auto layout = Layout::layout();
  typename V::Coords origin{};
  for (int d = 0; d < V::rank; ++d) {
    if (view.length(d) == 0) return;
  }
  for (;;) {
    fn(origin);
    int d = V::rank - 1;
    for (; d >= 0; --d) {
      origin[d] += layout.length(d);
      if (origin[d] < view.length(d)) break;
      origin[d] = 0;
    }
    if (d < 0) return;
  }
}

/// Copies a whole view to another of the same lengths through registers: a block transfer, for instance from
/// memory to a cache-resident block, with conversion. The threads of the layout each call it.
template <class Layout, class From, class To>
TESSERA_HD void transfer(const From& from, const To& to, int thread = 0) {
  for_each_tile<Layout>(to, [&](const auto& origin) TESSERA_LAMBDA {
    typename From::Coords c{};
    unroll<From::rank>([&](auto d) TESSERA_LAMBDA { c[d] = origin[d]; });
    store_tile(to, origin, load_tile<Layout>(from, c, thread), thread);
  });
}

// ---- elementwise ----------------------------------------------------------------------------------------

/// f(vectors...) for every vector of tiles of one layout.
template <class F, class T, class Layout, class... More>
TESSERA_HD auto map_tile(const F& f, const Tile<T, Layout>& first, const More&... more) {
  static_assert((is_same_v<typename More::Layout, Layout> && ...), "map_tile: layouts differ; spread() reductions");
  using V = decltype(f(first.part[0], more.part[0]...));
  Tile<element_t<V>, Layout> r;
  unroll<r.vectors>([&](auto i) TESSERA_LAMBDA { r.part[i] = f(first.part[i], more.part[i]...); });
  return r;
}

// ---- reduction ------------------------------------------------------------------------------------------

namespace detail {

#if defined(__CUDA_ARCH__)
template <class T>
TESSERA_HD T from_lane_xor(T value, int mask) {
  if constexpr (sizeof(T) == 8) {
    auto bits = bit_cast<Array<u32, 2>>(value);
    bits[0] = __shfl_xor_sync(~0u, bits[0], mask);
    bits[1] = __shfl_xor_sync(~0u, bits[1], mask);
    return bit_cast<T>(bits);
  } else {
    return bit_cast<T>(__shfl_xor_sync(~0u, bit_cast<u32>(value), mask));
  }
}
#elif defined(__HIP_DEVICE_COMPILE__)
TESSERA_HD u32 word_from_lane(u32 value, int lane) {
  return static_cast<u32>(__builtin_amdgcn_ds_bpermute(lane * 4, static_cast<int>(value)));
}
template <class T>
TESSERA_HD T from_lane_xor(T value, int mask) {
  const int lane = static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u))) ^ mask;
  if constexpr (sizeof(T) == 8) {
    auto bits = bit_cast<Array<u32, 2>>(value);
    return bit_cast<T>(Array<u32, 2>{word_from_lane(bits[0], lane), word_from_lane(bits[1], lane)});
  } else {
    return bit_cast<T>(word_from_lane(bit_cast<u32>(value), lane));
  }
}
#else
template <class T>
TESSERA_HD T from_lane_xor(T value, int) {
  return value;  // only named on a host: a CPU thread holds its whole tile
}
#endif

/// The register of Reduced<Layout, Dim> into which register r of Layout is reduced.
template <class Layout, int Dim>
consteval int reduced_register(int r) {
  auto c = register_coords<Layout>(r);
  constexpr auto small = Reduced<Layout, Dim>::layout();
  for (int i = 0; i < small.registers(); ++i) {
    auto at = register_coords<Reduced<Layout, Dim>>(i);
    bool same = true;
    for (int d = 0; d < small.rank; ++d) same &= d == Dim || at[d] == c[d];
    if (same) return i;
  }
  return -1;
}

template <class Op, class V>
TESSERA_HD V combine_lanes(const Op& op, V v, int mask) {
  V other = v;
  for (int i = 0; i < lanes_v<V>; ++i) set(other, i, from_lane_xor(get(v, i), mask));
  return op(v, other);
}

}  // namespace detail

/// Reduces a tile along dimension Dim with an associative op(a, b) on vectors and scalars, over registers and
/// lanes; the layout must not spread that dimension over warps. The order is fixed.
template <int Dim, class T, class Layout, class Op>
TESSERA_HD auto reduce_tile(const Tile<T, Layout>& tile, const Op& op) {
  using From = Tile<T, Layout>;
  using To = Tile<T, Reduced<Layout, Dim>>;
  constexpr auto plan = Layout::layout().reduction(Dim);
  static_assert(TESSERA_GPU_COMPILER || Layout::layout().threads() == 1, "on a CPU one thread holds the whole tile");
  static_assert(plan.warps == 1, "reduce_tile: the reduced dimension is spread over warps");
  constexpr bool along_vector = From::lanes > 1 && detail::vector_dim<Layout>() == Dim;
  To r;
  if constexpr (along_vector) {  // vectors first, then their lanes
    unroll<To::registers>([&](auto target) TESSERA_LAMBDA {
      typename From::V sum;
      bool first = true;
      unroll<From::vectors>([&](auto i) TESSERA_LAMBDA {
        if constexpr (detail::reduced_register<Layout, Dim>(i * From::lanes) == target) {
          sum = first ? tile.part[i] : op(sum, tile.part[i]);
          first = false;
        }
      });
      const T value = reduce(sum, op);
      if constexpr (To::lanes == 1) r.part[target] = value;
      else set(r.part[target / To::lanes], target % To::lanes, value);
    });
  } else {
    unroll<To::vectors>([&](auto target) TESSERA_LAMBDA {
      bool first = true;
      unroll<From::vectors>([&](auto i) TESSERA_LAMBDA {
        if constexpr (detail::reduced_register<Layout, Dim>(i * From::lanes) == target * To::lanes) {
          r.part[target] = first ? tile.part[i] : op(r.part[target], tile.part[i]);
          first = false;
        }
      });
    });
  }
  unroll<plan.mask_count>([&](auto m) TESSERA_LAMBDA {
    constexpr int mask = Layout::layout().reduction(Dim).masks[m];
    unroll<To::vectors>([&](auto i) TESSERA_LAMBDA { r.part[i] = detail::combine_lanes(op, r.part[i], mask); });
  });
  return r;
}

/// The values of a reduction in every place that went into them, for map_tile with the tile they came from.
template <class T, class Layout, int Dim>
TESSERA_HD Tile<T, Layout> spread(const Tile<T, Reduced<Layout, Dim>>& reduced) {
  using To = Tile<T, Layout>;
  using From = Tile<T, Reduced<Layout, Dim>>;
  To t;
  unroll<To::vectors>([&](auto i) TESSERA_LAMBDA {
    constexpr int source = detail::reduced_register<Layout, Dim>(i * To::lanes);
    if constexpr (To::lanes == From::lanes) t.part[i] = reduced.part[source / From::lanes];
    else t.part[i] = typename To::V(get(reduced.part[source / From::lanes], source % From::lanes));
  });
  return t;
}

/// Mean and sum of squared deviations of `count` values; combined without cancellation (Chan, Golub and LeVeque,
/// "Updating formulae and a pairwise algorithm for computing sample variances", 1979).
template <class T>
struct Moments {
  T mean, squares, count;
};
template <class T>
TESSERA_HD Moments<T> merge(const Moments<T>& a, const Moments<T>& b) {
  const T n = a.count + b.count;
  const T share = n > T(0) ? b.count / n : T(0);
  const T delta = b.mean - a.mean;
  return {a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share, n};
}

/// Mean and sum of squared deviations along Dim, in two passes over the registers.
template <int Dim, class T, class Layout>
TESSERA_HD auto moments_tile(const Tile<T, Layout>& tile) {
  struct Result {
    Tile<T, Reduced<Layout, Dim>> mean, squares;
  };
  const auto add = [](auto a, auto b) TESSERA_LAMBDA { return a + b; };
  const T share = T(1) / T(Layout::layout().length(Dim));
  const auto mean =
      map_tile([=](auto s) TESSERA_LAMBDA { return s * decltype(s)(share); }, reduce_tile<Dim>(tile, add));
  const auto deviation = [](auto x, auto m) TESSERA_LAMBDA { return (x - m) * (x - m); };
  return Result{mean, reduce_tile<Dim>(map_tile(deviation, tile, spread(mean)), add)};
}

/// The largest value along Dim and its coordinate in the tile, the first of equals; NaN counts as largest.
template <int Dim, class T, class Layout>
TESSERA_HD auto argmax_tile(const Tile<T, Layout>& tile, int thread = 0) {
  using R = Reduced<Layout, Dim>;
  struct Result {
    Tile<T, R> value;
    Tile<i32, R> index;
  };
  const auto larger = [](auto a, auto b) TESSERA_LAMBDA { return select(b == b, max(a, b), b); };
  const auto best = reduce_tile<Dim>(tile, larger);
  Tile<i32, Layout> index;
  const auto first = thread_coords<Layout>(thread);
  const auto everywhere = spread(best);
  using From = Tile<T, Layout>;
  unroll<From::vectors>([&](auto i) TESSERA_LAMBDA {
    for (int k = 0; k < From::lanes; ++k) {
      const T x = get(tile.part[i], k), b = get(everywhere.part[i], k);
      const bool is_best = x == b || (x != x && b != b);
      const int at =
          first[Dim] + register_coords<Layout>(i * From::lanes)[Dim] + (detail::vector_dim<Layout>() == Dim ? k : 0);
      set(index.part[i], k, is_best ? at : 0x7fffffff);
    }
  });
  return Result{best, reduce_tile<Dim>(index, [](auto a, auto b) TESSERA_LAMBDA { return select(a < b, a, b); })};
}

TESSERA_TILE_END
