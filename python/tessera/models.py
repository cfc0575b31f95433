"""The zoo: models with published weights, by name (docs/zoo.md)."""
from __future__ import annotations

from . import _C
from .io import load_safetensors


def names() -> list[str]:
    """What make() takes."""
    return sorted(_C._models.descriptions())


def describe(name: str) -> str:
    """What the model is."""
    if name not in names():
        raise _C.Error(f"models: {name!r} is none of: {', '.join(names())}")
    return _C._models.descriptions()[name]


def make(name: str, weights: str | dict[str, _C.Tensor] | None = None, *, generator: _C.Generator | None = None) -> _C._nn.Module:
    """The model with random weights, or with those of a safetensors file, or of its tensors, in their publisher's names."""
    if weights is not None and not isinstance(weights, dict):
        weights = load_safetensors(str(weights))
    return _C._models.make(name, weights, generator)


def example_inputs(name: str, batch: int = 1, *, generator: _C.Generator | None = None) -> tuple[_C.Tensor, ...]:
    """Random inputs of the right shapes and dtypes."""
    return _C._models.example_inputs(name, batch, generator)
