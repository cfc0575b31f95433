// Operators that move elements: views where strides allow, copies elsewhere.
#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "ops/check.h"
#include "ops/dim_set.h"
#include "ops/elements.h"
#include "ops/gradient.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/reference.h"

namespace tessera {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

extern const Op permute_op, slice_op, slice_backward_op, flip_op, tril_op, triu_op;

Metas like(const TensorMeta& in, Shape shape) { return {{std::move(shape), in.dtype, in.device}}; }

// ---- reshape

Shape resolve_shape(const Shape& in, const Shape& wanted) {
  Dim known = 1;
  int64_t unknown = -1;
  for (int64_t d = 0; d < wanted.rank(); ++d) {
    if (wanted[d] == Dim(-1)) {
      if (unknown >= 0) throw Error(fmt::format("reshape: more than one -1 in {}", to_string(wanted)));
      unknown = d;
    } else if (!wanted[d].is_symbolic() && wanted[d].value() < 0) {
      throw Error(fmt::format("reshape: negative size in {}", to_string(wanted)));
    } else {
      known = known * wanted[d];
    }
  }
  Dim numel = in.numel();
  Shape shape = wanted;
  if (unknown >= 0) {
    if (known == Dim(0)) throw Error(fmt::format("reshape: -1 in {} could be any size", to_string(wanted)));
    shape[unknown] = numel / known;
    known = known * shape[unknown];
  }
  if (!(known == numel))
    throw Error(fmt::format("reshape: {} has {} elements, which do not fill {}", to_string(in), numel.to_string(),
                            to_string(wanted)));
  return shape;
}

// How a tensor lies, symbols or not.
Dim offset_of(const TensorImpl& in) { return in.symbolic ? in.symbolic->offset : Dim(in.offset); }
DimStrides strides_of(const TensorImpl& in) {
  return in.symbolic ? in.symbolic->strides : DimStrides(in.strides.begin(), in.strides.end());
}

// The same of symbols, as far as sizes are provably equal.
std::optional<DimStrides> open_strides_for(const TensorImpl& in, const Shape& shape) {
  const DimStrides strides = strides_of(in);
  DimStrides out(shape.size());
  int64_t d = shape.rank() - 1;
  for (int64_t end = in.shape.rank(), begin; end > 0; end = begin) {
    const Dim stride = strides[end - 1];
    Dim run = in.shape[end - 1], filled = 1;
    for (begin = end - 1; begin > 0 && (in.shape[begin - 1] == Dim(1) || strides[begin - 1] == run * stride); --begin)
      run = run * in.shape[begin - 1];
    for (; d >= 0 && (!(filled == run) || shape[d] == Dim(1)); --d) {
      out[d] = filled * stride;
      filled = filled * shape[d];
    }
    if (!(filled == run)) return {};
  }
  return out;
}

// Strides that lay `shape` over the elements of `in` in their order, if there are any: each run of dims that lies
// evenly in memory must hold a whole number of the new dims.
std::optional<DimStrides> strides_for(const TensorImpl& in, const Shape& shape) {
  if (in.contiguous) return contiguous_dim_strides(shape);
  if (in.symbolic || shape.is_symbolic()) return open_strides_for(in, shape);
  DimStrides out(shape.size());
  int64_t d = shape.rank() - 1;
  for (int64_t end = in.shape.rank(), begin; end > 0; end = begin) {
    const int64_t stride = in.strides[end - 1];
    int64_t run = 1, filled = 1;
    for (begin = end;
         begin > 0 && (in.shape[begin - 1] == Dim(1) || begin == end || in.strides[begin - 1] == run * stride); --begin)
      run *= in.shape[begin - 1].value();
    for (; d >= 0 && (filled < run || shape[d] == Dim(1)); --d) {
      out[d] = filled * stride;
      filled *= shape[d].value();
    }
    if (filled != run) return {};
  }
  return out;
}

Metas infer_reshape(std::span<const TensorMeta> in, const Attrs& attrs) {
  return like(in[0], resolve_shape(in[0].shape, attrs.as<ShapeAttrs>().shape.shape()));
}
std::optional<ViewLayout> view_reshape(const TensorImpl& in, const Attrs& attrs) {
  Shape shape = resolve_shape(in.shape, attrs.as<ShapeAttrs>().shape.shape());
  auto strides = strides_for(in, shape);
  if (!strides) return {};
  return ViewLayout{std::move(shape), std::move(*strides), offset_of(in)};
}
Tensors reshape_vjp(const Saved& s, const Tensors& grads) { return {reshape(grads[0], s.metas[0].shape)}; }
Tensors reshape_reference(std::span<const Tensor> in, const Attrs& attrs) {
  std::vector<double> values;
  reference::each_index(in[0].shape(), [&](auto& i) { values.push_back(reference::get(in[0], i)); });
  size_t n = 0;
  return {reference::generate(resolve_shape(in[0].shape(), attrs.as<ShapeAttrs>().shape.shape()), in[0].dtype(),
                              [&](auto&) { return values[n++]; })};
}

// ---- permute, expand

Shape permuted(const Shape& in, const IntList& dims) {
  Shape shape;
  DimSet seen = DimSet::none("permute", in);
  for (int64_t d : dims) {
    d = normalize_dim("permute", d, in);
    seen.insert(d);
    shape.push_back(in[d]);
  }
  if (shape.size() != in.size() || seen != DimSet::all("permute", in))
    throw Error(fmt::format("permute: the dims must name each of {} once", to_string(in)));
  return shape;
}

Metas infer_permute(std::span<const TensorMeta> in, const Attrs& attrs) {
  return like(in[0], permuted(in[0].shape, attrs.as<PermuteAttrs>().dims));
}
std::optional<ViewLayout> view_permute(const TensorImpl& in, const Attrs& attrs) {
  const IntList& dims = attrs.as<PermuteAttrs>().dims;
  ViewLayout out{permuted(in.shape, dims), {}, offset_of(in)};
  const DimStrides strides = strides_of(in);
  for (int64_t d : dims) out.strides.push_back(strides[d < 0 ? d + in.shape.rank() : d]);
  return out;
}
Tensors permute_vjp(const Saved& s, const Tensors& grads) {
  const IntList& dims = s.attrs.as<PermuteAttrs>().dims;
  IntList inverse = dims;
  for (int64_t i = 0; i < dims.count; ++i) inverse[dims[i] < 0 ? dims[i] + dims.count : dims[i]] = i;
  return {dispatch_one(permute_op, {grads[0]}, PermuteAttrs{inverse})};
}
Tensors permute_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const IntList& dims = attrs.as<PermuteAttrs>().dims;
  return {reference::generate(permuted(in[0].shape(), dims), in[0].dtype(), [&](auto& i) {
    reference::Index from(i.size());
    for (size_t d = 0; d < i.size(); ++d) from[normalize_dim("", dims[d], in[0].shape())] = i[d];
    return reference::get(in[0], from);
  })};
}

