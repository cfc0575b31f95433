"""Initialisers: fill a tensor in place, outside of any graph."""
from __future__ import annotations

from .. import _C

_fill = _C._nn._init
constant_, normal_, uniform_, trunc_normal_ = _fill.constant_, _fill.normal_, _fill.uniform_, _fill.trunc_normal_
xavier_uniform_, xavier_normal_ = _fill.xavier_uniform_, _fill.xavier_normal_
kaiming_uniform_, kaiming_normal_ = _fill.kaiming_uniform_, _fill.kaiming_normal_


def zeros_(tensor: Tensor) -> Tensor:
    """Fills with 0."""
    constant_(tensor, 0)
    return tensor


def ones_(tensor: Tensor) -> Tensor:
    """Fills with 1."""
    constant_(tensor, 1)
    return tensor
