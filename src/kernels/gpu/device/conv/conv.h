// Convolutions as products of matrices that are never made: each dim of such a matrix runs over up to three dims of a
// tensor, and its elements are found from those.
#pragma once
#include "kernels/gpu/device/runtime/gpu.h"
#include "kernels/shared/epilogue.h"

namespace tessera::gpu_kernels {

using tile::Inverse;

/// Three numbers that count one dim of a matrix, the last one fastest. Each moves the place in memory by a stride, and
/// in an image down and across.
struct Digits {
  i64 length[3] = {1, 1, 1};
  i64 stride[3] = {};
  int down[3] = {}, across[3] = {};
  Inverse inverse[2];  // of the last lengths, for matrix cores

  i64 count() const { return length[0] * length[1] * length[2]; }
};

/// The left or right matrix of a product, as [edge, depth] where depth is summed over. Elements outside the image, or
/// at places in it that `divisor` does not divide, are zero.
struct ImplicitMatrix {
  const void* data;
  Digits edge, depth;
  i64 group_stride = 0;
  int top = 0, left = 0;  // the first place in the image
  i64 size[2] = {1, 1}, stride[2] = {};
  int divisor[2] = {1, 1};
  Inverse inverse[2];  // of divisors, for matrix cores
  bool along_depth;    // neighbours along depth are closer in memory than along edge
  // Of a pack of neighbours, how many lie along a row of the image, and how many places count from a tap's first one
  // on.
  int pack = 1, run = 1 << 30;
};

/// Neighbours that are fetched at once where they are neighbours in memory, too; otherwise elements come one by one.
inline constexpr int image_pack = 4;

/// c = a b for each group, c being [rows, columns] of a tensor. With `splits` > 1 the sum over depth is cut into parts,
/// which are written to `partial` [splits, groups, rows, columns].
struct ImplicitGemm {
  ImplicitMatrix a, b;
  void* c;
  Scalar type;  // of all in memory
  i64 c_group, c_row;
  Digits c_column;
  i64 c_run;         // where places of a row fill packs, those from here on are not there
  const void* bias;  // one for each row of each group
  Activation activation;
  i64 rows, columns, depth, groups;
  i64 splits, split_depth;
  void* partial;
  bool in_packs;  // both operands are fetched in packs: a along depth, b along depth or rows of the image
};

/// Runs a product on matrix cores, where sizes, offsets within a group and the number of tiles stay below 2^31.
void implicit_mma_f16(const ImplicitGemm& problem, Executor& executor);
void implicit_mma_bf16(const ImplicitGemm& problem, Executor& executor);
void implicit_mma_f32(const ImplicitGemm& problem, Executor& executor);

/// index = quotient * by + rest; small numbers are divided faster.
struct Division {
  i64 quotient, rest;
};
TESSERA_HD Division divide(i64 index, i64 by) {
  if (((index | by) >> 32) == 0) {
    const u32 quotient = static_cast<u32>(index) / static_cast<u32>(by);
    return {quotient, static_cast<i64>(static_cast<u32>(index) - quotient * static_cast<u32>(by))};
  }
  return {index / by, index % by};
}

/// Where an element lies: its offset without that of the image, and its place in the image.
struct ImagePlace {
  i64 offset;
  int row, column;
};

TESSERA_HD ImagePlace place_of(const Digits& d, i64 index) {
  const Division last = divide(index, d.length[2]), middle = divide(last.quotient, d.length[1]);
  const i64 at[3] = {middle.quotient, middle.rest, last.rest};
  ImagePlace place{0, 0, 0};
  tile::unroll<3>([&](auto i) {
    place.offset += at[i] * d.stride[i];
    place.row += static_cast<int>(at[i]) * d.down[i];
    place.column += static_cast<int>(at[i]) * d.across[i];
  });
  return place;
}

/// Adds up the parts of a split sum, in their order.
template <class T, class Memory>
TESSERA_KERNEL(256)
void join_kernel(const ImplicitGemm p) {
  const i64 elements = p.groups * p.rows * p.columns;
  for (i64 i = first_index(); i < elements; i += index_step()) {
    T sum(0);
    for (i64 split = 0; split < p.splits; ++split) sum += static_cast<const T*>(p.partial)[split * elements + i];
    const Division line = divide(i, p.columns), group = divide(line.quotient, p.rows);
    Memory* c = static_cast<Memory*>(p.c) + group.quotient * p.c_group + group.rest * p.c_row;
    c[place_of(p.c_column, line.rest).offset] = tile::convert_element<Memory>(sum);
  }
}

template <class T, class Memory>
void join_splits(const ImplicitGemm& p, Executor& executor) {
  if (p.splits == 1) return;
  launch("convolution", join_kernel<T, Memory>, grid_for(p.groups * p.rows * p.columns, 256, executor), 256, 0,
         executor, p);
}

}  // namespace tessera::gpu_kernels
