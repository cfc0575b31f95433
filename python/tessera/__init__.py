"""Tessera from Python: tensors with gradients, operators, modules, optimizers, model files."""
from . import _C
from ._C import Tensor, device, dtype  # noqa: F401
from .functions import *  # noqa: F403
from .shapes import *  # noqa: F403
from .creation import *  # noqa: F403
from .statistics import *  # noqa: F403
from . import _tensor, aliases  # noqa: F401
from .aliases import *  # noqa: F403
from . import (  # noqa: F401
    amp, autograd, cuda, data, distributed, fft, io, linalg, masked, models, nn, onnx, optim, signal, special, train, utils)
from .amp import autocast  # noqa: F401
from .autograd import enable_grad, inference_mode, no_grad, set_grad_enabled  # noqa: F401
from ._documents import inherit as _inherit
from ._pickled import load, save  # noqa: F401
from .io import load_safetensors, save_safetensors  # noqa: F401
from .onnx import load_onnx, run  # noqa: F401

for _module in (functions, shapes, nn.functional, linalg):  # noqa: F821
    _inherit(_module)

# Every function that the library declares, where none above has its name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._C import *  # noqa: F403
globals().update({name: value for name, value in vars(_C).items() if not name.startswith("_") and name not in globals()})
del builtins, functools, itertools, math, annotations  # noqa: F821: of the modules above

bool, uint8, int8, int32, int64 = dtype.bool, dtype.uint8, dtype.int8, dtype.int32, dtype.int64
uint16, int16, uint32, uint64 = dtype.uint16, dtype.int16, dtype.uint32, dtype.uint64
short = int16
float16, bfloat16, float32, float64 = dtype.float16, dtype.bfloat16, dtype.float32, dtype.float64
half, float, double, long, int = float16, float32, float64, int64, int32
from math import e, inf, nan, pi  # noqa: E402, F401
newaxis = None
__version__ = _C.__version__
