// Rows of any length, anywhere in memory, that are read from there once: packs of 16 bytes at multiples of 16 bytes,
// kept in registers or, of long rows, in shared memory; and, one to a thread, the few elements before and behind the
// packs.
#pragma once
#include "rows.h"
#include "tile/arch/gpu/shared_line.h"

namespace tessera::gpu_kernels {

/// A piece of a row that one thread has: `width` elements from `index` on.
template <int width_, class Index>
struct Piece {
  static constexpr int width = width_;
  Index index;
};

/// Stores a piece of a row whose pieces lie as those that were read.
template <class T, int width, class Index>
TESSERA_DEVICE void store_piece(T* row, const Piece<width, Index>& at, const Lanes<T, width>& v) {
  Pack<T, width> out;
  tile::unroll<width>([&](auto j) { out.lane[j] = tile::convert_element<T>(v[j]); });
  store_at_once(row + at.index, out);
}

/// Elements beside those of a row, whose pieces may begin anywhere, or which are missing.
template <class T>
class Beside {
 public:
  TESSERA_DEVICE Beside(const T* data, const void* row)
      : data_(data), shift_(static_cast<int>((reinterpret_cast<size_t>(data) - reinterpret_cast<size_t>(row)) & 15)) {}
  TESSERA_DEVICE explicit operator bool() const { return data_ != nullptr; }

  /// The packs that hold a piece, at multiples of 16 bytes; single elements are a piece themselves. AMD's cards load
  /// pieces from anywhere.
#if defined(__HIP__)
  static constexpr bool shifts = false;
#else
  static constexpr bool shifts = true;
#endif
  template <int width>
  struct Raw {
    Pack<T, width> pack[shifts && width > 1 ? 2 : 1];
  };
  template <int width, class Index>
  TESSERA_DEVICE Raw<width> fetch(const Piece<width, Index>& at) const {
    Raw<width> raw;
    if (data_) {
      const T* const from = data_ + at.index;
      if constexpr (!shifts || width == 1) {
        __builtin_memcpy(&raw.pack[0], from, sizeof(raw));
      } else {
        const auto* const whole = reinterpret_cast<const Pack<T, width>*>(reinterpret_cast<size_t>(from) - shift_);
        raw.pack[0] = whole[0];
        if (shift_ != 0) raw.pack[1] = whole[1];
      }
    }
    return raw;
  }
  template <int width>
  TESSERA_DEVICE Lanes<T, width> operator[](const Raw<width>& raw) const {
    return lanes(pack(raw));
  }
  template <int width>
  TESSERA_DEVICE Pack<T, width> pack(const Raw<width>& raw) const {
    if constexpr (!shifts || width == 1) return raw.pack[0];
    else return shifted(raw.pack[0], raw.pack[1], shift_);
  }

 private:
  const T* data_;
  int shift_;  // bytes by which pieces lie behind multiples of 16
};

/// How many packs of rows that do not lie alike HeldRows has in registers: none, and it shifts them.
inline constexpr int apart = -1;

/// `count` rows of a team that lie as `result` does, of which each of its threads has up to `held` packs in registers;
/// or, where that is 0, any number, the first `kept` in shared memory; or `apart`: the same of rows that lie anyhow.
template <class T, int width, class Team, int held, int count>
class HeldRows {
 public:
  using Packed = Pack<T, width>;
  using Index = tile::conditional_t<width == 1 || held == apart, i64, int>;

  TESSERA_DEVICE HeldRows(const T* result, const tile::Array<const T*, count>& data, i64 n, int kept)
      : result_(result), data_(data), head_(0), lead_(0), packs_(static_cast<Index>(n)), edge_(-1), kept_(kept) {
    if constexpr (width > 1) {
      const size_t begin = reinterpret_cast<size_t>(held == apart ? result : data[0]);
      const Index length = static_cast<Index>(n);
      const int rank = Team::rank();
      head_ = tile::min(length, static_cast<Index>(-static_cast<int>(begin / sizeof(T)) & (width - 1)));
      // Whole packs of what lies beside, see Beside, end within their rows, too.
      packs_ = (length - (head_ > 0 ? width : 0)) / width;
      const int tail = static_cast<int>(length - head_ - packs_ * width);
      if (rank < head_) edge_ = rank;
      else if (rank >= width && rank - width < tail) edge_ = length - tail + rank - width;
      if constexpr (held <= 0) lead_ = static_cast<int>((begin + head_ * sizeof(T)) / 16 % 8);  // to lines of memory
    }
  }

