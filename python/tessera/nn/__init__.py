"""Modules: layers with named parameters. A class of your own derives from Module and says what it does in forward()."""
from __future__ import annotations

from .. import _C
from ..creation import tensor
from . import functional, init  # noqa: F401

# A line each, which type checkers take for names of classes.
Module = _C._nn.Module
Sequential = _C._nn.Sequential
Linear = _C._nn.Linear
Embedding = _C._nn.Embedding
Conv2d = _C._nn.Conv2d
ConvTranspose2d = _C._nn.ConvTranspose2d
Dropout = _C._nn.Dropout
Flatten = _C._nn.Flatten
LayerNorm = _C._nn.LayerNorm
RMSNorm = _C._nn.RMSNorm
BatchNorm2d = _C._nn.BatchNorm2d
GroupNorm = _C._nn.GroupNorm
ReLU = _C._nn.ReLU
ReLU6 = _C._nn.ReLU6
GELU = _C._nn.GELU
SiLU = _C._nn.SiLU
Tanh = _C._nn.Tanh
Sigmoid = _C._nn.Sigmoid
MultiheadAttention = _C._nn.MultiheadAttention
TransformerBlock = _C._nn.TransformerBlock


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
