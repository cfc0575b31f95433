// Convolutions on matrix cores: the pipelines of products, fed with implicit matrices.
#pragma once
#include "conv.h"
#include "gemm_tiled.h"

namespace tessera::gpu_kernels {

/// An implicit matrix as an operand of a pipeline, taken in chunks of 8 elements along its edge (0) or depth (1).
/// Without an image, which left matrices do not have, every element is there.
template <class T, int Along, bool Image>
struct ImplicitView {
  using Element = const T;
  static constexpr bool is_strided = false;
  template <int D>
  static constexpr TESSERA_HD int width() {
    return D == Along ? 2 : 1;  // which is all that is asked: where neighbours lie
  }

  const T* data;  // of a group
  const ImplicitMatrix& matrix;
  int edges;
};

/// An ImagePlace where all numbers have 31 bits, which takes half the registers.
struct NearPlace {
  int offset, row, column;
};
TESSERA_HD NearPlace near_place_of(const Digits& d, int index) {
  const u32 last = static_cast<u32>(index) / static_cast<u32>(d.length[2]);
  const u32 first = last / static_cast<u32>(d.length[1]);
  const int at[3] = {static_cast<int>(first), static_cast<int>(last - first * static_cast<u32>(d.length[1])),
                     static_cast<int>(index - last * static_cast<u32>(d.length[2]))};
  NearPlace place{0, 0, 0};
  tile::unroll<3>([&](auto i) {
    place.offset += at[i] * static_cast<int>(d.stride[i]);
    place.row += at[i] * d.down[i];
    place.column += at[i] * d.across[i];
  });
  return place;
}

}  // namespace tessera::gpu_kernels

TESSERA_TILE_BEGIN

/// What a thread fetches of an implicit matrix, element by element: any of them may lie outside the image.
template <class E, int Along, bool Image, int Rows, int Depth, int Warps, int WarpSize, bool Transposed>
class Fetch<gpu_kernels::ImplicitView<E, Along, Image>, Rows, Depth, Warps, WarpSize, Transposed> {
  using View = gpu_kernels::ImplicitView<E, Along, Image>;
  using Place = gpu_kernels::NearPlace;

 public:
  using T = E;
  static constexpr int along = Along;
  static constexpr bool is_strided = false;
  using Tile = SharedTile<T, Rows, Depth, along>;
  using Layout = FetchLayout<Tile, Warps, WarpSize, Transposed>;
  static constexpr int count = Layout::count, width = 1, pieces = Tile::chunk;

  TESSERA_HD Fetch(const View& view, int row, int k, int end, int thread)
      : view_(view),
        end_(end),
        line_(thread_coords<Layout>(thread)[0]),
        column_(thread_coords<Layout>(thread)[1]),
        row_(row + (along == 0 ? column_ : line_)),
        k_(k + (along == 0 ? line_ : column_)),
        inverse_{~u32{0} / static_cast<u32>(view.matrix.divisor[0]) + 1,
                 ~u32{0} / static_cast<u32>(view.matrix.divisor[1]) + 1} {
    unroll<edges>([&](auto n) {
      const int at = row_ + n * (along == 0 ? 1 : Layout::step);
      edge_[n] = at < view_.edges ? gpu_kernels::near_place_of(view_.matrix.edge, at) : Place{0, 0, 0};
      edge_[n].row += view_.matrix.top;
      edge_[n].column += view_.matrix.left;
    });
    find_depths();
  }

  TESSERA_HD bool valid(int i, int piece) const {
    const int row = row_ + (along == 0 ? piece : i * Layout::step), k = k_ + (along == 0 ? i * Layout::step : piece);
    return row < view_.edges && k < end_ && on_image(i, piece).inside;
  }
  TESSERA_HD int valid_count(int i, int piece) const { return valid(i, piece) ? 1 : 0; }
  TESSERA_HD const T* address(int i, int piece) const {
    const Spot spot = on_image(i, piece);
    return view_.data + (edge_[along == 0 ? piece : i].offset + depth_[along == 0 ? i : piece].offset +
                         spot.row * static_cast<int>(view_.matrix.stride[0]) +
                         spot.column * static_cast<int>(view_.matrix.stride[1]));
  }
  /// Where chunk i goes in shared memory, in elements.
  TESSERA_HD int offset(int i) const {
    const int line = line_ + i * Layout::step;
    return along == 0 ? Tile::offset(column_, line) : Tile::offset(line, column_);
  }
  TESSERA_HD int line() const { return line_; }
  TESSERA_HD int column() const { return column_; }
  TESSERA_HD void next() {
    k_ += Depth;
    find_depths();
  }

 private:
  static constexpr int edges = along == 0 ? pieces : count, depths = along == 0 ? count : pieces;
  struct Spot {
    int row, column;
    bool inside;
  };

