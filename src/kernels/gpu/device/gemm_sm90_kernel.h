// The kernel behind gemm_sm90.h.
#pragma once
#include "gemm_sm90.h"
#include "gemm_sm90_activation.h"
#include "tile/arch/sm80/ptx.h"

namespace tessera::gpu_kernels {

using tile::sm90::TileWork;

/// What a lane of wgmma's sums has of 16 columns: pairs of columns 8 apart, each in 2 rows 8 apart, the rows side by
/// side.
using Unit = float[8];

/// 16-bit elements of a unit as the lanes of a warp exchange them with a box.
using PackedUnit = u32[4];

TESSERA_DEVICE void pack_unit(bool is_bf16, const Unit& v, PackedUnit& packed) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float first = v[2 * i], second = v[2 * i + 1];
    packed[i] = is_bf16 ? tile::sm80::pack<bf16>(first, second) : tile::sm80::pack<f16>(first, second);
  }
}
TESSERA_DEVICE void unpack(Scalar type, u32 packed, float& first, float& second) {
  if (type == Scalar::bf16) {
    first = tile::bit_cast<float>(packed << 16);
    second = tile::bit_cast<float>(packed & 0xffff0000u);
  } else {
    first = tile::detail::f16_to_f32(static_cast<tile::u16>(packed));
    second = tile::detail::f16_to_f32(static_cast<tile::u16>(packed >> 16));
  }
}

/// Boxes of 16 rows of 128 bytes: 32 columns of f32, or 64 of 16 bits.
struct BoxFormat {
  Scalar type;
  int lane;

  TESSERA_DEVICE u32 matrices_at(u32 box, int unit) const {
    return box + tile::sm90::swizzled(lane % 16, unit * 2 + lane / 16);
  }
  TESSERA_DEVICE void put(const Unit& v, u32 box, int unit) const {
    if (type == Scalar::f32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int line = lane / 4 + i % 2 * 8, chunk = unit * 4 + i / 2 * 2 + lane % 4 / 2;
        tile::sm90::store_pair(box + tile::sm90::swizzled(line, chunk) + lane % 2 * 8, v[2 * i], v[2 * i + 1]);
      }
    } else {
      PackedUnit p;
      pack_unit(type == Scalar::bf16, v, p);
      tile::sm90::store_matrices(matrices_at(box, unit), p[0], p[1], p[2], p[3]);
    }
  }
  /// Of 16 bits.
  TESSERA_DEVICE void get(Unit& v, u32 box, int unit) const {
    PackedUnit p;
    tile::sm90::load_matrices(p, matrices_at(box, unit));
#pragma unroll
    for (int i = 0; i < 4; ++i) unpack(type, p[i], v[2 * i], v[2 * i + 1]);
  }
};

/// The bias of a tile's columns, of 16 bits, which all rows share: asked for at once, a pair a lane, 64 columns a
/// register. Those of a box come first.
template <int Boxes>
class BiasPairs {
 public:
  TESSERA_DEVICE BiasPairs(const MatrixArg& m, const TileWork& work, i64 n, int lane) : type_(m.type), lane_(lane) {
    if (!m.data) return;
    const auto* const data = static_cast<const unsigned short*>(m.data) + m.batch[max_batch_rank - 1] * work.batch;
    tile::unroll<Boxes>([&](auto box) {
      const int column = work.column + box * 64 + lane * 2;
      if (column < n) pairs_[box] = __ldg(reinterpret_cast<const u32*>(data + column));
    });
  }
  /// v = alpha v + bias
  TESSERA_DEVICE void add(float alpha, int unit, Unit& v) const {
    tile::unroll<2>([&](auto i) {
      float first, second;
      unpack(type_, __shfl_sync(~0u, pairs_[0], unit * 8 + i * 4 + lane_ % 4), first, second);
      tile::unroll<2>([&](auto row) {
        float* const two = v + i * 4 + row * 2;
        two[0] = tile::fma(alpha, two[0], first);
        two[1] = tile::fma(alpha, two[1], second);
      });
    });
  }
  /// The next box; behind the last one the first.
  TESSERA_DEVICE void next() {
    const u32 first = pairs_[0];
    tile::unroll<Boxes - 1>([&](auto box) { pairs_[box] = pairs_[box + 1]; });
    pairs_[Boxes - 1] = first;
  }

 private:
  Scalar type_;
  int lane_;
  u32 pairs_[Boxes] = {};
};

/// How the sums of a warp, strips of 16 rows of Width columns, get to memory.
template <class C>
class Sm90Result {
 public:
  using Gemm = tile::sm90::Gemm<C>;
  using Sums = typename Gemm::Sums;
  static constexpr int width = C::config.tile_n, strips = Gemm::strips, boxes = C::boxes;
  static constexpr int across = width / 16, wide = width / 64;  // units, or boxes of 16 bits, of a strip

