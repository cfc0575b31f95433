"""Mixed precision: `with tessera.amp.autocast(dtype=tessera.float16): ...`, and GradScaler."""
from __future__ import annotations

import functools

from . import _C
from ._C import GradScaler  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DTypeLike, DeviceLike


class autocast:
    """Operators of this thread choose their dtype in a `with` block, or in a function that it decorates, on one kind of device or
    on all."""

    def __init__(self, device_type: DeviceLike | None = None, dtype: DTypeLike | None = None, enabled: bool = True, cache_enabled:
                 bool = True, *, lower_residual: bool = False, device: DeviceLike | None = None) -> None:
        where = device_type if device is None else device
        options = (_C.dtype.bfloat16 if dtype is None else dtype, enabled, cache_enabled, lower_residual)
        self._make = lambda: _C.Autocast(*options) if where is None else _C.AutocastOn(where, *options)
        self._make()  # which raises an error where an option is wrong
        self._scopes: Any = []

    def __enter__(self) -> None:
        self._scopes.append(self._make())
        self._scopes[-1].__enter__()

    def __exit__(self, *error: Any) -> None:
        self._scopes.pop().__exit__(*error)

    def __call__(self, function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with self:
                return function(*args, **kwargs)
        return wrapped
