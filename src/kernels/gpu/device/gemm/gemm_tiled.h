// Matrix products in tiles: operands of three of the four orientations, sums in f32.
#pragma once
#include "gemm.h"
#include "tile/arch/gpu/gemm.h"
#if defined(__HIP__)
#include "tile/arch/cdna/gemm.h"
#else
#include "tile/arch/sm80/gemm.h"
#endif

namespace tessera::gpu_kernels {

// Kinds of products: the operands' type, the tiles, their pipeline, and how many big blocks a multiprocessor must hold.
#if defined(__HIP__)
template <class Element>
struct HalfProduct {
  using T = Element;
  using Big = tile::Choice<128, 128, 32, 4, 2>;
  using Small = tile::Choice<64, 64, 32, 4, 2>;
  template <class A, class B, class C>
  using Pipeline = tile::cdna::Gemm<A, B, C>;
  static constexpr int blocks = 1;
};
struct FloatProduct {
  using T = float;
  using Big = tile::Choice<128, 128, 16, 4, 2>;
  using Small = tile::Choice<64, 64, 16, 4, 2>;
  template <class A, class B, class C>
  using Pipeline = tile::cdna::Gemm<A, B, C>;
  static constexpr int blocks = 1;
};
inline constexpr int tile_warp_size = tile::cdna::wave_size;
template <class Pipeline>
inline constexpr bool meets_no_bank_twice = Pipeline::write_conflicts == 1;
#else
template <class Element>
struct HalfProduct {
  using T = Element;
  using Big = tile::Choice<128, 128, 32, 4, 4>;
  using Small = tile::Choice<64, 64, 32, 4, 4>;
  template <class A, class B, class C>
  using Pipeline = tile::sm80::Gemm<A, B, C>;
  static constexpr int blocks = 1;
};
struct FloatProduct {
  using T = float;
  using Big = tile::Choice<128, 128, 16, 8, 4>;
  using Small = tile::Choice<64, 64, 16, 4, 4>;
  template <class A, class B, class C>
  using Pipeline = tile::sm80::Gemm<A, B, C>;
  static constexpr int blocks = 2;
};
struct Tf32Product {
  using T = float;
  using Big = tile::Choice<128, 128, 32, 4, 3>;
  using Small = tile::Choice<64, 64, 32, 4, 3>;
  template <class A, class B, class C>
  using Pipeline = tile::sm80::Gemm<A, B, C, tile::sm80::Floats::tf32>;
  static constexpr int blocks = 1;
};
inline constexpr int tile_warp_size = tile::sm80::warp_size;
template <class Pipeline>
inline constexpr bool meets_no_bank_twice = true;  // cp.async writes whole chunks
#endif
template <class C>
inline constexpr int tile_threads = C::config.warps* tile_warp_size;

struct TileGrid {
  int down, across, tiles;  // tiles of one product
};

/// use(sums, row, column) for four neighbouring sums at a time, all of the block's tile. The sums go through shared
/// memory, some rows at a time. Called by all threads; `slab` holds Pipeline::shared_bytes that nobody uses any more.
template <class Pipeline, class Use>
TESSERA_DEVICE void each_lanes(const Pipeline& pipeline, float* slab, const Use& use) {
  using Sums = typename Pipeline::Sums;
  constexpr int width = Pipeline::config.tile_n, height = Sums::down * Sums::atom_m;
  constexpr int held = Sums::layout().registers() / Sums::atoms_m;
  const auto place = [](int i, int j) { return i * width + (j ^ i % 4 * 8); };  // four rows meet all banks
  static_assert(width * height % (Pipeline::threads * 4) == 0, "all threads take part in each turn");
  const auto at = tile::thread_coords<Sums>(tile::thread_in_block());
  const int part = at[0] / Sums::rows, inner = at[0] % Sums::rows;
#pragma unroll 1
  for (int now = 0; now < Sums::atoms_m; ++now) {
    tile::unroll<Sums::atoms_m>([&](auto atom) {
      if (now != atom) return;
      tile::unroll<held>([&](auto r) {
        constexpr auto c = tile::register_coords<Sums>(atom * held + r);
        slab[place(part * Sums::atom_m + inner + c[0] - atom * Sums::atom_m, at[1] + c[1])] =
            pipeline.sum(atom * held + r);
      });
    });
    tile::sync_block();
#pragma unroll 1
    for (int e = tile::thread_in_block() * 4; e < width * height; e += Pipeline::threads * 4) {
      const int i = e / width, j = e % width;
      const auto sums = *reinterpret_cast<const Pack<float, 4>*>(slab + place(i, j));
      Lanes lanes;
      tile::unroll<4>([&](auto l) { lanes.v[l] = sums.lane[l]; });
      use(lanes, i / Sums::atom_m * Sums::rows + now * Sums::atom_m + i % Sums::atom_m, j);
    }
    tile::sync_block();
  }
}

template <class T, bool Transposed>
TESSERA_DEVICE auto tile_operand(const MatrixArg& m, i64 offset, i64 rows, i64 columns) {
  return tile::matrix<T, 16 / sizeof(T), Transposed>(static_cast<const T*>(m.data) + offset, rows, columns,
                                                     Transposed ? m.column : m.row);
}

template <class Product, class C, bool TransposedA, bool TransposedB>
TESSERA_KERNEL(tile_threads<C>, Product::blocks)
void tiled_kernel(const GemmArgs args, const TileGrid grid, const GemmCut cut) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  using T = typename Product::T;
  i64 block = tile::block_in_grid();
  const tile::TilePlace at =
      tile::tile_of_block(C::config.schedule, static_cast<int>(block % grid.tiles), grid.down, grid.across);
  const int row = at.row * C::config.tile_m, column = at.column * C::config.tile_n;
  block /= grid.tiles;
  const i64 part = block % cut.parts, batch = block / cut.parts;
  const BatchPlace place(args, batch);
  const i64 begin = part * cut.part_depth, end = tile::min<i64>(begin + cut.part_depth, args.k);

