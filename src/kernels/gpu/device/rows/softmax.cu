// Softmax and log-softmax along rows, with their gradients.
#include "held_rows.h"
#include "norm.h"

namespace tessera::gpu_kernels {
namespace {

using tile::compute_t;
using tile::convert_element;

template <class T>
struct SoftmaxWork {
  i64 rows, n;
  bool log;
  int kept;
  Rows<T> to;
  Rows<const T> x, y;
};

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads, Team::resident)
void softmax_kernel(const SoftmaxWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  HeldRows<T, width, Team, held, 1> x(work.to[r], {work.x[r]}, work.n, work.kept);
  auto e = Exponents<C>::start();
  x.read([&](auto, const auto& row) { e.add(row[0]); });
  e.template join<Team>();
  const C shift = work.log ? e.shift() + tile::log(e.sum) : e.shift(), scale = C(1) / e.sum;
  T* const y = work.to[r];
  x.each([&](auto at, const auto& row) {
    auto v = lanes(row[0]);
    tile::unroll<at.width>([&](auto j) { v.x[j] = work.log ? v[j] - shift : fast_exp(v[j] - shift) * scale; });
    store_piece(y, at, v);
  });
}

// softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy).
template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads, Team::resident)
void softmax_backward_kernel(const SoftmaxWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  HeldRows<T, width, Team, held, 2> rows(work.to[r], {work.x[r], work.y[r]}, work.n, work.kept);
  C sum = C(0);
  rows.read([&](auto at, const auto& row) {
    const auto g = lanes(row[0]), y = lanes(row[1]);
    tile::unroll<at.width>([&](auto j) { sum = work.log ? sum + g[j] : tile::fma(g[j], y[j], sum); });
  });
  sum = Team::join(sum, Plus{});
  T* const dx = work.to[r];
  rows.each([&](auto at, const auto& row) {
    auto g = lanes(row[0]);
    const auto y = lanes(row[1]);
    tile::unroll<at.width>([&](auto j) { g.x[j] = work.log ? g[j] - fast_exp(y[j]) * sum : y[j] * (g[j] - sum); });
    store_piece(dx, at, g);
  });
}

void softmax(const SoftmaxArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    SoftmaxWork<T> work{a.rows, a.n, a.log, 0, rows_of<T>(a.y), rows_of<const T>(a.x), {}};
    with_rows<T, 1, true, sizeof(T) == 2 ? 512 : 1024>(
        a.n, RowLayout(sizeof(T), a.x, a.y), [&](auto width, auto team, auto held, RowsHeld rows) {
          using Team = decltype(team);
          work.kept = rows.kept;
          launch_rows("softmax", softmax_kernel<T, width, Team, held>, Team::blocks(a.rows), Team::threads, rows,
                      executor, work);
        });
  });
}

void softmax_backward(const SoftmaxBackwardArgs& a, Executor& executor) {
  if (softmax_backward_sm90(a, executor)) return;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    SoftmaxWork<T> work{a.rows, a.n, a.log, 0, rows_of<T>(a.dx), rows_of<const T>(a.dy), rows_of<const T>(a.y)};
    constexpr int most = sizeof(T) == 2 ? 512 : 256;  // of floats, registers of more do not suffice
    with_rows<T, 2, true, most>(a.n, RowLayout(sizeof(T), a.y, a.dy, a.dx),
                                [&](auto width, auto team, auto held, RowsHeld rows) {
                                  using Team = decltype(team);
                                  work.kept = rows.kept;
                                  launch_rows("softmax_backward", softmax_backward_kernel<T, width, Team, held>,
                                              Team::blocks(a.rows), Team::threads, rows, executor, work);
                                });
  });
}

}  // namespace

i64 most_shared_bytes() {
#if defined(__HIP__)
  return 64 << 10;
#else
  int device = 0, bytes = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
#endif
}

long long cross_entropy(const CrossEntropyArgs& args, Executor& executor);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, Executor& executor);
bool cross_entropy_overwrite(const CrossEntropyOverwriteArgs& args, Executor& executor);
void divide_by_targets(const DivideByTargetsArgs& args, Executor& executor);

SoftmaxTable softmax_table = {softmax,           softmax_backward,       cross_entropy, cross_entropy_backward,
                              divide_by_targets, cross_entropy_overwrite};

}  // namespace tessera::gpu_kernels
