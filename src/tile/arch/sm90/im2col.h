// Convolutions as implicit products on Hopper's cards, by TMA's im2col mode on images in NHWC: it walks over windows,
// one for each pixel of the output, and loads 64 channels of one tap of each as a row, zeros beyond the images' edges.
#pragma once
#include "result.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// What im2col loads: windows of images, numbered along rows, then down, then image by image, and their taps.
struct Im2col {
  int across, down;       // windows of an image
  int left, top;          // where the first one begins
  int step[2], apart[2];  // from window to window and from tap to tap: across, down
  int taps_across;
  int chunks;       // of 64 channels
  int tap;          // Im2colRows: the filters' tap that is a window's first one,
  int tap_step[2];  // and from there to the next, across or, behind a line's last one, down
  int spread[2];    // results are so far apart: across, down; or 0: lines of a matrix
  int skip[3];      // 64 windows further: across, down, images
  int batch;        // Im2colColumns: taps that are products of their own, or 1
};

/// A window of an image.
struct Im2colPixel {
  int column, row, image;
  TESSERA_DEVICE Im2colPixel(const Im2col& im2col, int window) {
    const int line = window / im2col.across;
    image = line / im2col.down;
    column = window - line * im2col.across;
    row = line - image * im2col.down;
  }
  /// 64 windows further.
  TESSERA_DEVICE void next(const Im2col& im2col) {
    column += im2col.skip[0];
    row += im2col.skip[1];
    image += im2col.skip[2];
    if (column >= im2col.across) column -= im2col.across, ++row;
    if (row >= im2col.down) row -= im2col.down, ++image;
  }
};

/// A chunk of channels of a tap, chunks first: how far the tap is from a window's first one.
struct TapChunk {
  int channel = 0, right = 0, down = 0;
  TESSERA_DEVICE TapChunk(const Im2col& im2col, int number) {
    const int tap = number / im2col.chunks, line = tap / im2col.taps_across;
    channel = (number - tap * im2col.chunks) * 64;
    right = (tap - line * im2col.taps_across) * im2col.apart[0];
    down = line * im2col.apart[1];
  }
  TESSERA_DEVICE void next(const Im2col& im2col) {
    channel += 64;
    if (channel < im2col.chunks * 64) return;
    channel = 0;
    right += im2col.apart[0];
    if (right < im2col.taps_across * im2col.apart[0]) return;
    right = 0;
    down += im2col.apart[1];
  }
};

/// Loads a line for each window from `place` on, as many as the map says.
TESSERA_DEVICE void tma_load_im2col(u32 to, const TensorMap& images, u32 full, const Im2col& im2col,
                                    const Im2colPixel& place, const TapChunk& at) {
  tma_load_im2col(to, images, full, at.channel, im2col.left + place.column * im2col.step[0],
                  im2col.top + place.row * im2col.step[1], place.image, static_cast<u32>(at.right),
                  static_cast<u32>(at.down));
}

/// Windows are rows of the product; taps, and the channels of each, its depth. The other operand's map is [filter, tap,
/// channel]: its columns are filters or, Backward, where images are gradients of the output, the filters' channels.
template <class Gemm, bool Backward>
class Im2colRows {
 public:
  template <class Args>
  TESSERA_DEVICE Im2colRows(const Args& args, const TileWork& work, int begin)
      : im2col_(args.im2col), place_(im2col_, work.row), at_(im2col_, begin), column_(work.column), tap_(im2col_.tap) {}

  TESSERA_DEVICE void load(const TensorMap& images, const TensorMap& filters, u32 to, u32 full) {
    tma_load_im2col(to, images, full, im2col_, place_, at_);
    to += Gemm::TileA::bytes;
    if constexpr (Backward) {
      unroll<Gemm::tile_n / 64>([&](auto i) {
        tma_load(to + i * Gemm::TileB::block_bytes, filters, full, column_ + i * 64, tap_, at_.channel);
      });
    } else {
      tma_load(to, filters, full, at_.channel, tap_, column_);
    }
    at_.next(im2col_);
    if (at_.channel == 0) tap_ += im2col_.tap_step[at_.right == 0];
  }

