"""Discrete Fourier transforms, as torch.fft has them.

There are no complex dtypes: a complex result has a last dim of 2, real and imaginary part, as torch.view_as_real gives it.
`complex=True` says that the input is of that kind. Dims are counted without that last one.
"""
from __future__ import annotations

import math

from . import _C, creation, shapes
from ._guard import guard as _guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._C import Tensor
    from ._types import DTypeLike, DeviceLike, Dims, Sequence


def _pairs(x, complex):
    """x with its last dim of 1 or 2."""
    x = x if x.is_floating_point() else x.to(_C.dtype.float32)
    if complex and (x.ndim == 0 or x.shape[-1] != 2):
        raise _C.Error(f"fft: complex numbers have a last dim of 2, not {list(x.shape)}")
    return x if complex else x.unsqueeze(-1)


def _scale(norm, inverse, count):
    """What dft() is multiplied by, which divides by the count where it is inverse."""
    if norm not in (None, "backward", "ortho", "forward"):
        raise _C.Error(f"fft: norm {norm!r} is none of: backward, ortho, forward")
    if norm == "ortho":
        return math.sqrt(count) if inverse else 1 / math.sqrt(count)
    return 1.0 if norm != "forward" else count if inverse else 1 / count


def _length(n, size):
    n = size if n is None else n
    if n < 1:
        raise _C.Error(f"fft: a length of {n} is not positive")
    return n


def _along(x, n, dim, norm, inverse=False, onesided=False):
    """One transform of pairs; n is that of the signal."""
    dims = x.ndim - 1
    if not -dims <= dim < dims:
        raise _C.Error(f"fft: dim {dim} of a tensor of {dims} dims")
    out = _C.dft(x, dim % dims, length=n, inverse=inverse, onesided=onesided)
    factor = _scale(norm, inverse, n)
    return out if factor == 1 else out * factor


def _conjugate(x):
    return x * creation.tensor([1.0, -1.0], dtype=x.dtype, device=x.device)


