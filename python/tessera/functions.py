"""Functions as PyTorch has them, where those of the library differ in what they take, or are several in one."""
from __future__ import annotations

import builtins
import math

from . import _C
from ._guard import guard as _guard
from ._results import MinMax as _MinMax, ValuesIndices as _ValuesIndices, named as _named
from . import creation
from ._C import Tensor, dtype
from .shapes import _dims, _scalars, broadcast_tensors, diagonal, movedim, nonzero, roll

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DTypeLike, Dims, Operand, Sequence


def _to(x, dtype):
    return x if dtype is None else x.to(dtype)


def _tensor_like(value, x):
    return value if isinstance(value, Tensor) else creation.full_like(x, value)


# ---- reductions


def _reduction(name):
    plain = getattr(_C, name)

    @_scalars
    def reduce(input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        return plain(_to(input, dtype), dim, keepdim)
    reduce.__name__, reduce.__doc__ = name, plain.__doc__
    return reduce


sum, mean, prod, amax, amin, any, all, logsumexp = map(
    _reduction, ("sum", "mean", "prod", "amax", "amin", "any", "all", "logsumexp"))


def _spread(name):
    plain = getattr(_C, name)

    @_scalars
    def spread(input: Tensor, dim: Dims | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None =
               None) -> Tensor:
        if isinstance(dim, bool):  # the overload without dims
            dim, unbiased = None, dim
        number = int(unbiased) if correction is None else correction
        if isinstance(number, float) and not number.is_integer():
            n = math.prod(input.shape[d] for d in _dims(dim, input.ndim))
            variance = _C.var(input, dim, 0, keepdim) * (n / (n - number))
            return _C.sqrt(variance) if name == "std" else variance
        return plain(input, dim, int(number), keepdim)
    spread.__name__ = name
    return spread


var, std = _spread("var"), _spread("std")


def var_mean(input: Tensor, dim: Dims | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None =
             None) -> tuple[Tensor, Tensor]:
    """The variances over `dim`, and the means."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)


def std_mean(input: Tensor, dim: Dims | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None =
             None) -> tuple[Tensor, Tensor]:
    """The standard deviations over `dim`, and the means."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, dim, keepdim)


def _position(name):
    plain = getattr(_C, name)

    @_scalars
    def position(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is not None:
            return plain(input, dim, keepdim)
        found = plain(input.reshape((-1,)), 0)
        return found.reshape((1,) * input.ndim) if keepdim else found
    position.__name__, position.__doc__ = name, plain.__doc__
    return position


argmax, argmin = _position("argmax"), _position("argmin")


def _extreme(name, among, with_index, of_two):
    @_scalars
    def extreme(input: Tensor, dim: Tensor | int | None = None, keepdim: bool = False, *, other: Tensor | None = None) -> Any:
        """Extrema of all elements, along a dim with their indices (i64), or of two tensors, which broadcast."""
        if isinstance(dim, Tensor):
            return of_two(input, dim)
        if other is not None:
            return of_two(input, other)
        return among(input) if dim is None else with_index(input, dim, keepdim)
    extreme.__name__ = name
    return extreme


max = _extreme("max", _C.amax, _C.max_with_index, _C.maximum)
min = _extreme("min", _C.amin, _C.min_with_index, _C.minimum)


def aminmax(input: Tensor, *, dim: Dims | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the largest elements over `dim`, which vanishes unless `keepdim`."""
    return amin(input, dim, keepdim), amax(input, dim, keepdim)


@_scalars
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _C.median(input) if dim is None else _C.median(input, dim, keepdim)


def count_nonzero(input: Tensor, dim: Dims | None = None) -> Tensor:
    """How many elements along `dim` are other than 0, i64."""
    return sum(_C.ne(input, 0).to(dtype.int64), dim)


def nansum(input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """Sums over `dim` with 0 in the place of NaN."""
    x = _to(input, dtype)
    return sum(_C.where(_C.isnan(x), creation.zeros_like(x), x), dim, keepdim)


def nanmean(input: Tensor, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """Means over `dim` of what is not NaN."""
    x = _to(input, dtype)
    number = sum(_C.logical_not(_C.isnan(x)).to(x.dtype), dim, keepdim)
    return nansum(x, dim, keepdim) / number


def _quantiles(x, q, interpolation, n):
    """By sorted x with its `dim` last; n [..., 1]: how many elements of each line count."""
    at = q * (n - 1)
    below = _C.floor(at)
    if interpolation == "lower":
        at = below
    elif interpolation == "higher":
        at = _C.ceil(at)
    elif interpolation == "nearest":
        at = _C.round(at)
    elif interpolation == "midpoint":
        at = (below + _C.ceil(at)) / 2
    below = _C.floor(at)
    low = _C.gather(x, -1, _C.maximum(below, 0).to(dtype.int64))
    high = _C.gather(x, -1, _C.maximum(_C.ceil(at), 0).to(dtype.int64))
    return _C.lerp(low, high, (at - below).to(x.dtype))


def quantile(input: Tensor, q: Tensor | float | Sequence[float], dim: int | None = None, keepdim: bool = False, *, interpolation:
             str = 'linear', ignore_nan: bool = False) -> Tensor:
    """Of a line's elements in order, that at a part q of its length. NaN in a line is its quantile."""
    if not input.is_floating_point():
        raise _C.Error(f"quantile: takes floating-point tensors, not {input.dtype}")
    ranks = q if isinstance(q, Tensor) else creation.tensor(q, dtype=input.dtype, device=input.device)
    x = input.reshape((-1,)) if dim is None or input.ndim == 0 else movedim(input, dim, -1)
    ordered, n = sort(x)[0], x.shape[-1]
    number = creation.full(x.shape[:-1] + (1,), float(n), device=x.device)
    bad = any(_C.isnan(x), -1, True)
    if ignore_nan:
        number = sum(_C.logical_not(_C.isnan(x)).to(x.dtype), -1, True)
    flat = ranks.reshape((-1,))
    wanted = flat.expand(x.shape[:-1] + flat.shape)
    found = _quantiles(ordered, wanted, interpolation, number.expand(wanted.shape))
    if not ignore_nan:
        found = _C.where(bad.expand(found.shape), creation.full_like(found, math.nan), found)
    out = movedim(found, -1, 0)
    if keepdim and (dim is None or input.ndim == 0):
        out = out.reshape(flat.shape + (1,) * input.ndim)
    elif keepdim:
        out = out.unsqueeze(1 + dim % input.ndim)
    return out if ranks.ndim else out.select(0, 0)


def nanquantile(input: Tensor, q: Tensor | float | Sequence[float], dim: int | None = None, keepdim: bool = False, *,
                interpolation: str = "linear") -> Tensor:
    """As quantile(), of what is not NaN."""
    return quantile(input, q, dim, keepdim, interpolation=interpolation, ignore_nan=True)


def _vector_norm(x, ord, dim, keepdim):
    dims = _dims(dim, x.ndim)
    if ord == 2 and x.ndim:
        return _C.norm(x, dims, keepdim)
    magnitude = _C.abs(x)
    if ord == math.inf:
        return amax(magnitude, dims, keepdim)
    if ord == -math.inf:
        return amin(magnitude, dims, keepdim)
    if ord == 0:
        return sum(_C.ne(x, 0).to(x.dtype), dims, keepdim)
    if ord == 1:
        return sum(magnitude, dims, keepdim)
    return _C.pow(sum(_C.pow(magnitude, float(ord)), dims, keepdim), 1 / ord)


def norm(input: Tensor, p: float | str | None = "fro", dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None
         = None) -> Tensor:
    """The vector norm of order p over `dim`; "fro" is 2."""
    if p == "nuc":
        raise _C.Error("norm: the nuclear norm is not there")
    return _vector_norm(_to(input, dtype), 2 if p in ("fro", None) else p, dim, keepdim)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of input - other, a tensor without dims."""
    return _vector_norm(_C.sub(input, other), p, None, False)


@_scalars
def softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    return _C.softmax(_to(input, dtype), dim)


@_scalars
def log_softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    return _C.log_softmax(_to(input, dtype), dim)


def _scan(name):
    plain = getattr(_C, name)

    @_scalars
    def scan(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Any:
        return plain(_to(input, dtype), dim)
    scan.__name__, scan.__doc__ = name, plain.__doc__
    return scan


cumsum, cumprod, cummax, cummin, logcumsumexp = map(_scan, ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"))


# ---- order


@_scalars
def sort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> tuple[Tensor, Tensor]:
    return _C.sort(input, dim, descending)


@_scalars
def argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Tensor:
    return _C.argsort(input, dim, descending)


def msort(input: Tensor) -> Tensor:
    """The elements sorted along the first dim; the shape of input."""
    return sort(input, 0)[0]


@_scalars
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return _C.topk(input, k, dim, largest)


@_scalars
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _C.kthvalue(input, k, dim, keepdim)


def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None =
           None) -> Any:
    """The elements that are there, ascending, or the slices along `dim`."""
    if dim is None:
        values, inverse, counts = _C.unique(input, return_inverse or return_counts)
        inverse = inverse.reshape(input.shape) if return_inverse else None
    else:
        values, _, inverse, counts = _C.unique_along(input, dim)
    out = (values,) + (inverse,) * return_inverse + (counts,) * return_counts
    return out if len(out) > 1 else values


def searchsorted(sorted_sequence: Tensor, input: Operand, *, out_int32: bool = False, right: bool = False, side: str | None =
                 None, sorter: Tensor | None = None) -> Tensor:
    values = input if isinstance(input, Tensor) else creation.scalar_tensor(
        input, dtype=sorted_sequence.dtype, device=sorted_sequence.device)
    if sorter is not None:
        sorted_sequence = _C.gather(sorted_sequence, -1, sorter)
    found = _C.searchsorted(sorted_sequence, values, right or side == "right")
    return found.to(dtype.int32) if out_int32 else found


def bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    return _C.histc(input, bins, min, max)


def isin(elements: Operand, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is one of `test_elements`, bool; the shape of `elements`."""
    wanted = _tensor_like(test_elements, elements if isinstance(elements, Tensor) else test_elements).reshape((-1,))
    x = elements if isinstance(elements, Tensor) else creation.scalar_tensor(
        elements, dtype=wanted.dtype, device=wanted.device)
    nothing = creation.zeros_like(x, dtype=dtype.bool)
    found = any(_C.eq(x.unsqueeze(-1), wanted), -1) if wanted.numel() else nothing
    return _C.logical_not(found) if invert else found


# ---- elementwise


def rsub(input: Operand, other: Operand, *, alpha: float = 1) -> Tensor:
    """other - alpha * input; they broadcast."""
    return _C.sub(other, input if alpha == 1 else _C.mul(input, alpha))


def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """a / b, rounded as `rounding_mode` says: None, "floor" or "trunc"."""
    kinds = {None: _C.div, "floor": _C.floor_divide, "trunc": _C.div_trunc}
    if rounding_mode not in kinds:
        raise _C.Error(f"div: rounding_mode {rounding_mode!r} is none of: None, floor, trunc")
    return kinds[rounding_mode](input, other)


def clamp(input: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """min(max(input, min), max), with numbers, tensors, or neither of one of them."""
    if min is None and max is None:
        raise _C.Error("clamp: neither min nor max is given")
    if not isinstance(min, Tensor) and not isinstance(max, Tensor):
        return _C.clamp(input, -math.inf if min is None else min, math.inf if max is None else max)
    out = input if min is None else _C.maximum(input, min)
    return out if max is None else _C.minimum(out, max)


def clamp_min(input: Tensor, min: Operand) -> Tensor:
    """max(input, min)."""
    return clamp(input, min)


def clamp_max(input: Tensor, max: Operand) -> Tensor:
    """min(input, max)."""
    return clamp(input, None, max)


def where(condition: Tensor, input: Operand | None = None, other: Operand | None = None) -> Any:
    """input where the condition holds, other elsewhere; alone it gives the indices of what is true, a tensor a dim."""
    if input is None:
        return nonzero(condition, as_tuple=True)
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = creation.full((), input, device=condition.device)
    if not isinstance(input, Tensor):
        input = _C.mul(creation.ones((), dtype=other.dtype, device=other.device), input)
    if not isinstance(other, Tensor):
        other = _C.mul(creation.ones((), dtype=input.dtype, device=input.device), other)
    return _C.where(condition, input, other)


def lerp(input: Tensor, end: Tensor, weight: Operand) -> Tensor:
    return _C.lerp(input, end, weight)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Half to even, to so many decimals."""
    if decimals == 0:
        return _C.round(input)
    factor = 10.0 ** builtins.abs(decimals)
    return _C.round(input * factor) / factor if decimals > 0 else _C.round(input / factor) * factor


def nan_to_num(input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    return _C.nan_to_num(input, 0 if nan is None else nan, posinf, neginf)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate not in ("none", "tanh"):
        raise _C.Error(f"gelu: approximate {approximate!r} is none of: none, tanh")
    return _C.gelu(input) if approximate == "none" else _C.gelu_tanh(input)


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)) without overflow; they broadcast."""
    larger = _C.maximum(input, other)
    same = _C.logical_and(_C.eq(input, other), _C.isinf(input))
    apart = _C.where(same, creation.zeros_like(larger), _C.neg(_C.abs(_C.sub(input, other))))
    return _C.add(larger, _C.log1p(_C.exp(apart)))


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2^input + 2^other) without overflow; they broadcast."""
    return logaddexp(input * math.log(2), other * math.log(2)) / math.log(2)


def xlogy(input: Operand, other: Operand) -> Tensor:
    """input log(other), 0 where input is 0; they broadcast."""
    product = _C.mul(input, _C.log(other if isinstance(other, Tensor) else creation.full_like(input, other)))
    zero = _C.eq(input, 0) if isinstance(input, Tensor) else creation.full(
        product.shape, input == 0, device=product.device)
    bad = _C.isnan(other) if isinstance(other, Tensor) else creation.full(
        product.shape, math.isnan(other), device=product.device)
    return _C.where(_C.logical_and(zero, _C.logical_not(bad)), creation.zeros_like(product), product)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x between eps and 1 - eps where `eps` is given; the shape of input."""
    x = input
    if eps is not None:
        high = creation.full_like(input, 1 - eps)
        x = _C.where(_C.lt(input, eps), creation.full_like(input, eps), _C.minimum(input, high))
    return _C.log(x / (1 - x))


def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""
    zero = _C.eq(input, 0)
    x = _C.where(zero, creation.ones_like(input), input) * math.pi
    return _C.where(zero, creation.ones_like(input), _C.sin(x) / x)


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, `values` at 0; they broadcast."""
    steps = _C.gt(input, 0).to(values.dtype)
    return _C.where(_C.eq(input, 0), values, steps)


def copysign(input: Tensor, other: Operand) -> Tensor:
    """The magnitude of input with the sign of other; they broadcast."""
    sign = signbit(_tensor_like(other, input))
    magnitude = _C.abs(input.to(_floating(input)))
    return _C.where(sign, _C.neg(magnitude), magnitude)


def signbit(input: Tensor) -> Tensor:
    """Whether the sign is negative, also that of 0."""
    if not input.is_floating_point():
        return _C.lt(input, 0)
    return _C.logical_or(_C.lt(input, 0), _C.logical_and(_C.eq(input, 0), _C.lt(_C.reciprocal(input), 0)))


def _numbers(input, other):
    """Both, with the other's element where one has NaN."""
    return _C.where(_C.isnan(input), other, input), _C.where(_C.isnan(other), input, other)


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger element, or the one that is not NaN; they broadcast."""
    return _C.maximum(*_numbers(input, other))


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller element, or the one that is not NaN; they broadcast."""
    return _C.minimum(*_numbers(input, other))


def frac(input: Tensor) -> Tensor:
    """input - trunc(input); the shape of input."""
    return _C.sub(input, _C.trunc(input))


def erfc(input: Tensor) -> Tensor:
    """1 - erf(input); the shape of input."""
    return _C.sub(1.0, _C.erf(input))


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians; the shape of input."""
    return _C.mul(input.to(_floating(input)), math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees; the shape of input."""
    return _C.mul(input.to(_floating(input)), 180 / math.pi)


def _floating(x):
    return x.dtype if x.is_floating_point() else dtype.float32


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """input 2^other; they broadcast."""
    return _C.mul(input, _C.pow(2.0, other.to(_floating(other))))


def float_power(input: Operand, exponent: Operand) -> Tensor:
    """input^exponent in f64; they broadcast."""
    x = input.to(dtype.float64) if isinstance(input, Tensor) else input
    return _C.pow(x, exponent.to(dtype.float64) if isinstance(exponent, Tensor) else float(exponent))


def isposinf(input: Tensor) -> Tensor:
    """Whether an element is infinite and positive, bool; the shape of input."""
    return _C.logical_and(_C.isinf(input), _C.gt(input, 0))


def isneginf(input: Tensor) -> Tensor:
    """Whether an element is infinite and negative, bool; the shape of input."""
    return _C.logical_and(_C.isinf(input), _C.lt(input, 0))


def isreal(input: Tensor) -> Tensor:
    """True for every element, bool; the shape of input."""
    return creation.ones_like(input, dtype=dtype.bool)


def angle(input: Tensor) -> Tensor:
    """0, pi of negative numbers, NaN of NaN."""
    turned = _C.where(_C.lt(input, 0), creation.full_like(input, math.pi), creation.zeros_like(input))
    return _C.where(_C.isnan(input), input, turned)


def same(input: Tensor) -> Tensor:
    """The tensor itself: what operators of complex numbers are for real ones."""
    return input


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are within atol + rtol |other| of each other."""
    return bool(all(_C.isclose(input, other, rtol, atol, equal_nan)))


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are the same."""
    return input.shape == other.shape and bool(all(_C.eq(input, other)))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value tensor1 tensor2; all three broadcast."""
    return _C.add(input, _C.mul(_C.mul(tensor1, tensor2), value))


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """input + value tensor1 / tensor2; all three broadcast."""
    return _C.add(input, _C.mul(_C.div(tensor1, tensor2), value))


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p; the shape of input."""
    shifts = creation.arange(p, dtype=input.dtype, device=input.device) / -2
    return sum(_C.lgamma(input.unsqueeze(-1) + shifts), -1) + p * (p - 1) / 4 * math.log(math.pi)


# ---- products


def _scaled(product, input, beta, alpha):
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else _C.add(product, input if beta == 1 else input * beta)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta input + alpha mat1 mat2: mat1 [n, k], mat2 [k, m] -> [n, m], to which input broadcasts."""
    return _scaled(_C.matmul(mat1, mat2), input, beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta input + alpha mat vec: mat [n, k], vec [k] -> [n]."""
    return _scaled(_C.matmul(mat, vec), input, beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta input + alpha times the sum of the products of batches: [b, n, k], [b, k, m] -> [n, m]."""
    return _scaled(sum(_C.matmul(batch1, batch2), 0), input, beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta input + alpha batch1 batch2: [b, n, k], [b, k, m] -> [b, n, m]."""
    return _scaled(_C.matmul(batch1, batch2), input, beta, alpha)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """[n], [m] -> [n, m]: every product of two elements."""
    return _C.mul(input.unsqueeze(1), vec2.unsqueeze(0))


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta input + alpha outer(vec1, vec2): [n], [m] -> [n, m]."""
    return _scaled(outer(vec1, vec2), input, beta, alpha)


def dot(input: Tensor, other: Tensor) -> Tensor:
    """[n], [n] -> []: the sum of products."""
    return sum(_C.mul(input, other))


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """[n, k], [k, m] -> [n, m]."""
    return _C.matmul(input, mat2)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """[..., k], [... , k] -> [..., ...]: products summed over the last dims."""
    if input.ndim == 0 or other.ndim == 0:
        return _C.mul(input, other)
    return _C.tensordot(input, other, input.ndim - 1, other.ndim - 1)


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] | Tensor = 2) -> Tensor:
    """Over the last `dims` dims of a and the first ones of b, or over the dims that two lists name."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        dims = (list(range(a.ndim - dims, a.ndim)), list(range(dims)))
    for x, y in zip(*dims):  # what has one element broadcasts
        if a.shape[x] == 1 != b.shape[y]:
            b = sum(b, y, True)
        elif b.shape[y] == 1 != a.shape[x]:
            a = sum(a, x, True)
    return _C.tensordot(a, b, dims[0], dims[1])


def einsum(equation: str, *operands: Tensor | Sequence[Tensor]) -> Tensor:
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = operands[0]
    return _C.einsum(equation, list(operands))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Kronecker's product: each dim has the product of both sizes."""
    n = builtins.max(input.ndim, other.ndim)
    a = input.reshape((1,) * (n - input.ndim) + input.shape)
    b = other.reshape((1,) * (n - other.ndim) + other.shape)
    spread_a = a.reshape([s for d in a.shape for s in (d, 1)])
    spread_b = b.reshape([s for d in b.shape for s in (1, d)])
    return _C.mul(spread_a, spread_b).reshape([x * y for x, y in zip(a.shape, b.shape)])


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product along a dim of 3 elements; they broadcast."""
    a, b = broadcast_tensors(input, other)
    if dim is None:
        dim = next((d for d in range(a.ndim) if a.shape[d] == 3), None)
        if dim is None:
            raise _C.Error(f"cross: no dim of {list(a.shape)} has 3 elements")
    return _C.sub(_C.mul(roll(a, -1, dim), roll(b, -2, dim)), _C.mul(roll(a, -2, dim), roll(b, -1, dim)))


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Distances [..., n, m] between the rows of both."""
    if p == 2 and x1.shape[-1]:
        return _C.cdist(x1, x2, p)
    return _vector_norm(_C.sub(x1.unsqueeze(-2), x2.unsqueeze(-3)), p, -1, False)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    if p == 2:
        return _C.pdist(input, p)
    at = creation.triu_indices(input.shape[0], input.shape[0], 1).to(device=input.device)
    return _vector_norm(_C.sub(input[at[0]], input[at[1]]), p, -1, False)


def cov(input: Tensor, *, correction: float | None = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """[variables, observations] -> [variables, variables]: covariances."""
    x = input.reshape((1, -1)) if input.ndim < 2 else input
    weights = creation.ones(x.shape[1], dtype=x.dtype, device=x.device)
    if fweights is not None:
        weights = weights * fweights.to(x.dtype)
    if aweights is not None:
        weights = weights * aweights.to(x.dtype)
    total = sum(weights)
    centered = x - sum(x * weights, 1, True) / total
    freedom = total - correction if aweights is None else total - correction * sum(weights * aweights.to(x.dtype)) / total
    out = _C.matmul(centered * weights, centered.t()) / _C.maximum(freedom, 0.0)
    return out.reshape(()) if out.numel() == 1 else out


def corrcoef(input: Tensor) -> Tensor:
    """[variables, observations] -> [variables, variables]: Pearson's correlations."""
    c = cov(input)
    if c.ndim == 0:
        return c / c
    scale = _C.sqrt(diagonal(c))
    return c / scale.unsqueeze(0) / scale.unsqueeze(1)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along `dim` scaled so that their p-norm is at most `maxnorm`; the shape of input."""
    others = [d for d in range(input.ndim) if d != dim % input.ndim]
    size = _vector_norm(input, p, others, True)
    factor = _C.where(_C.gt(size, maxnorm), maxnorm / (size + 1e-7), creation.ones_like(size))
    return _C.mul(input, factor)


def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
    return input


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is other than 0."""
    if input.numel() != 1:
        raise _C.Error(f"is_nonzero: {list(input.shape)} has not one element")
    return input.item() != 0


def is_complex(input: Tensor) -> bool:
    """False: complex numbers are pairs here."""
    return False


def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return not input.dtype.name.startswith(("u", "bool"))


def bitwise_left_shift(input: Tensor, other: Operand) -> Tensor:
    """input << other."""
    return input << other


def bitwise_right_shift(input: Tensor, other: Operand) -> Tensor:
    """input >> other."""
    return input >> other


for _name in ("max", "min", "median", "sort", "topk", "kthvalue", "cummax", "cummin"):
    globals()[_name] = _named(_ValuesIndices)(globals()[_name])
aminmax = _named(_MinMax)(aminmax)

_guard(globals())
