// Operands of a tile GEMM on any GPU: which elements each thread fetches, and where they lie in shared memory.
// An operand is a view (row, depth): rows of A, or columns of B, by the dimension that is summed over.
// Compiles for the host too: tests check there that fetching, shared memory and fragments fit together.
#pragma once
#include "../../config.h"
#include "../../distribution.h"
#include "../../types.h"
#include "../../view.h"

TESSERA_TILE_BEGIN

/// The dimension along which the elements of a matrix view are contiguous, as far as its type tells; else 1.
template <class V>
constexpr TESSERA_HD int contiguous_dim() {
  constexpr int w0 = V::template width<0>(), w1 = V::template width<1>();
  if constexpr (w0 != w1) {
    return w0 > w1 ? 0 : 1;
  } else if constexpr (V::is_strided) {
    return is_same_v<decltype(static_cast<V*>(nullptr)->desc.template stride<0>()), Int<1>> ? 0 : 1;
  } else {
    return 1;
  }
}

/// A matrix whose rows, or if Transposed columns, are contiguous. Width divides the pitch between them; they are read
/// that many elements at a time, fewer at their end.
template <class T, int Width, bool Transposed>
TESSERA_HD auto matrix(const void* memory, i64 rows, i64 columns, i64 pitch) {
  const T* data = static_cast<const T*>(memory);
  const int down = static_cast<int>(rows), across = static_cast<int>(columns);
  if constexpr (Transposed)
    return strided(data, tuple(multiple_of<Width>(down), across), tuple(Int<1>{}, multiple_of<Width>(pitch)));
  else return strided(data, tuple(down, multiple_of<Width>(across)), tuple(multiple_of<Width>(pitch), Int<1>{}));
}

/// A tile of Rows x Depth elements in shared memory, in lines along dimension Along (0: rows, 1: depth). Chunks of 16
/// bytes are permuted within their line, so that neither reading along the lines nor across them meets a bank twice.
/// Across lines, 16-bit elements are read as 8 chunks of one column, words as 2 of 4 lines.
template <class T, int Rows, int Depth, int Along>
struct SharedTile {
  using Element = T;
  static constexpr int along = Along;
  static constexpr int chunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int line = Along == 0 ? Rows : Depth;  // elements of one
  static constexpr int lines = Along == 0 ? Depth : Rows;
  static constexpr int size = Rows * Depth;
  static constexpr int spread = min(8, line / chunk);  // 8 chunks meet every bank
  static_assert(line % (chunk * spread) == 0, "tile GEMM: a line of shared memory must be 32, 64 or n * 128 bytes");

  /// Where element (row, k) lies, in elements.
  static constexpr TESSERA_HD int offset(int row, int k) {
    constexpr auto memory = make_strided(tuple(Int<lines>{}, Int<line>{}), tuple(Int<line>{}, Int<1>{}));
    constexpr bool words = sizeof(T) == 4 && Along == 0;
    constexpr auto swizzled = [&] {
      if constexpr (words) return transform(memory, swizzle<0, 1, 2 * chunk, 4, 1>());
      else return transform(memory, swizzle<0, 1, chunk, spread, 8 / spread>());
    }();
    return static_cast<int>(Along == 0 ? swizzled.offset({k, row}) : swizzled.offset({row, k}));
  }
};

/// Which elements of a SharedTile a thread fetches, by (line, column): chunks that the block sweeps over the lines, or,
/// when Transposed, chunks of neighbouring lines, so that the thread can transpose what it holds; then eight threads
/// side by side and those below them write to different banks.
template <class Tile, int Warps, int WarpSize, bool Transposed>
struct FetchLayout {
  static constexpr int columns = Tile::line / Tile::chunk;
  static constexpr int count = Tile::lines * columns / (Warps * WarpSize);  // chunks per thread
  static_assert(WarpSize % columns == 0 && count * Warps * WarpSize == Tile::lines * columns,
                "tile GEMM: the tile cannot be shared out evenly to the threads of the block");

  static constexpr TESSERA_HD auto layout() {
    constexpr int across = min(8, columns), down = WarpSize / columns;
    if constexpr (Transposed) {
      constexpr auto threads = warps(Warps, 1) * lanes(1, columns / across) * lanes(down, 1) * lanes(1, across);
      return named("lc", threads * repeat(count, 1) * vec(1, Tile::chunk));
    } else {
      return named("lc", repeat(count, 1) * warps(Warps, 1) * lanes(down, columns) * vec(1, Tile::chunk));
    }
  }
  /// From one chunk of a thread to its next, in lines.
  static constexpr int step = count == 1 ? 0 : layout().coords(0, Tile::chunk*(count > 1))[0];
};

