"""What is recorded for differentiation."""
from __future__ import annotations

import functools

from . import _C
from ._C import custom_function, grad, is_grad_enabled  # noqa: F401


class set_grad_enabled:
    """Records operations in a `with` block, or in a function that it decorates, or does not."""

    def __init__(self, mode: bool):
        self.mode, self._scope = mode, _C.set_grad_enabled(mode)

    def __enter__(self):
        self._scope.__enter__()
        return self

    def __exit__(self, *error):
        self._scope.__exit__(*error)

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with set_grad_enabled(self.mode):
                return function(*args, **kwargs)
        return wrapped


class no_grad(set_grad_enabled):
    """Nothing is recorded within."""

    def __new__(cls, function=None):
        return super().__new__(cls)

    def __init__(self, function=None):
        super().__init__(False)


inference_mode = no_grad


class enable_grad(set_grad_enabled):
    """Operations are recorded within."""

    def __init__(self):
        super().__init__(True)
