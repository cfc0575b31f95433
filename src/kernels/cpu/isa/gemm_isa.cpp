#include "gemm.h"

#include "epilogue.h"
#include "tile/kernels/gemm.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

/// A matrix as a view of elements of type T.
template <class T>
TESSERA_HD StridedView<T, 2> matrix(const MatrixArg& arg, i64 rows, i64 columns) {
  return strided(static_cast<T*>(arg.data), {rows, columns}, {arg.row, arg.column});
}

i64 batch_offset(const GemmArgs& args, const MatrixArg& m, i64 index) {
  i64 offset = 0;
  for (int d = args.batch_rank - 1; d >= 0; --d) {
    offset += index % args.batch[d] * m.batch[d];
    index /= args.batch[d];
  }
  return offset;
}

// ---- leaves of the epilogue that may be missing, or of a type known at run time only

/// A matrix of type T, or of any floating type where T is void. Small, because it is copied for every row.
template <class T>
struct Place {
  char* data;
  i64 row, column;  // strides
  Scalar type;

  TESSERA_HD Place at_row(i64 m) const {
    const i64 size = is_same_v<T, void> ? (type == Scalar::f32 ? 4 : 2) : static_cast<i64>(element_size);
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
        store_strided(p + n * column, column, v, lane_count<V>(lanes));
      }
    });
  }
  /// f(pointer to the row's first element)
  template <class F>
  TESSERA_HD void with_row(const F& f) const {
    if constexpr (!is_same_v<T, void>) {
      f(reinterpret_cast<T*>(data));
    } else if (type == Scalar::f32) {
      f(reinterpret_cast<float*>(data));
    } else if (type == Scalar::f16) {
      f(reinterpret_cast<f16*>(data));
    } else {
      f(reinterpret_cast<bf16*>(data));
    }
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    if (data) with_row([&](auto* p) { f(strided(p, {1, 1}, {row, column})); });
  }

  static constexpr int element_size = sizeof(conditional_t<is_same_v<T, void>, char, T>);
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
          v = load_strided<V>(p + n * place.column, place.column, lane_count<V>(lanes));
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

// ---- from arguments to products

/// The matrices of one index of the batch.
struct Problem {
  const GemmArgs& args;
  i64 index;

  MatrixArg at(const MatrixArg& m) const {
    MatrixArg r = m;
    if (r.data) r.data = static_cast<char*>(r.data) + batch_offset(args, m, index) * size_of(m.type);
    return r;
  }
  template <class T>
  StridedView<T, 2> c() const {
    return matrix<T>(at(args.c), args.m, args.n);
  }
  template <class T>
  Place<T> place(const MatrixArg& m) const {
    return {static_cast<char*>(at(m).data), m.row, m.column, m.type};
  }
  template <class T>
  OptionalLoad<T> optional(const MatrixArg& m) const {
    return {place<T>(m)};
  }

  static int size_of(Scalar type) { return type == Scalar::f64 ? 8 : type == Scalar::f32 ? 4 : 2; }
};

template <class T, class F>
void with_operand(const MatrixArg& m, i64 rows, i64 columns, const F& f) {
  if constexpr (is_same_v<T, double>) {
    f(matrix<const double>(m, rows, columns));
  } else if (m.type == Scalar::f16) {
    f(matrix<const f16>(m, rows, columns));
  } else if (m.type == Scalar::bf16) {
    f(matrix<const bf16>(m, rows, columns));
  } else {
    f(matrix<const float>(m, rows, columns));
  }
}

/// Runs the batch in compute type T; sink(problem) makes the epilogue.
template <class T, class MakeSink>
void run_with(const GemmArgs& args, Executor& executor, const MakeSink& sink) {
  i64 count = 1;
  for (int d = 0; d < args.batch_rank; ++d) count *= args.batch[d];
  const cpu::Extent extent{args.m, args.n, args.k};
  cpu::multiply_all<T>(ExecutorRef(executor), extent, count, [&](i64 index, const auto& multiply) {
    const Problem problem{args, index};
    const auto epilogue = sink(problem);
    const MatrixArg a = problem.at(args.a), b = problem.at(args.b);
    cpu::Product<T> product{extent, {}, {}, cpu::epilogue_of<T>(epilogue)};
    with_operand<T>(a, args.m, args.k, [&](const auto& left) {
      product.a = cpu::operand<0, T>(left);
      with_operand<T>(b, args.k, args.n, [&](const auto& right) {
        product.b = cpu::operand<1, T>(right);
        multiply(product);
      });
    });
  });
}

