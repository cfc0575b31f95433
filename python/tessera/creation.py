"""Tensors from numbers, arrays and nothing."""
from __future__ import annotations

from . import _C
from ._guard import guard as _guard
from ._C import Tensor, dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DType, DTypeLike, DeviceLike, Dims, Generator, Operand, Sequence


def _size(size):
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size


def _finish(made: Tensor, requires_grad: bool) -> Tensor:
    return made.requires_grad_() if requires_grad else made


def from_numpy(array: Any, /) -> Tensor:
    """A tensor on the memory of an array: what is written to one is seen in the other. bf16 is that of ml_dtypes."""
    if getattr(getattr(array, "dtype", None), "name", "") == "bfloat16":
        return _C._from_array(array.view("uint16"), dtype.bfloat16)
    return _C._from_array(array)


def from_dlpack(array: Any, /) -> Tensor:
    """A tensor on the memory of anything that has __dlpack__ or is a buffer, which lives as long as the tensor does."""
    return from_numpy(array)


def _is_array(data) -> bool:
    return hasattr(data, "__dlpack__") or hasattr(data, "__array_interface__")


def as_tensor(data: Any, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """`data` itself, or on its memory, where it is a tensor or an array that may be written to; otherwise a copy."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if not _is_array(data):
        return _C._tensor_of(data, dtype, device)
    if getattr(getattr(data, "flags", None), "writeable", True) is False:
        import numpy
        data = numpy.array(data)  # a copy that may be written to, also of NumPy's numbers
    return from_numpy(data).to(dtype=dtype, device=device)


def tensor(data: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None, requires_grad: bool = False) -> Tensor:
    """A copy of numbers, of lists of them, or of an array."""
    made = as_tensor(data, dtype, device)
    if isinstance(data, Tensor) or _is_array(data):
        made = made.detach().clone()
    return _finish(made, requires_grad)


def full(size: Dims, fill_value: float, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None, requires_grad: bool =
         False) -> Tensor:
    """A tensor of that size filled with a number, by default of the number's kind: bool, i64 or f32."""
    if dtype is None:
        kinds = ((bool, _C.dtype.bool), (int, _C.dtype.int64))
        dtype = next((d for kind, d in kinds if isinstance(fill_value, kind)), _C.dtype.float32)
    return _finish(_C.full(size, float(fill_value), dtype, device), requires_grad)


def _filled(value):
    def make(*size: Dims, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None = None, requires_grad: bool =
             False) -> Tensor:
        return _finish(_C.full(_size(size), value, dtype, device), requires_grad)
    return make


zeros, ones = _filled(0), _filled(1)
zeros.__name__, ones.__name__ = "zeros", "ones"
zeros.__doc__, ones.__doc__ = "Zeros in that size.", "Ones in that size."


def empty(*size: Dims, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None = None, requires_grad: bool =
          False) -> Tensor:
    """A tensor of that size whose elements are not set."""
    return _finish(_C.empty(_size(size), dtype, device), requires_grad)


def rand(*size: Dims, generator: Generator | None = None, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None =
         None, requires_grad: bool = False) -> Tensor:
    """Uniform in [0, 1)."""
    return _finish(_C.rand(_size(size), generator, dtype, device), requires_grad)


def randn(*size: Dims, generator: Generator | None = None, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None =
          None, requires_grad: bool = False) -> Tensor:
    """Normal with mean 0 and variance 1."""
    return _finish(_C.randn(_size(size), generator, dtype, device), requires_grad)


def randint(low: int, high: int | None = None, size: Sequence[int] | None = None, *, generator: Generator | None = None, device:
            DeviceLike | None = None) -> Tensor:
    """Integers in [low, high), or in [0, low)."""
    if size is None:
        low, high, size = 0, low, high
    return _C.randint(low, high, size, generator, device)


def randperm(n: int, *, generator: Generator | None = None, dtype: DTypeLike | None = dtype.int64, device: DeviceLike | None =
             None) -> Tensor:
    """The integers in [0, n) in a random order."""
    return _C.argsort(_C.rand((n,), generator, _C.dtype.float64, device), 0, False).to(dtype)


def normal(mean: Operand = 0.0, std: Operand = 1.0, size: Sequence[int] | None = None, *, generator: Generator | None = None,
           dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None = None) -> Tensor:
    """Normal with a mean and a standard deviation that are numbers, for a `size`, or tensors, which broadcast."""
    if size is None:
        size, device = _C.add(mean, std).shape, (mean if isinstance(mean, Tensor) else std).device
    return _C.add(_C.mul(_C.randn(size, generator, dtype, device), std), mean)


def arange(start: float, end: float | None = None, step: float = 1, *, dtype: DTypeLike | None = None, device: DeviceLike | None =
           None) -> Tensor:
    """[n]: start, start + step, ... below end; i64 for integers, otherwise f32."""
    if end is None:
        start, end = 0, start
    if any(isinstance(n, _C.OpenSize) for n in (start, end, step)):
        count = -((start - end) // step)
        places = _C.cumsum(_C.full((count,), 1.0, _C.dtype.int64, device), 0) - 1
        made = places * step + start
        return made if dtype is None else made.to(dtype)
    whole = all(isinstance(n, int) for n in (start, end, step))
    return _C.arange(start, end, step, dtype or (_C.dtype.int64 if whole else _C.dtype.float32), device)


def logspace(start: float, end: float, steps: int, base: float = 10.0, *, dtype: DTypeLike | None = dtype.float32, device:
             DeviceLike | None = None) -> Tensor:
    """Powers of `base`, whose exponents are at equal distances."""
    exponents = _C.linspace(float(start), float(end), steps, _C.dtype.float64, device)
    return _C.pow(float(base), exponents).to(dtype)


def _like(fill):
    def make(input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None, requires_grad: bool =
             False) -> Tensor:
        return _finish(_C.full(input.shape, fill, dtype or input.dtype, device or input.device), requires_grad)
    return make


zeros_like, ones_like = _like(0), _like(1)
zeros_like.__name__, ones_like.__name__ = "zeros_like", "ones_like"
zeros_like.__doc__, ones_like.__doc__ = "Zeros in the shape of another tensor.", "Ones in the shape of another tensor."


def full_like(input: Tensor, fill_value: float, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """A number in the shape of another tensor."""
    return _C.full(input.shape, float(fill_value), dtype or input.dtype, device or input.device)


def empty_like(input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """A tensor of the shape of another, whose elements are not set."""
    return _C.empty(input.shape, dtype or input.dtype, device or input.device)


def rand_like(input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """Uniform in [0, 1), in the shape of another tensor."""
    return _C.rand(input.shape, None, dtype or input.dtype, device or input.device)


def randn_like(input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """Normal with mean 0 and variance 1, in the shape of another tensor."""
    return _C.randn(input.shape, None, dtype or input.dtype, device or input.device)


def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: DTypeLike | None = None, device: DeviceLike | None =
                 None) -> Tensor:
    """Integers in [low, high), or in [0, low), of the shape and dtype of another tensor."""
    low, high = (0, low) if high is None else (low, high)
    return _C.randint(low, high, input.shape, None, device or input.device).to(dtype or input.dtype)


def scalar_tensor(value: float, *, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None = None, requires_grad: bool
                  = False) -> Tensor:
    """A number as a tensor without dims."""
    return _finish(_C.full((), float(value), dtype, device), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None = None, requires_grad:
        bool = False) -> Tensor:
    """[n, m] with ones on the diagonal; m is n unless given."""
    if isinstance(n, _C.OpenSize) or isinstance(m, _C.OpenSize):
        return _C.tril(_C.triu(ones(n, n if m is None else m, dtype=dtype, device=device)))
    return _finish(_C.eye(n, -1 if m is None else m, 0, dtype, device), requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype: DTypeLike | None = dtype.float32, device: DeviceLike | None =
             None) -> Tensor:
    """[steps]: numbers at equal distances from start to end, both included."""
    return _C.linspace(float(start), float(end), steps, dtype, device)


def asarray(obj: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None, copy: bool | None = None,
            requires_grad: bool = False) -> Tensor:
    """As as_tensor(); `copy=True` copies always."""
    made = as_tensor(obj, dtype, device)
    return _finish(made.detach().clone() if copy else made, requires_grad)


def tril_indices(row: int, col: int, offset: int = 0) -> Tensor:
    """[2, count]: rows and columns of what lies on and below a diagonal of [row, col]."""
    return _C.nonzero(_C.tril(_C.full((row, col), 1.0, dtype.bool, None), offset)).t()


def triu_indices(row: int, col: int, offset: int = 0) -> Tensor:
    """[2, count]: rows and columns of what lies on and above a diagonal of [row, col]."""
    return _C.nonzero(_C.triu(_C.full((row, col), 1.0, dtype.bool, None), offset)).t()


# ---- what tensors are


def is_tensor(obj: Any) -> bool:
    """Whether an object is a tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is f16, bf16, f32 or f64."""
    return input.is_floating_point()


def numel(input: Tensor) -> int:
    """How many elements there are."""
    return input.numel()


def result_type(tensor1: Operand, tensor2: Operand) -> DType:
    """The dtype that operators give two operands."""
    return _C.add(tensor1, tensor2).dtype


def finfo(type: DType) -> Any:
    """Limits of a floating-point dtype, as NumPy and ml_dtypes tell them."""
    if not _C.dtype(type).is_floating_point:
        raise _C.Error(f"finfo: {type.name} is no floating-point dtype")
    if _C.dtype(type) == dtype.bfloat16:
        import ml_dtypes
        return ml_dtypes.finfo("bfloat16")
    import numpy
    return numpy.finfo(type.name)


def iinfo(type: DType) -> Any:
    """Limits of an integer dtype, as NumPy tells them."""
    if _C.dtype(type).is_floating_point or type == dtype.bool:
        raise _C.Error(f"iinfo: {type.name} is no integer dtype")
    import numpy
    return numpy.iinfo(type.name)


_guard(globals())