  /// visit(piece, its packs of all rows, fetch(piece)) for the pieces of this thread, which are read from memory;
  /// several pieces are fetched before the first of them is visited.
  template <class Fetch, class Visit>
  TESSERA_DEVICE void read(const Fetch& fetch, const Visit& visit) {
    if (edge_ >= 0) tile::unroll<count>([&](auto i) { edge_value_[i].lane[0] = data_[i][edge_]; });
    if constexpr (held > 0) {
      tile::unroll<held>([&](auto k) {
        const Index p = pack(k);
        if (p < packs_) tile::unroll<count>([&](auto i) { part_[k].row[i] = load(i, p).pack[0]; });
      });
      each(fetch, visit);
    } else {
      stream<false>(fetch, visit);
    }
  }
  /// The same once more.
  template <class Fetch, class Visit>
  TESSERA_DEVICE void each(const Fetch& fetch, const Visit& visit) const {
    if constexpr (held > 0) {
      tile::unroll<held>([&](auto k) {
        const Index p = pack(k);
        if (p < packs_) visit(piece(p), part_[k].row, fetch(piece(p)));
      });
      visit_edge(fetch, visit);
    } else {
      stream<true>(fetch, visit);
    }
  }
  /// The same with nothing to fetch.
  template <class Visit>
  TESSERA_DEVICE void read(const Visit& visit) {
    read([](auto) { return 0; }, [&](auto at, const auto& row, int) { visit(at, row); });
  }
  template <class Visit>
  TESSERA_DEVICE void each(const Visit& visit) const {
    each([](auto) { return 0; }, [&](auto at, const auto& row, int) { visit(at, row); });
  }

 private:
  struct Part {
    Packed row[count];
  };
  struct One {
    Packed pack[1];
  };

  TESSERA_DEVICE Index pack(Index k) const { return Team::rank() + k * Team::size - lead_; }
  TESSERA_DEVICE Piece<width, Index> piece(Index pack) const { return {head_ + pack * width}; }
  TESSERA_DEVICE Beside<T> beside(int row) const { return {data_[row], held == apart ? result_ : data_[row]}; }
  TESSERA_DEVICE auto load(int row, Index pack) const {
    if constexpr (held == apart) return beside(row).fetch(piece(pack));
    else return One{{*reinterpret_cast<const Packed*>(data_[row] + (head_ + pack * width))}};
  }

  template <class Fetch, class Visit>
  TESSERA_DEVICE void visit_edge(const Fetch& fetch, const Visit& visit) const {
    const Piece<1, Index> edge{edge_};
    if (edge_ >= 0) visit(edge, edge_value_, fetch(edge));
  }
  template <bool again, class Fetch, class Visit>
  TESSERA_DEVICE void stream(const Fetch& fetch, const Visit& visit) const {
    using More = decltype(fetch(piece(0)));
    constexpr int ahead = (sizeof(More) > 4 ? 2 : 4) / (held == apart ? 2 : 1);
    extern __shared__ __attribute__((aligned(128))) char shared[];
    Packed* const room = reinterpret_cast<Packed*>(shared);
    const auto place = [&](int turn, int row) {
      return turn * Team::size * count + tile::SharedLine<Packed, count>::place(Team::rank() * count + row);
    };
    const Index turns = (packs_ + lead_ + Team::size - 1) / Team::size;
    for (Index k = 0; k < turns; k += ahead) {
      decltype(load(0, 0)) raw[ahead][count];
      More more[ahead];
      tile::unroll<ahead>([&](auto u) {
        const Index p = pack(k + u);
        if (p < 0 || p >= packs_) return;
        more[u] = fetch(piece(p));
        if (again && k + u < kept_) tile::unroll<count>([&](auto i) { raw[u][i].pack[0] = room[place(k + u, i)]; });
        else tile::unroll<count>([&](auto i) { raw[u][i] = load(i, p); });
      });
      tile::unroll<ahead>([&](auto u) {
        const Index p = pack(k + u);
        if (p < 0 || p >= packs_) return;
        Part part;
        tile::unroll<count>([&](auto i) {
          part.row[i] = raw[u][i].pack[0];
          if constexpr (held == apart)
            if (!again || k + u >= kept_) part.row[i] = beside(i).pack(raw[u][i]);
        });
        if (!again && k + u < kept_) tile::unroll<count>([&](auto i) { room[place(k + u, i)] = part.row[i]; });
        visit(piece(p), part.row, more[u]);
      });
    }
    visit_edge(fetch, visit);
  }

