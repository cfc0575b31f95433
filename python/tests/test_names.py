"""Names that PyTorch has, too, beside it in float64."""
import io
import pickle

import numpy as np
import pytest
import tessera
from tessera import nn

F = nn.functional


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def same(ours, theirs, atol=1e-12):
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=atol, rtol=1e-10)


UNARY = "acosh_ asinh_ atanh_ cosh_ sinh_ deg2rad_ rad2deg_ digamma_ erfc_ erfinv_ exp2_ frac_ lgamma_ log10_ log2_ sinc_ absolute_ arctan_ " \
        "arcsinh_ negative_ fix_ sgn_"
BINARY = "atan2_ copysign_ float_power_ floor_divide_ heaviside_ hypot_ logical_and_ logical_or_ logical_xor_ nextafter_ xlogy_ eq_ ne_ lt_ le_ " \
         "gt_ ge_ multiply_ subtract_ divide_ true_divide_ greater_ greater_equal_ less_ less_equal_ not_equal_ arctan2_"


@pytest.mark.parametrize("name", (UNARY + " " + BINARY).split())
def test_operators_in_place(torch, name):
    x, y = abs(numbers(3, 5)) * 0.9 + (1.0 if name == "acosh_" else 0.0), abs(numbers(3, 5, seed=1))
    x = np.clip(x, 0, 0.99) if name in ("atanh_", "erfinv_") else x
    ours, theirs = tessera.tensor(x), torch.tensor(x)
    more = ([tessera.tensor(y)], [torch.tensor(y)]) if name in BINARY.split() else ([], [])
    assert getattr(ours, name)(*more[0]).is_same(ours)
    getattr(theirs, name)(*more[1])
    same(ours, theirs)


def test_products_and_bits_in_place(torch):
    for name, shapes in (("addcmul_", [(3, 4)] * 3), ("addcdiv_", [(3, 4)] * 3), ("addmm_", [(3, 4), (3, 2), (2, 4)]), ("addr_", [(3, 4), (3,), (4,)]),
                         ("addmv_", [(3,), (3, 4), (4,)]), ("baddbmm_", [(2, 3, 4), (2, 3, 5), (2, 5, 4)]), ("addbmm_", [(3, 4), (2, 3, 5), (2, 5, 4)])):
        given = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
        ours, theirs = [tessera.tensor(a) for a in given], [torch.tensor(a) for a in given]
        getattr(ours[0], name)(*ours[1:]), getattr(theirs[0], name)(*theirs[1:])
        same(ours[0], theirs[0])
    a, b = np.array([5, 9, 12]), np.array([1, 2, 3])
    for name in ("bitwise_and_", "bitwise_or_", "bitwise_xor_", "bitwise_left_shift_", "bitwise_right_shift_"):
        assert getattr(tessera.tensor(a), name)(tessera.tensor(b)).tolist() == getattr(torch.tensor(a), name)(torch.tensor(b)).tolist()
    x = numbers(4, 4)
    for name, more in (("det", ()), ("inverse", ()), ("slogdet", ()), ("matrix_power", (3,)), ("matrix_exp", ()), ("fill_diagonal_", (2.5,)),
                       ("cumprod_", (1,)), ("positive", ())):
        ours, theirs = getattr(tessera.tensor(x), name)(*more), getattr(torch.tensor(x), name)(*more)
        for one, other in zip(ours, theirs) if isinstance(ours, tuple) else ((ours, theirs),):
            same(one, other, 1e-9)


def test_numbers_are_drawn_in_place():
    tessera.manual_seed(1)
    x = tessera.zeros(200, 100).double()
    assert abs(x.bernoulli_(0.3).mean().item() - 0.3) < 0.02 and set(x.unique().tolist()) == {0, 1}
    assert abs(x.exponential_(4.0).mean().item() - 0.25) < 0.02 and (x >= 0).all()
    assert abs(x.log_normal_(0.5, 0.25).log().std().item() - 0.25) < 0.02
    whole = tessera.zeros(1000, dtype="int64").random_(3, 7)
    assert set(whole.tolist()) == {3, 4, 5, 6} and set(whole.random_(2).tolist()) == {0, 1}
    with pytest.raises(tessera.Error, match="^random_: wants a number"):
        whole.random_()
    with pytest.raises(tessera.Error, match="^fill_diagonal_: takes a matrix"):
        whole.fill_diagonal_(1)