  TESSERA_HD void find_depths() {
    unroll<depths>([&](auto n) {
      const int at = k_ + n * (along == 0 ? Layout::step : 1);
      depth_[n] = at < end_ ? gpu_kernels::near_place_of(view_.matrix.depth, at) : Place{0, 0, 0};
    });
  }
  /// place / divisor for 0 <= place < 2^32 / divisor, from ceil(2^32 / divisor); a division would take twenty
  /// instructions for each element that a thread fetches.
  static TESSERA_HD int quotient(int place, u32 inverse) {
    if (inverse == 0) return place;  // 2^32, of divisor 1
    return static_cast<int>(static_cast<u64>(static_cast<u32>(place)) * inverse >> 32);
  }
  TESSERA_HD Spot on_image(int i, int piece) const {
    if constexpr (!Image) return {0, 0, true};
    const Place &edge = edge_[along == 0 ? piece : i], &depth = depth_[along == 0 ? i : piece];
    const gpu_kernels::ImplicitMatrix& m = view_.matrix;
    int row = edge.row + depth.row, column = edge.column + depth.column;
    bool inside = row >= 0 && column >= 0;
    if (m.divisor[0] != 1 || m.divisor[1] != 1) {
      const int down = quotient(row, inverse_[0]), across = quotient(column, inverse_[1]);
      inside = inside && down * m.divisor[0] == row && across * m.divisor[1] == column;
      row = down;
      column = across;
    }
    return {row, column, inside && row < m.size[0] && column < m.size[1]};
  }

  View view_;
  int end_;
  int line_, column_;
  int row_, k_;  // of the thread's first element
  u32 inverse_[2];
  Place edge_[edges], depth_[depths];
};

TESSERA_TILE_END

namespace tessera::gpu_kernels {

/// Where the sums of one group and split go, as an epilogue.
template <class T>
struct ImplicitSink {
  using IsExpression = void;
  const ImplicitGemm& p;
  i64 group, batch;

  struct Row {
    const ImplicitSink& sink;
    i64 row;
    template <class V, class L>
    TESSERA_HD V operator()(V sum, i64 column, L) const {
      sink.store(sum, row, column);
      return sum;
    }
  };
  template <bool Unit = false>
  TESSERA_HD Row row(i64 m) const {
    return {*this, m};
  }
  template <class F>
  TESSERA_HD void views(const F&) const {}

  TESSERA_HD void store(float sum, i64 row, i64 column) const {
    if (p.splits > 1) {
      static_cast<float*>(p.partial)[(batch * p.rows + row) * p.columns + column] = sum;
      return;
    }
    if (p.bias) sum += tile::convert_element<float>(static_cast<const T*>(p.bias)[group * p.rows + row]);
    T* c = static_cast<T*>(p.c) + group * p.c_group + row * p.c_row;
    c[place_of(p.c_column, column).offset] = tile::convert_element<T>(AnyActivation{p.activation}(sum));
  }
};

template <class T>  // a thread fetches the same number of elements of any type
using ImplicitChoice = tile::Choice<64, 128, sizeof(T) == 4 ? 16 : 32, 4, 2>;

/// AlongB: neighbours in memory of b lie along its depth (1) or its edge (0).
template <class Product, int AlongB>
TESSERA_KERNEL(tile_threads<ImplicitChoice<typename Product::T>>)
void implicit_mma_kernel(const ImplicitGemm p, const TileGrid grid) {
  using T = typename Product::T;
  using Choice = ImplicitChoice<T>;
  constexpr tile::Config config = Choice::config;
  using Pipeline =
      typename Product::template Pipeline<ImplicitView<T, 1, false>, ImplicitView<T, AlongB, true>, Choice>;
  static_assert(meets_no_bank_twice<Pipeline>);
  __shared__ __attribute__((aligned(128))) char shared[Pipeline::shared_bytes];
  const i64 block = tile::block_in_grid(), batch = block / grid.tiles;
  const i64 split = batch / p.groups, group = batch % p.groups;
  const tile::TilePlace at =
      tile::tile_of_block(config.schedule, static_cast<int>(block % grid.tiles), grid.down, grid.across);
  const int row = at.row * config.tile_m, column = at.column * config.tile_n;
  const i64 begin = split * p.split_depth, end = tile::min(begin + p.split_depth, p.depth);

  const ImplicitView<T, 1, false> a{static_cast<const T*>(p.a.data) + group * p.a.group_stride, p.a,
                                    static_cast<int>(p.rows)};
  const ImplicitView<T, AlongB, true> b{static_cast<const T*>(p.b.data) + group * p.b.group_stride, p.b,
                                        static_cast<int>(p.columns)};
  Pipeline pipeline;
  if constexpr (on_card<T>)
    pipeline.run(a, b, row, column, static_cast<int>(begin), static_cast<int>(tile::max(begin, end)),
                 reinterpret_cast<T*>(shared));
  tile::store_sums(pipeline, ImplicitSink<T>{p, group, batch}, row, column, static_cast<int>(p.rows),
                   static_cast<int>(p.columns), reinterpret_cast<float*>(shared));
}

template <class Product>
void run_implicit_mma(const ImplicitGemm& p, Executor& executor) {
  using Choice = ImplicitChoice<typename Product::T>;
  const i64 down = tile::ceil_div<i64>(p.rows, Choice::config.tile_m);
  const i64 across = tile::ceil_div<i64>(p.columns, Choice::config.tile_n);
  const TileGrid grid{static_cast<int>(down), static_cast<int>(across), static_cast<int>(down * across)};
  const auto kernel = p.b.along_depth ? implicit_mma_kernel<Product, 1> : implicit_mma_kernel<Product, 0>;
  launch("convolution", kernel, grid.tiles * p.groups * p.splits, tile_threads<Choice>, 0, executor, p, grid);
  join_splits<float, typename Product::T>(p, executor);
}

}  // namespace tessera::gpu_kernels
