"""Recurrent layers, layers of functions, the zoo, and models that are written as files."""
import numpy as np
import pytest
import tessera
from tessera import nn

F = nn.functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        return F.softmax(self.head(self.features(x).flatten(1)), 1)


def test_a_module_of_python_is_written_and_read(tmp_path):
    tessera.manual_seed(2)
    net, path = Net(), tmp_path / "net.onnx"
    net(tessera.randn(8, 1, 8, 8))  # moves the running statistics
    tessera.onnx.save(net, tessera.randn(2, 1, 8, 8), path, input_names=["image"], output_names=["classes"])
    assert net.training  # as before
    net.eval()
    model = tessera.load_onnx(path)
    assert [p.name for p in model.inputs] == ["image"] and model.inputs[0].dims[0] == "batch" and sum(model.calls().values()) > 2
    for batch in (1, 5):
        x = tessera.randn(batch, 1, 8, 8)
        np.testing.assert_allclose(model.run(x)["classes"].numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    fixed = tmp_path / "fixed.onnx"
    tessera.onnx.save(net, [tessera.randn(2, 1, 8, 8)], fixed, opset=18, batch="")
    assert tessera.onnx.inspect(str(fixed)).inputs[0].dims[0] == "2" and tessera.onnx.inspect(str(fixed)).opsets["ai.onnx"] == 18


def test_sizes_stay_open_where_a_module_indexes(tmp_path):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            h = self.net(x)[0]
            return {"last": self.head(h[:, -1]), "some": h[:, 1:3, ::2], "more": h[:, None]}

    net, path = Last().eval(), tmp_path / "last.onnx"
    tessera.onnx.save(net, tessera.randn(2, 5, 4), path, output_names=["last", "some", "more"])
    model = tessera.load_onnx(path)
    x = tessera.randn(7, 5, 4)
    got, want = model.run(x), net(x)
    for name in ("last", "some", "more"):
        np.testing.assert_allclose(got[name].numpy(), want[name].detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name,shape", [("BatchNorm1d", (5, 3)), ("BatchNorm1d", (4, 3, 5)), ("BatchNorm2d", (2, 3, 4, 5)), ("BatchNorm3d", (2, 3, 2, 3, 1))])
def test_norms_by_the_batch_are_written(tmp_path, name, shape, affine):
    net = nn.Sequential(getattr(nn, name)(3, track_running_stats=False, affine=affine), nn.ReLU(), getattr(nn, name)(3, 0.1, None)).eval()
    if affine:
        nn.init.normal_(net[0].weight), nn.init.normal_(net[0].bias)
    for opset in (18, 23):
        tessera.onnx.save(net, tessera.randn(*shape), tmp_path / "net.onnx", opset=opset)
        for batch in (2, 7):
            x = tessera.randn(batch, *shape[1:]) * 3 + 1
            wanted = net(x).detach().numpy()
            np.testing.assert_allclose(next(iter(tessera.load_onnx(tmp_path / "net.onnx").run(x).values())).numpy(), wanted, rtol=1e-4, atol=1e-5)
            try:
                import onnxruntime
            except ImportError:
                continue
            other = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
            np.testing.assert_allclose(other.run(None, {other.get_inputs()[0].name: x.numpy()})[0], wanted, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_written(tmp_path):
    class Gives(nn.Module):
        def forward(self, x):
            return {"name": "text"}
    with pytest.raises((TypeError, tessera.Error), match="not str"):
        tessera.onnx.save(Gives(), tessera.ones(2), tmp_path / "no.onnx")
    class Reads(nn.Module):
        def forward(self, x):
            return x * x.sum().item()
    with pytest.raises(tessera.Error):
        tessera.onnx.save(Reads(), tessera.ones(2), tmp_path / "no.onnx")
    with pytest.raises(tessera.Error, match="opset"):
        tessera.onnx.save(Net(), tessera.ones(1, 1, 8, 8), tmp_path / "no.onnx", opset=3)
    assert not (tmp_path / "no.onnx").exists()


def test_the_zoo_by_name(tmp_path):
    assert {"resnet18", "resnet50", "vit_b_16"} <= set(tessera.models.names()) or len(tessera.models.names()) == 10
    name = next(n for n in tessera.models.names() if "keyword" in n or "lstm" in n)
    assert tessera.models.describe(name)
    tessera.manual_seed(1)
    model = tessera.models.make(name).eval()
    x = tessera.models.example_inputs(name, 2)
    with tessera.no_grad():
        y = model(*x)
    assert y.shape[0] == 2 and model.parameter_count() == sum(p.numel() for p in model.parameters())
    tessera.save_safetensors(str(tmp_path / "w"), model.state_dict())
    for weights in (tmp_path / "w", model.state_dict()):
        again = tessera.models.make(name, weights).eval()
        with tessera.no_grad():
            np.testing.assert_array_equal(again(*x).numpy(), y.numpy())
    with pytest.raises(tessera.Error, match="is none of: |resnet50"):
        tessera.models.make("alexnet")
    with pytest.raises(tessera.Error):
        tessera.models.describe("alexnet")
    with pytest.raises(tessera.Error):
        tessera.models.make(name, {"nothing": tessera.ones(1)})


@pytest.mark.parametrize("kind,states", [(nn.LSTM, 2), (nn.GRU, 1), (nn.RNN, 1)])
def test_recurrent_layers(kind, states):
    layer = kind(5, 7, num_layers=2, bidirectional=True)
    x = tessera.randn(4, 3, 5)
    out, state = layer(x)
    last = state if states == 2 else (state,)
    assert out.shape == (4, 3, 14) and all(s.shape == (4, 3, 7) for s in last) and len(last) == states
    first, between = layer(x[:2])
    one = kind(5, 7, batch_first=True)
    whole, end = one(x.transpose(0, 1))
    part, middle = one(x[:2].transpose(0, 1))
    rest, again = one(x[2:].transpose(0, 1), middle)
    np.testing.assert_allclose(tessera.cat([part, rest], 1).detach().numpy(), whole.detach().numpy(), rtol=1e-5, atol=1e-6)
    whole.sum().backward()
    assert dict(one.named_parameters())["weight_ih_l0"].grad is not None


def test_recurrent_layers_with_bad_arguments():
    with pytest.raises(tessera.Error, match="^RNN: nonlinearity 'sine' is none of: tanh, relu$"):
        nn.RNN(2, 3, nonlinearity="sine")
    with pytest.raises(tessera.Error):
        nn.LSTM(2, 3)(tessera.ones(4, 3, 5))


def test_activations_of_recurrent_operators():
    weights = tessera._C.RecurrentWeights
    assert tessera._C.RecurrentActivation(kind="relu") is not None and weights.__doc__


LAYERS = [
    (nn.MaxPool2d(2, stride=1), (1, 2, 4, 4), lambda x: F.max_pool2d(x, 2, 1)),
    (nn.AvgPool1d(3), (1, 2, 9), lambda x: F.avg_pool1d(x, 3)), (nn.AdaptiveAvgPool2d(1), (1, 2, 4, 4), lambda x: F.adaptive_avg_pool2d(x, 1)),
    (nn.LeakyReLU(0.2), (5,), lambda x: F.leaky_relu(x, 0.2)), (nn.ELU(), (5,), lambda x: F.elu(x)), (nn.Mish(), (5,), F.mish),
    (nn.Softmax(dim=0), (5, 2), lambda x: x.softmax(0)), (nn.Upsample(scale_factor=2), (1, 2, 3, 3), lambda x: F.interpolate(x, scale_factor=2)),
    (nn.PixelShuffle(2), (1, 4, 3, 3), lambda x: F.pixel_shuffle(x, 2)), (nn.Identity(7), (3,), lambda x: x),
    (nn.Unflatten(1, (2, 2)), (3, 4), lambda x: x.reshape(3, 2, 2)),
]


@pytest.mark.parametrize("layer,shape,function", LAYERS, ids=[type(entry[0]).__name__ for entry in LAYERS])
def test_layers_of_functions(layer, shape, function):
    x = tessera.randn(*shape)
    np.testing.assert_array_equal(layer(x).numpy(), function(x).numpy())
    assert repr(layer).startswith(type(layer).__name__ + "(") and not layer.parameters()


def test_losses_as_modules():
    x, classes = tessera.randn(4, 3), tessera.tensor([0, 2, 1, 1])
    assert nn.CrossEntropyLoss(label_smoothing=0.1)(x, classes).item() == F.cross_entropy(x, classes, label_smoothing=0.1).item()
    y = tessera.rand(4, 3)
    assert nn.BCEWithLogitsLoss(reduction="sum")(x, y).item() == F.binary_cross_entropy_with_logits(x, y, reduction="sum").item()
    assert nn.TripletMarginLoss(margin=0.5)(x, y, x * 2).item() == F.triplet_margin_loss(x, y, x * 2, margin=0.5).item()
    with pytest.raises(TypeError):
        nn.MSELoss(no_such_option=1)


def test_convolutions_and_norms_of_one_and_three_dims():
    conv = nn.Conv1d(4, 6, 3, padding=1, groups=2)
    assert conv(tessera.randn(2, 4, 9)).shape == (2, 6, 9) and conv.weight.shape == (6, 2, 3) and conv.weight.requires_grad
    assert nn.Conv3d(1, 2, (1, 3, 3), bias=False)(tessera.randn(1, 1, 4, 5, 5)).shape == (1, 2, 4, 3, 3)
    norm = nn.BatchNorm1d(4)
    x = tessera.randn(64, 4) * 3 + 2
    y = norm(x)
    assert abs(y.mean().item()) < 1e-4 and set(dict(norm.named_buffers())) == {"running_mean", "running_var"}
    norm.eval()
    assert not tessera.allclose(norm(x), y) and set(norm.state_dict()) == {"weight", "bias", "running_mean", "running_var"}
    assert nn.PReLU(4)(x).shape == x.shape


def test_what_modules_have():
    net = Net()
    assert [n for n, _ in net.named_modules()][:2] == ["", "features"] and len(net.modules()) == 7
    seen = []
    assert net.apply(lambda m: seen.append(type(m).__name__)) is net and seen[-1] == "Net" and len(seen) == 7
    assert net.get_parameter("head.weight").shape == (3, 64) and len(net.buffers()) == 2
    with pytest.raises(tessera.Error, match="^get_parameter: 'head.wait' is none of: "):
        net.get_parameter("head.wait")
    net.requires_grad_(False)
    assert not any(p.requires_grad for p in net.parameters())
    assert net.half().head.weight.dtype == tessera.float16 and net.float().head.weight.dtype == tessera.float32
    parts = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Linear(1, 2)})
    assert list(parts) == ["a", "b"] and "b" in parts and [n for n, _ in parts.named_parameters()] == ["b.weight", "b.bias"]
    with pytest.raises(tessera.Error, match="^load_state_dict: .*unexpected: .*more"):
        net.load_state_dict({**net.state_dict(), "more": tessera.ones(1)})
    with pytest.raises(tessera.Error, match="mismatched: head.bias"):
        net.load_state_dict({**net.state_dict(), "head.bias": tessera.ones(4)})


def test_steps_of_optimizers():
    layer = nn.Linear(2, 1)
    optimizer = tessera.optim.SGD(layer.named_parameters(), lr=0.1, momentum=0.9)

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = layer(tessera.ones(1, 2)).sum()
        loss.backward()
        return loss
    first = optimizer.step(closure)
    assert optimizer.step(closure).item() < first.item()
    optimizer.zero_grad(set_to_none=False)
    assert layer.weight.grad.tolist() == [[0, 0]]
    optimizer.zero_grad()
    assert layer.weight.grad is None
    with pytest.raises(TypeError, match="^a parameter is a tensor, not 3$"):
        tessera.optim.Adam([3])
