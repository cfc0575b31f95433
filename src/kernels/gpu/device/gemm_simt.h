// Matrix products on ordinary cores, for operands of any type and strides.
#pragma once
#include "gemm.h"
#include "loops.h"

namespace tessera::gpu_kernels {

inline constexpr int simt_threads = 256;  // 16 x 16 of them share a tile
inline constexpr int simt_depth = 16;     // of a tile along k

/// An element type that is known at run time only.
struct AnyType {};

template <class T, class Memory>
TESSERA_DEVICE T load_element(const void* p, Scalar type, i64 i) {
  if constexpr (tile::is_same_v<Memory, AnyType>) return load_as<T>(p, type, i);
  else return tile::convert_element<T>(static_cast<const Memory*>(p)[i]);
}

/// A tile of an operand in shared memory.
template <class T, int Edge>
struct SimtTile {
  static constexpr int pitch = Edge + 4;
  T at[simt_depth][pitch];
};

/// Takes tiles of Edge rows of a, or columns of b, from memory over registers to shared memory.
template <class T, class Memory, int Edge>
class SimtLoader {
 public:
  /// The operand has `edges` rows (columns) `edge_stride` apart and `depth` elements in each; tiles begin at `first`.
  TESSERA_DEVICE SimtLoader(const MatrixArg& m, i64 offset, i64 edge_stride, i64 depth_stride, i64 first, i64 edges,
                            i64 depth)
      : data_(m.data),
        type_(m.type),
        along_depth_(edge_stride != 1),
        edge_(along_depth_ ? tile::thread_in_block() / simt_depth : tile::thread_in_block() % Edge),
        depth_(along_depth_ ? tile::thread_in_block() % simt_depth : tile::thread_in_block() / Edge),
        edges_(static_cast<int>(tile::min<i64>(edges - first, Edge)) - edge_),
        left_(depth - depth_),
        offset_(offset + (first + edge_) * edge_stride + depth_ * depth_stride),
        step_(along_depth_ ? edge_step * edge_stride : depth_step * depth_stride),
        stride_(simt_depth * depth_stride) {}

  /// The next tile along k into registers.
  TESSERA_DEVICE void load() {
    tile::unroll<count>([&](auto i) {
      const bool inside = along_depth_ ? i * edge_step < edges_ && left_ > 0 : 0 < edges_ && i * depth_step < left_;
      held_[i] = inside ? load_element<T, Memory>(data_, type_, offset_ + i * step_) : T(0);
    });
    offset_ += stride_;
    left_ -= simt_depth;
  }
  TESSERA_DEVICE void store(SimtTile<T, Edge>& tile) const {
    tile::unroll<count>([&](auto i) {
      if (along_depth_) tile.at[depth_][edge_ + i * edge_step] = held_[i];
      else tile.at[depth_ + i * depth_step][edge_] = held_[i];
    });
  }

 private:
  static constexpr int count = Edge * simt_depth / simt_threads;
  static constexpr int edge_step = simt_threads / simt_depth, depth_step = simt_threads / Edge;

  const void* data_;
  Scalar type_;
  bool along_depth_;  // neighbouring threads take neighbours along k
  int edge_, depth_;  // of the first element of this thread in the tile
  int edges_;         // from there on
  i64 left_;          // along k
  i64 offset_, step_, stride_;
  T held_[count];
};

/// The sums of one thread: rows (columns) 4 y to 4 y + 3 of each 64 of the tile's.
template <class T, int Edge>
struct SimtSums {
  static constexpr int each = Edge / 16;
  T at[each][each] = {};

  static TESSERA_DEVICE int place(int y, int i) { return i / 4 * 64 + y * 4 + i % 4; }

