// Rows and the teams of threads that work on them: 32 neighbours, or a whole block. A row is cut into packs of 16 bytes
// at multiples of 16 bytes, of which the first and the last may be partly outside; short rows stay in registers.
#pragma once
#include "loops.h"

namespace tessera::gpu_kernels {

/// The smallest team: as many neighbours run together on every GPU.
inline constexpr int team_lanes = 32;

/// The same value of the lane whose number differs by `mask`.
template <class S>
TESSERA_DEVICE S from_lane(const S& value, int mask) {
  constexpr int words = sizeof(S) / 4;
  static_assert(sizeof(S) % 4 == 0);
  auto w = tile::bit_cast<tile::Array<u32, words>>(value);
  tile::unroll<words>([&](auto i) { w[i] = tile::detail::from_lane_xor(w[i], mask); });
  return tile::bit_cast<S>(w);
}

/// op(a, b) over the values of a team of 32, in the order of its lanes: the same result in each.
template <class S, class Op>
TESSERA_DEVICE S join_lanes(S value, const Op& op) {
  const int lane = tile::thread_in_block() % team_lanes;
#pragma unroll
  for (int mask = 1; mask < team_lanes; mask *= 2) {
    const S other = from_lane(value, mask);
    value = lane & mask ? op(other, value) : op(value, other);
  }
  return value;
}

/// The same over all threads of a block.
template <int threads, class S, class Op>
TESSERA_DEVICE S join_block(S value, const Op& op) {
  constexpr int teams = threads / team_lanes;
  __shared__ S room[teams];
  value = join_lanes(value, op);
  if (tile::thread_in_block() % team_lanes == 0) room[tile::thread_in_block() / team_lanes] = value;
  tile::sync_block();
  value = room[0];
  for (int i = 1; i < teams; ++i) value = op(value, room[i]);
  tile::sync_block();  // the room is free again
  return value;
}

struct Plus {
  template <class S>
  TESSERA_DEVICE S operator()(S a, S b) const {
    return a + b;
  }
};
/// Two sums at once.
template <class C>
struct Sums {
  C first, second;
  TESSERA_DEVICE Sums operator+(const Sums& b) const { return {first + b.first, second + b.second}; }
};

/// `size` threads that share a row.
template <int size_>
struct Team {
  static constexpr int size = size_;
  static constexpr int threads = size == team_lanes ? 256 : size;  // of a block
  static constexpr int rows = threads / size;
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

/// fn(pack, k) for this thread's packs of a row: at most `held`, the k-th of them in register k; or any number where
/// none is held.
template <class Team, int held, class Fn>
TESSERA_DEVICE void for_packs(i64 packs, const Fn& fn) {
  if constexpr (held > 0) {
    tile::unroll<held>([&](auto k) {
      const i64 p = Team::rank() + static_cast<i64>(k) * Team::size;
      if (p < packs) fn(p, k);
    });
  } else {
    for (i64 p = Team::rank(); p < packs; p += Team::size) fn(p, tile::Int<0>{});
  }
}

/// use(pack, its elements) for this thread's packs of a row of any length, several of them under way; `outside` stands
/// beyond the ends of the row.
template <class Team, class T, int width, class Use>
TESSERA_DEVICE void stream_packs(const Span<const T, width>& x, T outside, const Use& use) {
  constexpr int ahead = 4;
  const i64 begin = x.phase ? 1 : 0, end = (x.n + x.phase) / width;  // of the packs that are whole
  const auto load = [&](i64 p) { return *reinterpret_cast<const Pack<T, width>*>(x.data + x.first(p)); };
  i64 p = begin + Team::rank();
  for (; p + (ahead - 1) * Team::size < end; p += ahead * Team::size) {
    Pack<T, width> part[ahead];
    tile::unroll<ahead>([&](auto u) { part[u] = load(p + u * Team::size); });
    tile::unroll<ahead>([&](auto u) { use(p + u * Team::size, part[u]); });
  }
  for (; p < end; p += Team::size) use(p, load(p));
  if (x.phase && Team::rank() == 0) use(i64{0}, x.load(0, outside));
  if (end < x.packs() && (end > 0 || !x.phase) && Team::rank() == Team::size - 1) use(end, x.load(end, outside));
}

/// A row that is read: once where it is held in registers, else whenever it is asked for.
template <class T, int width, class Team, int held>
struct RowReader {
  using Packed = Pack<T, width>;
  Span<const T, width> span;
  T outside;
  Packed part[held > 0 ? held : 1];

