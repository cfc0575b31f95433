"""Many processes that train one model: `tessera launch --procs 2 -- python train.py` begins them.

    from tessera import distributed as dist

    world = dist.World()
    parallel = dist.DataParallel(model, world)
    ...  # the training loop as it was, each rank with batches of its own

Tensors of a collective have the same shape and dtype on all ranks. Those that reduce take op: "sum", "mean", "product",
"max" or "min". All but send, recv and barrier are differentiable.
"""
from __future__ import annotations

import os
import sys
import traceback

from . import _C
from ._C import Aborted, DataParallel, GradientSum, Group, LocalSGD, LocalSGDOptions, Tensor, Work, World  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ._types import Module, Sequence


def start(collective: Callable[..., Tensor], *args: Any, **options: Any) -> Work:
    """A collective of this module in the group's own thread: `work = start(all_reduce, x, world)`, then `work.wait()`
    gives the tensor. Until then nothing else calls collectives of the group. It is not differentiable."""
    begin = getattr(_C, f"_start_{getattr(collective, '__name__', '')}", None)
    if begin is None:
        raise ValueError(f"start: {collective} is no collective that gives a tensor")
    return begin(*args, **options)


def _end_in_a_line() -> None:
    """Of ranks that another one or Ctrl-C ended, each says where it was in a line: no traceback hides the reason."""
    before = sys.excepthook
    if getattr(before, "_ends_in_a_line", False):
        return
    here = os.path.dirname(__file__)

    def hook(kind: Any, error: Any, trace: Any) -> None:
        if not issubclass(kind, (Aborted, KeyboardInterrupt)):
            return before(kind, error, trace)
        frames = [f for f in traceback.extract_tb(trace) if os.path.dirname(f.filename) != here]
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        print(f"{kind.__name__}{place}" + (f": {error}" if str(error) else ""), file=sys.stderr)

    hook._ends_in_a_line = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def all_reduce_(tensors: Sequence[Tensor], group: Group, op: str = "sum") -> None:
    """In place, of all tensors together, which share a dtype: what many gradients need."""
    _C._all_reduce_(list(tensors), group, op)


def phase(group: Group, name: str) -> _C.Phase:
    """A `with` block in which this rank reads "data", is in "compute" or writes a "checkpoint": what others waited for."""
    return _C._phase(group, name)


def set_step(group: Group, step: int) -> None:
    """Says which step of training this rank is in, for who waits for it."""
    _C._set_step(group, step)


def explain_engines(group: Group, device: _C.Device | str = "cpu") -> str:
    """Which engine moves tensors of that device, and why not the others."""
    return _C._explain_engines(group, device)


def all_reduce(input: Tensor, group: Group, op: str = "sum") -> Tensor:
    """The combination of all ranks' tensors, on all of them."""
    return _C._all_reduce(input, group, op)


def reduce(input: Tensor, root: int, group: Group, op: str = "sum") -> Tensor:
    """The combination of all ranks' tensors at `root`; elsewhere the input."""
    return _C._reduce(input, root, group, op)


def reduce_scatter(input: Tensor, group: Group, op: str = "sum") -> Tensor:
    """Tensors [n, ...] combined: each rank gets its share of n / size rows."""
    return _C._reduce_scatter(input, group, op)


def all_gather(input: Tensor, group: Group) -> Tensor:
    """Tensors [n, ...] of all ranks, one after another: [size n, ...]."""
    return _C._all_gather(input, group)


def gather(input: Tensor, root: int, group: Group) -> Tensor:
    """As all_gather() at `root`; elsewhere [0, ...]."""
    return _C._gather(input, root, group)


def scatter(input: Tensor, root: int, group: Group) -> Tensor:
    """Each rank's share of n / size rows of what `root` gave, [n, ...]; elsewhere `input` says shape and dtype."""
    return _C._scatter(input, root, group)


def broadcast(input: Tensor, root: int, group: Group) -> Tensor:
    """What `root` gave; elsewhere `input` says shape and dtype."""
    return _C._broadcast(input, root, group)


def all_to_all(input: Tensor, group: Group) -> Tensor:
    """Of tensors [n, ...] each rank gets its share of n / size rows from all: [n, ...]."""
    return _C._all_to_all(input, group)


def send(input: Tensor, to: int, group: Group) -> None:
    """To one rank, which calls recv()."""
    _C._send(input, to, group)


def recv(shape: Sequence[int], from_rank: int, group: Group, dtype: _C.DType = _C.DType.float32,
         device: _C.Device | str = "cpu") -> Tensor:
    """What that rank sends, of that shape and dtype."""
    return _C._recv(list(shape), from_rank, group, dtype, device)


def barrier(group: Group) -> None:
    """Returns once all ranks have called it."""
    _C._barrier(group)


def sync_batch_norms(model: Module, group: Group) -> int:
    """Puts a norm over the batches of all ranks where each BatchNorm2d of the model is; returns how many."""
    count = _C._sync_batch_norms(model, group)
    model._see_children()
    return count
