// Maps are looked up in their lists; copies and fills.
#include "map.h"

namespace tessera::gpu_kernels {
namespace {

MapLaunch find_map(MapOp op, Scalar compute, Scalar memory) {
  if (MapLaunch found = arithmetic_map(op, compute, memory)) return found;
  if (MapLaunch found = math_map(op, compute, memory)) return found;
  return predicate_map(op, compute, memory);
}

bool supports(MapOp op, Scalar compute) { return find_map(op, compute, Scalar::boolean) != nullptr; }

void map(const MapArgs& args, Executor& executor) {
  Scalar memory = args.tensor[0].type;
  for (int k = 1; k <= args.inputs; ++k)
    if (!args.tensor[k].constant && args.tensor[k].type != memory) memory = Scalar::boolean;  // which no list names
  find_map(args.op, args.compute, memory)(args, executor);
}

// ---- copies

struct CopyWork {
  Nest<2> nest;
  void* data[2];
  bool vectors;
};

template <class To, class From>
TESSERA_KERNEL(256)
void copy_kernel(const CopyWork work) {
  constexpr int width = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  To* to = static_cast<To*>(work.data[0]);
  const From* from = static_cast<const From*>(work.data[1]);
  if (work.vectors) {
    for (i64 i = first_index(); i < work.nest.total / width; i += index_step()) {
      i64 at[2];
      work.nest.locate(i, width, at);
      const auto in = *reinterpret_cast<const Pack<From, width>*>(from + at[1]);
      Pack<To, width> out;
      tile::unroll<width>([&](auto j) { out.lane[j] = tile::convert_element<To>(in.lane[j]); });
      *reinterpret_cast<Pack<To, width>*>(to + at[0]) = out;
    }
    return;
  }
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[2];
    work.nest.locate(i, 1, at);
    to[at[0]] = tile::convert_element<To>(from[at[1]]);
  }
}

/// Rare pairs of types, which are looked up for each element; C holds all elements of `from` as they are.
template <class C>
TESSERA_KERNEL(256)
void convert_kernel(const CopyWork work, Scalar to, Scalar from) {
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[2];
    work.nest.locate(i, 1, at);
    store_as(work.data[0], to, at[0], load_as<C>(work.data[1], from, at[1]));
  }
}

/// One value everywhere.
template <class T>
TESSERA_KERNEL(256)
void fill_kernel(const Nest<1> nest, T* to, T value) {
  for (i64 i = first_index(); i < nest.total; i += index_step()) {
    i64 at[1];
    nest.locate(i, 1, at);
    to[at[0]] = value;
  }
}

CopyWork work_of(const CopyArgs& args) {
  return {make_nest<2>(args.rank, args.lengths, {&args.to, &args.from}), {args.to.data, args.from.data}, false};
}

template <class To, class From>
void launch_copy(const CopyArgs& args, Executor& executor) {
  constexpr int width = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  CopyWork work = work_of(args);
  if (work.nest.rank > 0) {
    const int last = work.nest.rank - 1;
    const bool dense = work.nest.strides[0][last] == 1 && work.nest.strides[1][last] == 1;
    work.vectors = dense && work.nest.takes_vectors(width, 16 / width, work.data);
  }
  const i64 items = work.vectors ? work.nest.total / width : work.nest.total;
  launch("copy", copy_kernel<To, From>, grid_for(items, 256, executor), 256, 0, executor, work);
}

// Elements that only move are taken as integers of their size.
void move(const CopyArgs& args, Executor& executor) {
  switch (size_of(args.to.type)) {
    case 1:
      return launch_copy<u8, u8>(args, executor);
    case 2:
      return launch_copy<tile::u16, tile::u16>(args, executor);
    case 4:
      return launch_copy<u32, u32>(args, executor);
    default:
      return launch_copy<u64, u64>(args, executor);
  }
}

