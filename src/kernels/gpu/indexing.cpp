// Reading and writing at computed places, and bits. Kernels check each index and leave out what it would have read or
// written.
#include "kernels/args/gpu/indexing.h"

#include <optional>

#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"
#include "tessera/device.h"

namespace tessera::gpu_kernels {
namespace {

int64_t dim_of(const Call& call, const Operand& x) {
  checked_rank(call, x);
  const int64_t dim = call.attrs.as<DimAttrs>().dim;
  return dim < 0 ? dim + x.dim() : dim;
}

TensorArg repeated(const Operand& t) { return {t.data_ptr(), scalar_of(t.dtype()), {}}; }

TakeArgs take_args(const Call& call) {
  const Operand& out = call.out[0];
  TakeArgs args{};
  args.op = call.op.name.data();
  args.rank = checked_rank(call, out);
  set_lengths(args.lengths, out);
  args.out = operand(out, args.rank);
  return args;
}

void gather(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1];
  TakeArgs args = take_args(call);
  args.x = operand(x, args.rank);
  args.index = operand(index, args.rank);
  args.bound = 1;
  if (args.rank > 0) {
    const int64_t dim = dim_of(call, x);
    args.x.strides[dim] = 0;
    args.step = x.strides()[dim];
    args.bound = x.size(dim);
  }
  plan.launch("take", index_table().take, args);
}

void index_select(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1];
  const int64_t dim = dim_of(call, x);
  TakeArgs args = take_args(call);
  args.x = operand(x, args.rank);
  args.x.strides[dim] = 0;
  args.index = repeated(index);
  args.index.strides[dim] = index.strides()[0];
  args.step = x.strides()[dim];
  args.bound = x.size(dim);
  plan.launch("take", index_table().take, args);
}

void embedding(const Call& call, Plan& plan) {
  const Operand &index = call.in[0], &weight = call.in[1];
  TakeArgs args = take_args(call);
  args.x = repeated(weight);
  args.x.strides[args.rank - 1] = weight.strides()[1];
  args.index = operand(index, args.rank - 1);
  args.index.strides[args.rank - 1] = 0;
  args.step = weight.strides()[0];
  args.bound = weight.size(0);
  plan.launch("take", index_table().take, args);
}

// What lies beside the dim of places, as one dim.
struct Beside {
  int64_t length = 1, out_step = 1, source_step = 1;
};
// Where the index is one for all of it, as that of an embedding.
std::optional<Beside> beside_places(int64_t dim, const Operand& index, const Operand& source, const Operand& out) {
  Beside all;
  for (int64_t d = index.dim() - 1; d >= 0; --d) {
    if (d == dim || index.size(d) == 1) continue;
    if (index.strides()[d] != 0) return {};
    if (all.length == 1) all.out_step = out.strides()[d], all.source_step = source.strides()[d];
    else if (out.strides()[d] != all.out_step * all.length || source.strides()[d] != all.source_step * all.length)
      return {};
    all.length *= index.size(d);
  }
  return all;
}

// Sums of the rows that meet at a place, each in order, by indices that are sorted.
void add_rows(const Call& call, Plan& plan, int64_t dim, const Beside& beside) {
  const Operand &index = call.in[1], &source = call.in[2], &out = call.out[0];
  SumRowsArgs args{};
  args.op = call.op.name.data();
  args.rank = 1;
  args.lengths[0] = args.count = index.size(dim);
  args.index = repeated(index);
  args.index.strides[0] = index.strides()[dim];
  args.x = repeated(source);
  args.x.strides[0] = source.strides()[dim];
  args.rows = out.size(dim);
  args.width = beside.length;
  args.step = beside.source_step;
  args.out_step = beside.out_step;
  args.out = out.data_ptr();
  args.out_row = out.strides()[dim];
  args.adds = true;
  args.workspace = plan.take(index_table().sum_rows_bytes(args.count, args.rows));
  plan.launch("sum_rows", index_table().sum_rows, args);
}

Reason takes_any_order(const Call&) { return nondeterministic_allowed() ? Reason::Ok : Reason::Order; }
Reason adds_in_any_order(const Call& call) {
  const DType dtype = call.out[0].dtype();
  return dtype != Float32 && dtype != Float64 ? Reason::DType : takes_any_order(call);
}

