// x[...]: integers, slices, None, Ellipsis, boolean and integer tensors, by NumPy's rules.
#include "module.h"

namespace tessera::python {
namespace {

// What a key comes to: a view by its integers and slices, and tensors that index dims of that view.
struct Places {
  Tensor view;
  std::vector<std::pair<int64_t, Tensor>> indices;
  bool apart = false;  // something lies between indices: what they give comes first
  Dims turned = {};    // dims of the view that slices with negative steps would turn round: see places()

  // The view with the indexed dims in front.
  Tensor in_front() const {
    Dims order;
    for (const auto& index : indices) order.push_back(index.first);
    for (int64_t d = 0; d < view.dim(); ++d)
      if (std::find(order.begin(), order.end(), d) == order.end()) order.push_back(d);
    return permute(view, order);
  }
};

Tensor number(Dim n, Device device) {
  return n.is_symbolic() ? size_tensor(n, Int64, device) : full({}, static_cast<double>(n.value()), Int64, device);
}
Tensor counted_from_start(const Tensor& index, Dim size) {
  const Tensor wide = index.to(Int64), zero = number(0, index.device());
  const Tensor moved = add(wide, number(size, index.device()));
  return where(logical_and(lt(wide, zero), ge(moved, zero)), moved, wide);  // what is out of range is told as it is
}

int64_t integer(nb::handle item) {
  const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  return nb::cast<int64_t>(index);
}

// A slice of an open size, or by one.
Tensor sliced_by_dims(const Tensor& x, int64_t dim, const std::array<nb::object, 3>& parts, bool& turned) {
  const auto read = [](nb::handle part, Dim otherwise) {
    Dim value = otherwise;
    if (!part.is_none() && !read_dim(part, value)) (void)integer(part);
    return value;
  };
  const int64_t step = parts[2].is_none() ? 1 : integer(parts[2]);
  turned = step == -1 && parts[0].is_none() && parts[1].is_none();
  if (turned) return x;
  if (step < 1) throw Error("index: a slice of " + to_string(x.shape()) + " with step " + std::to_string(step));
  return slice(x, dim, read(parts[0], 0), read(parts[1], x.shape()[dim]), step);
}

// The elements of a slice in ascending order; `turned` says whether they are wanted in the other one.
Tensor sliced(const Tensor& x, int64_t dim, nb::handle item, bool& turned) {
  const auto is_open = [](nb::handle part) { return nb::isinstance<OpenSize>(part); };
  const std::array<nb::object, 3> parts{item.attr("start"), item.attr("stop"), item.attr("step")};
  if (std::all_of(parts.begin(), parts.end(), [](const nb::object& part) { return part.is_none(); })) return x;
  if (x.shape()[dim].is_symbolic() || std::any_of(parts.begin(), parts.end(), is_open))
    return sliced_by_dims(x, dim, parts, turned);
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(item.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
  const Py_ssize_t n = PySlice_AdjustIndices(x.size(dim), &start, &stop, step);
  turned = step < 0;
  if (n == 0) return slice(x, dim, 0, 0);
  if (turned) return slice(x, dim, start + (n - 1) * step, start + 1, -step);
  return slice(x, dim, start, stop, step);
}

int64_t dims_taken(nb::handle item) {
  if (item.is_none()) return 0;
  if (nb::isinstance<Tensor>(item)) {
    const Tensor& t = object_of<Tensor>(item);
    return t.dtype() == Bool ? t.dim() : 1;
  }
  return 1;
}

// Lists, True and False as tensors; others as they are.
nb::object as_index(nb::handle item) {
  if (PyBool_Check(item.ptr())) return as_tensor(item);
  if (!nb::isinstance<nb::list>(item) && !nb::hasattr(item, "__array_interface__")) return nb::borrow(item);
  if (PyIndex_Check(item.ptr()) && nb::hasattr(item, "dtype") && nb::len(nb::object(item.attr("shape"))) == 0)
    return nb::borrow(item);
  return as_tensor(item);
}

// Slices with negative steps are turned round at once, or left to the caller where their elements are written to.
Places places(const Tensor& x, nb::handle key, bool to_write) {
  std::vector<nb::object> items;
  if (nb::isinstance<nb::tuple>(key))
    for (nb::handle item : nb::borrow<nb::tuple>(key)) items.push_back(as_index(item));
  else items.push_back(as_index(key));

  int64_t taken = 0, ellipses = 0;
  for (const nb::object& item : items) {
    if (item.ptr() == Py_Ellipsis) ++ellipses;
    else taken += dims_taken(item);
  }
  if (ellipses > 1) throw Error("index: more than one Ellipsis");
  if (taken > x.dim())
    throw Error("index: " + std::to_string(taken) + " indices for the dims of " + to_string(x.shape()));

  Places out{.view = x, .indices = {}};
  int64_t dim = 0;
  int64_t position = 0, last = -1;  // of items that index by tensors
  for (const nb::object& item : items) {
    ++position;
    if (item.ptr() == Py_Ellipsis) {
      dim += x.dim() - taken;
    } else if (item.is_none()) {
      out.view = unsqueeze(out.view, dim++);
    } else if (PySlice_Check(item.ptr())) {
      bool turned = false;
      out.view = sliced(out.view, dim, item, turned);
      if (turned && to_write) out.turned.push_back(dim);
      else if (turned) out.view = flip(out.view, {dim});
      ++dim;
    } else if (nb::isinstance<Tensor>(item)) {
      const Tensor index = object_of<Tensor>(item).to(x.device());
      if (is_floating(index.dtype()))
        throw Error("index: of dtype " + std::string(name(index.dtype())) + ", not an integer or bool");
      out.apart = out.apart || (last >= 0 && position != last + 1);
      last = position;
      if (index.dtype() != Bool) {
        out.indices.emplace_back(dim, counted_from_start(index, out.view.shape()[dim]));
        ++dim;
        continue;
      }
      if (index.dim() == 0) {  // a new dim, of one element or none
        out.view = unsqueeze(out.view, dim);
        out.indices.emplace_back(dim++, reshape(nonzero(reshape(index, {1})), {-1}));
        continue;
      }
      for (int64_t d = 0; d < index.dim(); ++d)
        if (index.size(d) != out.view.size(dim + d))
          throw Error("index: a mask " + to_string(index.shape()) + " for dims of " + to_string(out.view.shape()));
      const Tensor where_true = nonzero(index);
      for (int64_t d = 0; d < index.dim(); ++d) out.indices.emplace_back(dim++, select(where_true, 1, d));
    } else if (nb::isinstance<OpenSize>(item)) {
      const Dim i = object_of<OpenSize>(item).dim;
      out.view = squeeze(slice(out.view, dim, i, i + 1), dim);
    } else if (out.view.shape()[dim].is_symbolic()) {
      out.view = select(out.view, dim, integer(item));
    } else {
      const int64_t i = integer(item), n = out.view.size(dim);
      if (i < -n || i >= n)
        throw nb::index_error(("index " + std::to_string(i) + " is out of range for dim " + std::to_string(dim) +
                               " of " + to_string(out.view.shape()))
                                  .c_str());
      out.view = select(out.view, dim, i);
    }
  }
  return out;
}

// The indices, broadcast to one shape and side by side.
Tensor rows_of_indices(const Places& at) {
  Shape common;
  for (const auto& index : at.indices) common = broadcast_shapes("index", common, index.second.shape());
  Tensors parts;
  for (const auto& index : at.indices) parts.push_back(expand(index.second, common));
  return stack(parts, -1);
}

// What rows [..., k] of indices find in the first k dims, of which some may be open.
Tensor gathered(const Tensor& front, const Tensor& rows) {
  const int64_t k = rows.size(-1);
  const Shape &from = front.shape(), found(rows.shape().begin(), rows.shape().end() - 1);
  if (!Shape(from.begin(), from.begin() + k).is_symbolic()) return gather_nd(front, rows);
  Tensor flat = select(rows, -1, 0);
  Dim count = from[0];
  for (int64_t d = 1; d < k; ++d) {
    flat = add(mul(flat, number(from[d], rows.device())), select(rows, -1, d));
    count = count * from[d];
  }
  Shape lines{count}, out = found;
  lines.append(from.begin() + k, from.end());
  out.append(from.begin() + k, from.end());
  return reshape(index_select(reshape(front, lines), 0, reshape(flat, {-1})), out);
}

Tensor get(const Tensor& x, nb::handle key) {
  const Places at = places(x, key, false);
  const Unlocked unlocked;
  if (at.indices.empty()) return at.view;
  const Tensor rows = rows_of_indices(at);
  const int64_t first = at.indices.front().first, found = rows.dim() - 1;
  if (at.indices.size() == 1) {
    const Tensor flat = index_select(at.view, first, reshape(rows, {-1}));
    Shape shape;
    for (int64_t d = 0; d < first; ++d) shape.push_back(at.view.shape()[d]);
    for (int64_t d = 0; d < found; ++d) shape.push_back(rows.shape()[d]);
    for (int64_t d = first + 1; d < at.view.dim(); ++d) shape.push_back(at.view.shape()[d]);
    return reshape(flat, shape);
  }
  const Tensor taken = gathered(at.in_front(), rows);
  if (at.apart || first == 0) return taken;
  Dims order;
  for (int64_t d = 0; d < first; ++d) order.push_back(found + d);
  for (int64_t d = 0; d < found; ++d) order.push_back(d);
  for (int64_t d = found + first; d < taken.dim(); ++d) order.push_back(d);
  return permute(taken, order);
}

void set(Tensor& x, nb::handle key, nb::handle given) {
  Operand value;
  if (!read_operand(given, value)) value = {.tensor = nb::cast<Tensor>(as_tensor(given))};
  Places at = places(x, key, true);
  const Unlocked unlocked;
  Tensor from = beside(value, {.tensor = x});
  if (from.dtype() != x.dtype()) from = from.to(x.dtype());
  from = from.to(x.device());
  if (at.indices.empty()) {
    if (from.dim() > at.view.dim()) from = reshape(from, at.view.shape());
    if (!at.turned.empty()) from = flip(expand(from, at.view.shape()), at.turned);
    at.view.copy_(from);
    return;
  }
  if (!at.turned.empty()) throw Error("index: a slice with a negative step beside index tensors is not written to");
  const Tensor rows = rows_of_indices(at);
  const int64_t found = rows.dim() - 1, count = static_cast<int64_t>(at.indices.size()),
                first = at.indices.front().first;
  Tensor front = at.in_front();
  Shape wanted;  // of what the key reads, with the found dims in front
  for (int64_t d = 0; d < found; ++d) wanted.push_back(rows.shape()[d]);
  for (int64_t d = count; d < front.dim(); ++d) wanted.push_back(front.shape()[d]);
  if (!at.apart && first > 0) {  // values come in the order in which they are read
    Shape read;
    for (int64_t d = 0; d < first; ++d) read.push_back(wanted[found + d]);
    for (int64_t d = 0; d < found; ++d) read.push_back(wanted[d]);
    for (size_t d = found + first; d < wanted.size(); ++d) read.push_back(wanted[d]);
    Dims order;
    for (int64_t d = 0; d < found; ++d) order.push_back(first + d);
    for (int64_t d = 0; d < first; ++d) order.push_back(d);
    for (size_t d = found + first; d < wanted.size(); ++d) order.push_back(d);
    from = permute(expand(from, read), order);
  } else {
    from = expand(from, wanted);
  }
  front.copy_(scatter_nd(front, rows, from));
}

}  // namespace

void bind_places(nb::class_<Tensor>& tensor) {
  tensor.def("__getitem__", &get, nb::arg("key").none())
      .def("__setitem__", &set, nb::arg("key").none(), nb::arg("value"),
           "Writes a number, a tensor, an array or a list, which broadcasts, in place.")
      .def("__iter__",
           [](const Tensor& t) {
             if (t.dim() == 0) throw nb::type_error("a tensor without dims cannot be iterated over");
             return nb::iter(nb::cast(unbind(t, 0)));
           })
      .def("__contains__",
           [](const Tensor& t, const Operand& value) { return any(eq(t, beside(value, {.tensor = t}))).item() != 0; });
}

}  // namespace tessera::python
