"""Writes the stubs of the package's modules, and adds to those of the extension what Python adds to its classes:
stubs.py FOLDER, the built package beside the stubs that nanobind made of the extension.

Signatures are those of the functions themselves, so that a type checker sees what runs.
"""
from __future__ import annotations

import argparse
import importlib
import inspect
import pathlib
import re
import sys
import types

TYPES = "from tessera._types import (Any, Callable, Device, DeviceLike, Dims, DType, DTypeLike, Generator, Iterable, Iterator,\n" \
        "                            Mapping, Model, Module, Operand, PathLike, Self, Sequence, Tensor)\n"
MODULES = ["_pickled", "aliases", "amp", "autograd", "creation", "cuda", "data", "distributed", "fft", "functions", "io", "linalg", "masked", "models", "nn", "nn.base", "nn.cells",
           "nn.functional", "nn.init", "nn.layers", "nn.parameter", "nn.redraw", "nn.transformer", "nn.utils", "nn.utils.norms", "nn.utils.parametrizations", "nn.utils.parametrize", "nn.utils.rnn", "onnx", "optim", "optim.lr_scheduler", "shapes", "signal", "signal.windows", "special", "statistics", "train", "utils", "utils.checkpoint", ""]
# Names that types have in annotations and that classes use for something else.
SHADOWED = re.compile(r"(?<![\w.\"'])(int|float|bool)(?![\w\"'(])")

# What nanobind's stubs leave open.
REPAIRS = [
    (r"tessera\._C\.(Tensor|Generator)\b", r"\1"),
    (r"\b(dict)(?=[,):]| =)", r"dict[Any, Any]"),
    (r"\b(?<!\.)(tuple|list|NDArray|Iterator)(?=[,):]| =)", r"\1[Any, ...]"), (r"\b(list|NDArray|Iterator)\[Any, \.\.\.\]", r"\1[Any]"),
    (r"(\*args|\*\*kwargs)(?=[,)])", r"\1: Any"), (r"(def __(eq|ne)__\(self, arg: )Device", r"\1object"),
    (r"(def __(eq|ne)__\(self, arg: Tensor.*)$", r"\1  # type: ignore[override]"),
]


def repaired(line: str) -> str:
    if re.match(r" *(def|class) |[A-Za-z_]\w*: ", line):
        for pattern, by in REPAIRS:
            line = re.sub(pattern, by, line)
    return line


def annotation(value) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def parameter(p: inspect.Parameter, bare: bool) -> str:
    stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    typed = "" if bare else ": " + ("Any" if p.annotation is p.empty else annotation(p.annotation))
    return stars + p.name + typed + ("" if p.default is p.empty else " = ..." if typed else "=...")


def signature_of(function) -> inspect.Signature:
    return importlib.import_module("tessera._documents").signature_of(function)


def signature(function, method: bool = False, result: str | None = None) -> str:
    """The part in brackets and the result. A method's first parameter is self, whatever the function calls it."""
    found = signature_of(function)
    parameters = list(found.parameters.values())
    texts, keywords = [], False
    if method:
        texts, parameters = ["self"], parameters[1:]
    positional = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    for i, p in enumerate(parameters):
        keywords = keywords or p.kind is p.VAR_POSITIONAL
        if p.kind is p.KEYWORD_ONLY and not keywords:
            texts.append("*")
            keywords = True
        texts.append(parameter(p, False))
        if positional and i == len(positional) - 1:
            texts.append("/")
    if result is None:
        result = "Any" if found.return_annotation is found.empty else annotation(found.return_annotation)
    return f"({', '.join(texts)}) -> {result}"


def define(name: str, text: str, doc: str | None, indent: str = "") -> str:
    if not doc:
        return f"{indent}def {name}{text}: ...\n"
    quoted = inspect.cleandoc(doc).replace("\\", "\\\\").replace('"""', "'''").replace("\n", f"\n{indent}    ")
    return f'{indent}def {name}{text}:\n{indent}    """{quoted}"""\n'