Shape expanded(const Shape& in, const Shape& wanted) {
  Shape shape = wanted;
  int64_t shift = wanted.rank() - in.rank();
  for (int64_t d = 0; d < wanted.rank(); ++d) {
    if (d >= shift && wanted[d] == Dim(-1)) shape[d] = in[d - shift];
    bool fits = d < shift ? wanted[d].is_symbolic() || wanted[d].value() >= 0
                          : in[d - shift] == Dim(1) || in[d - shift] == shape[d];
    if (shift < 0 || !fits)
      throw Error(fmt::format("expand: {} does not expand to {}", to_string(in), to_string(wanted)));
  }
  if (shift < 0) throw Error(fmt::format("expand: {} does not expand to {}", to_string(in), to_string(wanted)));
  return shape;
}

Metas infer_expand(std::span<const TensorMeta> in, const Attrs& attrs) {
  return like(in[0], expanded(in[0].shape, attrs.as<ShapeAttrs>().shape.shape()));
}
std::optional<ViewLayout> view_expand(const TensorImpl& in, const Attrs& attrs) {
  ViewLayout out{expanded(in.shape, attrs.as<ShapeAttrs>().shape.shape()), {}, offset_of(in)};
  const DimStrides strides = strides_of(in);
  out.strides.resize(out.shape.size(), 0);
  int64_t shift = out.shape.rank() - in.shape.rank();
  for (int64_t d = 0; d < in.shape.rank(); ++d)
    if (in.shape[d] == out.shape[d + shift]) out.strides[d + shift] = strides[d];
  return out;
}
Tensors expand_vjp(const Saved& s, const Tensors& grads) { return {gradient_for(grads[0], s.metas[0])}; }
Tensors expand_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {reference::generate(expanded(in[0].shape(), attrs.as<ShapeAttrs>().shape.shape()), in[0].dtype(),
                              [&](auto& i) { return reference::get(in[0], i); })};
}

