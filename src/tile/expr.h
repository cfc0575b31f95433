// What happens to an element of a product before it reaches memory, as one expression:
//
//   store(y, gelu_tanh(acc + load(d0) + load(d1)))
//
// `acc` is the accumulator, load(view) an element of a matrix with the shape of the result (a bias is a view
// with a stride of 0), a number a constant. store(view, e) writes e and has its value, so that
// store(y, relu(store(pre, acc))) keeps both; also(a, b) does a, then b. The same expression serves a
// vector of columns on a CPU and one element per thread on a GPU, and a new fusion is a new expression.
#pragma once

#include "math.h"
#include "view.h"

TESSERA_TILE_BEGIN

/// All lanes of a vector exist.
struct AllLanes {};

namespace detail {
template <class V, class S>
TESSERA_HD V load_lanes(const S* p, AllLanes) {
  return load<V>(p);
}
template <class V, class S>
TESSERA_HD V load_lanes(const S* p, int n) {
  return load<V>(p, n);
}
template <class S, class V>
TESSERA_HD void store_lanes(S* p, V v, AllLanes) {
  store(p, v);
}
template <class S, class V>
TESSERA_HD void store_lanes(S* p, V v, int n) {
  store(p, v, n);
}
template <class V>
TESSERA_HD int lane_count(AllLanes) {
  return lanes_v<V>;
}
template <class V>
TESSERA_HD int lane_count(int n) {
  return n;
}

/// Whether all columns of a matrix are the same for sure.
template <class View>
constexpr TESSERA_HD bool is_one_column() {
  if constexpr (View::is_strided) {
    return is_same_v<decltype(View::Descriptor::strides), Tuple<i64, Int<0>>>;
  } else {
    return false;
  }
}

template <class View>
TESSERA_HD bool has_unit_columns(const View& view) {
  if constexpr (is_one_column<View>()) return true;
  if constexpr (View::is_strided) return view.stride(1) == 1;
  return false;
}

/// The stretch of a row of a view that was used last: finding it costs divisions, using it again does not.
struct LastStretch {
  Run run{0, 0, 0, false};
  i64 begin = 0;
  i64 wanted = 64;  // grows with the row that is walked

  /// The rest of it from column n on, at least one element and at most `limit`.
  template <class View>
  TESSERA_HD Run from(const View& view, i64 m, i64 n, i64 limit) {
    if (n < begin || n >= begin + run.length) {
      run = find(view, m, n, wanted);
      begin = n;
      wanted *= 2;
    }
    const i64 passed = n - begin;
    return {run.offset + passed * run.stride, run.stride, min(run.length - passed, limit), run.valid};
  }

 private:
#if TESSERA_GPU_COMPILER
#define TESSERA_ONE_COPY TESSERA_HD
#else
#define TESSERA_ONE_COPY __attribute__((noinline, flatten))
#endif
  template <class View>
  static TESSERA_ONE_COPY Run find(const View& view, i64 m, i64 n, i64 limit) {
    using Index = typename View::Index;
    return view.run({{static_cast<Index>(m), static_cast<Index>(n)}}, 1, limit);
  }
#undef TESSERA_ONE_COPY
};
struct NoStretch {};

/// An entry of a tuple, not a copy of it.
template <int I, class T>
TESSERA_HD const T& in_place(const Slot<I, T>& slot) {
  return slot.value;
}

/// One row of a matrix view, read and written in whichever way its layout allows; Unit: the caller has
/// checked that its elements are contiguous.
template <class View, bool Unit>
struct MatrixRow {
  View view;
  i64 m;
  mutable conditional_t<View::is_strided, NoStretch, LastStretch> last{};

