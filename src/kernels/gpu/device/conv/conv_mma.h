// Convolutions on matrix cores: the pipelines of products, fed with implicit matrices.
#pragma once
#include "conv.h"
#include "kernels/gpu/device/gemm/gemm_tiled.h"

namespace tessera::gpu_kernels {

/// An implicit matrix as an operand of a pipeline, taken in chunks along its edge (0) or depth (1), `Pack` elements at
/// a time. Without an image, which left matrices do not have, every element is there.
template <class T, int Along, bool Image, int Pack>
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
  const int last = d.inverse[1](index), first = d.inverse[0](last);
  const int at[3] = {first, last - first * static_cast<int>(d.length[1]), index - last * static_cast<int>(d.length[2])};
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

/// What a thread fetches of an implicit matrix: elements, any of which may lie outside the image, or packs of
/// neighbours. A pack that leaves the image, or what counts of its row, is read from where that ends, and slides to its
/// place: zeros follow it.
template <class E, int Along, bool Image, int Pack, int Rows, int Depth, int Warps, int WarpSize, bool Transposed>
class Fetch<gpu_kernels::ImplicitView<E, Along, Image, Pack>, Rows, Depth, Warps, WarpSize, Transposed> {
  using View = gpu_kernels::ImplicitView<E, Along, Image, Pack>;
  using Place = gpu_kernels::NearPlace;

 public:
  using T = E;
  static constexpr int along = Along;
  static constexpr bool is_strided = false;
  using Tile = SharedTile<T, Rows, Depth, along>;
  using Layout = FetchLayout<Tile, Warps, WarpSize, Transposed>;
  static constexpr int count = Layout::count, width = Pack, pieces = Tile::chunk / Pack;
  static constexpr int alignment = sizeof(T);
  static constexpr bool slides = Pack > 1;

  TESSERA_HD Fetch(const View& view, int row, int k, int end, int thread)
      : view_(view),
        end_(end),
        line_(thread_coords<Layout>(thread)[0]),
        column_(thread_coords<Layout>(thread)[1]),
        row_(row + (along == 0 ? column_ : line_)),
        k_(k + (along == 0 ? line_ : column_)) {
    unroll<edges>([&](auto n) {
      const int at = row_ + n * (along == 0 ? width : Layout::step);
      edge_[n] = at < view_.edges ? gpu_kernels::near_place_of(view_.matrix.edge, at) : Place{0, 0, 0};
      edge_[n].row += view_.matrix.top;
      edge_[n].column += view_.matrix.left;
    });
    find_depths();
  }

  TESSERA_HD bool valid(int i, int piece) const {
    const int row = row_ + (along == 0 ? piece * width : i * Layout::step);
    const int k = k_ + (along == 0 ? i * Layout::step : piece * width);
    return (row < view_.edges) & (k < end_) & on_image(i, piece).inside;
  }
  TESSERA_HD int valid_count(int i, int piece) const { return valid(i, piece) ? 1 : 0; }
  TESSERA_HD const T* address(int i, int piece) const {
    const Spot spot = on_image(i, piece);
    return view_.data + (edge_[along == 0 ? piece : i].offset + depth_[along == 0 ? i : piece].offset +
                         spot.row * static_cast<int>(view_.matrix.stride[0]) +
                         spot.column * static_cast<int>(view_.matrix.stride[1]));
  }
  /// By how many elements a pack begins behind the address that it is read from.
  TESSERA_HD int slide(int i, int piece) const { return on_image(i, piece).slide; }
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
    int row, column, slide;
    bool inside;
  };

  TESSERA_HD void find_depths() {
    unroll<depths>([&](auto n) {
      const int at = k_ + n * (along == 0 ? Layout::step : width);
      depth_[n] = at < end_ ? gpu_kernels::near_place_of(view_.matrix.depth, at) : Place{0, 0, 0};
    });
  }
  TESSERA_HD Spot on_image(int i, int piece) const {
    if constexpr (!Image) return {0, 0, 0, true};
    const Place &edge = edge_[along == 0 ? piece : i], &depth = depth_[along == 0 ? i : piece];
    const gpu_kernels::ImplicitMatrix& m = view_.matrix;
    const int height = static_cast<int>(m.size[0]), size = static_cast<int>(m.size[1]);
    int row = edge.row + depth.row, column = edge.column + depth.column;
    if constexpr (slides) {
      const int end = min(size, m.run + (along == 0 ? depth.column + m.left : edge.column));
      const bool inside = (static_cast<u32>(row) < static_cast<u32>(height)) & (column > -m.pack) & (column < end);
      const int from = min(max(column, 0), end - m.pack);
      return {row, from, column - from, inside};
    }
    bool inside = true;
    if (m.divisor[0] != 1 || m.divisor[1] != 1) {
      const int down = m.inverse[0](row), across = m.inverse[1](column);
      inside = (down * m.divisor[0] == row) & (across * m.divisor[1] == column);
      row = down;
      column = across;
    }
    inside &= (static_cast<u32>(row) < static_cast<u32>(height)) & (static_cast<u32>(column) < static_cast<u32>(size));
    return {row, column, 0, inside};
  }

