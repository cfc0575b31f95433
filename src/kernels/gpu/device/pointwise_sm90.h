// The kernels behind pointwise_sm90.cu. Planes come in tiles of 64 pixels of all channels, a line of 128 bytes for each
// channel, through a ring of stages that the copy engine fills; what becomes of an input before it is multiplied
// becomes of it there.
#pragma once
#include "plane_norm.h"
#include "tensor_map.h"
#include "tile/arch/sm80/ptx.h"
#include "tile/arch/sm90/layout.h"

namespace tessera::gpu_kernels {

namespace sm90 = tile::sm90;
using sm90::TensorMap;

inline constexpr int pointwise_most = 256;     // channels, filters
inline constexpr int pointwise_threads = 512;  // four warpgroups
inline constexpr int tile_pixels = 64;         // a line
inline constexpr int tile_bytes = pointwise_most * sm90::line_bytes;

/// Tiles of all images, taken in turns.
struct PlaneTiles {
  i64 pixels, across, count;  // tiles of an image, and of all
  TESSERA_DEVICE int image(i64 tile) const { return static_cast<int>(tile / across); }
  TESSERA_DEVICE int pixel(i64 tile) const { return static_cast<int>(tile % across) * tile_pixels; }
};

TESSERA_DEVICE int warpgroup() { return tile::thread_in_block() / 128; }
TESSERA_DEVICE int lane() { return tile::thread_in_block() % 32; }
/// The first of the 16 rows that a warp has of its warpgroup's 64.
TESSERA_DEVICE int warp_row() { return tile::thread_in_block() / 32 % 4 * 16; }

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

/// What becomes of a thread's channel, number thread / 2 of a tile.
template <class T>
class ChannelNorm {
 public:
  TESSERA_DEVICE ChannelNorm(const PlanesNorm& norm, int channels) : line_(0, 0, 0, 0), relu_(norm.relu) {
    const int channel = tile::thread_in_block() / 2;
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
  /// Half of the channel's line of a tile; neighbours' halves meet all banks.
  TESSERA_DEVICE void apply(char* tile) const {
    if (!used_) return;
    const int channel = tile::thread_in_block() / 2;
    tile::unroll<4>([&](auto i) {
      auto* chunk = reinterpret_cast<uint4*>(tile + sm90::swizzled(channel, tile::thread_in_block() % 2 * 4 + i));
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
template <int stages, int bytes>
class Ring {
 public:
  explicit TESSERA_DEVICE Ring(char* shared) : shared_(shared), base_(sm90::shared_address(shared)) {
    if (tile::thread_in_block() != 0) return;
    for (int i = 0; i < stages; ++i) sm90::make_barrier(filled(i), 1);
    sm90::publish_barriers();
  }
  static constexpr int shared_bytes = stages * (bytes + 8);
  TESSERA_DEVICE char* at(i64 turn) const { return shared_ + turn % stages * bytes; }
  TESSERA_DEVICE u32 address(i64 turn) const { return base_ + static_cast<u32>(turn % stages) * bytes; }
  TESSERA_DEVICE u32 filled(i64 turn) const { return base_ + stages * bytes + static_cast<u32>(turn % stages) * 8; }
  TESSERA_DEVICE void wait(i64 turn) const { sm90::wait_for(filled(turn), static_cast<u32>(turn / stages % 2)); }

 private:
  char* shared_;
  u32 base_;
};

// ---- y = w norm(x) + bias

struct PointwiseWork {
  TensorMap x, y;
  PlaneTiles tiles;
  const void* w;
  i64 w_line;             // from one line of contiguous weights to the next
  int channels, filters;  // of the input and the output
  const void* bias;
  PlanesNorm norm;
  PartMoments* moments;  // [filters, blocks], optional
  int depth;             // channels that are loaded, in units of 16
};

inline constexpr int pointwise_stages = 3, weight_bytes = 4 * tile_bytes;
using PointwiseRing = Ring<pointwise_stages, tile_bytes>;
inline constexpr int pointwise_shared = weight_bytes + PointwiseRing::shared_bytes;
static_assert(pointwise_shared <= 227 * 1024);

/// Weights in shared memory, in blocks of 64 columns: a line for each filter, or for each channel where filters are
/// neighbours in memory.
template <class T, bool Transposed>
TESSERA_DEVICE void load_weights(const PointwiseWork& work, char* to) {
  const int lines = Transposed ? work.channels : work.filters, columns = Transposed ? work.filters : work.channels;
  const T* const w = static_cast<const T*>(work.w);
  const bool whole = reinterpret_cast<u64>(w) % 16 == 0 && work.w_line % 8 == 0;
#pragma unroll 4
  for (int i = tile::thread_in_block(); i < pointwise_most * 32; i += pointwise_threads) {
    const int line = i / 32, column = i % 32 * 8;
    const T* const from = w + line * work.w_line + column;
    uint4 chunk{0, 0, 0, 0};
    if (line < lines && column < columns) {
      if (whole && column + 8 <= columns) {
        chunk = *reinterpret_cast<const uint4*>(from);
      } else {
        const auto bits = [&](int j) {
          return column + j < columns ? static_cast<u32>(tile::bit_cast<tile::u16>(from[j])) : 0u;
        };
        chunk = {bits(0) | bits(1) << 16, bits(2) | bits(3) << 16, bits(4) | bits(5) << 16, bits(6) | bits(7) << 16};
      }
    }
    *reinterpret_cast<uint4*>(to + column / 64 * tile_bytes + sm90::swizzled(line, i % 8)) = chunk;
  }
}

/// Moments of a thread's two rows, around the mean of the first tile, so that nothing cancels.
class RowMoments {
 public:
  /// `packed`: 8 times two neighbours of the first row, and of the second; those from `pixels` on do not exist.
  template <class T>
  TESSERA_DEVICE void add(const u32 (&packed)[16], int pixels, bool first) {
    if (first) {
      float sum[2] = {0, 0};
      each<T>(packed, pixels, [&](int h, float v) { sum[h] += v; });
      for (int h = 0; h < 2; ++h) centre_[h] = join(sum[h]) / static_cast<float>(pixels);
    }
    each<T>(packed, pixels, [&](int h, float v) {
      const float d = v - centre_[h];
      sum_[h] += d;
      squares_[h] = tile::fma(d, d, squares_[h]);
    });
    count_ += pixels;
  }
  TESSERA_DEVICE void store(PartMoments* to, int row, int rows) const {
    for (int h = 0; h < 2; ++h) {
      const double sum = static_cast<double>(join(sum_[h])), squares = static_cast<double>(join(squares_[h]));
      if (lane() % 4 != 0 || row + 8 * h >= rows) continue;
      const double count = static_cast<double>(count_), offset = count_ > 0 ? sum / count : 0;
      const double rest = squares - sum * offset;
      to[(row + 8 * h) * static_cast<i64>(gridDim.x) + tile::block_in_grid()] = {
          static_cast<double>(centre_[h]) + offset, rest < 0 ? 0 : rest, count};
    }
  }

 private:
  template <class T, class Fn>
  static TESSERA_DEVICE void each(const u32 (&packed)[16], int pixels, const Fn& fn) {
    tile::unroll<8>([&](auto j) {
      if (j * 8 >= pixels) return;
      tile::unroll<2>([&](auto h) {
        const Sums<float> v = unpack<T>(packed[j * 2 + h]);
        fn(h, v.first);
        fn(h, v.second);
      });
    });
  }
  static TESSERA_DEVICE float join(float value) {
    value += tile::from_lane_xor(value, 1);
    return value + tile::from_lane_xor(value, 2);
  }
  float centre_[2] = {0, 0}, sum_[2] = {0, 0}, squares_[2] = {0, 0};
  i64 count_ = 0;
};

/// Each warpgroup multiplies 64 filters. The results take the place of the tile that they come from.
template <class T, bool Transposed>
TESSERA_KERNEL(pointwise_threads, 1)
void pointwise_kernel(const __grid_constant__ PointwiseWork work) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  const PointwiseRing ring(shared + weight_bytes);
  const PlaneTiles& tiles = work.tiles;
  const i64 first = tile::block_in_grid(), step = gridDim.x;
  const i64 count = first < tiles.count ? (tiles.count - first + step - 1) / step : 0;
  const bool leads = tile::thread_in_block() == 0, multiplies = warpgroup() * 64 < work.filters;
  const auto fetch = [&](i64 turn) {
    if (turn >= count) return;
    sm90::arrive_expecting(ring.filled(turn), static_cast<u32>(work.depth) * sm90::line_bytes);
    const i64 tile = first + turn * step;
    sm90::load_box(ring.address(turn), work.x, ring.filled(turn), tiles.pixel(tile), 0, tiles.image(tile));
  };
  if (leads) {
    if (ring.address(0) % sm90::atom_bytes != 0) __trap();  // nothing stands before dynamic shared memory
    for (int i = 0; i + 1 < pointwise_stages; ++i) fetch(i);
  }
  load_weights<T, Transposed>(work, shared);
  const ChannelNorm<T> norm(work.norm, work.channels);
  const int row = warpgroup() * 64 + warp_row() + lane() / 4;
  float bias[2] = {0, 0};
  for (int h = 0; h < 2; ++h)
    if (work.bias && row + 8 * h < work.filters)
      bias[h] = tile::convert_element<float>(static_cast<const T*>(work.bias)[row + 8 * h]);
  RowMoments moments;
  sm90::publish_shared();
  tile::sync_block();  // the barriers are made, too

  using Lines = sm90::SharedOperand<64>;
  const u32 weights = sm90::shared_address(shared) +
                      static_cast<u32>(Transposed ? warpgroup() * tile_bytes : warpgroup() * Lines::block_bytes);
#pragma unroll 1
  for (i64 turn = 0; turn < count; ++turn) {
    ring.wait(turn);
    if (work.norm.mean) {
      norm.apply(ring.at(turn));
      sm90::publish_shared();
      tile::sync_block();
    }
    float sums[32];
    if (multiplies) {
      sm90::begin_multiply();
#pragma unroll 1
      for (int k = 0; k < work.depth / 16; ++k) {
        const u32 a =
            weights + static_cast<u32>(Transposed ? k * 16 * sm90::line_bytes : k / 4 * tile_bytes + k % 4 * 32);
        const u32 b = ring.address(turn) + static_cast<u32>(k * 16 * sm90::line_bytes);
        sm90::multiply_add<T, 64, Transposed, true>(sums, Lines::descriptor(a), Lines::descriptor(b), k > 0);
      }
      sm90::commit_multiply();
      sm90::wait_multiply<0>();
    }
    tile::sync_block();  // all have read the tile
    const i64 tile = first + turn * step;
    const int pixel = tiles.pixel(tile);
    if (multiplies) {
      u32 packed[16];
      tile::unroll<16>(
          [&](auto i) { packed[i] = tile::sm80::pack<T>(sums[2 * i] + bias[i % 2], sums[2 * i + 1] + bias[i % 2]); });
      const u32 rows = ring.address(turn) + static_cast<u32>(warpgroup() * 64 + warp_row()) * sm90::line_bytes;
      tile::unroll<4>([&](auto j) {
        sm90::store_matrices(rows + sm90::swizzled(lane() % 16, j * 2 + lane() / 16), packed[4 * j], packed[4 * j + 1],
                             packed[4 * j + 2], packed[4 * j + 3]);
      });
      if (work.moments)
        moments.add<T>(packed, static_cast<int>(tile::min<i64>(tiles.pixels - pixel, tile_pixels)), turn == 0);
    }
    sm90::publish_shared();
    tile::sync_block();
    if (leads) {
      sm90::store_box(ring.address(turn), work.y, pixel, 0, tiles.image(tile));
      sm90::commit_stores();
      sm90::wait_stores_read<1>();  // the tile before has left the stage that is filled next
      fetch(turn + pointwise_stages - 1);
    }
  }
  if (work.moments && multiplies) moments.store(work.moments, row, work.filters);
  if (leads) sm90::wait_stores_read<0>();
}

// ---- dw = dy norm(x)^T

struct PointwiseGradWork {
  TensorMap x, dy;
  PlaneTiles tiles;
  int channels, filters;
  int depth, lines;  // channels and filters that are loaded
  PlanesNorm norm;
  int parts;    // of the tiles; each has a block for every 128 filters
  float* sums;  // [parts, filters, channels]
  float* bias;  // [parts, filters], optional
};

inline constexpr int grad_filters = 128, grad_stages = 4, grad_offset = grad_filters * sm90::line_bytes;
using GradRing = Ring<grad_stages, grad_offset + tile_bytes>;  // filters, then channels

/// The sum of a quarter of a filter's line of a tile; thread / 4 is its number.
template <class T>
TESSERA_DEVICE float sum_quarter(const char* tile) {
  float sum = 0;
  tile::unroll<2>([&](auto i) {
    const int chunk = tile::thread_in_block() % 4 * 2 + i;
    const uint4 v = *reinterpret_cast<const uint4*>(tile + sm90::swizzled(tile::thread_in_block() / 4, chunk));
    for (const u32 both : {v.x, v.y, v.z, v.w}) {
      const Sums<float> two = unpack<T>(both);
      sum += two.first + two.second;
    }
  });
  return sum;
}

/// Warpgroups multiply 64 filters by 128 channels; while they do, the next tile becomes what it is to be.
template <class T>
TESSERA_KERNEL(pointwise_threads, 1)
void pointwise_grad_kernel(const __grid_constant__ PointwiseGradWork work) {
  extern __shared__ __attribute__((aligned(1024))) char shared[];
  const GradRing ring(shared);
  const PlaneTiles& tiles = work.tiles;
  const int halves = (work.filters + grad_filters - 1) / grad_filters;
  const int block = static_cast<int>(tile::block_in_grid()), part = block / halves;
  const int filter = block % halves * grad_filters;
  const i64 count = part < tiles.count ? (tiles.count - part + work.parts - 1) / work.parts : 0;
  const bool leads = tile::thread_in_block() == 0;
  const auto fetch = [&](i64 turn) {
    if (turn >= count) return;
    const i64 tile = part + turn * work.parts;
    const int pixel = tiles.pixel(tile), image = tiles.image(tile);
    const u32 filled = ring.filled(turn), to = ring.address(turn);
    sm90::arrive_expecting(filled, static_cast<u32>(work.depth + work.lines) * sm90::line_bytes);
    sm90::load_box(to, work.dy, filled, pixel, filter, image);
    sm90::load_box(to + grad_offset, work.x, filled, pixel, 0, image);
  };
  if (leads) {
    if (ring.address(0) % sm90::atom_bytes != 0) __trap();  // nothing stands before dynamic shared memory
    for (int i = 0; i < grad_stages; ++i) fetch(i);
  }
  const ChannelNorm<T> norm(work.norm, work.channels);
  const int row = warpgroup() / 2 * 64, column = warpgroup() % 2 * 128;
  const bool multiplies = filter + row < work.filters && column < work.channels;
  float bias = 0;
  float sums[64];
  tile::sync_block();  // the barriers are made

#pragma unroll 1
  for (i64 turn = 0; turn < count; ++turn) {
    ring.wait(turn);
    if (work.norm.mean) norm.apply(ring.at(turn) + grad_offset);
    if (work.bias) bias += sum_quarter<T>(ring.at(turn));
    sm90::publish_shared();
    sm90::wait_multiply<0>();
    tile::sync_block();
    if (leads && turn > 0) fetch(turn - 1 + grad_stages);
    const u64 a = sm90::SharedOperand<64>::descriptor(ring.address(turn) + static_cast<u32>(row) * sm90::line_bytes);
    const u64 b = sm90::SharedOperand<128>::descriptor(ring.address(turn) + grad_offset +
                                                       static_cast<u32>(column) * sm90::line_bytes);
    sm90::begin_multiply();
    tile::unroll<4>(
        [&](auto k) { sm90::multiply_add<T, 128, false, false>(sums, a + k * 2, b + k * 2, k > 0 || turn > 0); });
    sm90::commit_multiply();
  }
  sm90::wait_multiply<0>();

  if (work.bias) {
    bias += tile::from_lane_xor(bias, 1);
    bias += tile::from_lane_xor(bias, 2);
    const int of = filter + tile::thread_in_block() / 4;
    if (lane() % 4 == 0 && of < work.filters) work.bias[static_cast<i64>(part) * work.filters + of] = bias;
  }
  if (!multiplies) return;
  tile::unroll<64>([&](auto i) {
    const int f = filter + row + warp_row() + lane() / 4 + i / 2 % 2 * 8;
    const int c = column + i / 4 * 8 + lane() % 4 * 2 + i % 2;
    if (f < work.filters && c < work.channels)
      work.sums[(static_cast<i64>(part) * work.filters + f) * work.channels + c] = sums[i];
  });
}

}  // namespace tessera::gpu_kernels
