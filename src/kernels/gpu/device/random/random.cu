// Random numbers: each thread makes the numbers of one block of Philox, the same as the CPU's at the same place. Draws
// by weights: a block per row, whose weights are in the workspace as doubles.
#include "kernels/args/gpu/random.h"

#include "kernels/gpu/device/elementwise/neighbours.h"
#include "kernels/gpu/device/runtime/fault.h"
#include "tile/random.h"

namespace tessera::gpu_kernels {
namespace {

using Block = tile::PhiloxBlock<u64>;

/// Block `i` of a stream that begins at `first`.
TESSERA_DEVICE Block block_of(u64 seed, u64 first, i64 i) {
  return tile::philox<u64>(seed, first + static_cast<u64>(i));
}
TESSERA_DEVICE u64 two_words(const Block& b, int pair) { return b.word[2 * pair] << 32 | b.word[2 * pair + 1]; }

/// In [0, 1), from the upper bits: four floats or two doubles of a block.
TESSERA_DEVICE void units(const Block& b, float (&x)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    x[j] = static_cast<float>(static_cast<u32>(b.word[j]) >> 8) * 0x1p-24f;
  }
}
TESSERA_DEVICE void units(const Block& b, double (&x)[2]) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    x[j] = static_cast<double>(two_words(b, j) >> 11) * 0x1p-53;
  }
}

/// Pairs of uniform numbers to pairs of normal ones: Box & Muller 1958.
template <class C, int N>
TESSERA_DEVICE void to_normal(C (&x)[N]) {
#pragma unroll
  for (int pair = 0; pair < N / 2; ++pair) {
    const C angle = x[2 * pair + 1] * C(6.283185307179586);
    const C radius = tile::sqrt(C(-2) * tile::log(C(1) - x[2 * pair]));
    x[2 * pair] = radius * tile::cos(angle);
    x[2 * pair + 1] = radius * tile::sin(angle);
  }
}

/// N elements from `first` on: in one piece where all of them are there and lie so.
template <class T, int N, class C>
TESSERA_DEVICE void store_numbers(T* out, const Neighbours& at, i64 gap, i64 first, i64 count, const C (&x)[N]) {
  if (gap == 0 && first + N <= count) {
    Pack<T, N> pack;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      pack.lane[j] = tile::convert_element<T>(x[j]);
    }
    *reinterpret_cast<Pack<T, N>*>(out + first) = pack;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (first + j < count) out[at(gap, j)] = tile::convert_element<T>(x[j]);
    }
  }
}

template <class T, bool normal>
TESSERA_KERNEL(256)
void draw_kernel(StreamArg stream, i64 count, T* out, i64 length, i64 gap, tile::compute_t<T> scale,
                 tile::compute_t<T> shift) {
  using C = tile::compute_t<T>;
  constexpr int numbers = sizeof(C) == 8 ? 2 : 4;
  const u64 seed = static_cast<u64>(*stream.seed), block = static_cast<u64>(*stream.block);
  for (i64 i = first_index(); i * numbers < count; i += index_step()) {
    C x[numbers];
    units(block_of(seed, block, i), x);
    if constexpr (normal) to_normal(x);
#pragma unroll
    for (int j = 0; j < numbers; ++j) {
      x[j] = shift + scale * x[j];
    }
    store_numbers(out, Neighbours(i * numbers, length, length), gap, i * numbers, count, x);
  }
}

/// Of 64 random bits, the high word of their product with the range.
TESSERA_KERNEL(256)
void draw_integers(StreamArg stream, i64 count, void* out, Scalar type, i64 low, u64 range) {
  const u64 seed = static_cast<u64>(*stream.seed), block = static_cast<u64>(*stream.block);
  for (i64 i = first_index(); i * 2 < count; i += index_step()) {
    const Block made = block_of(seed, block, i);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const u64 drawn = static_cast<u64>(low) + __umul64hi(two_words(made, j), range);
      if (i * 2 + j < count) store_as<i64>(out, type, i * 2 + j, static_cast<i64>(drawn));
    }
  }
}

void draw(const DrawArgs& args, Executor& executor) {
  if (args.op == RandomOp::integers) {
    const i64 low = static_cast<i64>(args.a);
    const u64 range = static_cast<u64>(static_cast<i64>(args.b)) - static_cast<u64>(low);
    return launch("randint", draw_integers, grid_for(tile::ceil_div<i64>(args.count, 2), 256, executor), 256, 0,
                  executor, args.stream, args.count, args.out, args.type, low, range);
  }
  with_float(args.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = tile::compute_t<T>;
    const bool normal = args.op == RandomOp::normal;
    const C scale = static_cast<C>(normal ? args.b : args.b - args.a), shift = static_cast<C>(args.a);
    const i64 blocks = tile::ceil_div<i64>(args.count, sizeof(C) == 8 ? 2 : 4);
    launch("random", normal ? draw_kernel<T, true> : draw_kernel<T, false>, grid_for(blocks, 256, executor), 256, 0,
           executor, args.stream, args.count, static_cast<T*>(args.out), args.length, args.gap, scale, shift);
  });
}

