// Matrix products on matrix cores: f16 and bf16 operands of any of the four orientations, sums in f32.
#pragma once
#include "gemm.h"
#include "loops.h"
#include "tile/arch/gpu/gemm.h"
#if defined(__HIP__)
#include "tile/arch/cdna/gemm.h"
#else
#include "tile/arch/sm80/gemm.h"
#endif

namespace tessera::gpu_kernels {

#if defined(__HIP__)
using MmaBig = tile::Choice<128, 128, 32, 4, 2>;
using MmaSmall = tile::Choice<64, 64, 32, 4, 2>;
template <class A, class B, class C>
using MmaPipeline = tile::cdna::Gemm<A, B, C>;
inline constexpr int mma_warp_size = tile::cdna::wave_size;
#else
using MmaBig = tile::Choice<128, 128, 32, 4, 4>;
using MmaSmall = tile::Choice<64, 64, 32, 4, 4>;
template <class A, class B, class C>
using MmaPipeline = tile::sm80::Gemm<A, B, C>;
inline constexpr int mma_warp_size = tile::sm80::warp_size;
#endif
template <class C>
inline constexpr int mma_threads = C::config.warps* mma_warp_size;

struct MmaGrid {
  int down, across, tiles;  // tiles of one product
};

/// Four neighbours in a row.
using Lanes = tile::Vec<float, 4>;

/// A matrix of the batch, of f32, f16 or bf16, of which four neighbours are read or written at once.
class LaneMatrix {
 public:
  TESSERA_DEVICE LaneMatrix(const MatrixArg& m, const BatchPlace& place)
      : data_(static_cast<char*>(m.data)), type_(m.type), row_(m.row), column_(m.column) {
    const int bytes = type_ == Scalar::f32 ? 4 : 2;
    if (data_) data_ += place.offset(m) * bytes;
    vectors_ = column_ == 1 && reinterpret_cast<u64>(data_) % (4 * bytes) == 0 && row_ % 4 == 0;
  }
  TESSERA_DEVICE bool exists() const { return data_ != nullptr; }

  /// Elements j to j + 3 of row i, of which `count` exist.
  TESSERA_DEVICE Lanes load(i64 i, i64 j, int count) const {
    if (type_ == Scalar::f32) return load_as<float>(i, j, count);
    return type_ == Scalar::f16 ? load_as<f16>(i, j, count) : load_as<bf16>(i, j, count);
  }
  TESSERA_DEVICE void store(i64 i, i64 j, int count, const Lanes& value) const {
    if (type_ == Scalar::f32) store_as<float>(i, j, count, value);
    else if (type_ == Scalar::f16) store_as<f16>(i, j, count, value);
    else store_as<bf16>(i, j, count, value);
  }

 private:
  template <class T>
  TESSERA_DEVICE T* at(i64 i, i64 j) const {
    return reinterpret_cast<T*>(data_) + i * row_ + j * column_;
  }
  template <class T>
  TESSERA_DEVICE Lanes load_as(i64 i, i64 j, int count) const {
    const T* from = at<T>(i, j);
    Lanes lanes(0.0f);
    if (vectors_ && count == 4) {
      const auto pack = *reinterpret_cast<const Pack<T, 4>*>(from);
      tile::unroll<4>([&](auto l) { lanes.v[l] = tile::convert_element<float>(pack.lane[l]); });
    } else {
      tile::unroll<4>([&](auto l) {
        if (l < count) lanes.v[l] = tile::convert_element<float>(from[l * column_]);
      });
    }
    return lanes;
  }
  template <class T>
  TESSERA_DEVICE void store_as(i64 i, i64 j, int count, const Lanes& value) const {
    T* to = at<T>(i, j);
    Pack<T, 4> pack;
    tile::unroll<4>([&](auto l) { pack.lane[l] = tile::convert_element<T>(value.v[l]); });
    if (vectors_ && count == 4) {
      *reinterpret_cast<Pack<T, 4>*>(to) = pack;
    } else {
      tile::unroll<4>([&](auto l) {
        if (l < count) to[l * column_] = pack.lane[l];
      });
    }
  }

  char* data_;
  Scalar type_;
  i64 row_, column_;
  bool vectors_;
};

/// What becomes of four neighbouring sums.
class LaneEpilogue {
 public:
  TESSERA_DEVICE LaneEpilogue(const GemmArgs& args, const BatchPlace& place)
      : c_(args.c, place),
        addend_(args.addend, place),
        bias_(args.bias, place),
        slope_(args.slope, place),
        alpha_(static_cast<float>(args.alpha)),
        beta_(static_cast<float>(args.beta)),
        activation_{args.activation} {}