// ---- slice, select

// A bound may count from the end. It is clamped as far as the bounds of symbols tell; where they do not, it is taken to
// lie inside, and a graph that runs says where it did not.
Dim resolve_bound(Dim bound, Dim size) {
  if (!bound.is_symbolic() && !size.is_symbolic()) {
    const int64_t b = bound.value(), n = size.value();
    return std::clamp<int64_t>(b < 0 ? b + n : b, 0, n);
  }
  if (bound == Dim(kEnd)) return size;
  const Dim b = !bound.is_symbolic() && bound.value() < 0 ? size + bound : bound;
  return b.high() <= 0 ? Dim(0) : (size - b).high() <= 0 ? size : b;
}

struct Range {
  int64_t dim;
  Dim start, length;
};

Range resolve_range(const Shape& in, const SliceAttrs& a) {
  if (a.step < 1) throw Error(fmt::format("slice: the step is {}, not positive", a.step));
  int64_t dim = normalize_dim("slice", a.dim, in);
  Dim start = resolve_bound(a.start, in[dim]), end = resolve_bound(a.end, in[dim]);
  Dim length = (end - start - 1) / a.step + 1;
  if (length.high() <= 0) length = 0;
  return {dim, start, length};
}

Metas infer_slice(std::span<const TensorMeta> in, const Attrs& attrs) {
  Range range = resolve_range(in[0].shape, attrs.as<SliceAttrs>());
  Shape shape = in[0].shape;
  shape[range.dim] = range.length;
  return like(in[0], shape);
}
std::optional<ViewLayout> view_slice(const TensorImpl& in, const Attrs& attrs) {
  Range range = resolve_range(in.shape, attrs.as<SliceAttrs>());
  ViewLayout out{in.shape, strides_of(in), offset_of(in)};
  if (!(range.length == Dim(0))) out.offset = out.offset + range.start * out.strides[range.dim];
  out.shape[range.dim] = range.length;
  out.strides[range.dim] = out.strides[range.dim] * attrs.as<SliceAttrs>().step;
  return out;
}
Tensors slice_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<SliceAttrs>();
  const Shape& shape = s.metas[0].shape;
  Range range = resolve_range(shape, a);
  if (a.step == 1 && range.length == shape[range.dim]) return {grads[0]};  // all of it, as in x[:, 1:]
  return {dispatch_one(slice_backward_op, {grads[0]}, ScatterAttrs{range.dim, shape[range.dim], range.start, a.step})};
}
Tensors slice_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<SliceAttrs>();
  Range range = resolve_range(in[0].shape(), a);
  Shape shape = in[0].shape();
  shape[range.dim] = range.length;
  return {reference::generate(shape, in[0].dtype(), [&](auto& i) {
    reference::Index from = i;
    from[range.dim] = range.start.value() + i[range.dim] * a.step;
    return in[0].size(range.dim) == 0 ? 0 : reference::get(in[0], from);
  })};
}

