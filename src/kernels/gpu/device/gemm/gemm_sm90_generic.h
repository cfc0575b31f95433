// Products with any epilogue: it is interpreted, and accumulators go through shared memory to lanes that have four
// neighbours each.
#pragma once
#include "gemm_sm90.h"
#include "tile/arch/sm90/bulk.h"

namespace tessera::gpu_kernels {

/// A product as this kernel takes it. The batch is the last of max_batch_rank dims.
struct GenericProduct {
  tile::sm90::TensorMap a, b;
  GemmArgs args;
  tile::sm90::TileScheduler order;
};

/// How the accumulators of a warp, strips of 16 rows of a tile, get to memory.
template <class C>
class GenericResult {
 public:
  using Gemm = tile::sm90::Gemm<C>;
  using Accumulators = typename Gemm::Accumulators;
  static constexpr int strips = Gemm::strips, across = C::config.tile_n / 16;  // units of a strip
  static constexpr int slab_bytes = 4096;                                      // of a warp: four units
  static_assert(Gemm::consumer_warps * slab_bytes <= Gemm::results_bytes, "sm90 lanes: a slab for each warp");

  TESSERA_DEVICE GenericResult(const GenericProduct& product, const tile::sm90::ResultBoxes& boxes)
      : args_(product.args), slab_(boxes.boxes + tile::thread_in_block() / 32 * slab_bytes) {}
  static TESSERA_DEVICE void assist(const tile::sm90::TileScheduler&, const GenericProduct&,
                                    const tile::sm90::ResultBoxes&) {}

