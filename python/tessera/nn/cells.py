"""One step of recurrent layers, with PyTorch's names of parameters and order of gates."""
from __future__ import annotations

import math

from .. import _C, creation
from . import functional
from .base import Module, Parameter

__all__ = ["RNNCell", "GRUCell", "LSTMCell"]


class _Cell(Module):
    def __init__(self, input_size, hidden_size, bias=True):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        for name, shape in (("weight_ih", (rows, input_size)), ("weight_hh", (rows, hidden_size)), ("bias_ih", (rows,)),
                            ("bias_hh", (rows,))):
            drawn = bias or name.startswith("weight")
            self.register_parameter(name, Parameter(creation.empty(*shape).uniform_(-bound, bound)) if drawn else None)

    def _state(self, input, state):
        if state is not None:
            return state
        return creation.zeros(*input.shape[:-1], self.hidden_size, dtype=input.dtype, device=input.device)

    def _sums(self, input, hidden):
        return (functional.linear(input, self.weight_ih, self.bias_ih), functional.linear(hidden, self.weight_hh, self.bias_hh))


class RNNCell(_Cell):
    """x [batch, in], h [batch, hidden] -> h. Elman 1990."""
    gates = 1

    def __init__(self, input_size, hidden_size, bias=True, nonlinearity="tanh"):
        if nonlinearity not in ("tanh", "relu"):
            raise _C.Error(f"RNNCell: nonlinearity {nonlinearity!r} is none of: tanh, relu")
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity

    def forward(self, input, hx=None):
        of_input, of_hidden = self._sums(input, self._state(input, hx))
        return (_C.tanh if self.nonlinearity == "tanh" else _C.relu)(of_input + of_hidden)


class GRUCell(_Cell):
    """x [batch, in], h [batch, hidden] -> h. Cho et al. 2014."""
    gates = 3

    def forward(self, input, hx=None):
        hidden = self._state(input, hx)
        of_input, of_hidden = self._sums(input, hidden)
        width = 2 * self.hidden_size
        reset, update = _C.sigmoid(of_input[..., :width] + of_hidden[..., :width]).chunk(2, -1)
        new = _C.tanh(of_input[..., width:] + reset * of_hidden[..., width:])
        return new + update * (hidden - new)


class LSTMCell(_Cell):
    """x [batch, in], (h, c) [batch, hidden] -> (h, c). Hochreiter & Schmidhuber 1997."""
    gates = 4

    def forward(self, input, hx=None):
        hidden, cell = (self._state(input, None),) * 2 if hx is None else hx
        of_input, of_hidden = self._sums(input, hidden)
        i, f, g, o = (of_input + of_hidden).chunk(4, -1)
        cell = _C.sigmoid(f) * cell + _C.sigmoid(i) * _C.tanh(g)
        return _C.sigmoid(o) * _C.tanh(cell), cell
