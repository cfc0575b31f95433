"""Shapes and indexing as PyTorch has them, where those of the library differ in what they take."""
from __future__ import annotations

import builtins
import functools

from . import _C
from ._guard import guard as _guard
from . import creation
from ._C import Tensor, dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, Dims, Generator, Operand, Sequence


def _dims(dim, ndim):
    """Those that `dim` names, from 0, all of them for None and ()."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return list(range(ndim))
    return [d % builtins.max(ndim, 1) for d in (dim if isinstance(dim, (tuple, list)) else [dim])]


def _scalars(function):
    """Lets a function of dims take tensors that have none, as if they had one."""
    def drop(out):
        return out.reshape(()) if isinstance(out, Tensor) and out.ndim == 1 and out.numel() == 1 else out

    @functools.wraps(function)
    def wrapped(input, *args, **kwargs):
        if input.ndim:
            return function(input, *args, **kwargs)
        out = function(input.reshape((1,)), *args, **kwargs)
        return tuple(map(drop, out)) if isinstance(out, tuple) else drop(out)
    return wrapped


# ---- shape


def _listed(sizes):
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


def reshape(input: Tensor, *shape: Dims) -> Tensor:
    return _C.reshape(input, _listed(shape))


def permute(input: Tensor, *dims: Dims) -> Tensor:
    return _C.permute(input, _listed(dims)) if input.ndim else input


def expand(input: Tensor, *size: Dims) -> Tensor:
    return _C.expand(input, _listed(size))


def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """input broadcast to a shape, as a view."""
    return _C.expand(input, list(size))


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """input broadcast to the shape of other, as a view."""
    return _C.expand(input, other.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """input in the shape of other."""
    return _C.reshape(input, other.shape)


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    return _C.transpose(input, dim0, dim1) if input.ndim else input


def t(input: Tensor) -> Tensor:
    """[n, m] -> [m, n], a view; what has fewer dims as it is."""
    return _C.transpose(input, 0, 1) if input.ndim > 1 else input


def squeeze(input: Tensor, dim: Dims | None = None) -> Tensor:
    if dim == ():
        return input
    for d in sorted({d for d in _dims(dim, input.ndim) if d < input.ndim}, reverse=True):
        if input.shape[d] == 1:
            input = _C.squeeze(input, d)
    return input


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    return _C.flatten(input, start_dim, end_dim) if input.ndim else input.reshape((1,))


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """A dim as several, whose sizes multiply to its own."""
    d = dim % input.ndim
    return input.reshape(input.shape[:d] + tuple(sizes) + input.shape[d + 1:])


def ravel(input: Tensor) -> Tensor:
    """All dims as one."""
    return input.reshape((-1,))


def cat(tensors: Sequence[Tensor], dim: Dims | None = 0) -> Tensor:
    """Joined along `dim`; the dtypes are promoted, and empty 1-d tensors are passed over."""
    parts = [p for p in tensors if p.ndim != 1 or isinstance(p.shape[0], _C.OpenSize) or p.shape[0]]
    return _C.concat(parts, dim) if parts else list(tensors)[0]


def stack(tensors: Sequence[Tensor], dim: Dims | None = 0) -> Tensor:
    return _C.stack(list(tensors), dim)


def split(input: Tensor, split_size_or_sections: Dims, dim: int = 0) -> tuple[Tensor, ...]:
    if isinstance(split_size_or_sections, (int, _C.OpenSize)):
        return _C.split(input, split_size_or_sections, dim)
    ends = [0]
    for size in split_size_or_sections:
        ends.append(ends[-1] + size)
    if ends[-1] != input.shape[dim]:
        raise _C.Error(f"split: sections of {ends[-1]} elements for dim {dim} of {input.shape}")
    return tuple(_C.slice(input, dim, a, b) for a, b in zip(ends, ends[1:]))


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return _C.chunk(input, chunks, dim)


def tensor_split(input: Tensor, indices_or_sections: Dims | Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Parts along `dim`: so many, or those that begin at the indices. Views."""
    n, at = input.shape[dim], indices_or_sections
    if isinstance(at, Tensor):
        at = at.tolist()
    if isinstance(at, int):
        sizes = [n // at + (i < n % at) for i in range(at)]
        return split(input, sizes, dim)
    return tuple(_C.slice(input, dim, a, builtins.max(a, b) if b >= 0 else b) for a, b in zip([0, *at], [*at, n]))


def hsplit(input: Tensor, indices_or_sections: Dims | Tensor) -> tuple[Tensor, ...]:
    """tensor_split() along the second dim, or the only one."""
    return tensor_split(input, indices_or_sections, 0 if input.ndim == 1 else 1)


def vsplit(input: Tensor, indices_or_sections: Dims | Tensor) -> tuple[Tensor, ...]:
    """tensor_split() along the first dim."""
    return tensor_split(input, indices_or_sections, 0)


def dsplit(input: Tensor, indices_or_sections: Dims | Tensor) -> tuple[Tensor, ...]:
    """tensor_split() along the third dim."""
    return tensor_split(input, indices_or_sections, 2)


def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` elements along `dim` from `start` on, a view."""
    start = start.item() if isinstance(start, Tensor) else start
    start = start + input.shape[dim] if start < 0 else start
    return _C.slice(input, dim, start, start + length)


def _times(input, counts):
    if not builtins.any(isinstance(n, _C.OpenSize) for n in counts):
        return _C.repeat(input, counts)
    sizes = (1,) * (len(counts) - input.ndim) + input.shape
    each = list(zip(counts, sizes))
    apart = input.reshape([n for size in sizes for n in (1, size)]).expand([n for pair in each for n in pair])
    return apart.reshape([count * size for count, size in each])


def repeat(input: Tensor, *counts: Dims) -> Tensor:
    counts = _listed(counts)
    return _times(input, counts if isinstance(counts, (tuple, list)) else (counts,))


def tile(input: Tensor, *dims: Dims) -> Tensor:
    """The tensor repeated so often along its last dims."""
    counts = tuple(_listed(dims))
    return _times(input, (1,) * (input.ndim - len(counts)) + counts)


def repeat_interleave(input: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    if dim is None:
        input, dim = input.reshape((-1,)), 0
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if isinstance(repeats, _C.OpenSize):
        sizes = list(input.shape)
        sizes[dim] = sizes[dim] * repeats
        dim %= input.ndim
        return input.unsqueeze(dim + 1).expand([*input.shape[:dim + 1], repeats, *input.shape[dim + 1:]]).reshape(sizes)
    return _C.repeat_interleave(input.reshape((1,)) if input.ndim == 0 else input, repeats, dim)


def roll(input: Tensor, shifts: Dims, dims: Dims | None = None) -> Tensor:
    if input.ndim == 0:
        return input
    if dims is None or dims == ():
        return _C.roll(input.reshape((-1,)), shifts, 0).reshape(input.shape)
    return _C.roll(input, shifts, dims)


def flip(input: Tensor, *axes: Dims, dims: Dims | None = None) -> Tensor:
    dims = _listed(axes) if dims is None else dims
    return _C.flip(input, dims) if input.ndim and dims else input.clone()


def fliplr(input: Tensor) -> Tensor:
    """The second dim reversed."""
    return _C.flip(input, 1)


def flipud(input: Tensor) -> Tensor:
    """The first dim reversed."""
    return _C.flip(input, 0)


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by 90 degrees k times in the plane of two dims."""
    a, b = dims
    k %= 4
    if k == 2:
        return _C.flip(input, (a, b))
    return input if k == 0 else transpose(_C.flip(input, b if k == 1 else a), a, b)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return _C.diagonal(input, offset, dim1, dim2)


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """[..., n] -> [..., m, m] with these elements on a diagonal, and m = n + |offset|."""
    n, m = input.shape[-1], input.shape[-1] + builtins.abs(offset)
    wide = input.unsqueeze(-1).expand(input.shape + (m,))
    columns = creation.arange(m, device=input.device).unsqueeze(0)
    rows = columns.t()
    on = _C.eq(columns - rows, offset)
    first = builtins.max(-offset, 0)
    place = _C.clamp(rows - first, 0, builtins.max(n - 1, 0)).reshape((-1,))
    out = _C.where(on, _C.index_select(wide, -2, place), creation.zeros(
        (), dtype=input.dtype, device=input.device))
    return movedim(out, (-2, -1), (dim1, dim2))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as a diagonal matrix, or the diagonal of a matrix."""
    return diag_embed(input, diagonal) if input.ndim == 1 else _C.diagonal(input, diagonal)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """All elements on a diagonal of a matrix."""
    return diag_embed(input.reshape((-1,)), offset)


def trace(input: Tensor) -> Tensor:
    """[n, m] -> []: the sum of the diagonal."""
    return _C.sum(_C.diagonal(input))


def movedim(input: Tensor, source: Dims, destination: Dims) -> Tensor:
    if isinstance(source, int):
        return _C.movedim(input, source, destination) if input.ndim else input
    n = input.ndim
    pairs = {d % n: s % n for s, d in zip(source, destination)}
    rest = iter(d for d in range(n) if d not in pairs.values())
    return permute(input, [pairs[d] if d in pairs else next(rest) for d in range(n)])


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements, `step` apart, along a dim, as the last dim."""
    x = input.reshape((1,)) if input.ndim == 0 else input
    out = _C.sliding_windows(x, dimension, size, step)
    return out.select(0, 0) if input.ndim == 0 else out


def meshgrid(*tensors: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tensors[0]
    return _C.meshgrid([p.reshape((-1,)) for p in tensors], indexing == "xy")


def broadcast_shapes(*shapes: Dims) -> tuple[int, ...]:
    """The shape to which all of these broadcast."""
    shapes = [(s,) if isinstance(s, (int, _C.OpenSize)) else tuple(s) for s in shapes]
    n, out = builtins.max(map(len, shapes), default=0), []
    for sizes in zip(*((1,) * (n - len(s)) + s for s in shapes)):
        wide = {s for s in sizes if isinstance(s, _C.OpenSize) or s != 1}
        if len(wide) > 1:
            raise _C.Error(f"broadcast_shapes: shapes do not broadcast: {', '.join(map(str, shapes))}")
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All of them expanded to one shape, as views."""
    shape = broadcast_shapes(*(x.shape for x in tensors))
    return tuple(_C.expand(x, shape) for x in tensors)


def atleast_1d(*tensors: Tensor) -> Any:
    """The tensors, with one dim where they have none."""
    return _each(tensors, lambda x: x if x.ndim else x.reshape((1,)))


def atleast_2d(*tensors: Tensor) -> Any:
    """The tensors, with two dims where they have fewer."""
    return _each(tensors, lambda x: x if x.ndim > 1 else x.reshape((1, -1)))


def atleast_3d(*tensors: Tensor) -> Any:
    """The tensors, with three dims where they have fewer."""
    return _each(tensors, lambda x: x if x.ndim > 2 else x.unsqueeze(-1) if x.ndim == 2 else x.reshape((1, -1, 1)))


def _each(tensors, function):
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
        return tuple(map(function, tensors))
    return tuple(map(function, tensors)) if len(tensors) > 1 else function(tensors[0])


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second dim, or the only one."""
    parts = [atleast_1d(x) for x in tensors]
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the first of at least two dims."""
    return cat([atleast_2d(x) for x in tensors], 0)


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the third of at least three dims."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Joined along the second dim, vectors as columns."""
    return cat([x if x.ndim > 1 else x.reshape((-1, 1)) for x in tensors], 1)


def block_diag(*tensors: Tensor) -> Tensor:
    """[n_i, m_i] ... -> [sum of n, sum of m]: the matrices along the diagonal of one."""
    parts = [atleast_2d(x) for x in tensors]
    width, before, rows = builtins.sum(p.shape[1] for p in parts), 0, []
    for p in parts:
        rows.append(_C.pad(p, (0, before), (0, width - before - p.shape[1])))
        before += p.shape[1]
    return _C.concat(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """[n_i] ... -> [product of n, count]: every choice of an element of each."""
    if len(tensors) == 1:
        return tensors[0]
    return _C.stack([m.reshape((-1,)) for m in _C.meshgrid(list(tensors))], 1)


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences of neighbours along `dim`, n times; each makes it one shorter."""
    if n == 0:
        return input
    x = cat([p for p in (prepend, input, append) if p is not None], dim)
    for _ in range(n):
        size = x.shape[dim]
        x = _C.sub(_C.slice(x, dim, 1, size), _C.slice(x, dim, 0, builtins.max(size - 1, 0)))
    return x


def _trapezoids(y, x, dx, dim):
    n = y.shape[dim]
    both = _C.add(_C.slice(y, dim, 1, n), _C.slice(y, dim, 0, builtins.max(n - 1, 0)))
    if x is None:
        return both * (dx / 2)
    widths = diff(x, dim=dim if x.ndim > 1 else -1)
    if x.ndim == 1:
        widths = widths.reshape([-1 if d == dim % y.ndim else 1 for d in range(y.ndim)])
    return _C.mul(both, widths) * 0.5


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral along `dim`, which vanishes, by the trapezoidal rule."""
    return _C.sum(_trapezoids(y, x, dx, dim), dim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """Integrals from the start on along `dim`, which gets one shorter."""
    return _C.cumsum(_trapezoids(y, x, dx, dim), dim)


# ---- indexing


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    if as_tuple and input.ndim == 0:
        input = input.reshape((1,))
    found = _C.nonzero(input)
    return tuple(found.select(1, d) for d in range(input.ndim)) if as_tuple else found


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    if index.dtype in (dtype.uint8, dtype.int8):
        index = index.to(dtype.int64)
    if index.numel() == 0:
        return creation.zeros(index.shape, dtype=input.dtype, device=input.device)
    if input.ndim == 0:
        return _C.gather(input.reshape((1,)), 0, index.reshape((-1,))).reshape(index.shape)
    return _C.gather(input, dim, index)


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    if input.ndim == 0:
        return _C.index_select(input.reshape((1,)), 0, index.reshape((-1,))).reshape(())
    return _C.index_select(input, dim, index.reshape((-1,)))


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return _C.gather(input.reshape((-1,)), 0, indices.reshape((-1,)))
    others = ([1 if d == dim % x.ndim else n for d, n in enumerate(x.shape)] for x in (input, indices))
    shape = list(broadcast_shapes(*others))
    shape[dim] = input.shape[dim]
    return _C.take_along_dim(input.expand(shape), indices, dim)


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at indices into all of them, row-major; the shape of index."""
    return input.reshape((-1,))[index]


def _cut_to(index, source):
    return source[tuple(slice(0, n) for n in index.shape)] if source.shape != index.shape else source


def scatter(input: Tensor, dim: int, index: Tensor, src: Operand, *, reduce: str | None = None) -> Tensor:
    """input with src, a tensor or a number, written to the places that gather would read, or added or multiplied."""
    source = _cut_to(index, src) if isinstance(src, Tensor) else creation.full(
        (), src, dtype=input.dtype, device=input.device).expand(index.shape)
    if input.ndim == 0:
        return scatter(input.reshape((1,)), 0, index.reshape((-1,)), source.reshape((-1,)), reduce=reduce).reshape(())
    if index.ndim == 0 or index.numel() == 0:
        index, source = index.reshape((-1,)), source.reshape((-1,))
        if index.numel() == 0:
            return input.clone()
    if reduce is None:
        return _C.scatter(input, dim, index, source)
    return _C.scatter_reduce(input, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return scatter(input, dim, index, src, reduce="add")


def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    names = {"amax": "max", "amin": "min"}
    if input.ndim == 0:
        return _C.scatter_reduce(input.reshape((1,)), 0, index.reshape((-1,)), src.reshape((-1,)), names.get(reduce, reduce),
                                 include_self).reshape(())
    if index.numel() == 0:
        return input.clone()
    return _C.scatter_reduce(input, dim, index, _cut_to(index, src), names.get(reduce, reduce), include_self)


def _rows(input, dim, index, source):
    """An index for scatter that names whole slices along a dim."""
    shape = [1] * source.ndim
    shape[dim] = -1
    return index.reshape(shape).expand(source.shape)


@_scalars
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _C.index_add(input, dim, index.reshape((-1,)), source.reshape((1,)) if source.ndim == 0 else source, alpha)


@_scalars
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """input with the slices of source written to places `index` [n] along `dim`."""
    source, index = source.reshape((1,)) if source.ndim == 0 else source, index.reshape((-1,))
    return _C.scatter(input, dim, _rows(input, dim, index, source), source) if index.numel() else input.clone()


@_scalars
def index_fill(input: Tensor, dim: int, index: Tensor, value: Operand) -> Tensor:
    """input with a value written to places `index` [n] along `dim`."""
    index = index.reshape((-1,))
    named = _C.gt(_C.sum(_C.one_hot(index, input.shape[dim]), 0), 0) if index.numel() else creation.zeros(
        input.shape[dim], dtype=dtype.bool, device=input.device)
    shape = [1] * input.ndim
    shape[dim] = -1
    return masked_fill(input, named.reshape(shape), value)


@_scalars
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """input with the slices of source reduced into places `index` [n] along `dim`."""
    source, index = source.reshape((1,)) if source.ndim == 0 else source, index.reshape((-1,))
    return scatter_reduce(input, dim, _rows(input, dim, index, source), source, reduce, include_self=include_self)


def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    if builtins.any(i is None for i in indices):
        raise _C.Error("index_put: every index is a tensor here")
    spread = []
    for i in indices:
        spread += nonzero(i, as_tuple=True) if i.dtype == dtype.bool else [i]
    return _C.index_put(input, spread, values, accumulate)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """input with source written to indices into all elements, row-major."""
    return _C.index_put(input.reshape((-1,)), [index.reshape((-1,))], source.reshape((-1,)), accumulate).reshape(input.shape)


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """input with src written to one place along `dim`."""
    index %= input.shape[dim]
    place = creation.arange(input.shape[dim], device=input.device).reshape([
        -1 if d == dim % input.ndim else 1 for d in range(input.ndim)])
    return _C.where(_C.eq(place, index), src.unsqueeze(dim), input)


def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int =
                  1) -> Tensor:
    """input with src written to a slice along `dim`."""
    at = creation.tensor(list(range(input.shape[dim]))[start:end:step], dtype=dtype.int64, device=input.device)
    return index_copy(input, dim, at, src)


def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """input with src written to a diagonal."""
    x = movedim(input, (dim1, dim2), (-2, -1))
    rows, columns = x.shape[-2:]
    down = creation.arange(rows, device=input.device)
    on = _C.eq(creation.arange(columns, device=input.device).unsqueeze(0) - down.unsqueeze(1), offset)
    place = down + builtins.min(offset, 0)
    n = builtins.max(src.shape[-1], 1)
    spread = _C.index_select(src, -1, _C.clamp(place, 0, n - 1)).unsqueeze(-1).expand(x.shape) if src.numel() else x
    return movedim(_C.where(on, spread, x), (-2, -1), (dim1, dim2))


def masked_fill(input: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """value where the mask holds, input elsewhere; they broadcast."""
    return _C.where(mask, _C.mul(creation.ones((), dtype=input.dtype, device=input.device), value), input)


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Elements of source, in order, where the mask holds, input elsewhere."""
    mask = mask.expand(broadcast_shapes(input.shape, mask.shape))
    x = input.expand(mask.shape)
    order = _C.cumsum(mask.reshape((-1,)).to(dtype.int64), 0) - 1
    taken = _C.index_select(source.reshape((-1,)), 0, _C.clamp(order, 0, builtins.max(source.numel() - 1, 0)))
    return _C.where(mask, taken.reshape(mask.shape), x)


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    return _C.one_hot(input, int(_C.amax(input).item()) + 1 if num_classes < 0 else num_classes)


def sum_to_size(input: Tensor, *size: Dims) -> Tensor:
    """Sums down to a shape that broadcasts to that of input."""
    return _C.sum_to(input, _listed(size))


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    return _C.multinomial(input, num_samples, replacement, generator)


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probabilities of the input, 0 otherwise."""
    return _C.lt(_C.rand(input.shape, generator), input).to(input.dtype)


_guard(globals())
