"""Files of pickled tensors, numbers and containers of these."""
from __future__ import annotations

import os
import pickle

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DeviceLike

_KNOWN = {"tessera._tensor": ("_rebuilt",), "tessera._C": ("DType", "Device", "Tensor"), "tessera.nn.base": ("Parameter",),
          "collections": ("OrderedDict", "defaultdict", "Counter"), "builtins": ("set", "frozenset", "complex", "list", "dict", "int", "float")}


class _Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if name not in _KNOWN.get(module, ()):
            raise _C.FileError(f"load: the file asks for {module}.{name}; weights_only=False takes all that it asks for, also harm")
        return super().find_class(module, name)


def _opened(f, mode):
    return open(f, mode) if isinstance(f, (str, os.PathLike)) else f


def save(obj: Any, f: Any) -> None:
    """Pickles tensors, and containers of them such as state dicts, to a path or a file."""
    file = _opened(f, "wb")
    try:
        pickle.dump(obj, file)
    finally:
        if file is not f:
            file.close()


def _moved(value, device):
    if isinstance(value, _C.Tensor):
        return value.to(device=device)
    if isinstance(value, dict):
        for key, one in value.items():
            value[key] = _moved(one, device)
        return value
    return type(value)(_moved(one, device) for one in value) if type(value) in (list, tuple) else value


def load(f: Any, map_location: DeviceLike | None = None, *, weights_only: bool = True) -> Any:
    """What save() wrote, on a device. With `weights_only` the file cannot run code. PyTorch's own files are others."""
    file = _opened(f, "rb")
    try:
        if file.read(2) == b"PK":
            raise _C.FileError("load: this is a file of PyTorch's; write it there with safetensors, and read it with load_safetensors()")
        file.seek(0)
        value = (_Reader if weights_only else pickle.Unpickler)(file).load()
    except _C.FileError:
        raise
    except Exception as error:  # a damaged file may ask for anything
        raise _C.FileError(f"load: the file is damaged: {error}") from error
    finally:
        if file is not f:
            file.close()
    return value if map_location is None else _moved(value, map_location)
