// Sums of the rows and columns of products: what blocks have left of them is added up; and passes of their own for
// results that were made without them, or without an activation and its slope.
#include "gemm.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int threads = 256;

// ---- parts of sums

constexpr int lanes = 32, groups = threads / lanes;
constexpr int adders = 32;  // groups of lanes; each takes every 32nd part, several of them under way

/// [batch][parts][length] added up, in which order does not depend on the threads; to (i, j) = (at * row, at * column).
template <class T>
TESSERA_KERNEL(adders* lanes)
void add_kernel(const GemmArgs args, const MatrixArg to, bool of_rows, const T* from, i64 parts, i64 length,
                i64 batches) {
  __shared__ T sums[adders][lanes];
  const int group = tile::thread_in_block() / lanes, lane = tile::thread_in_block() % lanes;
  const i64 strips = tile::ceil_div<i64>(length, lanes);
  for (i64 block = tile::block_in_grid(); block < batches * strips; block += gridDim.x) {
    const i64 batch = block / strips, at = (block - batch * strips) * lanes + lane;
    T sum(0);
    if (at < length) {
#pragma unroll 8
      for (i64 part = group; part < parts; part += adders) sum += from[(batch * parts + part) * length + at];
    }
    sums[group][lane] = sum;
    tile::sync_block();
    if (group == 0 && at < length) {
      for (int g = 1; g < adders; ++g) sum += sums[g][lane];
      AnyMatrix(to, BatchPlace(args, batch)).store(of_rows ? at : 0, of_rows ? 0 : at, sum);
    }
    tile::sync_block();
  }
}

template <class T>
void launch_add(const GemmArgs& args, const MatrixArg& to, bool of_rows, const void* from, i64 parts,
                Executor& executor) {
  if (!to.data) return;
  const i64 length = of_rows ? args.m : args.n, batches = batch_count(args);
  const i64 blocks = tile::min<i64>(batches * tile::ceil_div<i64>(length, lanes), 1 << 30);
  launch("gemm", add_kernel<T>, blocks, adders * lanes, 0, executor, args, to, of_rows, static_cast<const T*>(from),
         parts, length, batches);
}

// ---- the pass

constexpr int pass_height = 64, pass_width = 128;

/// Four neighbours of a matrix of doubles, as LaneMatrix has them of narrower types.
class DoubleLanes {
 public:
  using Four = tile::Vec<double, 4>;
  TESSERA_DEVICE DoubleLanes(const MatrixArg& m, const BatchPlace& place) : matrix_(m, place) {}
  TESSERA_DEVICE bool exists() const { return matrix_.exists(); }
  TESSERA_DEVICE Four load(i64 i, i64 j, int count) const {
    Four four(0.0);
    for (int l = 0; l < 4; ++l)
      if (l < count) four.v[l] = matrix_.load<double>(i, j + l);
    return four;
  }
  TESSERA_DEVICE void store(i64 i, i64 j, int count, const Four& value) const {
    for (int l = 0; l < 4; ++l)
      if (l < count) matrix_.store(i, j + l, value.v[l]);
  }

 private:
  AnyMatrix matrix_;
};

using GeluTanh = FixedActivation<Activation::gelu_tanh>;

template <class T, class Matrix>
TESSERA_KERNEL(threads)
void finish_kernel(const GemmArgs args, const LineParts parts) {
  __shared__ __attribute__((aligned(16))) T slab[threads * 4];
  using Sums = LineSums<T, pass_width, threads>;
  constexpr int quads = pass_width / 4;
  const i64 blocks = parts.down * parts.across, batch = tile::block_in_grid() / blocks;
  const i64 within = tile::block_in_grid() - batch * blocks, down = within / parts.across,
            across = within - down * parts.across;
  const i64 column = across * pass_width + tile::thread_in_block() % quads * 4;
  const int columns = static_cast<int>(tile::max<i64>(tile::min<i64>(args.n - column, 4), 0));
  const BatchPlace place(args, batch);
  const Matrix c(args.c, place), factor(args.factor, place);
  Sums sums(args, parts, batch, down, across);
  for (int i = tile::thread_in_block() / quads; i < pass_height; i += threads / quads) {
    const i64 row = down * pass_height + i;
    const int count = row < args.m ? columns : 0;
    typename Sums::Four value(T(0));
    if (count > 0) {
      value = c.load(row, column, count);
      if (factor.exists()) {
        const auto times = factor.load(row, column, count);
        value = value * (args.activation == Activation::gelu_tanh ? GeluTanh{}.both(times).slope : times);
        c.store(row, column, count, value);
      }
    }
    sums.add(value, row, count);
  }
  sums.finish(slab, across * pass_width);
}

// ---- the same for rows of 16-byte vectors, without sums of rows

constexpr int quick_height = 128;
template <class T>
constexpr int unit = 16 / static_cast<int>(sizeof(T));  // elements

/// What c is multiplied by.
enum class Times { nothing, factor, gelu_slope };

