"""Reads the operators' headers and writes their bindings: generate.py FOLDER ops.h OUT.cpp, generate.py FOLDER names OUT.h.

Every function that a header declares in namespace tessera becomes a function of the extension, with the comment above it
as its docstring. Structs of options are flattened into keywords. What must be said by hand is in the tables below.
"""
import argparse
import re
from dataclasses import dataclass, field
from pathlib import Path

# Where PyTorch has another name for the same.
FUNCTION_NAMES = {"std_dev": "std", "floor_div": "floor_divide", "log_sigmoid": "logsigmoid"}
PARAMETER_NAMES = {
    "x": "input", "a": "input", "b": "other", "dims": "dim", "lambda": "lambd", "absolute": "atol", "relative": "rtol",
    "nan_is_nan": "equal_nan", "parts": "tensors", "from": "source", "to": "destination", "logits": "input",
    "probabilities": "input", "samples": "num_samples", "classes": "num_classes", "causal": "is_causal",
}
PARAMETER_NAMES_OF = {
    "transpose": {"a": "dim0", "b": "dim1"}, "diagonal": {"a": "dim1", "b": "dim2"},
    "clamp": {"low": "min", "high": "max"}, "atan2": {"y": "input", "x": "other"},
    "scaled_dot_product_attention": {"q": "query", "k": "key",
        "v": "value", "mask": "attn_mask", "dropout": "dropout_p"}, "scatter": {"source": "src"},
    "scatter_add": {"source": "src"}, "scatter_reduce": {"source": "src", "how": "reduce"},
    "embedding": {"index": "input"}, "lerp": {"b": "end"}, "permute": {"dims": "dims"}, "flip": {"dims": "dims"},
    "binary_cross_entropy_with_logits": {"positive_weight": "pos_weight"}, "gaussian_nll_loss": {"variance": "var"},
    "ctc_loss": {"x": "log_probs", "target": "targets"}, "threshold": {"limit": "threshold"},
    "rrelu": {"low": "lower", "high": "upper"}, "embedding_bag": {"index": "input"},
    "margin_ranking_loss": {"x1": "input1", "x2": "input2"}, "cosine_embedding_loss": {"x1": "input1", "x2": "input2"},
    "bilinear": {"x1": "input1", "x2": "input2"}, "gumbel_softmax": {"logits": "logits"},
    "roll": {"dims": "dims"}, "pixel_shuffle": {"factor": "upscale_factor"}, "pixel_unshuffle": {"factor": "downscale_factor"},
}
# What Python cannot use: memory of captured functions. Slices by dims are those by integers, too.
SKIPPED = {("slice", "int64_t start")}
# Functions of these sections become methods of Tensor, too.
METHODS = {"elementwise", "reductions", "shape", "indexing", "matmul", "writing to places", "several dims at once",
           "order", "functions", "bits", "shapes"}
NO_METHODS = {"linear", "linear_act", "mlp", "matmul_mul_sum", "concat", "stack", "einsum", "meshgrid", "where",
              "embedding", "constant"}
# Of functions that share a comment with their neighbours in the header.
DOCS = {
    "eq": "Whether a == b, bool: two operands broadcast and are promoted.", "ne": "Whether a != b, bool, as eq().",
    "lt": "Whether a < b, bool, as eq().", "le": "Whether a <= b, bool, as eq().", "gt": "Whether a > b, bool, as eq().",
    "ge": "Whether a >= b, bool, as eq().", "logical_and": "Whether both are other than 0, bool; they broadcast.",
    "logical_or": "Whether one is other than 0, bool; they broadcast.",
    "logical_xor": "Whether just one is other than 0, bool; they broadcast.",
    "logical_not": "Whether an element is 0, bool; the shape of x.", "isnan": "Whether an element is NaN, bool; the shape of x.",
    "isinf": "Whether an element is infinite, bool; the shape of x.",
    "isfinite": "Whether an element is a number and not infinite, bool; the shape of x.",
    "clone": "A copy of the same shape, row-major.", "triu": "What lies on and above a diagonal of [..., n, m], 0 elsewhere.",
    "linear_act": "act(x weightᵀ + bias) + residual in one pass: x [..., in], weight [out, in], bias [out], residual [..., out].",
    "cross_entropy": "Of logits [n, classes] and the classes [n] that are right, i64 or i32.",
    "depth_to_space": "x [n, c factor², h, w] -> [n, c, h factor, w factor]; the place in the square is the outer part of a channel.",
    "min_with_index": "The smallest elements along `dim` and their first places, i64.",
    "argmin_last": "The last place of the smallest element along `dim`, i64.",
    "sinh": "(exp(x) - exp(-x)) / 2; the shape of x.", "cosh": "(exp(x) + exp(-x)) / 2; the shape of x.",
    "asinh": "The inverse of sinh(); the shape of x.", "log2": "The logarithm to base 2; the shape of x.",
    "log10": "The logarithm to base 10; the shape of x.", "lerp": "a + weight (b - a); all three broadcast.",
    "bitwise_and": "Bit by bit, of integers and bools, which broadcast.", "bitwise_or": "As bitwise_and().",
    "bitwise_xor": "As bitwise_and().", "bitwise_not": "Every bit turned, of integers and bools; the shape of x.",
    "adaptive_avg_pool": "x [n, c, ...] -> [n, c, sizes...]: means of windows that cover it evenly, as in PyTorch.",
    "gru_cell": "A step of gru(): x [batch, in], hidden [batch, hidden] or None for 0; the hidden state behind it.",
    "lstm_cell": "A step of lstm(): x [batch, in], hidden and cell [batch, hidden] or None for 0; both behind it.",
    "gru_gates_from_pytorch": "A parameter [3 hidden, ...] of a GRU with PyTorch's order of gates in that of gru().",
    "mel_weight_matrix": "Weights [bins, mels] that turn a spectrum into one of the mel scale, as in ONNX.",
}
# Two operands of which either may be a number.
OPERANDS = re.compile(r"^(const Tensor& |Tensor )a,(const Tensor& |Tensor )b(,|$)")
NO_OPERANDS = {"matmul", "matmul_mul_sum", "tensordot", "solve", "lerp"}