def members(cls: type, known: str) -> str:
    """What Python has put into a class of the extension, and its stub does not say."""
    out = []
    for name, value in vars(cls).items():
        if re.search(rf"^    (def )?{re.escape(name)}\b", known, re.M) or (name.startswith("_") and not name.startswith("__")):
            continue
        if isinstance(value, property):
            result = annotation(signature_of(value.fget).return_annotation)
            out.append(f"    @property\n    def {name}(self) -> {result}: ...\n")
        elif isinstance(value, types.FunctionType):
            own = value.__name__ == name
            told = signature(value, method=True) if not name.startswith("__i") else "(self, arg: Operand, /) -> Tensor"
            told = told.replace("-> Module", "-> Self")  # of a module's own methods
            out.append(define(name, told, value.__doc__ if own else None, "    "))
    return "\n".join(out)


def complete(text: str, cls: type) -> str:
    """The stub of the extension with members added to a class, whose annotations mean Python's types."""
    start = re.search(rf"^class {cls.__name__}\b[^\n]*:\n", text, re.M)
    end = re.compile(r"^\S", re.M).search(text, start.end())
    at = end.start() if end else len(text)
    body = text[start.end():at].rstrip() + "\n\n"
    body += members(cls, body)
    lines = []
    for line in body.split("\n"):
        head, bracket, rest = line.partition("(")
        lines.append(head + bracket + SHADOWED.sub(r"builtins.\1", rest) if line.startswith("    def ") else line)
    return text[:start.end()] + "\n".join(lines).rstrip() + "\n\n" + text[at:]


def complete_extension(path: pathlib.Path, classes: list, own: str) -> None:
    text = re.sub(r"^from tessera\.(?!_C)[\w.]+ import (\([^)]*\)|.*)\n", "", path.read_text(), flags=re.M)
    text = "\n".join(map(repaired, text.split("\n")))
    for cls in classes:
        text = complete(text, cls)
    path.write_text(f"import builtins\n{types_but(own)}{text}")


def with_options(path: pathlib.Path, cls: str) -> None:
    """The constructor of a class that takes its properties by their names."""
    text = path.read_text()
    start = text.index(f"class {cls}:")
    fields = re.findall(r"^    def (\w+)\(self, arg: (.+), /\) -> None: \.\.\.$", text[start:text.index("\nclass ", start)], re.M)
    typed = ", ".join(f"{name}: {of} = ..." for name, of in fields)
    made = re.sub(r"def __init__\(self, \*\*kwargs: Any\)", f"def __init__(self, *, {typed})", text[start:], count=1)
    path.write_text(text[:start] + made)


def described(name: str, cls: type) -> str:
    """A class that Python defines."""
    bases = ", ".join(b.__name__ for b in cls.__bases__ if b is not object and not b.__name__.startswith("_"))
    if not bases and any(b.__name__.startswith("_") for b in cls.__bases__):
        bases = next((b.__name__ for b in cls.__mro__[1:] if not b.__name__.startswith("_") and b is not object), "")
    out = [f"class {name}{f'({bases})' if bases else ''}:\n"]
    if cls.__doc__:
        out.append(define("x", "()", cls.__doc__).split("\n", 1)[1])
    names = {n for c in cls.__mro__ if c is cls or c.__name__.startswith("_") for n in vars(c)}
    methods = sorted(n for n in names if isinstance(inspect.getattr_static(cls, n), types.FunctionType)
                     and (not n.startswith("_") or n in METHODS))
    if hasattr(cls, "tensors"):
        methods = ["__init__"]
    for name in sorted(n for n in names if isinstance(inspect.getattr_static(cls, n), property) and not n.startswith("_")):
        value = inspect.getattr_static(cls, name)
        out.append("    @property\n" + define(name, signature(value.fget, method=True), value.__doc__, "    "))
    for method in methods:
        function = inspect.getattr_static(cls, method)
        if method == "__init__" and hasattr(cls, "tensors"):
            text = init_of(cls)
        else:
            text = signature(function, method=True, result="None" if method == "__init__" else None)
        out.append(define(method, text, function.__doc__ if method != "__init__" else None, "    "))
    return "".join(out) + ("    ...\n" if not methods and not cls.__doc__ else "")


