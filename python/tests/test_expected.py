"""What a user of PyTorch expects of tensors: copies, pickles, operators in place, NumPy beside them, printing."""
import copy
import pickle

import numpy as np
import pytest
import tessera
from tessera import nn

DTYPES = [d.name for d in tessera.dtype]


@pytest.mark.parametrize("name", DTYPES)
def test_pickles(name):
    x = (tessera.arange(12).reshape(3, 4) % 5).to(name)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(x, protocol))
        assert back.dtype == x.dtype and tessera.equal(back, x)
    part = pickle.loads(pickle.dumps(x[1:, ::2].t()))
    assert part.shape == (2, 2) and part.is_contiguous() and tessera.equal(part, x[1:, ::2].t())


def test_pickles_hold_elements_and_no_graph():
    x = tessera.randn(1000, requires_grad=True)
    assert len(pickle.dumps(x[:2].detach())) < 1000
    y = pickle.loads(pickle.dumps(x))
    assert y.requires_grad and y.is_leaf and y.grad is None
    p = pickle.loads(pickle.dumps(nn.Parameter(x)))
    assert type(p) is nn.Parameter and p.requires_grad and tessera.equal(p, x)
    state = nn.Linear(3, 2).state_dict()
    back = pickle.loads(pickle.dumps({"model": state, "step": 3}))
    assert back["step"] == 3 and all(tessera.equal(back["model"][k], v) for k, v in state.items())
    for value in (tessera.float16, tessera.device("cpu"), tessera.device("meta(cuda:1)")):
        assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(tessera.Error, match="^pickle: .* has no memory$"):
        pickle.dumps(tessera.empty(3, device="meta(cpu)"))


def test_copies():
    x = tessera.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    y = copy.deepcopy(x)
    assert y.is_leaf and y.requires_grad and y.grad.tolist() == [2, 2, 2] and y.data_ptr() != x.data_ptr()
    assert y.grad.data_ptr() != x.grad.data_ptr()
    twice = copy.deepcopy([x, x])
    assert twice[0] is twice[1]
    assert type(copy.deepcopy(nn.Parameter(x))) is nn.Parameter
    assert copy.copy(x).data_ptr() == x.data_ptr()
    with pytest.raises(tessera.Error, match="^deepcopy: .*recorded operations; use detach"):
        copy.deepcopy(x * 2)
    with pytest.raises(TypeError, match=r"^Linear: modules are not pickled; state_dict\(\) is$"):
        pickle.dumps(nn.Linear(1, 1))


def test_arrays_of_tensors():
    x = tessera.arange(3.0)
    assert np.asarray(x).ctypes.data == x.data_ptr() and np.array(x, copy=False).ctypes.data == x.data_ptr()
    assert np.array(x).ctypes.data != x.data_ptr() and np.array(x, copy=True).tolist() == [0, 1, 2]
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, dtype=np.float64, copy=False)
    assert np.exp(x).tolist() == np.exp(np.arange(3, dtype=np.float32)).tolist()
    assert tessera.ones(2, requires_grad=True).numpy(force=True).tolist() == [1, 1]


def test_arrays_beside_tensors():
    a, x = np.array([1.0, 2.0, 3.0], np.float32), tessera.ones(3, requires_grad=True)
    for y in (x * a, a * x):
        assert isinstance(y, tessera.Tensor) and y.requires_grad and y.tolist() == [1, 2, 3]
    assert (x + np.float64(2)).dtype == tessera.float32 and (np.float32(2) * x).tolist() == [2, 2, 2]
    assert (tessera.ones(3) + a.astype(np.float64)).dtype == tessera.float64
    assert (a > x).tolist() == [False, True, True] and (np.arange(3, dtype=np.float32) @ tessera.arange(3.0)).item() == 5
    frozen = a.copy()
    frozen.flags.writeable = False
    assert (x - frozen).tolist() == [0, -1, -2]
    with pytest.raises(TypeError):
        x + np.array(["one"])


IN_PLACE = {"+=": lambda x, y: x.__iadd__(y), "-=": lambda x, y: x.__isub__(y), "*=": lambda x, y: x.__imul__(y),
            "/=": lambda x, y: x.__itruediv__(y), "//=": lambda x, y: x.__ifloordiv__(y), "%=": lambda x, y: x.__imod__(y),
            "**=": lambda x, y: x.__ipow__(y)}


@pytest.mark.parametrize("sign", IN_PLACE)
def test_operators_in_place(sign, rng):
    a, b = rng.random((2, 3)) + 1, rng.random(3) + 1
    for other in (b, 2.0, 3):
        mine, theirs = tessera.from_numpy(a.copy()), a.copy()
        place = mine.data_ptr()
        out = IN_PLACE[sign](mine, tessera.from_numpy(other) if isinstance(other, np.ndarray) else other)
        exec(f"theirs {sign} other")
        assert out is mine or out.is_same(mine)
        assert out.data_ptr() == place
        np.testing.assert_allclose(out.numpy(), theirs, rtol=1e-12)


