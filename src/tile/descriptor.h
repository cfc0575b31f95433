// Descriptors: how a coordinate becomes an offset in memory. At the bottom lengths and strides, above them
// stages of coordinate transforms, all in the type; evaluating one is straight-line arithmetic.
#pragma once
#include "transform.h"

TESSERA_TILE_BEGIN

/// Elements start + i * stride, i < length: all valid, or all invalid.
struct Run {
  i64 offset;
  i64 stride;
  i64 length;
  bool valid;
};

/// Widths beyond the longest vector of any processor are of no use.
inline constexpr int max_width = 64;

// ---- the bottom

/// offset = sum(coordinate * stride).
template <class Lengths, class Strides>
struct Strided {
  static constexpr int rank = Lengths::size;
  static constexpr bool is_strided = true;
  using Index = typename NumberTraits<Lengths>::Index;  // of coordinates; offsets are always 64-bit
  using Coords = Array<Index, rank>;
  Lengths lengths;
  Strides strides;

  template <int D>
  constexpr TESSERA_HD auto length() const {
    return get<D>(lengths);
  }
  template <int D>
  constexpr TESSERA_HD auto stride() const {
    return get<D>(strides);
  }
  constexpr TESSERA_HD i64 stride(int d) const { return pick(strides, d); }

  constexpr TESSERA_HD i64 offset(const Coords& c) const {
    i64 sum = 0;
    unroll<rank>([&](auto d) { sum += static_cast<i64>(c[d]) * static_cast<i64>(get<d>(strides)); });
    return sum;
  }
  constexpr TESSERA_HD bool valid(const Coords&) const { return true; }

  /// The most elements, a power of two, of which aligned vectors along D lie aligned and inside the length.
  template <int D>
  static constexpr TESSERA_HD int width() {
    if (!is_same_v<element<D, Strides>, Int<1>>) return 1;
    int common = gcd(max_width, divisor<element<D, Lengths>>);
    unroll<rank>([&](auto d) {
      if (d != D) common = gcd(common, divisor<element<d, Strides>>);
    });
    return common;
  }
  constexpr TESSERA_HD Run walk(const Coords& c, const Motion<Index>& m, bool valid_above) const {
    const i64 stride = m.dim < 0 ? 0 : static_cast<i64>(m.step) * pick(strides, m.dim);
    return {offset(c), stride, static_cast<i64>(m.limit), valid_above};
  }

  struct State {
    Coords at;
  };
  constexpr TESSERA_HD State state(const Coords& c) const { return {c}; }
  constexpr TESSERA_HD i64 move(State& s, const Coords& by) const {
    unroll<rank>([&](auto d) { s.at[d] += by[d]; });
    return offset(by);
  }
  constexpr TESSERA_HD bool valid_state(const State&) const { return true; }
};
template <class L, class S>
constexpr TESSERA_HD Strided<L, S> make_strided(L lengths, S strides) {
  return {lengths, strides};
}

// ---- a stage of transforms

/// A transform in its place: its first upper dimension, and its lower ones.
template <class Op, int First, int... Low>
struct Placed : Op {
  static constexpr int first = First, upper_rank = Op::upper_rank, lower_rank = Op::lower_rank;
  using Op::lower, Op::update, Op::valid, Op::motion;

  static constexpr TESSERA_HD bool owns(int upper) { return upper >= First && upper < First + upper_rank; }

  template <class X, int R>
  static constexpr TESSERA_HD Array<X, upper_rank> upper_part(const Array<X, R>& all) {
    Array<X, upper_rank> part{};
    unroll<upper_rank>([&](auto i) { part[i] = all[First + i]; });
    return part;
  }
  template <class X, int R>
  static constexpr TESSERA_HD Array<X, lower_rank> lower_part(const Array<X, R>& all) {
    return {all[Low]...};
  }
  template <class X, int R>
  static constexpr TESSERA_HD void put_lower(Array<X, R>& all, const Array<X, lower_rank>& part) {
    int i = 0;
    ((all[Low] = part[i++]), ...);
  }
  /// The dimension of the lower descriptor that is this transform's k-th.
  static constexpr TESSERA_HD int lower_dim(int k) {
    int dim = -1, i = 0;
    ((dim = i++ == k ? Low : dim), ...);
    return dim;
  }
};

