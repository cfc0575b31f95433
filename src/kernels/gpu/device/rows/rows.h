// Rows and the teams of threads that work on them: 32 neighbours, or a whole block. A row is cut into packs of 16 bytes
// at multiples of 16 bytes, of which the first and the last may be partly outside.
#pragma once
#include "kernels/gpu/device/elementwise/join.h"

namespace tessera::gpu_kernels {

/// `size` threads that share a row.
template <int size_>
struct Team {
  static constexpr int size = size_;
  static constexpr int threads = size == team_lanes ? 256 : size;  // of a block
  static constexpr int rows = threads / size;
  static constexpr int resident = threads == 512 ? 2 : 1;  // blocks that registers must suffice for
  static TESSERA_DEVICE i64 row() {
    return tile::block_in_grid() * rows + (rows > 1 ? tile::thread_in_block() / size : 0);
  }
  static TESSERA_DEVICE int rank() { return rows > 1 ? tile::thread_in_block() % size : tile::thread_in_block(); }
  template <class S, class Op>
  static TESSERA_DEVICE S join(S value, const Op& op) {
    if constexpr (size == team_lanes) return join_lanes(value, op);
    else return join_block<size>(value, op);
  }
  static i64 blocks(i64 count) { return tile::ceil_div<i64>(count, rows); }
};

/// n contiguous elements as packs.
template <class T, int width>
struct Span {
  using Element = tile::remove_cvref_t<T>;
  using Packed = Pack<Element, width>;
  T* data;
  i64 n;
  int phase;  // elements of the first pack that lie before the row

  TESSERA_DEVICE Span(T* data, i64 n)
      : data(data), n(n), phase(static_cast<int>(reinterpret_cast<size_t>(data) / sizeof(T) % width)) {}
  TESSERA_DEVICE i64 packs() const { return (n + phase + width - 1) / width; }
  /// Index of the first element of a pack.
  TESSERA_DEVICE i64 first(i64 pack) const { return pack * width - phase; }
  TESSERA_DEVICE bool whole(i64 i) const { return i >= 0 && i + width <= n; }
  TESSERA_DEVICE bool inside(i64 i) const { return i >= 0 && i < n; }

  TESSERA_DEVICE Packed load(i64 pack, Element outside) const {
    const i64 i = first(pack);
    if (whole(i)) return *reinterpret_cast<const Packed*>(data + i);
    Packed p;
    tile::unroll<width>([&](auto j) { p.lane[j] = inside(i + j) ? data[i + j] : outside; });
    return p;
  }
  TESSERA_DEVICE void store(i64 pack, const Packed& p) const {
    const i64 i = first(pack);
    if (whole(i)) {
      store_at_once(data + i, p);
    } else {
      tile::unroll<width>([&](auto j) {
        if (inside(i + j)) data[i + j] = p.lane[j];
      });
    }
  }
};

/// The elements of a pack in the type to compute in.
template <class T, int width, class C = tile::compute_t<T>>
struct Lanes {
  C x[width];

  Lanes() = default;
  TESSERA_DEVICE explicit Lanes(const Pack<T, width>& p) {
    if constexpr (tile::is_same_v<T, bf16> && tile::is_same_v<C, float> && width % 2 == 0) {  // an instruction each
      const auto pairs = tile::bit_cast<tile::Array<u32, width / 2>>(p);
      tile::unroll<width>(
          [&](auto j) { x[j] = tile::bit_cast<float>(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u); });
    } else {
      tile::unroll<width>([&](auto j) { x[j] = tile::convert_element<C>(p.lane[j]); });
    }
  }
  TESSERA_DEVICE C operator[](int j) const { return x[j]; }
};
template <class T, int width>
TESSERA_DEVICE Lanes<T, width> lanes(const Pack<T, width>& p) {
  return Lanes<T, width>(p);
}

// ---- sums of exponentials

/// e^x as the hardware has it, to 2^-22 for x in [-1, 0]; double by the library.
TESSERA_DEVICE double fast_exp(double x) { return tile::exp(x); }
TESSERA_DEVICE float fast_exp(float x) { return tile::fast_exp2(x * 1.44269504f); }

TESSERA_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }  // of NaN and a number, the number
TESSERA_DEVICE double larger(double a, double b) { return ::fmax(a, b); }
struct Larger {
  static constexpr bool commutes = true;
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return larger(a, b);
  }
};

/// The largest element of a pack; of NaN and a number, the number.
template <class T, int width>
TESSERA_DEVICE tile::compute_t<T> largest_of(const Pack<T, width>& p) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && width == 8) {  // of pairs, an instruction each
    const auto w = tile::bit_cast<tile::Array<u32, 4>>(p);
    const auto pair = [](u32 a, u32 b) {
      if constexpr (tile::is_same_v<T, bf16>) asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
      else asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
      return a;
    };
    return largest_of(tile::bit_cast<Pack<T, 2>>(pair(pair(w[0], w[1]), pair(w[2], w[3]))));
  }
#endif
  const auto v = lanes(p);
  auto top = v[0];
  for (int j = 1; j < width; ++j) top = larger(top, v[j]);
  return top;
}

/// The largest element and the sum of e^(x - shift()): softmax in one pass (Milakov and Gimelshein, arXiv:1805.02867).
template <class C>
struct Exponents {
  C largest, sum;

  static TESSERA_DEVICE Exponents start() { return {-static_cast<C>(__builtin_inf()), C(0)}; }
  /// The largest; 0 where that is infinite, so that infinite elements still meet a finite shift.
  TESSERA_DEVICE C shift() const { return tile::abs(largest) < static_cast<C>(__builtin_inf()) ? largest : C(0); }

  template <class T, int width>
  TESSERA_DEVICE void add(const Pack<T, width>& p) {
    const C top = largest_of(p);
    if (top > largest) move_to(top);
    add_beside(p, shift());
  }
  /// The same where the largest is known.
  template <class T, int width>
  TESSERA_DEVICE void add_beside(const Pack<T, width>& p, C by) {
    for (const C v : lanes(p).x) sum += fast_exp(v - by);
  }
  /// Those of all threads of a team.
  template <class Team>
  TESSERA_DEVICE void join() {
    move_to(Team::join(largest, Larger{}));
    sum = Team::join(sum, Plus{});
  }
  /// For another largest element.
  TESSERA_DEVICE void move_to(C top) {
    const Exponents next{top, C(0)};
    if (sum > C(0)) sum *= fast_exp(shift() - next.shift());
    largest = top;
  }
};
struct JoinExponents {
  template <class C>
  TESSERA_DEVICE Exponents<C> operator()(Exponents<C> a, Exponents<C> b) const {
    const C top = larger(a.largest, b.largest);
    a.move_to(top);
    b.move_to(top);
    return {top, a.sum + b.sum};
  }
};

}  // namespace tessera::gpu_kernels
