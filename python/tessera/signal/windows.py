"""Windows of M elements, symmetric or, without `sym`, one period of M + 1, as torch.signal.windows has them."""
from __future__ import annotations

import math

from .. import _C, creation, special
from .._guard import guard as _guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._C import Tensor
    from .._types import Any, DTypeLike, DeviceLike, Sequence

_F32 = _C.dtype.float32


def _window(function):
    """A window of `function`, which takes its places from -1 to 1, M and the window's own arguments."""
    def window(M: int, *args: Any, sym: bool = True, dtype: DTypeLike | None = _F32, device: DeviceLike | None = None,
               requires_grad: bool = False, **own: Any) -> Tensor:
        if not isinstance(M, int) or M < 0:
            raise _C.Error(f"{function.__name__}: a window of {M} elements")
        if not _C.is_floating_dtype(_C.dtype[dtype] if isinstance(dtype, str) else dtype):
            raise _C.Error(f"{function.__name__}: takes floating-point dtypes, not {dtype}")
        span = M - 1 if sym else M
        places = creation.arange(M, dtype=_C.dtype.float64, device=device) * (2 / max(span, 1)) - 1.0
        made = function(places, M, span, *args, **own) if M > 1 else creation.ones(M, device=device)
        made = made.to(dtype)
        return made.requires_grad_() if requires_grad else made
    window.__name__, window.__doc__ = function.__name__, function.__doc__
    return window


@_window
def general_cosine(places, M, span, a: Sequence[float]):
    """The sum of (-1)^i a[i] cos(2 pi i n / (M - 1))."""
    if not a:
        raise _C.Error("general_cosine: no coefficients are given")
    return sum(number * _C.cos(places * (math.pi * i)) for i, number in enumerate(a))


def _cosines(name, coefficients):
    def window(M: int, *, sym: bool = True, dtype: DTypeLike | None = _F32, device: DeviceLike | None = None, requires_grad: bool =
               False) -> Tensor:
        return general_cosine(M, coefficients, sym=sym, dtype=dtype, device=device, requires_grad=requires_grad)
    window.__name__ = name
    window.__doc__ = f"general_cosine() with the coefficients {', '.join(map(str, coefficients))}."
    return window


hann, hamming = _cosines("hann", [0.5, 0.5]), _cosines("hamming", [0.54, 0.46])
blackman = _cosines("blackman", [0.42, 0.5, 0.08])
nuttall = _cosines("nuttall", [0.3635819, 0.4891775, 0.1365995, 0.0106411])


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, dtype: DTypeLike | None = _F32, device: DeviceLike | None =
                    None, requires_grad: bool = False) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi n / (M - 1))."""
    return general_cosine(M, [alpha, 1 - alpha], sym=sym, dtype=dtype, device=device, requires_grad=requires_grad)


@_window
def bartlett(places, M, span):
    """1 - |2 n / (M - 1) - 1|."""
    return 1.0 - _C.abs(places)


@_window
def cosine(places, M, span):
    """sin(pi (n + 1/2) / M)."""
    whole = span + 1
    return _C.sin(((places + 1.0) * (span / 2) + 0.5) * (math.pi / whole))


@_window
def exponential(places, M, span, *, center: float | None = None, tau: float = 1.0):
    """exp(-|n - center| / tau); the center is that of the window unless given, which a symmetric one forbids."""
    if tau <= 0:
        raise _C.Error(f"exponential: tau {tau} is not positive")
    if center is not None and span == M - 1:
        raise _C.Error("exponential: the center of a symmetric window is its own")
    away = (places + 1.0) * (span / 2) - (span / 2 if center is None else float(center))
    return _C.exp(_C.abs(away) * (-1 / tau))


@_window
def gaussian(places, M, span, *, std: float = 1.0):
    """exp(-(n - (M - 1) / 2)² / (2 std²))."""
    if std <= 0:
        raise _C.Error(f"gaussian: std {std} is not positive")
    return _C.exp(_C.square(places * (span / 2 / std)) * -0.5)


@_window
def kaiser(places, M, span, *, beta: float = 12.0):
    """i0(beta sqrt(1 - (2 n / (M - 1) - 1)²)) / i0(beta)."""
    if beta < 0:
        raise _C.Error(f"kaiser: beta {beta} is negative")
    inside = _C.sqrt(_C.clamp(1.0 - _C.square(places), 0.0, 1.0)) * float(beta)
    return special.i0(inside) / special.i0(creation.full((), float(beta), dtype=inside.dtype, device=inside.device))


_guard(globals())