  const T* result_;
  tile::Array<const T*, count> data_;
  Index head_;  // elements before the first pack
  int lead_;    // packs that the first thread leaves out, so that each warp reads whole lines of memory
  Index packs_, edge_;
  int kept_;
  Part part_[held > 0 ? held : 1];
  Pack<T, 1> edge_value_[count];
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

/// The shared memory that a block may have on this device.
i64 most_shared_bytes();

/// How a kernel's teams hold their rows.
struct RowsHeld {
  int kept = 0;  // packs of a thread, of each row, in shared memory
  size_t shared = 0;
};

/// fn(Team) with the smallest team of `size`, twice that, ... `most` threads that are enough; false: none is.
template <int size, int most, class Fn>
bool with_team(i64 enough, const Fn& fn) {
  if constexpr (size <= most) {
    if (enough > size) return with_team<size * 2, most>(enough, fn);
    fn(Team<size>{});
  }
  return size <= most;
}

/// fn(Int<width>, Team, Int<held>, RowsHeld) as it fits `count` rows of n elements of type T, which kernels read more
/// than once or, unless `again`, only once: the smallest of the teams of 32 to `most` threads whose registers hold
/// them, 32 elements of each row a thread, or one that streams them. Rows of f64, which are rare, come element by
/// element, which spares kernels, as does one for rows of any length that do not lie alike.
template <class T, int count, bool again, int most, class Fn>
void with_rows(i64 n, const RowLayout& layout, const Fn& fn) {
  constexpr int width = 16 / sizeof(T), held = 32 / width;
  using tile::Int;
  if constexpr (sizeof(T) == 8) {
    fn(Int<1>{}, Team<512>{}, Int<0>{}, RowsHeld{});
  } else {
    const i64 packs = n / width;
    const auto stream = [&](auto team, auto how) {
      constexpr i64 bytes = decltype(team)::threads * 16 * count;
      RowsHeld rows;
      if (again) {
        const i64 kept = tile::ceil_div<i64>(packs + 8, decltype(team)::threads);
        rows.kept = static_cast<int>(tile::min(kept, (most_shared_bytes() - 1024) / bytes));
        rows.shared = static_cast<size_t>(rows.kept * bytes);
      }
      fn(Int<width>{}, team, how, rows);
    };
    if (!layout.alike || n > 0x7fffffff - 1024 * width) return stream(Team<512>{}, Int<apart>{});
    const auto hold = [&](auto team) { fn(Int<width>{}, team, Int<held>{}, RowsHeld{}); };
    if (with_team<32, most>(tile::ceil_div<i64>(packs, held), hold)) return;
    constexpr int threads = again && count * sizeof(T) > 2 ? 1024 : 512;
    stream(Team<threads>{}, Int<0>{});
  }
}

/// launch, where a block may need more shared memory than kernels get unasked.
template <class Work>
void launch_rows(const char* what, void (*kernel)(Work), i64 blocks, int threads, const RowsHeld& held,
                 Executor& executor, const Work& work) {
  if (held.shared > 0)
    (void)TESSERA_RT(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                       TESSERA_RT(FuncAttributeMaxDynamicSharedMemorySize),
                                       static_cast<int>(held.shared));
  launch(what, kernel, blocks, threads, held.shared, executor, work);
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

}  // namespace tessera::gpu_kernels