METHODS = {"__init__", "__call__", "__enter__", "__exit__", "__getitem__", "__setitem__", "__len__", "__iter__", "__contains__"}


def init_of(cls: type) -> str:
    """The constructor of a function as a module: its options without the tensors."""
    parameters = list(signature_of(cls.function).parameters.values())[cls.tensors:]
    texts = [parameter(p.replace(kind=p.POSITIONAL_OR_KEYWORD), False) for p in parameters]
    return f"({', '.join(['self', *texts])}) -> None"


def home(value) -> str | None:
    """The module that a function or a class comes from, where that is one of the package."""
    module = getattr(value, "__module__", None) or ""
    return module if module.startswith("tessera") else None


def types_but(names: str) -> str:
    """The import of what annotations need, without what the module itself exports."""
    kept = [n for n in re.findall(r"\w+", TYPES.partition("(")[2]) if n not in names.split()]
    return f"from tessera._types import {', '.join(kept)}\n"


def stub(name: str) -> str:
    module = importlib.import_module("tessera" + (f".{name}" if name else ""))
    out, imports = [], []
    for key, value in sorted(vars(module).items()):
        if key.startswith("_") and key != "__version__" or key in ("annotations", "TYPE_CHECKING"):
            continue
        if isinstance(value, types.ModuleType):
            if name in ("", "nn", "signal") and value.__name__.startswith("tessera.") and value.__name__.count(".") == (1 if not name else 2):
                imports.append(f"from {module.__name__} import {key} as {key}\n")
            continue
        source, own = home(value), getattr(value, "__name__", key)
        if source == "tessera._documents":
            continue
        if isinstance(value, type) or callable(value) and source:
            if source == module.__name__ and own == key:
                text = described(key, value) if isinstance(value, type) else define(key, signature(value), value.__doc__)
                out.append(text + "\n")
            elif source and hasattr(sys.modules.get(source), own):
                imports.append(f"from {source} import {own} as {key}\n")
            elif callable(value):
                out.append(define(key, signature(value), value.__doc__) + "\n")
        elif key == "__version__":
            out.append("__version__: str\n")
        elif type(value).__name__ == "DType":
            out.append(f"{key}: _DType\n")
        elif callable(value):
            out.append(define(key, signature(value), value.__doc__) + "\n")
    start = "from tessera._types import DType as _DType\n" if not name else types_but(" ".join(i.split(" as ")[-1] for i in imports))
    start += "from tessera import _C\n" if any("_C." in text for text in out) else ""
    return start + "".join(imports) + "\n" + "".join(out)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=pathlib.Path, help="build/python/tessera")
    folder = arguments.parse_args().folder
    sys.path.insert(0, str(folder.parent))
    import tessera
    complete_extension(folder / "_C" / "__init__.pyi", [tessera.Tensor, tessera._C.DType], "Device DType Generator Tensor")
    complete_extension(folder / "_C" / "_onnx.pyi", [tessera.onnx.Model], "Model")
    complete_extension(folder / "_C" / "_nn" / "__init__.pyi", [tessera.nn.Module], "Module")
    complete_extension(folder / "_C" / "_io.pyi", [], "")
    complete_extension(folder / "_C" / "_data.pyi", [], "")
    complete_extension(folder / "_C" / "_train.pyi", [], "")
    with_options(folder / "_C" / "_train.pyi", "Options")
    for name in MODULES:
        path = folder.joinpath(*name.split(".")) if name else folder
        path = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
        path.write_text(f'"""Made by python/stubs.py."""\n{stub(name)}')


if __name__ == "__main__":
    main()
