// Convolutions, forward and backward, as products of implicit matrices.
#include "conv_packs.h"
#include "conv_simt.h"
#include "tile/convolution.h"

namespace tessera::gpu_kernels {
namespace {

i64 output(const ConvArgs& args, int d) {
  return tile::Window{args.size[d], args.filter[d], args.stride[d], args.dilation[d], args.padding[d], args.padding[d]}
      .output();
}

/// Strides and dilations from there on leave room for one window, or are those of one tap, and then matter no more.
int narrow(i64 x) { return static_cast<int>(tile::min<i64>(x, 0x7fffffff)); }

Digits digits(const i64 (&length)[3], const i64 (&stride)[3]) {
  Digits d;
  for (int i = 0; i < 3; ++i) {
    d.length[i] = length[i];
    d.stride[i] = stride[i];
  }
  return d;
}

/// How far neighbours along a dim are apart in memory.
i64 last_step(const ImplicitMatrix& m, const Digits& d) {
  for (int i = 2; i >= 0; --i) {
    if (d.length[i] == 1) continue;
    const i64 step = d.stride[i] + d.down[i] * m.stride[0] + d.across[i] * m.stride[1];
    return step < 0 ? -step : step;
  }
  return i64{1} << 62;
}

ImplicitMatrix ordered(ImplicitMatrix m) {
  m.along_depth = last_step(m, m.depth) <= last_step(m, m.edge);
  for (Digits* d : {&m.edge, &m.depth})
    for (i64& length : d->length)
      if (length == 0) length = 1;  // of a matrix without elements, which nobody reads
  return m;
}

/// Channels and the taps of a filter, as one dim of a matrix: channels first or last, as they lie in memory.
struct Taps {
  i64 channels, rows, columns;
  i64 channel_stride, row_stride, column_stride;
  int down = 0, across = 0;