// Zeros but for what a slice had taken.
Metas infer_slice_backward(std::span<const TensorMeta> in, const Attrs& attrs) {
  const auto& a = attrs.as<ScatterAttrs>();
  Shape shape = in[0].shape;
  shape[a.dim] = a.size;
  return like(in[0], shape);
}
Tensors slice_backward_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<ScatterAttrs>();
  Dim end = a.start + s.metas[0].shape[a.dim] * a.step;
  if (!end.is_symbolic() && !a.size.is_symbolic()) end = std::min(end.value(), a.size.value());
  return {dispatch_one(slice_op, {grads[0]}, SliceAttrs{a.dim, a.start, end, a.step})};
}
Tensors slice_backward_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<ScatterAttrs>();
  Shape shape = in[0].shape();
  shape[a.dim] = a.size;
  Tensor out = reference::generate(shape, in[0].dtype(), [](auto&) { return 0.0; });
  reference::each_index(in[0].shape(), [&](auto& i) {
    reference::Index to = i;
    to[a.dim] = a.start.value() + i[a.dim] * a.step;
    reference::set(out, to, reference::get(in[0], i));
  });
  return {out};
}

struct Place {
  int64_t dim;
  Dim index;
};
Place resolve_place(const Shape& in, const SelectAttrs& a) {
  int64_t dim = normalize_dim("select", a.dim, in);
  Dim index = a.index, size = in[dim];
  if (!index.is_symbolic() && index.value() < 0) index = size + index;
  if (!index.is_symbolic() && !size.is_symbolic() && (index.value() < 0 || index.value() >= size.value()))
    throw Error(
        fmt::format("select: index {} is out of range for dim {} of {}", a.index.to_string(), dim, to_string(in)));
  return {dim, index};
}

Metas infer_select(std::span<const TensorMeta> in, const Attrs& attrs) {
  Place place = resolve_place(in[0].shape, attrs.as<SelectAttrs>());
  Shape shape = in[0].shape;
  shape.erase(shape.begin() + place.dim);
  return like(in[0], shape);
}
std::optional<ViewLayout> view_select(const TensorImpl& in, const Attrs& attrs) {
  Place place = resolve_place(in.shape, attrs.as<SelectAttrs>());
  ViewLayout out{in.shape, strides_of(in), offset_of(in)};
  out.offset = out.offset + place.index * out.strides[place.dim];
  out.shape.erase(out.shape.begin() + place.dim);
  out.strides.erase(out.strides.begin() + place.dim);
  return out;
}
Tensors select_vjp(const Saved& s, const Tensors& grads) {
  const Shape& shape = s.metas[0].shape;
  Place place = resolve_place(shape, s.attrs.as<SelectAttrs>());
  return {dispatch_one(slice_backward_op, {unsqueeze(grads[0], place.dim)},
                       ScatterAttrs{place.dim, shape[place.dim], place.index, 1})};
}
Tensors select_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Place place = resolve_place(in[0].shape(), attrs.as<SelectAttrs>());
  Shape shape = in[0].shape();
  shape.erase(shape.begin() + place.dim);
  return {reference::generate(shape, in[0].dtype(), [&](auto& i) {
    reference::Index from = i;
    from.insert(from.begin() + place.dim, place.index.value());
    return reference::get(in[0], from);
  })};
}

// ---- clone, concat

Metas infer_clone(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs("clone", in);
  return {{in[0].shape, in[0].dtype, in[0].device}};
}
Tensors clone_vjp(const Saved&, const Tensors& grads) { return {grads[0]}; }
Tensors clone_reference(std::span<const Tensor> in, const Attrs&) {
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) { return reference::get(in[0], i); })};
}

