"""Initialisers: fill a tensor in place, outside of any graph, and return it."""
from __future__ import annotations

import math

from .. import _C, autograd, creation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any

_fill = _C._nn._init


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills with one number."""
    _fill.constant_(tensor, val)
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    """Fills with 0."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Fills with 1."""
    return constant_(tensor, 1)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Fills with numbers of a normal distribution."""
    _fill.normal_(tensor, mean, std, generator)
    return tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Fills with numbers that are uniform in [a, b)."""
    _fill.uniform_(tensor, a, b, generator)
    return tensor


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any =
                  None) -> Tensor:
    """Fills with numbers of a normal distribution that lie in [a, b], whose middle is the mean."""
    if not math.isclose(mean - a, b - mean, rel_tol=1e-9) or std <= 0:
        raise _C.Error(f"trunc_normal_: mean {mean} is not the middle of [{a}, {b}], or std {std} is not positive")
    _fill.trunc_normal_(tensor, mean, std, (b - mean) / std, generator)
    return tensor


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform, with variance 2 gain² / (fan_in + fan_out). Glorot 2010."""
    _fill.xavier_uniform_(tensor, gain, generator)
    return tensor


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Normal, with variance 2 gain² / (fan_in + fan_out). Glorot 2010."""
    _fill.xavier_normal_(tensor, gain, generator)
    return tensor


@autograd.no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """gain times a matrix whose rows or columns, as many as there are fewer of, are orthonormal. Saxe et al. 2014."""
    if tensor.ndim < 2:
        raise _C.Error(f"orthogonal_: a weight has two dims or more, not {list(tensor.shape)}")
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    q = normal_(creation.empty(max(rows, columns), min(rows, columns), dtype=_C.dtype.float64), generator=generator)
    for _ in range(2):  # the second time for what the first one rounded
        lower = _C.cholesky(_C.matmul(q.t(), q))
        q = _C.solve(lower, q.t()).t()
    tensor.copy_((gain * (q if rows >= columns else q.t())).reshape(tensor.shape))
    return tensor


def eye_(tensor: Tensor) -> Tensor:
    """Fills a matrix with ones on its diagonal, and zeros elsewhere."""
    with autograd.no_grad():
        tensor.copy_(creation.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))
    return tensor


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The gain that keeps variances behind a function; `param` is the slope of leaky_relu."""
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 0.75,
             "leaky_relu": math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))}
    gains.update({f"conv{kind}{n}d": 1.0 for kind in ("", "_transpose") for n in (1, 2, 3)})
    if nonlinearity not in gains:
        raise _C.Error(f"calculate_gain: {nonlinearity!r} is none of: {', '.join(gains)}")
    return gains[nonlinearity]


def _std(tensor, a, mode, nonlinearity):
    """gain / sqrt(fan) of a weight [out, in, windows...]."""
    if tensor.ndim < 2:
        raise _C.Error(f"kaiming: a weight has two dims or more, not {list(tensor.shape)}")
    if mode not in ("fan_in", "fan_out"):
        raise _C.Error(f"kaiming: mode {mode!r} is none of: fan_in, fan_out")
    fan = math.prod(tensor.shape[2:]) * tensor.shape[1 if mode == "fan_in" else 0]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any =
                     None) -> Tensor:
    """Uniform, with variance gain² / fan; `a` is the slope of leaky_relu. He et al. 2015."""
    bound = math.sqrt(3) * _std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any =
                    None) -> Tensor:
    """Normal, with variance gain² / fan; `a` is the slope of leaky_relu. He et al. 2015."""
    return normal_(tensor, 0, _std(tensor, a, mode, nonlinearity), generator)


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Filters of convolutions that give their input, as many channels as there are, in each of `groups`."""
    if tensor.ndim not in (3, 4, 5) or tensor.shape[0] % groups:
        raise _C.Error(f"dirac_: {list(tensor.shape)} are no filters of a convolution of {groups} groups")
    out = tensor.shape[0] // groups
    zeros_(tensor)
    for group in range(groups):
        for d in range(min(out, tensor.shape[1])):
            tensor.detach()[(group * out + d, d, *(n // 2 for n in tensor.shape[2:]))] = 1
    return tensor


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """A matrix of normal numbers, with that fraction of each column 0."""
    if tensor.ndim != 2:
        raise _C.Error(f"sparse_: takes a matrix, not {list(tensor.shape)}")
    normal_(tensor, 0, std, generator)
    zeros = math.ceil(sparsity * tensor.shape[0])
    ranks = _C.argsort(_C.argsort(_C.rand(tensor.shape, generator, _C.dtype.float64, tensor.device), 0), 0)
    tensor.detach().masked_fill_(ranks < zeros, 0)
    return tensor
