// The kernel behind gemm_sm90.h.
#pragma once
#include "gemm_sm90.h"
#include "tile/arch/sm80/ptx.h"

namespace tessera::gpu_kernels {

using tile::sm90::TileWork;

/// What a lane of wgmma's sums has of 32 columns: pairs of columns 8 apart, each in 2 rows 8 apart, the rows side by
/// side.
using PairValues = float[16];

/// The same of a matrix of f32, f16 or bf16, whose rows differ (2) or not (1).
template <int Rows>
class Pairs {
 public:
  TESSERA_DEVICE Pairs(const MatrixArg& m, const TileWork& work, int row)
      : data_(static_cast<char*>(m.data)), type_(m.type), row_(m.row * bytes()), first_(row) {
    if (data_) data_ += (m.batch[max_batch_rank - 1] * work.batch + row * m.row) * bytes();
  }
  TESSERA_DEVICE bool exists() const { return data_ != nullptr; }

  /// Asks for those from `column` on, as far as they lie within m x n.
  TESSERA_DEVICE void fetch(int column, i64 m, i64 n) {
    const char* from = data_ + static_cast<i64>(column) * bytes();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int row = i % Rows * 8, right = i / Rows * 8;
      if (first_ + row >= m || column + right >= n) continue;
      const char* at = from + (row ? 8 * row_ : 0) + right * bytes();
      if (type_ == Scalar::f32) raw_[i] = *reinterpret_cast<const uint2*>(at);
      else raw_[i].x = *reinterpret_cast<const u32*>(at);
    }
  }
  /// What came.
  TESSERA_DEVICE void read(PairValues& values) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint2 raw = raw_[i * Rows / 2];
      float &first = values[2 * i], &second = values[2 * i + 1];
      if (type_ == Scalar::f32) {
        first = tile::bit_cast<float>(raw.x);
        second = tile::bit_cast<float>(raw.y);
      } else if (type_ == Scalar::bf16) {
        first = tile::bit_cast<float>(raw.x << 16);
        second = tile::bit_cast<float>(raw.x & 0xffff0000u);
      } else {
        first = tile::detail::f16_to_f32(static_cast<tile::u16>(raw.x));
        second = tile::detail::f16_to_f32(static_cast<tile::u16>(raw.x >> 16));
      }
    }
  }

 private:
  static constexpr int count = 4 * Rows;
  TESSERA_DEVICE int bytes() const { return type_ == Scalar::f32 ? 4 : 2; }
  const char* data_;
  Scalar type_;
  i64 row_;
  int first_;
  uint2 raw_[count] = {};
};

/// How the sums of a warp, 16 rows of Width columns, get to memory.
template <int Width>
class Sm90Result {
 public:
  using Sums = float[Width / 2];
  explicit TESSERA_DEVICE Sm90Result(const Sm90Product& product) : product_(product) {}

  TESSERA_DEVICE void operator()(const Sums& sums, u32 slab, const TileWork& work) const {
    if (work.row + warp() * 16 >= product_.args.m) return;
    const GemmArgs& args = product_.args;
    const bool plain = !args.addend.data && !args.bias.data && args.activation == Activation::none;
    if (!product_.boxes) store_lanes(sums, slab, work);
    else if (!plain) store_boxes(sums, slab, work);
    else if (args.c.type == Scalar::f32) store_plain<float>(sums, slab, work);
    else if (args.c.type == Scalar::bf16) store_plain<bf16>(sums, slab, work);
    else store_plain<f16>(sums, slab, work);
  }
  /// Before the block ends: the copy engine has read the slabs.
  static TESSERA_DEVICE void finish() { tile::sm90::wait_stores_read<0>(); }

 private:
  static constexpr int box_bytes = 16 * tile::sm90::line_bytes;

  static TESSERA_DEVICE int lane() { return tile::thread_in_block() % 32; }
  static TESSERA_DEVICE int warp() { return tile::thread_in_block() / 32; }

  /// Half a box of 16-bit elements, or a box of f32, from the sums of 32 columns.
  template <class T>
  static TESSERA_DEVICE void put(const float* values, u32 box, int half) {
    using tile::sm80::pack;
    if constexpr (tile::is_same_v<T, float>) {
      tile::unroll<8>([&](auto i) {
        const int line = lane() / 4 + i % 2 * 8, chunk = i / 2 * 2 + lane() % 4 / 2;
        tile::sm90::store_pair(box + tile::sm90::swizzled(line, chunk) + lane() % 2 * 8, values[2 * i],
                               values[2 * i + 1]);
      });
    } else {
      tile::unroll<2>([&](auto j) {
        const float* v = values + j * 8;
        tile::sm90::store_matrices(box + tile::sm90::swizzled(lane() % 16, half * 4 + j * 2 + lane() / 16),
                                   pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(v[4], v[5]), pack<T>(v[6], v[7]));
      });
    }
  }
  TESSERA_DEVICE void put(const PairValues& values, u32 box, int half) const {
    if (product_.args.c.type == Scalar::f32) put<float>(values, box, half);
    else if (product_.args.c.type == Scalar::bf16) put<bf16>(values, box, half);
    else put<f16>(values, box, half);
  }

