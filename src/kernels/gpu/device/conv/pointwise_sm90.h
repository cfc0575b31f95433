// The kernels behind pointwise_sm90.cu. Planes come in tiles of 64 pixels of all channels, a line of 128 bytes for each
// channel, through a ring of stages that TMA fills; what becomes of an input before it is multiplied
// becomes of it there.
#pragma once
#include "kernels/gpu/device/rows/plane_norm.h"
#include "kernels/gpu/device/runtime/tensor_map.h"
#include "tile/arch/sm80/ptx.h"
#include "tile/arch/sm90/layout.h"

namespace tessera::gpu_kernels {

namespace sm90 = tile::sm90;
using sm90::TensorMap;

inline constexpr int pointwise_most = 256;     // channels, filters
inline constexpr int pointwise_threads = 512;  // four warpgroups
inline constexpr int tile_pixels = 64;         // a line
inline constexpr int tile_bytes = pointwise_most * sm90::line_bytes;

/// Tiles of all images, which workers take in turns.
struct PlaneTiles {
  i64 pixels, across, count;  // tiles of an image, and of all
  TESSERA_DEVICE int image(i64 tile) const { return static_cast<int>(tile / across); }
  TESSERA_DEVICE int pixel(i64 tile) const { return static_cast<int>(tile % across) * tile_pixels; }
  /// How many a worker takes; at least one, since there are no more workers than tiles.
  TESSERA_DEVICE int turns(int worker, int workers) const {
    return static_cast<int>((count - worker + workers - 1) / workers);
  }
};

TESSERA_DEVICE int warpgroup() { return tile::thread_in_block() / 128; }
TESSERA_DEVICE int lane() { return tile::thread_in_block() % 32; }
/// The first of the 16 rows that a warp has of its warpgroup's 64.
TESSERA_DEVICE int warp_row() { return tile::thread_in_block() / 32 % 4 * 16; }

/// The first row of the 64 that a thread has sums of; the other is 8 below.
TESSERA_DEVICE int first_row() { return warpgroup() * 64 + warp_row() + lane() / 4; }

/// Two elements of 16 bits as floats.
template <class T>
TESSERA_DEVICE Sums<float> unpack(u32 both) {
  if constexpr (tile::is_same_v<T, bf16>) {
    return {tile::bit_cast<float>(both << 16), tile::bit_cast<float>(both & 0xffff0000u)};
  } else {
    return {tile::detail::f16_to_f32(static_cast<tile::u16>(both)),
            tile::detail::f16_to_f32(static_cast<tile::u16>(both >> 16))};
  }
}

/// What becomes of a thread's channel, whose line of a tile Sharers neighbours share; the tile begins with channel
/// `first`.
template <class T, int Sharers>
class ChannelNorm {
 public:
  TESSERA_DEVICE ChannelNorm(const PlanesNorm& norm, int first, int channels) : line_(0, 0, 0, 0), relu_(norm.relu) {
    const int channel = first + tile::thread_in_block() / Sharers;
    used_ = norm.mean && channel < channels;
    if (!used_) return;
    float rstd;
    if (norm.variance) {
      rstd =
          static_cast<float>(1 / tile::sqrt(static_cast<double>(norm.variance[channel]) * norm.correction + norm.eps));
      if (norm.rstd && tile::block_in_grid() == 0) norm.rstd[channel] = rstd;
    } else {
      rstd = norm.rstd[channel];
    }
    line_ = {norm.mean[channel], rstd, ChannelWeights{norm.weight, norm.weight_type}.at(channel, 1.f),
             ChannelWeights{norm.bias, norm.weight_type}.at(channel, 0.f)};
  }
  /// A thread's share of the line; neighbours' shares meet all banks.
  TESSERA_DEVICE void apply(char* tile) const {
    if (!used_) return;
    constexpr int share = 8 / Sharers;
    const int line = tile::thread_in_block() / Sharers, chunk_of = tile::thread_in_block() % Sharers * share;
    tile::unroll<share>([&](auto i) {
      auto* chunk = reinterpret_cast<uint4*>(tile + sm90::swizzled(line, chunk_of + i));
      uint4 v = *chunk;
      v.x = both(v.x);
      v.y = both(v.y);
      v.z = both(v.z);
      v.w = both(v.w);
      *chunk = v;
    });
  }