  template <class V, class Lanes>
  TESSERA_HD V read(i64 n, Lanes lanes) const {
    using T = element_t<V>;
    if constexpr (is_one_column<View>()) {
      return V(convert_element<T>(view.data[m * view.stride(0)]));
    } else if constexpr (View::is_strided) {
      const auto* p = view.data + m * view.stride(0) + n * view.stride(1);
      if (Unit || view.stride(1) == 1) return load_lanes<V>(p, lanes);
      if (view.stride(1) == 0) return V(convert_element<T>(*p));
      return load_strided<V>(p, view.stride(1), lane_count<V>(lanes));
    } else if constexpr (lanes_v<V> == 1) {
      return view.valid(m, n) ? V(convert_element<T>(view.at(m, n))) : V(T(0));
    } else {
      const i64 count = lane_count<V>(lanes);
      const Run whole = last.from(view, m, n, count);
      if (whole.valid && whole.length == count && whole.stride <= 1 && whole.stride >= 0) {
        const auto* p = view.data + whole.offset;
        return whole.stride == 1 ? load_lanes<V>(p, lanes) : V(convert_element<T>(*p));
      }
      T lane[lanes_v<V>] = {};
      for_runs(n, count, [&](i64 i, const Run& run) {
        const auto* p = view.data + run.offset;
        for (i64 j = 0; j < run.length; ++j) lane[i + j] = convert_element<T>(p[j * run.stride]);
      });
      return load<V>(static_cast<const T*>(lane));
    }
  }
  template <class V, class Lanes>
  TESSERA_HD void write(i64 n, V v, Lanes lanes) const {
    using S = remove_cvref_t<typename View::Element>;
    if constexpr (View::is_strided) {
      auto* p = view.data + m * view.stride(0) + n * view.stride(1);
      if (Unit || view.stride(1) == 1) return store_lanes(p, v, lanes);
      store_strided(p, view.stride(1), v, lane_count<V>(lanes));
    } else if constexpr (lanes_v<V> == 1) {
      if (view.valid(m, n)) view.at(m, n) = convert_element<S>(get(v, 0));
    } else {
      const i64 count = lane_count<V>(lanes);
      const Run whole = last.from(view, m, n, count);
      if (whole.valid && whole.length == count && whole.stride == 1) {
        return store_lanes(view.data + whole.offset, v, lanes);
      }
      element_t<V> lane[lanes_v<V>];
      store(&lane[0], v);
      for_runs(n, count, [&](i64 i, const Run& run) {
        auto* p = view.data + run.offset;
        for (i64 j = 0; j < run.length; ++j) p[j * run.stride] = convert_element<S>(lane[i + j]);
      });
    }
  }

 private:
  /// fn(i, run) for the valid stretches of columns [n, n + count), the first column of a run being n + i.
  template <class Fn>
  TESSERA_HD void for_runs(i64 n, i64 count, const Fn& fn) const {
    for (i64 i = 0; i < count;) {
      const Run run = last.from(view, m, n + i, count - i);
      if (run.valid) fn(i, run);
      i += run.length;
    }
  }
};
}  // namespace detail

/// An expression has row<Unit>(m): the same with the row fixed, called with the accumulators of columns
/// n, n + 1, ...; and views(f), which calls f with every view it reads or writes.
template <class E>
concept Expression = requires {
  typename E::IsExpression;
};

struct Acc {
  using IsExpression = void;
  struct Row {
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64, Lanes) const {
      return a;
    }
  };
  template <bool Unit = false>
  TESSERA_HD Row row(i64) const {
    return {};
  }
  template <class F>
  TESSERA_HD void views(const F&) const {}
};
/// The accumulated product.
inline constexpr Acc acc{};

template <class T>
struct Constant {
  using IsExpression = void;
  T value;
  template <bool Unit = false>
  TESSERA_HD Constant row(i64) const {
    return *this;
  }
  template <class F>
  TESSERA_HD void views(const F&) const {}
  template <class V, class Lanes>
  TESSERA_HD V operator()(V, i64, Lanes) const {
    return V(static_cast<element_t<V>>(value));
  }
};

template <class View>
struct Load {
  using IsExpression = void;
  View view;
  template <bool Unit>
  struct Row : detail::MatrixRow<View, Unit> {
    template <class V, class Lanes>
    TESSERA_HD V operator()(V, i64 n, Lanes lanes) const {
      return this->template read<V>(n, lanes);
    }
  };
  template <bool Unit = false>
  TESSERA_HD Row<Unit> row(i64 m) const {
    return {{view, m, {}}};
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    f(view);
  }
};
/// The element of a matrix view at the place of the result. A row of biases is
/// strided(bias, {m, n}, {0, 1}), a column of them {1, 0}.
template <class T, class D>
TESSERA_HD Load<View<T, D>> load(const View<T, D>& view) {
  static_assert(View<T, D>::rank == 2, "load: an epilogue reads matrices");
  return {view};
}

template <class F, class... E>
struct Apply {
  using IsExpression = void;
  F f;
  Tuple<E...> args;
  template <class... R>
  struct Row {
    F f;
    Tuple<R...> args;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      return call(a, n, lanes, make_seq<static_cast<int>(sizeof...(R))>{});
    }
    template <class V, class Lanes, int... I>
    TESSERA_HD V call(V a, i64 n, Lanes lanes, Seq<I...>) const {
      return f(detail::in_place<I>(args)(a, n, lanes)...);
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return bind<Unit>(m, Args{});
  }
  template <class G>
  TESSERA_HD void views(const G& g) const {
    visit(g, Args{});
  }

 private:
  using Args = make_seq<static_cast<int>(sizeof...(E))>;
  template <bool Unit, int... I>
  TESSERA_HD auto bind(i64 m, Seq<I...>) const {
    return Row<decltype(get<I>(args).template row<Unit>(m))...>{f, tuple(get<I>(args).template row<Unit>(m)...)};
  }
  template <class G, int... I>
  TESSERA_HD void visit(const G& g, Seq<I...>) const {
    (get<I>(args).views(g), ...);
  }
};
/// f(e...), for any function object that takes vectors and scalars alike.
template <class F, Expression... E>
TESSERA_HD Apply<F, E...> apply(F f, E... e) {
  return {f, tuple(e...)};
}

