// Distributions: which thread holds which element of a tile, and in which register.
//
//   named("mn", repeat(4, 1) * warps(2, 2) * lanes(16, 4) * vec(1, 8))
//
// reads from the outside in: the tile is repeated 4 times along m; each repetition is split among 2 x 2
// warps, the part of a warp among 16 x 4 lanes, and each lane holds 8 neighbours along n. Within a factor the
// last dimension runs fastest; factors of one kind may follow each other, which gives any other order:
// lanes(1, 2) * lanes(32, 1) counts along m first. Operands of matrix instructions are the same kind of value
// (matrix_layout.h).
//
// A distribution is a compile-time value. Kernels take it as a type with a static layout(), because nvcc
// accepts no arrays in the template arguments of a kernel; what they need is lowered to tables by consteval
// functions.
#pragma once
#include "numbers.h"

TESSERA_TILE_BEGIN

/// What the digits of a factor count.
enum class Holder : u8 { registers, lanes, warps };

inline constexpr int max_factors = 12;
inline constexpr int max_dims = 4;

struct Factor {
  Holder holder;
  bool vector;  // registers that are moved together
  int extent[max_dims];
};

/// One digit of an element's place: coordinate `dim` gains index / radix % extent * scale from the register,
/// the lane or the warp. The digits of all factors add up to the coordinates.
struct Digit {
  Holder holder;
  int dim, extent, scale, radix;
  constexpr TESSERA_HD int of(int index) const { return index / radix % extent * scale; }
};

struct Owner {
  int thread, reg;
};

/// How to reduce over a dimension: first the thread's own registers, then lane ^ mask for each mask, then the
/// warps through shared memory.
struct ReductionPlan {
  int registers;  // values of one thread along the dimension
  int mask_count;
  int masks[8];
  int warps;
};

template <int Rank>
struct Distribution {
  static constexpr int rank = Rank;
  using Coords = Array<int, Rank>;

  char names[max_dims];
  int factor_count;
  Factor factors[max_factors];

  /// The dimension called `name`, or -1.
  constexpr TESSERA_HD int dim(char name) const {
    for (int d = 0; d < Rank; ++d)
      if (names[d] == name) return d;
    return -1;
  }
  constexpr TESSERA_HD int count(Holder holder) const {
    int n = 1;
    for (int f = 0; f < factor_count; ++f)
      for (int d = 0; d < Rank; ++d) n *= factors[f].holder == holder ? factors[f].extent[d] : 1;
    return n;
  }
  constexpr TESSERA_HD int registers() const { return count(Holder::registers); }
  constexpr TESSERA_HD int lanes() const { return count(Holder::lanes); }
  constexpr TESSERA_HD int warps() const { return count(Holder::warps); }
  constexpr TESSERA_HD int threads() const { return lanes() * warps(); }
  /// Consecutive registers of one memory access: the extent of a vec() at the end.
  constexpr TESSERA_HD int vector() const {
    int n = 1;
    const Factor& last = factors[factor_count - 1];
    for (int d = 0; d < Rank; ++d) n *= last.vector ? last.extent[d] : 1;
    return n;
  }
  /// Length of the tile along a dimension.
  constexpr TESSERA_HD int length(int d) const {
    int n = 1;
    for (int f = 0; f < factor_count; ++f) n *= factors[f].extent[d];
    return n;
  }

  constexpr TESSERA_HD int digit_count() const { return factor_count * Rank; }
  /// The i-th digit, innermost first.
  constexpr TESSERA_HD Digit digit(int i) const {
    const int factor = factor_count - 1 - i / Rank, dim = Rank - 1 - i % Rank;
    const Holder holder = factors[factor].holder;
    Digit digit{holder, dim, factors[factor].extent[dim], 1, 1};
    for (int f = factor; f < factor_count; ++f) {
      for (int d = 0; d < Rank; ++d) {
        const bool inside = f > factor || d > dim;
        if (inside && factors[f].holder == holder) digit.radix *= factors[f].extent[d];
        if (inside && d == dim) digit.scale *= factors[f].extent[d];
      }
    }
    return digit;
  }