void fill(const CopyArgs& args, Executor& executor) {
  const auto nest = make_nest<1>(args.rank, args.lengths, {&args.to});
  const double value = *static_cast<const double*>(args.from.data);
  with_any(args.to.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const T converted = tile::convert_element<T>(value);
    launch("fill", fill_kernel<T>, grid_for(nest.total, 256, executor), 256, 0, executor, nest,
           static_cast<T*>(args.to.data), converted);
  });
}

bool is_usual(Scalar type) { return type == Scalar::f32 || type == Scalar::f16 || type == Scalar::bf16; }
template <class Fn>
void with_usual(Scalar type, const Fn& fn) {
  if (type == Scalar::f32) return fn(Type<float>{});
  type == Scalar::f16 ? fn(Type<f16>{}) : fn(Type<bf16>{});
}

void convert(const CopyArgs& args, Executor& executor) {
  const bool whole = !is_usual(args.from.type) && args.from.type != Scalar::f64;
  const CopyWork work = work_of(args);
  launch("copy", whole ? convert_kernel<i64> : convert_kernel<double>, grid_for(work.nest.total, 256, executor), 256, 0,
         executor, work, args.to.type, args.from.type);
}

void copy(const CopyArgs& args, Executor& executor) {
  if (args.from.constant) return fill(args, executor);
  if (args.to.type == args.from.type) return move(args, executor);
  if (!is_usual(args.to.type) || !is_usual(args.from.type)) return convert(args, executor);
  with_usual(args.to.type, [&](auto to) {
    with_usual(args.from.type, [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      if constexpr (!tile::is_same_v<To, From>) launch_copy<To, From>(args, executor);
    });
  });
}

// ---- triangles

template <class T>
struct TriangleWork {
  T *to, *from;
  i64 rows, columns, diagonal;
  bool upper, in_place;
  T otherwise;
};

template <class T>
TESSERA_KERNEL(256)
void triangle_kernel(const Nest<2> nest, const TriangleWork<T> work) {
  for (i64 i = first_index(); i < nest.total; i += index_step()) {
    const i64 line = i / work.columns, edge = line % work.rows + work.diagonal, column = i - line * work.columns;
    const bool keeps = work.upper ? edge <= column : column <= edge;
    if (keeps && work.in_place) continue;
    i64 at[2];
    nest.locate(i, 1, at);
    work.to[at[0]] = keeps ? work.from[at[1]] : work.otherwise;
  }
}

// Elements only move, so that they are taken as integers of their size.
template <class T>
void launch_triangle(const TriangleArgs& args, T otherwise, Executor& executor) {
  const auto nest = make_nest<2>(args.rank, args.lengths, {&args.to, &args.from});
  TriangleWork<T> work{static_cast<T*>(args.to.data),
                       static_cast<T*>(args.from.data),
                       args.lengths[args.rank - 2],
                       args.lengths[args.rank - 1],
                       args.diagonal,
                       args.upper,
                       args.to.data == args.from.data,
                       otherwise};
  for (int d = 0; d < args.rank; ++d) work.in_place = work.in_place && args.to.strides[d] == args.from.strides[d];
  launch("triangle", triangle_kernel<T>, grid_for(nest.total, 256, executor), 256, 0, executor, nest, work);
}

void triangle(const TriangleArgs& args, Executor& executor) {
  with_any(args.to.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const T otherwise = tile::convert_element<T>(args.otherwise);
    if constexpr (sizeof(T) == 1) launch_triangle(args, tile::bit_cast<u8>(otherwise), executor);
    else if constexpr (sizeof(T) == 2) launch_triangle(args, tile::bit_cast<tile::u16>(otherwise), executor);
    else if constexpr (sizeof(T) == 4) launch_triangle(args, tile::bit_cast<u32>(otherwise), executor);
    else launch_triangle(args, tile::bit_cast<u64>(otherwise), executor);
  });
}

}  // namespace

ElementwiseTable elementwise_table = {supports, map, copy, triangle};  // not const: clang wants it on the device

}  // namespace tessera::gpu_kernels
