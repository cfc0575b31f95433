"""Sequences of different lengths: filled up to the longest, or packed without what is beyond their ends."""
from __future__ import annotations

import functools
from typing import NamedTuple

from ... import _C, creation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._types import Any, Sequence, Tensor


class PackedSequence(NamedTuple):
    """The steps of all sequences, the longest sequence first in each, and how many sequences have each step."""
    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None


def _numbers(lengths):
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, _C.Tensor) else lengths)]


def _rows(x, index):
    return _C.index_select(x, 0, creation.tensor(index, dtype=_C.dtype.int64, device=x.device))


def _lengths_of(sizes):
    """Of sequences that are sorted, from how many there are at each step."""
    return [sum(size > i for size in sizes) for i in range(sizes[0])]


def _packed(x, lengths, order):
    """x [steps, batch, ...], sorted, without what is beyond the ends."""
    sizes = [sum(n > step for n in lengths) for step in range(lengths[0])]
    at = [step * x.shape[1] + i for step, size in enumerate(sizes) for i in range(size)]
    index = [None, None]
    if order is not None:
        index = [creation.tensor(list(one), device=x.device) for one in (order, sorted(range(len(order)), key=order.__getitem__))]
    return PackedSequence(_rows(x.flatten(0, 1), at), creation.tensor(sizes), *index)


def _padded(sequence, value, steps):
    """[steps, batch, ...], sorted, with that value beyond the ends."""
    sizes, data = _numbers(sequence.batch_sizes), sequence.data
    steps, none, at, begin = steps or len(sizes), data.shape[0], [], 0
    for size in sizes + [0] * (steps - len(sizes)):
        at += [*range(begin, begin + size), *[none] * (sizes[0] - size)]
        begin += size
    beyond = creation.full((1, *data.shape[1:]), value, dtype=data.dtype, device=data.device)
    return _rows(_C.concat([data, beyond], 0), at).reshape((steps, sizes[0], *data.shape[1:]))


def pack_padded_sequence(input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool =
                         True) -> PackedSequence:
    """Of input [steps, batch, ...] what lies within the lengths, the longest first unless they are sorted already."""
    x, lengths = input.transpose(0, 1) if batch_first else input, _numbers(lengths)
    if len(lengths) != x.shape[1] or min(lengths) < 1 or max(lengths) > x.shape[0]:
        raise _C.Error(f"pack_padded_sequence: lengths {lengths} do not fit {list(input.shape)}")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    if not enforce_sorted:
        x = _C.index_select(x, 1, creation.tensor(order, device=x.device))
    elif order != list(range(len(lengths))):
        raise _C.Error(f"pack_padded_sequence: lengths {lengths} are not sorted; enforce_sorted=False sorts them")
    return _packed(x, [lengths[i] for i in order], None if enforce_sorted else order)


def pad_packed_sequence(sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None =
                        None) -> tuple[Tensor, Tensor]:
    """What pack_padded_sequence() was given, and the lengths."""
    sizes = _numbers(sequence.batch_sizes)
    if total_length is not None and total_length < len(sizes):
        raise _C.Error(f"pad_packed_sequence: total_length {total_length} is less than the longest sequence, {len(sizes)}")
    x, lengths = _padded(sequence, padding_value, total_length), creation.tensor(_lengths_of(sizes))
    if sequence.unsorted_indices is not None:
        x, lengths = _C.index_select(x, 1, sequence.unsorted_indices), _C.index_select(lengths, 0, sequence.unsorted_indices.cpu())
    return x.transpose(0, 1) if batch_first else x, lengths


def pad_sequence(sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str =
                 "right") -> Tensor:
    """[steps, batch, ...] of tensors [length, ...], filled up with that value."""
    if padding_side not in ("right", "left"):
        raise _C.Error(f"pad_sequence: padding_side {padding_side!r} is none of: right, left")
    steps, rows = max(x.shape[0] for x in sequences), []
    for x in sequences:
        sides = [0] * (x.ndim - 1), [steps - x.shape[0]] + [0] * (x.ndim - 1)
        low, high = ([0] + sides[0], sides[1]) if padding_side == "right" else (sides[1], [0] + sides[0])
        rows.append(_C.pad(x, low, high, float(padding_value)))
    return _C.stack(rows, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False) -> list[Tensor]:
    """The sequences that pad_sequence() was given."""
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [x[i, :n] for i, n in enumerate(_numbers(lengths))]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Tensors [length, ...] packed."""
    return pack_padded_sequence(pad_sequence(sequences), [x.shape[0] for x in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that pack_sequence() was given."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences))


def _takes_packed(plain):
    """forward() of recurrent layers, also of a PackedSequence, whose output is one."""
    @functools.wraps(plain)
    def forward(self, input, states=None, lengths=None):
        if not isinstance(input, PackedSequence):
            return plain(self, input, states, lengths)

        def each(states, index):
            if states is None or index is None:
                return states
            return tuple(each(s, index) for s in states) if isinstance(states, tuple) else _C.index_select(states, 1, index)
        x, lengths = _padded(input, 0.0, None), _lengths_of(_numbers(input.batch_sizes))
        x = x.transpose(0, 1) if self.batch_first else x
        out, states = plain(self, x, each(states, input.sorted_indices), creation.tensor(lengths, device=x.device))
        out = out.transpose(0, 1) if self.batch_first else out
        return input._replace(data=_packed(out, lengths, None).data), each(states, input.unsorted_indices)
    return forward


for _kind in (_C._nn.RNN, _C._nn.GRU, _C._nn.LSTM):
    _kind.forward = _takes_packed(_kind.forward)