/// Transforms side by side over the dimensions of a lower descriptor.
template <class Lower, class... Ops>
struct Transformed {
  static constexpr int rank = (Ops::upper_rank + ... + 0);
  static constexpr bool is_strided = false;
  static constexpr bool is_linear = (Ops::is_linear && ...);
  using Index = typename Lower::Index;
  using Coords = Array<Index, rank>;
  using LowerCoords = typename Lower::Coords;
  Lower below;
  Tuple<Ops...> ops;

  template <int D>
  constexpr TESSERA_HD auto length() const {
    constexpr int k = owner(D);
    using Op = element<k, Tuple<Ops...>>;
    return get<k>(ops).template length<D - Op::first>();
  }
  constexpr TESSERA_HD LowerCoords lower(const Coords& c) const {
    LowerCoords low{};
    each([&](const auto& op) { op.put_lower(low, op.lower(op.upper_part(c))); });
    return low;
  }
  constexpr TESSERA_HD i64 offset(const Coords& c) const { return below.offset(lower(c)); }
  constexpr TESSERA_HD bool valid(const Coords& c) const {
    const LowerCoords low = lower(c);
    return valid_here(low) && below.valid(low);
  }
  template <int D>
  static constexpr TESSERA_HD int width() {
    using Op = element<owner(D), Tuple<Ops...>>;
    return width_through<D, Op>(make_seq<Op::lower_rank>{});
  }
  constexpr TESSERA_HD Run walk(const Coords& c, Motion<Index> m, bool valid_above) const {
    const LowerCoords low = lower(c);
    const int upper = m.dim;
    each([&](const auto& op) {
      if (!op.owns(upper)) return;
      op.motion(op.upper_part(c), op.lower_part(low), upper - op.first, m);
      m.dim = op.lower_dim(m.dim);
    });
    return below.walk(low, m, valid_above && valid_here(low));
  }

  struct State {
    Coords at;
    typename Lower::State below;
  };
  constexpr TESSERA_HD State state(const Coords& c) const { return {c, below.state(lower(c))}; }
  /// Moves by `by` and returns how far the offset moved.
  constexpr TESSERA_HD i64 move(State& s, const Coords& by) const {
    LowerCoords low{};
    unroll<rank>([&](auto d) { s.at[d] += by[d]; });
    each([&](const auto& op) {
      op.put_lower(low, op.update(op.upper_part(s.at), op.upper_part(by), op.lower_part(s.below.at)));
    });
    return below.move(s.below, low);
  }
  constexpr TESSERA_HD bool valid_state(const State& s) const {
    return valid_here(s.below.at) && below.valid_state(s.below);
  }

  /// Which transform makes upper dimension `d`.
  static constexpr TESSERA_HD int owner(int d) {
    int k = 0, found = -1;
    ((found = Ops::owns(d) ? k : found, ++k), ...);
    return found;
  }

 private:
  template <class F>
  constexpr TESSERA_HD void each(F&& f) const {
    unroll<sizeof...(Ops)>([&](auto k) { f(get<k>(ops)); });
  }
  constexpr TESSERA_HD bool valid_here(const LowerCoords& low) const {
    bool all = true;
    each([&](const auto& op) { all = all && op.valid(op.lower_part(low)); });
    return all;
  }
  template <int D, class Op, int... K>
  static constexpr TESSERA_HD int width_through(Seq<K...>) {
    return Op::template width<D - Op::first>(Array<int, Op::lower_rank>{Lower::template width<Op::lower_dim(K)>()...});
  }
};

// ---- composition

template <class L, class... P>
constexpr TESSERA_HD Transformed<L, P...> make_transformed(const L& lower, const Tuple<P...>& ops) {
  return {lower, ops};
}

template <class T>
struct RecipeDims;
template <class F, int... D>
struct RecipeDims<Recipe<F, D...>> {
  static constexpr int count = sizeof...(D);
  using type = Seq<D...>;
};