@dataclass
class Parameter:
    type: str
    name: str
    default: str | None = None
    array: int = 0


@dataclass
class Function:
    name: str
    result: str
    parameters: list
    doc: str
    section: str
    family: str = ""  # what the header says of several functions


@dataclass
class Struct:
    name: str
    fields: list


@dataclass
class Header:
    functions: list = field(default_factory=list)
    structs: dict = field(default_factory=dict)
    enums: dict = field(default_factory=dict)


def split(text):
    """At the commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "(<{[":
            depth += 1
        elif c in ")>}]":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [p.strip() for p in [*parts, text[start:]] if p.strip()]


def parameter(text):
    text, _, default = text.partition("=")
    match = re.match(r"^(.*?[\s&*])(\w+)(?:\[(\d+)\])?$", text.strip())
    kind = re.sub(r"\s+", " ", match[1].strip()).replace(" &", "&")
    return Parameter(kind, match[2], default.strip() or None, int(match[3] or 0))


def fields(body):
    """Those of a struct; several may share a type."""
    found = []
    body = re.sub(r"(enum|struct) \w+[^{;]*\{[^}]*\};", "", body)
    for statement in (s.strip() for s in body.split(";")):
        if not statement or "(" in statement.split("=")[0]:
            continue
        first, *more = split(statement)
        found.append(parameter(first))
        kind = found[0 - 1].type
        found += [parameter(f"{kind} {m}") for m in more]
    return found


def read(path):
    """What a header declares."""
    header, doc, section, statement, depth, family, in_family = Header(), [], "", "", 0, [], False
    for line in Path(path).read_text().splitlines():
        code = line.split("//")[0].rstrip()
        if not code.strip():
            comment = line.strip()
            if comment.startswith("// ---- "):
                section, family = comment[8:].split(":")[0].split(" (")[0].strip(), []
            if statement:
                continue
            if comment.startswith("///"):
                doc.append(comment[3:].strip())
            elif comment.startswith("//") and not comment.startswith("// ----"):
                family = family + [comment[2:].strip()] if in_family else [comment[2:].strip()]
            elif not comment:
                doc, family = [], []
            in_family = comment.startswith("//") and not comment.startswith("///")
            continue
        in_family = False
        if code.startswith(("#", "namespace", "}  // ", "}", "template", "using")) and not statement:
            doc = []
            continue
        statement += " " + code.strip()
        depth = statement.count("{") - statement.count("}")
        if depth or not re.search(r"[;}]$", code):
            continue
        text, statement = statement.strip(), ""
        if text.startswith("struct"):
            name, body = re.match(r"struct (\w+) \{(.*)\};$", text).groups()
            for inner, values in re.findall(r"enum (\w+)[^{]*\{([^}]*)\}", body):
                header.enums[f"{name}::{inner}"] = [v.split("=")[0].strip() for v in split(values)]
            header.structs[name] = Struct(name, fields(body))
        elif text.startswith("enum"):
            name, values = re.match(r"enum class (\w+)[^{]*\{([^}]*)\}", text).groups()
            header.enums[name] = [v.strip() for v in split(values)]
        elif not text.startswith("inline"):
            result, name, inside = re.match(r"^([\w:<>, ]+?) (\w+)\((.*)\);$", text).groups()
            header.functions.append(
                Function(name, result, [parameter(p) for p in split(inside)], " ".join(doc), section, " ".join(family)))
        doc = []
    return header


def snake(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def python_name(function, name):
    return PARAMETER_NAMES_OF.get(function, {}).get(name, PARAMETER_NAMES.get(name, name))


def bound_name(function):
    return FUNCTION_NAMES.get(function.name, function.name)


def signature(function):
    return ",".join(f"{p.type} {p.name}" for p in function.parameters[:3])


def documentation(function):
    """Its own comment; that of its neighbours where it has none."""
    own = function.doc or DOCS.get(function.name, "")
    return f"{own} {function.family}".strip() if not own or function.section == "elementwise" else own


def is_skipped(function):
    return any(function.name == name and any(f"{p.type} {p.name}" == one for p in function.parameters)
               for name, one in SKIPPED)


class Writer:
    def __init__(self, structs, functions):
        self.structs = structs
        # Calls with a number as the last operand, for which there is a function of its own.
        self.scalars = {f.name for f in functions if [p.type for p in f.parameters] == ["const Tensor&", "double"]}
        types = [p.type for f in functions for p in f.parameters] + [p.type for s in structs.values() for p in s.fields]
        self.objects = {s for t in types for s in re.findall(r"std::vector<(\w+)>", t) if s in structs}

    def cpp(self, p):
        """The type by which the binding takes a parameter, and how the call passes it on."""
        bare = p.type.removeprefix("const ").rstrip("&*").strip()
        if p.array:
            return f"std::array<{bare}, {p.array}>", None
        if bare == "Generator":
            pointer = f"{p.name}"
            return "Generator*", pointer if p.type.endswith("*") else f"generator_or_default({pointer})"
        return ("const " + bare + "&" if bare in ("Tensor", "Tensors", "Dims", "Shape") else bare), p.name

    def argument(self, function, p, default=None):
        bare = p.type.removeprefix("const ").rstrip("&*").strip()
        text = f'nb::arg("{python_name(function.name, p.name)}")'
        if default is None and p.default is not None:
            if bare == "Generator" or (bare == "Device" and "default" in p.default):
                return text + ".none() = nb::none()"
            if bare in ("Tensor", "Dims") and p.default == "{}":
                return text + ".none() = nb::none()"
            if bare.startswith("std::optional"):
                return text + " = nb::none()"
            default = f"{bare}{p.default}" if p.default.startswith("{") else p.default
        if default is not None:
            if bare in ("Tensor", "Generator", "Dims"):
                return text + ".none() = nb::none()"
            return text + f" = {default}"
        return text + (".none()" if bare in ("Tensor", "Dims") and p is not function.parameters[0] else "")

    def binding(self, f):
        """The line that binds one function."""
        types, arguments, before, call = [], [], [], {}
        operands = f.name not in NO_OPERANDS and bool(OPERANDS.match(signature(f)))
        # Options may have defaults and stand before what has none: Python wants them behind it.
        first = [p for p in f.parameters if p.default is None and p.type.removeprefix("const ").rstrip("&") not in self.structs]
        for p in first + [p for p in f.parameters if p not in first]:
            i = f.parameters.index(p)
            bare = p.type.removeprefix("const ").rstrip("&").strip()
            if operands and i < 2:
                types.append(f"Operand {p.name}")
                arguments.append(self.argument(f, Parameter("Operand", p.name)))
                call[i] = f"beside(real({p.name}), {'ba'[i]})" if f.name == "div" else f"beside({p.name}, {'ba'[i]})"
            elif bare in self.structs and bare not in self.objects:
                before.append(f"{bare} {p.name};")
                call[i] = f"std::move({p.name})"
                for one in self.structs[bare].fields:
                    kind, how = self.cpp(one)
                    types.append(f"{kind} {p.name}_{one.name}")
                    needed = f.name.startswith(("max_pool", "avg_pool", "lp_pool", "unfold", "fold", "same_padding"))
                    if needed and one.name == "size":
                        arguments.append('nb::arg("size")')
                    else:
                        value = f"array_of({bare}{{}}.{one.name})" if one.array else f"{bare}{{}}.{one.name}"
                        arguments.append(self.argument(f, one, value))
                    before.append(f"copy_array({p.name}_{one.name}, {p.name}.{one.name});" if one.array
                                  else f"{p.name}.{one.name} = {p.name}_{one.name};")
            else:
                kind, how = self.cpp(p)
                types.append(f"{kind} {p.name}")
                arguments.append(self.argument(f, p))
                call[i] = how
        if operands and f.name in self.scalars and len(f.parameters) == 2:
            before.append(f"if (b.is_factor_of(a)) return {f.name}(a.tensor, b.number);")
        called = ", ".join(call[i] for i in sorted(call))
        body = f"const Unlocked unlocked; {' '.join(before)} return {f.name}({called});"
        if f.result in self.structs:  # a tuple of results, or keywords for another function
            body = f"const auto made = [&] {{ {body} }}(); return {self.unpacked(f.result)};"
        arrow = " -> Tensor" if f.result == "Tensor" else ""
        method = (f.section in METHODS and f.name not in NO_METHODS and f.parameters
                  and re.sub("const |&", "", f.parameters[0].type).strip() == "Tensor")
        doc = documentation(f).replace("\\", "\\\\").replace('"', '\\"')
        pieces = [f'"{bound_name(f)}"', f"[]({', '.join(types)}){arrow} {{ {body} }}", *arguments, f'"{doc}"']
        return ("function_and_method(m, tensor, " if method else "m.def(") + ", ".join(pieces) + ");"

    def unpacked(self, name):
        fields = self.structs[name].fields
        if all(p.type == "Tensor" for p in fields):
            return f"nb::make_tuple({', '.join('made.' + p.name for p in fields)})"
        return "keywords(" + ", ".join(f'"{p.name}", made.{p.name}' for p in fields) + ")"

    def object(self, name):
        s = self.structs[name]
        kinds, inits, args = [], [], []
        for p in s.fields:
            bare = p.type if p.type not in ("Kind",) else f"{name}::Kind"
            kinds.append(f"{bare} {p.name}")
            inits.append(f"made->{p.name} = {p.name};")
            none = ".none()" if bare == "Tensor" else ""
            default = (" = nb::none()" if bare == "Tensor" else f" = {name}{{}}.{p.name}") if p.default else ""
            args.append(f'nb::arg("{p.name}"){none}{default}')
        return (f'nb::class_<{name}>(m, "{name}", "Takes: {", ".join(p.name for p in s.fields)}.").def("__init__", []({name}* made, {", ".join(kinds)}) '
                f'{{ new (made) {name}(); {" ".join(inits)} }}, {", ".join(args)});')


def caster(name, values):
    names = ", ".join(f'"{snake(v)}"' for v in values)
    label = snake(name.replace("::", ""))
    return (f"struct names_of_{label} {{ static constexpr const char* all[] = {{{names}}}; "
            f'static constexpr const char* what = "{label}"; }};\n'
            f"template <> struct type_caster<tessera::{name}> : named_caster<tessera::{name}, names_of_{label}> {{}};")


def everything(folder):
    """What all headers of operators declare, by their names."""
    return {name: read(folder / name) for name in ["enums.h", *sorted(p.name for p in folder.glob("ops*.h"))]}


def functions_of(headers):
    return [f for h in headers for f in h.functions if not is_skipped(f)]


def bindings(name, headers):
    structs = {k: v for h in headers.values() for k, v in h.structs.items()}
    functions = functions_of([headers[name]])
    writer = Writer(structs, functions)
    # Overloads for numbers are part of the binding for operands.
    bound = {f.name for f in functions if OPERANDS.match(signature(f))}
    return "\n".join([
        f"// Made by python/generate.py from {name}.", '#include "casters.h"', '#include "named.h"',
        "namespace tessera::python {", f"void bind_{name[:-2]}(nb::module_& m, nb::class_<Tensor>& tensor) {{", "(void)tensor;",
        *(writer.object(s) for s in sorted(writer.objects) if s in headers[name].structs),
        *(writer.binding(f) for f in functions
          if not (f.name in bound and f.name in writer.scalars and f.parameters[-1].type == "double")),
        "}", "}  // namespace tessera::python", ""])


def named(headers):
    enums = {k: v for h in headers.values() for k, v in h.enums.items() if k != "MemoryFormat"}
    return "\n".join([
        "// Made by python/generate.py: choices are strings in Python.", "#pragma once", '#include "casters.h"',
        "namespace nanobind::detail {", *(caster(k, v) for k, v in enums.items()), "}  // namespace nanobind::detail", ""])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, help="include/tessera")
    arguments.add_argument("what", help="a header of operators, or 'names'")
    arguments.add_argument("out", type=Path)
    options = arguments.parse_args()
    headers = everything(options.folder)
    text = named(headers) if options.what == "names" else bindings(options.what, headers)
    if not options.out.exists() or options.out.read_text() != text:  # what is the same is not compiled again
        options.out.write_text(text)


if __name__ == "__main__":
    main()
