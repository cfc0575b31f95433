// Layer and RMS norm along rows, with their gradients, whoever holds the rows.
#pragma once
#include "tile/arch/gpu/row_tile.h"

namespace tessera::gpu_kernels {

using tile::map_tile, tile::reduce_tile, tile::store_tile;

/// (x - mean) rstd. Halves have no digits to lose, and few instructions an element to spare: -mean rstd is the row's.
template <class T, class C>
TESSERA_DEVICE C normal(C x, C mean, C rstd) {
  if constexpr (sizeof(T) == 2) return tile::fma(x, rstd, -mean * rstd);
  else return (x - mean) * rstd;
}

/// y = (x - mean) rstd weight + bias.
template <class T, class Y = T, class Weight = const T*>
struct LayerNorm {
  using C = tile::compute_t<T>;
  static constexpr int registers = 64;  // of a thread, at most
  tile::i64 count, n;
  bool rms;
  C eps, share;  // share: 1 / n
  tile::Rows<Y> to;
  tile::Rows<const T> x;
  Weight weight, bias;
  C *mean, *rstd;

  template <class Holder>
  TESSERA_DEVICE void run(Holder& rows) const {
    auto v = rows.tile(x);
    const auto w = rows.columns(weight, C(1)), b = rows.columns(bias, C(0));
    while (rows.load(v)) normalize(rows, v, w, b);
  }
  template <class Holder, class X, class W>
  TESSERA_DEVICE void normalize(Holder& rows, const X& v, const W& w, const W& b) const {
    const auto moments = tile::moments_tile(rows, v, rms);
    const auto r =
        map_tile([&](const auto& m) { return C(1) / tile::sqrt(tile::fma(m.squares, share, eps)); }, moments);
    const auto m = map_tile([](const auto& m) { return m.mean; }, moments);
    if (!rms) store_tile(rows, mean, m);
    store_tile(rows, rstd, r);
    const auto y = [](C v, C m, C r, C w, C b) { return tile::fma(normal<T>(v, m, r), w, b); };
    store_tile(rows, to, map_tile(y, v, m, r, w, b));
  }
};

/// The same of x + branch + shift, which is kept, or of x.
template <class T, class Y, class Weight>
struct SumNorm : LayerNorm<T, Y, Weight> {
  tile::Rows<T> sum;
  tile::Rows<const Y> branch;
  Weight shift;

  template <class Holder>
  TESSERA_DEVICE void run(Holder& rows) const {
    auto v = rows.tile(this->x);
    auto more = rows.late_tile(branch);
    const auto w = rows.columns(this->weight, 1.0f), b = rows.columns(this->bias, 0.0f);
    const auto s = rows.columns(shift, 0.0f);
    const auto add = [](float v, float more, float s) { return v + (more + tile::convert_element<float>(Y(s))); };
    while (rows.load(v, more)) {
      const auto all = sum.data ? rows.hold(map_tile(add, v, more, s)) : rows.hold(v);
      store_tile(rows, sum, all);
      this->normalize(rows, all, w, b);
    }
  }
};

/// dx, and what rows add to the gradients of weights and biases. Further: an addend to dx, and with `branches` dx once
/// more in another type and its sums.
template <class T, class Y = T, class Weight = const T*, bool adds = false, bool branches = false>
struct NormBackward {
  using C = tile::compute_t<T>;
  static constexpr int registers = 128;
  tile::i64 count, n;
  tile::Rows<T> to;
  tile::Rows<Y> branch;
  tile::Rows<const Y> dy;
  tile::Rows<const T> x, addend;
  Weight weight;
  const C *mean, *rstd;  // no mean: RMS norm
  C share;               // 1 / n
  C* partial;            // [groups of rows][sums][n]
  int sums;              // that are wanted: none; of weights; of biases; and of dx

  template <class Holder>
  TESSERA_DEVICE void run(Holder& rows) const {
    auto d = rows.tile(dy);
    auto v = rows.tile(x);
    const auto w = rows.columns(weight, C(1));
    auto m = rows.values(mean, C(0)), r = rows.values(rstd, C(1));
    auto more = rows.late_tile(addend);
    auto dw = rows.template column_sums<C>(), db = dw, sum = dw;
    const auto fold = [](tile::Sums<C>& s, C d, C v, C w, C& dw, C& db, C m, C r) {
      const C x = normal<T>(v, m, r), g = d * w;
      s = {s.first + g, tile::fma(g, x, s.second)};
      dw = tile::fma(d, x, dw), db += d;
    };
    const auto dx = [](C d, C v, C w, C m, C r, C less, C slope) {  // rstd (d w - less) + slope (v - mean)
      if constexpr (sizeof(T) == 2) return tile::fma(d * w, r, tile::fma(v, slope, -m * slope - less * r));
      else return tile::fma(d * w - less, r, (v - m) * slope);
    };
    while (rows.load(d, v, m, r, more)) {
      const auto s = reduce_tile<tile::Sums<C>>(rows, fold, d, v, w, dw, db, m, r);
      const auto less = map_tile([&](const auto& s) { return mean ? s.first * share : C(0); }, s);
      const auto slope = map_tile([&](const auto& s, C r) { return -s.second * share * r * r; }, s, r);
      const auto g = map_tile(dx, d, v, w, m, r, less, slope);
      if constexpr (branches) {
        const auto all = addend.data ? rows.hold(map_tile(tile::Add{}, g, more)) : rows.hold(g);
        tile::add_tile(rows, sum, all);
        store_tile(rows, branch, all);
        store_tile(rows, to, all);
      } else if constexpr (adds) {
        store_tile(rows, to, map_tile(tile::Add{}, g, more));
      } else {
        store_tile(rows, to, g);
      }
    }
    if constexpr (branches) rows.store_sums(partial, sums, dw, db, sum);
    else rows.store_sums(partial, sums, dw, db);
  }
};

}  // namespace tessera::gpu_kernels