template <ScatterCombine combine, bool in_any_order = false>
void scatter_by(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1], &source = call.in[2], &out = call.out[0];
  copy(call, plan, out, x);
  if (index.numel() == 0) return;
  constexpr int64_t few = 64;  // that come to a line one after the other
  if (const int64_t dim = dim_of(call, x); !in_any_order && combine == ScatterCombine::sum && index.dim() > 0 &&
                                           index.size(dim) > few && is_floating(out.dtype()))
    if (const auto beside = beside_places(dim, index, source, out)) return add_rows(call, plan, dim, *beside);
  const int64_t dim = dim_of(call, x);
  ScatterArgs args{};
  args.op = call.op.name.data();
  args.combine = combine;
  args.in_any_order = in_any_order;
  args.rank = static_cast<int>(index.dim());
  set_lengths(args.lengths, index);
  args.lengths[dim] = 1;
  args.out = operand(out, args.rank);
  args.index = operand(index, args.rank);
  args.source = operand(source, args.rank);
  args.length = index.size(dim);
  args.out_step = out.strides()[dim];
  args.index_step = index.strides()[dim];
  args.source_step = source.strides()[dim];
  args.bound = x.size(dim);
  plan.launch("scatter", scatter_table().combine, args);
}

template <bool in_any_order>
void overwrite(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &index = call.in[1], &out = call.out[0];
  copy(call, plan, out, x);
  if (index.numel() == 0) return;
  const int64_t dim = dim_of(call, x);
  OverwriteArgs args{};
  args.op = call.op.name.data();
  args.rank = static_cast<int>(index.dim());
  set_lengths(args.lengths, index);
  args.out = operand(out, args.rank);
  args.index = operand(index, args.rank);
  args.source = operand(call.in[2], args.rank);
  args.count = out.numel();
  bool is_one = true;  // value, which may come to its places in any order
  for (int64_t d = 0; d < index.dim(); ++d) is_one = is_one && (args.source.strides[d] == 0 || index.size(d) == 1);
  if (!is_one && !in_any_order) args.writers.data = plan.take(args.count * 8);
  const Strides dense = contiguous_strides(out.shape());
  std::copy(dense.begin(), dense.end(), args.writers.strides);
  args.out_step = args.out.strides[dim];
  args.writer_step = dense[static_cast<size_t>(dim)];
  args.out.strides[dim] = args.writers.strides[dim] = 0;
  args.bound = x.size(dim);
  plan.launch("scatter", scatter_table().overwrite, args);
}

void nonzero(const Call& call, Plan& plan) {
  const Operand &x = call.in[0], &out = call.out[0];
  if (out.numel() == 0) return;
  NonzeroArgs args{};
  args.rank = checked_rank(call, x);
  set_lengths(args.lengths, x);
  args.x = operand(x, args.rank);
  args.tiles = (x.numel() + nonzero_tile - 1) / nonzero_tile;
  args.most = out.size(0);
  args.counts = static_cast<long long*>(plan.take(args.tiles * 8));
  args.out = static_cast<long long*>(out.data_ptr());
  args.out_row = out.strides()[0];
  args.out_column = out.strides()[1];
  plan.launch("nonzero", nonzero_table().count, args);
  CumsumArgs sums{};
  sums.rank = 1;
  sums.lengths[0] = args.tiles;
  sums.in = sums.out = {args.counts, Scalar::i64, {1}};
  sums.workspace = plan.take(reduce_table().cumsum_workspace(sums));
  plan.launch("cumsum", reduce_table().cumsum, sums);
  plan.launch("nonzero", nonzero_table().write, args);
}

template <BitOp op>
void bits(const Call& call, Plan& plan) {
  const Operand& out = call.out[0];
  BitsArgs args{};
  args.op = op;
  args.rank = checked_rank(call, out);
  set_lengths(args.lengths, out);
  args.out = operand(out, args.rank);
  args.a = operand(call.in[0], args.rank);
  args.b = operand(call.in[1], args.rank);
  if (out.numel() > 0) plan.launch("bits", bits_table().run, args);
}

