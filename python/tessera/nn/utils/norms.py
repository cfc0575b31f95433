"""Weights that are computed from others beside them, in the modules that have them; `parametrizations` keeps these apart."""
from __future__ import annotations

import functools

from ... import _C, autograd, creation
from .. import functional
from ..base import Module, Parameter
from .parametrize import Computed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._types import Any


def norm_except(v: Tensor, dim: int) -> Tensor:
    """The 2-norm over all dims but one, which are kept with size 1; -1: over all."""
    return v.norm() if dim == -1 else v.norm(2, [d for d in range(v.ndim) if d != dim], True) if v.ndim > 1 else v.abs()


def checked_dim(dim: int | None, module: Module, name: str, by: str) -> int:
    dim, weight = -1 if dim is None else dim, dict(module.named_parameters()).get(name)
    if weight is not None and not -1 <= dim < weight.ndim:
        raise _C.Error(f"{by}: dim {dim} is none of {name!r}, {list(weight.shape)}")
    return dim


def matrix_of(weight: Tensor, dim: int) -> Tensor:
    """[size of that dim, all others]."""
    weight = weight.movedim(dim, 0) if dim else weight
    return weight.reshape((weight.shape[0], -1))


def default_dim(module: Module) -> int:
    """The dim of the outputs in a weight."""
    return 1 if "ConvTranspose" in "".join(kind.__name__ for kind in type(module).__mro__) else 0


def iterate(matrix: Tensor, u: Tensor, v: Tensor, times: int, eps: float, first: str) -> None:
    """Moves u and v towards the singular vectors of the largest singular value, in place."""
    with autograd.no_grad():
        for _ in range(times):
            if first == "u":
                u.copy_(functional.normalize(matrix @ v, dim=0, eps=eps))
            v.copy_(functional.normalize(matrix.t() @ u, dim=0, eps=eps))
            if first == "v":
                u.copy_(functional.normalize(matrix @ v, dim=0, eps=eps))


def drawn(matrix: Tensor, eps: float) -> list[Tensor]:
    return [functional.normalize(creation.randn(n, dtype=matrix.dtype, device=matrix.device), dim=0, eps=eps) for n in matrix.shape]


def over_sigma(weight: Tensor, matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The weight over its largest singular value, with vectors that may be moved afterwards."""
    u, v = u.clone(), v.clone()
    return weight / (u * (matrix @ v)).sum()


def _scaled(name, dim, module):
    g, v = getattr(module, name + "_g"), getattr(module, name + "_v")
    return v * (g / norm_except(v, dim))


def _divided(name, dim, times, eps, module):
    weight, u, v = (getattr(module, name + end) for end in ("_orig", "_u", "_v"))
    matrix = matrix_of(weight, dim)
    if module.training:
        iterate(matrix, u, v, times, eps, "v")
    return over_sigma(weight, matrix, u, v)


def _computed(module, name, function):
    """What computes that tensor, if it is by that function."""
    made = module.__dict__.get("_computed", {}).get(name)
    return made if made and made.compute.func is function else None


def _check_new(module, name, by):
    if name in module.__dict__.get("_computed", {}):
        raise _C.Error(f"{by}: {name!r} of {type(module).__name__} is computed already")


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Lets a weight be g v / |v|, with the parameters weight_g and weight_v. The norm is over all dims but `dim`, or over all.
    Salimans & Kingma 2016."""
    _check_new(module, name, "weight_norm")
    dim = checked_dim(dim, module, name, "weight_norm")
    weight = module._take_parameter(name, "weight_norm")
    module.register_parameter(name + "_g", Parameter(norm_except(weight.detach(), dim)))
    module.register_parameter(name + "_v", Parameter(weight))
    Computed(module, name, functools.partial(_scaled, name, dim)).put(module)
    return module


def _remove(module, name, function, ends, value):
    # PyTorch's error, too, which some models catch.
    computed = _computed(module, name, function)
    if computed is None:
        raise ValueError(f"no such norm is on {name!r} of {type(module).__name__}")
    with autograd.no_grad():
        weight = value(computed)
    for end in ends:
        delattr(module, name + end)
    computed.give_back(module, Parameter(weight))
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Makes the weight a parameter again."""
    return _remove(module, name, _scaled, ("_g", "_v"), lambda computed: computed.compute(module))


def spectral_norm(module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None =
                  None) -> Module:
    """Lets a weight be weight_orig over its largest singular value, which so many steps of power iteration estimate at each call
    in training. Miyato et al. 2018."""
    _check_new(module, name, "spectral_norm")
    if n_power_iterations <= 0:
        raise _C.Error(f"spectral_norm: {n_power_iterations} steps of power iteration")
    dim = checked_dim(default_dim(module) if dim is None else dim, module, name, "spectral_norm")
    weight = module._take_parameter(name, "spectral_norm")
    dim = dim % weight.ndim
    module.register_parameter(name + "_orig", weight)
    for end, vector in zip("uv", drawn(matrix_of(weight.detach(), dim), eps)):
        module.register_buffer(f"{name}_{end}", vector)
    Computed(module, name, functools.partial(_divided, name, dim, n_power_iterations, eps)).put(module)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Makes the weight a parameter again."""
    def value(computed: Any) -> Tensor:
        _, dim, _, eps = computed.compute.args
        weight = getattr(module, name + "_orig")
        return over_sigma(weight, matrix_of(weight, dim), getattr(module, name + "_u"), getattr(module, name + "_v"))
    return _remove(module, name, _divided, ("_orig", "_u", "_v"), value)
