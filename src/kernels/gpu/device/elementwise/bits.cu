// Bits of integers, combined one by one.
#include "kernels/args/gpu/indexing.h"
#include "kernels/gpu/device/elementwise/loops.h"

namespace tessera::gpu_kernels {
namespace {

struct BitsWork {
  Nest<3> nest;
  void* out;
  const void *a, *b;
  BitOp op;
};

template <class T>
TESSERA_KERNEL(256)
void bits_kernel(const BitsWork work) {
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[3];
    work.nest.locate(i, 1, at);
    const T a = static_cast<const T*>(work.a)[at[1]], b = static_cast<const T*>(work.b)[at[2]];
    static_cast<T*>(work.out)[at[0]] = static_cast<T>(work.op == BitOp::both     ? a & b
                                                      : work.op == BitOp::either ? a | b
                                                                                 : a ^ b);
  }
}

void bits(const BitsArgs& args, Executor& executor) {
  const BitsWork work{make_nest<3>(args.rank, args.lengths, {&args.out, &args.a, &args.b}), args.out.data, args.a.data,
                      args.b.data, args.op};
  const auto of = [&]<class T>(T) {
    launch("bits", bits_kernel<T>, grid_for(work.nest.total, 256, executor), 256, 0, executor, work);
  };
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

const BitsTable* device_bits_table() {
  static const BitsTable table{bits};
  return &table;
}

}  // namespace tessera::gpu_kernels
