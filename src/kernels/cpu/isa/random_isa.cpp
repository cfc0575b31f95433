#include "kernels/args/random.h"

#include "internal.h"
#include "tile/random.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

constexpr i64 part = 1024;  // numbers made at a time, also at the end: there are no tails to treat

/// n words of the stream from block `block` on; n is a multiple of a vector of blocks.
void fill_words(u64 seed, u64 block, i64 n, u32* out) {
  constexpr int lanes = native_bytes / 8;
  using U = Vec<u64, lanes>;
  for (i64 i = 0; i < n; i += 4 * lanes, block += lanes) {
    const PhiloxBlock<U> made = philox(seed, iota<U>() + U(block));
    for (int w = 0; w < 4; ++w) {
      for (int l = 0; l < lanes; ++l) out[i + 4 * l + w] = static_cast<u32>(made.word[w][l]);
    }
  }
}

/// In [0, 1), from the upper bits.
float unit(u32 word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
double unit(u32 high, u32 low) { return static_cast<double>((static_cast<u64>(high) << 32 | low) >> 11) * 0x1p-53; }

void units(const u32* words, i64 n, float* out) {
  for (i64 i = 0; i < n; ++i) out[i] = unit(words[i]);
}
void units(const u32* words, i64 n, double* out) {
  for (i64 i = 0; i < n; ++i) out[i] = unit(words[2 * i], words[2 * i + 1]);
}

/// Pairs of uniform numbers to pairs of normal ones, in place.
template <class T>
void to_normal(T* x, i64 n) {
  constexpr int lanes = native_bytes / static_cast<int>(sizeof(T));
  using V = Vec<T, lanes>;
  for (i64 i = 0; i < n; i += 2 * lanes) {
    const V u = load_strided<V>(x + i, 2), angle = load_strided<V>(x + i + 1, 2) * V(T(6.283185307179586));
    const V radius = sqrt(V(T(-2)) * log(V(T(1)) - u));
    store_strided(x + i, 2, radius * cos(angle));
    store_strided(x + i + 1, 2, radius * sin(angle));
  }
}

template <class T>
void make(const RandomArgs& args, const u32* words, i64 n, T* out) {
  units(words, n, out);
  if (args.op == RandomOp::normal) to_normal(out, n);
  const T scale = static_cast<T>(args.op == RandomOp::normal ? args.b : args.b - args.a),
          shift = static_cast<T>(args.a);
  for (i64 i = 0; i < n; ++i) out[i] = shift + scale * out[i];
}

/// Of 64 random bits, the high word of their product with the range.
void make_integers(const RandomArgs& args, const u32* words, i64 n, i64* out) {
  const auto low = static_cast<i64>(args.a);
  const u64 range = static_cast<u64>(static_cast<i64>(args.b)) - static_cast<u64>(low);
  for (i64 i = 0; i < n; ++i) {
    const u64 bits = static_cast<u64>(words[2 * i]) << 32 | words[2 * i + 1];
    out[i] = static_cast<i64>(static_cast<u64>(low) +
                              static_cast<u64>((static_cast<unsigned __int128>(bits) * range) >> 64));
  }
}

void generate(const RandomArgs& args, Executor& executor) {
  const bool integers = args.op == RandomOp::integers, wide = integers || args.type == Scalar::f64;
  const ConvertFn convert = converter(args.type, integers ? Scalar::i64 : wide ? Scalar::f64 : Scalar::f32);
  split_range(ExecutorRef(executor), ceil_div(args.count, part), 8 * part, 1, [&](i64 first, i64 last, int) {
    alignas(64) u32 words[2 * part];
    alignas(64) char numbers[8 * part];
    for (i64 begin = first * part; begin < min(last * part, args.count); begin += part) {
      const i64 n = min(part, args.count - begin), per_number = wide ? 2 : 1;
      fill_words(args.seed, args.block + static_cast<u64>(begin * per_number / 4), part * per_number, words);
      if (integers) make_integers(args, words, part, reinterpret_cast<i64*>(numbers));
      else if (wide) make(args, words, part, reinterpret_cast<double*>(numbers));
      else make(args, words, part, reinterpret_cast<float*>(numbers));
      const int size = size_of(args.type);
      convert(static_cast<char*>(args.out) + begin * size, size, numbers, wide ? 8 : 4, n);
    }
  });
}

template <class T>
void drop(const u32* words, u64 threshold, T scale, const T* in, i64 n, T* out) {
  for (i64 i = 0; i < n; ++i) out[i] = words[i] >= threshold ? in[i] * scale : T(0);
}

void dropout(const DropoutArgs& args, Executor& executor) {
  const bool wide = args.type == Scalar::f64;
  const Scalar inside = wide ? Scalar::f64 : Scalar::f32;
  const ConvertFn load = converter(inside, args.type), store = converter(args.type, inside);
  const int size = size_of(args.type), inner = size_of(inside);
  const auto threshold = static_cast<u64>(args.p * 0x1p32);
  const double scale = args.p < 1 ? 1 / (1 - args.p) : 0;
  split_range(ExecutorRef(executor), ceil_div(args.count, part), 8 * part, 1, [&](i64 first, i64 last, int) {
    alignas(64) u32 words[part];
    alignas(64) char numbers[8 * part];
    for (i64 begin = first * part; begin < min(last * part, args.count); begin += part) {
      const i64 n = min(part, args.count - begin);
      fill_words(args.seed, args.block + static_cast<u64>(begin / 4), part, words);
      load(numbers, inner, static_cast<const char*>(args.in) + begin * size, size, n);
      auto* f = reinterpret_cast<float*>(numbers);
      auto* d = reinterpret_cast<double*>(numbers);
      if (wide) drop(words, threshold, scale, d, n, d);
      else drop(words, threshold, static_cast<float>(scale), f, n, f);
      store(static_cast<char*>(args.out) + begin * size, size, numbers, inner, n);
    }
  });
}

}  // namespace

extern const RandomTable random_table;
const RandomTable random_table = {generate, dropout};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
