"""Modules, optimizers, mixed precision."""
import copy

import numpy as np
import pytest
import tessera
from tessera import nn, optim


class Mlp(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.hidden = nn.Linear(2, width)
        self.out = nn.Linear(width, 1)
        self.scale = nn.Parameter(tessera.ones(1))
        self.register_buffer("seen", tessera.zeros(1))

    def forward(self, x, factor=1.0):
        return self.out(self.hidden(x).tanh()) * self.scale * factor


def test_modules_of_python_have_parts():
    model = Mlp()
    names = [n for n, _ in model.named_parameters()]
    assert names == ["scale", "hidden.weight", "hidden.bias", "out.weight", "out.bias"] or set(names) == {
        "scale", "hidden.weight", "hidden.bias", "out.weight", "out.bias"}
    assert len(model.parameters()) == 5 and model.parameter_count() == 2 * 16 + 16 + 16 + 1 + 1
    assert set(model.state_dict()) == set(names) | {"seen"}
    assert [n for n, _ in model.named_children()] == ["hidden", "out"] and isinstance(model.hidden, nn.Linear)
    assert model.training and not model.eval().training and not model.hidden.training and model.train().hidden.training
    x = tessera.ones(3, 2)
    np.testing.assert_allclose(model(x, factor=2.0).detach().numpy(), 2 * model(x).detach().numpy(), rtol=1e-6)
    model.to(tessera.float64)
    assert model.scale.dtype == tessera.float64 and model(x.double()).dtype == tessera.float64


def test_state_goes_from_one_to_another():
    a, b = Mlp(), Mlp()
    x = tessera.randn(4, 2)
    assert not tessera.allclose(a(x), b(x))
    b.load_state_dict(a.state_dict())
    assert tessera.equal(a(x), b(x)) and not a.hidden.weight.is_same(b.hidden.weight)
    with pytest.raises(tessera.Error, match="scale"):
        b.load_state_dict({k: v for k, v in a.state_dict().items() if k != "scale"})
    b.load_state_dict({}, strict=False)


def test_a_module_that_calls_nothing_says_so():
    class Empty(nn.Module):
        pass
    with pytest.raises(tessera.Error, match="forward"):
        Empty()(tessera.ones(1))


def test_a_module_that_was_not_made_says_so():
    class Hollow(nn.Module):
        def __init__(self):
            pass

        def forward(self, x):
            return x
    with pytest.raises((TypeError, RuntimeError), match="__init__"):
        Hollow()(tessera.ones(1))

    class Flat(tessera.Tensor):
        def __init__(self):
            pass
    with pytest.raises(TypeError):
        tessera.ones(1) + Flat()


def test_overrides_are_called_by_the_library():
    class Doubled(nn.Linear):
        calls = 0

        def forward(self, x):
            Doubled.calls += 1
            return super().forward(x) * 2
    layer = Doubled(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), lambda x: x + 1)
    x = tessera.randn(3, 2)
    wanted = np.maximum(2 * (x @ layer.weight.T + layer.bias).detach().numpy(), 0) + 1
    np.testing.assert_allclose(model(x).detach().numpy(), wanted, rtol=1e-5)
    assert Doubled.calls == 1 and len(model) == 3 and isinstance(model[0], Doubled) and isinstance(model[1], nn.ReLU)

    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError("gone")
    with pytest.raises(KeyError):
        nn.Sequential(Fails())(x)


def test_children_outlive_their_names():
    import gc
    model = nn.Sequential(Mlp())
    gc.collect()
    assert model(tessera.ones(1, 2)).shape == (1, 1) and isinstance(model[0], Mlp)
    child = model[0]
    del model
    gc.collect()
    assert child(tessera.ones(1, 2)).shape == (1, 1)


def test_replacing_a_part():
    model = Mlp()
    model.out = nn.Linear(16, 3)
    assert model(tessera.ones(2, 2)).shape == (2, 3) and len(model.parameters()) == 5
    assert len(nn.ModuleList([nn.ReLU(), nn.Tanh()])) == 2


@pytest.mark.parametrize("make", [
    lambda p: optim.SGD(p, lr=0.05, momentum=0.9), lambda p: optim.Adam(p, lr=0.02), lambda p: optim.AdamW(p, lr=0.02),
    lambda p: optim.AdamW([{"params": p[:2], "lr": 0.02}, {"params": p[2:], "lr": 0.03, "weight_decay": 0.0}])])
