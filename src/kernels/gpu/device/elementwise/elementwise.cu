// Maps are looked up in their lists; copies and fills.
#include "by_size.h"
#include "kernels/args/gpu/indexing.h"
#include "map.h"

namespace tessera::gpu_kernels {
namespace {

MapLaunch find_map(MapOp op, Scalar compute, Scalar memory) {
  if (compute == Scalar::f32 && memory == Scalar::f32)
    if (MapLaunch found = floats_map(op)) return found;
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
  i64 units;      // of many elements at once; 0: one at a time
  bool whole[2];  // whether an operand's units lie at whole ones
  bool flat;      // `to` has no gaps, and units do not mind the ends of its rows
};

constexpr int alone = 4;  // elements that a thread has under way, where they are taken one by one

template <class To, class From>
TESSERA_KERNEL(256)
void copy_kernel(const CopyWork work) {
  constexpr int width = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  To* to = static_cast<To*>(work.data[0]);
  const From* from = static_cast<const From*>(work.data[1]);
  if (tile::is_same_v<To, From> && work.flat) {  // for casts, more registers cost more than whole stores give
    for (i64 i = first_index() * width; i < work.nest.total; i += index_step() * width) {
      i64 at[2], next[2] = {};
      const i64 left = work.nest.locate(i, 1, at);
      if (left < width) work.nest.locate(tile::min(i + left, work.nest.total - 1), 1, next);
      Pack<To, width> out{};
#pragma unroll
      for (int j = 0; j < width; ++j)
        if (i + j < work.nest.total)
          out.lane[j] = tile::convert_element<To>(from[j < left ? at[1] + j : next[1] + j - left]);
      store_unit(to + i, out, true, work.nest.total - i);
    }
    return;
  }
  if (work.units) {
    const i64 length = work.nest.lengths[work.nest.rank - 1];
    for (i64 i = first_index(); i < work.units; i += index_step()) {
      i64 at[2];
      const i64 left = work.nest.locate(i, width, at);
      const auto in = load_unit<From, width>(from + at[1], work.whole[1], left, length);
      Pack<To, width> out;
      tile::unroll<width>([&](auto j) { out.lane[j] = tile::convert_element<To>(in.lane[j]); });
      store_unit(to + at[0], out, work.whole[0], left);
    }
    return;
  }
  for (i64 first = first_index(); first < work.nest.total; first += alone * index_step()) {
    i64 at[alone][2];
    From held[alone];
    tile::unroll<alone>([&](auto j) {
      const i64 i = first + j * index_step();
      if (i >= work.nest.total) return;
      work.nest.locate(i, 1, at[j]);
      held[j] = from[at[j][1]];
    });
    tile::unroll<alone>([&](auto j) {
      if (first + j * index_step() < work.nest.total) to[at[j][0]] = tile::convert_element<To>(held[j]);
    });
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
/// The same of neighbours in memory, 16 bytes at a time.
template <class T>
TESSERA_KERNEL(256)
void fill_dense_kernel(i64 total, T* to, T value) {
  constexpr int width = 16 / sizeof(T);
  Pack<T, width> values;
  tile::unroll<width>([&](auto k) { values.lane[k] = value; });
  for (i64 i = first_index() * width; i < total; i += index_step() * width) store_unit(to + i, values, true, total - i);
}

CopyWork work_of(const CopyArgs& args) {
  return {make_nest<2>(args.rank, args.lengths, {&args.to, &args.from}), {args.to.data, args.from.data}, 0, {}, false};
}

template <class To, class From>
void launch_copy(const CopyArgs& args, Executor& executor) {
  constexpr int width = 16 / (sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
  CopyWork work = work_of(args);
  if (work.nest.rank > 0) {
    const int last = work.nest.rank - 1;
    const bool is_long = work.nest.lengths[last] >= width && work.nest.strides[0][last] == 1;
    if (is_long && work.nest.strides[1][last] == 1) {
      work.units = work.nest.units(width);
      for (int k = 0; k < 2; ++k) work.whole[k] = work.nest.is_whole(k, width, 16 / width, work.data[k]);
    }
    work.flat = tile::is_same_v<To, From> && work.units > 0 && !work.whole[0] && work.nest.has_no_gaps(0) &&
                reinterpret_cast<size_t>(work.data[0]) % (width * sizeof(To)) == 0;
  }
  const i64 items = work.units ? work.units : work.nest.total;
  launch("copy", copy_kernel<To, From>, grid_for(items, 256, executor), 256, 0, executor, work);
}

// ---- copies that transpose

/// Rows run along what is contiguous in `from`, columns along what is in `to`.
struct Transposition {
  Nest<2> matrices;
  void* data[2];
  i64 rows, columns, row_step, column_step;  // of `to`, and of `from`
  int width[2];                              // elements that are moved at once
};

constexpr int transposing = 128;  // threads

/// A square whose lines have 128 bytes, in shared memory; chunks of 16 bytes of a line lie where those of eight lines
/// in a column meet all banks.
template <class T>
struct Square {
  static constexpr int width = 16 / sizeof(T), edge = 8 * width, step = transposing / 8, turns = edge / step;
  T* at;

  TESSERA_DEVICE T* chunk(int line, int chunk) const { return at + line * edge + (chunk ^ line / width % 8) * width; }

  /// So many elements at a time, of which nothing is looked at before several are under way.
  template <int Width>
  TESSERA_DEVICE void fill(const T* from, i64 line_step, i64 lines, i64 length) const {
    using Piece = Pack<T, Width>;
    constexpr int at_once = Width == 1 ? 1 : tile::min(turns, 4);
    const int c = tile::thread_in_block() % 8, first = tile::thread_in_block() / 8;
#pragma unroll 1
    for (int begin = first; begin < edge; begin += at_once * step) {
      Piece held[at_once][width / Width];
      tile::unroll<at_once>([&](auto turn) {
        const int line = begin + turn * step;
        tile::unroll<width / Width>([&](auto k) {
          if (line < lines && c * width + k * Width < length)
            held[turn][k] = *reinterpret_cast<const Piece*>(from + line * line_step + c * width + k * Width);
        });
      });
      tile::unroll<at_once>([&](auto turn) {
        T* const to = chunk(begin + turn * step, c);
        tile::unroll<width / Width>([&](auto k) { *reinterpret_cast<Piece*>(to + k * Width) = held[turn][k]; });
      });
    }
  }

  /// Columns become lines.
  template <int Width>
  TESSERA_DEVICE void drain(T* to, i64 line_step, i64 lines, i64 length) const {
    using Piece = Pack<T, Width>;
    const int c = tile::thread_in_block() % 8;
#pragma unroll 1
    for (int line = tile::thread_in_block() / 8; line < edge; line += step)
      tile::unroll<width / Width>([&](auto k) {
        Piece piece;
        tile::unroll<Width>(
            [&](auto i) { piece.lane[i] = chunk(c * width + k * Width + i, line / width)[line % width]; });
        if (line < lines && c * width + k * Width < length)
          *reinterpret_cast<Piece*>(to + line * line_step + c * width + k * Width) = piece;
      });
  }
};

template <class T>
TESSERA_KERNEL(transposing, sizeof(T) > 1 ? 8 : 2)
void transpose_kernel(const Transposition t) {
  constexpr int edge = Square<T>::edge, width = Square<T>::width;
  __shared__ __attribute__((aligned(16))) T room[edge * edge];
  const Square<T> square{room};
  const i64 down = tile::ceil_div<i64>(t.rows, edge), across = tile::ceil_div<i64>(t.columns, edge);
  for (i64 block = tile::block_in_grid(); block < t.matrices.total * down * across; block += gridDim.x) {
    const i64 line = tile::quotient(block, down), matrix = tile::quotient(line, across);
    const i64 row = (block - line * down) * edge, column = (line - matrix * across) * edge;
    i64 at[2];
    t.matrices.locate(matrix, 1, at);
    const T* const from = static_cast<const T*>(t.data[1]) + at[1] + column * t.column_step + row;
    T* const to = static_cast<T*>(t.data[0]) + at[0] + row * t.row_step + column;
    const i64 rows = t.rows - row, columns = t.columns - column;
    if (t.width[1] == width) square.template fill<width>(from, t.column_step, columns, rows);
    else if (t.width[1] == width / 2) square.template fill<width / 2>(from, t.column_step, columns, rows);
    else square.template fill<1>(from, t.column_step, columns, rows);
    tile::sync_block();
    if (t.width[0] == width) square.template drain<width>(to, t.row_step, rows, columns);
    else if (t.width[0] == width / 2) square.template drain<width / 2>(to, t.row_step, rows, columns);
    else square.template drain<1>(to, t.row_step, rows, columns);
    tile::sync_block();
  }
}

/// Matrices with few columns, or few rows, as filters' taps are: a chunk of a matrix lies in shared memory line by line
/// of the longer side, and each operand is walked in its own order.
struct NarrowTransposition {
  Nest<2> matrices;
  void* data[2];
  i64 length, steps[2];       // of the longer side; from line to line of each operand
  int across, chunk, chunks;  // of the shorter side; of the longer one for a block, and how many
  bool to_narrow;             // lines of `to` run along the shorter side, or those of `from`
};
constexpr int narrow_threads = 256, narrow_elements = 2048;

/// store(place, load(place)) for this thread's places (i, j) of lines of `length`, several at a time.
template <class T, class Load, class Store>
TESSERA_DEVICE void for_lines(int length, int lines, const Load& load, const Store& store) {
  constexpr int at_once = 8;
  struct Place {
    int i, j;
  };
  const int thread = tile::thread_in_block();
  const Place step{narrow_threads % length, narrow_threads / length};
  for (Place next{thread % length, thread / length}; next.j < lines;) {
    Place at[at_once];
    T held[at_once];
    tile::unroll<at_once>([&](auto k) {
      at[k] = next;
      if (next.j < lines) held[k] = load(next.i, next.j);
      next.i += step.i;
      next.j += step.j;
      if (next.i >= length) next.i -= length, ++next.j;
    });
    tile::unroll<at_once>([&](auto k) {
      if (at[k].j < lines) store(at[k].i, at[k].j, held[k]);
    });
  }
}

template <class T>
TESSERA_KERNEL(narrow_threads)
void narrow_transpose_kernel(const NarrowTransposition t) {
  __shared__ T room[narrow_elements + narrow_elements / 8];
  const i64 block = tile::block_in_grid(), matrix = tile::quotient(block, t.chunks),
            first = (block - matrix * t.chunks) * t.chunk;
  const int length = static_cast<int>(tile::min<i64>(t.chunk, t.length - first)),
            pitch = t.chunk + (sizeof(T) < 4 ? 2 : 1);  // its lines begin in other banks
  i64 at[2];
  t.matrices.locate(matrix, 1, at);
  T* const to = static_cast<T*>(t.data[0]) + at[0] + first * (t.to_narrow ? t.steps[0] : 1);
  const T* const from = static_cast<const T*>(t.data[1]) + at[1] + first * (t.to_narrow ? 1 : t.steps[1]);
  const auto load = [&](int i, int j) { return from[j * t.steps[1] + i]; };
  const auto store = [&](int i, int j, T value) { to[j * t.steps[0] + i] = value; };
  const auto along = [&](int i, int j) -> T& { return room[j * pitch + i]; };
  const auto across = [&](int i, int j) -> T& { return room[i * pitch + j]; };
  const auto keep = [](const auto& place) { return [&](int i, int j, T value) { place(i, j) = value; }; };
  if (t.to_narrow) for_lines<T>(length, t.across, load, keep(along));
  else for_lines<T>(t.across, length, load, keep(across));
  tile::sync_block();
  if (t.to_narrow) for_lines<T>(t.across, length, across, store);
  else for_lines<T>(length, t.across, along, store);
}

/// Elements that operand k has at once: lines of `length`, `step` apart.
template <class T>
int width_of(const Transposition& t, int k, i64 length, i64 step) {
  constexpr int most = 16 / sizeof(T);
  for (int width : {most, most / 2}) {
    bool takes =
        length % width == 0 && step % width == 0 && reinterpret_cast<size_t>(t.data[k]) % (width * sizeof(T)) == 0;
    for (int d = 0; d < t.matrices.rank; ++d) takes = takes && t.matrices.strides[k][d] % width == 0;
    if (takes) return width;
  }
  return 1;
}

/// Whether the nest is worth chunks or squares, which are launched then.
template <class T>
bool launch_transposition(const CopyWork& work, Executor& executor) {
  constexpr i64 least = 8, edge = 128 / sizeof(T);
  const Nest<2>& nest = work.nest;
  int rows = -1, columns = -1;
  for (int d = 0; d < nest.rank; ++d) {
    if (nest.lengths[d] < 2) continue;
    if (nest.strides[1][d] == 1) rows = d;
    if (nest.strides[0][d] == 1) columns = d;
  }
  if (rows < 0 || columns < 0 || rows == columns) return false;
  Nest<2> matrices{};
  for (int d = 0; d < nest.rank; ++d)
    if (d != rows && d != columns) matrices.add(nest.lengths[d], {nest.strides[0][d], nest.strides[1][d]});
  const i64 down = nest.lengths[rows], across = nest.lengths[columns], row_step = nest.strides[0][rows],
            column_step = nest.strides[1][columns], shorter = tile::min(down, across), longer = tile::max(down, across);
  Transposition t{matrices, {work.data[0], work.data[1]}, down, across, row_step, column_step, {}};
  t.width[0] = width_of<T>(t, 0, t.columns, t.row_step);
  t.width[1] = width_of<T>(t, 1, t.rows, t.column_step);
  if (shorter <= edge / 2 && (t.width[0] == 1 || t.width[1] == 1) && shorter * longer >= 512) {
    const i64 pieces = tile::ceil_div(longer * shorter, i64{narrow_elements}), chunk = tile::ceil_div(longer, pieces),
              chunks = tile::ceil_div(longer, chunk);
    const NarrowTransposition narrow{matrices,
                                     {work.data[0], work.data[1]},
                                     longer,
                                     {row_step, column_step},
                                     static_cast<int>(shorter),
                                     static_cast<int>(chunk),
                                     static_cast<int>(chunks),
                                     across == shorter};
    launch("copy", narrow_transpose_kernel<T>, matrices.total * chunks, narrow_threads, 0, executor, narrow);
    return true;
  }
  if (shorter < least) return false;
  const i64 squares = t.matrices.total * tile::ceil_div(t.rows, edge) * tile::ceil_div(t.columns, edge);
  launch("copy", transpose_kernel<T>, tile::min<i64>(squares, 1 << 30), transposing, 0, executor, t);
  return true;
}

/// V neighbours in `to` at once, which lie apart in `from`.
template <class T, int V>
TESSERA_KERNEL(256)
void collect_kernel(const CopyWork work) {
  T* const to = static_cast<T*>(work.data[0]);
  const T* const from = static_cast<const T*>(work.data[1]);
  const i64 step = work.nest.strides[1][work.nest.rank - 1];
  for (i64 i = first_index(); i < work.nest.total / V; i += index_step()) {
    i64 at[2];
    work.nest.locate(i, V, at);
    T held[V];
    tile::unroll<V>([&](auto j) { held[j] = from[at[1] + j * step]; });
    if constexpr (V == 3) {
      tile::unroll<V>([&](auto j) { to[at[0] + j] = held[j]; });
    } else {
      Pack<T, V> out;
      tile::unroll<V>([&](auto j) { out.lane[j] = held[j]; });
      *reinterpret_cast<Pack<T, V>*>(to + at[0]) = out;
    }
  }
}

/// Whether rows of `to` are made of such neighbours, which are launched then.
template <class T>
bool launch_collection(const CopyWork& work, Executor& executor) {
  const Nest<2>& nest = work.nest;
  const int last = nest.rank - 1;
  if (last < 1 || nest.strides[0][last] != 1 || nest.strides[1][last] == 1) return false;
  const auto run = [&](auto count) {
    constexpr int V = decltype(count)::value;
    if (nest.lengths[last] % V != 0 || (V != 3 && !nest.is_whole(0, V, sizeof(T), work.data[0]))) return false;
    launch("copy", collect_kernel<T, V>, grid_for(nest.total / V, 256, executor), 256, 0, executor, work);
    return true;
  };
  if (sizeof(T) <= 4 && run(tile::Int<4>{})) return true;
  return run(tile::Int<2>{}) || run(tile::Int<3>{});
}

// Elements that only move are taken as integers of their size.
template <class T>
void move(const CopyArgs& args, Executor& executor) {
#if !defined(__HIP__)  // where the compiler puts pieces of a line into scratch
  if (launch_transposition<T>(work_of(args), executor)) return;
#endif
  if (launch_collection<T>(work_of(args), executor)) return;
  launch_copy<T, T>(args, executor);
}
void move(const CopyArgs& args, Executor& executor) {
  with_size(args.to.type, [&](auto type) { move<typename decltype(type)::type>(args, executor); });
}

void fill(const CopyArgs& args, Executor& executor) {
  const auto nest = make_nest<1>(args.rank, args.lengths, {&args.to});
  const double value = *static_cast<const double*>(args.from.data);
  with_any(args.to.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const T converted = tile::convert_element<T>(value);
    constexpr int width = 16 / sizeof(T);
    if (nest.has_no_gaps(0) && nest.total >= width && reinterpret_cast<size_t>(args.to.data) % 16 == 0)
      return launch("fill", fill_dense_kernel<T>, grid_for(tile::ceil_div<i64>(nest.total, width), 256, executor), 256,
                    0, executor, nest.total, static_cast<T*>(args.to.data), converted);
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

// ---- bits of integers

namespace tessera::gpu_kernels {
namespace {

struct BitsWork {
  Nest<3> nest;
  void* out;
  const void *a, *b;
  i64 units;      // of four elements at once, or two of 8 bytes; 0: one at a time
  bool whole[3];  // whether an operand's begin at whole ones
  BitOp op;
  bool has_sign;
};

/// Of unsigned numbers, whatever the elements are.
template <class T>
TESSERA_DEVICE T combine_bits(BitOp op, T a, T b, bool has_sign) {
  switch (op) {
    case BitOp::both:
      return a & b;
    case BitOp::either:
      return a | b;
    case BitOp::one:
      return a ^ b;
    case BitOp::left:
      return b < 8 * sizeof(T) ? static_cast<T>(a << b) : T(0);
    default: {  // past all bits the sign is left, or 0
      constexpr int above = 64 - 8 * static_cast<int>(sizeof(T));
      const i64 wide = has_sign ? static_cast<i64>(u64{a} << above) >> above : static_cast<i64>(a);
      return static_cast<T>(wide >> (b < 64 ? static_cast<int>(b) : 63));
    }
  }
}

template <class T>
TESSERA_KERNEL(256)
void bits_kernel(const BitsWork work) {
  constexpr int width = sizeof(T) == 8 ? 2 : 4;
  const int last = work.nest.rank - 1;
  for (i64 i = first_index(); i < work.units; i += index_step()) {
    i64 at[3];
    const i64 left = work.nest.locate(i, width, at);
    Pack<T, width> in[2], out;
    tile::unroll<2>([&](auto k) {
      const T* const from = static_cast<const T*>(k ? work.b : work.a) + at[k + 1];
      if (work.nest.strides[k + 1][last] != 0) {
        in[k] = load_unit<T, width>(from, work.whole[k + 1], left, work.nest.lengths[last]);
      } else {
        tile::unroll<width>([&](auto j) { in[k].lane[j] = *from; });
      }
    });
    tile::unroll<width>(
        [&](auto j) { out.lane[j] = combine_bits(work.op, in[0].lane[j], in[1].lane[j], work.has_sign); });
    store_unit(static_cast<T*>(work.out) + at[0], out, work.whole[0], left);
  }
  if (work.units) return;
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[3];
    work.nest.locate(i, 1, at);
    const T a = static_cast<const T*>(work.a)[at[1]], b = static_cast<const T*>(work.b)[at[2]];
    static_cast<T*>(work.out)[at[0]] = combine_bits(work.op, a, b, work.has_sign);
  }
}

void bits(const BitsArgs& args, Executor& executor) {
  BitsWork work{make_nest<3>(args.rank, args.lengths, {&args.out, &args.a, &args.b}),
                args.out.data,
                args.a.data,
                args.b.data,
                0,
                {},
                args.op,
                args.out.type != Scalar::u8};
  const int bytes = size_of(args.out.type), width = bytes == 8 ? 2 : 4;
  if (work.nest.has_units(width) && work.nest.strides[0][work.nest.rank - 1] == 1) {
    work.units = work.nest.units(width);
    const void* const data[] = {work.out, work.a, work.b};
    for (int k = 0; k < 3; ++k) work.whole[k] = work.nest.is_whole(k, width, bytes, data[k]);
  }
  with_size(args.out.type, [&](auto type) {
    launch("bits", bits_kernel<typename decltype(type)::type>,
           grid_for(work.units ? work.units : work.nest.total, 256, executor), 256, 0, executor, work);
  });
}

}  // namespace

const BitsTable* device_bits_table() {
  static const BitsTable table{bits};
  return &table;
}

}  // namespace tessera::gpu_kernels