  TESSERA_DEVICE void operator()(Lanes t, i64 i, i64 j, int count) const {
    t = t * Lanes(alpha_);
    if (addend_.exists()) t = tile::fma(Lanes(beta_), addend_.load(i, j, count), t);
    if (bias_.exists()) t = t + bias_.load(i, j, count);
    if (activation_.kind != Activation::none || slope_.exists()) {
      const auto both = activation_.both(t);
      if (slope_.exists()) slope_.store(i, j, count, both.slope);
      t = both.value;
    }
    c_.store(i, j, count, t);
  }

 private:
  LaneMatrix c_, addend_, bias_, slope_;
  float alpha_, beta_;
  AnyActivation activation_;
};

/// use(sums, row, column) for four neighbouring sums at a time, all of the block's tile. The sums go through shared
/// memory, some rows at a time. Called by all threads; `slab` holds Pipeline::shared_bytes that nobody uses any more.
template <class Pipeline, class Use>
TESSERA_DEVICE void each_lanes(const Pipeline& pipeline, float* slab, const Use& use) {
  using Sums = typename Pipeline::Sums;
  constexpr int width = Pipeline::config.tile_n, height = Sums::down * Sums::atom_m;
  constexpr int held = Sums::layout().registers() / Sums::atoms_m;
  const auto place = [](int i, int j) { return i * width + (j ^ i % 4 * 8); };  // four rows meet all banks
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

template <class T, int Width, bool Transposed>
TESSERA_DEVICE auto mma_operand(const MatrixArg& m, i64 offset, i64 rows, i64 columns) {
  return tile::matrix<T, Width, Transposed>(static_cast<const T*>(m.data) + offset, rows, columns,
                                            Transposed ? m.column : m.row);
}

template <class T, class C, int Width, bool TransposedA, bool TransposedB>
TESSERA_KERNEL(mma_threads<C>)
void mma_kernel(const GemmArgs args, const MmaGrid grid) {
  extern __shared__ __attribute__((aligned(128))) char shared[];
  const i64 block = tile::block_in_grid();
  const BatchPlace place(args, block / grid.tiles);
  const tile::TilePlace at =
      tile::tile_of_block(C::config.schedule, static_cast<int>(block % grid.tiles), grid.down, grid.across);
  const int row = at.row * C::config.tile_m, column = at.column * C::config.tile_n;

  const auto a = mma_operand<T, Width, TransposedA>(args.a, place.offset(args.a), args.m, args.k);
  const auto b = tile::by_column(mma_operand<T, Width, TransposedB>(args.b, place.offset(args.b), args.k, args.n));
  using Pipeline = MmaPipeline<tile::remove_cvref_t<decltype(a)>, tile::remove_cvref_t<decltype(b)>, C>;
  Pipeline pipeline;
  pipeline.run(a, b, row, column, 0, static_cast<int>(args.k), reinterpret_cast<T*>(shared));

  const LaneEpilogue epilogue(args, place);
  each_lanes(pipeline, reinterpret_cast<float*>(shared), [&](const Lanes& sums, int i, int j) {
    const i64 left = args.n - column - j;
    if (row + i < args.m && left > 0) epilogue(sums, row + i, column + j, static_cast<int>(tile::min<i64>(left, 4)));
  });
}

template <class C>
MmaGrid mma_grid(const GemmArgs& args) {
  const i64 down = tile::ceil_div<i64>(args.m, C::config.tile_m),
            across = tile::ceil_div<i64>(args.n, C::config.tile_n);
  return {static_cast<int>(down), static_cast<int>(across), static_cast<int>(down * across)};
}

template <class T, class C, int Width, bool TransposedA, bool TransposedB>
void launch_mma(const GemmArgs& args, Executor& executor) {
  constexpr tile::Config config = C::config;
  constexpr int shared = config.stages * (config.tile_m + config.tile_n) * config.tile_k * static_cast<int>(sizeof(T));
  constexpr auto kernel = mma_kernel<T, C, Width, TransposedA, TransposedB>;
  if (shared > 48 * 1024)
    (void)TESSERA_RT(FuncSetAttribute)(reinterpret_cast<const void*>(kernel),
                                       TESSERA_RT(FuncAttributeMaxDynamicSharedMemorySize), shared);
  const MmaGrid grid = mma_grid<C>(args);
  launch("gemm", kernel, grid.tiles * batch_count(args), mma_threads<C>, shared, executor, args, grid);
}

/// Big tiles where they occupy every multiprocessor. Operands that are not aligned are rare, and take one size.
template <class T, bool TransposedA, bool TransposedB>
void run_mma(const GemmArgs& args, bool aligned, Executor& executor) {
  const i64 big = mma_grid<MmaBig>(args).tiles * batch_count(args);
  if (!aligned) return launch_mma<T, MmaBig, 1, TransposedA, TransposedB>(args, executor);
  if (big < executor.multiprocessors) return launch_mma<T, MmaSmall, 8, TransposedA, TransposedB>(args, executor);
  launch_mma<T, MmaBig, 8, TransposedA, TransposedB>(args, executor);
}

}  // namespace tessera::gpu_kernels
