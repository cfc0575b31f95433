// Softmax cross-entropy: the loss of a row in one pass over its logits, their gradient in one more, in place or not.
#include "kernels/gpu/device/runtime/fault.h"
#include "norm.h"
#include "row_kernels.h"

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
  Sums<compute_t<T>>* parts;        // of losses and targets that count, one for each block
  const compute_t<T>*from, *scale;  // backward: log-sum-exps
  i64 scale_step;
  gpu::Fault* fault;
  const char* op;
};

/// What a block's rows add up to, in `part` of the first thread of each group, goes to its place in `parts`.
template <class Group, class C>
TESSERA_DEVICE void store_part(Sums<C>* parts, Sums<C> part) {
  if constexpr (Group::rows > 1) {
    __shared__ Sums<C> room[Group::rows];
    const int thread = tile::thread_in_block();
    if (Group::rank() == 0) room[thread / Group::size()] = part;
    tile::sync_block();
    if (thread == 0)
      for (int i = 1; i < Group::rows; ++i) part = part + room[i];
  }
  if (tile::thread_in_block() == 0) parts[tile::block_in_grid()] = part;
}

#if defined(__HIP__)  // more of either, and registers do not suffice
template <class T, class Team>
inline constexpr int resident_blocks = 1;
constexpr int total_threads = 512;
#else
template <class T, class Team>  // unasked, nvcc gives long rows of floats 67 registers, which leaves one block
inline constexpr int resident_blocks = sizeof(T) == 2         ? 1536 / Team::threads
                                       : Team::threads == 512 ? 2
                                                              : 1;
constexpr int total_threads = 1024;
#endif

template <class T, class Group, int width, int held>
TESSERA_KERNEL(Group::threads, resident_blocks<T, Group>)
void cross_entropy_kernel(const CrossEntropyWork<T> work) {
  using C = compute_t<T>;
  const bool smooth = work.smoothing > 0;
  const i64 step = static_cast<i64>(gridDim.x) * Group::rows;
  i64 r = Group::row(), target = r < work.rows ? work.targets[r] : 0;
  Sums<C> part{C(0), C(0)};
  for (; r < work.rows; r += step) {
    const T* const logits = work.logits[r];
    const bool valid = target >= 0 && target < work.classes, counts = target != work.ignore_index;
    const C wanted =
        valid ? convert_element<C>(logits[target]) : C(0);  // under way with the row, as is the next target
    const i64 next = r + step < work.rows ? work.targets[r + step] : 0;
    BlockRows<Group, width, held> rows(work.rows, work.classes, logits, 0, nullptr, r);
    auto x = rows.tile(work.logits);
    rows.load(x);
    const auto e = exponents_tile(rows, x)[0];
    const C total = smooth ? reduce_tile(rows, x)[0] : C(0);
    if (rows.is_first_thread()) {
      const C lse = e.shift() + tile::log(e.sum);
      C loss = C(0);
      if (valid && counts) {
        const C share = static_cast<C>(work.smoothing);
        loss = (C(1) - share) * (lse - wanted);
        if (smooth) loss += share * (lse - total / static_cast<C>(work.classes));
      } else if (counts) {
        raise(work.fault, work.op, target, work.classes);
      }
      work.lse[r] = lse;
      work.losses[r] = loss;
      part = part + Sums<C>{loss, counts ? C(1) : C(0)};
    }
    target = next;
  }
  store_part<Group>(work.parts, part);
}

/// The sum of all losses, or their mean over the targets that count.
template <class C>
TESSERA_KERNEL(total_threads)
void total_kernel(C* to, const Sums<C>* parts, i64 count, bool mean) {
  Sums<double> sum{0, 0};
  for (i64 i = tile::thread_in_block(); i < count; i += total_threads)
    sum = sum + Sums<double>{static_cast<double>(parts[i].first), static_cast<double>(parts[i].second)};
  sum = join_block<total_threads>(sum, Plus{});
  if (tile::thread_in_block() == 0) *to = static_cast<C>(mean ? sum.first / sum.second : sum.first);
}

