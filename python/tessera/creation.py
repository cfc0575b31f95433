"""Tensors from numbers, arrays and nothing."""
from __future__ import annotations

from . import _C
from ._C import Tensor, dtype


def _size(size):
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size


def _finish(made: Tensor, requires_grad: bool) -> Tensor:
    return made.requires_grad_() if requires_grad else made


def from_numpy(array, /) -> Tensor:
    """A tensor on the memory of an array: what is written to one is seen in the other. bf16 is that of ml_dtypes."""
    if getattr(getattr(array, "dtype", None), "name", "") == "bfloat16":
        return _C._from_array(array.view("uint16"), dtype.bfloat16)
    return _C._from_array(array)


def from_dlpack(array, /) -> Tensor:
    """A tensor on the memory of anything that has __dlpack__ or is a buffer, which lives as long as the tensor does."""
    return from_numpy(array)


def _is_array(data) -> bool:
    return hasattr(data, "__dlpack__") or hasattr(data, "__array_interface__")


def as_tensor(data, dtype=None, device=None) -> Tensor:
    """`data` itself, or on its memory, where it is a tensor or an array that may be written to; otherwise a copy."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if not _is_array(data):
        return _C._tensor_of(data, dtype, device)
    if getattr(getattr(data, "flags", None), "writeable", True) is False:
        data = data.copy()
    return from_numpy(data).to(dtype=dtype, device=device)


def tensor(data, *, dtype=None, device=None, requires_grad=False) -> Tensor:
    """A copy of numbers, of lists of them, or of an array."""
    made = as_tensor(data, dtype, device)
    if isinstance(data, Tensor) or _is_array(data):
        made = made.detach().clone()
    return _finish(made, requires_grad)


def full(size, fill_value, *, dtype=None, device=None, requires_grad=False) -> Tensor:
    if dtype is None:
        kinds = ((bool, _C.dtype.bool), (int, _C.dtype.int64))
        dtype = next((d for kind, d in kinds if isinstance(fill_value, kind)), _C.dtype.float32)
    return _finish(_C.full(size, float(fill_value), dtype, device), requires_grad)


def _filled(value):
    def make(*size, dtype=dtype.float32, device=None, requires_grad=False) -> Tensor:
        return _finish(_C.full(_size(size), value, dtype, device), requires_grad)
    return make


zeros, ones = _filled(0), _filled(1)
zeros.__name__, ones.__name__ = "zeros", "ones"


def empty(*size, dtype=dtype.float32, device=None, requires_grad=False) -> Tensor:
    return _finish(_C.empty(_size(size), dtype, device), requires_grad)


def rand(*size, generator=None, dtype=dtype.float32, device=None, requires_grad=False) -> Tensor:
    """Uniform in [0, 1)."""
    return _finish(_C.rand(_size(size), generator, dtype, device), requires_grad)


def randn(*size, generator=None, dtype=dtype.float32, device=None, requires_grad=False) -> Tensor:
    """Normal with mean 0 and variance 1."""
    return _finish(_C.randn(_size(size), generator, dtype, device), requires_grad)


def randint(low, high=None, size=None, *, generator=None, device=None) -> Tensor:
    """Integers in [low, high), or in [0, low)."""
    if size is None:
        low, high, size = 0, low, high
    return _C.randint(low, high, size, generator, device)


def arange(start, end=None, step=1, *, dtype=None, device=None) -> Tensor:
    if end is None:
        start, end = 0, start
    whole = all(isinstance(n, int) for n in (start, end, step))
    return _C.arange(start, end, step, dtype or (_C.dtype.int64 if whole else _C.dtype.float32), device)


def logspace(start, end, steps, base=10.0, *, dtype=dtype.float32, device=None) -> Tensor:
    """Powers of `base`, whose exponents are at equal distances."""
    exponents = _C.linspace(float(start), float(end), steps, _C.dtype.float64, device)
    return _C.pow(float(base), exponents).to(dtype)


def _like(fill):
    def make(input, *, dtype=None, device=None, requires_grad=False) -> Tensor:
        return _finish(_C.full(input.shape, fill, dtype or input.dtype, device or input.device), requires_grad)
    return make


zeros_like, ones_like = _like(0), _like(1)


def full_like(input, fill_value, *, dtype=None, device=None) -> Tensor:
    return _C.full(input.shape, float(fill_value), dtype or input.dtype, device or input.device)


def empty_like(input, *, dtype=None, device=None) -> Tensor:
    return _C.empty(input.shape, dtype or input.dtype, device or input.device)


def rand_like(input, *, dtype=None, device=None) -> Tensor:
    return _C.rand(input.shape, None, dtype or input.dtype, device or input.device)


def randn_like(input, *, dtype=None, device=None) -> Tensor:
    return _C.randn(input.shape, None, dtype or input.dtype, device or input.device)


def scalar_tensor(value, *, dtype=dtype.float32, device=None, requires_grad=False) -> Tensor:
    return _finish(_C.full((), float(value), dtype, device), requires_grad)


def eye(n, m=None, *, dtype=dtype.float32, device=None, requires_grad=False) -> Tensor:
    return _finish(_C.eye(n, -1 if m is None else m, 0, dtype, device), requires_grad)


def linspace(start, end, steps, *, dtype=dtype.float32, device=None) -> Tensor:
    return _C.linspace(float(start), float(end), steps, dtype, device)


def tril_indices(row, col, offset=0) -> Tensor:
    return _C.nonzero(_C.tril(_C.full((row, col), 1.0, dtype.bool, None), offset)).t()


def triu_indices(row, col, offset=0) -> Tensor:
    return _C.nonzero(_C.triu(_C.full((row, col), 1.0, dtype.bool, None), offset)).t()