/// The general epilogue with matrices of type E (void: known at run time) and activation f.
template <class T, class E, class F>
void run_epilogue(const GemmArgs& args, Executor& executor, F f) {
  run_with<T>(args, executor, [&](const Problem& p) {
    const T alpha = static_cast<T>(args.alpha), beta = static_cast<T>(args.beta);
    const auto sum = acc * alpha + p.optional<E>(args.addend) * beta + p.optional<E>(args.bias);
    const Activated<E, F, remove_cvref_t<decltype(sum)>> result{p.place<E>(args.slope), f, sum};
    return PlacedStore<E, remove_cvref_t<decltype(result)>>{p.place<E>(args.c), result};
  });
}

/// gelu_tanh(a b + addend + bias) in f32, whose leaves all exist.
void run_add_add_gelu(const GemmArgs& args, Executor& executor) {
  run_with<float>(args, executor, [&](const Problem& p) {
    const auto read = [&](const MatrixArg& m) { return load(matrix<const float>(p.at(m), args.m, args.n)); };
    return store(p.c<float>(), gelu_tanh(acc + read(args.addend) + read(args.bias)));
  });
}

/// The common case, f32 throughout, has a loop of its own per activation; the others decide for every vector.
void run_f32(const GemmArgs& args, Executor& executor) {
  switch (args.activation) {
    case Activation::none:
      return run_epilogue<float, float>(args, executor, FixedActivation<Activation::none>{});
    case Activation::relu:
      return run_epilogue<float, float>(args, executor, FixedActivation<Activation::relu>{});
    case Activation::gelu_tanh:
      if (args.addend.data && args.bias.data && !args.slope.data && args.alpha == 1 && args.beta == 1) {
        return run_add_add_gelu(args, executor);
      }
      return run_epilogue<float, float>(args, executor, FixedActivation<Activation::gelu_tanh>{});
    case Activation::gelu_erf:
      return run_epilogue<float, float>(args, executor, FixedActivation<Activation::gelu_erf>{});
    default:
      return run_epilogue<float, float>(args, executor, AnyActivation{args.activation});
  }
}

bool same_place(const GemmArgs& args, const MatrixArg& x, const MatrixArg& y) {
  bool same = x.data == y.data && x.type == y.type && x.row == y.row && x.column == y.column;
  for (int d = 0; d < args.batch_rank; ++d) same = same && x.batch[d] == y.batch[d];
  return same;
}

template <class T>
void run_as(const GemmArgs& args, Executor& executor, Scalar type) {
  const bool plain = args.activation == Activation::none && !args.bias.data && !args.slope.data && args.alpha == 1 &&
                     args.c.type == type;
  if (plain && !args.addend.data) {
    return run_with<T>(args, executor, [](const Problem& p) { return store(p.c<T>(), acc); });
  }
  if (plain && args.beta == 1 && same_place(args, args.addend, args.c)) {
    return run_with<T>(args, executor, [](const Problem& p) { return accumulate(p.c<T>(), acc); });
  }
  const AnyActivation activation{args.activation};
  if constexpr (is_same_v<T, double>) return run_epilogue<double, double>(args, executor, activation);
  const auto is_f32 = [](const MatrixArg& m) { return !m.data || m.type == Scalar::f32; };
  if (is_f32(args.c) && is_f32(args.addend) && is_f32(args.bias) && is_f32(args.slope)) return run_f32(args, executor);
  run_epilogue<float, void>(args, executor, activation);
}

// ---- the table

bool supports(const GemmArgs& args) {
  const MatrixArg* const all[] = {&args.a, &args.b, &args.c, &args.addend, &args.bias, &args.slope};
  for (const MatrixArg* m : all) {
    if (!m->data) continue;
    const bool half = m->type == Scalar::f16 || m->type == Scalar::bf16;
    if (args.a.type == Scalar::f64 ? m->type != Scalar::f64 : m->type != Scalar::f32 && !half) return false;
  }
  return true;
}

MatrixArg transposed(MatrixArg m) {
  const auto row = m.row;
  m.row = m.column;
  m.column = row;
  return m;
}

/// c^T = b^T a^T: the same work, with rows and columns of every matrix exchanged.
GemmArgs transposed(const GemmArgs& args) {
  GemmArgs t = args;
  t.m = args.n;
  t.n = args.m;
  t.a = transposed(args.b);
  t.b = transposed(args.a);
  t.c = transposed(args.c);
  t.addend = transposed(args.addend);
  t.bias = transposed(args.bias);
  t.slope = transposed(args.slope);
  return t;
}

void run(const GemmArgs& args, Executor& executor) {
  // The epilogue works along rows: a column-major result is computed as its transpose.
  if (args.c.column != 1 && args.c.row == 1 && args.n > 1) return run(transposed(args), executor);
  if (args.a.type == Scalar::f64) return run_as<double>(args, executor, Scalar::f64);
  run_as<float>(args, executor, Scalar::f32);
}

}  // namespace

const GemmTable gemm_table{supports, run};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
