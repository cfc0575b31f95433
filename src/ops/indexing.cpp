// Reading and adding at computed places. Kernels check every index: infer sees shapes only.
#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "core/element.h"
#include "ops/elements.h"
#include "ops/gradient.h"
#include "ops/index_check.h"
#include "ops/on_card.h"
#include "ops/on_host.h"
#include "ops/op_table.h"
#include "ops/reference.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- gather

Metas infer_gather(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("gather", in);
  check_places("gather", in[0].shape, in[1], attrs.as<DimAttrs>().dim);
  return {{in[1].shape, in[0].dtype, in[0].device}};
}
Tensors gather_vjp(const Saved& s, const Tensors& grads) {
  return {scatter_add(zeros_to_copy(s.metas[0]), s.attrs.as<DimAttrs>().dim, s.inputs[1], grads[0]), {}};
}

Tensors gather_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {reference::generate(in[1].shape(), in[0].dtype(),
                              [&](auto& i) { return reference::get(in[0], place(in[0], in[1], attrs, i)); })};
}

// ---- index_select, embedding

Metas infer_index_select(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("index_select", in);
  check_index("index_select", in[1]);
  if (in[1].shape.size() != 1)
    throw Error(fmt::format("index_select: the index {} is not 1-d", to_string(in[1].shape)));
  Shape shape = in[0].shape;
  shape[normalize_dim("index_select", attrs.as<DimAttrs>().dim, shape)] = in[1].shape[0];
  return {{shape, in[0].dtype, in[0].device}};
}
Tensors index_select_vjp(const Saved& s, const Tensors& grads) {
  const Tensor& g = grads[0];
  int64_t dim = normalize_dim("index_select", s.attrs.as<DimAttrs>().dim, g.shape());
  Shape column(static_cast<size_t>(g.dim()), Dim(1));
  column[dim] = s.inputs[1].shape()[0];
  return {scatter_add(zeros_to_copy(s.metas[0]), dim, expand(reshape(s.inputs[1], column), g.shape()), g), {}};
}
Tensors index_select_reference(std::span<const Tensor> in, const Attrs& attrs) {
  int64_t dim = normalize_dim("", attrs.as<DimAttrs>().dim, in[0].shape());
  Shape shape = in[0].shape();
  shape[dim] = in[1].shape()[0];
  return {reference::generate(shape, in[0].dtype(), [&](auto& i) {
    reference::Index from = i, which = {i[dim]};
    from[dim] = static_cast<int64_t>(reference::get(in[1], which));
    return reference::get(in[0], from);
  })};
}

extern const Op embedding_backward_op, embedding_backward_update_op;

Metas infer_embedding(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs("embedding", in);
  check_index("embedding", in[0]);
  if (in[1].shape.size() != 2)
    throw Error(fmt::format("embedding: the weight {} is not [rows, width]", to_string(in[1].shape)));
  Shape shape = in[0].shape;
  shape.push_back(in[1].shape[1]);
  return {{shape, in[1].dtype, in[1].device}};
}
Tensors embedding_vjp(const Saved& s, const Tensors& grads) {
  return {{}, dispatch_one(embedding_backward_op, {s.inputs[0], grads[0]}, ScatterAttrs{0, s.metas[1].shape[0], 0, 1})};
}
// Into what other uses of the weight have given, if there is something.
Tensors embedding_fused_vjp(const Saved& s, const Tensors& grads) {
  if (!s.so_far.defined()) return embedding_vjp(s, grads);
  if (s.so_far.dtype() != grads[0].dtype()) return {{}, add(s.so_far, embedding_vjp(s, grads)[1])};
  return {{}, dispatch_one(embedding_backward_update_op, {s.so_far, s.inputs[0], grads[0]}, {})};
}
reference::Index without_last(reference::Index i) {
  i.pop_back();
  return i;
}
Tensors embedding_reference(std::span<const Tensor> in, const Attrs&) {
  Shape shape = in[0].shape();
  shape.push_back(in[1].shape()[1]);
  return {reference::generate(shape, in[1].dtype(), [&](auto& i) {
    reference::Index at = {static_cast<int64_t>(reference::get(in[0], without_last(i))), i.back()};
    return reference::get(in[1], at);
  })};
}

// A gradient has a row for each index.
void check_rows(std::string_view op, const TensorMeta& index, const TensorMeta& gradient) {
  check_index(op, index);
  if (gradient.shape.empty() || !(Shape(gradient.shape.begin(), gradient.shape.end() - 1) == index.shape))
    throw Error(fmt::format("{}: the gradient {} has not a row for each index of {}", op, to_string(gradient.shape),
                            to_string(index.shape)));
}

