"""Matrices, as torch.linalg has them: small ones, since each function is made of plain operators."""
from __future__ import annotations

import builtins
import functools
import math

from . import _C, creation, functions, shapes
from ._guard import guard as _guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._C import Tensor
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


# ---- triangles and determinants


def _triangle(a, upper, unit):
    """The triangle alone, with ones on its diagonal where it is `unit`."""
    part = _C.triu(a, 1 if unit else 0) if upper else _C.tril(a, -1 if unit else 0)
    return part + creation.eye(a.shape[-1], dtype=a.dtype, device=a.device) if unit else part


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X of A X = B, or of X A = B without `left`; only a triangle of A [..., n, n] is read."""
    batch = shapes.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    a, b = A.expand(batch + A.shape[-2:]), B.expand(batch + B.shape[-2:])
    return solve(_triangle(a, upper, unitriangular), b, left=left)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X of A X = B, where cholesky() of A is L [..., n, n]: B [..., n, k] -> [..., n, k].

    A triangle of L is read. As in PyTorch, its gradient is that of any L of L L^T.
    """
    batch = shapes.broadcast_shapes(L.shape[:-2], B.shape[:-2])
    other = _C.tril(L, -1) if upper else _C.triu(L, 1)
    a, b = (L - other.detach()).expand(batch + L.shape[-2:]), B.expand(batch + B.shape[-2:])
    turned = _C.transpose(a, -2, -1)
    return solve(a, solve(turned, b)) if upper else solve(turned, solve(a, b))


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose cholesky() is L [..., n, n]."""
    return cholesky_solve(creation.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand(L.shape), L, upper)


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """Signs and logarithms of magnitudes of determinants, of which each of the rows' largest elements is taken before."""
    a = A.to(_C.dtype.float64)
    if a.shape[-1] == 0:
        return _C.det(A), _C.log(_C.det(A))
    largest = functions.amax(_C.abs(a.detach()), -1, True)
    largest = _C.where(_C.gt(largest, 0.0), largest, creation.ones_like(largest))
    rest = _C.det(a / largest)
    logs = _C.log(_C.abs(rest)) + functions.sum(_C.log(largest), (-2, -1))
    return _C.sign(rest.detach()).to(A.dtype), logs.to(A.dtype)


def logdet(A: Tensor) -> Tensor:
    """The logarithm of the determinant, NaN where that is negative."""
    sign, logs = slogdet(A)
    return _C.where(_C.lt(sign, 0.0), creation.full_like(logs, math.nan), logs)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a map from its last dims to the first `ind`, which have as many elements."""
    if ind < 1:
        raise _C.Error(f"tensorinv: ind {ind} is not positive")
    rows, columns = A.shape[:ind], A.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise _C.Error(f"tensorinv: {list(rows)} and {list(columns)} do not have as many elements")
    return inv(A.reshape((math.prod(rows), math.prod(columns)))).reshape(columns + rows)


def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X of tensordot(A, X, X.ndim) = B; `dims` of A are moved to its end before."""
    if dims is not None:
        A = shapes.movedim(A, list(dims), list(range(A.ndim - len(dims), A.ndim)))
    rest, n = A.shape[B.ndim:], B.numel()
    if math.prod(rest) != n or A.numel() != n * n:
        raise _C.Error(f"tensorsolve: {list(A.shape)} is not square for {list(B.shape)}")
    return solve(A.reshape((n, n)), B.reshape((n,))).reshape(rest)


def matrix_exp(A: Tensor) -> Tensor:
    """[..., n, n]: the exponential, by Taylor's series of A / 2^s, squared s times."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise _C.Error(f"matrix_exp: {list(A.shape)} are no square matrices")
    if A.numel() == 0:
        return A.clone()
    size = float(_C.amax(functions.sum(_C.abs(A.detach()), -1)).item())
    if not math.isfinite(size):
        return creation.full_like(A, math.nan)
    halvings = max(0, math.ceil(math.log2(size)) + 1) if size else 0
    a, unit = A.to(_C.dtype.float64) * 0.5 ** halvings, creation.eye(A.shape[-1], dtype=_C.dtype.float64, device=A.device)
    out = unit.expand(A.shape)
    for k in range(16, 0, -1):
        out = unit + _C.matmul(a, out) * (1 / k)
    for _ in range(halvings):
        out = _C.matmul(out, out)
    return out.to(A.dtype)


def qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """A [..., m, n] as Q R, Q orthogonal [..., m, k] and R upper triangular [..., k, n], by Householder's reflections.

    k is min(m, n), or m in the mode "complete"; of "r" Q is empty.
    """
    if mode not in ("reduced", "complete", "r"):
        raise _C.Error(f"qr: mode {mode!r} is none of: reduced, complete, r")
    if A.ndim < 2 or not A.is_floating_point():
        raise _C.Error(f"qr: {A.dtype.name}{list(A.shape)} are no matrices of floating-point numbers")
    m, n = A.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    r, mirrors = A, []
    places = creation.arange(m, device=A.device).unsqueeze(1)
    for i in range(min(m - 1, n)):
        column = _C.where(_C.ge(places, i), _C.slice(r, -1, i, i + 1), creation.zeros((), dtype=A.dtype, device=A.device))
        head = _C.slice(column, -2, i, i + 1)
        below = _C.where(_C.gt(places, i), column, creation.zeros((), dtype=A.dtype, device=A.device))
        # A column that is zero below its head stays as it is.
        turns = _C.gt(functions.amax(_C.abs(below.detach()), -2, True), 0.0)
        size = _C.sqrt(_C.where(turns, functions.sum(_C.square(column), -2, True), creation.ones_like(head)))
        away = _C.where(_C.lt(head, 0.0), _C.neg(size), size)
        v = below + _C.where(_C.eq(places, i), head + away, creation.zeros((), dtype=A.dtype, device=A.device))
        square = _C.where(turns, functions.sum(_C.square(v), -2, True), creation.ones_like(head))
        factor = _C.where(turns, 2.0 / square, creation.zeros_like(head))
        r = r - factor * _C.matmul(v, _C.matmul(_C.transpose(v, -2, -1), r))
        mirrors.append((v, factor))
    upper = _C.triu(_C.slice(r, -2, 0, k), 0)
    if mode == "r":
        return creation.zeros((0,), dtype=A.dtype, device=A.device), upper
    q = creation.eye(m, k, dtype=A.dtype, device=A.device).expand(A.shape[:-2] + (m, k))
    for v, factor in reversed(mirrors):
        q = q - factor * _C.matmul(v, _C.matmul(_C.transpose(v, -2, -1), q))
    return q, upper


_guard(globals())
