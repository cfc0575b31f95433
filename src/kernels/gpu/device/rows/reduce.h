// Reductions: how their loops are laid over threads, and the folds. A team takes a result whose elements lie together,
// a thread each of neighbouring results; few results of many elements are folded in slices, whose states are joined
// after.
#pragma once
#include "rows.h"

namespace tessera::gpu_kernels {

struct ReducePlan {
  Nest<2> results;   // over the input and the output
  Nest<1> elements;  // of a result
  i64 extent;        // of those in memory, with the gaps between rows; without rows: how many they are
  i64 row, pitch;    // rows that begin so far apart, with small gaps between them; pitch 0: none
  const void* in;
  void* out;
  Scalar in_type, out_type, compute;
  ReduceOp op;
  double parameter;
  bool columns;  // a thread per result, else a team
  int team;      // threads of a team
  int ways;      // threads that share a result otherwise
  i64 slices, slice_length;
  void* states;  // [results][slices]; null: there is one slice
};

/// Folds in f32 from packs of one type; false where the op or the memory does not take them.
bool reduce_packs_f32(const ReducePlan& plan, Executor& executor);
bool reduce_packs_f16(const ReducePlan& plan, Executor& executor);
bool reduce_packs_bf16(const ReducePlan& plan, Executor& executor);
/// Folds element by element from memory of any type.
void reduce_f32(const ReducePlan& plan, Executor& executor);
void reduce_f64(const ReducePlan& plan, Executor& executor);
void reduce_i64(const ReducePlan& plan, Executor& executor);
void join_slices(const ReducePlan& plan, Executor& executor);

// ---- folds: a thread folds elements into a Local, and that now and then into a State, which has room for long sums

template <class C>
using wide_t = tile::conditional_t<tile::is_same_v<C, i64>, i64, double>;
template <class C>
inline constexpr bool is_integer = tile::is_same_v<C, i64>;

template <class C>
TESSERA_DEVICE C lowest() {
  if constexpr (is_integer<C>) return -0x7fffffffffffffffll - 1;
  else return -static_cast<C>(__builtin_inf());
}
template <class C>
TESSERA_DEVICE C highest() {
  if constexpr (is_integer<C>) return 0x7fffffffffffffffll;
  else return static_cast<C>(__builtin_inf());
}

/// A fold whose Local joins others of its kind as its State does.
template <class C, class S, class Derived>
struct SimpleFold {
  using Compute = C;
  using Local = C;
  using State = S;
  static TESSERA_DEVICE State begin() { return static_cast<State>(Derived::start()); }
  static TESSERA_DEVICE void flush(State& s, Local& l) {
    s = Derived::join(s, static_cast<State>(l));
    l = Derived::start();
  }
  static TESSERA_DEVICE C finish(const State& s, i64, const ReducePlan&) { return static_cast<C>(s); }
  static constexpr bool takes_places = false;
};

enum class Term { plain, square, absolute };

template <class C, Term term>
struct SumFold : SimpleFold<C, wide_t<C>, SumFold<C, term>> {
  static constexpr bool takes_packs = term != Term::absolute;
  using S = wide_t<C>;
  static TESSERA_DEVICE C start() { return C(0); }
  static TESSERA_DEVICE void fold(C& s, C x, i64) {
    if constexpr (term == Term::plain) s += x;
    else if constexpr (term == Term::square) s = tile::fma(x, x, s);
    else s += tile::abs(x);
  }
  static TESSERA_DEVICE S join(S a, S b) { return a + b; }
  static TESSERA_DEVICE C finish(S s, i64 n, const ReducePlan& plan) {
    if (plan.op == ReduceOp::mean) s /= static_cast<S>(n);
    if constexpr (term == Term::square)
      if (plan.op == ReduceOp::norm) s = tile::sqrt(s);
    return static_cast<C>(s);
  }
};
template <class C>
struct ProductFold : SimpleFold<C, wide_t<C>, ProductFold<C>> {
  static constexpr bool takes_packs = false;
  static TESSERA_DEVICE C start() { return C(1); }
  static TESSERA_DEVICE void fold(C& s, C x, i64) { s *= x; }
  static TESSERA_DEVICE wide_t<C> join(wide_t<C> a, wide_t<C> b) { return a * b; }
};
/// NaN wins.
template <class C, bool largest, Term term = Term::plain>
struct ExtremeFold : SimpleFold<C, C, ExtremeFold<C, largest, term>> {
  static constexpr bool takes_packs = largest && term == Term::plain;
  static TESSERA_DEVICE C start() { return term == Term::absolute ? C(0) : largest ? lowest<C>() : highest<C>(); }
  static TESSERA_DEVICE C join(C a, C b) { return b != b || (largest ? a < b : b < a) ? b : a; }
  static TESSERA_DEVICE void fold(C& s, C x, i64) {
    if constexpr (term == Term::absolute) x = tile::abs(x);
    s = join(s, x);
  }
};
template <class C, bool any>
struct TruthFold : SimpleFold<C, C, TruthFold<C, any>> {
  static constexpr bool takes_packs = false;
  static TESSERA_DEVICE C start() { return any ? C(0) : C(1); }
  static TESSERA_DEVICE C join(C a, C b) { return any ? (a < b ? b : a) : (b < a ? b : a); }
  static TESSERA_DEVICE void fold(C& s, C x, i64) {
    if ((x != C(0)) == any) s = any ? C(1) : C(0);
  }
};

/// The place of the largest or smallest: the first of equals, NaN wins.
template <class C, bool largest>
struct ArgFold {
  struct State {
    C value;
    i64 index;
  };
  using Compute = C;
  using Local = State;
  static constexpr bool takes_packs = tile::is_same_v<C, float>, takes_places = true;
  static TESSERA_DEVICE State start() { return {largest ? lowest<C>() : highest<C>(), -1}; }
  static TESSERA_DEVICE State begin() { return start(); }
  static TESSERA_DEVICE void flush(State& s, Local& l) {
    s = join(s, l);
    l = start();
  }
  static TESSERA_DEVICE bool takes_second(C a, i64 a_index, C b, i64 b_index) {
    const bool a_nan = a != a, b_nan = b != b, equal = (a_nan && b_nan) || a == b;
    const bool beyond = a_nan == b_nan ? (largest ? b > a : b < a) : b_nan;
    return b_index >= 0 && (a_index < 0 || (equal ? b_index < a_index : beyond));
  }
  /// Chooses between values, not between structures, which AMD's compiler would put into memory for that.
  static TESSERA_DEVICE State join(const State& a, const State& b) {
    const C value = a.value, other = b.value;
    const i64 index = a.index, other_index = b.index;
    const bool second = takes_second(value, index, other, other_index);
    return {second ? other : value, second ? other_index : index};
  }
  static TESSERA_DEVICE void fold(Local& s, C x, i64 index) {
    const C value = s.value;
    const i64 before = s.index;
    const bool second = takes_second(value, before, x, index);
    s.value = second ? x : value;
    s.index = second ? index : before;
  }
  static TESSERA_DEVICE i64 finish(const State& s, i64, const ReducePlan&) { return s.index; }
};

/// Variance, without cancellation (Welford, Technometrics 4, 1962).
template <class C>
struct MomentsFold {
  using Compute = C;
  using Local = tile::Moments<C>;
  using State = tile::Moments<double>;
  static constexpr bool takes_packs = false;
  static TESSERA_DEVICE Local start() { return {C(0), C(0), C(0)}; }
  static TESSERA_DEVICE State begin() { return {0, 0, 0}; }
  static TESSERA_DEVICE void fold(Local& s, C x, i64) {
    s.count += C(1);
    const C delta = x - s.mean;
    s.mean += delta / s.count;
    s.squares = tile::fma(delta, x - s.mean, s.squares);
  }
  static TESSERA_DEVICE void flush(State& s, Local& l) {
    s = join(s, State{static_cast<double>(l.mean), static_cast<double>(l.squares), static_cast<double>(l.count)});
    l = start();
  }
  static TESSERA_DEVICE State join(const State& a, const State& b) { return tile::merge(a, b); }
  static TESSERA_DEVICE C finish(const State& s, i64 n, const ReducePlan& plan) {
    const double variance = s.squares / tile::max(0.0, static_cast<double>(n) - plan.parameter);
    return static_cast<C>(plan.op == ReduceOp::std ? tile::sqrt(variance) : variance);
  }
};

template <class C>
struct LogSumExpFold {
  using Compute = C;
  using Local = Exponents<C>;
  using State = Exponents<C>;
  static constexpr bool takes_packs = false;
  static TESSERA_DEVICE Local start() { return Local::start(); }
  static TESSERA_DEVICE State begin() { return start(); }
  static TESSERA_DEVICE void fold(Local& s, C x, i64) { s.add(Pack<C, 1>{{x}}); }
  static TESSERA_DEVICE void flush(State& s, Local& l) {
    s = join(s, l);
    l = start();
  }
  static TESSERA_DEVICE State join(const State& a, const State& b) { return JoinExponents{}(a, b); }
  static TESSERA_DEVICE C finish(const State& s, i64, const ReducePlan&) {
    if (s.sum != s.sum) return s.sum;
    return tile::abs(s.largest) < highest<C>() ? s.largest + tile::log(s.sum) : s.largest;
  }
};

/// Rare reductions, which have no kernels that compute in f32: f64 holds all that f32 does.
constexpr bool takes_doubles(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod:
    case ReduceOp::any:
    case ReduceOp::all:
    case ReduceOp::abs_sum:
    case ReduceOp::abs_max:
      return true;
    default:
      return false;
  }
}

