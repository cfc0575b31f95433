"""Weights that are computed from others: norms of weights and parametrizations, beside PyTorch in float64."""
import copy

import numpy as np
import pytest
import tessera
from tessera import nn

P = nn.utils.parametrizations
LAYERS = {"Linear": ((5, 4), (3, 5)), "Conv1d": ((4, 6, 3), (2, 4, 7)), "Conv2d": ((4, 6, 3, 2, 1), (2, 4, 6, 5)),
          "Conv3d": ((2, 3, 2), (1, 2, 4, 3, 3)), "ConvTranspose1d": ((4, 6, 3), (2, 4, 7)), "ConvTranspose2d": ((4, 6, 3, 2), (2, 4, 6, 5))}


def pairs(kind, wrap):
    """A layer here and in PyTorch, wrapped by the functions that wrap(nn) gives, with equal values."""
    torch = pytest.importorskip("torch")
    theirs = wrap(torch.nn)(getattr(torch.nn, kind)(*LAYERS[kind][0]).double())
    ours = wrap(nn)(getattr(nn, kind)(*LAYERS[kind][0]).double())
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    assert {n for n, _ in ours.named_parameters()} == {n for n, _ in theirs.named_parameters()}
    ours.load_state_dict({name: tessera.tensor(value.detach().numpy()) for name, value in theirs.state_dict().items()})
    return torch, ours, theirs


def same(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-12)


def compared(torch, ours, theirs, kind, seed=0):
    """Both called, with the gradients of input and parameters and the state afterwards."""
    given = np.random.default_rng(seed).standard_normal(LAYERS[kind][1])
    x, y = tessera.tensor(given, requires_grad=True), torch.tensor(given, requires_grad=True)
    for out in (ours(x), theirs(y)):
        (out * out).sum().backward()
    same(ours(x), theirs(y))
    same(x.grad, y.grad)
    wanted = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        same(parameter.grad, wanted[name].grad)
        parameter.grad = wanted[name].grad = None
    for name, value in ours.state_dict().items():
        same(value, theirs.state_dict()[name])


WRAPS = {"weight_norm": lambda n: n.utils.weight_norm, "of all": lambda n: lambda m: n.utils.weight_norm(m, dim=None),
         "dim 1": lambda n: lambda m: n.utils.weight_norm(m, "weight", 1), "spectral_norm": lambda n: n.utils.spectral_norm,
         "new weight_norm": lambda n: n.utils.parametrizations.weight_norm,
         "new of all": lambda n: lambda m: n.utils.parametrizations.weight_norm(m, dim=None),
         "new spectral_norm": lambda n: n.utils.parametrizations.spectral_norm,
         "steps": lambda n: lambda m: n.utils.parametrizations.spectral_norm(m, n_power_iterations=3, dim=1),
         "both": lambda n: lambda m: n.utils.parametrizations.weight_norm(n.utils.parametrizations.weight_norm(m), "bias")}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
@pytest.mark.parametrize("kind", LAYERS)
def test_norms_are_those_of_pytorch(kind, wrap):
    torch, ours, theirs = pairs(kind, wrap)
    assert isinstance(ours, getattr(nn, kind)) and "weight" not in dict(ours.named_parameters())
    for seed in range(3):
        compared(torch, ours, theirs, kind, seed)
        with tessera.no_grad(), torch.no_grad():
            for one in (*ours.parameters(), *theirs.parameters()):
                one.mul_(1.25)
    ours.eval(), theirs.eval()
    state = {name: value.clone() for name, value in ours.state_dict().items()}
    compared(torch, ours, theirs, kind)
    assert all(tessera.equal(value, state[name]) for name, value in ours.state_dict().items())
    same(ours.weight, theirs.weight)
    twin = copy.deepcopy(ours)
    x = tessera.randn(*LAYERS[kind][1]).double()
    before = ours(x)
    with tessera.no_grad():
        for one in ours.parameters():
            one.mul_(2)
    assert tessera.equal(twin(x), before) and not tessera.equal(ours(x), before) and type(twin) is type(ours)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["Linear", "Conv1d", "ConvTranspose2d"])