  TESSERA_DEVICE int matrix_of(const TileWork& work) const {
    return work.part * static_cast<int>(product_.args.batch[max_batch_rank - 1]) + work.batch;
  }

  /// Sums times alpha, by the copy engine; two boxes take turns. What store_boxes does, without what costs it time.
  template <class T>
  TESSERA_DEVICE void store_plain(const Sums& sums, u32 slab, const TileWork& work) const {
    constexpr int halves = 4 / sizeof(T), columns = 32 * halves;
    const auto alpha = static_cast<float>(product_.args.alpha);
    tile::unroll<Width / columns>([&](auto now) {
      const u32 box = slab + now % 2 * box_bytes;
      PairValues values[halves];
      tile::unroll<16 * halves>([&](auto i) { values[i / 16][i % 16] = alpha * sums[now * 16 * halves + i]; });
      // An odd number of boxes ends on the first one, which the next tile begins with.
      constexpr int pending = now == 0 && Width / columns % 2 ? 0 : 1;
      if (lane() == 0) tile::sm90::wait_stores_read<pending>();
      tile::sync_warp();
      tile::unroll<halves>([&](auto half) { put<T>(values[half], box, half); });
      tile::sm90::publish_shared();
      tile::sync_warp();
      if (lane() == 0) {
        const int to = work.column + now * columns;
        if (to < product_.args.n) tile::sm90::store_box(box, product_.c, to, work.row + warp() * 16, matrix_of(work));
        tile::sm90::commit_stores();
      }
    });
  }

  /// values become activated, four at a time, each four going from the front to the back.
  TESSERA_DEVICE void activate(PairValues& values, PairValues& slopes) const {
    const AnyActivation activation{product_.args.activation};
    constexpr int rest = 12;
#pragma unroll 1
    for (int turn = 0; turn < 4; ++turn) {
      Lanes four;
      tile::unroll<4>([&](auto i) { four.v[i] = values[i]; });
      const auto both = activation.both(four);
      tile::unroll<rest>([&](auto i) {
        values[i] = values[i + 4];
        slopes[i] = slopes[i + 4];
      });
      tile::unroll<4>([&](auto i) {
        values[rest + i] = both.value.v[i];
        slopes[rest + i] = both.slope.v[i];
      });
    }
  }

  /// What a warp's results in boxes need from one 32 columns to the next.
  struct BoxState {
    u32 slab;
    const TileWork& work;
    int row;  // the warp's first
    Pairs<2> addend;
    Pairs<1> bias;
    TESSERA_DEVICE BoxState(const GemmArgs& args, u32 slab, const TileWork& work)
        : slab(slab),
          work(work),
          row(work.row + warp() * 16),
          addend(args.addend, work, row + lane() / 4),
          bias(args.bias, work, row + lane() / 4) {}
    TESSERA_DEVICE int column(int now) const { return work.column + now * 32 + lane() % 4 * 2; }
    TESSERA_DEVICE void fetch(const GemmArgs& args, int now) {
      if (addend.exists()) addend.fetch(column(now), args.m, args.n);
    }
  };

  /// By the copy engine, 32 columns at a time. The loop is rolled up where an activation makes it long.
  TESSERA_DEVICE void store_boxes(const Sums& sums, u32 slab, const TileWork& work) const {
    BoxState state(product_.args, slab, work);
    state.fetch(product_.args, 0);
    PairValues values;
    if (product_.args.activation == Activation::none) {
      tile::unroll<Width / 32>([&](auto now) {
        tile::unroll<16>([&](auto i) { values[i] = sums[now * 16 + i]; });
        store_box<false>(values, state, now);
      });
    } else {
#pragma unroll 1
      for (int now = 0; now < Width / 32; ++now) {
        tile::unroll<Width / 32>([&](auto unit) {
          if (now == unit) tile::unroll<16>([&](auto i) { values[i] = sums[unit * 16 + i]; });
        });
        store_box<true>(values, state, now);
      }
    }
  }