Metas infer_concat(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("concat", in);
  if (in.empty()) throw Error("concat: no tensors");
  const Shape& first = in[0].shape;
  int64_t dim = normalize_dim("concat", attrs.as<DimAttrs>().dim, first);
  TensorMeta out = in[0];
  for (size_t i = 1; i < in.size(); ++i) {
    bool fits = in[i].shape.size() == first.size();
    for (int64_t d = 0; fits && d < first.rank(); ++d) fits = d == dim || in[i].shape[d] == first[d];
    if (!fits)
      throw Error(fmt::format("concat: shapes differ outside of dim {}: {} and {}", dim, to_string(first),
                              to_string(in[i].shape)));
    out.shape[dim] = out.shape[dim] + in[i].shape[dim];
    out.dtype = promote(out.dtype, in[i].dtype);
  }
  return {out};
}
Tensors concat_vjp(const Saved& s, const Tensors& grads) {
  int64_t dim = normalize_dim("concat", s.attrs.as<DimAttrs>().dim, s.metas[0].shape);
  Tensors out;
  Dim start = 0;
  for (size_t i = 0; i < s.metas.size(); ++i) {
    Dim end = start + s.metas[i].shape[dim];
    Tensor part;
    if (s.needs_input(static_cast<int>(i)))
      part = cast(dispatch_one(slice_op, {grads[0]}, SliceAttrs{dim, start, end, 1}), s.metas[i].dtype);
    out.push_back(std::move(part));
    start = end;
  }
  return out;
}
Tensors concat_reference(std::span<const Tensor> in, const Attrs& attrs) {
  Metas metas = [&] {
    std::vector<TensorMeta> all;
    for (const Tensor& t : in) all.push_back(t.meta());
    return infer_concat(all, attrs);
  }();
  int64_t dim = normalize_dim("concat", attrs.as<DimAttrs>().dim, in[0].shape());
  return {reference::generate(metas[0].shape, metas[0].dtype, [&](auto& i) {
    reference::Index from = i;
    size_t part = 0;
    for (; from[dim] >= in[part].size(dim); ++part) from[dim] -= in[part].size(dim);
    return reference::get(in[part], from);
  })};
}

// ---- pad, flip, triangles

// The padding before and after dim `d` of `rank`.
int64_t low_of(const PadAttrs& a, int64_t d, int64_t rank) { return d < rank - 6 ? 0 : a.low[6 - rank + d]; }
int64_t high_of(const PadAttrs& a, int64_t d, int64_t rank) { return d < rank - 6 ? 0 : a.high[6 - rank + d]; }

constexpr int64_t kMostPadding = int64_t(1) << 48;  // more than memory can hold; sums of it do not overflow

Metas infer_pad(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("pad", in);
  const auto& a = attrs.as<PadAttrs>();
  Shape shape = in[0].shape;
  int64_t rank = shape.rank();
  for (int64_t d = 0; d < 6; ++d) {
    if (std::max(a.low[d], a.high[d]) > kMostPadding)
      throw Error(fmt::format("pad: padding of {} by {} and {} exceeds 2^48", to_string(shape), a.low[d], a.high[d]));
    if (a.low[d] < 0 || a.high[d] < 0) throw Error(fmt::format("pad: negative padding of {}", to_string(shape)));
    if (d < 6 - rank && (a.low[d] || a.high[d]))
      throw Error(fmt::format("pad: more paddings than dims of {}", to_string(shape)));
  }
  for (int64_t d = 0; d < rank; ++d) shape[d] = shape[d] + (low_of(a, d, rank) + high_of(a, d, rank));
  return like(in[0], shape);
}
Tensors pad_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<PadAttrs>();
  const Shape& shape = s.metas[0].shape;
  Tensor g = grads[0];
  for (int64_t d = 0; d < shape.rank(); ++d) {
    int64_t low = low_of(a, d, shape.rank());
    if (low || high_of(a, d, shape.rank())) g = dispatch_one(slice_op, {g}, SliceAttrs{d, low, shape[d] + low, 1});
  }
  return {g};
}
Tensors pad_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<PadAttrs>();
  TensorMeta meta = in[0].meta();
  return {reference::generate(infer_pad({&meta, 1}, attrs)[0].shape, meta.dtype, [&](auto& i) {
    reference::Index from = i;
    for (int64_t d = 0; d < in[0].dim(); ++d) {
      from[d] -= low_of(a, d, in[0].dim());
      if (from[d] < 0 || from[d] >= in[0].size(d)) return a.value;
    }
    return reference::get(in[0], from);
  })};
}

Metas infer_flip(std::span<const TensorMeta> in, const Attrs& attrs) {
  require_inputs("flip", in);
  DimSet seen = DimSet::none("flip", in[0].shape);
  for (int64_t d : attrs.as<PermuteAttrs>().dims)
    if (!seen.insert(normalize_dim("flip", d, in[0].shape)))
      throw Error(fmt::format("flip: dim {} of {} is named twice", d, to_string(in[0].shape)));
  return {in[0]};
}
Tensors flip_vjp(const Saved& s, const Tensors& grads) { return {dispatch_one(flip_op, {grads[0]}, s.attrs)}; }
Tensors flip_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) {
    reference::Index from = i;
    for (int64_t d : attrs.as<PermuteAttrs>().dims) {
      d = normalize_dim("flip", d, in[0].shape());
      from[d] = in[0].size(d) - 1 - i[d];
    }
    return reference::get(in[0], from);
  })};
}

