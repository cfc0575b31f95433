"""Model files: tessera.load_onnx("model.onnx").run({"x": array})."""
from . import _C

Model = _C._onnx.Model
Port = _C._onnx.Port
Inspection = _C._onnx.Inspection
inspect = _C._onnx.inspect
Unsupported = _C.Unsupported


def _run(self, inputs=None, *more):
    """A dict of outputs from a dict of inputs, or from inputs in the order of the model; these may be arrays."""
    if isinstance(inputs, dict):
        return self._run(inputs)
    return self._run({}, *(() if inputs is None else (inputs, *more)))


Model.run = Model.__call__ = _run


def load_onnx(path, *, device="cpu", dtype=_C.dtype.float32, optimize=True) -> Model:
    """Reads a model file. Throws FileError where it is none, and Unsupported for what is not there."""
    return Model(str(path), device, dtype, optimize)


load = load_onnx


def run(path, inputs=None, *more, device="cpu", dtype=_C.dtype.float32) -> dict:
    """Reads a model file and runs it once."""
    return _run(load_onnx(path, device=device, dtype=dtype), inputs, *more)
