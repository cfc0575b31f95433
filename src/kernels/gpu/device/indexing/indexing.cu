// Reading at computed places, one-hot vectors and ranges.
#include "kernels/args/gpu/indexing.h"

#include "kernels/gpu/device/elementwise/by_size.h"
#include "kernels/gpu/device/elementwise/loops.h"
#include "kernels/gpu/device/runtime/fault.h"

namespace tessera::gpu_kernels {
namespace {

// ---- take: operands are out, x, index

struct TakeWork {
  Nest<3> nest;
  void* data[3];
  Places places;
  i64 step;
  bool vectors;
};

template <class T>
TESSERA_KERNEL(256)
void take_kernel(const TakeWork work) {
  constexpr int width = 16 / sizeof(T);
  using Packed = Pack<T, width>;
  T* to = static_cast<T*>(work.data[0]);
  const T* from = static_cast<const T*>(work.data[1]);
  if (work.vectors) {
    for (i64 i = first_index(); i < work.nest.total / width; i += index_step()) {
      i64 at[3];
      work.nest.locate(i, width, at);
      const i64 place = work.places.at(at[2]);
      Packed out{};
      if (place >= 0) out = *reinterpret_cast<const Packed*>(from + at[1] + place * work.step);
      *reinterpret_cast<Packed*>(to + at[0]) = out;
    }
    return;
  }
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[3];
    work.nest.locate(i, 1, at);
    const i64 place = work.places.at(at[2]);
    to[at[0]] = place < 0 ? T(0) : from[at[1] + place * work.step];
  }
}

/// Whether whole vectors follow each other in out and x, for one index.
bool takes_vectors(const TakeWork& work, int width, int bytes) {
  const int last = work.nest.rank - 1;
  return last >= 0 && work.nest.strides[0][last] == 1 && work.nest.strides[1][last] == 1 &&
         work.nest.strides[2][last] == 0 && work.step % width == 0 && work.nest.takes_vectors(width, bytes, work.data);
}

template <class T>
void launch_take(const TakeArgs& args, Executor& executor) {
  constexpr int width = 16 / sizeof(T);
  TakeWork work{make_nest<3>(args.rank, args.lengths, {&args.out, &args.x, &args.index}),
                {args.out.data, args.x.data, args.index.data},
                Places(args.index, args.bound, args.op, executor),
                args.step,
                false};
  work.vectors = takes_vectors(work, width, sizeof(T));
  const i64 items = work.vectors ? work.nest.total / width : work.nest.total;
  launch("take", take_kernel<T>, grid_for(items, 256, executor), 256, 0, executor, work);
}

// Elements only move: they are taken as integers of their size.
void take(const TakeArgs& args, Executor& executor) {
  with_size(args.x.type, [&](auto type) { launch_take<typename decltype(type)::type>(args, executor); });
}

// ---- one_hot

TESSERA_KERNEL(256)
void one_hot_kernel(const Nest<1> nest, const Places places, i64 classes, i64* out) {
  for (i64 i = first_index(); i < nest.total * classes; i += index_step()) {
    const i64 row = i / classes;
    i64 at[1];
    nest.locate(row, 1, at);
    out[i] = places.at(at[0]) == i - row * classes;
  }
}

void one_hot(const OneHotArgs& args, Executor& executor) {
  const auto nest = make_nest<1>(args.rank, args.lengths, {&args.index});
  launch("one_hot", one_hot_kernel, grid_for(nest.total * args.classes, 256, executor), 256, 0, executor, nest,
         Places(args.index, args.classes, args.op, executor), args.classes, args.out);
}

// ---- ranges

template <class T>
TESSERA_KERNEL(256)
void range_kernel(i64 count, T* out, double start, double step) {
  for (i64 i = first_index(); i < count; i += index_step())
    out[i] = tile::convert_element<T>(start + static_cast<double>(i) * step);
}

void range(const RangeArgs& args, Executor& executor) {
  with_any(args.type, [&](auto type) {
    using T = typename decltype(type)::type;
    launch("arange", range_kernel<T>, grid_for(args.count, 256, executor), 256, 0, executor, args.count,
           static_cast<T*>(args.out), args.start, args.step);
  });
}

}  // namespace

long long sum_rows_bytes(long long count, long long rows);
void sum_rows(const SumRowsArgs& args, Executor& executor);

const IndexTable* device_index_table() {
  static const IndexTable table{take, sum_rows_bytes, sum_rows, one_hot};
  return &table;
}
const CreationTable* device_creation_table() {
  static const CreationTable table{range};
  return &table;
}

}  // namespace tessera::gpu_kernels