template <OpName op>
Metas infer_triangle(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs(op.view(), in);
  if (in[0].shape.rank() < 2)
    throw Error(fmt::format("{}: {} has fewer than two dims", op.view(), to_string(in[0].shape)));
  return {in[0]};
}
template <const Op& op>
Tensors triangle_vjp(const Saved& s, const Tensors& grads) {
  return {dispatch_one(op, {grads[0]}, s.attrs)};
}
template <bool upper>
Tensors triangle_reference(std::span<const Tensor> in, const Attrs& attrs) {
  int64_t diagonal = attrs.as<DiagonalAttrs>().diagonal;
  return {reference::generate(in[0].shape(), in[0].dtype(), [&](auto& i) {
    int64_t distance = i[i.size() - 1] - i[i.size() - 2];
    return (upper ? distance >= diagonal : distance <= diagonal) ? reference::get(in[0], i) : 0;
  })};
}

// ---- sizes as elements

Metas infer_shape_of(std::span<const TensorMeta> in, const Attrs&) {
  require_inputs("shape_of", in);
  Device host = cpu();
  host.meta = in[0].device.meta;
  return {{{in[0].shape.rank()}, Int64, host}};
}
Tensors shape_of_compute(std::span<const Tensor> in, const Attrs&) {
  Tensor sizes = empty_host({in[0].dim()}, Int64);
  for (int64_t d = 0; d < in[0].dim(); ++d) sizes.data<int64_t>()[d] = in[0].size(d);
  return {sizes};
}
Elements shape_of_elements(const Op&, std::span<const TensorMeta> in, const Attrs&, const TensorMeta&) {
  return std::make_shared<const std::vector<Dim>>(in[0].shape.begin(), in[0].shape.end());
}

// ---- the ops

const Op shape_of_op = {.name = "shape_of",
                        .inputs = "x",
                        .outputs = "sizes",
                        .infer = infer_shape_of,
                        .reference = shape_of_compute,
                        .transfers = true,
                        .elements = shape_of_elements,
                        .compute = shape_of_compute};
const Op reshape_op = {.name = "reshape",
                       .inputs = "x",
                       .outputs = "y",
                       .attrs = attrs_of<ShapeAttrs>,
                       .infer = infer_reshape,
                       .vjp = reshape_vjp,
                       .reference = reshape_reference,
                       .saves = {.metas = 1},
                       .pitched = Pitched::None,
                       .view = view_reshape,
                       .elements = moved<1>};
const Op permute_op = {.name = "permute",
                       .inputs = "x",
                       .outputs = "y",
                       .attrs = attrs_of<PermuteAttrs>,
                       .infer = infer_permute,
                       .vjp = permute_vjp,
                       .reference = permute_reference,
                       .view = view_permute,
                       .elements = moved<1>};
const Op expand_op = {.name = "expand",
                      .inputs = "x",
                      .outputs = "y",
                      .attrs = attrs_of<ShapeAttrs>,
                      .infer = infer_expand,
                      .vjp = expand_vjp,
                      .reference = expand_reference,
                      .saves = {.metas = 1},
                      .view = view_expand,
                      .elements = moved<1>};
const Op slice_op = {.name = "slice",
                     .inputs = "x",
                     .outputs = "y",
                     .attrs = attrs_of<SliceAttrs>,
                     .infer = infer_slice,
                     .vjp = slice_vjp,
                     .reference = slice_reference,
                     .saves = {.metas = 1},
                     .view = view_slice,
                     .elements = moved<1>};
const Op slice_backward_op = {.name = "slice_backward",
                              .inputs = "dy",
                              .outputs = "dx",
                              .attrs = attrs_of<ScatterAttrs>,
                              .infer = infer_slice_backward,
                              .vjp = slice_backward_vjp,
                              .reference = slice_backward_reference,
                              .saves = {.metas = 1},
                              .keeps_layout = true};