void embedding_backward(const Call& call, Plan& plan) {
  const Operand &index = call.in[call.in.size() - 2], &grad = call.in.back(), &out = call.out[0];
  SumRowsArgs args{};
  args.op = call.op.name.data();
  args.rank = checked_rank(call, grad) - 1;
  set_lengths(args.lengths, index);
  args.index = operand(index, args.rank);
  args.x = repeated(grad);
  for (int d = 0; d < args.rank; ++d) args.x.strides[d] = grad.strides()[d];
  args.count = index.numel();
  args.rows = out.size(0);
  args.width = out.size(1);
  args.step = grad.strides().back();
  args.out = out.data_ptr();
  args.out_row = out.strides()[0];
  args.out_step = out.strides()[1];
  args.adds = call.in.size() == 3;
  args.workspace = plan.take(index_table().sum_rows_bytes(args.count, args.rows));
  plan.launch("sum_rows", index_table().sum_rows, args);
}

void one_hot(const Call& call, Plan& plan) {
  const Operand &index = call.in[0], &out = call.out[0];
  OneHotArgs args{};
  args.op = call.op.name.data();
  args.rank = checked_rank(call, index);
  set_lengths(args.lengths, index);
  args.index = operand(index, args.rank);
  args.classes = call.attrs.as<OneHotAttrs>().classes;
  args.out = static_cast<long long*>(out.data_ptr());
  plan.launch("one_hot", index_table().one_hot, args);
}

constexpr Kernel gather_kernels[] = {{.name = "loop", .plan = gather}};
template <ScatterCombine combine>
constexpr Kernel scatter_kernels[] = {{.name = "lines", .plan = scatter_by<combine>}};
constexpr Kernel scatter_add_kernels[] = {
    {.name = "atomics", .supports = adds_in_any_order, .plan = scatter_by<ScatterCombine::sum, true>},
    {.name = "lines", .plan = scatter_by<ScatterCombine::sum>}};
// What comes to a place twice is as in PyTorch where any order is allowed: one of both.
constexpr Kernel overwrite_kernels[] = {{.name = "any", .supports = takes_any_order, .plan = overwrite<true>},
                                        {.name = "last", .plan = overwrite<false>}};
constexpr Kernel nonzero_kernels[] = {{.name = "tiles", .plan = nonzero}};
template <BitOp op>
constexpr Kernel bits_kernels[] = {{.name = "loop", .plan = bits<op>}};
constexpr Kernel index_select_kernels[] = {{.name = "loop", .plan = index_select}};
constexpr Kernel embedding_kernels[] = {{.name = "rows", .plan = embedding}};
constexpr Kernel embedding_backward_kernels[] = {{.name = "sorted", .plan = embedding_backward}};
constexpr Kernel one_hot_kernels[] = {{.name = "loop", .plan = one_hot}};

}  // namespace

std::span<const KernelTableEntry> indexing_kernels() {
  static constexpr KernelTableEntry entries[] = {{"gather", gather_kernels},
                                                 {"scatter", overwrite_kernels},
                                                 {"scatter_add", scatter_add_kernels},
                                                 {"scatter_prod", scatter_kernels<ScatterCombine::product>},
                                                 {"scatter_amax", scatter_kernels<ScatterCombine::largest>},
                                                 {"scatter_amin", scatter_kernels<ScatterCombine::smallest>},
                                                 {"nonzero", nonzero_kernels},
                                                 {"index_select", index_select_kernels},
                                                 {"embedding", embedding_kernels},
                                                 {"embedding_backward", embedding_backward_kernels},
                                                 {"embedding_backward_", embedding_backward_kernels},
                                                 {"one_hot", one_hot_kernels}};
  return entries;
}
std::span<const KernelTableEntry> bit_kernels() {
  static constexpr KernelTableEntry entries[] = {{"bitwise_and", bits_kernels<BitOp::both>},
                                                 {"bitwise_or", bits_kernels<BitOp::either>},
                                                 {"bitwise_xor", bits_kernels<BitOp::one>},
                                                 {"left_shift", bits_kernels<BitOp::left>},
                                                 {"right_shift", bits_kernels<BitOp::right>}};
  return entries;
}

}  // namespace tessera::gpu_kernels
