"""Reductions and normalisations of what a mask holds, as torch.masked has them.

`mask` is bool and broadcasts to the input; without one, all elements count. Where nothing counts, a sum is 0, a product 1, and
an extremum or a mean what an empty one is: infinite or NaN.
"""
from __future__ import annotations

import math

from . import _C, creation, functions, statistics
from ._guard import guard as _guard
from .nn import functional as F

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._C import Tensor
    from ._types import DTypeLike, Dims


def _only(x, mask, other, dtype=None):
    """x where the mask holds, `other` elsewhere."""
    x = functions._to(x, dtype)
    if mask is None:
        return x
    if mask.dtype != _C.dtype.bool:
        raise _C.Error(f"masked: the mask is of {mask.dtype.name}, not bool")
    return _C.where(mask.expand(x.shape), x, creation.full((), other, dtype=x.dtype, device=x.device))


def _lowest(x, sign):
    if x.dtype == _C.dtype.bool:
        return sign > 0
    return sign * math.inf if x.is_floating_point() else (
        creation.iinfo(x.dtype).max if sign > 0 else creation.iinfo(x.dtype).min)


def _reduction(name, blank):
    plain = getattr(functions, name)

    def reduce(input: Tensor, dim: Dims | None = None, *, keepdim: bool | None = False, dtype: DTypeLike | None = None, mask: Tensor |
               None = None) -> Tensor:
        return plain(_only(input, mask, blank(input), dtype), dim, bool(keepdim))
    reduce.__name__, reduce.__doc__ = name, f"{name}() over `dim` of what the mask holds."
    return reduce


sum, prod = _reduction("sum", lambda x: 0), _reduction("prod", lambda x: 1)
amax, amin = _reduction("amax", lambda x: _lowest(x, -1)), _reduction("amin", lambda x: _lowest(x, 1))
logsumexp = _reduction("logsumexp", lambda x: -math.inf)
argmax, argmin = _reduction("argmax", lambda x: _lowest(x, -1)), _reduction("argmin", lambda x: _lowest(x, 1))


def _count(x, dim, keepdim, mask):
    ones = creation.ones(x.shape, dtype=x.dtype, device=x.device)
    return functions.sum(_only(ones, mask, 0), dim, keepdim)


def mean(input: Tensor, dim: Dims | None = None, *, keepdim: bool | None = False, dtype: DTypeLike | None = None, mask: Tensor | None
         = None) -> Tensor:
    """Means over `dim` of what the mask holds."""
    x = functions._to(input, dtype)
    return sum(x, dim, keepdim=keepdim, mask=mask) / _count(x, dim, bool(keepdim), mask)


def median(input: Tensor, dim: int = -1, *, keepdim: bool | None = False, dtype: DTypeLike | None = None, mask: Tensor | None =
           None) -> Tensor:
    """The lower of the middle elements along `dim` of what the mask holds."""
    return statistics.nanmedian(_only(input, mask, math.nan, dtype), dim, bool(keepdim))[0]


def norm(input: Tensor, ord: float | None = 2.0, dim: Dims | None = None, *, keepdim: bool | None = False, dtype: DTypeLike | None =
         None, mask: Tensor | None = None) -> Tensor:
    """The vector norm of order `ord` over `dim` of what the mask holds."""
    x = _only(input, mask, math.inf if ord == -math.inf else 0, dtype)
    return functions._vector_norm(x, 2 if ord is None else ord, dim, bool(keepdim))


def var(input: Tensor, dim: Dims | None = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool | None
        = False, dtype: DTypeLike | None = None, mask: Tensor | None = None) -> Tensor:
    """Variances over `dim` of what the mask holds."""
    x = functions._to(input, dtype)
    freedom = correction if correction is not None else 0 if unbiased is False else 1
    away = x - mean(x, dim, keepdim=True, mask=mask)
    count = _count(x, dim, bool(keepdim), mask) - freedom
    return sum(away * away, dim, keepdim=keepdim, mask=mask) / _C.maximum(count, 0.0)


def std(input: Tensor, dim: Dims | None = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool | None
        = False, dtype: DTypeLike | None = None, mask: Tensor | None = None) -> Tensor:
    """Standard deviations over `dim` of what the mask holds."""
    return _C.sqrt(var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask))


def _of_lines(name, plain, blank):
    def apply(input: Tensor, dim: int, *, dtype: DTypeLike | None = None, mask: Tensor | None = None) -> Tensor:
        return plain(_only(input, mask, blank, dtype), dim)
    apply.__name__, apply.__doc__ = name, f"{name}() along `dim` of what the mask holds."
    return apply


softmax, log_softmax = _of_lines("softmax", functions.softmax, -math.inf), _of_lines("log_softmax", functions.log_softmax, -math.inf)
softmin = _of_lines("softmin", F.softmin, math.inf)
cumsum, cumprod = _of_lines("cumsum", functions.cumsum, 0), _of_lines("cumprod", functions.cumprod, 1)


def normalize(input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: DTypeLike | None = None, mask: Tensor | None =
              None) -> Tensor:
    """The input over the norm along `dim` of what the mask holds, which is taken as `eps` at least."""
    size = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _only(input, mask, 0, dtype) / _C.maximum(size, eps)


def logaddexp(input: Tensor, other: Tensor, *, dtype: DTypeLike | None = None, input_mask: Tensor | None = None, other_mask: Tensor |
              None = None) -> Tensor:
    """log(exp(input) + exp(other)) of what the masks hold."""
    return functions.logaddexp(_only(input, input_mask, -math.inf, dtype), _only(other, other_mask, -math.inf, dtype))


_guard(globals())
