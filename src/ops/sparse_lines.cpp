#include "ops/sparse_lines.h"

#include <algorithm>
#include <cstdint>

#include "core/capture_state.h"
#include "core/plane_attrs.h"
#include "ops/check.h"
#include "ops/kept.h"
#include "ops/op_table.h"
#include "ops/sparse_volumes.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

// ---- sparse_lines: x, a sparse matrix by its rows and by its columns -> its product with x along `dim`

// A matrix whose rows and columns begin at input `first`, and columns at `back`; along `dim`. Returns its rows.
Dim rows_of_matrix(std::string_view op, std::span<const TensorMeta> in, size_t first, size_t back, size_t dim) {
  const DType weight = in[0].dtype == Float64 ? Float64 : Float32;
  for (const size_t at : {first, back}) {
    for (size_t i = at; i < at + 3; ++i)
      if (in[i].shape.rank() != 1 || in[i].dtype != (i == at + 2 ? weight : Int32))
        fail(op, "{} where places and weights of a matrix belong", describe(in[i]));
    if (in[at].shape[0] == Dim(0) || !(in[at + 1].shape == in[at + 2].shape))
      fail(op, "{}, {} and {} are no rows", describe(in[at]), describe(in[at + 1]), describe(in[at + 2]));
  }
  if (!(in[back].shape[0] == in[0].shape[dim] + 1))
    fail(op, "a matrix of {} columns for dim {} of {}", (in[back].shape[0] - 1).to_string(), dim, describe(in[0]));
  return in[first].shape[0] - 1;
}

Metas infer_sparse_lines(std::span<const TensorMeta> in, const Attrs& attrs) {
  constexpr std::string_view op = "sparse_lines";
  require_inputs(op, in);
  if (!is_floating(in[0].dtype)) fail(op, "takes floating-point tensors, not {}", describe(in[0]));
  const int64_t dim = attrs.as<DimAttrs>().dim;
  if (dim < 0 || dim >= in[0].shape.rank()) fail(op, "dim {} of {}", dim, describe(in[0]));
  TensorMeta out{in[0].shape, in[0].dtype, in[0].device};
  out.shape[static_cast<size_t>(dim)] = rows_of_matrix(op, in, 1, 4, static_cast<size_t>(dim));
  return {out};
}

Tensors sparse_lines_reference(std::span<const Tensor> in, const Attrs& attrs) {
  const int64_t dim = attrs.as<DimAttrs>().dim;
  const Tensor x = transpose(in[0], 0, dim).clone();
  const auto begins = in[1].to_vector<int64_t>(), places = in[2].to_vector<int64_t>();
  const auto weights = in[3].to_vector<double>();
  const auto count = static_cast<int64_t>(begins.size()) - 1, inner = x.size(0) ? x.numel() / x.size(0) : 0;
  Shape shape = x.shape();
  shape[0] = Dim(count);
  const Tensor y = zeros(shape, x.dtype());
  for (int64_t i = 0; i < count; ++i)
    for (int64_t t = begins[static_cast<size_t>(i)]; t < begins[static_cast<size_t>(i) + 1]; ++t)
      for (int64_t j = 0; j < inner; ++j)
        y.data<double>()[i * inner + j] +=
            weights[static_cast<size_t>(t)] * x.data<double>()[places[static_cast<size_t>(t)] * inner + j];
  return {transpose(y, 0, dim).clone()};
}

double sparse_lines_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&) {
  const double rows = static_cast<double>(in[1].shape[0].value() - 1);
  const double each = rows > 0 ? static_cast<double>(in[2].shape[0].value()) / rows : 0;
  return 2 * each * static_cast<double>(out[0].shape.numel().value());
}

Tensors sparse_lines_vjp(const Saved& s, const Tensors& grads);

const Op sparse_lines_op = {.name = "sparse_lines",
                            .inputs = "x, begins, places, weights, begins_back, places_back, weights_back",
                            .outputs = "out",
                            .attrs = attrs_of<DimAttrs>,
                            .infer = infer_sparse_lines,
                            .vjp = sparse_lines_vjp,
                            .reference = sparse_lines_reference,
                            .saves = {.inputs = 0b1111110},
                            .pitched = Pitched::None,
                            .flops = sparse_lines_flops};

