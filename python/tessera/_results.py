"""Results whose parts have names."""
from __future__ import annotations

import functools
from typing import Any, NamedTuple


class ValuesIndices(NamedTuple):
    """Elements, and where they were."""
    values: Any
    indices: Any


class MinMax(NamedTuple):
    """The smallest and the largest elements."""
    min: Any
    max: Any


def named(kind):
    """Lets a function's tuples be of that kind."""
    def decorate(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            found = function(*args, **kwargs)
            return kind(*found) if isinstance(found, tuple) else found
        return call
    return decorate