/// What one thread fetches of an operand: moves through the view along the depth, a tile at a time. Chunks are cut into
/// pieces of `width` elements, the longest that the view's type promises to be contiguous, aligned and wholly valid
/// or invalid.
template <class V, int Rows, int Depth, int Warps, int WarpSize, bool Transposed = false>
class Fetch {
 public:
  using T = remove_cvref_t<typename V::Element>;
  static constexpr int along = contiguous_dim<V>();
  static constexpr bool is_strided = V::is_strided;
  using Tile = SharedTile<T, Rows, Depth, along>;
  using Layout = FetchLayout<Tile, Warps, WarpSize, Transposed>;
  static constexpr int count = Layout::count;
  static constexpr int width = min(Tile::chunk, V::template width<along>());
  static constexpr int pieces = Tile::chunk / width;
  static constexpr int alignment = width * static_cast<int>(sizeof(T));  // of what is read, in bytes
  static constexpr bool slides = false;

  /// Starts at element (row, k) of the view; nothing at or beyond `end` along the depth is read.
  TESSERA_HD Fetch(const V& view, int row, int k, int end, int thread)
      : view_(view),
        rows_(static_cast<int>(view.length(0))),
        end_(end),
        line_(thread_coords<Layout>(thread)[0]),
        column_(thread_coords<Layout>(thread)[1]),
        row_(row + (along == 0 ? column_ : line_)),
        k_(k + (along == 0 ? line_ : column_)),
        place_(start(make_seq < V::is_strided ? 0 : count * pieces > {})) {}

  /// Whether piece `piece` of chunk `i` is to be read; it is zero otherwise.
  TESSERA_HD bool valid(int i, int piece) const {
    const bool inside = row_of(i, piece) < rows_ && k_of(i, piece) < end_;
    if constexpr (V::is_strided) return inside;
    else return inside && place_[i * pieces + piece].valid();
  }
  /// How many elements of it: fewer than `width` where a strided view ends within the piece.
  TESSERA_HD int valid_count(int i, int piece) const {
    if constexpr (V::is_strided) {
      const int left = along == 0 ? rows_ - row_of(i, piece) : end_ - k_of(i, piece);
      const bool inside = along == 0 ? k_of(i, piece) < end_ : row_of(i, piece) < rows_;
      return inside ? max(0, min(left, width)) : 0;
    } else {
      return valid(i, piece) ? width : 0;
    }
  }
  TESSERA_HD const T* address(int i, int piece) const {
    if constexpr (V::is_strided)
      return place_ + i * Layout::step * view_.stride(1 - along) + piece * width * view_.stride(along);
    else return view_.data + place_[i * pieces + piece].offset();
  }
  /// Where chunk i goes in shared memory, in elements.
  TESSERA_HD int offset(int i) const {
    const int line = line_ + i * Layout::step;
    return along == 0 ? Tile::offset(column_, line) : Tile::offset(line, column_);
  }
  /// The first line of this thread, and where in it the chunk begins.
  TESSERA_HD int line() const { return line_; }
  TESSERA_HD int column() const { return column_; }
  /// Moves on by one tile.
  TESSERA_HD void next() {
    k_ += Depth;
    if constexpr (V::is_strided) place_ += Depth * view_.stride(1);
    else unroll<count * pieces>([&](auto n) { place_[n].move({{0, Depth}}); });
  }

 private:
  using Place = conditional_t<V::is_strided, const T*, Array<Cursor<typename V::Descriptor>, count * pieces>>;

  TESSERA_HD int row_of(int i, int piece) const { return row_ + (along == 0 ? piece * width : i * Layout::step); }
  TESSERA_HD int k_of(int i, int piece) const { return k_ + (along == 0 ? i * Layout::step : piece * width); }

  template <int... N>
  TESSERA_HD Place start(Seq<N...>) const {
    if constexpr (V::is_strided) return view_.data + row_ * view_.stride(0) + k_ * view_.stride(1);
    else return Place{{{view_.desc, {{row_of(N / pieces, N % pieces), k_of(N / pieces, N % pieces)}}}...}};
  }

  V view_;
  int rows_, end_;
  int line_, column_;
  int row_, k_;  // of the thread's first element
  Place place_;
};

/// On AMD's cards, has the compiler put `word` into an ordinary vector register here, in all lanes: it neither works on
/// a loaded word before this point, where it would wait for it too early, nor leaves it among the accumulators or for
/// later.
template <class Word>
TESSERA_HD void touch([[maybe_unused]] Word& word) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(word));
#endif
}

// ---- the result

/// How the result of a block is shared out: equal parts for the warps, each a grid of matrix instructions with the
/// result layout Atom.
template <class C, Arch Hardware, class Atom>
struct SumLayout {
  static constexpr int atom_m = Atom::layout().length(0), atom_n = Atom::layout().length(1);
  static constexpr int unit = unit_of(C::config, Hardware);
  static constexpr int down = warps_down(C::config.tile_m, C::config.tile_n, C::config.warps, unit, unit);
  static constexpr int across = C::config.warps / down;
  static constexpr int rows = C::config.tile_m / down, columns = C::config.tile_n / across;  // of one warp
  static constexpr int atoms_m = rows / atom_m, atoms_n = columns / atom_n;

  static constexpr TESSERA_HD auto layout() {
    return named("mn", warps(down, across) * repeat(atoms_m, atoms_n) * Atom::layout());
  }
  static constexpr TESSERA_HD int row(int warp) { return warp / across * rows; }
  static constexpr TESSERA_HD int column(int warp) { return warp % across * columns; }
};

TESSERA_TILE_END
