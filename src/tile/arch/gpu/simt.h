// Products of one block on the ordinary cores of any GPU: two tiles of each operand in shared memory, sums in
// registers.
#pragma once
#include "../../expr.h"
#include "../../view.h"
#include "shared_line.h"

TESSERA_TILE_BEGIN

inline constexpr int simt_threads = 256;  // 16 x 16 of them share a tile
inline constexpr int simt_depth = 16;     // of a tile along k

/// A tile of an operand in shared memory. Neighbours along the depth lie four banks apart.
template <class T, int Edge>
struct SimtTile {
  static constexpr int chunk = 16 / static_cast<int>(sizeof(T));  // elements that are read at once
  static constexpr int pitch = Edge + chunk;
  T at[simt_depth][pitch];
};

/// Which elements of a tile a thread fetches. Neighbours among the threads take neighbours in memory: along the edge,
/// or eight along the depth, which is as many as four threads beside them leave banks for.
template <int Edge, bool AlongDepth>
struct SimtFetchLayout {
  static constexpr TESSERA_HD auto layout() {
    if constexpr (AlongDepth)
      return named("ke", repeat(1, Edge / 16) * warps(1, 4) * lanes(2, 1) * lanes(1, 4) * lanes(8, 1));
    else return named("ke", repeat(Edge / 16, 1) * warps(256 / Edge, Edge / 64) * lanes(1, 64));
  }
  /// From one element of a thread to its next.
  static constexpr int step = AlongDepth ? 16 : 256 / Edge;
};

/// The first element of a thread, (depth, edge).
template <int Edge>
TESSERA_DEVICE Array<int, 2> simt_first(bool along_depth) {
  return along_depth ? thread_coords<SimtFetchLayout<Edge, true>>(thread_in_block())
                     : thread_coords<SimtFetchLayout<Edge, false>>(thread_in_block());
}

/// The sums of one thread: chunk y of 16 of each part of the tile's rows (columns).
template <class T, int Edge>
struct SimtSums {
  static constexpr int each = Edge / 16, chunk = SimtTile<T, Edge>::chunk;
  T at[each][each] = {};

  /// Row i of those of thread row y.
  static constexpr TESSERA_HD int place(int y, int i) { return (i / chunk * 16 + y) * chunk + i % chunk; }

  TESSERA_DEVICE void add(const SimtTile<T, Edge>& a, const SimtTile<T, Edge>& b) {
    const int y = thread_in_block() / 16, x = thread_in_block() % 16;
    unroll<simt_depth>([&](auto k) {
      Pack<T, chunk> left[each / chunk], right[each / chunk];
      unroll<each / chunk>([&](auto i) {
        left[i] = load_chunk<chunk>(&a.at[k][place(y, i * chunk)]);
        right[i] = load_chunk<chunk>(&b.at[k][place(x, i * chunk)]);
      });
      unroll<each>([&](auto i) {
        unroll<each>([&](auto j) {
          at[i][j] = fma(left[i / chunk].lane[i % chunk], right[j / chunk].lane[j % chunk], at[i][j]);
        });
      });
    });
  }

  /// Whether filling a tile, reading it and storing the sums meets no bank twice: asked by tests, since every unit
  /// would take seconds to answer.
  static constexpr TESSERA_HD bool meets_no_bank_twice() {
    constexpr auto chunks = named("ti", lanes(64, 1) * vec(1, chunk));
    const auto free = [](const auto& layout, SharedMemory memory, const auto& offset) {
      return bank_use(layout, memory, sizeof(T), offset).is_conflict_free();
    };
    const auto filled = [](const auto& c) { return c[0] * SimtTile<T, Edge>::pitch + c[1]; };
    return free(SimtFetchLayout<Edge, true>::layout(), SharedMemory::amd_write, filled) &&
           free(SimtFetchLayout<Edge, false>::layout(), SharedMemory::amd_write, filled) &&
           free(chunks, SharedMemory::amd_read, [](const auto& c) { return place(c[0] % 16, c[1]); }) &&
           free(chunks, SharedMemory::amd_write,
                [](const auto& c) { return c[0] / 16 * Edge + place(c[0] % 16, c[1]); });
  }
};

/// What a block of ordinary cores needs to sum up a tile of Edge x Edge, and to hand it on.
template <class T, int Edge>
struct SimtBlock {
  using Sums = SimtSums<T, Edge>;
  struct Tiles {
    SimtTile<T, Edge> a, b;
  };
  static constexpr int shared_bytes = 2 * sizeof(Tiles);

  /// Sums up what the loaders bring, `depth` along k. Called by all threads with shared memory that nobody uses.
  template <class A, class B>
  static TESSERA_DEVICE void multiply(A& a, B& b, i64 depth, Sums& sums, void* shared) {
    Tiles* tiles = static_cast<Tiles*>(shared);
    const auto keep = [&](i64 step) {
      a.store(tiles[step % 2].a);
      b.store(tiles[step % 2].b);
    };
    const i64 steps = ceil_div<i64>(depth, simt_depth);
#pragma unroll 1
    for (i64 step = 0; step <= steps; ++step) {  // loads of other sources are long: there is one copy of them
      a.load();                                  // past the end these are zeros
      b.load();
      if (step > 0) sums.add(tiles[(step - 1) % 2].a, tiles[(step - 1) % 2].b);
      keep(step);
      sync_block();
    }
  }

