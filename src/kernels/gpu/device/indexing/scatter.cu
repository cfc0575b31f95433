// Writing to computed places, in an order that is the same each time.
#include "kernels/args/gpu/indexing.h"
#include "kernels/gpu/device/elementwise/loops.h"
#include "kernels/gpu/device/runtime/fault.h"

namespace tessera::gpu_kernels {
namespace {

// ---- combining: a line is one thread's, so that it happens in order

struct ScatterWork {
  Nest<3> nest;  // out, index, source
  void* out;
  const void* source;
  Places places;
  i64 length, out_step, index_step, source_step;
};

struct Sum {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return a + b;
  }
};
struct Product {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return a * b;
  }
};
// NaN stays.
struct Largest {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return b > a || b != b ? b : a;
  }
};
struct Smallest {
  template <class C>
  TESSERA_DEVICE C operator()(C a, C b) const {
    return b < a || b != b ? b : a;
  }
};

template <class T, class Combine>
TESSERA_KERNEL(128)
void scatter_kernel(const ScatterWork work, const Combine combine) {
  using C = tile::compute_t<T>;
  for (i64 line = first_index(); line < work.nest.total; line += index_step()) {
    i64 at[3];
    work.nest.locate(line, 1, at);
    T* const to = static_cast<T*>(work.out) + at[0];
    const T* const from = static_cast<const T*>(work.source) + at[2];
    for (i64 i = 0; i < work.length; ++i) {
      const i64 place = work.places.at(at[1] + i * work.index_step);
      if (place < 0) continue;
      T& held = to[place * work.out_step];
      held = tile::convert_element<T>(
          combine(tile::convert_element<C>(held), tile::convert_element<C>(from[i * work.source_step])));
    }
  }
}

/// Sums of integers are the same in any order.
template <class T>
TESSERA_KERNEL(256)
void add_integers(const ScatterWork work) {
  for (i64 i = first_index(); i < work.nest.total * work.length; i += index_step()) {
    const i64 line = i / work.length, along = i - line * work.length;
    i64 at[3];
    work.nest.locate(line, 1, at);
    const i64 place = work.places.at(at[1] + along * work.index_step);
    if (place >= 0)
      atomicAdd(static_cast<T*>(work.out) + at[0] + place * work.out_step,
                static_cast<const T*>(work.source)[at[2] + along * work.source_step]);
  }
}

template <class Combine>
void scatter_by(const ScatterArgs& args, Executor& executor) {
  const ScatterWork work{make_nest<3>(args.rank, args.lengths, {&args.out, &args.index, &args.source}),
                         args.out.data,
                         args.source.data,
                         Places(args.index, args.bound, args.op, executor),
                         args.length,
                         args.out_step,
                         args.index_step,
                         args.source_step};
  if (args.combine == ScatterCombine::sum && (args.out.type == Scalar::i32 || args.out.type == Scalar::i64)) {
    const auto add = args.out.type == Scalar::i32 ? add_integers<u32> : add_integers<unsigned long long>;
    return launch("scatter", add, grid_for(work.nest.total * work.length, 256, executor), 256, 0, executor, work);
  }
  with_any(args.out.type, [&](auto type) {
    using T = typename decltype(type)::type;
    launch("scatter", scatter_kernel<T, Combine>, grid_for(work.nest.total, 128, executor, 16), 128, 0, executor, work,
           Combine());
  });
}

void scatter(const ScatterArgs& args, Executor& executor) {
  switch (args.combine) {
    case ScatterCombine::sum:
      return scatter_by<Sum>(args, executor);
    case ScatterCombine::product:
      return scatter_by<Product>(args, executor);
    case ScatterCombine::largest:
      return scatter_by<Largest>(args, executor);
    default:
      return scatter_by<Smallest>(args, executor);
  }
}

// ---- overwriting: the last element that comes to a place is found first, and alone writes

struct OverwriteWork {
  Nest<4> nest;  // out, its last writers, index, source
  void* out;
  const void* source;
  u64* writers;
  Places places;
  i64 out_step, writer_step;
};

TESSERA_KERNEL(256)
void clear_writers(u64* writers, i64 count) {
  for (i64 i = first_index(); i < count; i += index_step()) writers[i] = 0;
}

TESSERA_KERNEL(256)
void find_writers(const OverwriteWork work) {
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[4];
    work.nest.locate(i, 1, at);
    const i64 place = work.places.at(at[2]);
    if (place >= 0)
      atomicMax(reinterpret_cast<unsigned long long*>(work.writers + at[1] + place * work.writer_step),
                static_cast<unsigned long long>(i + 1));
  }
}

template <class T>
TESSERA_KERNEL(256)
void overwrite_kernel(const OverwriteWork work) {
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[4];
    work.nest.locate(i, 1, at);
    const i64 place = work.places.at(at[2]);
    if (place >= 0 && work.writers[at[1] + place * work.writer_step] == static_cast<u64>(i + 1))
      static_cast<T*>(work.out)[at[0] + place * work.out_step] = static_cast<const T*>(work.source)[at[3]];
  }
}

void overwrite(const OverwriteArgs& args, Executor& executor) {
  const OverwriteWork work{make_nest<4>(args.rank, args.lengths, {&args.out, &args.writers, &args.index, &args.source}),
                           args.out.data,
                           args.source.data,
                           static_cast<u64*>(args.writers.data),
                           Places(args.index, args.bound, args.op, executor),
                           args.out_step,
                           args.writer_step};
  const auto grid = grid_for(work.nest.total, 256, executor);
  launch("scatter", clear_writers, grid_for(args.count, 256, executor), 256, 0, executor, work.writers, args.count);
  launch("scatter", find_writers, grid, 256, 0, executor, work);
  const auto of = [&]<class T>(T) { launch("scatter", overwrite_kernel<T>, grid, 256, 0, executor, work); };
  switch (size_of(args.out.type)) {
    case 1:
      return of(u8());
    case 2:
      return of(tile::u16());
    case 4:
      return of(u32());
    default:
      return of(u64());
  }
}

}  // namespace

const ScatterTable* device_scatter_table() {
  static const ScatterTable table{scatter, overwrite};
  return &table;
}

}  // namespace tessera::gpu_kernels
