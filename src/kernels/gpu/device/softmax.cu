// Softmax and log-softmax along rows, with their gradients.
#include "rows.h"

namespace tessera::gpu_kernels {
namespace {

using tile::compute_t;
using tile::convert_element;

template <class T>
struct SoftmaxWork {
  i64 rows, n;
  bool log;
  Rows<T> to;
  Rows<const T> x, y;
};

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void softmax_kernel(const SoftmaxWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  const RowReader<T, width, Team, held> x(work.x[r], work.n, convert_element<T>(-static_cast<C>(__builtin_inf())));
  const Span<T, width> y(work.to[r], work.n);
  auto e = Exponents<C>::start();
  for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) { e.add(Lanes<C, T, width>(x.get(p, k)).x); });
  e = Team::join(e, JoinExponents{});
  const C shift = work.log ? e.shift() + tile::log(e.sum) : e.shift(), scale = C(1) / e.sum;
  for_packs<Team, held>(x.span.packs(), [&](i64 p, auto k) {
    const Lanes<C, T, width> v(x.get(p, k));
    Pack<T, width> out;
    tile::unroll<width>(
        [&](auto j) { out.lane[j] = convert_element<T>(work.log ? v[j] - shift : fast_exp(v[j] - shift) * scale); });
    y.store(p, out);
  });
}

// softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy).
template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void softmax_backward_kernel(const SoftmaxWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  const RowReader<T, width, Team, held> dy(work.x[r], work.n, convert_element<T>(0.0f)),
      y(work.y[r], work.n, convert_element<T>(0.0f));
  const Span<T, width> dx(work.to[r], work.n);
  C sum = C(0);
  for_packs<Team, held>(y.span.packs(), [&](i64 p, auto k) {
    const Lanes<C, T, width> g(dy.get(p, k)), v(y.get(p, k));
    tile::unroll<width>([&](auto j) { sum += work.log ? g[j] : g[j] * v[j]; });
  });
  sum = Team::join(sum, Plus{});
  for_packs<Team, held>(y.span.packs(), [&](i64 p, auto k) {
    const Lanes<C, T, width> g(dy.get(p, k)), v(y.get(p, k));
    Pack<T, width> out;
    tile::unroll<width>([&](auto j) {
      out.lane[j] = convert_element<T>(work.log ? g[j] - fast_exp(v[j]) * sum : v[j] * (g[j] - sum));
    });
    dx.store(p, out);
  });
}

void softmax(const SoftmaxArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const SoftmaxWork<T> work{a.rows, a.n, a.log, rows_of<T>(a.y), rows_of<const T>(a.x), {}};
    with_team<T, true>(a.n, RowLayout(sizeof(T), a.x, a.y), [&](auto width, auto team, auto held) {
      using Team = decltype(team);
      launch("softmax", softmax_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads, 0, executor, work);
    });
  });
}

void softmax_backward(const SoftmaxBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const SoftmaxWork<T> work{a.rows, a.n, a.log, rows_of<T>(a.dx), rows_of<const T>(a.dy), rows_of<const T>(a.y)};
    with_team<T, true>(a.n, RowLayout(sizeof(T), a.y, a.dy, a.dx), [&](auto width, auto team, auto held) {
      using Team = decltype(team);
      launch("softmax_backward", softmax_backward_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads, 0,
             executor, work);
    });
  });
}

}  // namespace

long long cross_entropy(const CrossEntropyArgs& args, Executor& executor);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, Executor& executor);
bool cross_entropy_overwrite(const CrossEntropyOverwriteArgs& args, Executor& executor);
void divide_by_targets(const DivideByTargetsArgs& args, Executor& executor);

SoftmaxTable softmax_table = {softmax,           softmax_backward,       cross_entropy, cross_entropy_backward,
                              divide_by_targets, cross_entropy_overwrite};

}  // namespace tessera::gpu_kernels