const Op select_op = {.name = "select",
                      .inputs = "x",
                      .outputs = "y",
                      .attrs = attrs_of<SelectAttrs>,
                      .infer = infer_select,
                      .vjp = select_vjp,
                      .reference = select_reference,
                      .saves = {.metas = 1},
                      .view = view_select,
                      .elements = moved<1>};
const Op clone_op = {.name = "clone",
                     .inputs = "x",
                     .outputs = "y",
                     .infer = infer_clone,
                     .vjp = clone_vjp,
                     .reference = clone_reference,
                     .pitched = Pitched::None,
                     .elements = moved<1>};
const Op concat_op = {.name = "concat",
                      .inputs = "tensors...",
                      .outputs = "y",
                      .attrs = attrs_of<DimAttrs>,
                      .infer = infer_concat,
                      .vjp = concat_vjp,
                      .reference = concat_reference,
                      .saves = {.metas = kAll},
                      .autocast = Autocast::Promote,
                      .keeps_layout = true,
                      .layout_of = kAnyInput,
                      .elements = moved<kAll>};
const Op pad_op = {.name = "pad",
                   .inputs = "x",
                   .outputs = "y",
                   .attrs = attrs_of<PadAttrs>,
                   .infer = infer_pad,
                   .vjp = pad_vjp,
                   .reference = pad_reference,
                   .saves = {.metas = 1},
                   .keeps_layout = true};
const Op flip_op = {.name = "flip",
                    .inputs = "x",
                    .outputs = "y",
                    .attrs = attrs_of<PermuteAttrs>,
                    .infer = infer_flip,
                    .vjp = flip_vjp,
                    .reference = flip_reference,
                    .keeps_layout = true,
                    .elements = moved<1>};
const Op tril_op = {.name = "tril",
                    .inputs = "x",
                    .outputs = "y",
                    .attrs = attrs_of<DiagonalAttrs>,
                    .infer = infer_triangle<"tril">,
                    .vjp = triangle_vjp<tril_op>,
                    .reference = triangle_reference<false>};
const Op triu_op = {.name = "triu",
                    .inputs = "x",
                    .outputs = "y",
                    .attrs = attrs_of<DiagonalAttrs>,
                    .infer = infer_triangle<"triu">,
                    .vjp = triangle_vjp<triu_op>,
                    .reference = triangle_reference<true>};

}  // namespace

std::span<const Op* const> shape_ops() {
  static constexpr const Op* ops[] = {&reshape_op, &permute_op, &expand_op,  &slice_op, &slice_backward_op,
                                      &select_op,  &clone_op,   &concat_op,  &pad_op,   &flip_op,
                                      &tril_op,    &triu_op,    &shape_of_op};
  return ops;
}

// ---- public functions

Tensor reshape(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  return dispatch_one(reshape_op, {x}, ShapeAttrs{DimList(shape)});
}

Tensor permute(const Tensor& x, const Dims& dims) {
  return dispatch_one(permute_op, {x}, PermuteAttrs{dim_list("permute", dims)});
}

Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  Dims dims;
  for (int64_t d = 0; d < x.dim(); ++d) dims.push_back(d);
  std::swap(dims[normalize_dim("transpose", a, x.shape())], dims[normalize_dim("transpose", b, x.shape())]);
  return dispatch_one(permute_op, {x}, PermuteAttrs{dim_list("transpose", dims)});
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  return dispatch_one(expand_op, {x}, ShapeAttrs{DimList(shape)});
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  dim = normalize_dim("squeeze", dim, x.shape());
  if (!(x.shape()[dim] == Dim(1)))
    throw Error(fmt::format("squeeze: dim {} of {} is not 1", dim, to_string(x.shape())));
  Shape shape = x.shape();
  shape.erase(shape.begin() + dim);
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  Shape shape = x.shape();
  shape.push_back(1);
  dim = normalize_dim("unsqueeze", dim, shape);
  shape = x.shape();
  shape.insert(shape.begin() + dim, 1);
  return reshape(x, shape);
}

