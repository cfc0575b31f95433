"""Signals, as torch.signal has them."""
from . import windows  # noqa: F401