  /// One 32 columns. Results alone have two boxes, which take turns; with slopes, each has one.
  template <bool Activated>
  TESSERA_DEVICE void store_box(PairValues& values, BoxState& state, int now) const {
    const GemmArgs& args = product_.args;
    const int halves = args.c.type == Scalar::f32 ? 1 : 2, half = now % halves;
    const bool has_slope = Activated && args.slope.data;
    const auto alpha = static_cast<float>(args.alpha);
    PairValues more;
    tile::unroll<16>([&](auto i) { values[i] *= alpha; });
    if (state.addend.exists()) {
      const auto beta = static_cast<float>(args.beta);
      state.addend.read(more);
      tile::unroll<16>([&](auto i) { values[i] = tile::fma(beta, more[i], values[i]); });
    }
    if (state.bias.exists()) {
      state.bias.fetch(state.column(now), args.m, args.n);
      state.bias.read(more);
      tile::unroll<16>([&](auto i) { values[i] += more[i]; });
    }
    if (now + 1 < Width / 32) state.fetch(args, now + 1);

    const u32 box = state.slab + (has_slope ? 0 : now / halves % 2 * box_bytes);
    if (half == 0) {
      if (lane() == 0 && (has_slope || now == 0)) tile::sm90::wait_stores_read<0>();
      else if (lane() == 0) tile::sm90::wait_stores_read<1>();
      tile::sync_warp();
    }
    if constexpr (Activated) {
      activate(values, more);
      if (has_slope) put(more, state.slab + box_bytes, half);
    }
    put(values, box, half);
    if (half + 1 < halves) return;
    tile::sm90::publish_shared();
    tile::sync_warp();
    if (lane() == 0) {
      const int to = state.work.column + (now + 1 - halves) * 32;
      const int matrix = matrix_of(state.work);
      if (to < args.n) tile::sm90::store_box(box, product_.c, to, state.row, matrix);
      if (to < args.n && has_slope)
        tile::sm90::store_box(state.slab + box_bytes, product_.slope, to, state.row, matrix);
      tile::sm90::commit_stores();
    }
  }

  /// Through the slab, so that every lane has four neighbours, for whatever the arguments ask.
  TESSERA_DEVICE void store_lanes(const Sums& sums, u32 slab, const TileWork& work) const {
    const GemmArgs& args = product_.args;
    const int row = work.row + warp() * 16;
    const LaneEpilogue epilogue(args, BatchPlace(args, work.batch), work.part * product_.part_stride);
    const auto place = [&](int i, int j) { return slab + (i * 64 + (j ^ i % 4 * 8)) * 4; };  // four rows meet all banks
#pragma unroll 1
    for (int now = 0; now < Width / 64; ++now) {
      tile::unroll<Width / 64>([&](auto strip) {
        if (now != strip) return;
        tile::unroll<16>([&](auto i) {
          const float* s = sums + strip * 32 + i * 2;
          tile::sm90::store_pair(place(lane() / 4 + i % 2 * 8, i / 2 * 8 + lane() % 4 * 2), s[0], s[1]);
        });
      });
      tile::sync_warp();
      const int j = lane() % 16 * 4, column = work.column + now * 64 + j;
      const int count = static_cast<int>(tile::min<i64>(args.n - column, 4));
#pragma unroll 2
      for (int i = lane() / 16; i < 16; i += 2) {
        Lanes four;
        tile::sm90::load_four(four.v.lane, place(i, j));
        if (row + i < args.m && count > 0) epilogue(four, row + i, column, count);
      }
      tile::sync_warp();
    }
  }

  const Sm90Product& product_;
};

template <int Width>
TESSERA_KERNEL(Sm90Choice<Width>::config.warps * 32, 1)
__cluster_dims__(Sm90Choice<Width>::config.cluster, 1,
                 1) void sm90_kernel(const __grid_constant__ Sm90Product product) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  using Result = Sm90Result<Width>;
  tile::sm90::Gemm<Sm90Choice<Width>>::run(product.a, product.b, product.order, shared, Result(product));
  Result::finish();
}

template <int Width>
void launch_sm90(const Sm90Product& product, Executor& executor) {
  using Gemm = tile::sm90::Gemm<Sm90Choice<Width>>;
  constexpr auto kernel = sm90_kernel<Width>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::shared_bytes);
  const i64 clusters = tile::min<i64>(executor.multiprocessors / Gemm::cluster, product.order.count);
  launch("gemm", kernel, clusters * Gemm::cluster, Gemm::threads, Gemm::shared_bytes, executor, product);
}

}  // namespace tessera::gpu_kernels