/// Each group of 32 threads takes every eighth row of the block, several of them under way.
template <class T, Times kTimes>
TESSERA_KERNEL(threads)
void finish_columns_kernel(const GemmArgs args, const LineParts parts) {
  constexpr int W = unit<T>, ahead = 4;
  constexpr bool Multiply = kTimes != Times::nothing;
  __shared__ __attribute__((aligned(16))) float slab[groups][lanes * W];
  const int group = tile::thread_in_block() / lanes, lane = tile::thread_in_block() % lanes;
  const i64 blocks = parts.down * parts.across, batch = tile::block_in_grid() / blocks;
  const i64 within = tile::block_in_grid() - batch * blocks, down = within / parts.across,
            begin = (within - down * parts.across) * lanes * W, column = begin + lane * W;
  const BatchPlace place(args, batch);
  T* const c = static_cast<T*>(args.c.data) + place.offset(args.c) + column;
  const T* const factor = static_cast<const T*>(args.factor.data) + place.offset(args.factor) + column;
  float sum[W] = {};
  if (column < args.n) {
    const i64 end = tile::min<i64>((down + 1) * quick_height, args.m);
    for (i64 row = down * quick_height + group; row < end; row += ahead * groups) {
      Pack<T, W> value[ahead], times[ahead];
      tile::unroll<ahead>([&](auto u) {
        const i64 r = row + u * groups;
        if (r >= end) return;
        value[u] = *reinterpret_cast<const Pack<T, W>*>(c + r * args.c.row);
        if constexpr (Multiply) times[u] = *reinterpret_cast<const Pack<T, W>*>(factor + r * args.factor.row);
      });
      tile::unroll<ahead>([&](auto u) {
        const i64 r = row + u * groups;
        if (r >= end) return;
        tile::unroll<W>([&](auto l) {
          float v = tile::convert_element<float>(value[u].lane[l]);
          if constexpr (Multiply) {
            float by = tile::convert_element<float>(times[u].lane[l]);
            if constexpr (kTimes == Times::gelu_slope) by = GeluTanh{}.both(by).slope;
            v *= by;
            value[u].lane[l] = tile::convert_element<T>(v);
          }
          sum[l] += v;
        });
        if constexpr (Multiply) store_at_once(c + r * args.c.row, value[u]);
      });
    }
  }
  if (!parts.columns) return;
  using Line = tile::SharedLine<float, W>;
  Line::store(slab[group], lane * W, sum);
  tile::sync_block();
  for (int j = tile::thread_in_block(); j < lanes * W && begin + j < args.n; j += threads) {
    float total = slab[0][Line::place(j)];
    for (int g = 1; g < groups; ++g) total += slab[g][Line::place(j)];
    static_cast<float*>(parts.columns)[(batch * parts.down + down) * args.n + begin + j] = total;
  }
}

/// c = activation(c) and its slope, in the same way.
template <class T>
TESSERA_KERNEL(threads)
void activate_rows_kernel(const GemmArgs args, i64 parts_down, i64 parts_across) {
  constexpr int W = unit<T>;
  const AnyActivation activation{args.activation};
  const i64 blocks = parts_down * parts_across, batch = tile::block_in_grid() / blocks;
  const i64 within = tile::block_in_grid() - batch * blocks, down = within / parts_across,
            column = ((within - down * parts_across) * lanes + tile::thread_in_block() % lanes) * W;
  if (column >= args.n) return;
  const BatchPlace place(args, batch);
  T* const c = static_cast<T*>(args.c.data) + place.offset(args.c) + column;
  T* const slope = static_cast<T*>(args.slope.data) + place.offset(args.slope) + column;
  const i64 end = tile::min<i64>((down + 1) * quick_height, args.m);
  constexpr int ahead = 4;
  for (i64 row = down * quick_height + tile::thread_in_block() / lanes; row < end; row += ahead * groups) {
    Pack<T, W> value[ahead];
    tile::unroll<ahead>([&](auto u) {
      const i64 r = row + u * groups;
      if (r < end) value[u] = *reinterpret_cast<const Pack<T, W>*>(c + r * args.c.row);
    });
    tile::unroll<ahead>([&](auto u) {
      const i64 r = row + u * groups;
      if (r >= end) return;
      Pack<T, W> gradient;
      tile::unroll<W>([&](auto l) {
        const auto both = activation.both(tile::convert_element<float>(value[u].lane[l]));
        value[u].lane[l] = tile::convert_element<T>(both.value);
        gradient.lane[l] = tile::convert_element<T>(both.slope);
      });
      store_at_once(c + r * args.c.row, value[u]);
      store_at_once(slope + r * args.slope.row, gradient);
    });
  }
}

/// The same for any matrices, element by element.
template <class T>
TESSERA_KERNEL(threads)
void activate_kernel(const GemmArgs args, i64 count) {
  const AnyActivation activation{args.activation};
  for (i64 i = first_index(); i < count; i += index_step()) {
    const i64 line = i / args.n, column = i - line * args.n, batch = line / args.m, row = line - batch * args.m;
    const BatchPlace place(args, batch);
    const AnyMatrix c(args.c, place);
    const auto both = activation.both(c.load<T>(row, column));
    c.store(row, column, both.value);
    AnyMatrix(args.slope, place).store(row, column, both.slope);
  }
}

