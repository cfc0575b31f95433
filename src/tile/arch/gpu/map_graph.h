// A function of elements whose kernel is written and compiled at run time: the loop.
#pragma once
#include "../../kernels/functors.h"
#include "block.h"
#include "map_graph_args.h"

TESSERA_TILE_BEGIN

/// Where an element lies in each operand, by integers that hold it. `Flat`: there is one dim.
template <bool Flat, class I, int operands>
TESSERA_DEVICE void locate(const MapGraphArgs& args, I element, I (&at)[operands]) {
  if constexpr (Flat) {
    unroll<operands>([&](auto k) { at[k] = element * static_cast<I>(args.operand[k].strides[0]); });
  } else {
    unroll<operands>([&](auto k) { at[k] = 0; });
    for (int d = args.rank - 1; d >= 0; --d) {
      const I length = static_cast<I>(args.lengths[d]);
      I rest = 0;
      if (d > 0) {
        if constexpr (sizeof(I) == 4) rest = args.inverses[d](element);
        else rest = element / length;
      }
      const I here = element - rest * length;
      unroll<operands>([&](auto k) { at[k] += here * static_cast<I>(args.operand[k].strides[d]); });
      element = rest;
    }
  }
}

/// Element has `operands`, load(args, at) and store(args, at). A thread has several under way.
template <class Element, bool Flat, class I>
TESSERA_DEVICE void map_elements_by(const MapGraphArgs& args) {
  constexpr int each = 4, threads = 256;
  const I step = static_cast<I>(blocks_in_grid()) * (each * threads), total = static_cast<I>(args.total);
  for (I begin = static_cast<I>(block_in_grid()) * (each * threads) + thread_in_block(); begin < total; begin += step) {
    Element element[each];
    I at[each][Element::operands];
    unroll<each>([&](auto j) {
      const I i = begin + j * threads;
      if (i >= total) return;
      locate<Flat>(args, i, at[j]);
      element[j].load(args, at[j]);
    });
    unroll<each>([&](auto j) {
      if (begin + j * threads < total) element[j].store(args, at[j]);
    });
  }
}
template <class Element, bool Flat>
TESSERA_DEVICE void map_elements(const MapGraphArgs& args) {
  if (args.small) map_elements_by<Element, Flat, i32>(args);
  else map_elements_by<Element, Flat, i64>(args);
}

TESSERA_TILE_END