  /// Coordinates of what a thread (lane + lanes() * warp) holds in a register.
  constexpr TESSERA_HD Coords coords(int thread, int reg) const {
    int left[] = {reg, thread % lanes(), thread / lanes()}, scale[Rank];
    for (int& s : scale) s = 1;
    Coords c{};
    for (int f = factor_count - 1; f >= 0; --f) {
      int& index = left[static_cast<int>(factors[f].holder)];
      for (int d = Rank - 1; d >= 0; --d) {
        const int extent = factors[f].extent[d];
        if (extent == 1) continue;
        c[d] += index % extent * scale[d];
        index /= extent;
        scale[d] *= extent;
      }
    }
    return c;
  }
  /// Who holds an element of the tile.
  constexpr TESSERA_HD Owner owner(const Coords& c) const {
    int index[3] = {0, 0, 0};
    for (int i = 0; i < digit_count(); ++i) {
      const Digit d = digit(i);
      index[static_cast<int>(d.holder)] += c[d.dim] / d.scale % d.extent * d.radix;
    }
    return {index[1] + lanes() * index[2], index[0]};
  }
  /// The lanes' extents along a reduced dimension must be powers of two.
  constexpr TESSERA_HD ReductionPlan reduction(int dim) const {
    ReductionPlan plan{1, 0, {}, 1};
    for (int i = 0; i < digit_count(); ++i) {
      const Digit d = digit(i);
      if (d.dim != dim) continue;
      if (d.holder == Holder::registers) plan.registers *= d.extent;
      if (d.holder == Holder::warps) plan.warps *= d.extent;
      for (int step = 1; d.holder == Holder::lanes && step < d.extent; step *= 2)
        plan.masks[plan.mask_count++] = d.radix * step;
    }
    return plan;
  }
};

// ---- the notation

template <class... N>
constexpr TESSERA_HD auto make_factor(Holder holder, bool vector, N... extents) {
  static_assert(sizeof...(N) <= max_dims, "distribution: at most four dimensions");
  Distribution<sizeof...(N)> d{{'x', 'y', 'z', 'w'}, 1, {}};
  d.factors[0] = {holder, vector, {static_cast<int>(extents)...}};
  return d;
}
/// Each thread holds the inner part once per repetition.
template <class... N>
constexpr TESSERA_HD auto repeat(N... extents) {
  return make_factor(Holder::registers, false, extents...);
}
/// Neighbouring registers; at the end of a distribution, one memory access.
template <class... N>
constexpr TESSERA_HD auto vec(N... extents) {
  return make_factor(Holder::registers, true, extents...);
}
template <class... N>
constexpr TESSERA_HD auto lanes(N... extents) {
  return make_factor(Holder::lanes, false, extents...);
}
template <class... N>
constexpr TESSERA_HD auto warps(N... extents) {
  return make_factor(Holder::warps, false, extents...);
}

/// Each element of `outer` becomes a tile of `inner`.
template <int Rank>
constexpr TESSERA_HD Distribution<Rank> operator*(Distribution<Rank> outer, const Distribution<Rank>& inner) {
  for (int f = 0; f < inner.factor_count; ++f) outer.factors[outer.factor_count++] = inner.factors[f];
  return outer;
}
/// Gives the dimensions their names, a character each.
template <int N, int Rank>
constexpr TESSERA_HD Distribution<Rank> named(const char (&names)[N], Distribution<Rank> d) {
  static_assert(N == Rank + 1, "distribution: one character per dimension");
  for (int i = 0; i < Rank; ++i) d.names[i] = names[i];
  return d;
}

// ---- lowering: Layout is a type with a static constexpr layout()

/// The distribution, made once: compilers take long over constants.
template <class Layout>
inline constexpr auto layout_of = Layout::layout();

/// Coordinates of register R relative to the thread's first element.
template <class Layout>
consteval auto register_coords(int reg) {
  return layout_of<Layout>.coords(0, reg);
}

/// Coordinates of the first element of a thread; its other elements lie at register_coords from there.
template <class Layout>
constexpr TESSERA_HD auto thread_coords(int thread) {
  constexpr auto layout = layout_of<Layout>;
  const int lane = thread % layout.lanes(), warp = thread / layout.lanes();
  Array<int, layout.rank> c{};
  unroll<layout.digit_count()>([&](auto i) {
    constexpr Digit d = layout_of<Layout>.digit(i);
    if constexpr (d.extent > 1 && d.holder == Holder::lanes) c[d.dim] += d.of(lane);
    if constexpr (d.extent > 1 && d.holder == Holder::warps) c[d.dim] += d.of(warp);
  });
  return c;
}

