"""Order, counts and neighbours of values, as PyTorch has them."""
from __future__ import annotations

import builtins
import itertools
import math

from . import _C, creation, functions, shapes
from ._guard import guard as _guard
from ._C import Tensor, dtype
from ._results import ValuesIndices as _ValuesIndices, named as _named
from .shapes import _scalars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, Dims, Sequence


@_scalars
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The most frequent elements along `dim`, the smallest of several, and where each stands last."""
    x = shapes.movedim(input, dim, -1)
    ordered, places = functions.sort(x.detach(), -1)
    n = x.shape[-1]
    if n == 0:
        raise _C.Error(f"mode: dim {dim} of {list(input.shape)} is empty")
    at = creation.arange(n, device=x.device).expand(x.shape)
    new = _C.ne(_C.slice(ordered, -1, 1, n), _C.slice(ordered, -1, 0, n - 1))
    start = _C.where(_C.pad(new.to(dtype.int64), [0] * (x.ndim - 1) + [1], [0] * x.ndim).to(dtype.bool), at, creation.zeros_like(at))
    longest = _C.argmax(_C.sub(at, _C.cummax(start, -1)[0]), -1, True)
    place = _C.gather(places, -1, longest)
    out = tuple(shapes.movedim(v, -1, dim) for v in (_C.gather(x, -1, place), place))
    return out if keepdim else tuple(_C.squeeze(v, dim) for v in out)


@_scalars
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the middle elements that are not NaN: of all, or along a dim with their indices."""
    x = input.reshape((-1,)) if dim is None else shapes.movedim(input, dim, -1)
    if x.shape[-1] == 0:
        return functions.median(input) if dim is None else functions.median(input, dim, keepdim)
    places = functions.argsort(x.detach(), -1)
    number = functions.sum(_C.logical_not(_C.isnan(x)), -1, True)
    place = _C.gather(places, -1, _C.clamp(_C.floor_divide(number - 1, 2), 0, x.shape[-1]))
    values = _C.gather(x, -1, place)
    if dim is None:
        return values.reshape(())
    out = tuple(shapes.movedim(v, -1, dim) for v in (values, place))
    return out if keepdim else tuple(_C.squeeze(v, dim) for v in out)


