"""What Tensor has in Python: conversions, and the functions of this package as methods."""
from __future__ import annotations

import weakref

from . import _C, creation, functions, shapes, statistics
from ._C import Tensor, dtype
from ._guard import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DTypeLike, DeviceLike, Dims, Generator, Operand


def numpy(self, *, force: bool = False) -> Any:
    """An array on the tensor's memory, which lives as long as the array does; bf16 is that of ml_dtypes.

    With `force` it is taken out of its graph, and copied from a GPU.
    """
    if force:
        self = self.detach().cpu()
    if self.dtype != dtype.bfloat16:
        return self._numpy()
    import ml_dtypes
    return self._numpy().view(ml_dtypes.bfloat16)


def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
    """An array on the tensor's memory, or a copy where another dtype or `copy` asks for one."""
    array = self.detach().numpy()
    if dtype is None or array.dtype == dtype:
        return array.copy() if copy else array
    if copy is False:
        raise ValueError(f"__array__: {array.dtype} is not {dtype} without a copy")
    return array.astype(dtype)


# ---- copies


def _rebuilt(content, bits, shape, dtype, device, requires_grad, kind=Tensor):
    import numpy

    # Arrays of NumPy's own would let a file that is damaged write to any memory.
    made = _C._from_array(numpy.frombuffer(content, bits).reshape(shape).copy(), dtype).to(device)
    return kind(made, requires_grad) if kind is not Tensor else made.requires_grad_(requires_grad) if requires_grad else made


def __reduce_ex__(self, protocol) -> Any:
    """Pickled are the elements of the tensor itself, not those of what it is a view of, and neither graph nor gradient."""
    if self.is_meta:
        raise _C.Error(f"pickle: {self!r} has no memory")
    bits = self.detach().cpu().contiguous()._numpy()
    return _rebuilt, (bits.tobytes(), bits.dtype.str, bits.shape, self.dtype, str(self.device), self.requires_grad, type(self))


def __copy__(self) -> Tensor:
    """Another handle of the same tensor."""
    return Tensor(self)


def __deepcopy__(self, memo) -> Tensor:
    """A copy of a leaf and of its gradient."""
    if not self.is_leaf:
        raise _C.Error("deepcopy: the tensor is the result of recorded operations; use detach() first")
    kept = self.detach().clone()
    made = kept.requires_grad_(self.requires_grad) if type(self) is Tensor else type(self)(kept, self.requires_grad)
    if self.grad is not None:
        made.grad = self.grad.clone()
    memo[id(self)] = made
    return made


def __format__(self, spec: str) -> str:
    """A tensor of one element as its number."""
    return format(self.item(), spec) if spec and self.numel() == 1 else format(repr(self), spec)


def __reversed__(self) -> Tensor:
    """The first dim reversed."""
    return _C.flip(self, 0)


def to(self, *args: Tensor | DTypeLike | DeviceLike | None, dtype: DTypeLike | None = None, device: DeviceLike | None = None,
       non_blocking: bool = False, copy: bool | None = False) -> Tensor:
    """To a dtype, a device, both, or those of another tensor; itself where it has them, unless `copy`."""
    for what in args:
        if isinstance(what, Tensor):
            dtype, device = what.dtype, what.device
        elif isinstance(what, _C.dtype) or (isinstance(what, str) and _is_dtype(what)):
            dtype = what
        elif what is not None:
            device = what
    made = self._to(dtype, None if device is None else str(device))
    return made.clone() if copy and made.is_same(self) else made


def _is_dtype(name):
    return name.split(".")[-1] in _C.dtype.__members__ or name in ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64")


def cpu(self) -> Tensor:
    """On the host; itself where it lies there."""
    return self._to(None, "cpu")


def cuda(self, index: int = 0, non_blocking: bool = False) -> Tensor:
    """On a GPU of NVIDIA's."""
    return self._to(None, f"cuda:{index}")


def type_as(self, other: Tensor) -> Tensor:
    """With the dtype and on the device of another tensor."""
    return self.to(other)


def is_same_size(self, other: Tensor) -> bool:
    """Whether both have one shape."""
    return self.shape == other.shape


def float(self) -> Tensor:
    """As f32."""
    return self._to(dtype.float32, None)


def double(self) -> Tensor:
    """As f64."""
    return self._to(dtype.float64, None)


