"""Mixed precision: `with tessera.amp.autocast(dtype=tessera.float16): ...`, and GradScaler."""
from __future__ import annotations

from . import _C
from ._C import GradScaler  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DTypeLike, DeviceLike


def autocast(device: DeviceLike | None = None, dtype: DTypeLike | None = _C.dtype.bfloat16, enabled: bool = True, cache_enabled:
             bool = True, *, lower_residual: bool = False) -> Any:
    """Operators of this thread choose their dtype within, on one kind of device or on all."""
    if device is None:
        return _C.Autocast(dtype, enabled, cache_enabled, lower_residual)
    return _C.AutocastOn(device, dtype, enabled, cache_enabled, lower_residual)
