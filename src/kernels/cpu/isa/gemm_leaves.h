// The general epilogue of a product: leaves that may be missing, or of a type known at run time only.
#pragma once

#include "gemm_epilogue.h"
#include "kernels/shared/epilogue.h"

namespace tessera::cpu_kernels::TESSERA_ISA {

/// A matrix of type T, or of any floating type where T is void. Small, because it is copied for every row.
template <class T>
struct Place {
  char* data;
  i64 row, column;  // strides
  Scalar type;

  TESSERA_HD Place at_row(i64 m) const {
    const i64 size = tile::is_same_v<T, void> ? (type == Scalar::f32 ? 4 : 2) : static_cast<i64>(element_size);
    return {data ? data + m * row * size : nullptr, row, column, type};
  }
  /// Stores lanes from column n on.
  template <bool Unit, class V, class Lanes>
  TESSERA_HD void put(i64 n, V v, Lanes lanes) const {
    with_row([&](auto* p) {
      using tile::detail::store_lanes, tile::detail::lane_count;
      if (Unit || column == 1) {
        store_lanes(p + n, v, lanes);
      } else {
        tile::store_strided(p + n * column, column, v, lane_count<V>(lanes));
      }
    });
  }
  /// f(pointer to the row's first element)
  template <class F>
  TESSERA_HD void with_row(const F& f) const {
    if constexpr (!tile::is_same_v<T, void>) {
      f(reinterpret_cast<T*>(data));
    } else if (type == Scalar::f32) {
      f(reinterpret_cast<float*>(data));
    } else if (type == Scalar::f16) {
      f(reinterpret_cast<tile::f16*>(data));
    } else {
      f(reinterpret_cast<tile::bf16*>(data));
    }
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    if (data) with_row([&](auto* p) { f(tile::strided(p, {1, 1}, {row, column})); });
  }

  static constexpr int element_size = sizeof(tile::conditional_t<tile::is_same_v<T, void>, char, T>);
};

template <class T>
struct OptionalLoad : Place<T> {
  using IsExpression = void;
  template <bool Unit>
  struct Row {
    Place<T> place;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V, i64 n, Lanes lanes) const {
      V v(0);
      if (!place.data) return v;
      place.with_row([&](const auto* p) {
        using tile::detail::load_lanes, tile::detail::lane_count;
        if (Unit || place.column == 1) {
          v = load_lanes<V>(p + n, lanes);
        } else {
          v = tile::load_strided<V>(p + n * place.column, place.column, lane_count<V>(lanes));
        }
      });
      return v;
    }
  };
  template <bool Unit = false>
  TESSERA_HD Row<Unit> row(i64 m) const {
    return {this->at_row(m)};
  }
};

template <class T, class E>
struct PlacedStore : Place<T> {
  using IsExpression = void;
  E value;
  template <class R, bool Unit>
  struct Row {
    Place<T> place;
    R value;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      const V v = value(a, n, lanes);
      place.template put<Unit>(n, v, lanes);
      return v;
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return Row<decltype(value.template row<Unit>(m)), Unit>{this->at_row(m), value.template row<Unit>(m)};
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    Place<T>::views(f);
    value.views(f);
  }
};

/// f of a value; its derivative goes to a place that may be missing.
template <class T, class F, class E>
struct Activated : Place<T> {
  using IsExpression = void;
  F f;
  E value;
  template <class R, bool Unit>
  struct Row {
    Place<T> place;
    F f;
    R value;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      const V x = value(a, n, lanes);
      if (!place.data) return f(x);
      const auto y = f.both(x);
      place.template put<Unit>(n, y.slope, lanes);
      return y.value;
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return Row<decltype(value.template row<Unit>(m)), Unit>{this->at_row(m), f, value.template row<Unit>(m)};
  }
  template <class V>
  TESSERA_HD void views(const V& visit) const {
    Place<T>::views(visit);
    value.views(visit);
  }
};