// ---- dropout

template <class T>
TESSERA_KERNEL(256)
void drop_kernel(StreamArg stream, i64 count, const T* in, T* out, i64 length, i64 in_gap, i64 out_gap, u64 threshold,
                 tile::compute_t<T> scale, bool vectors) {
  using C = tile::compute_t<T>;
  const u64 seed = static_cast<u64>(*stream.seed), block = static_cast<u64>(*stream.block);
  for (i64 i = first_index(); i * 4 < count; i += index_step()) {
    const Neighbours at(i * 4, length, length);
    Pack<T, 4> pack;
    if (vectors && i * 4 + 4 <= count) {
      pack = *reinterpret_cast<const Pack<T, 4>*>(in + i * 4);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        pack.lane[j] = i * 4 + j < count ? in[at(in_gap, j)] : T(0.0f);
      }
    }
    const Block words = block_of(seed, block, i);
    C x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = words.word[j] >= threshold ? tile::convert_element<C>(pack.lane[j]) * scale : C(0);
    }
    store_numbers(out, at, out_gap, i * 4, count, x);
  }
}

void drop(const DropArgs& args, Executor& executor) {
  const u64 threshold = static_cast<u64>(args.p * 0x1p32);
  const double scale = args.p < 1 ? 1 / (1 - args.p) : 0;
  with_float(args.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vectors = args.in_gap == 0 && reinterpret_cast<size_t>(args.in) % (4 * sizeof(T)) == 0;
    launch("dropout", drop_kernel<T>, grid_for(tile::ceil_div<i64>(args.count, 4), 256, executor), 256, 0, executor,
           args.stream, args.count, static_cast<const T*>(args.in), static_cast<T*>(args.out), args.length, args.in_gap,
           args.out_gap, threshold, static_cast<tile::compute_t<T>>(scale), vectors);
  });
}

}  // namespace

void multinomial(const MultinomialArgs& args, Executor& executor);

const DrawTable* device_draw_table() {
  static const DrawTable table{draw, drop, multinomial};
  return &table;
}

namespace {

constexpr int multinomial_threads = 256;

/// op over the values of all threads of the block, which all of them get.
template <class T, class Op>
TESSERA_DEVICE T over_block(T value, const Op& op) {
  __shared__ __attribute__((aligned(16))) T values[multinomial_threads];
  const int thread = tile::thread_in_block();
  tile::sync_block();  // the values of an earlier call have been read
  values[thread] = value;
  tile::sync_block();
  for (int half = multinomial_threads / 2; half > 0; half /= 2) {
    if (thread < half) values[thread] = op(values[thread], values[thread + half]);
    tile::sync_block();
  }
  return values[0];
}

/// The sum of the values of the threads before this one.
TESSERA_DEVICE double sum_before(double value) {
  __shared__ double sums[multinomial_threads];
  const int thread = tile::thread_in_block();
  sums[thread] = value;
  tile::sync_block();
  for (int step = 1; step < multinomial_threads; step *= 2) {
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
  const i64 part = tile::ceil_div<i64>(row.n, multinomial_threads), begin = tile::min(row.n, thread * part),
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
  for (i64 k = thread; k < row.samples; k += multinomial_threads) {
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
  for (i64 i = thread; i < row.n; i += multinomial_threads) {
    const double weight = row.weights[i];
    row.weights[i] = weight > 0 ? -::log1p(-row.unit(first + i)) / weight : never;
  }
  Clock last{-1, -1};
  for (i64 k = 0; k < row.samples; ++k) {
    Clock next{never, row.n};
    for (i64 i = thread; i < row.n; i += multinomial_threads) {  // each thread meets its own clocks only
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

TESSERA_KERNEL(multinomial_threads)
void multinomial_kernel(const MultinomialArgs args, gpu::Fault* fault) {
  const int thread = tile::thread_in_block();
  for (i64 at = tile::block_in_grid(); at < args.rows; at += gridDim.x) {
    const Row row{static_cast<u64>(*args.stream.seed), static_cast<u64>(*args.stream.block),
                  args.workspace + at * args.n,        args.n,
                  args.out + at * args.samples,        args.samples};
    double sum = 0;
    i64 positive = 0;
    bool valid = true;
    for (i64 i = thread; i < args.n; i += multinomial_threads) {
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
      for (i64 k = thread; k < args.samples; k += multinomial_threads) row.out[k] = 0;
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
  launch("multinomial", multinomial_kernel, blocks, multinomial_threads, 0, executor, args, executor.fault);
}

}  // namespace tessera::gpu_kernels
