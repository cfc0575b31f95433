"""make_tests.py FOLDER: writes ONNX's own tests in the layout of its backend tests, NAME/model.onnx and
test_data_set_N/{input,output}_N.pb: below FOLDER/node those that the `onnx` wheel makes in memory, below FOLDER/light its
whole networks, and below FOLDER/SET copies of the sets that it holds as files. The same files each time."""
import shutil
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


def write(folder, model, data_sets):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    given = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in given] if given else model.graph.input
    for number, (values, wanted) in enumerate(data_sets):
        data = folder / f"test_data_set_{number}"
        data.mkdir(exist_ok=True)
        for kind, all_values, declared in (("input", values, inputs), ("output", wanted, model.graph.output)):
            for i, (value, info) in enumerate(zip(all_values, declared)):
                (data / f"{kind}_{i}.pb").write_bytes(proto_of(value, info).SerializeToString(deterministic=True))


def write_light(folder, at):
    """A whole network with constant weights; its input is a ramp from 0 to 1, as in ONNX's own runner."""
    model = onnx.load(at)
    given = {t.name for t in model.graph.initializer}
    (info,) = [i for i in model.graph.input if i.name not in given]
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    ramp = (np.arange(np.prod(shape)) / np.prod(shape)).astype(np.float32).reshape(shape)
    write(folder / at.stem, model, [([ramp], [onnx.load_tensor(at.with_name(at.stem + "_output_0.pb"))])])


def main(folder):
    warnings.simplefilter("ignore")
    cases = loader.load_node_model_tests()
    for case in cases:
        assert (case.rtol, case.atol) == (1e-3, 1e-7), case.name
        write(folder / "node" / case.name, case.model, case.data_sets)
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for at in sorted((data / "light").glob("*.onnx")):
        write_light(folder / "light", at)
    for name in ("pytorch-converted", "pytorch-operator", "simple"):
        shutil.copytree(data / name, folder / name, dirs_exist_ok=True)
    print(f"{len(cases)} node tests of onnx {onnx.__version__}, and its networks, in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