template <class View, class E, bool Add>
struct Store {
  using IsExpression = void;
  View view;
  E value;
  template <class R, bool Unit>
  struct Row : detail::MatrixRow<View, Unit> {
    R value;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      V v = value(a, n, lanes);
      if constexpr (Add) v = v + this->template read<V>(n, lanes);
      this->write(n, v, lanes);
      return v;
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return Row<decltype(value.template row<Unit>(m)), Unit>{{view, m, {}}, value.template row<Unit>(m)};
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    f(view);
    value.views(f);
  }
};
/// Writes e to the view, converted to its element type, and goes on with e.
template <class T, class D, Expression E>
TESSERA_HD Store<View<T, D>, E, false> store(const View<T, D>& view, E e) {
  static_assert(View<T, D>::rank == 2, "store: an epilogue writes matrices");
  return {view, e};
}
/// Adds e to what the view holds.
template <class T, class D, Expression E>
TESSERA_HD Store<View<T, D>, E, true> accumulate(const View<T, D>& view, E e) {
  static_assert(View<T, D>::rank == 2, "accumulate: an epilogue writes matrices");
  return {view, e};
}

template <class A, class B>
struct Also {
  using IsExpression = void;
  A first;
  B second;
  template <class RA, class RB>
  struct Row {
    RA first;
    RB second;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      first(a, n, lanes);
      return second(a, n, lanes);
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return Row<decltype(first.template row<Unit>(m)), decltype(second.template row<Unit>(m))>{
        first.template row<Unit>(m), second.template row<Unit>(m)};
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    first.views(f);
    second.views(f);
  }
};
/// Both expressions, in this order; the value is the second's.
template <Expression A, Expression B>
TESSERA_HD Also<A, B> also(A a, B b) {
  return {a, b};
}

// ---- operators and functions

namespace detail {
template <class X>
inline constexpr bool is_number = is_same_v<X, float> || is_same_v<X, double> || is_same_v<X, int>;
template <class X>
concept Term = Expression<X> || is_number<X>;
template <class X>
TESSERA_HD auto term(X x) {
  if constexpr (is_number<X>) {
    return Constant<X>{x};
  } else {
    return x;
  }
}
}  // namespace detail

#define TESSERA_BINARY(name, op, result)                                  \
  struct name {                                                           \
    template <class V>                                                    \
    TESSERA_HD V operator()(V a, V b) const {                             \
      return result;                                                      \
    }                                                                     \
  };                                                                      \
  template <detail::Term A, detail::Term B>                               \
  requires(Expression<A> || Expression<B>) TESSERA_HD auto op(A a, B b) { \
    return apply(name{}, detail::term(a), detail::term(b));               \
  }
TESSERA_BINARY(Plus, operator+, a + b)
TESSERA_BINARY(Minus, operator-, a - b)
TESSERA_BINARY(Times, operator*, a* b)
TESSERA_BINARY(Over, operator/, a / b)
#undef TESSERA_BINARY

template <Expression A, detail::Term B>
TESSERA_HD auto max(A a, B b) {
  return apply(Max{}, a, detail::term(b));
}
template <Expression A, detail::Term B>
TESSERA_HD auto min(A a, B b) {
  return apply(Min{}, a, detail::term(b));
}

#define TESSERA_UNARY(Name, name)        \
  struct Name {                          \
    template <class V>                   \
    TESSERA_HD V operator()(V x) const { \
      return tile::name(x);              \
    }                                    \
  };                                     \
  template <Expression E>                \
  TESSERA_HD auto name(E e) {            \
    return apply(Name{}, e);             \
  }
TESSERA_UNARY(Relu, relu)
TESSERA_UNARY(GeluTanh, gelu_tanh)
TESSERA_UNARY(GeluErf, gelu_erf)
TESSERA_UNARY(Silu, silu)
TESSERA_UNARY(Sigmoid, sigmoid)
TESSERA_UNARY(Tanh, tanh)
TESSERA_UNARY(Exp, exp)
TESSERA_UNARY(Log, log)
TESSERA_UNARY(Sqrt, sqrt)
TESSERA_UNARY(Rsqrt, rsqrt)
TESSERA_UNARY(Square, square)
TESSERA_UNARY(Abs, abs)
#undef TESSERA_UNARY

/// The expression at one element, for one accumulator: what a GPU thread calls, and tests.
template <Expression E, class T>
TESSERA_HD T evaluate(const E& e, T accumulator, i64 m, i64 n) {
  return e.row(m)(accumulator, n, AllLanes{});
}

TESSERA_TILE_END
