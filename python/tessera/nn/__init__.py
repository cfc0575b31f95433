"""Modules: layers with named parameters. A class of your own derives from Module and says what it does in forward()."""
from __future__ import annotations

from .. import _C
from ..creation import tensor
from . import functional, init  # noqa: F401

_layers = _C._nn
Module, Sequential, Linear, Embedding = _layers.Module, _layers.Sequential, _layers.Linear, _layers.Embedding
Conv2d, ConvTranspose2d, Dropout, Flatten = _layers.Conv2d, _layers.ConvTranspose2d, _layers.Dropout, _layers.Flatten
LayerNorm, RMSNorm, BatchNorm2d, GroupNorm = _layers.LayerNorm, _layers.RMSNorm, _layers.BatchNorm2d, _layers.GroupNorm
ReLU, ReLU6, GELU, SiLU, Tanh, Sigmoid = (_layers.ReLU, _layers.ReLU6, _layers.GELU, _layers.SiLU, _layers.Tanh,
                                          _layers.Sigmoid)
MultiheadAttention, TransformerBlock = _layers.MultiheadAttention, _layers.TransformerBlock


class Parameter(_C.Tensor):
    """A tensor that a module trains, once it is an attribute of it."""

    def __init__(self, data, requires_grad: bool = True):
        super().__init__(data.detach() if isinstance(data, _C.Tensor) else tensor(data))
        self.requires_grad_(requires_grad)


def _set(self, name, value):
    """What is a parameter or a module becomes a part under the name of the attribute."""
    if isinstance(value, Module):
        if name in dict(self.named_children()):
            self.replace(name, value, any_shapes=True)
        else:
            self.add_module(name, value)
    elif isinstance(value, Parameter):
        self.add_parameter(name, value)
    object.__setattr__(self, name, value)


def _to(self, *args, dtype=None, device=None):
    """Converts parameters and buffers in place: to a dtype, a device, or both."""
    for what in args:
        if isinstance(what, _C.dtype):
            dtype = what
        else:
            device = what
    self._to(dtype, None if device is None else str(device))
    return self


Module.__setattr__ = _set
Module.to = _to


class ModuleList(Module):
    """Modules in a row, each a part of this one under its number."""

    def __init__(self, modules=()):
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module):
        self.add_module(str(len(self)), module)
        return self

    def __len__(self):
        return len(self.named_children())

    def __getitem__(self, index):
        return self.children()[index]

    def __iter__(self):
        return iter(self.children())


def _loss(function):
    class Loss(Module):
        def __init__(self, **options):
            super().__init__()
            self.options = options

        def forward(self, input, target):
            return function(input, target, **self.options)
    return Loss


CrossEntropyLoss, MSELoss, L1Loss = map(_loss, (functional.cross_entropy, functional.mse_loss, functional.l1_loss))
CrossEntropyLoss.__name__, MSELoss.__name__, L1Loss.__name__ = "CrossEntropyLoss", "MSELoss", "L1Loss"
