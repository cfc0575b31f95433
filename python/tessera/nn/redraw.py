"""Layers as they were made: parameters drawn again, and embeddings of rows that are there."""
from __future__ import annotations

import math

from .. import _C, autograd
from . import layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any

_nn = _C._nn


def _reset_uniform(self) -> None:
    """Draws weight and bias again, uniform in ±1/sqrt(inputs of an output)."""
    fan = self.weight.shape[1] if isinstance(self, layers.Bilinear) else math.prod(self.weight.shape[1:])
    bound = 1 / math.sqrt(fan) if fan else 0.0
    for tensor in (self.weight, self.bias):
        if tensor is not None:
            tensor.detach().uniform_(-bound, bound)


def _reset_running_stats(self) -> None:
    """Lets running means be 0 again, and variances 1."""
    for name, tensor, _ in self._own_tensors():
        if name in ("running_mean", "running_var", "num_batches_tracked"):
            tensor.fill_(float(name == "running_var"))


def _reset_norm(self) -> None:
    """Weights of 1 and biases of 0 again, and statistics as if nothing had been seen."""
    for name, tensor, _ in self._own_tensors():
        if name in ("weight", "bias"):
            tensor.detach().fill_(float(name == "weight"))
    _reset_running_stats(self)


@classmethod
def _from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Any:
    """An embedding of rows that are there, which is trained unless `freeze`."""
    if embeddings.ndim != 2:
        raise _C.Error(f"from_pretrained: takes rows, not {list(embeddings.shape)}")
    made = cls(*embeddings.shape, padding_idx=padding_idx).to(dtype=embeddings.dtype, device=embeddings.device)
    with autograd.no_grad():
        made.weight.copy_(embeddings)
    return made.requires_grad_(not freeze)


for _kind in (_nn.Linear, _nn.Conv2d, _nn.ConvTranspose2d, layers._Convolution, layers._ConvTranspose, layers.Bilinear):
    _kind.reset_parameters = _reset_uniform
for _kind in (_nn.BatchNorm2d, layers._BatchNorm, _nn.LayerNorm, _nn.GroupNorm, _nn.RMSNorm):
    _kind.reset_parameters, _kind.reset_running_stats = _reset_norm, _reset_running_stats
_nn.Embedding.from_pretrained, layers.EmbeddingBag.from_pretrained = _from_pretrained, _from_pretrained
