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


def signature_of(function) -> inspect.Signature:  # noqa: F821
    """That of a function of Python or of the library; of overloads, the first."""
    import inspect
    function = inspect.unwrap(function)
    told = getattr(function, "__nb_signature__", None)
    if told is None:
        return inspect.signature(function)
    inside, _, result = told[0][0].partition("(")[2].rpartition(") -> ")
    parameters, kind, depth, start = [], inspect.Parameter.POSITIONAL_OR_KEYWORD, 0, 0
    for i, c in enumerate(inside + ","):
        depth += (c in "[(") - (c in "])")
        if c != "," or depth:
            continue
        name, _, rest = inside[start:i].strip().partition(":")
        typed, _, default = rest.partition(" = ")
        start = i + 1
        if name == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif name not in ("/", ""):
            parameters.append(inspect.Parameter(name, kind, default=... if default else inspect.Parameter.empty,
                                                annotation=typed.strip().replace("tessera._C.", "")))
    return inspect.Signature(parameters, return_annotation=result.replace("tessera._C.", ""))