 private:
  const Im2col& im2col_;
  Im2colPixel place_;
  TapChunk at_;
  int column_, tap_;
};

/// Stores a box of results for the windows from number `row` on.
TESSERA_DEVICE void store_result(u32 box, const TensorMap& map, const Im2col& im2col, int column, int row) {
  if (im2col.spread[0] == 0) return tma_store(box, map, column, row, 0);
  const Im2colPixel place(im2col, row);
  tma_store_im2col(box, map, column, place.column * im2col.spread[0], place.row * im2col.spread[1], place.image);
}

/// Of two neighbouring columns: the first value, and sums of all values' distances from it and of their squares, so
/// that nothing cancels.
struct SumsAround {
  Pack<float, 2> first, sum, squares;
};
/// None yet; each lane of a warp has two columns of a box.
template <class T>
TESSERA_DEVICE SumsAround sums_around_first(u32 box) {
  SumsAround sums{};
  unpack_pair<T>(load_shared<u32>(box + thread_in_block() % 32 * 4), sums.first.lane[0], sums.first.lane[1]);
  return sums;
}
/// Adds a box's first rows.
template <class T>
TESSERA_DEVICE void add_columns(SumsAround& sums, u32 box, int rows) {
  constexpr int ahead = 16;
  u32 at = box + thread_in_block() % 32 * 4;  // boxes begin where the swizzle does
  const auto add = [&](u32 pair) {
    float values[2];
    unpack_pair<T>(pair, values[0], values[1]);
    unroll<2>([&](auto i) {
      const float d = values[i] - sums.first.lane[i];
      sums.sum.lane[i] += d;
      sums.squares.lane[i] = fma(d, d, sums.squares.lane[i]);
    });
  };
  int row = 0;
#pragma unroll 1
  for (; row + ahead <= rows; row += ahead, at += ahead * line_bytes) {
    u32 pairs[ahead];  // all asked for before the first is needed
    unroll<ahead>([&](auto i) { pairs[i] = load_shared<u32>((at ^ i % 8 * 16) + i * line_bytes); });
    unroll<ahead>([&](auto i) { add(pairs[i]); });
  }
#pragma unroll 1
  for (; row < rows; ++row, at += line_bytes) add(load_shared<u32>(at ^ row % 8 * 16));
}

/// Windows are the product's depth; taps, and the channels of each, its columns or, AreRows, its rows; where those of a
/// tap are not whole chunks, a batch of products. The other side are filters, of which the map [window, filter] has the
/// gradients. The batch may be there several times, for one part of the windows after the other.
template <class Gemm, bool AreRows>
class Im2colColumns {
 public:
  template <class Args>
  TESSERA_DEVICE Im2colColumns(const Args& args, const TileWork& work, int begin)
      : im2col_(args.im2col),
        first_(im2col_, work.batch % im2col_.batch * im2col_.chunks + (AreRows ? work.row : work.column) / 64),
        filter_(AreRows ? work.column : work.row),
        window_((work.batch / im2col_.batch * args.order.k_tiles + begin) * 64),
        place_(im2col_, window_) {}

  TESSERA_DEVICE void load(const TensorMap& a, const TensorMap& b, u32 to, u32 full) {
    const u32 to_b = to + Gemm::TileA::bytes;
    const TensorMap &images = AreRows ? a : b, &gradients = AreRows ? b : a;
    unroll<(AreRows ? Gemm::tile_n : Gemm::tile_m) / 64>([&](auto i) {
      tma_load((AreRows ? to_b : to) + i * Gemm::TileA::block_bytes, gradients, full, filter_ + i * 64, window_, 0);
    });
    TapChunk at = first_;
    unroll<(AreRows ? Gemm::tile_m : Gemm::tile_n) / 64>([&](auto i) {
      tma_load_im2col((AreRows ? to : to_b) + i * Gemm::TileA::block_bytes, images, full, im2col_, place_, at);
      at.next(im2col_);
    });
    window_ += 64;
    place_.next(im2col_);
  }

 private:
  const Im2col& im2col_;
  TapChunk first_;
  int filter_, window_;
  Im2colPixel place_;
};

}  // namespace sm90
TESSERA_TILE_END
