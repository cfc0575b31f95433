"""Functions that backward runs again, for the memory of what they would record. Chen et al. 2016."""
from __future__ import annotations

from .. import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any, Callable


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
               **kwargs: Any) -> Any:
    """function(*args, **kwargs), a tensor or a tuple of them. Backward runs it again, with the same random numbers and under the
    same autocast. Tensors that need gradients are arguments or parameters."""
    places = [i for i, a in enumerate(args) if isinstance(a, _C.Tensor)]
    rest = [None if i in places else a for i, a in enumerate(args)]
    one = []

    def run(inputs):
        given = list(rest)
        for place, x in zip(places, inputs):
            given[place] = x
        out = function(*given, **kwargs)
        one.append(isinstance(out, _C.Tensor))
        return [out] if one[0] else list(out)
    outputs = _C._checkpoint(run, [args[i] for i in places])
    return outputs[0] if one[0] else tuple(outputs)


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None) -> Any:
    """Functions in turn, in so many parts, each of which is run again but the last."""
    functions = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = len(functions) // segments
    if segments < 1 or size == 0:
        raise _C.Error(f"checkpoint_sequential: {segments} segments of {len(functions)} functions")

    def chain(part):
        def run(x):
            for function in part:
                x = function(x)
            return x
        return run
    for begin in range(0, size * (segments - 1), size):
        input = checkpoint(chain(functions[begin:begin + size]), input)
    return chain(functions[size * (segments - 1):])(input)
