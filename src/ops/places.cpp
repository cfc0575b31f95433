// Indexing by several dims at once, made of gather, index_select and scatter on flat indices.
#include <fmt/format.h>

#include "ops/gradient.h"
#include "ops/index_check.h"
#include "ops/map_graph.h"
#include "ops/open_sizes.h"
#include "tessera/ops_indexing.h"

namespace tessera {
namespace {

Shape part_of(const Shape& shape, int64_t first, int64_t end) {
  return Shape(shape.begin() + first, shape.begin() + end);
}
Shape joined(Shape a, const Shape& b) {
  a.append(b.begin(), b.end());
  return a;
}

// Negative ones count from the end.
Tensor counted_from_begin(const Tensor& index, Dim size) {
  const Tensor all = size_number(size, Int64, index.device());  // kernels do not depend on it
  if (index.device().is_gpu() && index.dim() > 0) {
    return map_elements({index, all}, Int64, Int64, [](const Tensor& place, const Tensor& n) {
      return where(lt(place, number_like(place, 0)), place + n, place);
    });
  }
  const Tensor wide = cast(index, Int64);
  return where(lt(wide, number_like(wide, 0)), wide + all, wide);
}
// The same, where those out of range become -1, which kernels refuse.
Tensor places_within(const Tensor& index, Dim size) {
  const Tensor place = counted_from_begin(index, size);
  return where(lt(place, size_number(size, Int64, place.device())), maximum(place, number_like(place, -1)),
               number_like(place, -1));
}

// One index for several dims, row-major; -1 where one of them is out of range.
class FlatIndex {
 public:
  void add(const Tensor& index, Dim size) {
    const Tensor place = places_within(index, size), outside = lt(place, number_like(place, 0));
    outside_ = outside_.defined() ? logical_or(outside_, outside) : outside;
    flat_ = flat_.defined() ? flat_ * size_number(size, Int64, place.device()) + place : place;
  }
  Tensor get() const { return where(outside_, number_like(flat_, -1), flat_); }