/// fn(Int<r>, Int<c>...) for every register in order, with its constant coordinates relative to the thread.
template <class Layout, class Fn>
constexpr TESSERA_HD void for_each_register(Fn&& fn) {
  unroll<layout_of<Layout>.registers()>([&](auto r) {
    with_indices<layout_of<Layout>.rank>([&]<int... D>(Seq<D...>) { fn(r, Int<register_coords<Layout>(r)[D]>{}...); });
  });
}

/// The loop nest of a CPU: fn(thread, Int<r>, c...) for every element, threads as a loop, registers unrolled.
template <class Layout, class Fn>
constexpr void for_each_element(Fn&& fn) {
  for (int thread = 0; thread < layout_of<Layout>.threads(); ++thread) {
    const auto base = thread_coords<Layout>(thread);
    unroll<layout_of<Layout>.registers()>([&](auto r) {
      with_indices<layout_of<Layout>.rank>([&]<int... D>(Seq<D...>) {
        fn(thread, r, (base[D] + register_coords<Layout>(r)[D])...);
      });
    });
  }
}

// ---- shared memory

/// Which lanes of an access take part in the same cycle. Both have 32 banks of 4 bytes.
enum class SharedMemory : u8 {
  nvidia,     // 128 bytes of consecutive lanes per cycle
  amd_write,  // the same over 64 lanes
  amd_read,   // as amd_write, but 16-byte reads pair distant lanes (AMD ROCm blog, "Avoiding LDS bank
              // conflicts")
};

struct BankUse {
  int cycles;  // that the accesses of one warp take
  int ideal;   // without conflicts
  constexpr TESSERA_HD bool is_conflict_free() const { return cycles == ideal; }
};

/// The cycle in which a lane's access of `bytes` bytes is served when nothing conflicts.
constexpr TESSERA_HD int shared_cycle(SharedMemory memory, int lane, int bytes) {
  const int lanes_per_cycle = min(32, 128 / max(bytes, 4));
  if (memory != SharedMemory::amd_read || bytes != 16) return lane / lanes_per_cycle;
  const int quad = lane / 4 % 8;  // lanes 0-3 go with 20-23, 4-7 with 16-19, 8-11 with 28-31, 12-15 with 24-27
  return lane / 32 * 4 + (quad < 4 ? quad : (quad ^ 1) & 3);
}

/// The cycles in which warp 0 moves its part of the tile to or from shared memory, where the element at
/// coordinates c lies at offset(c), in elements. The elements of a vec() must lie next to each other.
template <int Rank, class Offset>
constexpr TESSERA_HD BankUse bank_use(const Distribution<Rank>& d, SharedMemory memory, int element_bytes,
                                      const Offset& offset) {
  const int access = max(1, min(d.vector(), 16 / element_bytes)), bytes = access * element_bytes;
  const int lanes = d.lanes(), cycles_per_access = shared_cycle(memory, lanes - 1, bytes) + 1;
  int cycle_of[64]{};
  for (int lane = 0; lane < lanes; ++lane) cycle_of[lane] = shared_cycle(memory, lane, bytes);
  BankUse use{0, 0};
  for (int reg = 0; reg < d.registers(); reg += access) {
    i64 first[64]{};
    for (int lane = 0; lane < lanes; ++lane) first[lane] = offset(d.coords(lane, reg)) * element_bytes / 4;
    for (int cycle = 0; cycle < cycles_per_access; ++cycle) {
      i64 words[64]{}, held[32]{};  // all that are asked for; the first of each bank
      int count = 0, load[32]{}, worst = 1;
      for (int lane = 0; lane < lanes; ++lane) {
        if (cycle_of[lane] != cycle) continue;
        for (i64 word = first[lane]; word < first[lane] + max(1, bytes / 4); ++word) {
          const int bank = static_cast<int>(word % 32);
          bool seen = load[bank] > 0 && held[bank] == word;  // one word serves all who want it
          for (int i = 0; load[bank] > 1 && i < count && !seen; ++i) seen = words[i] == word;
          if (seen) continue;
          if (load[bank] == 0) held[bank] = word;
          words[count++] = word;
          worst = max(worst, ++load[bank]);
        }
      }
      use.cycles += worst;
      use.ideal += 1;
    }
  }
  return use;
}

TESSERA_TILE_END
