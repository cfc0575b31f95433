"""Modules, optimizers, mixed precision."""
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
          (nn.MultiheadAttention(8, 2), (1, 3, 8), (1, 3, 8)), (nn.TransformerBlock(8, 2), (1, 3, 8), (1, 3, 8)),
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
    layer = nn.MultiheadAttention(8, 2, alibi=8)
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
    for refused in (nn.MultiheadAttention, nn.TransformerBlock):
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