/// Gradients of a row's logits.
template <class T>
class RowGradient {
 public:
  using C = compute_t<T>;
  TESSERA_DEVICE RowGradient(const CrossEntropyWork<T>& work, i64 r)
      : share_(static_cast<C>(work.smoothing)), everywhere_(share_ / static_cast<C>(work.classes)), lse_(work.from[r]) {
    target_ = work.targets[r];
    const bool counts = target_ != work.ignore_index && target_ >= 0 && target_ < work.classes;
    factor_ = counts ? work.scale[r * work.scale_step] : C(0);
    zero_ = factor_ == C(0);  // also where the logits are infinite
  }
  template <class At>
  TESSERA_DEVICE Lanes<T, At::width> operator()(const At& at, Lanes<T, At::width> v) const {
    const int hit = static_cast<int>(tile::max<i64>(tile::min<i64>(target_ - at.column, At::width), -1));
    tile::unroll<At::width>([&](auto j) {
      C g = fast_exp(v[j] - lse_) - everywhere_;
      if (j == hit) g -= C(1) - share_;
      v.x[j] = zero_ ? C(0) : g * factor_;
    });
    return v;
  }

 private:
  i64 target_;
  C share_, everywhere_, lse_, factor_;
  bool zero_;
};

template <class T, class Group, int width, int held>
TESSERA_KERNEL(Group::threads)
void cross_entropy_backward_kernel(const CrossEntropyWork<T> work) {
  const i64 r = Group::row();
  if (r >= work.rows) return;
  T* const dx = work.dlogits[r];
  BlockRows<Group, width, held> rows(work.rows, work.classes, dx);
  auto x = rows.tile(work.logits);
  rows.load(x);
  const RowGradient<T> gradient(work, r);
  rows.each([&](auto, auto at, const auto& v) { store_place(dx, at, gradient(at, v)); }, x);
}

#if !defined(__HIP__)
/// Losses' part, and gradients in the logits' place: a row is read once and lies in shared memory meanwhile, where each
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
  const float share = target != work.ignore_index ? 1.0f : 0.0f;
  work.parts[tile::block_in_grid()] = {counts ? lse - wanted : 0.0f, share};
}
#endif

template <class C>
void add_up(void* to, bool mean, const void* parts, i64 count, Executor& executor) {
  if (to)
    launch("cross_entropy", total_kernel<C>, 1, total_threads, 0, executor, static_cast<C*>(to),
           static_cast<const Sums<C>*>(parts), count, mean);
}

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
  if (cross_entropy_sm90(a, executor)) return -1;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    auto work = work_of<T>(a);
    work.losses = static_cast<C*>(a.losses);
    work.lse = static_cast<C*>(a.lse);
    work.parts = static_cast<Sums<C>*>(a.parts);
    work.fault = executor.fault;
    work.op = a.op;
    with_rows<T, 1, false, 256, 512>(a.classes, RowLayout(sizeof(T), a.logits),
                                     [&](auto group, auto width, auto held, const RowsHeld& held_by) {
                                       using Group = decltype(group);
                                       const i64 blocks = grid_for(a.rows, Group::rows, executor, 32);
                                       launch("cross_entropy", cross_entropy_kernel<T, Group, width, held>, blocks,
                                              held_by.threads, 0, executor, work);
                                       add_up<C>(a.total, a.mean, a.parts, blocks, executor);
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
    with_rows<T, 1, false, 256, 512>(a.classes, RowLayout(sizeof(T), a.logits, a.dlogits),
                                     [&](auto group, auto width, auto held, const RowsHeld& held_by) {
                                       using Group = decltype(group);
                                       launch("cross_entropy_backward",
                                              cross_entropy_backward_kernel<T, Group, width, held>,
                                              Group::blocks(a.rows), held_by.threads, 0, executor, work);
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
  work.parts = static_cast<Sums<float>*>(a.parts);
  work.fault = executor.fault;
  work.op = a.op;
  const auto kernel = cross_entropy_overwrite_kernel<bf16, threads>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))) {
    (void)cudaGetLastError();
    return false;
  }
  launch("cross_entropy", kernel, a.rows, threads, static_cast<size_t>(bytes), executor, work);
  add_up<float>(a.mean, true, a.parts, a.rows, executor);
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