Tensors sparse_lines_vjp(const Saved& s, const Tensors& grads) {
  const auto& m = s.inputs;
  return {
      dispatch_one(sparse_lines_op, {grads[0], m[4], m[5], m[6], m[1], m[2], m[3]}, s.attrs), {}, {}, {}, {}, {}, {}};
}

// ---- sparse_planes: x, a matrix and another one by their rows, and both by their columns -> their product with x
// along its last two dims

Metas infer_sparse_planes(std::span<const TensorMeta> in, const Attrs&) {
  constexpr std::string_view op = "sparse_planes";
  require_inputs(op, in);
  if (!is_floating(in[0].dtype)) fail(op, "takes floating-point tensors, not {}", describe(in[0]));
  if (in[0].shape.rank() < 2) fail(op, "{} has no planes", describe(in[0]));
  TensorMeta out{in[0].shape, in[0].dtype, in[0].device};
  for (size_t i = 0; i < 2; ++i) {
    const size_t dim = out.shape.size() - 2 + i;
    out.shape[dim] = rows_of_matrix(op, in, 1 + 3 * i, 7 + 3 * i, dim);
  }
  return {out};
}
Tensors sparse_planes_reference(std::span<const Tensor> in, const Attrs&) {
  Tensor y = in[0];
  for (size_t i = 0; i < 2; ++i) {
    const Tensors one{y, in[1 + 3 * i], in[2 + 3 * i], in[3 + 3 * i]};
    y = sparse_lines_reference({one.data(), one.size()}, DimAttrs{in[0].dim() - 2 + static_cast<int64_t>(i)})[0];
  }
  return {y};
}
double sparse_planes_flops(std::span<const TensorMeta> in, std::span<const TensorMeta> out, const Attrs&) {
  double each = 2 * static_cast<double>(out[0].shape.numel().value());
  for (const size_t i : {1, 4})
    if (const auto rows = static_cast<double>(in[i].shape[0].value() - 1); rows > 0)
      each *= static_cast<double>(in[i + 1].shape[0].value()) / rows;
  return each;
}

Tensors sparse_planes_vjp(const Saved& s, const Tensors& grads);

const Op sparse_planes_op = {.name = "sparse_planes",
                             .inputs =
                                 "x, begins, places, weights, begins2, places2, weights2, begins_back, "
                                 "places_back, weights_back, begins2_back, places2_back, weights2_back",
                             .outputs = "out",
                             .attrs = attrs_of<SparsePlanesAttrs>,
                             .infer = infer_sparse_planes,
                             .vjp = sparse_planes_vjp,
                             .reference = sparse_planes_reference,
                             .saves = {.inputs = 0b1111111111110},
                             .pitched = Pitched::None,
                             .flops = sparse_planes_flops};

Tensors sparse_planes_vjp(const Saved& s, const Tensors& grads) {
  const auto& a = s.attrs.as<SparsePlanesAttrs>();
  Tensors in{grads[0]};
  for (size_t i = 0; i < 12; ++i) in.push_back(s.inputs[1 + (i + 6) % 12]);
  Tensors all(13);
  all[0] = dispatch_one(sparse_planes_op, std::move(in), SparsePlanesAttrs{a.selects_back, a.selects});
  return all;
}

struct Entry {
  int64_t row, column;
  double weight;
};
struct Rows {
  std::vector<int32_t> begins, places;
  std::vector<double> weights;
  bool selects() const {
    for (size_t i = 0; i < begins.size(); ++i)
      if (begins[i] != static_cast<int32_t>(i)) return false;
    return std::all_of(weights.begin(), weights.end(), [](double w) { return w == 1; });
  }
};
Rows rows_of(const std::vector<Entry>& entries, int64_t count, bool by_column) {
  Rows rows{std::vector<int32_t>(static_cast<size_t>(count) + 1, 0), std::vector<int32_t>(entries.size()),
            std::vector<double>(entries.size())};
  for (const Entry& e : entries) ++rows.begins[static_cast<size_t>(by_column ? e.column : e.row) + 1];
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) rows.begins[i + 1] += rows.begins[i];
  std::vector<int32_t> next(rows.begins.begin(), rows.begins.end() - 1);
  for (const Entry& e : entries) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(by_column ? e.column : e.row)]++);
    rows.places[at] = static_cast<int32_t>(by_column ? e.row : e.column);
    rows.weights[at] = e.weight;
  }
  return rows;
}

}  // namespace