 private:
  TESSERA_DEVICE u32 both(u32 packed) const {
    const Sums<float> v = unpack<T>(packed);
    const float a = line_(v.first), b = line_(v.second);
    return relu_ ? tile::sm80::pack<T>(tile::relu(a), tile::relu(b)) : tile::sm80::pack<T>(a, b);
  }
  ScaleShift<float> line_;
  bool used_, relu_;
};

/// A ring of stages of `bytes` in shared memory, which one thread has filled.
template <int stages_, int bytes>
class Ring {
 public:
  static constexpr int stages = stages_;
  explicit TESSERA_DEVICE Ring(char* shared) : shared_(shared), base_(sm90::shared_address(shared)) {
    if (tile::thread_in_block() == 0) {
      for (int i = 0; i < stages; ++i) sm90::mbarrier_init(full_barrier(i), 1);
      sm90::fence_mbarrier_init();
    }
    tile::sync_warp();  // for racecheck, to which a few predicated writes of one thread are its warp's
  }
  static constexpr int shared_bytes = stages * (bytes + 8);
  TESSERA_DEVICE char* at(int iteration) const { return shared_ + iteration % stages * bytes; }
  TESSERA_DEVICE u32 address(int iteration) const { return base_ + static_cast<u32>(iteration % stages) * bytes; }
  TESSERA_DEVICE u32 full_barrier(int iteration) const {
    return base_ + stages * bytes + static_cast<u32>(iteration % stages) * 8;
  }
  TESSERA_DEVICE void consumer_wait(int iteration) const {
    sm90::mbarrier_wait(full_barrier(iteration), static_cast<u32>(iteration / stages % 2));
  }

 private:
  char* shared_;
  u32 base_;
};

// ---- y = w norm(x) + bias

struct PointwiseWork {
  TensorMap x, y;
  PlaneTiles tiles;
  const void* w;
  i64 w_filter, w_channel;
  int channels, filters;  // of the input and the output
  const void* bias;
  PlanesNorm norm;
  PartMoments* moments;  // [filters, blocks], optional
};

/// A thread's weights of a product 16 * Steps deep, as wgmma takes them from registers; beyond those there are, zeros.
template <class T_, int Steps>
class RegisterWeights {
 public:
  using T = T_;
  static constexpr int depth = 16 * Steps, shared_bytes = 0;

  TESSERA_DEVICE RegisterWeights(const PointwiseWork& work, char*) {
    const T* const w = static_cast<const T*>(work.w);
    const auto bits = [&](int f, int c) {
      if (f >= work.filters || c >= work.channels) return 0u;
      return static_cast<u32>(tile::bit_cast<tile::u16>(w[f * work.w_filter + c * work.w_channel]));
    };
    tile::unroll<Steps>([&](auto k) {
      tile::unroll<4>([&](auto i) {
        const int f = first_row() + i % 2 * 8, c = k * 16 + i / 2 * 8 + lane() % 4 * 2;
        held_[k][i] = bits(f, c) | bits(f, c + 1) << 16;
      });
    });
  }
  /// Starts multiplying a tile.
  TESSERA_DEVICE void multiply(float (&sums)[32], u32 tile) const {
    sm90::wgmma_fence();
    tile::unroll<Steps>([&](auto k) {
      const u64 b = sm90::SharedOperand<64>::descriptor(tile + k * 16 * sm90::line_bytes);
      sm90::wgmma<T, 64, true>(sums, held_[k], b, k > 0);
    });
    sm90::wgmma_commit();
  }

 private:
  u32 held_[Steps][4];
};

/// The block's weights in shared memory, in blocks of 64 columns: a line for each filter or, Transposed, where filters
/// are neighbours in memory, for each channel.
template <class T_, bool Transposed>
class SharedWeights {
 public:
  using T = T_;
  static constexpr int depth = pointwise_most, shared_bytes = 4 * tile_bytes;

