// Random numbers: each thread makes the numbers of one block of Philox, the same as the CPU's at the same place.
#include "kernels/args/gpu/random.h"

#include "kernels/gpu/device/elementwise/neighbours.h"
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

}  // namespace tessera::gpu_kernels
