"""make_node_tests.py FOLDER: writes ONNX's node tests, which the `onnx` wheel makes in memory, in the layout of its
backend tests: FOLDER/NAME/model.onnx and test_data_set_N/{input,output}_N.pb; rtol and atol, where a test has its own,
are in FOLDER/NAME/tolerance.json. The same files each time."""
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader


def proto_of(value, declared):
    """What a value is in a file: a tensor, a sequence, an optional."""
    if hasattr(value, "SerializeToString"):
        return value
    kind = declared.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, declared.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, declared.name)
    return numpy_helper.from_array(np.asarray(value), declared.name)


def main(folder):
    warnings.simplefilter("ignore")
    cases = loader.load_node_model_tests()
    for case in cases:
        at = folder / case.name
        at.mkdir(parents=True, exist_ok=True)
        (at / "model.onnx").write_bytes(case.model.SerializeToString(deterministic=True))
        if (case.rtol, case.atol) != (1e-3, 1e-7):
            (at / "tolerance.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
        for number, (inputs, outputs) in enumerate(case.data_sets):
            data = at / f"test_data_set_{number}"
            data.mkdir(exist_ok=True)
            for kind, values, declared in (
                ("input", inputs, case.model.graph.input),
                ("output", outputs, case.model.graph.output),
            ):
                for i, (value, info) in enumerate(zip(values, declared)):
                    (data / f"{kind}_{i}.pb").write_bytes(proto_of(value, info).SerializeToString(deterministic=True))
    print(f"{len(cases)} tests of onnx {onnx.__version__} in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
