"""Tensors that modules compute from parameters: those of `parametrizations`, or of modules of your own."""
from __future__ import annotations

import contextlib
import functools

from ... import _C, autograd
from ..base import Module, Parameter
from ..layers import ModuleDict, ModuleList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._types import Any, Iterator

_cache: dict | None = None  # of results, within cached()


class Computed:
    """A tensor in the place of a parameter, which compute(module) gives anew before each call."""

    def __init__(self, module: Module, name: str, compute: Any) -> None:
        native = getattr(type(module), name, None)
        self.name, self.compute, self.native = name, compute, native if isinstance(native, property) else None
        module.__dict__.setdefault("_computed", {})[name] = self
        self.attach(module)

    def attach(self, module: Module) -> None:
        self.number = module._register_forward_pre_hook(self.put, False)

    def put(self, module: Module, args: Any = ()) -> None:
        value = self.compute(module)
        if self.native:
            self.native.__set__(module, value)
        else:
            object.__setattr__(module, self.name, value)

    def give_back(self, module: Module, parameter: Tensor) -> None:
        """Lets the module have a parameter there again."""
        module._remove_hook(self.number)
        del module.__dict__["_computed"][self.name]
        module.__dict__.pop(self.name, None)
        if self.native:
            module._add_parameter(self.name, parameter)
            self.native.__set__(module, parameter)
        else:
            module.register_parameter(self.name, parameter)


class _Property(property):
    """A tensor of a parametrized module, computed when it is read; what is assigned goes to the originals."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda module: module.parametrizations[name](),
                         lambda module, value: module.parametrizations[name].assign(value))


class ParametrizationList(ModuleList):
    """Modules that make a tensor of `original`, or of `original0`, `original1`, ..., one after the other."""

    def __init__(self, modules: Any, original: Tensor) -> None:
        super().__init__(modules)
        parts = self._inverse(original)
        self.is_tensor = isinstance(parts, _C.Tensor)
        if self.is_tensor:
            with autograd.no_grad():
                original.copy_(parts)
            self.register_parameter("original", original)
        else:
            for i, part in enumerate(parts):
                self.register_parameter(f"original{i}", Parameter(part, original.requires_grad))

    def _inverse(self, value):
        with autograd.no_grad():
            for module in reversed(self):
                if hasattr(module, "right_inverse"):
                    value = module.right_inverse(value)
        return value

    def _originals(self):
        return [tensor for _, tensor, _ in self._own_tensors()]

    def assign(self, value: Tensor) -> None:
        for module in self:
            if not hasattr(module, "right_inverse"):
                raise _C.Error(f"{type(module).__name__} has no right_inverse, so what it makes is not assigned")
        parts = self._inverse(value)
        for original, part in zip(self._originals(), [parts] if self.is_tensor else parts):
            with autograd.no_grad():
                original.copy_(part)

    def forward(self) -> Tensor:
        if _cache is not None and id(self) in _cache:
            return _cache[id(self)][1]
        modules = list(self)
        value = modules[0](*self._originals())
        for module in modules[1:]:
            value = module(value)
        if _cache is not None:
            _cache[id(self)] = self, value
        return value


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Computes each parametrized tensor once within this context."""
    global _cache
    before, _cache = _cache, {} if _cache is None else _cache
    try:
        yield
    finally:
        _cache = before


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a tensor of that name, or any, is computed."""
    names = getattr(type(module), "_parametrized", ())
    return bool(names) if tensor_name is None else tensor_name in names


def _become(module, names):
    """Gives a module a class in which tensors of these names are computed; copies keep theirs."""
    plain = type(module).__base__ if is_parametrized(module) else type(module)
    parts = {"_parametrized": tuple(names), "__module__": plain.__module__, "__doc__": plain.__doc__}
    parts |= {name: _Property(name) for name in names}
    module.__class__ = type(f"Parametrized{plain.__name__}", (plain,), parts) if names else plain


def _value_of(name, module):
    return module.parametrizations[name]()


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """Lets a module's tensor be parametrization(original). The first one's `right_inverse`, if there is one, makes the original of
    the tensor, or several; later ones take what those before give. `unsafe` lets it change the shape."""
    if is_parametrized(module, tensor_name):
        _append(module.parametrizations[tensor_name], parametrization, tensor_name, unsafe)
        return module
    found = {name: tensor for name, tensor, _ in module._own_tensors()}.get(tensor_name)
    if found is None:
        raise _C.Error(f"register_parametrization: {type(module).__name__} has no parameter {tensor_name!r}")
    made = ParametrizationList([parametrization], found)
    made.train(module.training)
    with autograd.no_grad():
        _check(made(), found, tensor_name, unsafe)
    module._take_parameter(tensor_name, "register_parametrization")
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = made
    if isinstance(getattr(type(module), tensor_name, None), property):  # a layer of the library, which reads its own
        Computed(module, tensor_name, functools.partial(_value_of, tensor_name))
    _become(module, [*getattr(type(module), "_parametrized", ()), tensor_name])
    return module


def _append(made, parametrization, name, unsafe):
    with autograd.no_grad():
        now = made()
        if hasattr(parametrization, "right_inverse") and not isinstance(parametrization.right_inverse(now), _C.Tensor):
            raise _C.Error(f"register_parametrization: {name!r} has a parametrization, and another one cannot have several originals")
        _check(parametrization(now), now, name, unsafe)
    made.append(parametrization)


def _check(value, like, name, unsafe):
    if not unsafe and (value.shape != like.shape or value.dtype != like.dtype):
        raise _C.Error(f"register_parametrization: {name!r} is {like.dtype.name}{list(like.shape)} and would be "
                       f"{value.dtype.name}{list(value.shape)}; unsafe=True takes it all the same")


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Makes a computed tensor a parameter again, with the value that it has or, without `leave_parametrized`, its original's."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"remove_parametrizations: {type(module).__name__} has no parametrized {tensor_name!r}")
    made = module.parametrizations[tensor_name]
    if not leave_parametrized and not made.is_tensor:
        raise ValueError(f"remove_parametrizations: {tensor_name!r} is made of several tensors, so it stays as it is made")
    originals = made._originals()
    if made.is_tensor:
        parameter = originals[0]
        if leave_parametrized:
            with autograd.no_grad():
                parameter.copy_(made())
    else:
        parameter = Parameter(made(), any(one.requires_grad for one in originals))
    _become(module, [name for name in type(module)._parametrized if name != tensor_name])
    del module.parametrizations[tensor_name]
    if not is_parametrized(module):
        del module.parametrizations
    computed = module.__dict__.get("_computed", {}).get(tensor_name)
    if computed:
        computed.give_back(module, parameter)
    else:
        module.register_parameter(tensor_name, parameter)
    return module