 private:
  Tensor flat_, outside_;
};

// Of x: the dims before those that are indexed, these, and those behind.
struct Places {
  Dim batch, count, width;  // elements
  Shape outer, rest;        // of the index without its last dim, and of x behind the dims that it names
  Tensor flat;              // [batch * indices]
};

Places places_of(std::string_view op, const Tensor& x, const Tensor& index, int64_t batch_dims) {
  check_index(op, index.meta());
  const int64_t k = index.dim() > 0 ? index.size(-1) : 0;
  bool fits = batch_dims >= 0 && index.dim() > batch_dims && k >= 1 && batch_dims + k <= x.dim();
  for (int64_t d = 0; fits && d < batch_dims; ++d) fits = index.shape()[d] == x.shape()[d];
  if (!fits)
    throw Error(fmt::format("{}: an index {} does not name places of {} behind {} dims that they share", op,
                            to_string(index.shape()), to_string(x.shape()), batch_dims));
  Places p;
  p.outer = part_of(index.shape(), 0, index.dim() - 1);
  p.rest = part_of(x.shape(), batch_dims + k, x.dim());
  p.batch = part_of(x.shape(), 0, batch_dims).numel();
  p.count = part_of(x.shape(), batch_dims, batch_dims + k).numel();
  p.width = p.rest.numel();
  FlatIndex flat;
  for (int64_t j = 0; j < k; ++j) flat.add(select(index, -1, j), x.shape()[batch_dims + j]);
  p.flat = flatten(flat.get());
  if (batch_dims > 0) {
    const Tensor rows = reshape(p.flat, {p.batch, part_of(p.outer, batch_dims, p.outer.rank()).numel()});
    const Tensor number = cumsum(ones({p.batch, Dim(1)}, Int64, x.device()), 0) + -1.0;
    const Tensor within = rows + number * size_number(p.count, Int64, x.device());
    p.flat = flatten(where(lt(rows, number_like(rows, 0)), rows, within));
  }
  return p;
}

Tensor write(const Tensor& rows, const Tensor& flat, const Tensor& source, std::optional<ScatterReduction> how) {
  const Tensor index = expand(reshape(flat, {flat.shape()[0], Dim(1)}), source.shape());
  return how ? scatter_reduce(rows, 0, index, source, *how) : scatter(rows, 0, index, source);
}

}  // namespace

Tensor gather_nd(const Tensor& x, const Tensor& index, int64_t batch_dims) {
  const Places p = places_of("gather_nd", x, index, batch_dims);
  const Tensor rows = reshape(x, {p.batch * p.count, p.width});
  return reshape(index_select(rows, 0, p.flat), joined(p.outer, p.rest));
}

Tensor scatter_nd(const Tensor& x, const Tensor& index, const Tensor& source, std::optional<ScatterReduction> how) {
  const Places p = places_of("scatter_nd", x, index, 0);
  const Shape wanted = joined(p.outer, p.rest);
  if (!(source.shape() == wanted) || source.dtype() != x.dtype())
    throw Error(fmt::format("scatter_nd: the source must be of shape {} and dtype {}, not {}", to_string(wanted),
                            name(x.dtype()), describe(source)));
  const Tensor rows = reshape(x, {p.count, p.width});
  return reshape(write(rows, p.flat, reshape(source, {p.flat.shape()[0], p.width}), how), x.shape());
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, int64_t dim) {
  check_index("take_along_dim", index.meta());
  dim = normalize_dim("take_along_dim", dim, x.shape());
  if (index.dim() != x.dim())
    throw Error(fmt::format("take_along_dim: the index {} has not as many dims as {}", to_string(index.shape()),
                            to_string(x.shape())));
  Shape of_x = x.shape(), of_index = index.shape();
  of_x[dim] = of_index[dim] = 1;
  of_x = of_index = broadcast_shapes("take_along_dim", of_x, of_index);
  of_x[dim] = x.shape()[dim];
  of_index[dim] = index.shape()[dim];
  return gather(expand(x, of_x), dim, counted_from_begin(expand(index, of_index), x.shape()[dim]));
}

Tensor index_put(const Tensor& x, const Tensors& indices, const Tensor& values, bool accumulate) {
  const auto k = static_cast<int64_t>(indices.size());
  if (k < 1 || k > x.dim()) throw Error(fmt::format("index_put: {} indices for {}", k, to_string(x.shape())));
  Shape outer;
  FlatIndex flat;
  for (int64_t d = 0; d < k; ++d) {
    check_index("index_put", indices[d].meta());
    outer = broadcast_shapes("index_put", outer, indices[d].shape());
    flat.add(indices[d], x.shape()[d]);
  }
  const Shape rest = part_of(x.shape(), k, x.dim()), wanted = joined(outer, rest);
  if (values.dtype() != x.dtype() || !(broadcast_shapes("index_put", wanted, values.shape()) == wanted))
    throw Error(fmt::format("index_put: values must broadcast to {} and be of dtype {}, not {}", to_string(wanted),
                            name(x.dtype()), describe(values)));
  const Dim count = part_of(x.shape(), 0, k).numel(), width = rest.numel(), places = outer.numel();
  const Tensor source = reshape(expand(values, wanted), {places, width});
  std::optional<ScatterReduction> how;
  if (accumulate) how = ScatterReduction::Sum;
  const Tensor at = reshape(expand(flat.get(), outer), {places});
  return reshape(write(reshape(x, {count, width}), at, source, how), x.shape());
}

Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source, double alpha) {
  check_index("index_add", index.meta());
  dim = normalize_dim("index_add", dim, x.shape());
  Shape wanted = x.shape(), column(static_cast<size_t>(x.dim()), Dim(1));
  if (index.dim() == 1) wanted[dim] = column[dim] = index.shape()[0];
  if (index.dim() != 1 || !(source.shape() == wanted))
    throw Error(fmt::format("index_add: {} does not add {} to dim {} of {}", to_string(index.shape()),
                            to_string(source.shape()), dim, to_string(x.shape())));
  return scatter_add(x, dim, expand(reshape(index, column), wanted), alpha == 1 ? source : source * alpha);
}

}  // namespace tessera
