"""Gradients clipped, parameters as one vector, norms of weights, and rows of sequences (rnn)."""
from __future__ import annotations

import math

from ... import _C, autograd
from . import parametrizations, parametrize, rnn  # noqa: F401
from .norms import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._types import Iterable


def _with_gradients(parameters):
    parameters = [parameters] if isinstance(parameters, _C.Tensor) else list(parameters)
    return [p for p in parameters if p.grad is not None]


@autograd.no_grad()
def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """The norm of all tensors as one vector, without dims."""
    norms = [_C.reshape(t, (-1,)).float().norm(p=norm_type) for t in tensors]
    total = _C.stack(norms, 0).norm(p=norm_type) if norms else _C.full((), 0.0)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise _C.Error(f"the norm of order {norm_type} is {total.item()}")
    return total


@autograd.no_grad()
def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool =
                    False, foreach: bool | None = None) -> Tensor:
    """Scales gradients so that their norm is at most that; returns the norm before."""
    used = _with_gradients(parameters)
    if norm_type == 2 and not error_if_nonfinite:
        return _C._optim.clip_grad_norm_(used, float(max_norm))
    total = get_total_norm([p.grad for p in used], norm_type, error_if_nonfinite)
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for p in used:
        p.grad.mul_(factor.to(p.grad.dtype))
    return total


@autograd.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Cuts every element of gradients to [-clip_value, clip_value]."""
    for p in _with_gradients(parameters):
        p.grad.clamp_(-clip_value, clip_value)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements in one dim, in order."""
    return _C.concat([_C.reshape(p, (-1,)) for p in parameters], 0)


@autograd.no_grad()
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copies the elements of a vector to parameters, in order."""
    start, parameters = 0, list(parameters)
    if vec.numel() != sum(p.numel() for p in parameters):
        raise _C.Error(f"vector_to_parameters: {vec.numel()} elements for {sum(p.numel() for p in parameters)}")
    for p in parameters:
        p.copy_(vec[start:start + p.numel()].reshape(p.shape))
        start += p.numel()