def test_training_lowers_the_loss(make):
    tessera.manual_seed(3)
    model = Mlp()
    optimizer = make(model.parameters())
    x = tessera.randn(64, 2)
    target = (x[:, :1] * x[:, 1:]).detach()
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    state = optimizer.state_dict()
    assert any("step" in k for k in state)
    optimizer.load_state_dict(state)


def test_schedules_and_bad_groups():
    layer = nn.Linear(2, 2)
    optimizer = optim.SGD(layer.parameters(), lr=1.0)
    schedule = optim.warmup_cosine(2, 10)
    optimizer.scale_lr(schedule(10))
    assert optimizer.lr() == 0
    with pytest.raises(tessera.Error):
        optim.SGD([{"params": layer.parameters()}, {"params": layer.parameters()}])


def test_autocast_and_scaler():
    model = nn.Linear(4, 4)
    x = tessera.randn(2, 4)
    with tessera.amp.autocast(dtype=tessera.bfloat16):
        assert model(x).dtype == tessera.bfloat16
        with tessera.amp.autocast(enabled=False):
            assert model(x).dtype == tessera.float32
    assert model(x).dtype == tessera.float32
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), tessera.amp.GradScaler()
    with tessera.amp.autocast("cpu", tessera.float16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() > 0
    with pytest.raises(tessera.Error, match="."):
        with tessera.amp.autocast(dtype=tessera.int64):
            pass


LAYERS = [(nn.Conv2d(2, 4, 3, padding=1), (1, 2, 5, 5), (1, 4, 5, 5)), (nn.BatchNorm2d(2), (2, 2, 3, 3), (2, 2, 3, 3)),
          (nn.ConvTranspose2d(2, 4, 2, stride=2), (1, 2, 3, 3), (1, 4, 6, 6)), (nn.LayerNorm(5), (2, 5), (2, 5)),
          (nn.GroupNorm(2, 4), (1, 4, 3), (1, 4, 3)), (nn.RMSNorm(5), (2, 5), (2, 5)), (nn.Flatten(), (2, 3, 4), (2, 12)),
          (nn.SelfAttention(8, 2), (1, 3, 8), (1, 3, 8)), (nn.TransformerBlock(8, 2), (1, 3, 8), (1, 3, 8)),
          (nn.Dropout(0.5), (3,), (3,)), (nn.GELU(), (3,), (3,))]


@pytest.mark.parametrize("layer,given,wanted", LAYERS, ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "")
def test_layers(layer, given, wanted):
    x = tessera.randn(*given, requires_grad=True)
    y = layer(x)
    assert y.shape == wanted
    y.sum().backward()
    assert x.grad.shape == given


def test_attention_adds_slopes():
    functional = nn.functional
    x = tessera.randn(2, 5, 8)
    distance = tessera.arange(5.0).reshape(1, 5) - tessera.arange(5.0).reshape(5, 1)
    slopes = tessera.tensor([2.0**-4, 2.0**-8]).reshape(2, 1, 1)
    layer = nn.SelfAttention(8, 2, alibi=8)
    part = lambda module, name: module.get_submodule(name)
    qkv = part(layer, "qkv")(x).reshape(2, 5, 3, 2, 4)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    heads = functional.scaled_dot_product_attention(q, k, v, attn_mask=slopes * distance)
    wanted = part(layer, "out")(heads.transpose(1, 2).reshape(2, 5, 8))
    assert (layer(x) - wanted).abs().max().item() < 1e-5
    same = functional.scaled_dot_product_attention(q, k, v, alibi=8)
    assert (same - heads).abs().max().item() < 1e-5
    block, plain = nn.TransformerBlock(8, 2, alibi=8), nn.TransformerBlock(8, 2)
    plain.load_state_dict(block.state_dict())
    assert (block(x) - plain(x)).abs().max().item() > 1e-4
    wanted = x + part(block, "attention")(part(block, "norm1")(x))
    wanted = wanted + part(block, "down")(functional.gelu(part(block, "up")(part(block, "norm2")(wanted))))
    assert (block(x) - wanted).abs().max().item() < 1e-5
    for refused in (nn.SelfAttention, nn.TransformerBlock):
        with pytest.raises(tessera.Error, match="alibi = 65 is not in"):
            refused(8, 2, alibi=65)


def test_attributes_follow_children_that_are_replaced():
    from tessera import distributed as dist

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.other = nn.BatchNorm2d(3), nn.Linear(2, 2)

        def forward(self, x):
            return self.norm(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(x)

    net = Net()
    block, before = net.block, net.block.norm
    assert dist.sync_batch_norms(net, dist.World()) == 1
    assert net.block is block and net.block.norm is not before
    assert net.block.norm is dict(net.named_modules())["block.norm"]
    net.replace("block.norm", nn.Identity(), any_shapes=True)
    x = tessera.randn(2, 3, 4, 4)
    assert np.array_equal(net(x).numpy(), x.numpy())


def test_lengths_of_ctc_may_be_lists():
    x = nn.functional.log_softmax(tessera.randn(7, 2, 5), -1)
    targets = tessera.tensor([[1, 2, 3], [4, 4, 0]])
    of_tensors = nn.functional.ctc_loss(x, targets, tessera.tensor([7, 6]), tessera.tensor([3, 2]))
    assert nn.functional.ctc_loss(x, targets, [7, 6], (3, 2)).item() == of_tensors.item()


def test_hooks_see_and_change_calls():
    inner = nn.Linear(2, 3)
    model = nn.Sequential(inner, nn.ReLU())  # which the library runs as one pass
    x = tessera.tensor([[1.0, -2.0]])
    plain = model(x).detach().numpy()
    seen = []
    before = inner.register_forward_pre_hook(lambda module, args: seen.append((type(module), len(args))))
    after = inner.register_forward_hook(lambda module, args, output: seen.append(output.detach().numpy()))
    np.testing.assert_allclose(model(x).detach().numpy(), plain, rtol=1e-6)
    assert seen[0] == (nn.Linear, 1) and len(seen) == 2
    np.testing.assert_allclose(np.maximum(seen[1], 0), plain, rtol=1e-6)
    with inner.register_forward_hook(lambda module, args, output: output * 2):
        np.testing.assert_allclose(model(x).detach().numpy(), 2 * plain, rtol=1e-6)
    with inner.register_forward_pre_hook(lambda module, args: args[0] * 0):
        np.testing.assert_allclose(model(x).detach().numpy(), np.maximum(inner.bias.detach().numpy(), 0)[None], rtol=1e-6)
    before.remove(), after.remove()
    before.remove()
    seen.clear()
    np.testing.assert_allclose(model(x).detach().numpy(), plain, rtol=1e-6)
    assert not seen


def test_hooks_of_python_modules_have_keywords():
    model = Mlp()
    x = tessera.ones(3, 2)
    plain = model(x).detach().numpy()

    def triple(module, args, kwargs):
        return args, {**kwargs, "factor": 3.0}

    with model.register_forward_pre_hook(triple, with_kwargs=True):
        np.testing.assert_allclose(model(x).detach().numpy(), 3 * plain, rtol=1e-6)
        with model.register_forward_hook(lambda module, args, kwargs, out: out * kwargs["factor"], with_kwargs=True):
            np.testing.assert_allclose(model(x, factor=1.0).detach().numpy(), 9 * plain, rtol=1e-6)
    with model.register_forward_hook(lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
        model(x)
    np.testing.assert_allclose(model(x).detach().numpy(), plain, rtol=1e-6)


def test_convolutions_with_rectangular_kernels():
    x = tessera.randn(2, 3, 7, 8)
    layer = nn.Conv2d(3, 4, (3, 2), padding=(1, 0))
    assert list(layer.weight.shape) == [4, 3, 3, 2] and list(layer(x).shape) == [2, 4, 7, 7]
    expected = nn.functional.conv2d(x, layer.weight, layer.bias, padding=(1, 0))
    np.testing.assert_allclose(layer(x).detach().numpy(), expected.detach().numpy(), rtol=1e-6)
    assert list(nn.ConvTranspose2d(3, 4, (2, 5))(x).shape) == [2, 4, 8, 12]
    assert list(nn.Conv2d(3, 4, 3)(x).shape) == [2, 4, 5, 6]
    with pytest.raises(tessera.Error, match="kernel 0x2"):
        nn.Conv2d(3, 4, (0, 2))


def test_options_have_the_names_of_pytorch():
    x = tessera.tensor([[-1.0, 2.0]])
    assert nn.ReLU(inplace=True)(x) is not None and x.tolist() == [[0.0, 2.0]]
    y = tessera.tensor([[-1.0, 2.0]], requires_grad=True)
    z = y * 2
    nn.functional.leaky_relu(z, 0.5, inplace=True)
    z.sum().backward()
    assert z.tolist() == [[-1.0, 4.0]] and y.grad.tolist() == [[1.0, 2.0]]
    assert nn.functional.relu(tessera.tensor([-1.0, 1.0]), True).tolist() == [0.0, 1.0]
    rows = nn.Embedding(4, 3, padding_idx=-1)
    rows(tessera.tensor([0, 3])).sum().backward()
    assert rows.weight[3].tolist() == [0, 0, 0] and rows.weight.grad.sum(1).tolist() == [3, 0, 0, 0]
    image = tessera.randn(1, 2, 5, 6)
    assert tuple(nn.Conv2d(2, 3, (3, 2), padding="same", dilation=(1, 2))(image).shape) == (1, 3, 5, 6)
    conv = nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")
    around = nn.functional.pad(image, (1, 1, 1, 1), mode="reflect")
    np.testing.assert_allclose(conv(image).detach().numpy(),
                               nn.functional.conv2d(around, conv.weight, conv.bias).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert tuple(nn.Flatten(0, 1)(image).shape) == (2, 5, 6)
    assert not dict(nn.LayerNorm(6, elementwise_affine=False).named_parameters())
    norm = nn.LayerNorm((5, 6))
    assert tuple(norm.weight.shape) == (5, 6)
    plain = nn.LayerNorm((5, 6), elementwise_affine=False)
    np.testing.assert_allclose(norm(image).detach().numpy(), plain(image).numpy(), atol=1e-6)
    np.testing.assert_allclose(plain(image).numpy().mean((2, 3)), 0, atol=1e-6)
    assert nn.Linear(3, 4).in_features == 3 and nn.Conv2d(4, 6, 3, groups=2).in_channels == 4
    for wrong in (lambda: nn.Embedding(4, 3, padding_idx=4), lambda: nn.Conv2d(1, 1, 3, stride=2, padding="same"),
                  lambda: nn.Conv2d(1, 1, 3, padding_mode="mirror"), lambda: nn.GELU("erf")):
        with pytest.raises(tessera.Error):
            wrong()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(tessera.ones(4))
        self.frozen = nn.Parameter(tessera.ones(4), requires_grad=False)
        self.register_buffer("table", tessera.arange(4).float(), persistent=False)
        self.register_buffer("count", tessera.zeros(1))
        self.register_buffer("nothing", None)
        self.parts = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), nn.LSTM(4, 4), nn.BatchNorm2d(2)])

    def forward(self, x):
        return self.head(self.parts[1](self.parts[0](self.embed(x)) * self.scale + self.table)[0])


def test_parameters_are_tied_frozen_and_replaced():
    model = Tied()
    names = dict(model.named_parameters())
    assert "embed.weight" in names and "head.weight" not in names and not names["frozen"].requires_grad
    assert "count" in model.state_dict() and "table" not in model.state_dict() and model.nothing is None
    assert model.table.tolist() == [0, 1, 2, 3] and "table" in dict(model.named_buffers())
    model(tessera.tensor([[1, 2]])).sum().backward()
    assert model.head.weight.grad is not None and model.head.weight.grad.tolist() == model.embed.weight.grad.tolist()
    model.scale = nn.Parameter(tessera.full((4,), 2.0))
    model.count = model.count + 3
    assert dict(model.named_parameters())["scale"].tolist() == [2] * 4 and model.state_dict()["count"].tolist() == [3]
    model.load_state_dict(model.state_dict())
    model.double()
    assert model.table.dtype == tessera.float64
    with pytest.raises(tessera.Error):
        nn.Linear(2, 2, bias=False).bias = nn.Parameter(tessera.ones(2))


def test_copies_of_modules_are_their_own():
    model = Tied()
    x = tessera.tensor([[1, 2], [3, 4]])
    other = copy.deepcopy(model.eval())
    assert not other.training and type(other) is Tied
    assert np.array_equal(model(x).detach().numpy(), other(x).detach().numpy())
    assert [n for n, _ in other.named_parameters()] == [n for n, _ in model.named_parameters()]
    before = model(x).detach().numpy()
    with tessera.no_grad():
        for p in other.parameters():
            p.add_(1)
        other.table.add_(1)
    assert np.array_equal(model(x).detach().numpy(), before) and not np.array_equal(other(x).detach().numpy(), before)
    assert np.array_equal(other.head.weight.detach().numpy(), other.embed.weight.detach().numpy())  # tied there, too
    assert other.parts[0] is dict(other.named_modules())["parts.0"] and not other.frozen.requires_grad
    other(x).sum().backward()
    assert other.scale.grad is not None and model.scale.grad is None
    assert other.parts[1].weight_ih_l0.grad is not None and model.parts[1].weight_ih_l0.grad is None
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(nn.TransformerBlock(4, 2))


IN_PLACE = ["relu", "relu6", "silu", "elu", "celu", "selu", "mish", "hardswish", "hardsigmoid", "leaky_relu", "hardtanh"]


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_in_place_are_the_same(name):
    function = getattr(nn.functional, name)
    layers = [name for name in ("ReLU", "ReLU6", "SiLU") if name.lower() == function.__name__]
    calls = [lambda x: function(x, inplace=True), *(getattr(nn, layer)(inplace=True) for layer in layers)]
    for call in calls:
        x = tessera.linspace(-4, 4, 21).requires_grad_()
        function(x * 1.5).square().sum().backward()
        wanted, x.grad = x.grad.numpy(), None
        y = x * 1.5
        z = call(y)
        z.square().sum().backward()
        assert np.array_equal(y.detach().numpy(), function(x * 1.5).detach().numpy())
        np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop", "Adadelta"])
def test_parameters_of_one_group_are_moved_as_if_alone(name):
    def moved(*chosen):
        parameters = [nn.Parameter(tessera.linspace(-1, 1, 5, dtype=d)) for d in (tessera.float32, tessera.float64, tessera.float32)]
        optimizer = getattr(optim, name)([parameters[i] for i in chosen], lr=0.03)
        for step in range(7):
            for i in chosen:
                if (i, step) != (2, 3):  # which has no gradient then
                    (parameters[i].square() * (i + 1 + step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameters[i].tolist() for i in chosen]
    assert moved(0, 1, 2)[:2] == [*moved(0), *moved(1)]
    assert moved(0, 1, 2)[2] == moved(0, 2)[1]


def test_modules_take_the_arguments_of_pytorch():
    def made(n):
        net = n.Sequential(n.Linear(2, 3), n.BatchNorm1d(3))
        net.register_parameter("scale", n.Parameter(net[0].bias.detach().clone()))
        return net
    torch = pytest.importorskip("torch")
    ours, theirs = made(nn), made(torch.nn)
    for call in (lambda m: m.named_parameters(prefix="a"), lambda m: m.named_parameters(recurse=False), lambda m: m.named_modules(prefix="net"),
                 lambda m: m.named_buffers(prefix="b", recurse=True), lambda m: m.named_buffers(recurse=False)):
        assert {n for n, _ in call(ours)} == {n for n, _ in call(theirs) if not n.endswith("num_batches_tracked")}
    assert [p.shape for p in ours.parameters(recurse=False)] == [(3,)] and ours.buffers(recurse=False) == []
    first = ours.parameters()
    assert next(first).shape == (3,) and next(first).shape == (3, 2) and next(ours.children()) is ours[0] and next(ours.modules()) is ours
    with pytest.raises(StopIteration):
        next(nn.ReLU().parameters())
    assert set(ours.state_dict(prefix="x.")) == {"x." + n for n in ours.state_dict()}
    assert ours.state_dict(keep_vars=True)["0.weight"].requires_grad and not ours.state_dict()["0.weight"].requires_grad
    ours(tessera.ones(4, 2)).sum().backward()
    ours.zero_grad(set_to_none=False)
    assert ours[0].weight.grad.tolist() == [[0, 0]] * 3
    ours.zero_grad()
    assert ours[0].weight.grad is None
    assert ours.load_state_dict(ours.state_dict()) == ([], [])
    keys = ours.load_state_dict({"0.bias": tessera.ones(3), "more": tessera.ones(1)}, strict=False)
    assert keys.unexpected_keys == ["more"] and "0.weight" in keys.missing_keys and "0.bias" not in keys.missing_keys
    assert ours[0].bias.tolist() == [1, 1, 1] and tessera.equal(ours.get_buffer("1.running_var"), ours[1].running_var)
    with pytest.raises(tessera.Error, match="^get_buffer: 'x' is none of: 1.running_mean, 1.running_var$"):
        ours.get_buffer("x")
    ours.set_submodule("0", nn.Linear(2, 3, bias=False))
    assert ours[0].bias is None and ours.to(tessera.ones(1).double())[0].weight.dtype == tessera.float64
    assert ours.type(tessera.float32)[0].weight.dtype == tessera.float32
