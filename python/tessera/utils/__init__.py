"""What goes around models."""
from . import checkpoint  # noqa: F401
