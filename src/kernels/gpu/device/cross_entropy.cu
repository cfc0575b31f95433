// Softmax cross-entropy: the loss of a row in one pass over its logits, their gradient in one more, in place or not.
#include "fault.h"
#include "held_rows.h"

namespace tessera::gpu_kernels {

using tile::compute_t;
using tile::convert_element;

namespace {

template <class T>
struct CrossEntropyWork {
  i64 rows, classes, ignore_index;
  double smoothing;
  Rows<T> dlogits;
  Rows<const T> logits;
  const i64* targets;
  compute_t<T>*losses, *lse;        // forward
  const compute_t<T>*from, *scale;  // backward: log-sum-exps
  i64 scale_step;
  gpu::Fault* fault;
  const char* op;
};

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void cross_entropy_kernel(const CrossEntropyWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  const T* const logits = work.logits[r];
  HeldRows<T, width, Team, held, 1> x({logits}, work.classes, 0);
  const bool smooth = work.smoothing > 0;
  auto e = Exponents<C>::start();
  C total = C(0);
  x.read([&](auto at, const auto& row) {
    const auto v = lanes(row[0]);
    e.add(v.x);
    if (smooth) tile::unroll<at.width>([&](auto j) { total += v[j]; });
  });
  e.template join<Team>();
  if (smooth) total = Team::join(total, Plus{});
  if (Team::rank() != 0) return;
  const C lse = e.shift() + tile::log(e.sum);
  const i64 target = work.targets[r];
  C loss = C(0);
  if (target >= 0 && target < work.classes && target != work.ignore_index) {
    const C share = static_cast<C>(work.smoothing);
    loss = (C(1) - share) * (lse - convert_element<C>(logits[target]));
    if (smooth) loss += share * (lse - total / static_cast<C>(work.classes));
  } else if (target != work.ignore_index) {
    raise(work.fault, work.op, target, work.classes);
  }
  work.lse[r] = lse;
  work.losses[r] = loss;
}

template <class T, int width, class Team, int held>
TESSERA_KERNEL(Team::threads)
void cross_entropy_backward_kernel(const CrossEntropyWork<T> work) {
  using C = compute_t<T>;
  const i64 r = Team::row();
  if (r >= work.rows) return;
  HeldRows<T, width, Team, held, 1> x({work.logits[r]}, work.classes, 0);
  T* const dx = work.dlogits[r];
  const C share = static_cast<C>(work.smoothing), everywhere = share / static_cast<C>(work.classes);
  const i64 target = work.targets[r];
  const bool counts = target != work.ignore_index && target >= 0 && target < work.classes;
  const C factor = counts ? work.scale[r * work.scale_step] : C(0), lse = work.from[r];
  const bool zero = factor == C(0);  // also where the logits are infinite
  x.read([&](auto at, const auto& row) {
    const int hit = static_cast<int>(tile::max<i64>(tile::min<i64>(target - at.index, at.width), -1));
    auto v = lanes(row[0]);
    tile::unroll<at.width>([&](auto j) {
      C g = fast_exp(v[j] - lse) - everywhere;
      if (j == hit) g -= C(1) - share;
      v.x[j] = zero ? C(0) : g * factor;
    });
    store_piece(dx, at, v);
  });
}

#if !defined(__HIP__)
/// Losses, and gradients in the logits' place: a row is read once and lies in shared memory meanwhile, where each
/// thread looks at nothing but what it put there itself. No smoothing; rows are aligned.
template <class T, int threads>
TESSERA_KERNEL(threads)
void cross_entropy_overwrite_kernel(const CrossEntropyWork<T> work) {
  constexpr int width = 16 / sizeof(T), ahead = 4;
  constexpr float per_ln2 = 1.44269504f;
  using Packed = Pack<T, width>;
  extern __shared__ __attribute__((aligned(16))) char shared[];
  Packed* const held = reinterpret_cast<Packed*>(shared);
  T* const row = work.dlogits[tile::block_in_grid()];
  const int n = static_cast<int>(work.classes), whole = n / width, thread = tile::thread_in_block();
  const i64 target = work.targets[tile::block_in_grid()];
  const bool valid = target >= 0 && target < n, counts = valid && target != work.ignore_index;
  const float wanted = valid ? convert_element<float>(row[target]) : 0.0f;
  const float factor = counts ? *work.scale : 0.0f;
  const bool has_rest = n % width != 0 && thread == whole % threads;
  const auto for_all = [&](int end, const auto& fn) {  // several under way
    int p = thread;
    for (; p + (ahead - 1) * threads < end; p += ahead * threads) fn(p, tile::Int<ahead>{});
    for (; p < end; p += threads) fn(p, tile::Int<1>{});
  };

  float top = -__builtin_inff();
  const auto take = [&](int p, const Packed& pack) {
    held[p] = pack;
    tile::unroll<width>([&](auto j) { top = larger(top, convert_element<float>(pack.lane[j])); });
  };
  const Packed* const packs = reinterpret_cast<const Packed*>(row);
  for_all(whole, [&](int p, auto count) {
    Packed part[count];
    tile::unroll<count>([&](auto u) { part[u] = packs[p + u * threads]; });
    tile::unroll<count>([&](auto u) { take(p + u * threads, part[u]); });
  });
  if (has_rest) {
    Packed rest;
    tile::unroll<width>([&](auto j) {
      rest.lane[j] = whole * width + j < n ? row[whole * width + j] : convert_element<T>(-__builtin_inff());
    });
    take(whole, rest);
  }
  top = join_block<threads>(top, Larger{});
  const float shift = tile::abs(top) < __builtin_inff() ? top : 0.0f;  // infinite elements still meet a finite one

  float sum = 0;
  for_all(whole + has_rest, [&](int p, auto count) {
    tile::unroll<count>([&](auto u) {
      const Packed pack = held[p + u * threads];
      tile::unroll<width>([&](auto j) {
        sum += tile::fast_exp2(tile::fma(convert_element<float>(pack.lane[j]), per_ln2, -shift * per_ln2));
      });
    });
  });
  sum = join_block<threads>(sum, Plus{});
  const float lse = shift + tile::log(sum);

  const int hit = counts ? static_cast<int>(target) / width : -1;
  const auto gradient = [&](int p) {
    Packed pack = held[p];
    if (factor == 0.0f) {  // also where the logits are infinite
      tile::unroll<width>([&](auto j) { pack.lane[j] = convert_element<T>(0.0f); });
      return pack;
    }
    float g[width];
    tile::unroll<width>([&](auto j) {
      g[j] = tile::fast_exp2(tile::fma(convert_element<float>(pack.lane[j]), per_ln2, -lse * per_ln2));
    });
    if (p == hit) tile::unroll<width>([&](auto j) { g[j] -= j == static_cast<int>(target) % width ? 1.0f : 0.0f; });
    tile::unroll<width>([&](auto j) { pack.lane[j] = convert_element<T>(g[j] * factor); });
    return pack;
  };
  for_all(whole, [&](int p, auto count) {
    tile::unroll<count>([&](auto u) { store_at_once(row + i64{p + u * threads} * width, gradient(p + u * threads)); });
  });
  if (has_rest) {
    const Packed rest = gradient(whole);
    tile::unroll<width>([&](auto j) {
      if (whole * width + j < n) row[whole * width + j] = rest.lane[j];
    });
  }
  if (thread != 0) return;
  if (!valid && target != work.ignore_index) raise(work.fault, work.op, target, work.classes);
  work.losses[tile::block_in_grid()] = counts ? lse - wanted : 0.0f;
}
#endif

template <class C>
TESSERA_KERNEL(1024)
void divide_kernel(C* to, const C* from, const i64* targets, i64 rows, i64 ignore_index) {
  i64 count = 0;
  for (i64 r = tile::thread_in_block(); r < rows; r += 1024) count += targets[r] != ignore_index;
  count = join_block<1024>(count, Plus{});
  if (tile::thread_in_block() == 0) *to = *from / static_cast<C>(count);
}

template <class T, class Args>
CrossEntropyWork<T> work_of(const Args& a) {
  CrossEntropyWork<T> work{};
  work.rows = a.rows;
  work.classes = a.classes;
  work.ignore_index = a.ignore_index;
  work.smoothing = a.label_smoothing;
  work.logits = rows_of<const T>(a.logits);
  work.targets = a.targets;
  return work;
}

}  // namespace

long long cross_entropy(const CrossEntropyArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    auto work = work_of<T>(a);
    work.losses = static_cast<C*>(a.losses);
    work.lse = static_cast<C*>(a.lse);
    work.fault = executor.fault;
    work.op = a.op;
    with_rows<T, 1, false>(a.classes, RowLayout(sizeof(T), a.logits),
                           [&](auto width, auto team, auto held, const RowsHeld&) {
                             using Team = decltype(team);
                             launch("cross_entropy", cross_entropy_kernel<T, width, Team, held>, Team::blocks(a.rows),
                                    Team::threads, 0, executor, work);
                           });
  });
  return -1;  // the device reports invalid targets
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    auto work = work_of<T>(a);
    work.dlogits = rows_of<T>(a.dlogits);
    work.from = static_cast<const C*>(a.lse);
    work.scale = static_cast<const C*>(a.scale);
    work.scale_step = a.scale_step;
    with_rows<T, 1, false>(a.classes, RowLayout(sizeof(T), a.logits, a.dlogits),
                           [&](auto width, auto team, auto held, const RowsHeld&) {
                             using Team = decltype(team);
                             launch("cross_entropy_backward", cross_entropy_backward_kernel<T, width, Team, held>,
                                    Team::blocks(a.rows), Team::threads, 0, executor, work);
                           });
  });
}