// Adds each row of the gradient to the row of the weight's that its index names, in the order of the indices.
Metas infer_embedding_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("embedding_backward", in);
  check_rows("embedding_backward", in[0], in[1]);
  return {{{attrs.as<ScatterAttrs>().size, in[1].shape.back()}, in[1].dtype, in[1].device}};
}
Tensors embedding_backward_vjp(const Saved& s, const Tensors& grads) { return {{}, embedding(s.inputs[0], grads[0])}; }
void add_rows_to(const Tensor& out, const Tensor& index, const Tensor& grad) {
  reference::each_index(grad.shape(), [&](auto& i) {
    reference::Index at = {static_cast<int64_t>(reference::get(index, without_last(i))), i.back()};
    reference::set(out, at, reference::get(out, at) + reference::get(grad, i));
  });
}
Tensors embedding_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Shape shape = {attrs.as<ScatterAttrs>().size, in[1].shape().back()};
  Tensor out = reference::generate(shape, in[1].dtype(), [](auto&) { return 0.0; });
  add_rows_to(out, in[0], in[1]);
  return {out};
}

// sum | index, gradient: the same, added to what sum holds.
Metas infer_embedding_backward_update(std::span<const TensorMeta> in, const Attrs&) {
  constexpr const char* op = "embedding_backward_";
  require_inputs(op, in);
  check_rows(op, in[1], in[2]);
  if (in[0].shape.size() != 2 || !(in[0].shape.back() == in[2].shape.back()))
    throw Error(fmt::format("{}: rows of {} do not fit into {}", op, to_string(in[2].shape), to_string(in[0].shape)));
  if (in[0].dtype != in[2].dtype)
    throw Error(fmt::format("{}: {} is added to {}", op, name(in[2].dtype), name(in[0].dtype)));
  return {in[0]};
}
Tensors embedding_backward_update_vjp(const Saved& s, const Tensors& grads) {
  return {grads[0], {}, embedding(s.inputs[1], grads[0])};
}
Tensors embedding_backward_update_reference(std::span<const Tensor> in, const Attrs&) {
  Tensor out = reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) { return reference::get(in[0], i); });
  add_rows_to(out, in[1], in[2]);
  return {out};
}

Metas infer_one_hot(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("one_hot", in);
  check_index("one_hot", in[0]);
  Shape shape = in[0].shape;
  shape.push_back(attrs.as<OneHotAttrs>().classes);
  return {{shape, Int64, in[0].device}};
}
Tensors one_hot_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Shape shape = in[0].shape();
  shape.push_back(attrs.as<OneHotAttrs>().classes);
  return {reference::generate(shape, Int64, [&](auto& i) {
    return reference::get(in[0], without_last(i)) == static_cast<double>(i.back()) ? 1.0 : 0.0;
  })};
}

// ---- places that values choose

Metas infer_nonzero(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs("nonzero", in);
  return {{{count_symbol("nonzero", in[0].shape.numel()), Dim(in[0].shape.rank())}, Int64, in[0].device}};
}
CardKernel count_kernel("count_nonzero", R"(
// Of rows of `columns` that lie `pitch` apart.
extern "C" TESSERA_KERNEL(256) void count_nonzero(const T* x, i64* count, i64 total, i64 columns, i64 pitch) {
  TESSERA_SHARED u32 own;
  if (thread_in_block() == 0) own = 0;
  sync_block();
  u32 found = 0;
  const i64 step = i64{blocks_in_grid()} * 256;
  for (i64 i = block_in_grid() * 256 + thread_in_block(); i < total; i += 4 * step) {
    T held[4];
    unroll<4>([&](auto k) {
      const i64 at = i + k * step;
      held[k] = at < total ? x[at + (columns < pitch ? at / columns * (pitch - columns) : 0)] : T(0);
    });
    unroll<4>([&](auto k) { found += convert_element<compute_t<T>>(held[k]) != 0; });
  }
  if (found) atomicAdd(&own, found);
  sync_block();
  if (thread_in_block() == 0) atomicAdd(reinterpret_cast<unsigned long long*>(count), static_cast<unsigned long long>(own));
}
)");