  TESSERA_DEVICE void add(const SimtTile<T, Edge>& a, const SimtTile<T, Edge>& b) {
    const int y = tile::thread_in_block() / 16, x = tile::thread_in_block() % 16;
    tile::unroll<simt_depth>([&](auto k) {
      Pack<T, 4> left[each / 4], right[each / 4];
      tile::unroll<each / 4>([&](auto i) {
        left[i] = *reinterpret_cast<const Pack<T, 4>*>(&a.at[k][i * 64 + y * 4]);
        right[i] = *reinterpret_cast<const Pack<T, 4>*>(&b.at[k][i * 64 + x * 4]);
      });
      tile::unroll<each>([&](auto i) {
        tile::unroll<each>(
            [&](auto j) { at[i][j] = tile::fma(left[i / 4].lane[i % 4], right[j / 4].lane[j % 4], at[i][j]); });
      });
    });
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
    const auto store = [&](i64 step) {
      a.store(tiles[step % 2].a);
      b.store(tiles[step % 2].b);
    };
    const i64 steps = tile::ceil_div<i64>(depth, simt_depth);
    a.load();
    b.load();
    store(0);
    tile::sync_block();
#pragma unroll 1
    for (i64 step = 0; step < steps; ++step) {
      a.load();  // past the end these are zeros
      b.load();
      sums.add(tiles[step % 2].a, tiles[step % 2].b);
      store(step + 1);
      tile::sync_block();
    }
  }

  /// use(sum, row, column) for every element of the tile, neighbouring threads taking neighbouring columns.
  template <class Use>
  static TESSERA_DEVICE void store(const Sums& sums, void* shared, const Use& use) {
    T* slab = static_cast<T*>(shared);  // 16 rows of sums at a time
    const int y = tile::thread_in_block() / 16, x = tile::thread_in_block() % 16;
#pragma unroll 1
    for (int i = 0; i < Sums::each; ++i) {
      tile::unroll<Sums::each>([&](auto held) {
        if (i == held) tile::unroll<Sums::each>([&](auto j) { slab[y * Edge + Sums::place(x, j)] = sums.at[held][j]; });
      });
      tile::sync_block();
#pragma unroll 1
      for (int e = tile::thread_in_block(); e < 16 * Edge; e += simt_threads)
        use(slab[e], Sums::place(e / Edge, i), e % Edge);
      tile::sync_block();
    }
  }
};

struct SimtGrid {
  i64 across, tiles, total;  // tiles in a row, of a product, of the batch
};

/// Sums in T; TA and TB are the types of the operands in memory.
template <class T, class TA, class TB, int Edge>
TESSERA_KERNEL(simt_threads)
void simt_kernel(const GemmArgs args, const SimtGrid grid) {
  using Block = SimtBlock<T, Edge>;
  __shared__ __attribute__((aligned(32))) char shared[Block::shared_bytes];
  for (i64 block = tile::block_in_grid(); block < grid.total; block += gridDim.x) {
    const BatchPlace place(args, block / grid.tiles);
    const i64 within = block % grid.tiles;
    const i64 row = within / grid.across * Edge, column = within % grid.across * Edge;
    SimtLoader<T, TA, Edge> a(args.a, place.offset(args.a), args.a.row, args.a.column, row, args.m, args.k);
    SimtLoader<T, TB, Edge> b(args.b, place.offset(args.b), args.b.column, args.b.row, column, args.n, args.k);
    typename Block::Sums sums;
    Block::multiply(a, b, args.k, sums, shared);
    const AnyEpilogue<T> epilogue(args, place);
    Block::store(sums, shared, [&](T sum, int i, int j) {
      if (row + i < args.m && column + j < args.n) epilogue(sum, row + i, column + j);
    });
  }
}

template <class T, class TA, class TB, int Edge>
void launch_simt(const GemmArgs& args, i64 batch, Executor& executor) {
  const i64 down = tile::ceil_div<i64>(args.m, Edge), across = tile::ceil_div<i64>(args.n, Edge);
  const SimtGrid grid{across, down * across, down * across * batch};
  launch("gemm", simt_kernel<T, TA, TB, Edge>, tile::min<i64>(grid.total, 1 << 30), simt_threads, 0, executor, args,
         grid);
}

/// Big tiles where there are enough of them for every multiprocessor.
template <class T, class TA, class TB>
void run_simt(const GemmArgs& args, Executor& executor) {
  const i64 batch = batch_count(args);
  if constexpr (sizeof(T) <= 4) {
    const i64 big = tile::ceil_div<i64>(args.m, 128) * tile::ceil_div<i64>(args.n, 128) * batch;
    if (args.m > 64 && args.n > 64 && big >= executor.multiprocessors)
      return launch_simt<T, TA, TB, 128>(args, batch, executor);
  }
  launch_simt<T, TA, TB, 64>(args, batch, executor);
}

}  // namespace tessera::gpu_kernels
