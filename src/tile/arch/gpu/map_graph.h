// A function of elements whose kernel is written and compiled at run time: the loop.
#pragma once
#include "../../kernels/functors.h"
#include "block.h"
#include "map_graph_args.h"

TESSERA_TILE_BEGIN

/// Where an element lies in each operand. `Flat`: there is one dim.
template <bool Flat, int operands>
TESSERA_DEVICE void locate(const MapGraphArgs& args, i64 element, i64 (&at)[operands]) {
  if constexpr (Flat) {
    unroll<operands>([&](auto k) { at[k] = element * args.operand[k].strides[0]; });
  } else {
    unroll<operands>([&](auto k) { at[k] = 0; });
    for (int d = args.rank - 1; d >= 0; --d) {
      i64 rest = 0;
      if (d > 0) rest = args.small ? args.inverses[d](static_cast<int>(element)) : element / args.lengths[d];
      const i64 here = element - rest * args.lengths[d];
      unroll<operands>([&](auto k) { at[k] += here * args.operand[k].strides[d]; });
      element = rest;
    }
  }
}

/// Element has `operands`, load(args, at) and store(args, at). A thread has several under way.
template <class Element, bool Flat>
TESSERA_DEVICE void map_elements(const MapGraphArgs& args) {
  constexpr int each = 4, threads = 256;
  const i64 step = i64{blocks_in_grid()} * (each * threads);
  for (i64 begin = block_in_grid() * (each * threads) + thread_in_block(); begin < args.total; begin += step) {
    Element element[each];
    i64 at[each][Element::operands];
    unroll<each>([&](auto j) {
      const i64 i = begin + j * threads;
      if (i >= args.total) return;
      locate<Flat>(args, i, at[j]);
      element[j].load(args, at[j]);
    });
    unroll<each>([&](auto j) {
      if (begin + j * threads < args.total) element[j].store(args, at[j]);
    });
  }
}

TESSERA_TILE_END