Tensor nonzero_count(std::span<const Tensor> in, const Attrs&) {
  const bool has_rows = in[0].dim() == 2 && in[0].stride(1) == 1 && in[0].stride(0) >= in[0].size(1);
  if (on_card(in[0]) && in[0].numel() > 0 && (in[0].is_contiguous() || has_rows)) {
    const Tensor count = zeros({}, Int64, in[0].device());
    const void* const from = in[0].data_ptr();
    const int64_t columns = has_rows ? in[0].size(1) : 1, pitch = has_rows ? in[0].stride(0) : 1;
    const int64_t most = 8 * gpu::state(in[0].device()).properties.multiprocessors;
    count_kernel.launch(in[0], std::min((in[0].numel() + 1023) / 1024, most), from, count.data_ptr(), in[0].numel(),
                        columns, pitch);
    return count;
  }
  if (on_host(in[0]) && in[0].is_contiguous()) {
    std::atomic<int64_t> found = 0;
    with_element_type(in[0].dtype(), [&]<class T>(T*) {
      each_part(in[0].numel(), 1, [&](int64_t begin, int64_t end) {
        const T* const from = in[0].data<T>();
        int32_t own = 0;  // of some thousand elements
        for (int64_t i = begin; i < end; ++i) own += from[i] != T(0);
        found += own;
      });
    });
    return full({}, static_cast<double>(found.load()), Int64);
  }
  return sum(cast(ne(in[0], number_like(in[0], 0)), Int64));
}
Tensors nonzero_reference(std::span<const Tensor> in, const Attrs&) {
  std::vector<reference::Index> found;
  reference::each_index(in[0].shape(), [&](auto& i) {
    if (reference::get(in[0], i) != 0) found.push_back(i);
  });
  return {reference::generate({static_cast<int64_t>(found.size()), in[0].dim()}, Int64, [&](auto& i) {
    return static_cast<double>(found[static_cast<size_t>(i[0])][static_cast<size_t>(i[1])]);
  })};
}

// ---- the ops

const Op nonzero_op = {.name = "nonzero",
                       .inputs = "x",
                       .outputs = "places",
                       .infer = infer_nonzero,
                       .reference = nonzero_reference,
                       .count = nonzero_count};
const Op gather_op = {.name = "gather",
                      .inputs = "x, index",
                      .outputs = "y",
                      .attrs = attrs_of<DimAttrs>,
                      .infer = infer_gather,
                      .vjp = gather_vjp,
                      .reference = gather_reference,
                      .saves = {.inputs = 2, .metas = 1},
                      .elements = moved<1>};
const Op index_select_op = {.name = "index_select",
                            .inputs = "x, index",
                            .outputs = "y",
                            .attrs = attrs_of<DimAttrs>,
                            .infer = infer_index_select,
                            .vjp = index_select_vjp,
                            .reference = index_select_reference,
                            .saves = {.inputs = 2, .metas = 1},
                            .elements = moved<1>};
const Op embedding_op = {.name = "embedding",
                         .inputs = "index, weight",
                         .outputs = "y",
                         .infer = infer_embedding,
                         .vjp = embedding_vjp,
                         .fused_vjp = embedding_fused_vjp,
                         .reference = embedding_reference,
                         .saves = {.inputs = 1, .metas = 2},
                         .adds_up = 1};
const Op embedding_backward_op = {.name = "embedding_backward",
                                  .inputs = "index, dy",
                                  .outputs = "dweight",
                                  .attrs = attrs_of<ScatterAttrs>,
                                  .infer = infer_embedding_backward,
                                  .vjp = embedding_backward_vjp,
                                  .reference = embedding_backward_reference,
                                  .saves = {.inputs = 1}};
const Op embedding_backward_update_op = {.name = "embedding_backward_",
                                         .inputs = "sum, index, dy",
                                         .outputs = "sum",
                                         .infer = infer_embedding_backward_update,
                                         .vjp = embedding_backward_update_vjp,
                                         .reference = embedding_backward_update_reference,
                                         .saves = {.inputs = 0b10},
                                         .in_place = true};
const Op one_hot_op = {.name = "one_hot",
                       .inputs = "x",
                       .outputs = "y",
                       .attrs = attrs_of<OneHotAttrs>,
                       .infer = infer_one_hot,
                       .reference = one_hot_reference};

}  // namespace

std::span<const Op* const> indexing_ops() {
  static constexpr const Op* ops[] = {
      &gather_op,  &index_select_op, &embedding_op, &embedding_backward_op, &embedding_backward_update_op,
      &one_hot_op, &nonzero_op};
  return ops;
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  return dispatch_one(gather_op, {x, index}, DimAttrs{dim});
}
Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  return dispatch_one(index_select_op, {x, index}, DimAttrs{dim});
}
Tensor embedding(const Tensor& index, const Tensor& weight) { return dispatch_one(embedding_op, {index, weight}); }
Tensor one_hot(const Tensor& index, int64_t classes) {
  if (classes < 1) throw Error(fmt::format("one_hot: {} classes", classes));
  return dispatch_one(one_hot_op, {index}, OneHotAttrs{classes});
}

Tensor nonzero(const Tensor& x) { return dispatch_one(nonzero_op, {x}); }

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  if (mask.dtype() != Bool) throw Error(fmt::format("masked_select: the mask is {}, not bool", name(mask.dtype())));
  const Shape shape = broadcast_shapes("masked_select", x.shape(), mask.shape());
  const Tensor places = nonzero(flatten(expand(mask, shape)));
  return index_select(flatten(expand(x, shape)), 0, flatten(places));
}

}  // namespace tessera