def _real_half(x, n, dim, norm):
    """The real signal of `n` elements whose transform begins with x, whose missing elements are 0."""
    dims = x.ndim - 1
    bins = n // 2 + 1
    size = x.shape[dim % dims]
    if size > bins:
        x = _C.slice(x, dim % dims, 0, bins)
    elif size < bins:
        x = _C.pad(x, [0] * (dims + 1), [bins - size if d == dim % dims else 0 for d in range(dims + 1)])
    if x.shape[-1] == 1:
        x = _C.concat([x, creation.zeros_like(x)], -1)
    return _along(x, n, dim, norm, True, True).squeeze(-1)


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, complex: bool = False) -> Tensor:
    """The transform along `dim`, of `n` elements to which the input is cut or padded with zeros: [..., 2]."""
    return fftn(input, None if n is None else [n], [dim], norm, complex=complex)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, complex: bool = False) -> Tensor:
    """The inverse of fft(): [..., 2]."""
    return ifftn(input, None if n is None else [n], [dim], norm, complex=complex)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n / 2 + 1 elements of a real signal's transform, whose others mirror them: [..., n / 2 + 1, 2]."""
    return rfftn(input, None if n is None else [n], [dim], norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, complex: bool = False) -> Tensor:
    """The inverse of rfft(), a real signal of `n` elements, by default 2 (size - 1)."""
    return irfftn(input, None if n is None else [n], [dim], norm, complex=complex)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, complex: bool = False) -> Tensor:
    """The real transform of `n` elements, of a signal that mirrors itself and whose first n / 2 + 1 elements are given."""
    return hfftn(input, None if n is None else [n], [dim], norm, complex=complex)


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of hfft(): [..., n / 2 + 1, 2]."""
    return ihfftn(input, None if n is None else [n], [dim], norm)


def _plan(x, s, dim):
    """Dims and the elements that each has or gets."""
    dims = x.ndim - 1
    if s is not None and not isinstance(s, (tuple, list)):
        s = [s]
    if dim is None:
        dim = range(dims) if s is None else range(dims - len(s), dims)
    dim = [dim] if isinstance(dim, int) else list(dim)
    if any(not -dims <= d < dims for d in dim) or len({d % dims for d in dim}) != len(dim):
        raise _C.Error(f"fft: dims {dim} of a tensor of {dims} dims")
    if s is not None and len(s) != len(dim):
        raise _C.Error(f"fft: {len(s)} lengths for {len(dim)} dims")
    return dim, [None if s is None or s[i] == -1 else s[i] for i in range(len(dim))]


def _all(x, dim, sizes, norm, inverse):
    for d, n in zip(dim, sizes):
        x = _along(x, _length(n, x.shape[d % (x.ndim - 1)]), d, norm, inverse)
    return x if x.shape[-1] == 2 else _C.concat([x, creation.zeros_like(x)], -1)


def fftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims | None = None, norm: str | None = None, *,
         complex: bool = False) -> Tensor:
    """The transform over several dims, by default all: [..., 2]."""
    x = _pairs(input, complex)
    return _all(x, *_plan(x, s, dim), norm, False)


def ifftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims | None = None, norm: str | None = None, *,
          complex: bool = False) -> Tensor:
    """The inverse of fftn(): [..., 2]."""
    x = _pairs(input, complex)
    return _all(x, *_plan(x, s, dim), norm, True)


def _onesided(input, s, dim, norm, inverse):
    """The first half along the last of the dims, which a real signal has; of the inverse by conjugation."""
    x = _pairs(input, False)
    dim, sizes = _plan(x, s, dim)
    if not dim:
        raise _C.Error("fft: a transform of real numbers needs a dim")
    n = _length(sizes[-1], x.shape[dim[-1] % (x.ndim - 1)])
    out = _along(x, n, dim[-1], norm, False, True) if not inverse else _conjugate(
        _along(x, n, dim[-1], {"forward": None, "ortho": "ortho"}.get(norm, "forward"), False, True))
    return _all(out, dim[:-1], sizes[:-1], norm, inverse)


def rfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims | None = None, norm: str | None = None) -> Tensor:
    """fftn() of a real tensor, of which the last dim keeps n / 2 + 1 elements: [..., 2]."""
    return _onesided(input, s, dim, norm, False)


def ihfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims | None = None, norm: str | None = None) -> Tensor:
    """The inverse of hfftn(): [..., 2]."""
    return _onesided(input, s, dim, norm, True)


def _to_real(input, s, dim, norm, complex, inverse):
    x = _pairs(input, complex)
    dim, sizes = _plan(x, s, dim)
    if not dim:
        raise _C.Error("fft: a transform to real numbers needs a dim")
    n = _length(sizes[-1], 2 * (x.shape[dim[-1] % (x.ndim - 1)] - 1))
    if dim[:-1]:
        x = _all(x, dim[:-1], sizes[:-1], norm, inverse)
    if inverse:
        return _real_half(x, n, dim[-1], norm)
    x = _conjugate(x) if x.shape[-1] == 2 else x
    return _real_half(x, n, dim[-1], {"forward": None, "ortho": "ortho"}.get(norm, "forward"))


def irfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims | None = None, norm: str | None = None, *,
           complex: bool = False) -> Tensor:
    """The inverse of rfftn(): real."""
    return _to_real(input, s, dim, norm, complex, True)


def hfftn(input: Tensor, s: Sequence[int] | None = None, dim: Dims | None = None, norm: str | None = None, *,
          complex: bool = False) -> Tensor:
    """hfft() along the last of the dims, fft() along the others: real."""
    return _to_real(input, s, dim, norm, complex, False)


def _plane(name):
    of_many = globals()[name + "n"]

    def transform(input: Tensor, s: Sequence[int] | None = None, dim: Dims = (-2, -1), norm: str | None = None,
                  **options: bool) -> Tensor:
        return of_many(input, s, dim, norm, **options)
    transform.__name__, transform.__doc__ = name + "2", f"{name}n() over two dims, by default the last ones."
    return transform


fft2, ifft2, rfft2, irfft2, hfft2, ihfft2 = map(_plane, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))


def fftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike | None = _C.dtype.float32, device: DeviceLike | None = None) -> Tensor:
    """[n]: the frequencies of fft(), of samples that lie `d` apart."""
    return shapes.roll(creation.arange(-(n // 2), (n + 1) // 2, dtype=dtype, device=device), -(n // 2), 0) / (n * d)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike | None = _C.dtype.float32, device: DeviceLike | None = None) -> Tensor:
    """[n / 2 + 1]: the frequencies of rfft(), of samples that lie `d` apart."""
    return creation.arange(n // 2 + 1, dtype=dtype, device=device) / (n * d)


def _shift(input, dim, sign):
    dims = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    for d in dims:
        input = shapes.roll(input, input.shape[d] // 2 if sign > 0 else -(input.shape[d] // 2), d)
    return input


def fftshift(input: Tensor, dim: Dims | None = None) -> Tensor:
    """Frequency 0 in the middle, along all dims or these."""
    return _shift(input, dim, 1)


def ifftshift(input: Tensor, dim: Dims | None = None) -> Tensor:
    """The inverse of fftshift()."""
    return _shift(input, dim, -1)


_guard(globals())
