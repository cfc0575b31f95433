// Softmax and log-softmax along rows, with their gradients, whoever holds the rows.
#pragma once
#include "tile/arch/gpu/row_tile.h"

namespace tessera::gpu_kernels {

using tile::map_tile, tile::reduce_tile, tile::store_tile;

template <class T>
struct Softmax {
  using C = tile::compute_t<T>;
  static constexpr int registers = 64;  // of a thread, at most
  tile::i64 count, n;
  bool log;
  tile::Rows<T> to;
  tile::Rows<const T> x;

  template <class Holder>
  TESSERA_DEVICE void run(Holder& rows) const {
    auto v = rows.tile(x);
    while (rows.load(v)) {
      const auto e = tile::exponents_tile(rows, v);
      const auto shift = map_tile([&](const auto& e) { return log ? e.shift() + tile::log(e.sum) : e.shift(); }, e);
      const auto scale = map_tile([](const auto& e) { return C(1) / e.sum; }, e);
      const auto y = [&](C v, C shift, C scale) { return log ? v - shift : tile::fast_exp(v - shift) * scale; };
      store_tile(rows, to, map_tile(y, v, shift, scale));
    }
  }
};

/// Softmax: dx = y (dy - sum(dy y)); log-softmax: dx = dy - exp(y) sum(dy).
template <class T>
struct SoftmaxBackward {
  using C = tile::compute_t<T>;
  static constexpr int registers = sizeof(T) == 2 ? 64 : 128;
  tile::i64 count, n;
  bool log;
  tile::Rows<T> to;
  tile::Rows<const T> dy, y;

  template <class Holder>
  TESSERA_DEVICE void run(Holder& rows) const {
    auto g = rows.tile(dy), v = rows.tile(y);
    while (rows.load(g, v)) {
      const auto sum = reduce_tile<C>(
          rows, [&](C& sum, C g, C v) { sum = log ? sum + g : tile::fma(g, v, sum); }, g, v);
      const auto dx = [&](C g, C v, C sum) { return log ? g - tile::fast_exp(v) * sum : v * (g - sum); };
      store_tile(rows, to, map_tile(dx, g, v, sum));
    }
  }
};

}  // namespace tessera::gpu_kernels
