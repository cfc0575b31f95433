"""Modules that compute with sizes which a file leaves open."""
import numpy as np
import pytest
import tessera
from tessera import nn

F = nn.functional

# Of h [batch, tokens, 4], both open: the ways in which modules write shapes.
WAYS = {
    "reshape": lambda h: h.reshape(h.shape[0], -1),
    "view": lambda h: h.view(h.size(0), -1, 2),
    "product": lambda h: h.view(h.shape[0] * h.shape[1], 4).unflatten(0, (h.shape[0], h.shape[1])),
    "flatten": lambda h: h.flatten(1),
    "heads": lambda h: h.view(h.shape[0], h.shape[1], 2, 2).transpose(1, 2).reshape(*h.shape),
    "permute": lambda h: h.permute(1, 0, 2).contiguous().view(h.shape[1], -1),
    "zeros_like": lambda h: tessera.zeros_like(h) + h,
    "ones_like": lambda h: tessera.ones_like(h) + h,
    "full_like": lambda h: tessera.full_like(h, 2.5) + h,
    "zeros": lambda h: tessera.cat([tessera.zeros(h.shape[0], 2, 4), h, h.new_ones((h.shape[0], 1, 4))], 1),
    "expand": lambda h: tessera.cat([tessera.ones(1, 1, 4).expand(h.shape[0], -1, -1), h], 1),
    "repeat": lambda h: tessera.cat([tessera.ones(1, 1, 4).repeat(h.shape[0], 2, 1), h.tile(1, 2, 1)], 1),
    "repeat_interleave": lambda h: h.repeat_interleave(h.shape[1], 0),
    "arange": lambda h: h + tessera.arange(h.shape[1])[:, None],
    "arange from": lambda h: h.cumsum(1) / tessera.arange(1, h.shape[1] + 1, dtype=tessera.float32)[:, None],
    "slice": lambda h: tessera.arange(20.0)[:h.shape[1]][:, None] + h,
    "slices": lambda h: tessera.cat([h[1:], h[:-1], h[::2]], 0)[:, ::-1],
    "narrow": lambda h: h.narrow(1, 1, h.shape[1] - 1),
    "last": lambda h: tessera.stack([h[-1], h[h.shape[0] - 1]]),
    "places": lambda h: h[tessera.arange(h.shape[0]), h.argmax(1)[:, 0]],
    "mean": lambda h: h.mean(1) + h.sum((0, 1)) / h.shape[0] + h.sum() / h.numel(),
    "numbers": lambda h: h * (2 * h.shape[0] - 1) + h.shape[1] ** 0.5 - 1 / h.shape[0],
    "mask": lambda h: (h @ h.mT).masked_fill(tessera.ones(h.shape[1], h.shape[1]).tril() == 0, float("-inf")).softmax(-1) @ h,
    "eye": lambda h: tessera.eye(h.shape[1]) + h.sum(-1, keepdim=True),
    "attention": lambda h: F.scaled_dot_product_attention(*(h[:, None],) * 3, is_causal=True),
    "softmax": lambda h: F.softmax(h.flatten(1), -1).view_as(h),
    "bounds": lambda h: h if h.shape[0] >= 1 and h.shape[0] != 0 else h * 2,
}


class Way(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, h):
        return self.way(h)


def runs_of(path):
    """This library, and ONNX Runtime where it is."""
    model = tessera.load_onnx(path)
    yield lambda x: next(iter(model.run(x).values())).numpy()
    try:
        import onnxruntime
    except ImportError:
        return
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    yield lambda x: session.run(None, {"input": x.numpy()})[0]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("open", [(), [{0: "batch", 1: "tokens"}]], ids=["batch", "both"])
def test_a_module_is_written(name, open, tmp_path):
    tessera.manual_seed(3)
    module, path = Way(WAYS[name]).eval(), tmp_path / "way.onnx"
    tessera.onnx.save(module, tessera.randn(2, 6, 4), path, open=open)
    assert tessera.onnx.inspect(str(path)).inputs[0].dims[:2] == ["batch", "tokens" if open else "6"]
    for batch, tokens in ((1, 6), (5, 6), *(((3, 9), (2, 4)) if open else ())):
        x = tessera.randn(batch, tokens, 4)
        want = module(x).numpy()
        for run in runs_of(path):
            got = run(x)
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", [
    lambda h: h * len(h), lambda h: h * int(h.shape[0]), lambda h: sum(h[i] for i in range(h.shape[0])),
    lambda h: h / float(h.size(0)), lambda h: sum(row for row in h), lambda h: h.squeeze() if h.shape[0] == 1 else h,
    lambda h: h if h.shape[0] < 5 else h * 2, lambda h: tessera.linspace(0, 1, h.shape[0]),
    lambda h: F.interpolate(h[:, None], size=(h.shape[0], 4))])
def test_a_size_that_must_be_known_is_refused_in_one_line(way, tmp_path):
    path = tmp_path / "way.onnx"
    with pytest.raises(tessera.Error) as e:
        tessera.onnx.save(nn.Sequential(nn.Identity(), Way(way)), tessera.randn(2, 6, 4), path)
    said = str(e.value)
    assert said.startswith(f'{path}: module "1": ') and said.endswith("; the model reads it, so it must be fixed")
    assert "\n" not in said and not path.exists()
    fixed = Way(way)
    tessera.onnx.save(fixed, tessera.randn(2, 6, 4), path, batch="")
    x = tessera.randn(2, 6, 4)
    np.testing.assert_allclose(next(runs_of(path))(x), fixed(x).numpy(), rtol=1e-5, atol=1e-5)


def test_a_model_that_was_read_is_written_again(tmp_path):
    first, again = tmp_path / "first.onnx", tmp_path / "again.onnx"
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    tessera.onnx.save(net, tessera.ones(2, 4), first, input_names=["x"], output_names=["y"])
    x = tessera.randn(5, 4)
    tessera.onnx.save(tessera.load_onnx(first), x, again)
    model = tessera.load_onnx(again)
    assert [(p.name, p.dims) for p in model.inputs + model.outputs] == [("x", ["5", "4"]), ("y", ["5", "3"])]
    np.testing.assert_allclose(model.run(x)["y"].numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    tessera.onnx.save(tessera.load_onnx(first), x, again, open=[{0: "n"}])
    model = tessera.load_onnx(again)
    assert model.inputs[0].dims == ["n", "4"]
    np.testing.assert_allclose(model.run(x[:2])["y"].numpy(), net(x[:2]).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_open_sizes_of_inputs(tmp_path):
    class Two(nn.Module):
        def forward(self, x, y):
            return tessera.cat([x, y], 1)
    path = tmp_path / "two.onnx"
    inputs = [tessera.ones(2, 3), tessera.ones(2, 4)]
    tessera.onnx.save(Two(), inputs, path, open=[{0: "n", 1: "a"}, {0: "n", -1: "b"}])
    model = tessera.load_onnx(path)
    assert [p.dims for p in model.inputs] == [["n", "a"], ["n", "b"]]
    assert model.run(tessera.ones(5, 1), tessera.ones(5, 2))["output"].shape == (5, 3)
    with pytest.raises(tessera.Error, match="open sizes of 3 inputs"):
        tessera.onnx.save(Two(), inputs, path, open=[{}, {}, {0: "n"}])
    with pytest.raises(tessera.Error, match="dim 2 is out of range"):
        tessera.onnx.save(Two(), inputs, path, open=[{2: "n"}])
