// Copies between layouts; views need no kernel.
#include <algorithm>

#include "kernels/shared/panels.h"
#include "kernels/shared/tables.h"

namespace tessera::TESSERA_KERNELS {
namespace {

// Moves an operand by `elements` elements.
void advance(TensorArg& arg, int64_t elements, DType dtype) {
  arg.data = static_cast<std::byte*>(arg.data) + elements * static_cast<int64_t>(size_of(dtype));
}

// Copies all of `from` to a region of `to` that starts `offset` elements in and is `step` wide along `dim`.
void copy_into(const Call& call, Plan& plan, const Operand& to, int64_t offset, const Operand& from, int64_t dim = 0,
               int64_t step = 1) {
  CopyArgs args{};
  args.rank = checked_rank(call, from);
  set_lengths(args.lengths, from);
  args.to = {to.data_ptr(), scalar_of(to.dtype()), {}};
  std::copy(to.strides().begin(), to.strides().end(), args.to.strides);
  if (args.rank > 0) args.to.strides[dim] *= step;
  advance(args.to, offset, to.dtype());
  args.from = operand(from, args.rank);
  launch_copy(plan, args);
}

// A copy, also of what is packed for this device's products.
void clone(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &y = call.out[0];
  if (x.packing()) plan.launch("unpack", gemm_table().unpack, panel_args(y, x));
  else copy(call, plan, y, x);
}
std::optional<Packing> reads_panels(const Call& call, size_t) {
  return call.in[0].packing() ? weight_panels(call.in[0]) : std::nullopt;
}

// A copy of bits: both sides are taken as of one type, the narrower one, of which an element of the other is a row.
void bitcast(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &y = call.out[0];
  const bool spreads = size_of(x.dtype()) > size_of(y.dtype());
  const Operand &wide = spreads ? x : y, &narrow = spreads ? y : x;
  const auto ratio = static_cast<long long>(size_of(wide.dtype()) / size_of(narrow.dtype()));
  CopyArgs args{};
  args.rank = checked_rank(call, y);
  set_lengths(args.lengths, wide);
  TensorArg parts = operand(wide, args.rank), whole = operand(narrow, args.rank);
  parts.type = whole.type;
  if (ratio > 1) {
    if (args.rank == max_rank) throw Error("bitcast: " + describe(x) + " has more than 7 dims");
    for (int d = 0; d < args.rank; ++d) parts.strides[d] *= ratio;
    const long long step = narrow.strides().back();
    whole.strides[args.rank - 1] = step * ratio;
    whole.strides[args.rank] = step;
    parts.strides[args.rank] = 1;
    args.lengths[args.rank++] = ratio;
  }
  args.from = spreads ? parts : whole;
  args.to = spreads ? whole : parts;
  launch_copy(plan, args);
}

void pack(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &y = call.out[0];
  if (!y.packing()) return copy(call, plan, y, x);
  const auto panels = weight_panels(x);
  if (!panels || panels->name != y.packing() || panels->bytes != y.storage_bytes())
    throw Error("pack: " + *y.packing() + " of " + std::to_string(y.storage_bytes()) + " bytes is no layout in which " +
                "kernels of this device and instruction set want " + describe(x));
  plan.launch("pack", gemm_table().pack, panel_args(x, y));
}
// Of a reshape that strides do not allow as a view: input and output have the same elements in row-major order.
void reshape(const Call& call, Plan& plan) {
  CopyArgs args{};
  args.rank = checked_rank(call, call.in[0]);
  set_lengths(args.lengths, call.in[0]);
  args.to = {call.out[0].data_ptr(), scalar_of(call.out[0].dtype()), {}};
  Strides rows = contiguous_strides(call.in[0].shape());
  std::copy(rows.begin(), rows.end(), args.to.strides);
  args.from = operand(call.in[0], args.rank);
  launch_copy(plan, args);
}

void concat(const Call& call, Plan& plan) {
  const Operand& out = call.out[0];
  int64_t dim = call.attrs.as<DimAttrs>().dim, at = 0;
  if (dim < 0) dim += out.dim();
  for (const Operand& part : call.in) {
    copy_into(call, plan, out, at * out.strides()[dim], part);
    at += part.size(dim);
  }
}

void slice_backward(const Call& call, Plan& plan) {
  const auto& a = call.attrs.as<ScatterAttrs>();
  const Operand& out = call.out[0];
  fill(call, plan, out, 0);
  copy_into(call, plan, out, a.start.value() * out.strides()[a.dim], call.in[0], a.dim, a.step);
}

void pad(const Call& call, Plan& plan) {
  const auto& a = call.attrs.as<PadAttrs>();
  const Operand& out = call.out[0];
  int64_t offset = 0, rank = out.dim();
  for (int64_t d = std::max<int64_t>(0, rank - 6); d < rank; ++d) offset += a.low[6 - rank + d] * out.strides()[d];
  fill(call, plan, out, a.value);
  copy_into(call, plan, out, offset, call.in[0]);
}

void flip(const Call& call, Plan& plan) {
  const Operand &in = call.in[0], &out = call.out[0];
  CopyArgs args{};
  args.rank = checked_rank(call, out);
  set_lengths(args.lengths, out);
  args.to = operand(out, args.rank);
  args.from = operand(in, args.rank);
  if (in.numel() == 0) return;
  for (int64_t d : call.attrs.as<PermuteAttrs>().dims) {
    if (d < 0) d += in.dim();
    advance(args.from, (in.size(d) - 1) * args.from.strides[d], in.dtype());
    args.from.strides[d] = -args.from.strides[d];
  }
  launch_copy(plan, args);
}

template <bool upper>
void triangle(const Call& call, Plan& plan) {
  const Operand &in = call.in[0], &out = call.out[0];
  TriangleArgs args{};
  args.rank = checked_rank(call, out);
  set_lengths(args.lengths, out);
  args.to = operand(out, args.rank);
  args.from = operand(in, args.rank);
  args.diagonal = call.attrs.as<DiagonalAttrs>().diagonal;
  args.upper = upper;
  plan.launch("triangle", elementwise_table().triangle, args);
}

constexpr Kernel clone_kernels[] = {{.name = "copy", .plan = clone, .pack = reads_panels}};
constexpr Kernel bitcast_kernels[] = {{.name = "copy", .plan = bitcast}};
constexpr Kernel pack_kernels[] = {{.name = "copy", .plan = pack}};
constexpr Kernel reshape_kernels[] = {{.name = "copy", .plan = reshape}};
constexpr Kernel concat_kernels[] = {{.name = "copy", .plan = concat}};
constexpr Kernel slice_backward_kernels[] = {{.name = "fill_copy", .plan = slice_backward}};
constexpr Kernel pad_kernels[] = {{.name = "fill_copy", .plan = pad}};
constexpr Kernel flip_kernels[] = {{.name = "copy", .plan = flip}};
constexpr Kernel tril_kernels[] = {{.name = "rows", .plan = triangle<false>}};
constexpr Kernel triu_kernels[] = {{.name = "rows", .plan = triangle<true>}};

}  // namespace

std::span<const KernelTableEntry> shape_kernels() {
  static constexpr KernelTableEntry entries[] = {{"clone", clone_kernels},   {"reshape", reshape_kernels},
                                                 {"concat", concat_kernels}, {"slice_backward", slice_backward_kernels},
                                                 {"pad", pad_kernels},       {"flip", flip_kernels},
                                                 {"tril", tril_kernels},     {"triu", triu_kernels},
                                                 {"pack", pack_kernels},     {"bitcast", bitcast_kernels}};
  return entries;
}

}  // namespace tessera::TESSERA_KERNELS