def test_results_have_names(torch):
    x = numbers(3, 5)
    ours, theirs = tessera.tensor(x), torch.tensor(x)
    for call in (lambda t, n: t.max(1), lambda t, n: t.min(dim=0, keepdim=True), lambda t, n: t.median(1), lambda t, n: n.sort(t, 1, True),
                 lambda t, n: t.topk(2), lambda t, n: t.kthvalue(2), lambda t, n: t.cummax(1), lambda t, n: t.cummin(0), lambda t, n: t.mode(1),
                 lambda t, n: t.nanmedian(1), lambda t, n: n.max(t, 1)):
        got, wanted = call(ours, tessera), call(theirs, torch)
        same(got.values, wanted.values)
        assert got.indices.tolist() == wanted.indices.tolist()
        values, indices = got
        assert values is got[0] and indices is got[1]
    same(ours.aminmax(dim=1).max, theirs.aminmax(dim=1).max)
    same(tessera.aminmax(ours).min, torch.aminmax(theirs).min)
    assert isinstance(ours.max(), tessera.Tensor)
    x = tessera.tensor(x, requires_grad=True)
    x.max(1).values.sum().backward()
    assert x.grad.sum().item() == 3


def test_what_tensors_are():
    x = tessera.ones(2, 3)
    assert x.ndimension() == 2 and x.get_device() == -1 and x.is_cpu and x.pin_memory() is x and x.type() == "tessera.float32"
    assert x.type(tessera.float64).dtype == tessera.float64 and [p.shape for p in x.split_with_sizes([1, 2], 1)] == [(2, 1), (2, 2)]
    assert not x.is_complex() and x.is_signed() and not tessera.ones(2, dtype="uint8").is_signed() and tessera.is_nonzero(tessera.ones(1))
    with pytest.raises(tessera.Error, match=r"^is_nonzero: \[2, 3\] has not one element$"):
        x.is_nonzero()
    assert tessera.pi == np.pi and tessera.inf == np.inf and tessera.nan != tessera.nan and x[:, tessera.newaxis].shape == (2, 1, 3)
    assert nn.parameter.Parameter is nn.Parameter


def test_objects_are_saved(tmp_path):
    net = nn.Linear(3, 2)
    whole = {"model": net.state_dict(), "epoch": 3, "more": [tessera.arange(3), (1.5, "text", None)], "weight": net.weight}
    for where in (tmp_path / "a.pt", str(tmp_path / "b.pt"), io.BytesIO()):
        tessera.save(whole, where)
        if isinstance(where, io.BytesIO):
            where.seek(0)
        back = tessera.load(where, map_location="cpu")
        assert back["epoch"] == 3 and back["more"][0].tolist() == [0, 1, 2] and back["more"][1] == (1.5, "text", None)
        assert tessera.equal(back["model"]["weight"], net.weight)
    bad = tmp_path / "bad.pt"
    bad.write_bytes(pickle.dumps(pytest.raises))
    with pytest.raises(tessera.FileError, match="^load: the file asks for _pytest"):
        tessera.load(bad)
    assert tessera.load(bad, weights_only=False) is pytest.raises
    for content, said in ((b"PK\x03\x04", "a file of PyTorch's"), (b"", "is damaged"), (b"\x80", "is damaged")):
        bad.write_bytes(content)
        with pytest.raises(tessera.FileError, match=said):
            tessera.load(bad)


def test_damaged_files_are_one_error(tmp_path, rng):
    whole = io.BytesIO()
    tessera.save({"weight": tessera.arange(3), "more": [1.5, "text", None]}, whole)
    content, refused = whole.getvalue(), 0
    for at in range(len(content)):
        cut, changed = content[:at], bytearray(content)
        changed[at] ^= int(rng.integers(1, 256))
        for damaged in (cut, bytes(changed)):
            try:
                tessera.load(io.BytesIO(damaged))
            except tessera.FileError:
                refused += 1
    assert refused > len(content)


LAYERS = [("LPPool1d", (2, 3), (2, 3, 9)), ("LPPool2d", (2, (3, 2), 2), (2, 3, 7, 6)), ("LPPool3d", (3, 2), (1, 2, 4, 4, 5)), ("Softmax2d", (), (2, 3, 4, 5)),
          ("UpsamplingNearest2d", (None, 2), (1, 2, 3, 4)), ("UpsamplingBilinear2d", ((5, 7),), (1, 2, 3, 4))]


@pytest.mark.parametrize("name,options,shape", LAYERS)
def test_layers(torch, name, options, shape):
    given = abs(numbers(*shape)) + 0.1
    x, y = tessera.tensor(given, requires_grad=True), torch.tensor(given, requires_grad=True)
    ours, theirs = getattr(nn, name)(*options)(x), getattr(torch.nn, name)(*options)(y)
    same(ours, theirs)
    (ours * ours).sum().backward(), (theirs * theirs).sum().backward()
    same(x.grad, y.grad)
    if name == "Softmax2d":
        with pytest.raises(tessera.Error, match=r"^Softmax2d: takes 3 or 4 dims, not \[2\]$"):
            nn.Softmax2d()(tessera.ones(2))


@pytest.mark.parametrize("name,more", [("relu_", ()), ("elu_", (0.5,)), ("selu_", ()), ("celu_", (2.0,)), ("leaky_relu_", (0.2,)), ("hardtanh_", (-0.5, 0.5)),
                                       ("threshold_", (0.1, -3.0))])