def test_norms_are_taken_away_again(kind):
    for put, take in (("weight_norm", "remove_weight_norm"), ("spectral_norm", "remove_spectral_norm")):
        torch, ours, theirs = pairs(kind, lambda n: getattr(n.utils, put))  # noqa: B023
        compared(torch, ours, theirs, kind)
        assert getattr(nn.utils, take)(ours) is ours
        getattr(torch.nn.utils, take)(theirs)
        assert sorted(ours.state_dict()) == ["bias", "weight"]
        compared(torch, ours, theirs, kind)
        with pytest.raises(ValueError, match="^no such norm is on 'weight' of " + kind):
            getattr(nn.utils, take)(ours)
        getattr(nn.utils, put)(ours)
        ours(tessera.randn(*LAYERS[kind][1]).double()).sum().backward()
        assert all(p.grad is not None for p in ours.parameters())
    for put in (P.weight_norm, P.spectral_norm):
        layer = put(getattr(nn, kind)(*LAYERS[kind][0]).double())
        x = tessera.randn(*LAYERS[kind][1]).double()
        layer.eval()
        before = layer(x)
        assert nn.utils.parametrize.is_parametrized(layer, "weight") and not nn.utils.parametrize.is_parametrized(layer, "bias")
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
        assert type(layer) is getattr(nn, kind) and not layer.children() and sorted(layer.state_dict()) == ["bias", "weight"]
        assert not nn.utils.parametrize.is_parametrized(layer)
        same(layer(x), before)
        layer(x).sum().backward()
        assert all(p.grad is not None for p in layer.parameters())


def test_parametrizations_of_ones_own():
    torch = pytest.importorskip("torch")

    def wrapped(n):
        class Symmetric(n.Module):
            def forward(self, x):
                return x.triu() + x.triu(1).transpose(-1, -2)

        class Exp(n.Module):
            def forward(self, x):
                return x.exp()

            def right_inverse(self, x):
                return x.abs().log()
        register = n.utils.parametrize.register_parametrization
        return register(n.Linear(4, 4).double(), "weight", Symmetric()), register(n.Linear(4, 4).double(), "weight", Exp()), Exp()
    given = np.random.default_rng(1).standard_normal((4, 4))
    layers = wrapped(nn), wrapped(torch.nn)
    for ours, theirs in zip(layers[0][:2], layers[1][:2]):
        assert sorted(ours.state_dict()) == sorted(theirs.state_dict()) == ["bias", "parametrizations.weight.original"]
        ours.load_state_dict({name: tessera.tensor(value.detach().numpy()) for name, value in theirs.state_dict().items()})
        same(ours(tessera.tensor(given)), theirs(torch.tensor(given)))
    ours.weight, theirs.weight = tessera.tensor(given), torch.tensor(given)
    same(ours.parametrizations.weight.original, theirs.parametrizations.weight.original)
    same(ours.weight, theirs.weight)
    for n, layer in ((nn, layers[0]), (torch.nn, layers[1])):
        n.utils.parametrize.register_parametrization(layer[0], "weight", layer[2])
    same(layers[0][0](tessera.tensor(given)), layers[1][0](torch.tensor(given)))
    with pytest.raises(tessera.Error, match="^Symmetric has no right_inverse"):
        layers[0][0].weight = tessera.tensor(given)
    with nn.utils.parametrize.cached():
        assert ours.weight is ours.weight
    assert ours.weight is not ours.weight