  View view_;
  int end_;
  int line_, column_;
  int row_, k_;  // of the thread's first element
  Place edge_[edges], depth_[depths];
};

TESSERA_TILE_END

namespace tessera::gpu_kernels {

/// Where the sums of one group and split go, as an epilogue.
template <class T, bool InPacks>
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
    const ImagePlace at = place_of(p.c_column, column);
    if (InPacks && at.column >= p.c_run) return;
    c[at.offset] = tile::convert_element<T>(AnyActivation{p.activation}(sum));
  }
};

template <class T>  // a thread fetches the same number of elements of any type
using ImplicitChoice = tile::Choice<64, 128, sizeof(T) == 4 ? 16 : 32, 4, 2>;

/// AlongB: neighbours in memory of b lie along its depth (1) or its edge (0). In packs along the edge, a is a matrix.
template <class Product, int AlongB, int Pack>
TESSERA_KERNEL(tile_threads<ImplicitChoice<typename Product::T>>)
void implicit_mma_kernel(const ImplicitGemm p, const TileGrid grid) {
  using T = typename Product::T;
  using Choice = ImplicitChoice<T>;
  constexpr tile::Config config = Choice::config;
  const i64 block = tile::block_in_grid(), batch = block / grid.tiles;
  const i64 split = batch / p.groups, group = batch % p.groups;
  const tile::TilePlace at =
      tile::tile_of_block(config.schedule, static_cast<int>(block % grid.tiles), grid.down, grid.across);
  const int row = at.row * config.tile_m, column = at.column * config.tile_n;
  const i64 begin = split * p.split_depth, end = tile::min(begin + p.split_depth, p.depth);

  const T* data = static_cast<const T*>(p.a.data) + group * p.a.group_stride;
  const auto a = [&] {
    if constexpr (Pack > 1 && AlongB == 0)
      return tile::matrix<T, 16 / sizeof(T), false>(data, p.rows, p.a.depth.length[2], p.a.edge.stride[2]);
    else return ImplicitView<T, 1, (Pack > 1), Pack>{data, p.a, static_cast<int>(p.rows)};
  }();
  using B = ImplicitView<T, AlongB, true, Pack>;
  const B b{static_cast<const T*>(p.b.data) + group * p.b.group_stride, p.b, static_cast<int>(p.columns)};
  using Pipeline = typename Product::template Pipeline<tile::remove_cvref_t<decltype(a)>, B, Choice>;
  static_assert(meets_no_bank_twice<Pipeline>);
  __shared__ __attribute__((aligned(128))) char shared[Pipeline::shared_bytes];
  Pipeline pipeline;
  if constexpr (on_card<T>)
    pipeline.run(a, b, row, column, static_cast<int>(begin), static_cast<int>(tile::max(begin, end)),
                 reinterpret_cast<T*>(shared));
  tile::store_sums(pipeline, ImplicitSink<T, (Pack > 1)>{p, group, batch}, row, column, static_cast<int>(p.rows),
                   static_cast<int>(p.columns), reinterpret_cast<float*>(shared));
}

template <class Product>
void run_implicit_mma(const ImplicitGemm& p, Executor& executor) {
  using Choice = ImplicitChoice<typename Product::T>;
  const i64 down = tile::ceil_div<i64>(p.rows, Choice::config.tile_m);
  const i64 across = tile::ceil_div<i64>(p.columns, Choice::config.tile_n);
  const TileGrid grid{static_cast<int>(down), static_cast<int>(across), static_cast<int>(down * across)};
  auto kernel = p.b.along_depth ? implicit_mma_kernel<Product, 1, 1> : implicit_mma_kernel<Product, 0, 1>;
#if defined(__HIP__)
  if (p.in_packs)
    kernel =
        p.b.along_depth ? implicit_mma_kernel<Product, 1, image_pack> : implicit_mma_kernel<Product, 0, image_pack>;
#endif
  launch("convolution", kernel, grid.tiles * p.groups * p.splits, tile_threads<Choice>, 0, executor, p, grid);
  join_splits<float, typename Product::T>(p, executor);
}

}  // namespace tessera::gpu_kernels