/// A value times a factor that may be missing; the sums of its row and its column may be wanted, in type C.
template <class T, class C, class E>
struct Finished : Place<T> {
  using IsExpression = void;
  C *rows, *columns;
  E value;
  template <class R, bool Unit>
  struct Row {
    typename OptionalLoad<T>::template Row<Unit> factor;
    C *sum, *columns;
    R value;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      V v = value(a, n, lanes);
      if (factor.place.data) v = v * factor(a, n, lanes);
      if (columns) {
        using tile::detail::load_lanes, tile::detail::store_lanes;
        store_lanes(columns + n, load_lanes<V>(columns + n, lanes) + v, lanes);
      }
      if (sum) *sum += sum_of(v, lanes);
      return v;
    }
    template <class V>
    static TESSERA_HD C sum_of(V v, tile::AllLanes) {
      return reduce_sum(v);
    }
    template <class V>
    static TESSERA_HD C sum_of(V v, int n) {
      return reduce_sum(select(tile::iota<V>() < V(C(n)), v, V(C(0))));
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return Row<decltype(value.template row<Unit>(m)), Unit>{
        {this->at_row(m)}, rows ? rows + m : nullptr, columns, value.template row<Unit>(m)};
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    Place<T>::views(f);
    value.views(f);
  }
};

template <class T>
Place<T> place(const GemmProblem& p, const MatrixArg& m) {
  return {static_cast<char*>(p.at(m).data), m.row, m.column, m.type};
}

/// c = f(alpha acc + beta addend + bias), slope = f'(...), with matrices of type E (void: known at run time). With
/// Finish c is multiplied by the factor, too, and its rows and columns are summed up.
template <class T, class E, bool Finish = false, class F>
void with_general(const GemmProblem& p, const EpilogueUser<T>& use, F f) {
  using namespace tile;
  const GemmArgs& args = p.args;
  const auto optional = [&](const MatrixArg& m) { return OptionalLoad<E>{place<E>(p, m)}; };
  const T alpha = static_cast<T>(args.alpha), beta = static_cast<T>(args.beta);
  const auto sum = acc * alpha + optional(args.addend) * beta + optional(args.bias);
  const Activated<E, F, remove_cvref_t<decltype(sum)>> result{place<E>(p, args.slope), f, sum};
  const auto keep = [&](const auto& value) {
    use(PlacedStore<E, remove_cvref_t<decltype(value)>>{place<E>(p, args.c), value});
  };
  if constexpr (Finish) {
    keep(Finished<E, T, remove_cvref_t<decltype(result)>>{place<E>(p, args.factor), row_sums<T>(p), column_sums<T>(p),
                                                          result});
  } else {
    keep(result);
  }
}

/// Whether there is more to do than f.
inline bool is_finished(const GemmArgs& args) { return args.factor.data || sums_lines(args); }

/// The same for an activation that is asked for at every vector.
template <class T, class E, bool Finish = false>
void with_any(const GemmProblem& p, const EpilogueUser<T>& use) {
  with_general<T, E, Finish>(p, use, AnyActivation{p.args.activation});
}
template <class T, class E>
WithEpilogue<T> any_epilogue(const GemmArgs& args) {
  return is_finished(args) ? with_any<T, E, true> : with_any<T, E>;
}

/// c = acc or c += acc, if that is all that the arguments ask for; otherwise null.
template <class T>
WithEpilogue<T> plain_epilogue(const GemmArgs& args) {
  const MatrixArg &c = args.c, &addend = args.addend;
  if (args.activation != Activation::none || args.bias.data || args.slope.data || args.alpha != 1) return nullptr;
  if (is_finished(args)) return nullptr;
  if (!addend.data) {
    return [](const GemmProblem& p, const EpilogueUser<T>& use) {
      use(store(matrix<T>(p.at(p.args.c), p.args.m, p.args.n), tile::acc));
    };
  }
  bool in_place = args.beta == 1 && addend.data == c.data && addend.row == c.row && addend.column == c.column;
  for (int d = 0; d < args.batch_rank; ++d) in_place = in_place && addend.batch[d] == c.batch[d];
  if (!in_place) return nullptr;
  return [](const GemmProblem& p, const EpilogueUser<T>& use) {
    use(accumulate(matrix<T>(p.at(p.args.c), p.args.m, p.args.n), tile::acc));
  };
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
