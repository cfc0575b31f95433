// Arrays over columns whose type only the call knows.
#pragma once
#include "norm.h"

namespace tessera::gpu_kernels {

/// Floats or halves in whole packs, `otherwise` where the array is missing.
struct AnyColumns {
  using Element = float;
  const void* data;
  Scalar type;
  float otherwise = 0;

  template <class H, class At>
  TESSERA_DEVICE Lanes<float, At::width> fetch(H, const At& at) const {
    Lanes<float, At::width> v;
    tile::unroll<At::width>([&](auto j) { v.x[j] = otherwise; });
    if (!data) return v;
    const bool is_f16 = type == Scalar::f16;
    if (type == Scalar::f32) read<float>(at.column, v, [](float x) { return x; });
    else
      read<u16>(at.column, v,
                [&](u16 x) { return is_f16 ? convert(tile::bit_cast<f16>(x)) : convert(tile::bit_cast<bf16>(x)); });
    return v;
  }
  template <class H, class At, class V>
  TESSERA_DEVICE const V& value(H, const At&, const V& fetched) const {
    return fetched;
  }

 private:
  using u16 = tile::u16;
  template <class T>
  static TESSERA_DEVICE float convert(T x) {
    return tile::convert_element<float>(x);
  }
  template <class T, int width, class Fn>
  TESSERA_DEVICE void read(i64 column, Lanes<float, width>& to, const Fn& fn) const {
    constexpr int few = tile::min(width, 16 / static_cast<int>(sizeof(T)));
    tile::unroll<width / few>([&](auto i) {
      const auto pack = *reinterpret_cast<const Pack<T, few>*>(static_cast<const T*>(data) + column + i * few);
      tile::unroll<few>([&](auto j) { to.x[i * few + j] = fn(pack.lane[j]); });
    });
  }
};

/// fn(Group, Int<width>, Int<held>, threads) for rows of whole packs of T that takes_columns(): the fewest columns a
/// thread.
template <class T, class Fn>
void with_blocks(i64 n, const Fn& fn) {
  constexpr tile::Int<16 / sizeof(T)> width;
  const auto threads = [&](int held) {
    return static_cast<int>(tile::ceil_div<i64>(n, width * held * team_lanes)) * team_lanes;
  };
  if (threads(1) <= 256) return fn(tile::BlockOf<256>{}, width, tile::Int<1>{}, threads(1));
  fn(tile::BlockOf<512>{}, width, tile::Int<sizeof(T) / 2>{}, threads(sizeof(T) / 2));
}

}  // namespace tessera::gpu_kernels