def test_computed_weights_go_where_others_do(tmp_path):
    for put in (nn.utils.weight_norm, P.weight_norm, P.spectral_norm):
        net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), put(nn.Linear(12, 4)))
        put(net[0])
        x = tessera.randn(2, 2, 4, 4)
        before = [p.clone() for p in net.parameters()]
        optimizer = tessera.optim.SGD(net.parameters(), lr=0.1)
        net(x).square().sum().backward()
        optimizer.step()
        assert all(not tessera.equal(a, b) for a, b in zip(before, net.parameters()))
        net.eval()
        tessera.onnx.save(net, x, tmp_path / "net.onnx")
        got = next(iter(tessera.load_onnx(tmp_path / "net.onnx").run(x).values()))
        np.testing.assert_allclose(got.numpy(), net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
        net.pack()
        with tessera.no_grad():
            wanted = net(x)
            for _ in range(2):
                assert tessera.equal(net(x), wanted)
            for p in net.parameters():
                p.mul_(3)
            assert not tessera.equal(net(x), wanted)
        net.double()
        assert net(x.double()).dtype == tessera.float64


def test_bad_norms():
    layer = nn.utils.weight_norm(nn.Linear(2, 3))
    for wrong, said in ((lambda: nn.utils.weight_norm(layer), "^weight_norm: 'weight' of Linear is computed already$"),
                        (lambda: nn.utils.weight_norm(nn.Linear(2, 3), "w"), "^weight_norm: Linear has no parameter 'w'$"),
                        (lambda: nn.utils.weight_norm(nn.LSTM(2, 3), "weight_hh_l0"),
                         "^weight_norm: LSTM cannot do without its own 'weight_hh_l0'$"),
                        (lambda: nn.utils.weight_norm(nn.Linear(2, 3), dim=2), r"^weight_norm: dim 2 is none of 'weight', \[3, 2\]$"),
                        (lambda: nn.utils.spectral_norm(nn.Linear(2, 3), n_power_iterations=0), "^spectral_norm: 0 steps"),
                        (lambda: P.spectral_norm(nn.ReLU()), "^spectral_norm: ReLU has no parameter 'weight'$"),
                        (lambda: P.weight_norm(nn.Conv1d(2, 3, 1), "w"), "^register_parametrization: Conv1d has no parameter 'w'$"),
                        (lambda: P.weight_norm(P.weight_norm(nn.Conv1d(2, 3, 1))), "cannot have several originals$"),
                        (lambda: nn.utils.parametrize.register_parametrization(nn.Linear(2, 3), "weight", nn.Flatten(0)),
                         r"^register_parametrization: 'weight' is float32\[3, 2\] and would be float32\[6\]; unsafe=True")):
        with pytest.raises(tessera.Error, match=said):
            wrong()
    with pytest.raises(ValueError, match="^remove_parametrizations: Linear has no parametrized 'bias'$"):
        nn.utils.parametrize.remove_parametrizations(layer, "bias")


def test_parts_are_deleted():
    net = nn.Sequential(nn.Linear(2, 3))
    net.extra, net.scale = nn.ReLU(), nn.Parameter(tessera.ones(2))
    net.register_buffer("seen", tessera.zeros(1))
    del net.extra, net.scale, net.seen
    assert sorted(net.state_dict()) == ["0.bias", "0.weight"] and len(net) == 1 and not hasattr(net, "extra") and not hasattr(net, "scale")
    with pytest.raises(AttributeError, match="'Sequential' object has no attribute 'extra'"):
        del net.extra
    with pytest.raises(tessera.Error, match="^del: Linear cannot do without its own 'bias'$"):
        del net[0].bias
    row = nn.ModuleList([nn.Linear(1, n) for n in (1, 2, 3, 4)])
    parts = list(row)
    del row[1]
    assert row.pop(-1) is parts[3] and [a is b for a, b in zip(row, (parts[0], parts[2]))] == [True, True]
    assert sorted(row.state_dict()) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh(), "c": nn.Tanh()})
    assert isinstance(named.pop("b"), nn.Tanh) and list(named) == ["a", "c"]
    named.clear()
    with pytest.raises(KeyError):
        del named["a"]
    assert len(named) == 0
