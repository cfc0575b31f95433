"""Optimizers, and how their learning rates change."""
from __future__ import annotations

from .. import _C
from . import lr_scheduler  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any, Iterable, Iterator

Optimizer = _C._optim.Optimizer
SGD = _C._optim.SGD
Adam = _C._optim.Adam
AdamW = _C._optim.AdamW
NAdam = _C._optim.NAdam
RAdam = _C._optim.RAdam
Adamax = _C._optim.Adamax
RMSprop = _C._optim.RMSprop
Adagrad = _C._optim.Adagrad
Adadelta = _C._optim.Adadelta
constant, warmup_cosine, step_decay = _C._optim.constant, _C._optim.warmup_cosine, _C._optim.step_decay
grad_norm, clip_grad_norm_ = _C._optim.grad_norm, _C._optim.clip_grad_norm_


class ParamGroup:
    """Parameters of an optimizer that share options, a dict of these as they are now: "lr" and "weight_decay" can be set."""

    def __init__(self, optimizer: Any, number: int) -> None:
        self._optimizer, self._number = optimizer, number

    def __getitem__(self, key: str) -> Any:
        if key not in self._readers:
            raise KeyError(key)
        return getattr(self._optimizer, self._readers[key])(self._number)

    def __setitem__(self, key: str, value: float) -> None:
        if key not in ("lr", "weight_decay"):
            raise KeyError(f"{key!r} of a group cannot be set: lr and weight_decay can")
        getattr(self._optimizer, "set_" + key)(float(value), self._number)

    def __contains__(self, key: str) -> bool:
        return key in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def keys(self) -> Iterable[str]:
        return self._readers.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        return [(key, self[key]) for key in self]

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default

    def __repr__(self) -> str:
        return f"ParamGroup(lr={self['lr']:g}, weight_decay={self['weight_decay']:g}, {len(self['params'])} parameters)"

    _readers = {"params": "group_parameters", "lr": "lr", "initial_lr": "initial_lr", "weight_decay": "weight_decay"}


def _param_groups(self: _C._optim.Optimizer) -> list[ParamGroup]:
    """The groups of parameters, each with its options."""
    return [ParamGroup(self, number) for number in range(self.groups())]

