"""What Module has in Python, and Parameter."""
from __future__ import annotations

from typing import NamedTuple

from .. import _C
from .._C import dtype
from ..creation import tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any, Callable, DTypeLike, DeviceLike, Mapping, Self

Module = _C._nn.Module


class Parameter(_C.Tensor):
    """A tensor that a module trains, once it is an attribute of it."""

    def __init__(self, data: Any, requires_grad: bool = True) -> Module:
        super().__init__(data.detach() if isinstance(data, _C.Tensor) else tensor(data))
        self.requires_grad_(requires_grad)


def __setattr__(self, name: str, value: float) -> None:
    """What is a parameter or a module becomes a part under the name of the attribute. A tensor takes the place of the parameter
    or buffer of that name; one of another module ties the two."""
    if isinstance(value, Module):
        if name in dict(self.named_children()):
            self.replace(name, value, any_shapes=True)
        else:
            self.add_module(name, value)
    elif isinstance(value, _C.Tensor) and not isinstance(getattr(type(self), name, None), property):
        if name in self.__dict__.get("_names", ()):
            self._replace_tensor(name, value)
        elif isinstance(value, Parameter):
            return self.add_parameter(name, value)
    object.__setattr__(self, name, value)


def __delattr__(self, name: str) -> None:
    """Takes a parameter, a buffer or a module away, too."""
    if name in dict(self.named_children()):
        self._replace(name, None)
    elif any(own == name for own, _, _ in self._own_tensors()):
        self._take_parameter(name, "del", True)
        return
    elif name not in self.__dict__:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    self.__dict__.pop(name, None)


def _part(self, name: str) -> Any:
    """A parameter, buffer or child of that name which is no attribute, such as those of the library's layers."""
    if not name.startswith("__"):
        for own, part in [(own, tensor) for own, tensor, _ in self._own_tensors()] + self.named_children():
            if own == name:
                return part
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def add_parameter(self, name: str, value: Tensor | None) -> None:
    """Registers a tensor as a parameter, which becomes the attribute of that name. None is that attribute alone."""
    if value is not None:
        self._add_parameter(name, value)
        self.__dict__.setdefault("_names", set()).add(name)
    object.__setattr__(self, name, value)


def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> Tensor | None:
    """Registers a tensor that is not trained, which becomes the attribute of that name; state_dict() has it if `persistent`.
    None is that attribute alone."""
    if tensor is not None:
        self._add_buffer(name, tensor, persistent)
        self.__dict__.setdefault("_names", set()).add(name)
    object.__setattr__(self, name, tensor)
    return tensor


def __deepcopy__(self, memo: Any) -> Module:
    """A module of its own, without hooks and gradients. What is tied below is tied in the copy."""
    import copy
    made = memo[id(self)] = type(self).__new__(type(self))
    self._copy_to(made)
    copies, here = memo.setdefault("tensors of modules", {}), {name: tensor for name, tensor, _ in made._own_tensors()}
    for name, _, place in self._own_tensors():
        first = copies.setdefault(place, here[name])
        if first is not here[name]:
            here[name] = first
            if isinstance(getattr(type(made), name, None), property):
                object.__setattr__(made, name, first)
            else:
                made._replace_tensor(name, first)
    for name, child in self.named_children():
        made.add_module(name, copy.deepcopy(child, memo))
    computed = self.__dict__.get("_computed", {})
    for name, value in self.__dict__.items():
        own = name in self.__dict__.get("_names", ())
        if name not in computed:
            object.__setattr__(made, name, here[name] if own else copy.deepcopy(value, memo))
    for one in made.__dict__.get("_computed", {}).values():
        one.attach(made)
    return made


def _take_parameter(self, name: str, by: str, for_good: bool = False) -> Tensor:
    """The parameter of that name, which is none from now on; `by` says who wants it, `for_good` that nothing takes its place."""
    found = {own: tensor for own, tensor, _ in self._own_tensors()}.get(name)
    names = self.__dict__.get("_names", set())
    if found is None:
        raise _C.Error(f"{by}: {type(self).__name__} has no parameter {name!r}")
    if name not in names and (for_good or not isinstance(getattr(type(self), name, None), property)):
        raise _C.Error(f"{by}: {type(self).__name__} cannot do without its own {name!r}")
    self._replace_tensor(name, None)
    names.discard(name)
    self.__dict__.pop(name, None)
    return found


