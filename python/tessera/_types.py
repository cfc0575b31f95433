"""What annotations of this package are made of; nothing imports it while a program runs."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

from ._C import Device, DType, Generator, Tensor
from ._C._nn import Module
from ._C._onnx import Model

Dims: TypeAlias = int | Sequence[int]
DTypeLike: TypeAlias = DType | str
DeviceLike: TypeAlias = Device | str
Operand: TypeAlias = Tensor | float
PathLike: TypeAlias = str | os.PathLike[str]

__all__ = ["Any", "Callable", "DType", "DTypeLike", "Device", "DeviceLike", "Dims", "Generator", "Iterable", "Iterator", "Mapping",
           "Model", "Module", "Operand", "PathLike", "Self", "Sequence", "Tensor"]
