// What kernels take that read images at points between their elements.
#pragma once
#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// How a GPU adds up what comes to an element of an image's gradient: from sorted lists, in any order, or source after
/// source, where lists would have no bounds. Without lists the gradient is f64 or f32.
enum class Adding : unsigned char { lists, any_order, in_order };

/// All tensors are contiguous: x, dx [images, channels, size...], y, dy [images, channels, points], grid, dgrid
/// [images, points, spatial]. Those of points are f64 beside images of f64, and f32 otherwise.
struct GridSampleArgs {
  Scalar type;  // of images: f32, f64, f16 or bf16
  int spatial, interpolation, beyond;
  bool align_corners, elements;
  long long images, channels, points;
  int size[3];  // depth, rows, columns; the depth of two dims is 1
  const void *x, *grid, *dy;
  void *y, *dx, *dgrid;
  Adding adding;
  void* room;  // of lists: GatherRoom
};

/// x, dx [images, channels, size...], y, dy [regions, channels, rows, columns], bounds [regions, 4] like a grid, batch
/// [regions].
struct RoiAlignArgs {
  Scalar type;
  long long images, channels, regions;
  int size[2], bins[2];
  double scale;
  int samples;  // of a bin along each dim; 0: by the size of the region
  bool aligned;
  const void *x, *bounds, *dy;
  const long long* batch;
  void *y, *dx;
  Adding adding;
  void* room;
};

/// Where a gradient is gathered: how many contributions each element of a plane has, where its list ends, their number,
/// and the lists of contributions.
struct GatherRoom {
  long long ends_at, entries_at, bytes;
  constexpr GatherRoom(long long places, long long entries, Scalar type)
      : ends_at((places + 1) * 4),
        entries_at((ends_at + places * 4 + 15) / 16 * 16),
        bytes(entries_at + entries * (type == Scalar::f64 ? 16 : 8)) {}
};
/// Lists count in 32 bits.
inline constexpr long long most_gathered = (1ll << 32) - 1;

/// Contributions to the gradient of x, which may be more than 2^63, and places that they come to.
constexpr double gathered_entries(const GridSampleArgs& a) {
  const int taps = 1 << a.interpolation;
  return static_cast<double>(a.images) * static_cast<double>(a.points) * (taps * taps * (a.spatial == 3 ? taps : 1));
}
constexpr double gathered_entries(const RoiAlignArgs& a) {
  return 4.0 * static_cast<double>(a.regions) * a.bins[0] * a.bins[1] * a.samples * a.samples;
}
constexpr long long gathered_places(const GridSampleArgs& a) { return a.images * a.size[0] * a.size[1] * a.size[2]; }
constexpr long long gathered_places(const RoiAlignArgs& a) { return a.images * a.size[0] * a.size[1]; }

struct SampleTable {
  void (*grid_sample)(const GridSampleArgs& args, Executor& executor);
  void (*grid_sample_input_grad)(const GridSampleArgs& args, Executor& executor);
  void (*grid_sample_grid_grad)(const GridSampleArgs& args, Executor& executor);
  void (*roi_align)(const RoiAlignArgs& args, Executor& executor);
  void (*roi_align_input_grad)(const RoiAlignArgs& args, Executor& executor);
};

const SampleTable& sample_table();

#define TESSERA_SAMPLE_TABLE(isa)        \
  namespace isa {                        \
  extern const SampleTable sample_table; \
  }
TESSERA_SAMPLE_TABLE(baseline)
TESSERA_SAMPLE_TABLE(avx2)
TESSERA_SAMPLE_TABLE(avx512)
#undef TESSERA_SAMPLE_TABLE

}  // namespace tessera::TESSERA_KERNELS