bool times_gelu_slope(const GemmArgs& args) { return args.factor.data && args.activation == Activation::gelu_tanh; }

/// Whether c, the factor and the slope, of one type, have rows of 16-byte vectors.
bool is_quick(const GemmArgs& args) {
  if (args.row_sums.data || args.c.type == Scalar::f64) return false;
  if (times_gelu_slope(args) && args.c.type != Scalar::bf16) return false;
  const i64 width = 16 / size_of(args.c.type);
  const auto whole = [&](const MatrixArg& m) {
    bool all = m.type == args.c.type && m.column == 1 && m.row % width == 0 && args.n % width == 0 &&
               reinterpret_cast<size_t>(m.data) % 16 == 0;
    for (i64 step : m.batch) all = all && step % width == 0;
    return all;
  };
  return whole(args.c) && (!args.factor.data || whole(args.factor)) && (!args.slope.data || whole(args.slope));
}

template <class T>
void launch_quick(const GemmArgs& args, Executor& executor) {
  const LineParts parts = line_parts(args, quick_height, lanes * unit<T>);
  auto kernel = args.factor.data ? finish_columns_kernel<T, Times::factor> : finish_columns_kernel<T, Times::nothing>;
  if constexpr (tile::is_same_v<T, bf16>)
    if (times_gelu_slope(args)) kernel = finish_columns_kernel<T, Times::gelu_slope>;
  launch("gemm", kernel, batch_count(args) * parts.down * parts.across, threads, 0, executor, args, parts);
  add_parts(args, parts, executor);
}

template <class T>
void launch_activate_rows(const GemmArgs& args, Executor& executor) {
  const i64 down = tile::ceil_div<i64>(args.m, quick_height), across = tile::ceil_div<i64>(args.n, lanes * unit<T>);
  launch("gemm", activate_rows_kernel<T>, batch_count(args) * down * across, threads, 0, executor, args, down, across);
}

void activate(const GemmArgs& args, Executor& executor) {
  if (is_quick(args)) {
    if (args.c.type == Scalar::f32) return launch_activate_rows<float>(args, executor);
    return args.c.type == Scalar::f16 ? launch_activate_rows<f16>(args, executor)
                                      : launch_activate_rows<bf16>(args, executor);
  }
  const i64 count = batch_count(args) * args.m * args.n;
  launch("gemm", args.a.type == Scalar::f64 ? activate_kernel<double> : activate_kernel<float>,
         grid_for(count, threads, executor), threads, 0, executor, args, count);
}

i64 element_bytes(const GemmArgs& args) { return args.a.type == Scalar::f64 ? 8 : 4; }
i64 row_parts(const GemmArgs& args, i64 width) {
  return args.row_sums.data ? batch_count(args) * args.m * tile::ceil_div<i64>(args.n, width) : 0;
}
i64 column_parts(const GemmArgs& args, i64 height) {
  return args.column_sums.data ? batch_count(args) * args.n * tile::ceil_div<i64>(args.m, height) : 0;
}

}  // namespace

i64 line_bytes(const GemmArgs& args, i64 height, i64 width) {
  return (row_parts(args, width) + column_parts(args, height)) * element_bytes(args);
}

LineParts line_parts(const GemmArgs& args, i64 height, i64 width) {
  LineParts parts{tile::ceil_div<i64>(args.m, height), tile::ceil_div<i64>(args.n, width), nullptr, nullptr};
  char* const memory = static_cast<char*>(args.workspace);
  if (args.row_sums.data) parts.rows = memory;
  if (args.column_sums.data) parts.columns = memory + row_parts(args, width) * element_bytes(args);
  return parts;
}

void add_parts(const GemmArgs& args, const LineParts& parts, Executor& executor) {
  const auto add = args.a.type == Scalar::f64 ? launch_add<double> : launch_add<float>;
  add(args, args.row_sums, true, parts.rows, parts.across, executor);
  add(args, args.column_sums, false, parts.columns, parts.down, executor);
}

i64 finish_bytes(const GemmArgs& args) { return line_bytes(args, pass_height, pass_width); }

void finish_lines(const GemmArgs& args, Executor& executor) {
  if (args.slope.data) return activate(args, executor);
  if (is_quick(args)) {
    if (args.c.type == Scalar::f32) return launch_quick<float>(args, executor);
    return args.c.type == Scalar::f16 ? launch_quick<f16>(args, executor) : launch_quick<bf16>(args, executor);
  }
  const LineParts parts = line_parts(args, pass_height, pass_width);
  const auto kernel =
      args.a.type == Scalar::f64 ? finish_kernel<double, DoubleLanes> : finish_kernel<float, LaneMatrix>;
  launch("gemm", kernel, batch_count(args) * parts.down * parts.across, threads, 0, executor, args, parts);
  add_parts(args, parts, executor);
}

}  // namespace tessera::gpu_kernels