def test_methods_in_place(rng):
    a = rng.random((3, 4))
    x = tessera.from_numpy(a)
    assert x.clamp_(0.2, 0.8).is_same(x) and a.min() >= 0.2 and a.max() <= 0.8
    x.masked_fill_(x > 0.5, 0.0).exp_().div_(2)
    assert (a <= np.exp(0.5) / 2).all()
    x.index_fill_(0, tessera.tensor([0]), 7.0)
    assert (a[0] == 7).all()
    assert x.uniform_(3, 4).is_same(x) and (a >= 3).all() and (a < 4).all()
    x.normal_(100, 1)
    assert abs(a.mean() - 100) < 3


def test_what_is_not_written_in_place():
    whole = tessera.tensor([1, 2])
    with pytest.raises(tessera.Error, match="^__itruediv__: a result of float32 is not written to a tensor of int64$"):
        whole /= 2
    with pytest.raises(tessera.Error, match="^__ior__: a result of int64 is not written to a tensor of bool$"):
        truth = tessera.tensor([True])
        truth |= 2
    with pytest.raises(tessera.Error):
        x = tessera.ones(2, requires_grad=True)
        x.exp_()
    with pytest.raises(TypeError):
        whole //= "one"
    assert whole.tolist() == [1, 2]


def test_bits_both_ways():
    x = tessera.tensor([1, 2, 3])
    assert (6 & x).tolist() == [0, 2, 2] and (x | 4).tolist() == [5, 6, 7] and (1 ^ x).tolist() == [0, 3, 2]
    assert (1 << x).tolist() == [2, 4, 8] and (16 >> x).tolist() == [8, 4, 2] and (True & (x > 1)).tolist() == [False, True, True]
    assert (x.to(tessera.int8) & tessera.tensor(3)).dtype == tessera.int8  # a number widens nothing
    assert (x.to(tessera.uint8) / -2).tolist() == [-0.5, -1, -1.5]


def test_lists_arrays_and_truth_as_places_and_values():
    x = tessera.zeros(2, 3)
    x[0] = [1, 2, 3]
    x[1] = np.array([4, 5, 6])
    assert x.tolist() == [[1, 2, 3], [4, 5, 6]]
    a = x.numpy().copy()
    for key in (True, False, np.s_[0, True], np.s_[None, True, 1], np.s_[..., False]):
        np.testing.assert_array_equal(x[key].numpy(), a[key])
    x[True] = 0
    x[False] = 9
    assert x.sum().item() == 0
    with pytest.raises(tessera.Error, match="not of one length"):
        x[0] = [[1], [2, 3]]
    with pytest.raises(tessera.Error):
        x[0] = [1, 2]


def test_printing():
    assert repr(tessera.tensor(1.5)) == "tensor(1.5, f32[] on cpu)" and f"{tessera.tensor(1.5):.2f}" == "1.50"
    assert repr(tessera.tensor([True, False])) == "tensor([true, false], bool[2] on cpu)"
    assert repr(tessera.ones(2, requires_grad=True)).endswith("on cpu, requires_grad)")
    assert "..." in repr(tessera.zeros(1000, 1000)) and len(repr(tessera.zeros(1000, 1000))) < 2000
    assert repr(tessera.empty(2, device="meta(cpu)")) == "tensor(f32[2] on meta(cpu))" and repr(tessera.zeros(0)).startswith("tensor([]")
    assert repr(tessera.float16) == "tessera.float16" and str(tessera.device("cpu")) == "cpu"
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU())) == "Sequential(\n  (0): Linear(weight [3, 2], bias [3])\n  (1): ReLU()\n)"


def test_what_tensors_and_dtypes_say():
    x = tessera.ones(2, 3, dtype="float16")
    assert x.nbytes == 12 and x.itemsize == 2 and not x.is_cuda and not x.is_meta and x.data.data_ptr() == x.data_ptr()
    assert tessera.float16.itemsize == 2 and tessera.float16.is_floating_point and not tessera.int8.is_floating_point
    assert tessera.is_tensor(x) and not tessera.is_tensor(1) and tessera.numel(x) == 6 and tessera.is_floating_point(x)
    assert tessera.finfo(tessera.float32).eps == np.finfo(np.float32).eps and tessera.iinfo(tessera.int8).max == 127
    assert float(tessera.finfo(tessera.bfloat16).eps) == 2 ** -7
    assert tessera.result_type(x, 1.5) == tessera.float16 and tessera.result_type(tessera.tensor([1]), 1.5) == tessera.float32
    assert x.to("cpu", non_blocking=True).is_same(x) and not x.to("cpu", copy=True).is_same(x)
    assert [t.tolist() for t in reversed(tessera.arange(3))] == [2, 1, 0]


def test_random_numbers():
    tessera.manual_seed(1)
    assert sorted(tessera.randperm(20).tolist()) == list(range(20)) and tessera.randperm(20).tolist() != list(range(20))
    drawn = tessera.normal(5.0, 2.0, (10000,))
    assert abs(drawn.mean().item() - 5) < 0.1 and abs(drawn.std().item() - 2) < 0.1
    assert tessera.normal(tessera.zeros(3), tessera.zeros(3)).tolist() == [0, 0, 0]
    whole = tessera.randint_like(tessera.zeros(100), 2, 5)
    assert whole.dtype == tessera.float32 and set(whole.tolist()) == {2, 3, 4}