  const auto a = tile_operand<T, TransposedA>(args.a, place.offset(args.a), args.m, args.k);
  const auto b = tile::by_column(tile_operand<T, TransposedB>(args.b, place.offset(args.b), args.k, args.n));
  using Pipeline =
      typename Product::template Pipeline<tile::remove_cvref_t<decltype(a)>, tile::remove_cvref_t<decltype(b)>, C>;
  static_assert(meets_no_bank_twice<Pipeline>);
  Pipeline pipeline;
  if constexpr (on_card<T>)
    pipeline.run(a, b, row, column, static_cast<int>(begin), static_cast<int>(end), reinterpret_cast<T*>(shared));

  const LaneEpilogue epilogue(args, place, part * cut.part_stride);
  LineSums<float, C::config.tile_n, Pipeline::threads> lines(args, cut.lines, batch, at.row, at.column);
  float* const slab = reinterpret_cast<float*>(shared);
  each_lanes(pipeline, slab, [&](const Lanes& sums, int i, int j) {
    const i64 left = args.n - column - j;
    const int count = row + i < args.m && left > 0 ? static_cast<int>(tile::min<i64>(left, 4)) : 0;
    Lanes stored(0.0f);
    if (count > 0) stored = epilogue(sums, row + i, column + j, count);
    lines.add(stored, row + i, count);
  });
  lines.finish(slab, column);
}

template <class Product, class C, bool TransposedA, bool TransposedB>
void launch_tiled(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  constexpr tile::Config config = C::config;
  constexpr int bytes = sizeof(typename Product::T);
  constexpr int shared = config.stages * (config.tile_m + config.tile_n) * config.tile_k * bytes;
  constexpr auto kernel = tiled_kernel<Product, C, TransposedA, TransposedB>;
  if (shared > 48 * 1024)
    (void)TESSERA_RT(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                       TESSERA_RT(FuncAttributeMaxDynamicSharedMemorySize), shared);
  const int down = static_cast<int>(tile::ceil_div<i64>(args.m, config.tile_m)),
            across = static_cast<int>(tile::ceil_div<i64>(args.n, config.tile_n));
  const TileGrid grid{down, across, down * across};
  launch("gemm", kernel, grid.tiles * batch_count(args) * cut.parts, tile_threads<C>, shared, executor, args, grid,
         cut);
}

template <class Product, bool TransposedA, bool TransposedB>
void run_tiled(const GemmArgs& args, const GemmCut& cut, Executor& executor) {
  const auto run = cut.big ? launch_tiled<Product, typename Product::Big, TransposedA, TransposedB>
                           : launch_tiled<Product, typename Product::Small, TransposedA, TransposedB>;
  run(args, cut, executor);
}

}  // namespace tessera::gpu_kernels