  TESSERA_DEVICE Sm90Result(const Sm90Product& product, const typename Gemm::Slab& slab)
      : product_(product), slab_(slab) {}

  /// Asks for what is added or multiplied, as far as there are boxes.
  TESSERA_DEVICE void prepare(const TileWork& work) {
    if (product_.ends != Sm90Ends::boxes || !product_.has_input || work.piece >= 0) return;
    find_lane();
    if (lane_ == 0) {
      tile::sm90::wait_stores_read<0>();
      for (int box = 0; box < boxes; ++box) load(box, work);
    }
    tile::sync_warp();
  }

  TESSERA_DEVICE void store(Sums& sums, const TileWork& work) {
    find_lane();
    const GemmArgs& args = product_.args;
    const auto alpha = static_cast<float>(args.alpha);
    if (work.piece >= 0) {
      store_plain<float>(sums, 1.0f, product_.pieces, {work.piece * C::config.tile_m, 0, 0, -1}, width);
    } else if (product_.ends == Sm90Ends::lanes) {
      store_lanes(sums, work);
    } else if (product_.ends == Sm90Ends::boxes) {
      store_boxes(sums, work);
    } else if (args.c.type == Scalar::f32) {
      store_plain<float>(sums, alpha, product_.c, work, product_.whole_n);
    } else if (args.c.type == Scalar::bf16) {
      store_plain<bf16>(sums, alpha, product_.c, work, product_.whole_n);
    } else {
      store_plain<f16>(sums, alpha, product_.c, work, product_.whole_n);
    }
    if (work.piece < 0 && product_.whole_n < args.n && work.column + width > product_.whole_n) store_rest(sums, work);
  }
  /// Before the block ends: the copy engine has read the slabs.
  TESSERA_DEVICE void finish() const { tile::sm90::wait_stores_read<0>(); }

 private:
  /// Anew for each tile: what is computed from it would otherwise keep registers from one tile to the next.
  TESSERA_DEVICE void find_lane() { asm volatile("mov.u32 %0, %laneid;" : "=r"(lane_)); }
  /// Of the tile, where the warp's part of a strip begins.
  static TESSERA_DEVICE int row_of(int strip) {
    const int warp = tile::thread_in_block() / 32, group = Gemm::alternates ? 0 : warp / 4;
    return (group * strips + strip) * 64 + warp % 4 * 16;
  }
  TESSERA_DEVICE BoxFormat format() const { return {product_.args.c.type, lane_}; }

  /// Waits until at most Pending stores still read their boxes.
  template <int Pending>
  TESSERA_DEVICE void wait_for_boxes() const {
    if (lane_ == 0) tile::sm90::wait_stores_read<Pending>();
    tile::sync_warp();
  }

  /// Sums times alpha, unrolled: what store_boxes does, without what costs it time.
  template <class T>
  TESSERA_DEVICE void store_plain(const Sums& sums, float alpha, const tile::sm90::TensorMap& map, const TileWork& to,
                                  i64 n) const {
    constexpr int columns = 128 / sizeof(T), places = width / columns, units = columns / 16;
    constexpr Scalar type = tile::is_same_v<T, float>  ? Scalar::f32
                            : tile::is_same_v<T, bf16> ? Scalar::bf16
                                                       : Scalar::f16;
    wait_for_boxes<0>();
    tile::unroll<strips * places>([&](auto now) {
      constexpr int strip = now / places, place = now % places;
      const u32 box = slab_.box(now % boxes);
      if constexpr (now >= boxes) wait_for_boxes<boxes - 1>();
      tile::unroll<units>([&](auto unit) {
        Unit values;
        tile::unroll<8>([&](auto i) { values[i] = alpha * sums[strip][(place * units + unit) * 8 + i]; });
        BoxFormat{type, lane_}.put(values, box, unit);
      });
      tile::sm90::publish_shared();
      tile::sync_warp();
      if (lane_ == 0) {
        const int column = to.column + place * columns;
        if (column < n) tile::sm90::store_box(box, map, column, to.row + row_of(strip), to.batch);
        tile::sm90::commit_stores();
      }
    });
  }

  /// Unit `now` of a lane's sums, by halving, since registers have no index.
  template <int Begin, int End>
  static TESSERA_DEVICE void pick(const float* sums, int now, Unit& values) {
    if constexpr (End - Begin == 1) {
      tile::unroll<8>([&](auto i) { values[i] = sums[Begin * 8 + i]; });
    } else {
      constexpr int middle = (Begin + End) / 2;
      if (now < middle) pick<Begin, middle>(sums, now, values);
      else pick<middle, End>(sums, now, values);
    }
  }

