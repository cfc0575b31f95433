"""Docstrings of functions that say what those of the library do, in other words of arguments alone."""
from __future__ import annotations

import types

from . import _C


def text_of(name: str) -> str:
    """What the header says of a function; of overloads, the last one that is told of."""
    parts = (getattr(_C, name).__doc__ or "").split("\n\n")
    told = [part for part in parts[1:] if part.strip() and not part.lstrip().startswith("Overloaded") and "``" not in part]
    return told[-1].strip() if told else ""


def inherit(module: types.ModuleType) -> None:
    """Gives functions without a docstring that of the library's function of that name."""
    for name, function in vars(module).items():
        if isinstance(function, types.FunctionType) and not function.__doc__ and hasattr(_C, name):
            function.__doc__ = text_of(name) or None