Tensor flatten(const Tensor& x, int64_t first, int64_t last) {
  if (x.dim() == 0) return reshape(x, {1});
  first = normalize_dim("flatten", first, x.shape());
  last = normalize_dim("flatten", last, x.shape());
  if (first > last)
    throw Error(fmt::format("flatten: dim {} comes after dim {} of {}", first, last, to_string(x.shape())));
  Shape shape;
  Dim merged = 1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d < first || d > last) shape.push_back(x.shape()[d]);
    else merged = merged * x.shape()[d];
    if (d == last) shape.push_back(merged);
  }
  return reshape(x, shape);
}

Tensor shape_of(const Tensor& x) { return dispatch_one(shape_of_op, {x}); }

Tensor slice(const Tensor& x, int64_t dim, Dim start, Dim end, int64_t step) {
  return dispatch_one(slice_op, {x}, SliceAttrs{dim, start, end, step});
}
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t end, int64_t step) {
  const Dim size = x.shape()[normalize_dim("slice", dim, x.shape())];
  if (size.is_symbolic()) return slice(x, dim, Dim(start), Dim(end), step);
  // Beyond the size nothing changes any more; less far, nothing overflows.
  const int64_t n = size.value();
  return dispatch_one(slice_op, {x},
                      SliceAttrs{dim, std::max(start, -n), std::max(end, -n), std::min(step, std::max<int64_t>(n, 1))});
}

Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  return dispatch_one(select_op, {x}, SelectAttrs{dim, index});
}

Tensor clone(const Tensor& x) { return dispatch_one(clone_op, {x}); }
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }

Tensor concat(const Tensors& parts, int64_t dim) { return dispatch_one(concat_op, Tensors(parts), DimAttrs{dim}); }

Tensor stack(const Tensors& parts, int64_t dim) {
  if (parts.empty()) throw Error("stack: no tensors");
  Tensors rows;
  for (const Tensor& t : parts) {
    if (!(t.shape() == parts[0].shape()))
      throw Error(fmt::format("stack: shapes differ: {} and {}", to_string(parts[0].shape()), to_string(t.shape())));
    rows.push_back(unsqueeze(t, dim));
  }
  return concat(rows, dim);
}

Tensors split(const Tensor& x, int64_t size, int64_t dim) {
  dim = normalize_dim("split", dim, x.shape());
  if (size < 1) throw Error(fmt::format("split: parts of {} elements", size));
  Tensors parts;
  for (int64_t start = 0, n = x.size(dim); start < n; start += size)
    parts.push_back(slice(x, dim, start, std::min(n, start + size)));
  return parts;
}

Tensors chunk(const Tensor& x, int64_t count, int64_t dim) {
  if (count < 1) throw Error(fmt::format("chunk: {} parts", count));
  return split(x, std::max<int64_t>(1, (x.size(dim) - 1) / count + 1), dim);
}

Tensor pad(const Tensor& x, const Dims& low, const Dims& high, double value) {
  if (low.size() != high.size() || low.size() > 6)
    throw Error(fmt::format("pad: {} low and {} high paddings for {}", low.size(), high.size(), to_string(x.shape())));
  PadAttrs attrs;
  std::copy(low.begin(), low.end(), std::end(attrs.low) - low.size());
  std::copy(high.begin(), high.end(), std::end(attrs.high) - high.size());
  attrs.value = value;
  return dispatch_one(pad_op, {x}, attrs);
}

Tensor flip(const Tensor& x, const Dims& dims) {
  return dispatch_one(flip_op, {x}, PermuteAttrs{dim_list("flip", dims)});
}
Tensor tril(const Tensor& x, int64_t diagonal) {
  return dispatch_one(tril_op, {x}, DiagonalAttrs{std::clamp(diagonal, -kEnd / 2, kEnd / 2)});
}
Tensor triu(const Tensor& x, int64_t diagonal) {
  return dispatch_one(triu_op, {x}, DiagonalAttrs{std::clamp(diagonal, -kEnd / 2, kEnd / 2)});
}

}  // namespace tessera
