"""The place where PyTorch has Parameter."""
from .base import Parameter  # noqa: F401
