// Convolutions as products on Hopper's cards: the copy engine walks over windows of images whose channels are
// neighbours, and brings 64 channels of one element of each window as a line, zeros beyond the images' edges.
#pragma once
#include "gemm.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// Windows of images, numbered along rows, then down, then image by image, and their taps.
struct Windows {
  int across, down;       // windows of an image
  int left, top;          // where the first one begins
  int step[2], apart[2];  // from window to window and from tap to tap: across, down
  int taps_across, taps;
  int chunks;   // of 64 channels
  int skip[3];  // 64 windows further: across, down, images
  int batch;    // WindowColumns: taps that are products of their own, or 1
};

/// A window of an image.
struct WindowPlace {
  int column, row, image;
  TESSERA_DEVICE WindowPlace(const Windows& windows, int window) {
    const int line = window / windows.across;
    image = line / windows.down;
    column = window - line * windows.across;
    row = line - image * windows.down;
  }
  /// 64 windows further.
  TESSERA_DEVICE void next(const Windows& windows) {
    column += windows.skip[0];
    row += windows.skip[1];
    image += windows.skip[2];
    if (column >= windows.across) column -= windows.across, ++row;
    if (row >= windows.down) row -= windows.down, ++image;
  }
};

/// A chunk of channels of a tap, chunks first: how far the tap is from a window's first one.
struct TapChunk {
  int channel = 0, right = 0, down = 0;
  TESSERA_DEVICE TapChunk(const Windows& windows, int number) {
    const int tap = number / windows.chunks, line = tap / windows.taps_across;
    channel = (number - tap * windows.chunks) * 64;
    right = (tap - line * windows.taps_across) * windows.apart[0];
    down = line * windows.apart[1];
  }
  TESSERA_DEVICE void next(const Windows& windows) {
    channel += 64;
    if (channel < windows.chunks * 64) return;
    channel = 0;
    right += windows.apart[0];
    if (right < windows.taps_across * windows.apart[0]) return;
    right = 0;
    down += windows.apart[1];
  }
};

/// Loads a line for each window from `place` on, as many as the map says.
TESSERA_DEVICE void load_windows(u32 to, const TensorMap& images, u32 full, const Windows& windows,
                                 const WindowPlace& place, const TapChunk& at) {
  load_windows(to, images, full, at.channel, windows.left + place.column * windows.step[0],
               windows.top + place.row * windows.step[1], place.image, static_cast<u32>(at.right),
               static_cast<u32>(at.down));
}

/// Windows are rows of the product; taps, and the channels of each, its depth. The other operand's map is [filter, tap,
/// channel]: its columns are filters or, Backward, where images are gradients of the output, what are the filters'
/// channels, in the opposite order of taps.
template <class Gemm, bool Backward>
class WindowRows {
 public:
  template <class Args>
  TESSERA_DEVICE WindowRows(const Args& args, const TileWork& work, int begin)
      : windows_(args.windows), place_(windows_, work.row), at_(windows_, begin), column_(work.column) {
    tap_ = Backward ? windows_.taps - 1 : 0;
  }

  TESSERA_DEVICE void load(const TensorMap& images, const TensorMap& filters, u32 to, u32 full) {
    load_windows(to, images, full, windows_, place_, at_);
    to += Gemm::TileA::bytes;
    if constexpr (Backward) {
      unroll<Gemm::tile_n / 64>([&](auto i) {
        load_box(to + i * Gemm::TileB::block_bytes, filters, full, column_ + i * 64, tap_, at_.channel);
      });
    } else {
      load_box(to, filters, full, at_.channel, tap_, column_);
    }
    at_.next(windows_);
    if (at_.channel == 0) tap_ += Backward ? -1 : 1;
  }

 private:
  const Windows& windows_;
  WindowPlace place_;
  TapChunk at_;
  int column_, tap_;
};

/// Windows are the product's depth; taps, and the channels of each, its columns or, where those of a tap are not whole
/// chunks, a batch of products. Rows are filters, of which the map [window, filter] has the gradients. The batch may be
/// there several times, for one part of the windows after the other.
template <class Gemm>
class WindowColumns {
 public:
  template <class Args>
  TESSERA_DEVICE WindowColumns(const Args& args, const TileWork& work, int begin)
      : windows_(args.windows),
        first_(windows_, work.batch % windows_.batch * windows_.chunks + work.column / 64),
        row_(work.row),
        window_((work.batch / windows_.batch * args.order.steps + begin) * 64),
        place_(windows_, window_) {}

  TESSERA_DEVICE void load(const TensorMap& gradients, const TensorMap& images, u32 to, u32 full) {
    unroll<Gemm::tile_m / 64>(
        [&](auto i) { load_box(to + i * Gemm::TileA::block_bytes, gradients, full, row_ + i * 64, window_, 0); });
    to += Gemm::TileA::bytes;
    TapChunk at = first_;
    unroll<Gemm::tile_n / 64>([&](auto i) {
      load_windows(to + i * Gemm::TileB::block_bytes, images, full, windows_, place_, at);
      at.next(windows_);
    });
    window_ += 64;
    place_.next(windows_);
  }

 private:
  const Windows& windows_;
  TapChunk first_;
  int row_, window_;
  WindowPlace place_;
};

}  // namespace sm90
TESSERA_TILE_END