  /// The columns from whole_n on, which the copy engine cannot write.
  TESSERA_DEVICE void store_rest(const Sums& sums, const TileWork& work) const {
    const GemmArgs& args = product_.args;
    const auto alpha = static_cast<float>(args.alpha);
    const i64 matrix = args.c.batch[max_batch_rank - 1] * work.batch;
#pragma unroll 1
    for (int now = 0; now < strips * across; ++now) {
      const int strip = now / across, column = work.column + (now - strip * across) * 16 + lane_ % 4 * 2;
      if (column + 16 <= product_.whole_n) continue;
      Unit values;
      pick<0, strips * across>(&sums[0][0], now, values);
      const int row = work.row + row_of(strip) + lane_ / 4;
      tile::unroll<8>([&](auto i) {
        const int y = row + i / 2 % 2 * 8, x = column + i / 4 * 8 + i % 2;
        if (y < args.m && x >= product_.whole_n && x < args.n)
          store_as<float>(args.c.data, args.c.type, matrix + y * args.c.row + x, alpha * values[i]);
      });
    }
  }

  /// Starts loading the tile's box `number`, if there is one, of what is added or multiplied; by one lane.
  TESSERA_DEVICE void load(int number, const TileWork& work) const {
    const int strip = number / wide, slot = number % boxes;
    if (strip >= strips) return;
    tile::sm90::arrive_expecting(slab_.barrier(slot), Gemm::box_bytes);
    tile::sm90::load_box(slab_.box(slot), product_.input, slab_.barrier(slot),
                         work.column + (number - strip * wide) * 64, work.row + row_of(strip),
                         product_.input_batch ? work.batch : 0);
  }

  /// By the copy engine, 64 columns of 16 bits at a time in a loop that is rolled up; what is left of the sums moves
  /// up, since registers have no index. What is added or multiplied arrives in the box that the result leaves from; a
  /// slope has every other box.
  TESSERA_DEVICE void store_boxes(Sums& sums, const TileWork& work) {
    const GemmArgs& args = product_.args;
    BiasPairs<wide> bias(args.bias, work, args.n, lane_);
    float* const all = &sums[0][0];
    if (!product_.has_input) wait_for_boxes<0>();
#pragma unroll 1
    for (int number = 0; number < strips * wide; ++number) {
      store_box(reinterpret_cast<float(&)[32]>(sums), bias, number, work);
      tile::unroll<(strips * wide - 1) * 32>([&](auto i) { all[i] = all[i + 32]; });
      bias.next();
    }
  }

  TESSERA_DEVICE void store_box(float (&values)[32], const BiasPairs<wide>& bias, int number, const TileWork& work) {
    const GemmArgs& args = product_.args;
    const BoxFormat format = this->format();
    const int strip = number / wide, column = work.column + (number - strip * wide) * 64,
              row = work.row + row_of(strip);
    const bool has_slope = args.slope.data != nullptr;
    const u32 box = open(number, has_slope);
    const auto units = [&](const auto& fn) {
      tile::unroll<4>([&](auto unit) {
        Unit v;
        tile::unroll<8>([&](auto i) { v[i] = values[unit * 8 + i]; });
        fn(unit, v);
        tile::unroll<8>([&](auto i) { values[unit * 8 + i] = v[i]; });
      });
    };
    const auto alpha = static_cast<float>(args.alpha), beta = static_cast<float>(args.beta);
    units([&](auto unit, Unit& v) { bias.add(alpha, unit, v); });
    if (args.addend.data) {
      units([&](auto unit, Unit& v) {
        Unit more;
        format.get(more, box, unit);
        tile::unroll<8>([&](auto i) { v[i] = tile::fma(beta, more[i], v[i]); });
      });
    }
    if (args.activation != Activation::none) {
      quick::activate(args.activation, values, [&](auto unit, const Unit& slopes) {
        if (has_slope) format.put(slopes, box + Gemm::box_bytes, unit);
      });
    }
    if (args.factor.data) {
      units([&](auto unit, Unit& v) {
        Unit more;
        format.get(more, box, unit);
        tile::unroll<8>([&](auto i) { v[i] *= more[i]; });
      });
    }
    if (product_.column_parts) units([&](auto unit, Unit& v) { sum_columns(v, work, row, column + unit * 16); });
    units([&](auto unit, Unit& v) { format.put(v, box, unit); });
    close(number, box, has_slope, work, column, row);
  }

