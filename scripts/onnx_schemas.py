#!/usr/bin/env python3
"""onnx_schemas.py: writes src/onnx/schemas.cpp, what ONNX and ONNX Runtime say of the nodes of each operator that has
a handler.

usage: onnx_schemas.py      with a Python that has the newest wheels of onnx and onnxruntime

Versions of an operator that take the same are one line.
"""
import pathlib
import re
import textwrap

from onnx import defs
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

LETTERS = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "FLOATS": "F", "INTS": "I",
           "STRINGS": "S", "TENSORS": "T", "GRAPHS": "G", "SPARSE_TENSOR": "p", "TYPE_PROTO": "y"}
ANY = 2**31 - 1  # of inputs or outputs

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = '''// What ONNX says of the nodes of each operator. Written by scripts/onnx_schemas.py; do not edit.
#include "onnx/schema.h"

namespace tessera::onnx {
namespace {

// clang-format off
constexpr NodeSchema schemas[] = {
'''
TAIL = '''};
// clang-format on

}  // namespace

std::span<const NodeSchema> node_schemas() { return schemas; }

}  // namespace tessera::onnx
'''


def attributes(schema):
    return " ".join(f"{a.name}:{LETTERS[str(a.type).split('.')[-1].strip('>').split(':')[0]]}{'!' if a.required else ''}"
                    for a in sorted(schema.attributes.values(), key=lambda a: a.name))


def of_runtime(served):
    """What ONNX Runtime adds: its own domain, and one operator of ONNX's that ONNX does not know."""
    return [s for s in runtime.get_all_operator_schema() if s.name in served
            and (s.domain == "com.microsoft" or s.name == "SimplifiedLayerNormalization")]


def main():
    handlers = "".join(path.read_text() for path in sorted((ROOT / "src/onnx/handlers").glob("*.cpp")))
    entries = re.findall(r'\{"([A-Z]\w+)",\s*\d+,[^{}]*?(, kMicrosoft|, "com.microsoft")?\}', handlers)
    served = {name for name, _ in entries}
    lines, before = [], None
    every = [s for s in defs.get_all_schemas_with_history() if s.name in served]
    every += of_runtime({name for name, domain in entries if domain} | {"SimplifiedLayerNormalization"})
    for s in sorted(every, key=lambda s: (s.domain, s.name, s.since_version)):
        most = [-1 if n == ANY else n for n in (s.max_input, s.max_output)]
        said = (s.domain, s.name, s.min_input, *most, attributes(s))
        if said == before:
            continue
        before = said
        texts = textwrap.wrap(said[-1], 100) or [""]
        quoted = "\n     ".join(f'"{t}{" " if i + 1 < len(texts) else ""}"' for i, t in enumerate(texts))
        gap = "\n     " if len(texts) > 1 or len(texts[0]) > 60 else " "
        lines.append(f'    {{"{s.domain}", "{s.name}", {s.since_version}, {s.min_input}, {most[0]}, {most[1]},'
                     f'{gap}{quoted}}},\n')
    (ROOT / "src/onnx/schemas.cpp").write_text(HEAD + "".join(lines) + TAIL)


main()