  TESSERA_DEVICE SharedWeights(const PointwiseWork& work, char* shared)
      : first_(sm90::shared_address(shared) +
               (Transposed ? warpgroup() * tile_bytes : warpgroup() * 64 * sm90::line_bytes)) {
    const int lines = Transposed ? work.channels : work.filters, columns = Transposed ? work.filters : work.channels;
    const i64 line_step = Transposed ? work.w_channel : work.w_filter,
              step = Transposed ? work.w_filter : work.w_channel;
    const T* const w = static_cast<const T*>(work.w);
    const bool whole = step == 1 && reinterpret_cast<u64>(w) % 16 == 0 && line_step % 8 == 0;
#pragma unroll 4
    for (int i = tile::thread_in_block(); i < pointwise_most * 32; i += pointwise_threads) {
      const int line = i / 32, column = i % 32 * 8;
      const T* const from = w + line * line_step + column * step;
      uint4 chunk{0, 0, 0, 0};
      if (line < lines && column < columns) {
        if (whole && column + 8 <= columns) {
          chunk = *reinterpret_cast<const uint4*>(from);
        } else {
          const auto bits = [&](int j) {
            return column + j < columns ? static_cast<u32>(tile::bit_cast<tile::u16>(from[j * step])) : 0u;
          };
          chunk = {bits(0) | bits(1) << 16, bits(2) | bits(3) << 16, bits(4) | bits(5) << 16, bits(6) | bits(7) << 16};
        }
      }
      *reinterpret_cast<uint4*>(shared + column / 64 * tile_bytes + sm90::swizzled(line, i % 8)) = chunk;
    }
    sm90::fence_proxy_async();
  }
  TESSERA_DEVICE void multiply(float (&sums)[32], u32 tile) const {
    using Lines = sm90::SharedOperand<64>;
    const u64 a = Lines::descriptor(first_), b = Lines::descriptor(tile);
    sm90::wgmma_fence();
    tile::unroll<16>([&](auto k) {
      constexpr int down = k * 16 * sm90::line_bytes / 16;
      constexpr int deeper = Transposed ? down : (k / 4 * tile_bytes + k % 4 * 32) / 16;
      sm90::wgmma<T, 64, Transposed, true>(sums, a + deeper, b + down, k > 0);
    });
    sm90::wgmma_commit();
  }

 private:
  u32 first_;
};

/// The sum over the four lanes that share rows.
TESSERA_DEVICE float join_row(float value) {
  value += tile::from_lane_xor(value, 1);
  return value + tile::from_lane_xor(value, 2);
}

/// Results of a thread: 8 times two neighbours of its first row, and of its second.
using RowPairs = u32[16];

/// What is done with results beside storing them: their moments, if they are wanted, around the mean of the first tile,
/// so that nothing cancels. Those from `pixels` on do not exist.
template <class T>
class RowMoments {
 public:
  /// While the next tile is multiplied: adds those that were taken last.
  TESSERA_DEVICE void add() {
    if (pixels_ == 0) return;
    if (count_ == 0) {
      float sum[2] = {0, 0};
      each([&](int h, float v) { sum[h] += v; });
      for (int h = 0; h < 2; ++h) centre_[h] = join_row(sum[h]) / static_cast<float>(pixels_);
    }
    each([&](int h, float v) {
      const float d = v - centre_[h];
      sum_[h] += d;
      squares_[h] = tile::fma(d, d, squares_[h]);
    });
    count_ += pixels_;
  }
  TESSERA_DEVICE void take(const RowPairs& packed, int pixels) {
    tile::unroll<16>([&](auto i) { taken_[i] = packed[i]; });
    pixels_ = pixels;
  }
  TESSERA_DEVICE void store(const PointwiseWork& work) {
    add();
    for (int h = 0; h < 2; ++h) {
      const double sum = static_cast<double>(join_row(sum_[h])), squares = static_cast<double>(join_row(squares_[h]));
      const int row = first_row() + 8 * h;
      if (lane() % 4 != 0 || row >= work.filters) continue;
      const double offset = sum / count_, rest = squares - sum * offset;
      work.moments[row * static_cast<i64>(gridDim.x) + tile::block_in_grid()] = {
          static_cast<double>(centre_[h]) + offset, rest < 0 ? 0 : rest, static_cast<double>(count_)};
    }
  }