def to(self, *args: Tensor | DTypeLike | DeviceLike | None, dtype: DTypeLike | None = None, device: DeviceLike | None = None,
       non_blocking: bool = False) -> Module:
    """Converts parameters and buffers in place: to a dtype, a device, or both, such as those of a tensor."""
    for what in args:
        if isinstance(what, _C.Tensor):
            dtype, device = what.dtype, what.device
        elif isinstance(what, _C.dtype):
            dtype = what
        else:
            device = what
    self._to(dtype, None if device is None else str(device))
    return self


def cpu(self) -> Module:
    """Moves parameters and buffers to the host."""
    return self.to("cpu")


def cuda(self, index: int = 0) -> Module:
    """Moves parameters and buffers to a GPU of NVIDIA's."""
    return self.to(f"cuda:{index}")


def half(self) -> Module:
    """Converts parameters and buffers to f16."""
    return self.to(dtype.float16)


def bfloat16(self) -> Module:
    """Converts parameters and buffers to bf16."""
    return self.to(dtype.bfloat16)


def float(self) -> Module:
    """Converts parameters and buffers to f32."""
    return self.to(dtype.float32)


def double(self) -> Module:
    """Converts parameters and buffers to f64."""
    return self.to(dtype.float64)


class _Row(list):
    """A list that next() takes, too, as iterators of PyTorch's modules are taken."""

    def __next__(self) -> Any:
        self.__dict__["at"] = at = self.__dict__.get("at", -1) + 1
        if at >= len(self):
            raise StopIteration
        return self[at]


def _named(pairs, prefix, recurse=True):
    start = prefix + "." if prefix else ""
    return _Row((start + name if name else prefix, one) for name, one in pairs if recurse or "." not in name)


def modules(self) -> list[Module]:
    """The module itself and all below it, each once."""
    return _Row(module for _, module in self.named_modules())


def named_modules(self, memo: Any = None, prefix: str = "") -> list[tuple[str, Module]]:
    """The module itself, without a name but `prefix`, and all below it, each once under its first name."""
    return _named([("", self), *self._named_modules()], prefix)


def children(self) -> list[Module]:
    """The modules of which this one is made."""
    return _Row(self._children())


def named_children(self) -> list[tuple[str, Module]]:
    """The same with their names."""
    return _Row(self._named_children())


def parameters(self, recurse: bool = True) -> list[Tensor]:
    """Every parameter once, in the order of registration; without `recurse`, those of this module alone."""
    return _Row(self._parameters_of() if recurse else (p for _, p in self.named_parameters("", False)))


def named_parameters(self, prefix: str = "", recurse: bool = True) -> list[tuple[str, Tensor]]:
    """The same under the first name of each, behind `prefix`."""
    return _named(self._named_parameters(), prefix, recurse)


def buffers(self, recurse: bool = True) -> list[Tensor]:
    """Tensors that are saved but not trained; without `recurse`, those of this module alone."""
    return _Row(buffer for _, buffer in self.named_buffers("", recurse))


def named_buffers(self, prefix: str = "", recurse: bool = True) -> list[tuple[str, Tensor]]:
    """The same with their names, behind `prefix`."""
    return _named(self._named_buffers(), prefix, recurse)


def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
    """Parameters and buffers, each once under its first name; no copies. They are part of no graph unless `keep_vars`."""
    state = self._state_dict()
    if keep_vars:
        state |= {name: tensor for name, tensor in self._named_parameters() + self._named_buffers() if name in state}
    return {prefix + name: tensor for name, tensor in state.items()} if prefix else state


class _Keys(NamedTuple):
    """What a state dict lacked, and what it had beside what was sought."""
    missing_keys: list[str]
    unexpected_keys: list[str]


def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
    """Copies values in, converting between floating dtypes. A tied parameter may be given under any of its names."""
    state_dict = dict(state_dict)
    self._load_state_dict(state_dict, strict)
    if strict:
        return _Keys([], [])
    known = {f"{path}.{name}" if path else name for path, module in self.named_modules() for name, _, _ in module._own_tensors()}
    return _Keys([name for name in self._state_dict() if name not in state_dict], [name for name in state_dict if name not in known])


