"""Modules: layers with named parameters. A class of your own derives from Module and says what it does in forward()."""
from __future__ import annotations

from .. import _C
from . import functional, init, utils  # noqa: F401
from .base import Module, Parameter  # noqa: F401
from .layers import *  # noqa: F401, F403
from .cells import *  # noqa: F401, F403
from . import parameter, redraw  # noqa: F401
from .transformer import (  # noqa: F401
    MultiheadAttention, Transformer, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer)

# A line each, which type checkers take for names of classes.
Sequential = _C._nn.Sequential
Linear = _C._nn.Linear
Embedding = _C._nn.Embedding
Conv2d = _C._nn.Conv2d
ConvTranspose2d = _C._nn.ConvTranspose2d
Dropout = _C._nn.Dropout
Flatten = _C._nn.Flatten
LayerNorm = _C._nn.LayerNorm
RMSNorm = _C._nn.RMSNorm
RNN = _C._nn.RNN
GRU = _C._nn.GRU
LSTM = _C._nn.LSTM
BatchNorm2d = _C._nn.BatchNorm2d
GroupNorm = _C._nn.GroupNorm
ReLU = _C._nn.ReLU
ReLU6 = _C._nn.ReLU6
GELU = _C._nn.GELU
SiLU = _C._nn.SiLU
Tanh = _C._nn.Tanh
Sigmoid = _C._nn.Sigmoid
SelfAttention = _C._nn.SelfAttention
TransformerBlock = _C._nn.TransformerBlock
