// Operands of a tile GEMM on any GPU: which elements each thread fetches, and where they lie in shared memory.
// An operand is a view (row, depth): rows of A, or columns of B, by the dimension that is summed over.
#pragma once
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
    return is_same_v<decltype(V{}.desc.template stride<0>()), Int<1>> ? 0 : 1;
  } else {
    return 1;
  }
}

/// A tile of Rows x Depth elements in shared memory, contiguous along dimension Along (0: rows, 1: depth). Chunks of
/// 16 bytes are permuted within a line so that eight threads that read one chunk column of neighbouring lines, or one
/// line, touch every bank once.
template <class T, int Rows, int Depth, int Along>
struct SharedTile {
  static constexpr int chunk = 16 / static_cast<int>(sizeof(T));
  static constexpr int inner = Along == 0 ? Rows : Depth, outer = Along == 0 ? Depth : Rows;
  static constexpr int size = Rows * Depth;
  static constexpr bool inner_is_rows = Along == 0;
  static constexpr int spread = min(8, inner / chunk);
  static_assert(inner % (chunk * spread) == 0, "tile GEMM: a line of shared memory must hold whole groups of chunks");

  /// Where element (row, k) lies, in elements.
  static constexpr TESSERA_HD int offset(int row, int k) {
    constexpr auto lines = make_strided(tuple(Int<outer>{}, Int<inner>{}), tuple(Int<inner>{}, Int<1>{}));
    constexpr auto desc = transform(lines, swizzle<0, 1, chunk, spread, 8 / spread>());
    return static_cast<int>(Along == 0 ? desc.offset({k, row}) : desc.offset({row, k}));
  }
};

/// Which chunks of a SharedTile a thread fetches. Chunk i lies in line line(i), chunk column column().
/// Grouped: the lines of a thread are neighbours, so that it can transpose what it holds; otherwise the threads of a
/// block sweep over the lines together.
template <class Tile, int Threads, bool Grouped>
struct FetchPlan {
  static constexpr int columns = Tile::inner / Tile::chunk;
  static constexpr int lines = Threads / columns;  // that the block fetches at a time
  static constexpr int count = Tile::outer / lines;
  static constexpr int step = Grouped ? 1 : lines;
  static_assert(Threads % columns == 0 && Tile::outer % lines == 0,
                "tile GEMM: the tile cannot be shared out evenly to the threads of the block");

  static constexpr TESSERA_HD int line(int thread) { return thread / columns * (Grouped ? count : 1); }
  static constexpr TESSERA_HD int column(int thread) { return thread % columns * Tile::chunk; }
};

/// What one thread fetches of an operand: moves through the view along the depth, a tile at a time. Chunks are cut into
/// pieces of `width` elements, the longest that the view's type promises to be contiguous, aligned and wholly valid
/// or invalid.
template <class V, int Rows, int Depth, int Threads, bool Grouped = false>
class Fetch {
 public:
  using T = remove_cvref_t<typename V::Element>;
  static constexpr int along = contiguous_dim<V>();
  using Tile = SharedTile<T, Rows, Depth, along>;
  using Plan = FetchPlan<Tile, Threads, Grouped>;
  static constexpr int count = Plan::count;
  static constexpr int width = min(Tile::chunk, V::template width<along>());
  static constexpr int pieces = Tile::chunk / width;

  /// Starts at element (row, k) of the view; nothing at or beyond `end` along the depth is read.
  TESSERA_HD Fetch(const V& view, int row, int k, int end, int thread)
      : view_(view), rows_(static_cast<int>(view.length(0))), end_(end), line_(Plan::line(thread)),
        column_(Plan::column(thread)), row_(row + (along == 0 ? column_ : line_)),
        k_(k + (along == 0 ? line_ : column_)), place_(start(make_seq<V::is_strided ? 0 : count * pieces>{})) {}

  TESSERA_HD bool valid(int i, int piece) const {
    const bool inside = row_of(i, piece) < rows_ && k_of(i, piece) < end_;
    if constexpr (V::is_strided) return inside;
    else return inside && place_[i * pieces + piece].valid();
  }
  TESSERA_HD const T* address(int i, int piece) const {
    if constexpr (V::is_strided)
      return place_ + i * Plan::step * view_.stride(1 - along) + piece * width * view_.stride(along);
    else return view_.data + place_[i * pieces + piece].offset();
  }
  /// Where chunk i goes in shared memory, in elements.
  TESSERA_HD int offset(int i) const {
    const int line = line_ + i * Plan::step;
    return along == 0 ? Tile::offset(column_, line) : Tile::offset(line, column_);
  }
  /// The first line, and the chunk column, of this thread.
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

  TESSERA_HD int row_of(int i, int piece) const { return row_ + (along == 0 ? piece * width : i * Plan::step); }
  TESSERA_HD int k_of(int i, int piece) const { return k_ + (along == 0 ? i * Plan::step : piece * width); }

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

TESSERA_TILE_END