/// fn(Type<Fold>) for the fold of an op.
template <class C, class Fn>
void with_fold(ReduceOp op, const Fn& fn) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return fn(Type<SumFold<C, Term::plain>>{});
    case ReduceOp::max:
      return fn(Type<ExtremeFold<C, true>>{});
    case ReduceOp::min:
      return fn(Type<ExtremeFold<C, false>>{});
    case ReduceOp::argmax:
      return fn(Type<ArgFold<C, true>>{});
    case ReduceOp::argmin:
      return fn(Type<ArgFold<C, false>>{});
    default:
      break;
  }
  if constexpr (!tile::is_same_v<C, float>) {  // takes_doubles()
    switch (op) {
      case ReduceOp::prod:
        return fn(Type<ProductFold<C>>{});
      case ReduceOp::any:
        return fn(Type<TruthFold<C, true>>{});
      case ReduceOp::all:
        return fn(Type<TruthFold<C, false>>{});
      default:
        break;
    }
  }
  if constexpr (tile::is_same_v<C, double>) {
    if (op == ReduceOp::abs_sum) return fn(Type<SumFold<C, Term::absolute>>{});
    if (op == ReduceOp::abs_max) return fn(Type<ExtremeFold<C, true, Term::absolute>>{});
  }
  if constexpr (!is_integer<C>) {
    switch (op) {
      case ReduceOp::variance:
      case ReduceOp::std:
        return fn(Type<MomentsFold<C>>{});
      case ReduceOp::norm:
      case ReduceOp::squares:
        return fn(Type<SumFold<C, Term::square>>{});
      case ReduceOp::logsumexp:
        return fn(Type<LogSumExpFold<C>>{});
      default:
        break;
    }
  }
  throw_unsupported("a reduction");
}

/// The room that any State fits in.
inline constexpr int state_bytes = 24;

template <class Fold>
TESSERA_DEVICE void store_result(const ReducePlan& plan, i64 at, const typename Fold::State& state) {
  store_as(plan.out, plan.out_type, at, Fold::finish(state, plan.elements.total, plan));
}

}  // namespace tessera::gpu_kernels
