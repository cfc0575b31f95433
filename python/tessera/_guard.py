"""What goes wrong inside of this package's functions, told as errors of the library."""
from __future__ import annotations

import functools
import os
import types

from . import _C

_FOLDER = os.path.dirname(__file__) + os.sep


def plain(function):
    """The function that wrappers were put around."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _shown(value) -> str:
    if isinstance(value, _C.Tensor):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, (list, tuple)) and len(value) <= 8:
        return f"[{', '.join(map(_shown, value))}]"
    text = repr(value)
    return text if len(text) < 60 else type(value).__name__


def _is_ours(error) -> bool:
    """Whether it was raised by a line of this package, and not by what a caller gave us to call."""
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename.startswith(_FOLDER)


def _told(function, args, kwargs, error):
    told = plain(function)
    given = {**dict(zip(told.__code__.co_varnames[:told.__code__.co_argcount], args)), **kwargs}
    for name, value in given.items():
        wanted = str(told.__annotations__.get(name, ""))
        if wanted.split(" | ")[0] == "Tensor" and set(wanted.split(" | ")) <= {"Tensor", "None"} and not isinstance(value, _C.Tensor):
            return TypeError(f"{function.__name__}: {name} is no tensor but {_shown(value)}")
    shown = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
    kind = TypeError if isinstance(error, AttributeError) else _C.Error
    return kind(f"{function.__name__}: does not take ({', '.join(shown)})")


def guarded(function):
    @functools.wraps(function)
    def guard(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (AttributeError, LookupError, ArithmeticError, ValueError, MemoryError) as error:
            if isinstance(error, _C.Error) or not _is_ours(error):
                raise
            raise _told(function, args, kwargs, error) from error
    guard.is_guard = True
    return guard


def guard(module: dict) -> None:
    """Puts the guard around every public function of a module, whose globals() these are."""
    for name, function in list(module.items()):
        if isinstance(function, types.FunctionType) and not name.startswith("_") and not hasattr(function, "is_guard") \
                and plain(function).__code__.co_filename.startswith(_FOLDER):
            module[name] = guarded(function)
