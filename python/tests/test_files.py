"""safetensors, npy, checkpoints, model files."""
import gzip
import pathlib

import numpy as np
import pytest
import tessera

DATA = pathlib.Path(__file__).parents[2] / "tests" / "data" / "mnist"


def test_safetensors_round_trip(tmp_path):
    tensors = {"a": tessera.randn(3, 4), "b.c": tessera.arange(5), "h": tessera.ones(2, dtype="bfloat16")}
    path = str(tmp_path / "x.safetensors")
    tessera.save_safetensors(path, tensors, {"by": "a test"})
    back = tessera.load_safetensors(path)
    assert set(back) == set(tensors) and tessera.io.safetensors_metadata(path) == {"by": "a test"}
    for name, t in tensors.items():
        assert back[name].dtype == t.dtype and tessera.equal(back[name], t)
    kept = back["a"]
    del back
    assert tessera.equal(kept, tensors["a"])  # the mapping lives as long as its tensors


def test_damaged_files(tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(tessera.FileError, match="bad.safetensors") as e:
        tessera.load_safetensors(str(path))
    assert "\n" not in str(e.value)
    with pytest.raises(tessera.FileError, match="bad.safetensors"):
        tessera.load_onnx(path)


def test_npy_and_checkpoints(tmp_path, rng):
    array = rng.random((2, 3))
    np.save(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(tessera.io.load_npy(str(tmp_path / "a.npy")).numpy(), array)
    tessera.io.save_checkpoint(str(tmp_path / "c"), {"x": tessera.from_numpy(array)}, {"step": "3"})
    tensors, metadata = tessera.io.load_checkpoint(str(tmp_path / "c"))
    np.testing.assert_array_equal(tensors["x"].numpy(), array)
    assert metadata["step"] == "3"


def images(count):
    with gzip.open(DATA / "t10k-images-idx3-ubyte.gz") as f:
        return np.frombuffer(f.read(16 + count * 784)[16:], np.uint8).reshape(count, 1, 28, 28).astype(np.float32)


def test_the_mnist_model_gives_known_answers():
    model = tessera.load_onnx(DATA / "mnist.onnx")
    name, output = model.inputs[0].name, model.outputs[0].name
    wanted = np.load(DATA / "answers.npy")[:20]
    batch = images(20)
    for image, answer in zip(batch, wanted):
        out = model.run({name: image[None]})[output].numpy()
        assert np.linalg.norm(out - answer) <= 1e-5 * np.linalg.norm(answer)
    assert list(model.run(tessera.from_numpy(batch[:1]))) == [output]
    again = tessera.run(DATA / "mnist.onnx", {name: batch[:1]})[output].numpy()
    assert np.linalg.norm(again - wanted[0]) <= 1e-5 * np.linalg.norm(wanted[0])
    assert tessera.onnx.inspect(str(DATA / "mnist.onnx")).unsupported == []


def test_bad_inputs_of_a_model():
    model = tessera.load_onnx(DATA / "mnist.onnx")
    with pytest.raises(tessera.Error) as e:
        model.run({"nothing": np.ones(1, np.float32)})
    assert str(e.value).endswith('mnist.onnx: input "Input3" is missing')
    with pytest.raises(tessera.Error):
        model.run(np.ones((1, 1, 5, 5), np.float32))