def half(self) -> Tensor:
    """As f16."""
    return self._to(dtype.float16, None)


def bfloat16(self) -> Tensor:
    """As bf16."""
    return self._to(dtype.bfloat16, None)


def long(self) -> Tensor:
    """As i64."""
    return self._to(dtype.int64, None)


def int(self) -> Tensor:
    """As i32."""
    return self._to(dtype.int32, None)


def char(self) -> Tensor:
    """As i8."""
    return self._to(dtype.int8, None)


def short(self) -> Tensor:
    """As i16."""
    return self._to(dtype.int16, None)


def byte(self) -> Tensor:
    """As u8."""
    return self._to(dtype.uint8, None)


def bool(self) -> Tensor:
    """As bool: whether an element is other than 0."""
    return self._to(dtype.bool, None)


def view(self, *shape: Dims | DTypeLike) -> Tensor:
    """The same elements in another shape, or as a dtype of the same size."""
    if len(shape) == 1 and isinstance(shape[0], (_C.dtype, str)):
        return _C.bitcast(self, shape[0])
    return _C.reshape(self, shapes._listed(shape))


def new_full(self, size: Dims, fill_value: float, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """A number in that size, with the dtype and on the device of this tensor."""
    return creation.full(size, fill_value, dtype=dtype or self.dtype, device=device or self.device)


def new_zeros(self, *size: Dims, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """Zeros in that size, with the dtype and on the device of this tensor."""
    return new_full(self, creation._size(size), 0, dtype=dtype, device=device)


def new_ones(self, *size: Dims, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """Ones in that size, with the dtype and on the device of this tensor."""
    return new_full(self, creation._size(size), 1, dtype=dtype, device=device)


def new_empty(self, *size: Dims, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """A tensor of that size with the dtype and on the device of this one."""
    return creation.empty(creation._size(size), dtype=dtype or self.dtype, device=device or self.device)


def new_tensor(self, data: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> Tensor:
    """A copy of data with the dtype and on the device of this tensor."""
    return creation.tensor(data, dtype=dtype or self.dtype, device=device or self.device)


def fill(self, value: float) -> Tensor:
    """A number in the shape of this tensor."""
    return creation.full_like(self, value)


# ---- in place


def uniform_(self, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Filled with numbers that are uniform in [low, high)."""
    _C._nn._init.uniform_(self, low, high, generator)
    return self


def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Filled with numbers of a normal distribution."""
    _C._nn._init.normal_(self, mean, std, generator)
    return self


def detach_(self) -> Tensor:
    """Itself, as a leaf that needs no gradient."""
    if not self.is_leaf:
        raise _C.Error("detach_: the tensor is the result of recorded operations; use detach()")
    return self.requires_grad_(False)


def _written(x, value, name):
    if value is NotImplemented:
        return value
    if (value.is_floating_point() and not x.is_floating_point()) or (x.dtype == dtype.bool != value.dtype):
        raise _C.Error(f"{name}: a result of {value.dtype.name} is not written to a tensor of {x.dtype.name}")
    return x.copy_(value)


def _in_place(name, function):
    def write(self, *args: Any, **kwargs: Any) -> Tensor:
        return _written(self, function(self, *args, **kwargs), name)
    write.__name__, write.__doc__ = name, f"{function.__name__}(), written in place."
    write.__wrapped__ = function  # whose arguments it takes
    return write


def where(self, condition: Tensor, other: Operand) -> Tensor:
    """Elements of this tensor where the condition is true, elsewhere those of the other."""
    return functions.where(condition, self, other)


def retain_grad(self) -> None:
    """Lets backward keep the gradient in .grad, also where this tensor is a result."""
    if self.is_leaf:
        return
    here = weakref.ref(self)

    def keep(gradient):
        if (tensor := here()) is not None:
            tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
        return gradient
    self.register_hook(keep)


def ndimension(self) -> int:
    """How many dims there are."""
    return self.ndim


def get_device(self) -> int:
    """The number of the GPU; -1 on the CPU."""
    return self.device.index if self.is_cuda else -1


def _is_cpu(self) -> builtins.bool:
    """Whether it lives on the CPU."""
    return self.device.type == "cpu"


def pin_memory(self) -> Tensor:
    """The tensor itself: copies to GPUs need no pinned memory here."""
    return self


def bernoulli_(self, p: Operand = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Ones with that probability, and zeros."""
    return self.copy_(_uniform(self, generator) < p)


def exponential_(self, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Fills with numbers of an exponential distribution."""
    return self.copy_(_C.neg(_C.log1p(_C.neg(_uniform(self, generator)))) / lambd)


def log_normal_(self, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Fills with numbers whose logarithms are of a normal distribution."""
    return self.copy_(_C.exp(_C.randn(self.shape, generator, dtype.float64, self.device) * std + mean))


def random_(self, start: int = 0, to: int | None = None, *, generator: Generator | None = None) -> Tensor:
    """Fills with integers of [start, to), or of [0, start)."""
    if to is None:
        if start <= 0:
            raise _C.Error("random_: wants a number to stay below")
        start, to = 0, start
    return self.copy_(_C.randint(start, to, self.shape, generator, self.device))


def _uniform(x, generator):
    return _C.rand(x.shape, generator, dtype.float64, x.device)


def fill_diagonal_(self, fill_value: float) -> Tensor:
    """Fills the diagonal of a matrix with a number."""
    if self.ndim != 2:
        raise _C.Error(f"fill_diagonal_: takes a matrix, not {list(self.shape)}")
    return self.masked_fill_(creation.eye(*self.shape, dtype=dtype.bool, device=self.device), fill_value)


def _as_type(self, dtype: DTypeLike | None = None) -> Any:
    """To a dtype; without one, the name of the tensor's."""
    return f"tessera.{self.dtype.name}" if dtype is None else self.to(dtype=dtype)


_IN_PLACE = """abs acos acosh addbmm addcdiv addcmul addmm addmv addr asin asinh atan atan2 atanh baddbmm bitwise_and bitwise_left_shift
bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copysign cos cosh cumprod cumsum deg2rad digamma
div elu eq erf erfc erfinv exp exp2 expm1 fill float_power floor floor_divide fmod frac ge gt heaviside hypot index_add index_copy
index_fill index_put index_reduce ldexp le leaky_relu lerp lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor
logit lt masked_fill masked_scatter nan_to_num ne neg nextafter pow put rad2deg reciprocal relu remainder renorm round rsqrt scatter
scatter_add scatter_reduce sigmoid sign silu sin sinc sinh sqrt square tan tanh tril triu trunc xlogy"""


def _install():
    own = (numpy, __array__, __reduce_ex__, __copy__, __deepcopy__, __format__, __reversed__, to, cpu, cuda, type_as,
           is_same_size, float, double, half, bfloat16, long, int, short, char, byte, bool, view, new_full, new_zeros, new_ones,
           new_empty, new_tensor, fill, uniform_, normal_, detach_, where, retain_grad, ndimension, get_device, pin_memory,
           bernoulli_, exponential_, log_normal_, random_, fill_diagonal_)
    for function in own:
        setattr(Tensor, function.__name__, function)
    Tensor.type, Tensor.split_with_sizes = _as_type, shapes.split
    Tensor.is_cpu = property(_is_cpu)
    Tensor.view_as, Tensor.nelement = shapes.reshape_as, Tensor.numel
    Tensor.data = property(Tensor.detach, doc="The same elements outside of the graph.")
    Tensor.__array_priority__ = 1000  # array + tensor is a tensor
    # Functions whose first argument is a tensor.
    for module in (functions, shapes, statistics):
        for name, function in vars(module).items():
            first = getattr(getattr(plain(function), "__code__", None), "co_varnames", ("",))[:1]
            if not name.startswith("_") and first == ("input",):
                setattr(Tensor, name, function)
    for name in _IN_PLACE.split():
        if hasattr(Tensor, name) and not hasattr(Tensor, name + "_"):
            setattr(Tensor, name + "_", _in_place(name + "_", getattr(Tensor, name)))
    for name in ("truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        setattr(Tensor, f"__i{name}__", _in_place(f"__i{name}__", getattr(Tensor, f"__{name}__")))


_install()

# ---- dtypes

dtype.itemsize = property(_C.size_of, doc="Bytes of one element.")
dtype.is_floating_point = property(_C.is_floating_dtype)
dtype.__repr__ = dtype.__str__ = lambda self: f"tessera.{self.name}"
