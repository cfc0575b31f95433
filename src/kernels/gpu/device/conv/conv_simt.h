// Convolutions on ordinary cores, of any type, strides and sizes.
#pragma once
#include "conv.h"
#include "kernels/gpu/device/gemm/gemm_simt.h"

namespace tessera::gpu_kernels {

/// Elements of type T in memory; of halves, of the type that a problem names.
template <class T>
struct InMemory {
  using Word = T;
  static TESSERA_DEVICE T get(T word, Scalar) { return word; }
  static TESSERA_DEVICE T put(T x, Scalar) { return x; }
};
struct HalvesInMemory {
  using Word = tile::u16;
  static TESSERA_DEVICE float get(Word word, Scalar type) {
    return type == Scalar::f16 ? static_cast<float>(tile::bit_cast<f16>(word))
                               : static_cast<float>(tile::bit_cast<bf16>(word));
  }
  static TESSERA_DEVICE Word put(float x, Scalar type) {
    return type == Scalar::f16 ? tile::bit_cast<Word>(f16(x)) : tile::bit_cast<Word>(bf16(x));
  }
};

/// As tile::SimtFetch, for an ImplicitMatrix of elements of type Memory.
template <class T, class Memory, int Edge>
class ImplicitLoader {
 public:
  /// Tiles begin at edge `first` and depth `begin`; nothing at or beyond `end` along the depth is read.
  TESSERA_DEVICE ImplicitLoader(const ImplicitMatrix& m, Scalar type, i64 group, i64 first, i64 edges, i64 begin,
                                i64 end)
      : m_(m),
        type_(type),
        data_(static_cast<const Word*>(m.data) + group * m.group_stride),
        edge_(tile::simt_first<Edge>(m.along_depth)[1]),
        depth_(tile::simt_first<Edge>(m.along_depth)[0]),
        edges_(static_cast<int>(tile::min<i64>(edges - first, Edge)) - edge_),
        at_(begin + depth_),
        end_(end) {
    tile::unroll<count>([&](auto i) {
      const int step = m.along_depth ? i * edge_step : 0;
      place_[i] = step < edges_ ? place_of(m.edge, first + edge_ + step) : ImagePlace{0, 0, 0};
      place_[i].row += m.top;
      place_[i].column += m.left;
    });
  }

  TESSERA_DEVICE void load() {
    if (m_.along_depth) {
      const bool inside = at_ < end_;
      const ImagePlace depth = inside ? place_of(m_.depth, at_) : ImagePlace{0, 0, 0};
      tile::unroll<count>(
          [&](auto i) { held_[i] = inside && i * edge_step < edges_ ? element(place_[i], depth) : T(0); });
    } else {
      tile::unroll<count>([&](auto i) {
        const i64 at = at_ + i * depth_step;
        held_[i] = at < end_ && 0 < edges_ ? element(place_[0], place_of(m_.depth, at)) : T(0);
      });
    }
    at_ += simt_depth;
  }
  TESSERA_DEVICE void store(SimtTile<T, Edge>& tile) const {
    tile::unroll<count>([&](auto i) {
      if (m_.along_depth) tile.at[depth_][edge_ + i * edge_step] = held_[i];
      else tile.at[depth_ + i * depth_step][edge_] = held_[i];
    });
  }

 private:
  using Word = typename Memory::Word;
  static constexpr int count = Edge * simt_depth / simt_threads;
  static constexpr int edge_step = tile::SimtFetchLayout<Edge, true>::step,
                       depth_step = tile::SimtFetchLayout<Edge, false>::step;

  TESSERA_DEVICE T element(const ImagePlace& edge, const ImagePlace& depth) const {
    int row = edge.row + depth.row, column = edge.column + depth.column;
    bool valid = row >= 0 && column >= 0;
    if (m_.divisor[0] != 1 || m_.divisor[1] != 1) {
      const int down = row / m_.divisor[0], across = column / m_.divisor[1];
      valid = valid && down * m_.divisor[0] == row && across * m_.divisor[1] == column;
      row = down;
      column = across;
    }
    valid = valid && row < m_.size[0] && column < m_.size[1];
    if (!valid) return T(0);
    return Memory::get(data_[edge.offset + depth.offset + row * m_.stride[0] + column * m_.stride[1]], type_);
  }

  const ImplicitMatrix& m_;
  Scalar type_;
  const Word* data_;
  int edge_, depth_;  // of the first element of this thread in the tile
  int edges_;         // from there on
  i64 at_, end_;      // along the depth
  ImagePlace place_[count];
  T held_[count];
};

/// Sums in T, elements in memory of type Memory.
template <class T, class Memory, int Edge>
TESSERA_KERNEL(simt_threads)
void implicit_kernel(const ImplicitGemm p, const SimtGrid grid) {
  using Block = SimtBlock<T, Edge>;
  using Word = typename Memory::Word;
  __shared__ __attribute__((aligned(32))) char shared[Block::shared_bytes];
  const AnyActivation activation{p.activation};
  for (i64 block = tile::block_in_grid(); block < grid.total; block += gridDim.x) {
    const i64 batch = block / grid.tiles, within = block % grid.tiles;
    const i64 split = batch / p.groups, group = batch % p.groups;
    const i64 row = within / grid.across * Edge, column = within % grid.across * Edge;
    const i64 begin = split * p.split_depth, end = tile::min(begin + p.split_depth, p.depth);
    ImplicitLoader<T, Memory, Edge> a(p.a, p.type, group, row, p.rows, begin, end);
    ImplicitLoader<T, Memory, Edge> b(p.b, p.type, group, column, p.columns, begin, end);
    typename Block::Sums sums;
    if constexpr (on_card<T>) Block::multiply(a, b, tile::max<i64>(end - begin, 0), sums, shared);
    Block::store(sums, shared, [&](T sum, int i, int j) {
      if (row + i >= p.rows || column + j >= p.columns) return;
      if (p.splits > 1) {
        static_cast<T*>(p.partial)[(batch * p.rows + row + i) * p.columns + column + j] = sum;
        return;
      }
      if (p.bias) sum += Memory::get(static_cast<const Word*>(p.bias)[group * p.rows + row + i], p.type);
      Word* c = static_cast<Word*>(p.c) + group * p.c_group + (row + i) * p.c_row;
      c[place_of(p.c_column, column + j).offset] = Memory::put(activation(sum), p.type);
    });
  }
}

template <class T, class Memory, int Edge>
void launch_implicit(const ImplicitGemm& p, Executor& executor) {
  const i64 down = tile::ceil_div<i64>(p.rows, Edge), across = tile::ceil_div<i64>(p.columns, Edge);
  const SimtGrid grid{across, down * across, down * across * p.groups * p.splits};
  launch("convolution", implicit_kernel<T, Memory, Edge>, tile::min<i64>(grid.total, 1 << 30), simt_threads, 0,
         executor, p, grid);
}

/// Sums in T of elements in memory as Memory has them.
template <class T, class Memory>
void run_implicit(const ImplicitGemm& p, Executor& executor) {
  bool big = false;
  if constexpr (tile::is_same_v<Memory, InMemory<float>>) {  // others are rare
    const i64 tiles = tile::ceil_div<i64>(p.rows, 128) * tile::ceil_div<i64>(p.columns, 128);
    big = p.rows > 64 && p.columns > 64 && tiles * p.groups * p.splits >= executor.multiprocessors;
    if (big) launch_implicit<T, Memory, 128>(p, executor);
  }
  if (!big) launch_implicit<T, Memory, 64>(p, executor);
}

}  // namespace tessera::gpu_kernels