  /// The address of the tile's box `number`, when it may be written to.
  TESSERA_DEVICE u32 open(int number, bool has_slope) {
    if (product_.has_input) {
      const int slot = number % boxes;
      tile::sm90::wait_for(slab_.barrier(slot), parities_ >> slot & 1);
      parities_ ^= 1u << slot;
      return slab_.box(slot);
    }
    if (has_slope) {
      wait_for_boxes<boxes / 2 - 1>();
      return slab_.box(number % (boxes / 2) * 2);
    }
    wait_for_boxes<boxes - 1>();
    return slab_.box(number % boxes);
  }

  TESSERA_DEVICE void close(int number, u32 box, bool has_slope, const TileWork& work, int column, int row) const {
    tile::sm90::publish_shared();
    tile::sync_warp();
    if (lane_ != 0) return;
    if (column < product_.args.n) {
      tile::sm90::store_box(box, product_.c, column, row, work.batch);
      if (has_slope) tile::sm90::store_box(box + Gemm::box_bytes, product_.slope, column, row, work.batch);
    }
    tile::sm90::commit_stores();
    if (!product_.has_input || number == 0) return;
    tile::sm90::wait_stores_read<1>();
    load(number - 1 + boxes, work);  // takes the place of the box before this one
  }

  /// The sums of a unit's columns over the warp's 16 rows, to the parts of the sums over all rows.
  TESSERA_DEVICE void sum_columns(const Unit& values, const TileWork& work, int row, int first_column) const {
    const GemmArgs& args = product_.args;
    const int mine = row + lane_ / 4;
    float sums[4];
    tile::unroll<4>([&](auto i) {
      constexpr int first = i / 2 * 4 + i % 2;
      sums[i] = (mine < args.m ? values[first] : 0.0f) + (mine + 8 < args.m ? values[first + 2] : 0.0f);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) sums[i] += tile::from_lane_xor(sums[i], mask);
    });
    if (lane_ >= 4 || row >= args.m) return;
    const i64 line = work.batch * tile::ceil_div<i64>(args.m, 16) + row / 16;
    float* const to = product_.column_parts + line * args.n;
    tile::unroll<4>([&](auto i) {
      const int column = first_column + lane_ * 2 + i / 2 * 8 + i % 2;
      if (column < args.n) to[column] = sums[i];
    });
  }

  /// Through the slab, so that every lane has four neighbours, for whatever the arguments ask.
  TESSERA_DEVICE void store_lanes(const Sums& sums, const TileWork& work) const {
    const GemmArgs& args = product_.args;
    const LaneEpilogue epilogue(args, BatchPlace(args, work.batch));
    const auto place = [&](int i, int j) {  // four rows meet all banks
      return slab_.boxes + (i * 64 + (j ^ i % 4 * 8)) * 4;
    };
    wait_for_boxes<0>();
#pragma unroll 1
    for (int now = 0; now < strips * across; now += 4) {
      const int strip = strips == 1 ? 0 : now / across;
#pragma unroll 1
      for (int unit = 0; unit < 4; ++unit) {
        Unit values;
        pick<0, strips * across>(&sums[0][0], now + unit, values);
        tile::unroll<4>([&](auto i) {
          tile::sm90::store_pair(place(lane_ / 4 + i % 2 * 8, unit * 16 + i / 2 * 8 + lane_ % 4 * 2), values[2 * i],
                                 values[2 * i + 1]);
        });
      }
      tile::sync_warp();
      const int row = work.row + row_of(strip), j = lane_ % 16 * 4;
      const int column = work.column + (now - strip * across) * 16 + j;
      const int count = static_cast<int>(tile::min<i64>(args.n - column, 4));
#pragma unroll 2
      for (int i = lane_ / 16; i < 16; i += 2) {
        Lanes four;
        tile::sm90::load_four(four.v.lane, place(i, j));
        if (row + i < args.m && count > 0) epilogue(four, row + i, column, count);
      }
      tile::sync_warp();
    }
  }

  const Sm90Product& product_;
  typename Gemm::Slab slab_;
  int lane_ = 0;
  u32 parities_ = 0;  // of the boxes' barriers
};

template <class C>
TESSERA_KERNEL(C::config.warps * 32, 1)
__cluster_dims__(C::config.cluster, 1, 1) void sm90_kernel(const __grid_constant__ Sm90Product product) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  tile::sm90::Gemm<C>::template run<Sm90Result<C>>(product.a, product.b, product.order, shared, product);
}

template <class C>
void launch_sm90(const Sm90Product& product, Executor& executor) {
  using Gemm = tile::sm90::Gemm<C>;
  constexpr auto kernel = sm90_kernel<C>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Gemm::shared_bytes) != cudaSuccess)
    check_launch("gemm");
  const i64 clusters = sm90_clusters(product.order, Gemm::cluster, executor);
  launch("gemm", kernel, clusters * Gemm::cluster, Gemm::threads, Gemm::shared_bytes, executor, product);
}

}  // namespace tessera::gpu_kernels