def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The first of each run of equal elements, or of equal slices along `dim`."""
    x = input.reshape((-1,)) if dim is None else input
    along = 0 if dim is None else dim % x.ndim
    n = x.shape[along]
    differ = _C.ne(_C.slice(x, along, 1, n), _C.slice(x, along, 0, builtins.max(n - 1, 0)))
    others = [d for d in range(x.ndim) if d != along]
    if others:
        differ = functions.any(differ, others)
    first = _C.concat([creation.ones(builtins.min(n, 1), dtype=dtype.bool, device=x.device), differ], 0)
    values = _C.index_select(x, along, _C.nonzero(first).reshape((-1,)))
    run = _C.cumsum(first.to(dtype.int64), 0) - 1
    inverse = run.reshape(input.shape) if dim is None else run
    out = (values,) + (inverse,) * return_inverse + ((_C.bincount(run),) if return_counts else ())
    return out if len(out) > 1 else values


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """[n] -> [count, r]: every choice of r elements in their order."""
    if input.ndim != 1 or r < 0:
        raise _C.Error(f"combinations: takes one dim and a positive number, not {list(input.shape)} and {r}")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = list(choose(range(input.shape[0]), r)) if r else []
    if not chosen:
        return creation.zeros((0, r) if r else (0,), dtype=input.dtype, device=input.device)
    at = creation.tensor(chosen, dtype=dtype.int64, device=input.device)
    return _C.index_select(input, 0, at.reshape((-1,))).reshape(at.shape)


def histogram(input: Tensor, bins: int | Tensor, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool =
              False) -> tuple[Tensor, Tensor]:
    """How many elements, or what sums of weights, lie in each bin, and the bins' edges. The last bin has its right edge."""
    x = input.reshape((-1,)).detach()
    if isinstance(bins, Tensor):
        edges = bins
    else:
        low, high = (float(v) for v in range) if range is not None else (
            (_C.amin(x).item(), _C.amax(x).item()) if x.numel() else (0.0, 1.0))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high) or bins < 1:
            raise _C.Error(f"histogram: {bins} bins from {low} to {high}")
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        edges = creation.linspace(low, high, bins + 1, dtype=x.dtype, device=x.device)
    n = edges.shape[0] - 1
    last = _C.slice(edges, 0, n, n + 1)
    place = _C.searchsorted(edges, x, True) - 1
    place = _C.where(_C.eq(x, last), creation.full_like(place, n - 1), place)
    inside = _C.logical_and(_C.ge(place, 0), _C.lt(place, n))
    factor = inside.to(x.dtype) if weight is None else _C.where(
        inside, weight.reshape((-1,)), creation.zeros((), dtype=weight.dtype, device=x.device))
    counts = _C.bincount(_C.clamp(place, 0, n - 1), factor, n).to(x.dtype)
    if density:
        counts = counts / functions.sum(counts) / _C.sub(_C.slice(edges, 0, 1, n + 1), _C.slice(edges, 0, 0, n))
    return counts, edges


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of nonzero(), filled up with a number."""
    if size < 0:
        raise _C.Error(f"nonzero_static: size {size} is negative")
    found = _C.slice(_C.nonzero(input), 0, 0, size)
    more = size - found.shape[0]
    return _C.concat([found, creation.full((more, input.ndim), fill_value, device=input.device)], 0) if more else found


def _slopes(x, widths, dim, edge_order):
    """Derivatives along `dim`, whose neighbours lie `widths` [n - 1] apart."""
    n = x.shape[dim]
    if n < edge_order + 1:
        raise _C.Error(f"gradient: dim {dim} of {list(x.shape)} has fewer than {edge_order + 1} elements")
    spread = [-1 if d == dim else 1 for d in range(x.ndim)]

    def part(a, b):
        return _C.slice(x, dim, a, b)

    def width(a, b):
        return _C.slice(widths, 0, a, b).reshape(spread)

    step = _C.sub(part(1, n), part(0, n - 1)) / widths.reshape(spread)
    before, after = width(0, n - 2), width(1, n - 1)
    inner = (before * _C.slice(step, dim, 1, n - 1) + after * _C.slice(step, dim, 0, n - 2)) / (before + after)
    ends = [_C.slice(step, dim, 0, 1), _C.slice(step, dim, n - 2, n - 1)]
    if edge_order == 2:
        for k, (a, b) in enumerate(((0, 1), (n - 2, n - 3))):
            near, far = _C.slice(step, dim, a, a + 1), _C.slice(step, dim, b, b + 1)
            h, g = width(a, a + 1), width(b, b + 1)
            ends[k] = near + (near - far) * (h / (h + g))
    return _C.concat([ends[0], inner, ends[1]], dim)


def gradient(input: Tensor, *, spacing: Any = 1, dim: Dims | None = None, edge_order: int = 1) -> list[Tensor]:
    """Derivatives along each dim by differences of neighbours, which lie `spacing` apart: a number, one for each dim, or places."""
    if edge_order not in (1, 2):
        raise _C.Error(f"gradient: edge_order {edge_order} is none of: 1, 2")
    spacing = 1 if spacing is None else spacing
    listed = isinstance(spacing, (tuple, list))
    if dim is None:
        dim = list(builtins.range(input.ndim))
    dims = [d % builtins.max(input.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)]
    apart = list(spacing) if listed else [spacing] * len(dims)
    if len(apart) != len(dims):
        raise _C.Error(f"gradient: {len(apart)} spacings for {len(dims)} dims")
    floating = input if input.is_floating_point() else input.to(dtype.float32)
    out = []
    for d, h in zip(dims, apart):
        n = builtins.max(input.shape[d] - 1, 0)
        widths = shapes.diff(h).to(floating.dtype) if isinstance(h, Tensor) and h.ndim else creation.full(
            (n,), float(h), dtype=floating.dtype, device=input.device)
        out.append(_slopes(floating, widths, d, edge_order))
    return out


# ---- the bits of numbers


def frexp(input: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissas of magnitudes in [0.5, 1) and exponents of 2 (i32), whose product is the input."""
    if not input.is_floating_point():
        raise _C.Error(f"frexp: takes floating-point tensors, not {input.dtype.name}")
    x = input.to(dtype.float64)
    bits = _C.bitwise_and(_C.right_shift(_C.bitcast(x.detach(), dtype.int64), creation.tensor(52)), creation.tensor(2047))
    plain = _C.logical_and(_C.ne(x, 0.0), _C.isfinite(x))
    exponent = _C.where(plain, bits - 1022, creation.zeros_like(bits))
    factor = _C.bitcast(_C.left_shift(1023 - exponent, creation.tensor(52)), dtype.float64)
    return (x * factor).to(input.dtype), exponent.to(dtype.int32)


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number that the dtype has from input towards other; they broadcast."""
    kinds = {dtype.float32: dtype.int32, dtype.float64: dtype.int64}
    if input.dtype not in kinds or other.dtype != input.dtype:
        raise _C.Error(f"nextafter: takes tensors of f32 or of f64, not {input.dtype.name} and {other.dtype.name}")
    x, y = shapes.broadcast_tensors(input, other)
    return _C.custom_function(
        "nextafter", [x, y], lambda xs: [_neighbours(*(v.contiguous() for v in xs), kinds[input.dtype])],
        lambda xs, ys, grads: [_C.where(_C.ne(*xs), grads[0], creation.zeros_like(grads[0])), creation.zeros_like(grads[0])])[0]


def _neighbours(x, y, whole):
    """By their bits as integers, which grow with magnitudes."""
    bits = _C.bitcast(x, whole)
    up = _C.gt(y, x)
    moved = _C.bitcast(_C.where(_C.eq(up, _C.gt(x, 0.0)), bits + 1, bits - 1), x.dtype)
    least = _C.bitcast(creation.ones_like(bits), x.dtype)
    moved = _C.where(_C.eq(x, 0.0), _C.where(up, least, _C.neg(least)), moved)
    moved = _C.where(_C.eq(x, y), y, moved)
    return _C.where(_C.logical_or(_C.isnan(x), _C.isnan(y)), x + y, moved)


trapz = shapes.trapezoid


mode, nanmedian = _named(_ValuesIndices)(mode), _named(_ValuesIndices)(nanmedian)

_guard(globals())
