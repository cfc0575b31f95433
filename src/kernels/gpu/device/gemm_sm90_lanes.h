// The product with whatever epilogue: all is asked while it runs, and sums go through shared memory to lanes that have
// four neighbours each.
#pragma once
#include "gemm_sm90.h"

namespace tessera::gpu_kernels {

/// A product as this kernel takes it. The batch is the last of max_batch_rank dims.
struct LanesProduct {
  tile::sm90::TensorMap a, b;
  GemmArgs args;
  tile::sm90::TileOrder order;
};

/// How the sums of a warp, strips of 16 rows of a tile, get to memory.
template <class C>
class LanesResult {
 public:
  using Gemm = tile::sm90::Gemm<C>;
  using Sums = typename Gemm::Sums;
  static constexpr int strips = Gemm::strips, across = C::config.tile_n / 16;  // units of a strip

  TESSERA_DEVICE LanesResult(const LanesProduct& product, const typename Gemm::Slab& slab)
      : args_(product.args), slab_(slab) {}

  TESSERA_DEVICE void prepare(const tile::sm90::TileWork&) const {}
  TESSERA_DEVICE void store(const Sums& sums, const tile::sm90::TileWork& work) const {
    const int warp = tile::thread_in_block() / 32, group = Gemm::alternates ? 0 : warp / 4;
    int lane;  // anew for each tile: what is computed from it would otherwise keep registers from one to the next
    asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
    const LaneEpilogue epilogue(args_, BatchPlace(args_, work.batch));
    const auto place = [&](int i, int j) {  // four rows meet all banks
      return slab_.boxes + (i * 64 + (j ^ i % 4 * 8)) * 4;
    };
#pragma unroll 1
    for (int now = 0; now < strips * across; now += 4) {
      const int strip = strips == 1 ? 0 : now / across;
#pragma unroll 1
      for (int unit = 0; unit < 4; ++unit) {
        tile::sm90::Unit values;
        pick<0, strips * across>(&sums[0][0], now + unit, values);
        tile::unroll<4>([&](auto i) {
          tile::sm90::store_pair(place(lane / 4 + i % 2 * 8, unit * 16 + i / 2 * 8 + lane % 4 * 2), values[2 * i],
                                 values[2 * i + 1]);
        });
      }
      tile::sync_warp();
      const int row = work.row + (group * strips + strip) * 64 + warp % 4 * 16, j = lane % 16 * 4;
      const int column = work.column + (now - strip * across) * 16 + j;
      const int count = static_cast<int>(tile::min<i64>(args_.n - column, 4));
#pragma unroll 2
      for (int i = lane / 16; i < 16; i += 2) {
        Lanes four;
        tile::sm90::load_four(four.v.lane, place(i, j));
        if (row + i < args_.m && count > 0) epilogue(four, row + i, column, count);
      }
      tile::sync_warp();
    }
  }
  TESSERA_DEVICE void finish() const {}

 private:
  /// Unit `now` of a lane's sums, by halving, since registers have no index.
  template <int Begin, int End>
  static TESSERA_DEVICE void pick(const float* sums, int now, tile::sm90::Unit& values) {
    if constexpr (End - Begin == 1) {
      tile::unroll<8>([&](auto i) { values[i] = sums[Begin * 8 + i]; });
    } else {
      constexpr int middle = (Begin + End) / 2;
      if (now < middle) pick<Begin, middle>(sums, now, values);
      else pick<middle, End>(sums, now, values);
    }
  }

  const GemmArgs& args_;
  typename Gemm::Slab slab_;
};

template <class C>
TESSERA_KERNEL(C::config.warps * 32, 1)
void lanes_kernel(const __grid_constant__ LanesProduct product) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::Gemm<C>::template run<LanesResult<C>>(product.a, product.b, product.order, shared, product);
}

}  // namespace tessera::gpu_kernels
