"""Mixed precision: `with tessera.amp.autocast(dtype=tessera.float16): ...`, and GradScaler."""
from . import _C
from ._C import GradScaler  # noqa: F401


def autocast(device=None, dtype=_C.dtype.bfloat16, enabled=True, cache_enabled=True, *, lower_residual=False):
    """Operators of this thread choose their dtype within, on one kind of device or on all."""
    if device is None:
        return _C.Autocast(dtype, enabled, cache_enabled, lower_residual)
    return _C.AutocastOn(device, dtype, enabled, cache_enabled, lower_residual)