  /// use(sum, row, column) for every element of the tile, neighbouring threads taking neighbouring columns.
  template <class Use>
  static TESSERA_DEVICE void store(const Sums& sums, void* shared, const Use& use) {
    T* slab = static_cast<T*>(shared);  // 16 rows of sums at a time
    const int y = thread_in_block() / 16, x = thread_in_block() % 16;
#pragma unroll 1
    for (int i = 0; i < Sums::each; ++i) {
      unroll<Sums::each / Sums::chunk>([&](auto part) {
        Pack<T, Sums::chunk> pack{};
        unroll<Sums::chunk>([&](auto l) {  // chosen among values, or all sums end up in memory
          const int j = part * Sums::chunk + l;
          unroll<Sums::each>([&](auto held) { pack.lane[l] = i == held ? sums.at[held][j] : pack.lane[l]; });
        });
        store_chunk(&slab[y * Edge + Sums::place(x, part * Sums::chunk)], pack);
      });
      sync_block();
#pragma unroll 1
      for (int e = thread_in_block(); e < 16 * Edge; e += simt_threads)
        use(slab[e], Sums::place(e / Edge, i), e % Edge);
      sync_block();
    }
  }
};

/// An operand of which SimtFetch takes tiles: a view (edge, depth). Other sources offer the same.
template <class V>
struct SimtView {
  V view;
  TESSERA_DEVICE i64 start() const { return 0; }  // the offset of its first element
  TESSERA_DEVICE i64 edges() const { return view.length(0); }
  TESSERA_DEVICE i64 depth() const { return view.length(1); }
  TESSERA_DEVICE i64 edge_stride() const { return view.stride(0); }
  TESSERA_DEVICE i64 depth_stride() const { return view.stride(1); }
  template <class T>
  TESSERA_DEVICE T element(i64 offset) const {
    return convert_element<T>(view.data[offset]);
  }
};

/// Takes tiles of Edge rows of a, or columns of b, from memory over registers to shared memory.
template <class T, class Source, int Edge>
class SimtFetch {
 public:
  /// Tiles begin at edge `first`.
  TESSERA_DEVICE SimtFetch(const Source& source, i64 first)
      : source_(source),
        along_depth_(source.edge_stride() != 1),
        edge_(simt_first<Edge>(along_depth_)[1]),
        depth_(simt_first<Edge>(along_depth_)[0]),
        edges_(static_cast<int>(min<i64>(source.edges() - first, Edge)) - edge_),
        left_(source.depth() - depth_),
        offset_(source.start() + (first + edge_) * source.edge_stride() + depth_ * source.depth_stride()),
        step_(along_depth_ ? edge_step * source.edge_stride() : depth_step * source.depth_stride()),
        stride_(simt_depth * source.depth_stride()) {}

  /// The next tile along the depth into registers; zeros past the end.
  TESSERA_DEVICE void load() {
    unroll<count>([&](auto i) {
      const bool inside = along_depth_ ? i * edge_step < edges_ && left_ > 0 : 0 < edges_ && i * depth_step < left_;
      held_[i] = inside ? source_.template element<T>(offset_ + i * step_) : T(0);
    });
    offset_ += stride_;
    left_ -= simt_depth;
  }
  TESSERA_DEVICE void store(SimtTile<T, Edge>& tile) const {
    unroll<count>([&](auto i) {
      if (along_depth_) tile.at[depth_][edge_ + i * edge_step] = held_[i];
      else tile.at[depth_ + i * depth_step][edge_] = held_[i];
    });
  }

 private:
  static constexpr int count = Edge * simt_depth / simt_threads;
  static constexpr int edge_step = SimtFetchLayout<Edge, true>::step, depth_step = SimtFetchLayout<Edge, false>::step;

  Source source_;
  bool along_depth_;  // neighbouring threads take neighbours along the depth
  int edge_, depth_;  // of the first element of this thread in the tile
  int edges_;         // from there on
  i64 left_;          // along the depth
  i64 offset_, step_, stride_;
  T held_[count];
};

/// One block's part of the result, as gemm_block() on matrix cores: the epilogue is evaluated for each of its elements.
/// The views are a(m, k) and b(k, n), strided; the grid has one block for each tile of Edge x Edge, row by row.
template <class T, int Edge, class A, class B, Expression E>
TESSERA_DEVICE void simt_gemm_block(const A& a, const B& b, const E& epilogue) {
  using Block = SimtBlock<T, Edge>;
  __shared__ __attribute__((aligned(32))) char shared[Block::shared_bytes];
  const i64 m = a.length(0), n = b.length(1), across = ceil_div<i64>(n, Edge);
  const i64 row = block_in_grid() / across * Edge, column = block_in_grid() % across * Edge;
  const auto columns = transform(b, pass<1>(), pass<0>());
  SimtFetch<T, SimtView<A>, Edge> fetch_a({a}, row);
  SimtFetch<T, SimtView<remove_cvref_t<decltype(columns)>>, Edge> fetch_b({columns}, column);
  typename Block::Sums sums;
  Block::multiply(fetch_a, fetch_b, a.length(1), sums, shared);
  Block::store(sums, shared, [&](T sum, int i, int j) {
    if (row + i < m && column + j < n) evaluate(epilogue, sum, row + i, column + j);
  });
}

TESSERA_TILE_END