/// Of bf16, whose gradients do not underflow, and of rows that leave room in shared memory for a second block.
bool cross_entropy_overwrite(const CrossEntropyOverwriteArgs& a, Executor& executor) {
#if !defined(__HIP__)
  constexpr int threads = 512, most_bytes = 112 << 10, width = 8;
  const i64 bytes = tile::ceil_div<i64>(a.classes, width) * 16;
  if (a.type != Scalar::bf16 || a.label_smoothing > 0 || a.classes < 4096 || bytes > most_bytes ||
      !RowLayout(2, a.logits).aligned)
    return false;
  auto work = work_of<bf16>(a);
  work.dlogits = rows_of<bf16>(a.logits);
  work.scale = static_cast<const float*>(a.scale);
  work.losses = static_cast<float*>(a.losses);
  work.fault = executor.fault;
  work.op = a.op;
  const auto kernel = cross_entropy_overwrite_kernel<bf16, threads>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))) {
    (void)cudaGetLastError();
    return false;
  }
  launch("cross_entropy", kernel, a.rows, threads, static_cast<size_t>(bytes), executor, work);
  return true;
#else
  (void)a, (void)executor;
  return false;
#endif
}

void divide_by_targets(const DivideByTargetsArgs& a, Executor& executor) {
  const auto run = [&](auto type) {
    using C = typename decltype(type)::type;
    launch("divide_by_targets", divide_kernel<C>, 1, 1024, 0, executor, static_cast<C*>(a.to),
           static_cast<const C*>(a.from), a.targets, static_cast<i64>(a.rows), static_cast<i64>(a.ignore_index));
  };
  if (a.type == Scalar::f64) run(Type<double>{});
  else run(Type<float>{});
}

}  // namespace tessera::gpu_kernels