std::span<const Op* const> line_ops() {
  static constexpr const Op* ops[] = {&sparse_lines_op, &sparse_planes_op};
  return ops;
}

SparseMatrix sparse_matrix(const std::vector<int64_t>& places, const std::vector<double>& weights, int64_t count,
                           int64_t length, DType dtype, Device device) {
  const int64_t each = count > 0 ? static_cast<int64_t>(places.size()) / count : 0;
  std::vector<Entry> entries;
  for (int64_t i = 0; i < count * each; ++i) {
    const double weight = weights.empty() ? 1 : weights[static_cast<size_t>(i)];
    if (weight != 0) entries.push_back({i / each, places[static_cast<size_t>(i)], weight});
  }
  const auto whole = [&](const std::vector<int32_t>& v) {
    return tensor(v, {static_cast<int64_t>(v.size())}).to(device);
  };
  const auto numbers = [&](const std::vector<double>& v) {
    return tensor(v, {static_cast<int64_t>(v.size())}).to(dtype == Float64 ? Float64 : Float32).to(device);
  };
  const Rows rows = rows_of(entries, count, false), columns = rows_of(entries, length, true);
  return {whole(rows.begins),    whole(rows.places),       numbers(rows.weights), whole(columns.begins),
          whole(columns.places), numbers(columns.weights), rows.selects(),        columns.selects()};
}

SparseMatrix kept_matrix(const std::string& name, DType dtype, Device device,
                         const std::function<SparseMatrix()>& make) {
  return kept(name, dtype == Float64 ? Float64 : Float32, device, make);
}

Tensor sparse_lines(const Tensor& x, int64_t dim, const SparseMatrix& m) {
  return dispatch_one(sparse_lines_op, {x, m.begins, m.places, m.weights, m.begins_back, m.places_back, m.weights_back},
                      DimAttrs{dim});
}

namespace {

// Of one row: with it a product along the last dim is one of planes.
SparseMatrix unit_matrix(const Tensor& x) {
  return kept_matrix("unit", x.dtype(), x.device(),
                     [&] { return sparse_matrix({0}, {}, 1, 1, x.dtype(), x.device()); });
}

Tensor sparse_planes(const Tensor& x, const SparseMatrix& m, const SparseMatrix& n) {
  return dispatch_one(sparse_planes_op,
                      {x, m.begins, m.places, m.weights, n.begins, n.places, n.weights, m.begins_back, m.places_back,
                       m.weights_back, n.begins_back, n.places_back, n.weights_back},
                      SparsePlanesAttrs{m.selects && n.selects, m.selects_back && n.selects_back});
}

// Entries of a row.
double mean_length(const SparseMatrix& m) {
  return static_cast<double>(m.places.numel()) / static_cast<double>(std::max<int64_t>(1, m.begins.numel() - 1));
}

}  // namespace

Tensor sparse_products(const Tensor& x, std::span<const SparseDim> dims) {
  constexpr double few = 64;
  Tensor y = x;
  if (dims.size() == 3 && dims[0].dim == x.dim() - 3 && dims[1].dim == x.dim() - 2 && card_takes_volumes(x)) {
    double each = 1, places = 1;
    for (const auto& [dim, m] : dims) each *= mean_length(m), places *= static_cast<double>(m.begins.numel());
    if (each <= few && places < INT32_MAX) return sparse_volumes(x, dims);
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto& [dim, m] = dims[i];
    const bool has_next = i + 1 < dims.size() && dim == x.dim() - 2 && dims[i + 1].dim == x.dim() - 1;
    const bool on_card = x.device().is_card();
    if (on_card && has_next && mean_length(m) * mean_length(dims[i + 1].matrix) <= few) {
      y = sparse_planes(y, m, dims[++i].matrix);
    } else if (on_card && dim == x.dim() - 1 && mean_length(m) <= few / 2) {
      y = squeeze(sparse_planes(unsqueeze(y, -2), unit_matrix(y), m), -2);
    } else {
      y = sparse_lines(y, dim, m);
    }
  }
  return y;
}

Tensor sparse_slopes(const Tensor& g, std::vector<SparseDim> dims) {
  for (SparseDim& d : dims) d.matrix = d.matrix.transposed();
  return sparse_products(g, dims);
}

bool takes_sparse_lines(const Tensor& x) { return is_floating(x.dtype()) && !x.device().meta && !is_capturing(); }

}  // namespace tessera
