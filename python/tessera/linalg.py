"""Matrices, as torch.linalg has them: small ones, since each function is made of plain operators."""
from __future__ import annotations

import builtins
import functools
import math

from . import _C, creation, functions, shapes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import DTypeLike, Dims, Sequence

det, inv, solve_ = _C.det, _C.inverse, _C.solve
cross = functools.partial(functions.cross, dim=-1)
diagonal = functools.partial(shapes.diagonal, dim1=-2, dim2=-1)


def cholesky(input: Tensor, *, upper: bool = False) -> Tensor:
    lower = _C.cholesky((input + _C.transpose(input, -2, -1)) * 0.5)  # so that its gradient is symmetric
    return _C.transpose(lower, -2, -1) if upper else lower


def solve(input: Tensor, other: Tensor, *, left: bool = True) -> Tensor:
    if not left:
        return _C.transpose(solve(_C.transpose(input, -2, -1), _C.transpose(other, -2, -1)), -2, -1)
    vector = other.ndim == 1 or (other.ndim == input.ndim - 1 and other.shape == input.shape[:-1])
    if vector:
        return _C.solve(input, other.unsqueeze(-1)).squeeze(-1)
    return _C.solve(input, other)


def matrix_power(input: Tensor, n: int) -> Tensor:
    """[..., n, n] multiplied n times by itself; inverted for negative n."""
    if n < 0:
        return matrix_power(inv(input), -n)
    if n == 0:
        return creation.eye(input.shape[-1], dtype=input.dtype, device=input.device).expand(input.shape).clone()
    half = matrix_power(input, n // 2) if n > 1 else None
    square = _C.matmul(half, half) if n > 1 else input
    return _C.matmul(square, input) if n > 1 and n % 2 else square


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of all matrices, from the left."""
    return functools.reduce(_C.matmul, tensors)


def vecdot(x: Tensor, y: Tensor, *, dim: Dims | None = -1) -> Tensor:
    """The sum of products along `dim`, which vanishes; they broadcast."""
    return functions.sum(_C.mul(x, y), dim)


def vector_norm(x: Tensor, ord: float = 2, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None =
                None) -> Tensor:
    """The norm of order `ord` over `dim`, which vanishes unless `keepdim`."""
    return functions._vector_norm(functions._to(x, dtype), ord, dim, keepdim)


def matrix_norm(input: Tensor, ord: float | str = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: DTypeLike
                | None = None) -> Tensor:
    """"fro", 1, -1, inf or -inf: the others need singular values, which are not there."""
    x = functions._to(input, dtype)
    if ord == "fro":
        return functions._vector_norm(x, 2, list(dim), keepdim)
    if ord not in (1, -1, math.inf, -math.inf):
        raise _C.Error(f"matrix_norm: order {ord!r} is not there")
    rows, columns = (d % x.ndim for d in dim)
    summed, over = (rows, columns) if builtins.abs(ord) == 1 else (columns, rows)
    sums = functions.sum(_C.abs(x), summed, True)
    out = (functions.amax if ord > 0 else functions.amin)(sums, over, True)
    return out if keepdim else out.squeeze((rows, columns))


def norm(input: Tensor, ord: float | str | None = None, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None
         = None) -> Tensor:
    pair = isinstance(dim, (tuple, list)) and len(dim) == 2
    if ord is None:
        return vector_norm(input, 2, dim, keepdim, dtype=dtype)
    if pair or (dim is None and input.ndim == 2):
        return matrix_norm(input, ord, dim or (-2, -1), keepdim, dtype=dtype)
    return vector_norm(input, ord, dim, keepdim, dtype=dtype)


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """[..., n] -> [..., n, N]: powers 0 to N - 1 of each element."""
    n, x = x.shape[-1] if N is None else N, x.reshape((1,)) if x.ndim == 0 else x
    return _C.pow(x.unsqueeze(-1), creation.arange(n, dtype=x.dtype, device=x.device))
