// Im2col of images that batch norm and ReLU are applied to on their way from shared memory to wgmma, which takes them
// from registers.
#pragma once
#include "im2col.h"
#include "result.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// Im2colRows, chunk by chunk of channels, all taps of each, so that what a channel is normalised with is read once.
template <class Gemm>
class Im2colRowsByChunk {
 public:
  template <class Args>
  TESSERA_DEVICE Im2colRowsByChunk(const Args& args, const TileWork& work, int)
      : im2col_(args.im2col), place_(im2col_, work.row), at_(im2col_, 0), taps_(args.taps), column_(work.column) {}

  TESSERA_DEVICE void load(const TensorMap& images, const TensorMap& filters, u32 to, u32 full) {
    tma_load_im2col(to, images, full, im2col_, place_, at_);
    tma_load(to + Gemm::TileA::bytes, filters, full, at_.channel, tap_, column_);
    at_.right += im2col_.apart[0];
    if (at_.right == im2col_.taps_across * im2col_.apart[0]) at_.right = 0, at_.down += im2col_.apart[1];
    if (++tap_ == taps_) tap_ = at_.right = at_.down = 0, at_.channel += 64;
  }

 private:
  const Im2col& im2col_;
  Im2colPixel place_;
  TapChunk at_;
  int taps_, tap_ = 0, column_;
};

/// What normalisation comes to for two neighbouring channels: scale x + shift.
struct ChannelPair {
  float scale[2], shift[2];
};
inline constexpr u32 pair_bytes = sizeof(ChannelPair);

/// relu(scale x + shift) of two channels of a window, computed in f32; one outside of the image is 0 and remains so.
template <class T>
TESSERA_DEVICE void normalise(u32& pair, const float (&channels)[4], bool inside) {
  float x, y;
  unpack_pair<T>(pair, x, y);
  x = fma(x, channels[0], channels[2]);
  y = fma(y, channels[1], channels[3]);
  if constexpr (is_same_v<T, bf16>)
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p cvt.rn.relu.bf16x2.f32 %0, %1, %2;\n}"
                 : "+r"(pair)
                 : "f"(y), "f"(x), "r"(u32{inside}));
  else
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p cvt.rn.relu.f16x2.f32 %0, %1, %2;\n}"
                 : "+r"(pair)
                 : "f"(y), "f"(x), "r"(u32{inside}));
}

/// The left operand of a tile as Gemm takes it from registers: fragments of 64 windows and 64 channels.
template <class Gemm, class T>
class NormalisedRows {
 public:
  static constexpr int strips = Gemm::strips, most_taps = 32;
  using Fragment = u32[strips][4][4];

  /// `pairs`: ChannelPairs of all chunks in shared memory.
  explicit TESSERA_DEVICE NormalisedRows(u32 pairs) : pairs_(pairs) {}

  /// Finds out which taps of this lane's windows lie in the image, a bit each.
  template <class Args>
  TESSERA_DEVICE void prepare(const Args& args, const TileWork& work) {
    const Im2col& w = args.im2col;
    taps_ = args.taps;
    tap_ = 0;
    chunk_ = pairs_ + thread_in_block() % 4 * pair_bytes;
    const int first = work.row + thread_in_block() / 128 * strips * 64 + accumulator_row();
    unroll<strips * 2>([&](auto i) {
      const Im2colPixel place(w, first + i / 2 * 64 + i % 2 * 8);
      const int left = w.left + place.column * w.step[0], top = w.top + place.row * w.step[1];
      u32 line = 0;
      inside_[i] = 0;
      for (int tap = 0, x = left; tap < w.taps_across; ++tap, x += w.apart[0])
        line |= u32{x >= 0 && x < args.width} << tap;
      for (int tap = 0, y = top; tap < taps_; tap += w.taps_across, y += w.apart[1])
        if (y >= 0 && y < args.height) inside_[i] |= line << tap;
    });
  }

  /// Loads the next step's fragments; its windows lie at `from` in shared memory.
  TESSERA_DEVICE void ask(Fragment& to, u32 from) {
    if (tap_ == 0) {
      unroll<8>([&](auto i) { load_four(channels_[i], chunk_ + i * 4 * pair_bytes); });
      chunk_ += 32 * pair_bytes;
    }
    const int lane = thread_in_block() % 32;
    const u32 line = from + thread_in_block() / 32 % 4 * 16 * line_bytes + swizzled(lane % 16, lane / 16);
    unroll<4>([&](auto i) {
      unroll<strips>([&](auto strip) { ldmatrix(to[strip][i], (line + strip * 64 * line_bytes) ^ (i * 32)); });
    });
    unroll<strips * 2>([&](auto i) { now_[i] = inside_[i] >> tap_ & 1; });
    if (++tap_ == taps_) tap_ = 0;
  }
  /// Normalises 16 channels of them, from 16 i on.
  template <class I>
  TESSERA_DEVICE void make(Fragment& to, I i) const {
    unroll<strips>([&](auto strip) {
      unroll<4>([&](auto j) { normalise<T>(to[strip][i][j], channels_[i * 2 + j / 2], now_[strip * 2 + j % 2]); });
    });
  }

 private:
  u32 pairs_, chunk_ = 0, inside_[strips * 2] = {};
  bool now_[strips * 2] = {};
  int taps_ = 0, tap_ = 0;
  float channels_[8][4] = {};
};

}  // namespace sm90
TESSERA_TILE_END