 private:
  template <class Fn>
  TESSERA_DEVICE void each(const Fn& fn) const {
    tile::unroll<8>([&](auto j) {
      if (j * 8 >= pixels_) return;
      tile::unroll<2>([&](auto h) {
        const Sums<float> v = unpack<T>(taken_[j * 2 + h]);
        fn(h, v.first);
        fn(h, v.second);
      });
    });
  }
  float centre_[2] = {0, 0}, sum_[2] = {0, 0}, squares_[2] = {0, 0};
  int count_ = 0, pixels_ = 0;  // of all, and of those taken
  RowPairs taken_;
};

/// What a block has room for beside its weights.
template <class Weights>
struct PointwiseBlock {
  using Tiles = Ring<(227 * 1024 - Weights::shared_bytes) / (tile_bytes + 8), tile_bytes>;
  static constexpr int shared_bytes = Weights::shared_bytes + Tiles::shared_bytes;
  static constexpr int pending = Tiles::stages / 2;  // results that may be on their way out of a block
};

/// Each warpgroup multiplies 64 filters. Results take the place of the tile that they come from; their
/// moments are summed up while the next tile is multiplied.
template <class Weights>
TESSERA_KERNEL(pointwise_threads, 1)
void pointwise_kernel(const __grid_constant__ PointwiseWork work) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  using T = typename Weights::T;
  using Tiles = typename PointwiseBlock<Weights>::Tiles;
  const Tiles ring(shared + Weights::shared_bytes);
  const PlaneTiles& tiles = work.tiles;
  const int first = static_cast<int>(tile::block_in_grid()), step = static_cast<int>(gridDim.x);
  const int count = tiles.turns(first, step);
  const auto tile_of = [&](int iteration) { return first + static_cast<i64>(iteration) * step; };
  const bool leads = tile::thread_in_block() == 0, multiplies = warpgroup() * 64 < work.filters;
  const auto fetch = [&](int iteration) {
    if (iteration >= count) return;
    const i64 tile = tile_of(iteration);
    sm90::mbarrier_arrive_expect_tx(ring.full_barrier(iteration), Weights::depth * sm90::line_bytes);
    sm90::tma_load(ring.address(iteration), work.x, ring.full_barrier(iteration), tiles.pixel(tile), 0,
                   tiles.image(tile));
  };
  if (leads) {
    if (ring.address(0) % sm90::atom_bytes != 0) __trap();  // nothing stands before dynamic shared memory
    for (int i = 0; i < Tiles::stages; ++i) fetch(i);
  }
  const Weights weights(work, shared);
  const ChannelNorm<T, 2> norm(work.norm, 0, work.channels);
  float bias[2] = {0, 0};
  for (int h = 0; h < 2; ++h)
    if (work.bias && first_row() + 8 * h < work.filters)
      bias[h] = tile::convert_element<float>(static_cast<const T*>(work.bias)[first_row() + 8 * h]);
  RowMoments<T> moments;
  float sums[32];
  tile::sync_block();  // the barriers are made
#pragma unroll 1
  for (int iteration = 0; iteration < count; ++iteration) {
    const i64 tile = tile_of(iteration);
    const int pixel = tiles.pixel(tile);
    ring.consumer_wait(iteration);
    if (work.norm.mean) {
      norm.apply(ring.at(iteration));
      sm90::fence_proxy_async();
      tile::sync_block();
    }
    if (multiplies) {
      weights.multiply(sums, ring.address(iteration));
      if (work.moments) moments.add();
      sm90::wgmma_wait<0>();
      sm90::wgmma_fence_operand(sums);
    }
    tile::sync_block();  // all have read the tile
    if (multiplies) {
      RowPairs packed;
      tile::unroll<16>(
          [&](auto i) { packed[i] = tile::sm80::pack<T>(sums[2 * i] + bias[i % 2], sums[2 * i + 1] + bias[i % 2]); });
      if (work.moments) moments.take(packed, static_cast<int>(tile::min<i64>(tiles.pixels - pixel, tile_pixels)));
      const u32 rows = ring.address(iteration) + static_cast<u32>(warpgroup() * 64 + warp_row()) * sm90::line_bytes;
      tile::unroll<4>([&](auto j) {
        sm90::stmatrix(rows + sm90::swizzled(lane() % 16, j * 2 + lane() / 16), packed[4 * j], packed[4 * j + 1],
                       packed[4 * j + 2], packed[4 * j + 3]);
      });
      sm90::fence_proxy_async();
    }
    tile::sync_block();
    if (leads) {
      sm90::tma_store(ring.address(iteration), work.y, pixel, 0, tiles.image(tile));
      sm90::tma_store_commit();
      constexpr int pending = PointwiseBlock<Weights>::pending;
      sm90::tma_store_wait_read<pending>();
      if (iteration >= pending) fetch(iteration - pending + Tiles::stages);
    }
  }
  if (multiplies && work.moments) moments.store(work);
  if (leads) sm90::tma_store_wait_read<0>();
}

// ---- dw = dy norm(x)^T

struct PointwiseGradWork {
  TensorMap x, dy;
  PlaneTiles tiles;
  int channels, filters;
  int depth, lines;  // channels and filters that are loaded
  PlanesNorm norm;
  int parts;    // of the tiles; each has a block for every 128 channels
  float* sums;  // [parts, filters, channels]
  float* bias;  // [parts, filters], optional
};