  TESSERA_DEVICE RowReader(const T* data, i64 n, T outside) : span(data, n), outside(outside) {
    if constexpr (held > 0)
      for_packs<Team, held>(span.packs(), [&](i64 p, auto k) { part[k] = span.load(p, outside); });
  }
  template <int k>
  TESSERA_DEVICE Packed get(i64 pack, tile::Int<k>) const {
    if constexpr (held > 0) return part[k];
    else return span.load(pack, outside);
  }
};

/// How rows of several operands lie within 16 bytes.
struct RowLayout {
  bool alike = true;    // equal positions in the same place of a pack
  bool aligned = true;  // each row begins a pack

  template <class... Row>
  RowLayout(int element_bytes, const RowArg& first, const Row&... more) {
    add(element_bytes, first, first);
    (add(element_bytes, first, more), ...);
  }

 private:
  static size_t phase(const void* p) { return reinterpret_cast<size_t>(p) % 16; }
  void add(int bytes, const RowArg& first, const RowArg& row) {
    if (!row.data) return;
    aligned &= phase(row.data) == 0 && row.pitch * bytes % 16 == 0;
    alike &= phase(row.data) == phase(first.data) && (row.pitch - first.pitch) * bytes % 16 == 0;
  }
};

/// fn(Int<width>, Team, Int<held>) as it fits rows of n elements of type T; each of a thread's 32 elements at most are
/// held if `holds`.
template <class T, bool holds, class Fn>
void with_team(i64 n, const RowLayout& layout, const Fn& fn) {
  constexpr int width = 16 / sizeof(T), held = holds && sizeof(T) < 8 ? 32 / width : 0;
  using tile::Int;
  if (layout.alike && n >= width) {
    const i64 packs = tile::ceil_div<i64>(n + (layout.aligned ? 0 : width - 1), width);
    if (packs <= 32 * 32 / width) return fn(Int<width>{}, Team<32>{}, Int<held>{});
    if constexpr (held > 0)
      if (packs <= 256 * held) return fn(Int<width>{}, Team<256>{}, Int<held>{});
    return fn(Int<width>{}, Team<512>{}, Int<0>{});
  }
  if (n <= 1024) return fn(Int<1>{}, Team<32>{}, Int<0>{});
  return fn(Int<1>{}, Team<512>{}, Int<0>{});
}

template <class T>
struct Rows {
  T* data;
  i64 pitch;
  TESSERA_DEVICE T* operator[](i64 r) const { return data + r * pitch; }
};
template <class T>
Rows<T> rows_of(const RowArg& arg) {
  return {static_cast<T*>(arg.data), arg.pitch};
}

// ---- sums of exponentials

/// e^x as the hardware has it, to 2^-22 for x in [-1, 0]; double by the library.
TESSERA_DEVICE double fast_exp(double x) { return tile::exp(x); }
TESSERA_DEVICE float fast_exp(float x) { return tile::fast_exp2(x * 1.44269504f); }

TESSERA_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }  // of NaN and a number, the number
TESSERA_DEVICE double larger(double a, double b) { return ::fmax(a, b); }

/// The largest element and the sum of e^(x - shift()): softmax in one pass (Milakov and Gimelshein, arXiv:1805.02867).
template <class C>
struct Exponents {
  C largest, sum;

  static TESSERA_DEVICE Exponents start() { return {-static_cast<C>(__builtin_inf()), C(0)}; }
  /// The largest; 0 where that is infinite, so that infinite elements still meet a finite shift.
  TESSERA_DEVICE C shift() const { return tile::abs(largest) < static_cast<C>(__builtin_inf()) ? largest : C(0); }

  /// The sum for another shift.
  TESSERA_DEVICE C sum_at(C shift_) const { return sum > C(0) ? sum * fast_exp(shift() - shift_) : sum; }
  template <int n>
  TESSERA_DEVICE void add(const C (&x)[n]) {
    C top = x[0];
    tile::unroll<n>([&](auto j) { top = larger(top, x[j]); });
    if (top > largest) {
      const Exponents next{top, C(0)};
      sum = sum_at(next.shift());
      largest = top;
    }
    const C by = shift();
    tile::unroll<n>([&](auto j) { sum += fast_exp(x[j] - by); });
  }
};
struct JoinExponents {
  template <class C>
  TESSERA_DEVICE Exponents<C> operator()(const Exponents<C>& a, const Exponents<C>& b) const {
    Exponents<C> all{larger(a.largest, b.largest), C(0)};
    all.sum = a.sum_at(all.shift()) + b.sum_at(all.shift());
    return all;
  }
};

/// The lanes of a pack as the type to compute in.
template <class C, class T, int width>
struct Lanes {
  C x[width];
  TESSERA_DEVICE explicit Lanes(const Pack<T, width>& p) {
    tile::unroll<width>([&](auto j) { x[j] = tile::convert_element<C>(p.lane[j]); });
  }
  TESSERA_DEVICE C operator[](int j) const { return x[j]; }
};

}  // namespace tessera::gpu_kernels