def test_activations_in_place(torch, name, more):
    x = numbers(3, 4)
    ours, theirs = tessera.tensor(x), torch.tensor(x)
    assert getattr(F, name)(ours, *more).is_same(ours)
    getattr(torch.nn.functional, name)(theirs, *more)
    same(ours, theirs)


def test_layers_have_their_options(torch):
    pool = nn.MaxPool2d(3, padding=1)
    assert pool.kernel_size == 3 and pool.padding == 1 and pool.stride is None and nn.Softmax(dim=-1).dim == -1 and nn.LeakyReLU(0.1).negative_slope == 0.1
    pool.padding = 0
    assert pool(tessera.ones(1, 1, 3, 3)).shape == (1, 1, 1, 1) and not hasattr(pool, "nothing")
    weight, x, y = abs(numbers(3)), numbers(4, 3), np.array([0, 2, 1, 1])
    ours, theirs = nn.CrossEntropyLoss(tessera.tensor(weight).float()), torch.nn.CrossEntropyLoss(torch.tensor(weight).float())
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight"] and ours.reduction == "mean" and ours.double().weight.dtype == tessera.float64
    same(ours(tessera.tensor(x), tessera.tensor(y)), theirs.double()(torch.tensor(x), torch.tensor(y)))


def test_containers_change():
    row = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    row.insert(1, nn.Tanh())
    assert [type(m).__name__ for m in row] == ["Linear", "Tanh", "ReLU"] and isinstance(row.pop(1), nn.Tanh) and len(row) == 2
    del row[0]
    assert [type(m).__name__ for m in row + nn.Sequential(nn.Tanh())] == ["ReLU", "Tanh"] and not row.state_dict()
    assert list(nn.ModuleDict([("a", nn.ReLU())])) == ["a"]
    several = nn.ParameterList([tessera.ones(2)]).extend([tessera.ones(3)])
    several[0] = tessera.zeros(4)
    assert [p.shape for p in several] == [(4,), (3,)] and sorted(several.state_dict()) == ["0", "1"]
    named = nn.ParameterDict({"a": tessera.ones(2)})
    named.update({"b": tessera.ones(1)})
    del named["a"]
    assert list(named) == ["b"] and list(named.state_dict()) == ["b"]
    with pytest.raises(KeyError):
        del named["a"]


def test_layers_are_drawn_again():
    for layer in (nn.Linear(50, 40), nn.Conv1d(6, 50, 7, groups=2), nn.Conv2d(20, 30, 3), nn.ConvTranspose2d(30, 20, 3), nn.Bilinear(25, 4, 30)):
        before, bound = layer.weight.detach().clone(), layer.weight.detach().abs().max().item()
        layer.weight.detach().fill_(7), layer.bias.detach().fill_(7)
        layer.reset_parameters()
        assert not tessera.equal(layer.weight, before) and layer.weight.requires_grad
        assert abs(layer.weight.abs().max().item() / bound - 1) < 0.05 and layer.bias.abs().max().item() <= bound * 1.05
    for norm in (nn.BatchNorm1d(3, momentum=None), nn.BatchNorm2d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3)):
        norm.weight.detach().fill_(3), norm.bias.detach().fill_(3)
        if hasattr(norm, "running_mean"):
            norm(tessera.randn(4, 3, 2, 2) if isinstance(norm, nn.BatchNorm2d) else tessera.randn(4, 3))
        norm.reset_parameters()
        assert norm.weight.tolist() == [1, 1, 1] and norm.bias.tolist() == [0, 0, 0]
        assert not hasattr(norm, "running_mean") or (norm.running_mean.tolist() == [0, 0, 0] and norm.running_var.tolist() == [1, 1, 1])
    rows = tessera.randn(4, 3).double()
    made = nn.Embedding.from_pretrained(rows)
    assert tessera.equal(made(tessera.tensor([2, 0])), rows[[2, 0]]) and not made.weight.requires_grad
    assert nn.Embedding.from_pretrained(rows, freeze=False).weight.requires_grad
    with pytest.raises(tessera.Error, match=r"^from_pretrained: takes rows, not \[3\]$"):
        nn.Embedding.from_pretrained(tessera.ones(3))


def test_initialisers(torch):
    for shape, groups in (((4, 3, 3), 1), ((4, 2, 3, 5), 2), ((2, 3, 1, 3, 3), 1)):
        same(nn.init.dirac_(tessera.ones(*shape).double(), groups), torch.nn.init.dirac_(torch.ones(*shape).double(), groups))
    x = nn.init.sparse_(tessera.ones(10, 7), 0.25, 2.0)
    assert ((x == 0).sum(0) == 3).all() and 1 < x.std().item() * (10 / 7) ** 0.5 < 3
    for wrong, said in ((lambda: nn.init.dirac_(tessera.ones(3, 3)), "^dirac_: "), (lambda: nn.init.sparse_(tessera.ones(3), 0.5), "^sparse_: takes a matrix")):
        with pytest.raises(tessera.Error, match=said):
            wrong()
