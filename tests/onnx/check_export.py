"""check_export.py TESSERA [TEST_ONNX]: exports every model that `tessera export` knows by name, and lets ONNX's checker and
ONNX Runtime judge: full check with strict shape inference, and at two batch sizes the outputs of `tessera run` beside those of
ONNX Runtime, by relative L2 norm. With TEST_ONNX the cases of single operators, too. The last line is 'N agree, N differ'."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

LIMIT = 1e-5
# ONNX Runtime has no kernel on the CPU, or its Python has no such elements.
LACKS = ("NOT_IMPLEMENTED", "Could not find an implementation", "is not a registered function/op",
         "No corresponding Numpy type")


def run(*words, **more):
    return subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True, **more)


def names_of(tessera):
    text = subprocess.run([tessera, "export", "no such model", "-o", "none"], capture_output=True, text=True).stderr
    return text.strip().split("one of ")[1].split(", ")


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def error_of(got, want):
    """Infinite where shapes, types or values that are not finite differ."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return np.inf
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf
    return np.linalg.norm(got[finite] - want[finite]) / max(np.linalg.norm(want[finite]), 1e-30)


def drawn(info, batch, generator):
    shape = [d.dim_value or (batch if i == 0 else 9) for i, d in enumerate(info.type.tensor_type.shape.dim)]
    if info.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return generator.integers(0, 1000, shape)
    return generator.standard_normal(shape).astype(np.float32)


def check_model(tessera, name, opset, folder):
    path = folder / "model.onnx"
    run(tessera, "export", name, "-o", path, "--opset", opset)
    onnx.checker.check_model(str(path), full_check=True)
    graph = onnx.load(str(path), load_external_data=False).graph
    session, generator, worst = session_of(path), np.random.default_rng(3), 0
    for batch in (1, 2):
        inputs = {i.name: drawn(i, batch, generator) for i in graph.input}
        words = []
        for key, value in inputs.items():
            np.save(folder / f"{key}.npy", value)
            words += ["--input", f"{key}={folder / key}.npy"]
        run(tessera, "run", path, *words, "--output", folder / "out")
        for info, want in zip(graph.output, session.run(None, inputs)):
            worst = max(worst, error_of(np.load(folder / "out" / f"{info.name}.npy"), want))
    return worst


def check_case(folder):
    path = folder / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    session = session_of(path)
    read = lambda kind: [numpy_helper.to_array(onnx.load_tensor(str(folder / "test_data_set_0" / f"{kind}_{i}.pb")))
                         for i in range(len(list((folder / "test_data_set_0").glob(f"{kind}_*.pb"))))]
    inputs = {i.name: value for i, value in zip(session.get_inputs(), read("input"))}
    return max(error_of(want, got) for want, got in zip(read("output"), session.run(None, inputs)))


def main(tessera, test_onnx=None):
    numbers = {"agrees": 0, "differs": 0, "ONNX Runtime lacks it": 0}

    def judge(what, check, quiet=False):
        try:
            error = check()
            verdict = "agrees" if error <= LIMIT else "differs"
            text = f"{what}: {verdict}, {error:.1e}"
        except Exception as e:  # the checker's, ONNX Runtime's or the command's
            line = (getattr(e, "stderr", None) or str(e)).strip().replace("\n", " ")[:300]
            verdict = "ONNX Runtime lacks it" if any(l in line for l in LACKS) else "differs"
            text = f"{what}: {verdict}: {line}"
        numbers[verdict] += 1
        if not quiet or verdict == "differs":
            print(text, flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in names_of(tessera):
            for opset in (18, 20, 23):
                judge(f"{name}, opset {opset}", lambda: check_model(tessera, name, opset, folder))
        if test_onnx:
            run(test_onnx, "--gtest_filter=OnnxWriterOps.*:OnnxWriterFunctions.*", env={**os.environ, "TESSERA_ONNX_FOLDER": str(folder / "ops")})
            for case in sorted((folder / "ops").iterdir()):
                judge(f"case {case.name}", lambda: check_case(case), quiet=True)
    print(f"{numbers['agrees']} agree, {numbers['differs']} differ, {numbers['ONNX Runtime lacks it']} that ONNX Runtime lacks")
    return numbers["differs"] != 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
