// Draws by weights: a block per row, whose weights are in the workspace as doubles.
#include "kernels/args/gpu/random.h"
#include "kernels/gpu/device/runtime/fault.h"
#include "tile/random.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int threads = 256;

/// op over the values of all threads of the block, which all of them get.
template <class T, class Op>
TESSERA_DEVICE T over_block(T value, const Op& op) {
  __shared__ __attribute__((aligned(16))) T values[threads];
  const int thread = tile::thread_in_block();
  tile::sync_block();  // the values of an earlier call have been read
  values[thread] = value;
  tile::sync_block();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (thread < half) values[thread] = op(values[thread], values[thread + half]);
    tile::sync_block();
  }
  return values[0];
}

/// The sum of the values of the threads before this one.
TESSERA_DEVICE double sum_before(double value) {
  __shared__ double sums[threads];
  const int thread = tile::thread_in_block();
  sums[thread] = value;
  tile::sync_block();
  for (int step = 1; step < threads; step *= 2) {
    const double before = thread >= step ? sums[thread - step] : 0;
    tile::sync_block();
    sums[thread] += before;
    tile::sync_block();
  }
  return thread > 0 ? sums[thread - 1] : 0;
}

struct Row {
  u64 seed, block;
  double* weights;  // [n]
  i64 n;
  i64* out;  // [samples]
  i64 samples;

  /// Number i of the stream, in [0, 1).
  TESSERA_DEVICE double unit(i64 i) const {
    const auto made = tile::philox<u64>(seed, block + static_cast<u64>(i / 2));
    const u64 high = i % 2 ? made.word[2] : made.word[0], low = i % 2 ? made.word[3] : made.word[1];
    return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
  }
};

/// Inverts the cumulative weights; a thread sums the weights of one part, and later draws.
TESSERA_DEVICE void draw_with_replacement(const Row& row, i64 first) {
  const int thread = tile::thread_in_block();
  const i64 part = tile::ceil_div<i64>(row.n, threads), begin = tile::min(row.n, thread * part),
            end = tile::min(row.n, begin + part);
  double sum = 0;
  i64 last = -1;
  for (i64 i = begin; i < end; ++i) {
    sum += row.weights[i];
    if (row.weights[i] > 0) last = i;
  }
  last = over_block(last, [](i64 a, i64 b) { return tile::max(a, b); });
  double before = sum_before(sum);
  for (i64 i = begin; i < end; ++i) {
    // A negative sign marks what has no weight: it must not be drawn, however sums are rounded.
    const bool drawn = row.weights[i] > 0;
    before += row.weights[i];
    row.weights[i] = drawn ? before : -before;
  }
  tile::sync_block();
  const double total = row.weights[last];
  for (i64 k = thread; k < row.samples; k += threads) {
    const double target = row.unit(first + k) * total;
    i64 low = 0, high = last;  // the first whose sum exceeds the target
    while (low < high) {
      const i64 middle = (low + high) / 2;
      const double sum = row.weights[middle];
      if ((sum < 0 ? -sum : sum) > target) high = middle;
      else low = middle + 1;
    }
    while (low < last && !(row.weights[low] > 0)) ++low;
    row.out[k] = low;
  }
}

struct Clock {
  double time;
  i64 index;
};
TESSERA_DEVICE bool is_before(const Clock& a, const Clock& b) {
  return a.time < b.time || (a.time == b.time && a.index < b.index);
}
/// Of copies, value by value: a choice between two addresses would keep both in memory, or read each value by itself.
TESSERA_DEVICE Clock earlier(Clock a, Clock b) {
  const bool second = is_before(b, a);
  return {second ? b.time : a.time, second ? b.index : a.index};
}

/// The first to arrive of exponential clocks with these rates (Efraimidis & Spirakis 2006), one after the other.
TESSERA_DEVICE void draw_without_replacement(const Row& row, i64 first) {
  const int thread = tile::thread_in_block();
  const double never = __builtin_inf();
  for (i64 i = thread; i < row.n; i += threads) {
    const double weight = row.weights[i];
    row.weights[i] = weight > 0 ? -::log1p(-row.unit(first + i)) / weight : never;
  }
  Clock last{-1, -1};
  for (i64 k = 0; k < row.samples; ++k) {
    Clock next{never, row.n};
    for (i64 i = thread; i < row.n; i += threads) {  // each thread meets its own clocks only
      const Clock clock{row.weights[i], i};
      if (is_before(last, clock) && is_before(clock, next)) next = clock;
    }
    last = over_block(next, earlier);
    if (thread == 0) row.out[k] = last.index;
  }
}

/// Whether the weights can be drawn from; the first fault found is reported.
TESSERA_DEVICE bool check(double total, i64 positive, bool valid, i64 row, const MultinomialArgs& args,
                          gpu::Fault* fault) {
  using Kind = gpu::FaultKind;
  const bool is_finite = total > 0 && total < __builtin_inf();
  if (valid && is_finite && (args.replacement || positive >= args.samples)) return true;
  if (tile::thread_in_block() == 0)
    raise(fault, args.op, row, 0, !valid ? Kind::NegativeWeight : !is_finite ? Kind::WeightSum : Kind::FewWeights);
  return false;
}

TESSERA_KERNEL(threads)
void multinomial_kernel(const MultinomialArgs args, gpu::Fault* fault) {
  const int thread = tile::thread_in_block();
  for (i64 at = tile::block_in_grid(); at < args.rows; at += gridDim.x) {
    const Row row{static_cast<u64>(*args.stream.seed), static_cast<u64>(*args.stream.block),
                  args.workspace + at * args.n,        args.n,
                  args.out + at * args.samples,        args.samples};
    double sum = 0;
    i64 positive = 0;
    bool valid = true;
    for (i64 i = thread; i < args.n; i += threads) {
      const double weight = load_as<double>(args.weights, args.type, at * args.row_step + i * args.step);
      row.weights[i] = weight;
      valid = valid && weight >= 0;
      sum += weight;
      positive += weight > 0;
    }
    const auto add = [](auto a, auto b) { return a + b; };
    const double total = over_block(sum, add);
    positive = over_block(positive, add);
    valid = over_block(valid ? 1 : 0, [](int a, int b) { return a & b; }) != 0;
    if (!check(total, positive, valid, at, args, fault)) {
      for (i64 k = thread; k < args.samples; k += threads) row.out[k] = 0;
    } else if (args.replacement) {
      draw_with_replacement(row, at * args.samples);
    } else {
      draw_without_replacement(row, at * args.n);
    }
    tile::sync_block();
  }
}

}  // namespace

void multinomial(const MultinomialArgs& args, Executor& executor) {
  const i64 blocks = tile::min<i64>(args.rows, static_cast<i64>(executor.multiprocessors) * 8);
  launch("multinomial", multinomial_kernel, blocks, threads, 0, executor, args, executor.fault);
}

}  // namespace tessera::gpu_kernels