  TESSERA_DEVICE void prepare(const tile::sm90::TileWork&) const {}
  TESSERA_DEVICE void store(const Accumulators& acc, const tile::sm90::TileWork& work) const {
    const int warp = tile::thread_in_block() / 32, group = Gemm::ping_pong ? 0 : warp / 4;
    int lane;  // anew for each tile: what is computed from it would otherwise keep registers from one to the next
    asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
    const LaneEpilogue epilogue(args_, BatchPlace(args_, work.batch));
    const auto place = [&](int i, int j) {  // four rows meet all banks
      return slab_ + (i * 64 + (j ^ i % 4 * 8)) * 4;
    };
#pragma unroll 1
    for (int now = 0; now < strips * across; now += 4) {
      const int strip = strips == 1 ? 0 : now / across;
#pragma unroll 1
      for (int unit = 0; unit < 4; ++unit) {
        tile::sm90::Unit values;
        pick<0, strips * across>(&acc[0][0], now + unit, values);
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

 private:
  /// Unit `now` of a lane's accumulators, by halving, since registers have no index.
  template <int Begin, int End>
  static TESSERA_DEVICE void pick(const float* acc, int now, tile::sm90::Unit& values) {
    if constexpr (End - Begin == 1) {
      tile::unroll<8>([&](auto i) { values[i] = acc[Begin * 8 + i]; });
    } else {
      constexpr int middle = (Begin + End) / 2;
      if (now < middle) pick<Begin, middle>(acc, now, values);
      else pick<middle, End>(acc, now, values);
    }
  }

  const GemmArgs& args_;
  tile::u32 slab_;
};

/// Four accumulators, side by side, from an element on that is a multiple of 4.
template <class T>
TESSERA_DEVICE void store_sums(const MatrixArg& c, i64 at, const float* v) {
  T* const to = static_cast<T*>(const_cast<void*>(c.data)) + at;
  if constexpr (sizeof(T) == 4) *reinterpret_cast<Pack<float, 4>*>(to) = {v[0], v[1], v[2], v[3]};
  else *reinterpret_cast<Pack<tile::u32, 2>*>(to) = {tile::sm80::pack<T>(v[0], v[1]), tile::sm80::pack<T>(v[2], v[3])};
}
/// As elements of f32 or halves.
TESSERA_DEVICE void store_sums(const MatrixArg& c, i64 at, const float* v) {
  if (c.type == Scalar::f32) store_sums<float>(c, at, v);
  else if (c.type == Scalar::bf16) store_sums<tile::bf16>(c, at, v);
  else store_sums<tile::f16>(c, at, v);
}

/// Split-K within a cluster: every block gets the others' accumulators of some eights of columns through distributed
/// shared memory, where its operands were, and adds up, in the blocks' order. OnlyResults: all sums are_results().
template <class C, bool OnlyResults = false>
class ClusterSplitK {
 public:
  using Gemm = tile::sm90::Gemm<C>;
  using Accumulators = typename Gemm::Accumulators;
  static constexpr int eights = C::config.tile_n / 8, threads = Gemm::consumer_warps * 32;
  static constexpr int room = Gemm::stages * Gemm::stage_bytes;
  static_assert(Gemm::strips == 1 && Gemm::splits_k, "sm90 joins: a strip for each group of warps");

  /// Whether shared memory is enough for clusters of so many blocks; up to 3 eights too many are read.
  static constexpr bool takes(int blocks) {
    return (blocks * tile::ceil_div(eights, blocks) + 3) * threads * 16 <= room;
  }

  TESSERA_DEVICE ClusterSplitK(const GenericProduct& product, const tile::sm90::ResultBoxes& boxes)
      : args_(product.args), blocks_(product.order.cluster_k), shared_(boxes.boxes - room) {}

  TESSERA_DEVICE void prepare(const tile::sm90::TileWork&) const {}
  TESSERA_DEVICE void store(const Accumulators& acc, const tile::sm90::TileWork& work) const {
    const int rank = static_cast<int>(blockIdx.x) % blocks_;
    meet();  // operands have been read everywhere
    send(acc[0], rank);
    meet();
    if (OnlyResults || are_results()) join<4>(rank, work);
    else join<1>(rank, work);
  }
  /// The other threads of a cluster wait as often.
  static TESSERA_DEVICE void assist(const tile::sm90::TileScheduler& order, const GenericProduct&,
                                    const tile::sm90::ResultBoxes&) {
    if (order.cluster_k == 1) return;
    tile::sm90::cluster_sync();
    tile::sm90::cluster_sync();
  }

 private:
  /// Of a block alone the consumers: it would meet in two places, which synccheck takes for a mistake.
  TESSERA_DEVICE void meet() const {
    if (blocks_ > 1) tile::sm90::cluster_sync();
    else tile::sm90::named_barrier_sync(1, threads);
  }

  /// Whether the sums are the result, and four of them are stored at once.
  TESSERA_DEVICE bool are_results() const {
    const MatrixArg& c = args_.c;
    return c.type != Scalar::f64 && c.column == 1 && args_.alpha == 1 && !args_.addend.data && !args_.bias.data &&
           !args_.slope.data && !args_.factor.data && args_.activation == Activation::none &&
           (c.row | c.batch[max_batch_rank - 1] | args_.n) % 4 == 0 && reinterpret_cast<size_t>(c.data) % 16 == 0;
  }

  /// Eights of columns of a block: the first one, and how many they are at most.
  TESSERA_DEVICE int first_of(int rank) const { return (rank * eights + blocks_ - 1) / blocks_; }
  TESSERA_DEVICE int most() const { return first_of(1); }
  TESSERA_DEVICE tile::u32 place(int from, int eight) const {
    return shared_ + ((from * most() + eight) * threads + tile::thread_in_block()) * 16;
  }

  /// To the neighbour first, so that all blocks get something all the time; to itself in the end.
  TESSERA_DEVICE void send(const float* acc, int rank) const {
#pragma unroll 1
    for (int step = 1; step < blocks_; ++step) {
      const int owner = rank + step < blocks_ ? rank + step : rank + step - blocks_;
      send_to<true>(owner, acc, rank);
    }
    send_to<false>(rank, acc, rank);
  }
  template <bool Remote>
  TESSERA_DEVICE void send_to(int owner, const float* acc, int rank) const {
    const int first = first_of(owner), end = first_of(owner + 1);
    const tile::u32 to = place(rank, 0) - static_cast<tile::u32>(first * threads * 16);
    tile::unroll<eights>([&](auto eight) {
      constexpr int now = decltype(eight)::value;
      if (now < first || now >= end) return;
      if constexpr (Remote)
        tile::sm90::store_four_cluster(to + now * threads * 16, static_cast<tile::u32>(owner), acc + now * 4);
      else tile::sm90::store_four(to + now * threads * 16, acc + now * 4);
    });
  }

  /// So many eights at a time; several: the sums are the result. They change places among the lanes of a warp, where
  /// this block's own parts were, so that neighbours store what follows in memory.
  template <int AtOnce>
  TESSERA_DEVICE void join(int rank, const tile::sm90::TileWork& work) const {
    const int lane = tile::thread_in_block() % 32, first = first_of(rank), count = first_of(rank + 1) - first;
    const int top = work.row + tile::thread_in_block() / 32 * 16;
    const LaneEpilogue epilogue(args_, BatchPlace(args_, work.batch));
#pragma unroll 1
    for (int begin = 0; begin < count; begin += AtOnce) {
      float totals[AtOnce][4] = {};
#pragma unroll 2
      for (int from = 0; from < blocks_; ++from) {
        tile::unroll<AtOnce>([&](auto i) {
          float part[4];
          tile::sm90::load_four(part, place(from, begin + i));
          tile::unroll<4>([&](auto l) { totals[i][l] += part[l]; });
        });
      }
      const auto at = [&](int i, int row) {  // four rows, and a row of four eights, meet all banks
        return place(0, begin + i) - lane * 16 + (row ^ i) * 32;
      };
      tile::sync_warp();
      tile::unroll<AtOnce>([&](auto i) {
        if (begin + i >= count) return;
        tile::sm90::store_pair(at(i, lane / 4) + lane % 4 * 8, totals[i][0], totals[i][1]);
        tile::sm90::store_pair(at(i, lane / 4 + 8) + lane % 4 * 8, totals[i][2], totals[i][3]);
      });
      tile::sync_warp();
      tile::unroll<AtOnce>([&](auto turn) {
        const int chunk = turn * 32 + lane, line = chunk / (2 * AtOnce), i = chunk / 2 % AtOnce;
        const int row = top + line, column = work.column + (first + begin + i) * 8 + lane % 2 * 4;
        const int columns = static_cast<int>(tile::min<i64>(args_.n - column, 4));
        if (row >= args_.m || columns <= 0 || begin + i >= count) return;
        Lanes four;
        tile::sm90::load_four(four.v.lane, at(i, line) + lane % 2 * 16);
        if constexpr (AtOnce == 1) epilogue(four, row, column, columns);
        else
          store_sums(args_.c, work.batch * args_.c.batch[max_batch_rank - 1] + row * args_.c.row + column, four.v.lane);
      });
    }
  }

  const GemmArgs& args_;
  int blocks_;
  tile::u32 shared_;
};

/// Of transposed operands alone, whose sums are the result, as gradients of weights have them.
template <class C>
struct ClusterSplitKTransposed : ClusterSplitK<C, true> {
  using BothTransposed = void;
  using ClusterSplitK<C, true>::ClusterSplitK;
};

template <class C, class Result>
TESSERA_KERNEL(C::config.warps * 32, 1)
void generic_kernel(const __grid_constant__ GenericProduct product) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::Gemm<C>::template run<Result>(product.a, product.b, product.order, shared, product);
}

}  // namespace tessera::gpu_kernels
