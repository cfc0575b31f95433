"""Norms of weights as parametrizations: state_dict() has parametrizations.weight.original, or original0 and original1."""
from __future__ import annotations

from ... import _C
from .. import functional
from ..base import Module
from .norms import checked_dim, default_dim, drawn, iterate, matrix_of, norm_except, over_sigma
from .parametrize import register_parametrization


class _WeightNorm(Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, g, v):
        return v * (g / norm_except(v, self.dim))

    def right_inverse(self, weight):
        return norm_except(weight, self.dim), weight


class _SpectralNorm(Module):
    def __init__(self, weight, n_power_iterations, dim, eps):
        super().__init__()
        self.dim, self.n_power_iterations, self.eps = dim % weight.ndim, n_power_iterations, eps
        if weight.ndim > 1:
            matrix = matrix_of(weight.detach(), self.dim)
            for name, vector in zip(("_u", "_v"), drawn(matrix, eps)):
                self.register_buffer(name, vector)
            iterate(matrix, self._u, self._v, 15, eps, "u")

    def forward(self, weight):
        if weight.ndim == 1:
            return functional.normalize(weight, dim=0, eps=self.eps)
        matrix = matrix_of(weight, self.dim)
        if self.training:
            iterate(matrix, self._u, self._v, self.n_power_iterations, self.eps, "u")
        return over_sigma(weight, matrix, self._u, self._v)

    def right_inverse(self, value):
        return value


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Lets a weight be g v / |v|. The norm is over all dims but `dim`, or over all. Salimans & Kingma 2016."""
    return register_parametrization(module, name, _WeightNorm(checked_dim(dim, module, name, "weight_norm")), unsafe=True)


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None =
                  None) -> Module:
    """Lets a weight be an original over its largest singular value, which so many steps of power iteration estimate whenever it
    is read in training. Miyato et al. 2018."""
    if n_power_iterations <= 0:
        raise _C.Error(f"spectral_norm: {n_power_iterations} steps of power iteration")
    dim = checked_dim(default_dim(module) if dim is None else dim, module, name, "spectral_norm")
    weight = getattr(module, name, None)
    if not isinstance(weight, _C.Tensor):
        raise _C.Error(f"spectral_norm: {type(module).__name__} has no parameter {name!r}")
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
