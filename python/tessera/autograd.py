"""What is recorded for differentiation."""
from __future__ import annotations

import copy
import functools

from . import _C
from ._C import custom_function, is_grad_enabled  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Any, Callable, Sequence


def grad(outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor], grad_outputs: Any = None, retain_graph: bool | None =
         None, create_graph: bool = False, allow_unused: bool | None = None, only_inputs: bool = True) -> tuple[Tensor | None, ...]:
    """Gradients of `outputs` with respect to `inputs`, without touching any .grad; None where an input is not used and
    `allow_unused`."""
    def listed(tensors):
        return [tensors] if isinstance(tensors, _C.Tensor) else list(tensors)
    outputs, given = listed(outputs), [] if grad_outputs is None else listed(grad_outputs)
    if given:
        given = [_C.full(y.shape, 1.0, y.dtype, y.device) if g is None else g for y, g in zip(outputs, given, strict=True)]
    keep = create_graph if retain_graph is None else retain_graph
    return tuple(_C.grad(outputs, listed(inputs), given, keep, create_graph, bool(allow_unused)))


class FunctionContext:
    """What forward() of a Function leaves for its backward(): tensors that it saves, and any attributes."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad, self._saved, self._materialize = needs, [], True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Tensors that backward() finds in saved_tensors."""
        self._saved = list(tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self._saved)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward() gets zeros, and not None, for outputs that no gradient reaches."""
        self._materialize = value

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Integers have no gradients; others are detached by whoever calls."""

    def _put_places(self, named):
        """Saved tensors that are inputs or outputs become their places: the graph holds those itself."""
        self._saved = [next((place for place, own in named if own is t), t) for t in self._saved]

    def _put_tensors(self, inputs, outputs):
        all_of = {"input": inputs, "output": outputs}
        self._saved = [all_of[t[0]][t[1]] if isinstance(t, tuple) else t for t in self._saved]


class Function:
    """An operation with its own backward: a subclass has static methods forward(ctx, *args) and backward(ctx, *gradients), or
    forward(*args), setup_context(ctx, inputs, output) and backward(). Call its apply(*args). Its gradients are not
    differentiated again unless backward() is made of operators."""

    @staticmethod
    def forward(*args: Any) -> Any:
        raise NotImplementedError("forward() of a Function says what it does")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("backward() of a Function gives the gradients of its inputs")

    setup_context: Any = None

    @classmethod
    def apply(cls, *args: Any) -> Any:
        places = [i for i, a in enumerate(args) if isinstance(a, _C.Tensor)]
        rest = [None if i in places else a for i, a in enumerate(args)]
        needs = tuple(isinstance(a, _C.Tensor) and a.requires_grad for a in args)
        seen = {}

        def forward(inputs):
            given = list(rest)
            for place, x in zip(places, inputs):
                given[place] = x
            ctx = seen["ctx"] = FunctionContext(needs)
            if cls.setup_context is None:
                out = cls.forward(ctx, *given)
            else:
                out = cls.forward(*given)
                cls.setup_context(ctx, tuple(given), out)
            seen["one"] = isinstance(out, _C.Tensor)
            outputs = [out] if seen["one"] else list(out)
            ctx._put_places([(("input", i), x) for i, x in enumerate(inputs)] + [(("output", i), y) for i, y in enumerate(outputs)])
            return outputs

        def backward(inputs, outputs, grads):
            ctx = copy.copy(seen["ctx"])
            ctx._put_tensors(inputs, outputs)
            if ctx._materialize:
                grads = [_C.full(y.shape, 0.0, y.dtype, y.device) if g is None else g for y, g in zip(outputs, grads)]
            found = cls.backward(ctx, *grads)
            found = found if isinstance(found, (tuple, list)) else (found,)
            if len(found) < len(args):
                raise _C.Error(f"{cls.__name__}: backward() gave {len(found)} gradients for {len(args)} inputs")
            return [found[place] for place in places]
        outputs = custom_function(cls.__name__, [args[i] for i in places], forward, backward)
        return outputs[0] if seen["one"] else tuple(outputs)


class set_grad_enabled:
    """Records operations in a `with` block, or in a function that it decorates, or does not."""

    def __init__(self, mode: bool):
        self.mode, self._scope = mode, _C.set_grad_enabled(mode)

    def __enter__(self):
        self._scope.__enter__()
        return self

    def __exit__(self, *error):
        self._scope.__exit__(*error)

    def __call__(self, function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            with set_grad_enabled(self.mode):
                return function(*args, **kwargs)
        return wrapped


class no_grad(set_grad_enabled):
    """Nothing is recorded within."""

    def __new__(cls, function=None):
        return super().__new__(cls)

    def __init__(self, function=None):
        super().__init__(False)


inference_mode = no_grad


class enable_grad(set_grad_enabled):
    """Operations are recorded within."""

    def __init__(self):
        super().__init__(True)