/// The named dimensions with `next` resolved: one above the dimension named before.
template <int... D>
consteval Array<int, sizeof...(D)> resolve(Seq<D...>) {
  Array<int, sizeof...(D)> dims{};
  int i = 0, previous = -1;
  ((dims[i++] = previous = D == next ? previous + 1 : D), ...);
  return dims;
}
template <int N>
consteval bool is_permutation(const Array<int, N>& dims) {
  for (int d = 0; d < N; ++d) {
    int uses = 0;
    for (int i = 0; i < N; ++i) uses += dims[i] == d;
    if (uses != 1) return false;
  }
  return true;
}
template <class Lower, class... R>
consteval bool uses_each_dimension_once() {
  using Named = decltype((Seq<>{} + ... + typename RecipeDims<R>::type{}));
  if constexpr ((RecipeDims<R>::count + ... + 0) != Lower::rank) return false;
  else return is_permutation(resolve(Named{}));
}
template <class Lower, class... R>
concept UsesEachDimensionOnce = uses_each_dimension_once<Lower, R...>();

template <class Named, int... I>
constexpr TESSERA_HD auto resolved(Seq<I...>) {
  constexpr auto dims = resolve(Named{});
  return Seq<dims[I]...>{};
}

template <int FirstLow, class Dims, class Lower, class R, int... K>
constexpr TESSERA_HD auto bind(const Lower& lower, const R& recipe, Dims, Seq<K...>) {
  return recipe.make(lower.template length<entry(Dims{}, FirstLow + K)>()...);
}
template <int First, int FirstLow, class Op, class Dims, int... K>
constexpr TESSERA_HD auto place(const Op& op, Dims, Seq<K...>) {
  return Placed<Op, First, entry(Dims{}, FirstLow + K)...>{op};
}

template <class Dims, class Counts, class Ranks, class Lower, class... Op, int... K>
constexpr TESSERA_HD auto place_all(const Lower& lower, const Tuple<Op...>& ops, Seq<K...>) {
  return make_transformed(lower, tuple(place<sum_before(Ranks{}, K), sum_before(Counts{}, K)>(
                                     get<K>(ops), Dims{}, make_seq<Op::lower_rank>{})...));
}

/// The descriptor seen through transforms side by side. Each takes the lower dimensions it names, or the next
/// ones; the upper dimensions follow in the order of the transforms:
///   transform(nhwc, pass(), pad(1, 1), pad(1, 1), pass())
template <class Lower, class... R>
requires UsesEachDimensionOnce<Lower, R...>
constexpr TESSERA_HD auto transform(const Lower& lower, R... recipes) {
  using Named = decltype((Seq<>{} + ... + typename RecipeDims<R>::type{}));
  using Counts = Seq<RecipeDims<R>::count...>;
  using Dims = decltype(resolved<Named>(make_seq<Lower::rank>{}));
  return with_indices<sizeof...(R)>([&]<int... K>(Seq<K...> all) {
    const auto ops = tuple(bind<sum_before(Counts{}, K)>(lower, recipes, Dims{}, make_seq<RecipeDims<R>::count>{})...);
    using Ops = remove_cvref_t<decltype(ops)>;
    return place_all<Dims, Counts, Seq<element<K, Ops>::upper_rank...>>(lower, ops, all);
  });
}

/// A linear stage over a strided descriptor as a strided one; its offsets lack d.offset({}).
template <class Lower, class... Ops>
constexpr TESSERA_HD auto collapse(const Transformed<Lower, Ops...>& d) {
  const auto stride = [&]<int U>(Int<U>) {
    constexpr int k = Transformed<Lower, Ops...>::owner(U);
    using Op = element<k, Tuple<Ops...>>;
    if constexpr (Op::lower_rank == 0) return Int<0>{};
    else return mul(get<k>(d.ops).template coef<U - Op::first>(), d.below.template stride<Op::lower_dim(0)>());
  };
  return with_indices<(Ops::upper_rank + ... + 0)>([&]<int... U>(Seq<U...>) {
    return make_strided(tuple(d.template length<U>()...), tuple(stride(Int<U>{})...));
  });
}

TESSERA_TILE_END