  Digits digits(bool channels_last) const {
    Digits d;
    const int c = channels_last ? 2 : 0, r = channels_last ? 0 : 1;
    d.length[c] = channels;
    d.stride[c] = channel_stride;
    d.length[r] = rows;
    d.stride[r] = row_stride;
    d.down[r] = down;
    d.length[r + 1] = columns;
    d.stride[r + 1] = column_stride;
    d.across[r + 1] = across;
    return d;
  }
};

bool channels_last(const ConvTensor& t) { return t.strides[1] == 1; }

/// The elements of a filter.
Taps filter_taps(const ConvArgs& args) {
  return {args.channels / args.groups, args.filter[0],    args.filter[1],
          args.w.strides[1],           args.w.strides[2], args.w.strides[3]};
}

/// The positions (image, row, column) of the output in a tensor shaped like it or, for null, those of windows on x.
Digits positions(const ConvArgs& args, const ConvTensor* t) {
  const i64 length[3] = {args.images, output(args, 0), output(args, 1)};
  if (t) return digits(length, {t->strides[0], t->strides[2], t->strides[3]});
  Digits d = digits(length, {args.x.strides[0], 0, 0});
  d.down[1] = narrow(args.stride[0]);
  d.across[2] = narrow(args.stride[1]);
  return d;
}

void set_image(ImplicitMatrix& m, const ConvTensor& t, i64 height, i64 width) {
  m.data = t.data;
  m.size[0] = height;
  m.size[1] = width;
  m.stride[0] = t.strides[2];
  m.stride[1] = t.strides[3];
}

/// Windows of the images: taps by positions of the output.
void set_windows(ImplicitMatrix& m, const ConvArgs& args, Digits& positions_of, Digits& taps_of, bool last) {
  set_image(m, args.x, args.size[0], args.size[1]);
  m.group_stride = args.channels / args.groups * args.x.strides[1];
  m.top = -narrow(args.padding[0]);
  m.left = -narrow(args.padding[1]);
  positions_of = positions(args, nullptr);
  const Taps taps{args.channels / args.groups, args.filter[0],          args.filter[1], args.x.strides[1], 0, 0,
                  narrow(args.dilation[0]),    narrow(args.dilation[1])};
  taps_of = taps.digits(last);
}

ImplicitGemm problem(const ConvArgs& args) {
  for (int d = 0; d < 2; ++d)
    if (args.size[d] + 2 * args.padding[d] >= 0x7fffffff) throw_unsupported("a convolution padded to 2^31 and more");
  ImplicitGemm p{};
  p.groups = args.groups;
  p.splits = 1;
  p.activation = Activation::none;
  p.type = args.type;
  return p;
}

/// How far elements of a group can lie from its first one.
i64 span(const ImplicitMatrix& m) {
  const auto reach = [](i64 length, i64 stride) { return (length - 1) * (stride < 0 ? -stride : stride); };
  i64 sum = reach(m.size[0], m.stride[0]) + reach(m.size[1], m.stride[1]);
  for (const Digits* d : {&m.edge, &m.depth})
    for (int i = 0; i < 3; ++i) sum += reach(d->length[i], d->stride[i]);
  return sum;
}

bool fits_matrix_cores(const ImplicitGemm& p) {
  if (!has_matrix_cores()) return false;
  constexpr i64 most = (i64{1} << 31) - 1024;
  for (i64 number : {p.rows, p.columns, p.depth, span(p.a), span(p.b)})
    if (number > most) return false;
  return tile::ceil_div<i64>(p.rows, 64) * tile::ceil_div<i64>(p.columns, 128) <= most / (p.groups * p.splits);
}

#if defined(__HIP__)
constexpr bool floats_as_they_are = true;  // on matrix cores
constexpr bool fetches_packs = true;       // by loads that need not be aligned
#else
constexpr bool floats_as_they_are = false;
constexpr bool fetches_packs = false;
#endif

/// The product in packs, if its operands lie so and it is one for matrix cores: fill(p) tells, and makes p that.
template <bool (*Fill)(ImplicitGemm&)>
ImplicitGemm in_packs(const ImplicitGemm& p) {
  if constexpr (fetches_packs) {
    ImplicitGemm packed = p;
    packed.in_packs = true;
    if (p.type != Scalar::f64 && Fill(packed) && fits_matrix_cores(packed)) return packed;
  }
  return p;
}

void set_inverses(ImplicitMatrix& m) {
  for (Digits* d : {&m.edge, &m.depth})
    for (int i = 0; i < 2; ++i) d->inverse[i] = Inverse::of(d->length[1 + i]);
  for (int i = 0; i < 2; ++i) m.inverse[i] = Inverse::of(m.divisor[i]);
}

/// Products on ordinary cores.
void implicit_gemm_f32(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<float, InMemory<float>>(problem, executor);
  join_splits<float, float>(problem, executor);
}
void implicit_gemm_f64(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<double, InMemory<double>>(problem, executor);
  join_splits<double, double>(problem, executor);
}
void implicit_gemm_half(const ImplicitGemm& problem, Executor& executor) {
  run_implicit<float, HalvesInMemory>(problem, executor);
  if (problem.type == Scalar::f16) join_splits<float, f16>(problem, executor);
  else join_splits<float, bf16>(problem, executor);
}

void run(ImplicitGemm p, bool tf32, Executor& executor) {
  if (p.splits == 1) p.split_depth = p.depth;
  if (!p.in_packs) {
    p.a = ordered(p.a);
    p.b = ordered(p.b);
  }
  set_inverses(p.a);
  set_inverses(p.b);
  const Scalar type = p.type;
  if (type == Scalar::f64) implicit_gemm_f64(p, executor);
  else if (type == Scalar::f32 && (tf32 || floats_as_they_are) && fits_matrix_cores(p)) implicit_mma_f32(p, executor);
  else if (type == Scalar::f32) implicit_gemm_f32(p, executor);
  else if (!fits_matrix_cores(p)) implicit_gemm_half(p, executor);
  else if (type == Scalar::f16) implicit_mma_f16(p, executor);
  else implicit_mma_bf16(p, executor);
}

/// [filters, positions] = [filters, taps] [taps, positions]
ImplicitGemm forward_product(const ConvArgs& args) {
  const i64 filters = args.filters / args.groups;
  const bool last = channels_last(args.x);
  ImplicitGemm p = problem(args);
  p.a.data = args.w.data;
  p.a.group_stride = filters * args.w.strides[0];
  p.a.edge = digits({1, 1, filters}, {0, 0, args.w.strides[0]});
  p.a.depth = filter_taps(args).digits(last);
  set_windows(p.b, args, p.b.edge, p.b.depth, last);
  p.c = args.y.data;
  p.c_group = filters * args.y.strides[1];
  p.c_row = args.y.strides[1];
  p.c_column = positions(args, &args.y);
  p.bias = args.bias;
  p.activation = args.activation;
  p.rows = filters;
  p.columns = p.b.edge.count();
  p.depth = p.b.depth.count();
  return p;
}

/// [channels, places] = [channels, taps] [taps, places], where a tap of a place meets the output at the place less the
/// tap, if the stride divides that.
ImplicitGemm images_product(const ConvArgs& args) {
  const i64 filters = args.filters / args.groups, channels = args.channels / args.groups;
  const bool last = channels_last(args.y);
  ImplicitGemm p = problem(args);
  p.a.data = args.w.data;
  p.a.group_stride = filters * args.w.strides[0];
  p.a.edge = digits({1, 1, channels}, {0, 0, args.w.strides[1]});
  p.a.depth =
      Taps{filters, args.filter[0], args.filter[1], args.w.strides[0], args.w.strides[2], args.w.strides[3]}.digits(
          last);

  set_image(p.b, args.y, output(args, 0), output(args, 1));
  p.b.group_stride = filters * args.y.strides[1];
  p.b.top = narrow(args.padding[0]);
  p.b.left = narrow(args.padding[1]);
  p.b.divisor[0] = narrow(args.stride[0]);
  p.b.divisor[1] = narrow(args.stride[1]);
  const i64 places[3] = {args.images, args.size[0], args.size[1]};
  p.b.edge = digits(places, {args.y.strides[0], 0, 0});
  p.b.edge.down[1] = p.b.edge.across[2] = 1;
  p.b.depth = Taps{filters,
                   args.filter[0],
                   args.filter[1],
                   args.y.strides[1],
                   0,
                   0,
                   -narrow(args.dilation[0]),
                   -narrow(args.dilation[1])}
                  .digits(last);

  p.c = args.x.data;
  p.c_group = channels * args.x.strides[1];
  p.c_row = args.x.strides[1];
  p.c_column = digits(places, {args.x.strides[0], args.x.strides[2], args.x.strides[3]});
  p.rows = channels;
  p.columns = p.b.edge.count();
  p.depth = p.b.depth.count();
  return p;
}

template <ImplicitGemm (*Product)(const ConvArgs&)>
i64 filters_workspace(const ConvArgs& args) {
  return packed_bytes(in_packs<images_in_packs>(Product(args)));
}

template <ImplicitGemm (*Product)(const ConvArgs&)>
void multiply(const ConvArgs& args, Executor& executor) {
  ImplicitGemm p = in_packs<images_in_packs>(Product(args));
  if constexpr (fetches_packs) {
    if (p.in_packs) (p.type == Scalar::f32 ? pack_filters<u32> : pack_filters<tile::u16>)(p, args.workspace, executor);
  }
  run(p, args.tf32, executor);
}

/// Into how many parts the sum over positions is cut, so that some 256 blocks take part: the same on every card.
i64 splits_of(const ConvArgs& args) {
  const i64 rows = args.filters / args.groups, columns = args.channels / args.groups * args.filter[0] * args.filter[1];
  const i64 blocks = tile::ceil_div<i64>(rows, 64) * tile::ceil_div<i64>(columns, 64) * args.groups;
  const i64 depth = args.images * output(args, 0) * output(args, 1);
  return tile::max<i64>(1, tile::min(256 / tile::max<i64>(blocks, 1), depth / 512));
}

i64 backward_filters_workspace(const ConvArgs& args) {
  const i64 splits = splits_of(args);
  const i64 elements = args.filters * (args.channels / args.groups) * args.filter[0] * args.filter[1];
  return splits == 1 ? 0 : splits * elements * (args.type == Scalar::f64 ? 8 : 4);
}

/// [filters, taps] = [filters, positions] [positions, taps]
void backward_filters(const ConvArgs& args, Executor& executor) {
  const i64 filters = args.filters / args.groups;
  const bool last = channels_last(args.x);
  ImplicitGemm p = problem(args);
  p.a.data = args.y.data;
  p.a.group_stride = filters * args.y.strides[1];
  p.a.edge = digits({1, 1, filters}, {0, 0, args.y.strides[1]});
  p.a.depth = positions(args, &args.y);
  set_windows(p.b, args, p.b.depth, p.b.edge, last);
  p.c = args.w.data;
  p.c_group = filters * args.w.strides[0];
  p.c_row = args.w.strides[0];
  p.c_column = filter_taps(args).digits(last);
  p.rows = filters;
  p.columns = p.b.edge.count();
  p.depth = p.b.depth.count();
  p = in_packs<filters_in_packs>(p);
  p.splits = splits_of(args);
  p.split_depth = tile::round_up<i64>(tile::ceil_div(p.depth, p.splits), p.in_packs ? image_pack : 1);
  p.partial = args.workspace;
  run(p, args.tf32, executor);
}

bool supports(const ConvArgs& args) {
  return args.type == Scalar::f32 || args.type == Scalar::f64 || args.type == Scalar::f16 || args.type == Scalar::bf16;
}

}  // namespace

ConvTable conv_table = {supports,
                        filters_workspace<forward_product>,
                        filters_workspace<images_product>,
                        backward_filters_workspace,
                        multiply<forward_product>,
                        multiply<images_product>,
                        backward_filters,
                        nullptr,
                        nullptr,
                        nullptr};  // Winograd's algorithm is the CPU's alone

}  // namespace tessera::gpu_kernels