def zero_grad(self, set_to_none: bool = True) -> None:
    """Drops all gradients, or fills them with zeros."""
    if set_to_none:
        return self._zero_grad()
    for parameter in self.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.detach().clone().zero_()


def get_buffer(self, target: str) -> Tensor:
    """The buffer of that name."""
    found = dict(self.named_buffers())
    if target not in found:
        raise _C.Error(f"get_buffer: {target!r} is none of: {', '.join(found)}")
    return found[target]


def set_submodule(self, target: str, module: Module) -> None:
    """Puts a module where that of that name is."""
    self.replace(target, module, any_shapes=True)


def _as_type(self, dst_type: DTypeLike) -> Module:
    """Converts floating parameters and buffers to a dtype."""
    return self.to(dtype=dst_type)


def get_parameter(self, target: str) -> Tensor:
    """The parameter of that name."""
    found = dict(self.named_parameters())
    if target not in found:
        raise _C.Error(f"get_parameter: {target!r} is none of: {', '.join(found)}")
    return found[target]


def apply(self, fn: Callable[[Any], Any]) -> Module:
    """Calls fn(module) for all modules below, then for this one."""
    for child in self.children():
        child.apply(fn)
    fn(self)
    return self


def requires_grad_(self, requires_grad: bool = True) -> Module:
    """Whether parameters get gradients."""
    for parameter in self.parameters():
        parameter.requires_grad_(requires_grad)
    return self


class RemovableHandle:
    """A hook of a module, which remove() takes away; as a context, at its end."""

    def __init__(self, module: Module, number: int) -> None:
        self.module, self.id = module, number

    def remove(self) -> None:
        self.module._remove_hook(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


def register_forward_pre_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> Any:
    """Calls hook(module, args) before each call; with_kwargs: hook(module, args, kwargs). What it returns, if anything, takes
    the place of the arguments."""
    return RemovableHandle(self, self._register_forward_pre_hook(hook, with_kwargs))


def register_forward_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> Any:
    """Calls hook(module, args, output) after each call; with_kwargs: hook(module, args, kwargs, output). What it returns, if
    anything, takes the place of the output."""
    return RemovableHandle(self, self._register_forward_hook(hook, with_kwargs))


def extra_repr(self) -> str:
    """What repr() says between the brackets: shapes of the module's own parameters."""
    return ", ".join(f"{name} {list(p.shape)}" for name, p in self.named_parameters() if "." not in name)


def _see_children(self) -> None:
    """Attributes that are children become those that now have their names."""
    for module in self.modules():
        own = getattr(module, "__dict__", {})
        for name, child in module.named_children():
            if isinstance(own.get(name), Module):
                object.__setattr__(module, name, child)


def replace(self, path: str, module: Module, any_shapes: bool = False) -> None:
    """Puts a module where that of that name was."""
    self._replace(path, module, any_shapes)
    self._see_children()


def __repr__(self) -> str:
    parts = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
    lines = "".join(f"\n  {part}" for part in parts)
    extra = self.extra_repr()
    return f"{type(self).__name__}({extra}{lines}\n)" if parts else f"{type(self).__name__}({extra})"


def __reduce_ex__(self, protocol) -> Any:
    raise TypeError(f"{type(self).__name__}: modules are not pickled; state_dict() is")


for _name in ("named_modules", "children", "named_children", "named_parameters", "named_buffers", "state_dict", "load_state_dict",
              "zero_grad"):
    setattr(Module, "_" + _name, getattr(Module, _name))
Module._parameters_of, Module.__getattr__ = Module.parameters, _part
for _function in (__setattr__, __delattr__, to, cpu, cuda, half, bfloat16, float, double, modules, named_modules, children, named_children,
                  parameters, named_parameters, buffers, named_buffers, state_dict, load_state_dict, zero_grad, get_parameter, get_buffer,
                  set_submodule, apply, requires_grad_, register_forward_pre_hook, register_forward_hook, extra_repr, replace,
                  _see_children, add_parameter, register_buffer, _take_parameter, __deepcopy__, __repr__, __reduce_ex__):
    setattr(Module, _function.__name__, _function)
Module.type = _as_type
Module.register_parameter, Module.register_module = Module.add_parameter, Module.add_module
