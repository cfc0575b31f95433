"""Model files: tessera.load_onnx("model.onnx").run({"x": array})."""
from __future__ import annotations

from . import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, DTypeLike, DeviceLike, Mapping, PathLike, Sequence

Model = _C._onnx.Model
Port = _C._onnx.Port
Inspection = _C._onnx.Inspection
inspect = _C._onnx.inspect
Unsupported = _C.Unsupported


def _run(self, inputs: Any = None, *more: Any) -> dict[str, Any]:
    """A dict of outputs from a dict of inputs, or from inputs in the order of the model; these may be arrays."""
    if isinstance(inputs, dict):
        return self._run(inputs)
    return self._run({}, *(() if inputs is None else (inputs, *more)))


Model.run = Model.__call__ = _run


def load_onnx(path: PathLike, *, device: DeviceLike = "cpu", dtype: DTypeLike = _C.dtype.float32, optimize: bool = True) -> Model:
    """Reads a model file. Throws FileError where it is none, and Unsupported for what is not there."""
    return Model(str(path), device, dtype, optimize)


load = load_onnx


def _as_module(model):
    from .nn import Module

    class FileModel(Module):
        def forward(self, *inputs):
            return tuple(_run(model, *inputs).values())
    return FileModel()


def save(module: Any, inputs: Any, path: PathLike, *, opset: int = 20, batch: str = "batch", input_names: Sequence[str] = (),
         output_names: Sequence[str] = (), open: Sequence[Mapping[int, str]] = ()) -> None:
    """Writes what a module computes in evaluation of such inputs, one tensor or several.

    The first size of the first input stays open under the name of `batch`, and so do equal first sizes of others; with "" all
    sizes are fixed. `open` names for each input the dims whose sizes are open, as [{0: "batch", 1: "tokens"}], in place of
    `batch`; a size that is a multiple is named as "4*height". A model that was read keeps its names, and all its sizes are fixed unless others are said. Throws Unsupported, which names what ONNX lacks.
    """
    inputs = (inputs,) if isinstance(inputs, _C.Tensor) else tuple(inputs)
    if isinstance(module, Model):
        batch, input_names = "" if batch == "batch" else batch, input_names or [p.name for p in module.inputs]
        module, output_names = _as_module(module), output_names or [p.name for p in module.outputs]
    _C._onnx.save(module, inputs, str(path), opset, batch, list(input_names), list(output_names),
                   [dict(one) for one in open] + [{}] * (len(inputs) - len(open) if open else 0))


export = save


def run(path: PathLike, inputs: Any = None, *more: Any, device: DeviceLike = "cpu",
        dtype: DTypeLike = _C.dtype.float32) -> dict[str, Any]:
    """Reads a model file and runs it once."""
    return _run(load_onnx(path, device=device, dtype=dtype), inputs, *more)
