"""What Tensor has in Python: conversions, and the functions of this package as methods."""
from __future__ import annotations

from . import _C, creation, functions, shapes
from ._C import Tensor, dtype


def numpy(self):
    """An array on the tensor's memory, which lives as long as the array does; bf16 is that of ml_dtypes."""
    if self.dtype != dtype.bfloat16:
        return self._numpy()
    import ml_dtypes
    return self._numpy().view(ml_dtypes.bfloat16)


def __array__(self, dtype=None, copy=None):
    array = self.detach().numpy()
    return array if dtype is None or array.dtype == dtype else array.astype(dtype)


def to(self, *args, dtype=None, device=None):
    """To a dtype, a device, both, or those of another tensor."""
    for what in args:
        if isinstance(what, Tensor):
            dtype, device = what.dtype, what.device
        elif isinstance(what, _C.dtype) or (isinstance(what, str) and _is_dtype(what)):
            dtype = what
        elif what is not None:
            device = what
    return self._to(dtype, None if device is None else str(device))


def _is_dtype(name):
    return name.split(".")[-1] in _C.dtype.__members__ or name in ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64")


def cpu(self):
    return self._to(None, "cpu")


def cuda(self, index=0):
    return self._to(None, f"cuda:{index}")


def type_as(self, other):
    return self.to(other)


def is_same_size(self, other):
    return self.shape == other.shape


def float(self):
    return self._to(dtype.float32, None)


def double(self):
    return self._to(dtype.float64, None)


def half(self):
    return self._to(dtype.float16, None)


def bfloat16(self):
    return self._to(dtype.bfloat16, None)


def long(self):
    return self._to(dtype.int64, None)


def int(self):
    return self._to(dtype.int32, None)


def char(self):
    return self._to(dtype.int8, None)


def byte(self):
    return self._to(dtype.uint8, None)


def bool(self):
    return self._to(dtype.bool, None)


def view(self, *shape):
    """The same elements in another shape, or as a dtype of the same size."""
    if len(shape) == 1 and isinstance(shape[0], (_C.dtype, str)):
        return _C.bitcast(self, shape[0])
    return _C.reshape(self, shapes._listed(shape))


def new_full(self, size, fill_value, *, dtype=None, device=None):
    return creation.full(size, fill_value, dtype=dtype or self.dtype, device=device or self.device)


def new_zeros(self, *size, dtype=None, device=None):
    return new_full(self, creation._size(size), 0, dtype=dtype, device=device)


def new_ones(self, *size, dtype=None, device=None):
    return new_full(self, creation._size(size), 1, dtype=dtype, device=device)


def new_empty(self, *size, dtype=None, device=None):
    return creation.empty(creation._size(size), dtype=dtype or self.dtype, device=device or self.device)


def new_tensor(self, data, *, dtype=None, device=None):
    return creation.tensor(data, dtype=dtype or self.dtype, device=device or self.device)


def fill(self, value):
    return creation.full_like(self, value)


def _install():
    own = (numpy, __array__, to, cpu, cuda, type_as, is_same_size, float, double, half, bfloat16, long, int, char, byte, bool,
           view, new_full, new_zeros, new_ones, new_empty, new_tensor, fill)
    for function in own:
        setattr(Tensor, function.__name__, function)
    Tensor.view_as, Tensor.nelement = shapes.reshape_as, Tensor.numel
    # Functions whose first argument is a tensor.
    for module in (functions, shapes):
        for name, function in vars(module).items():
            first = getattr(getattr(function, "__code__", None), "co_varnames", ("",))[:1]
            if not name.startswith("_") and first == ("input",):
                setattr(Tensor, name, function)


_install()