inline constexpr int grad_channels = 128, grad_stages = 4;
using GradRing = Ring<grad_stages, tile_bytes + grad_channels * sm90::line_bytes>;  // filters, then channels

/// The sum of half of a filter's line of a tile; thread / 2 is its number.
template <class T>
TESSERA_DEVICE float sum_half(const char* tile) {
  float sum = 0;
  tile::unroll<4>([&](auto i) {
    const int chunk = tile::thread_in_block() % 2 * 4 + i;
    const uint4 v = *reinterpret_cast<const uint4*>(tile + sm90::swizzled(tile::thread_in_block() / 2, chunk));
    for (const u32 both : {v.x, v.y, v.z, v.w}) {
      const Sums<float> two = unpack<T>(both);
      sum += two.first + two.second;
    }
  });
  return sum;
}

/// Warpgroups multiply 64 filters each by the block's channels; while they do, the next tile becomes what it is to be.
template <class T>
TESSERA_KERNEL(pointwise_threads, 1)
void pointwise_grad_kernel(const __grid_constant__ PointwiseGradWork work) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  const GradRing ring(shared);
  const PlaneTiles& tiles = work.tiles;
  const int groups = (work.channels + grad_channels - 1) / grad_channels;
  const int block = static_cast<int>(tile::block_in_grid()), part = block / groups;
  const int channel = block % groups * grad_channels;
  const int count = tiles.turns(part, work.parts);
  const bool leads = tile::thread_in_block() == 0, sums_bias = work.bias && channel == 0;
  const auto fetch = [&](int iteration) {
    if (iteration >= count) return;
    const i64 tile = part + static_cast<i64>(iteration) * work.parts;
    const int pixel = tiles.pixel(tile), image = tiles.image(tile);
    const u32 filled = ring.full_barrier(iteration), to = ring.address(iteration);
    sm90::mbarrier_arrive_expect_tx(filled, static_cast<u32>(work.depth + work.lines) * sm90::line_bytes);
    sm90::tma_load(to, work.dy, filled, pixel, 0, image);
    sm90::tma_load(to + tile_bytes, work.x, filled, pixel, channel, image);
  };
  if (leads) {
    if (ring.address(0) % sm90::atom_bytes != 0) __trap();  // nothing stands before dynamic shared memory
    for (int i = 0; i < grad_stages; ++i) fetch(i);
  }
  const ChannelNorm<T, 4> norm(work.norm, channel, work.channels);
  float bias = 0;
  float sums[64];
  tile::sync_block();  // the barriers are made

#pragma unroll 1
  for (int iteration = 0; iteration < count; ++iteration) {
    ring.consumer_wait(iteration);
    if (work.norm.mean) norm.apply(ring.at(iteration) + tile_bytes);
    if (sums_bias) bias += sum_half<T>(ring.at(iteration));
    sm90::fence_proxy_async();
    sm90::wgmma_wait<0>();
    tile::sync_block();
    if (leads && iteration > 0) fetch(iteration - 1 + grad_stages);
    const u64 a = sm90::SharedOperand<64>::descriptor(ring.address(iteration) +
                                                      static_cast<u32>(warpgroup() * 64 * sm90::line_bytes));
    const u64 b = sm90::SharedOperand<128>::descriptor(ring.address(iteration) + tile_bytes);
    sm90::wgmma_fence();
    tile::unroll<4>(
        [&](auto k) { sm90::wgmma<T, 128, false, false>(sums, a + k * 2, b + k * 2, k > 0 || iteration > 0); });
    sm90::wgmma_commit();
  }
  sm90::wgmma_wait<0>();
  sm90::wgmma_fence_operand(sums);

  if (sums_bias) {
    bias += tile::from_lane_xor(bias, 1);
    const int filter = tile::thread_in_block() / 2;
    if (lane() % 2 == 0 && filter < work.filters) work.bias[static_cast<i64>(part) * work.filters + filter] = bias;
  }
  tile::unroll<64>([&](auto i) {
    const int f = first_row() + i / 2 % 2 * 8, c = channel + i / 4 * 8 + lane() % 4 * 2 + i % 2;
    if (f < work.filters && c < work.channels)
      work.sums[(static_cast<i64>(part) * work.filters + f) * work.channels + c] = sums[i];
  });
}

}  // namespace tessera::gpu_kernels
