"""Operators of Python, indexing, gradients, errors, threads."""
import threading
import time

import numpy as np
import pytest
import tessera


def test_operators(rng):
    a, b = rng.random((3, 4)).astype(np.float32) + 1, rng.random(4).astype(np.float32) + 1
    x, y = tessera.from_numpy(a), tessera.from_numpy(b)
    for f in (lambda p, q: p + q, lambda p, q: p - q, lambda p, q: p * q, lambda p, q: p / q, lambda p, q: p ** q,
              lambda p, q: p // q, lambda p, q: p % q, lambda p, q: 2 - p, lambda p, q: 2 / p, lambda p, q: 2 ** p,
              lambda p, q: p * 3 + 1.5, lambda p, q: -p, lambda p, q: p @ q, lambda p, q: abs(-p)):
        np.testing.assert_allclose(f(x, y).numpy(), f(a, b), rtol=2e-6)
    for f in (lambda p, q: p < q, lambda p, q: p == p, lambda p, q: (p > 1.5) & (q <= 1.2), lambda p, q: ~(p != 1.5)):
        np.testing.assert_array_equal(f(x, y).numpy(), f(a, b))
    x += 1
    np.testing.assert_array_equal(a, x.numpy())  # in place, in shared memory


def test_numbers_take_the_dtype_beside_them():
    whole, half = tessera.tensor([1, 2]), tessera.tensor([1.0, 2.0], dtype="float16")
    assert (whole + 1).dtype == tessera.int64 and (whole + 1.5).dtype == tessera.float32
    assert (half * 2.5).dtype == tessera.float16 and (1 - half).dtype == tessera.float16
    assert (tessera.tensor([True]) + 1).dtype == tessera.int64 and (whole * np.float32(2)).tolist() == [2, 4]
    assert (tessera.tensor([2**53 + 1]) + 2).item() == 2**53 + 3
    with pytest.raises(TypeError):
        whole + "one"


KEYS = [np.s_[1], np.s_[-1, 2], np.s_[1:3], np.s_[::2, 1:], np.s_[::-1], np.s_[3:0:-2, ::-1], np.s_[..., 1],
        np.s_[None, 1, ..., None], np.s_[[0, 2]], np.s_[[1, -1], [0, 2]], np.s_[:, [1, 0]], np.s_[:, [1, 0], 2],
        np.s_[[0, 1], :, [1, 2]], np.s_[..., [0, 4]], np.s_[5:2], np.s_[1, [2, 0], 1:4]]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_as_numpy(key, rng):
    array = rng.random((4, 3, 5)).astype(np.float32)
    x = tessera.from_numpy(array)
    np.testing.assert_array_equal(x[key].numpy(), array[key])
    for value in (2.5, rng.random(array[key].shape).astype(np.float32)):
        x[key] = value if isinstance(value, float) else tessera.from_numpy(np.array(value))
        wanted = np.array(array)
        wanted[key] = value
        np.testing.assert_array_equal(array, wanted)


def test_masks_and_index_tensors(rng):
    array = rng.random((4, 3)).astype(np.float32)
    x, rows = tessera.from_numpy(array), np.array([[3, 0], [1, 1]])
    np.testing.assert_array_equal(x[x > 0.5].numpy(), array[array > 0.5])
    np.testing.assert_array_equal(x[tessera.from_numpy(rows)].numpy(), array[rows])
    np.testing.assert_array_equal(x[tessera.tensor([True, False, True, False]), 1:].numpy(), array[[0, 2], 1:])
    x[x > 0.5] = 0
    assert array.max() <= 0.5
    assert len(list(x)) == 4 and len(x) == 4 and 0.0 in x


@pytest.mark.parametrize("dim", [None, 0, 1, 2])
def test_unique_as_numpy(dim, rng):
    array = rng.integers(0, 2, (3, 4, 5)).astype(np.float32)
    ours = tessera.unique(tessera.from_numpy(array), return_inverse=True, return_counts=True, dim=dim)
    wanted = np.unique(array, return_inverse=True, return_counts=True, axis=dim)
    for a, b in zip(ours, wanted):
        np.testing.assert_array_equal(a.numpy(), b.reshape(a.shape))


def test_bad_indices():
    x = tessera.zeros(2, 3)
    with pytest.raises(IndexError, match=r"^index 2 is out of range for dim 0 of \[2, 3\]$"):
        x[2]
    with pytest.raises(tessera.Error, match=r"^index: 3 indices for the dims of \[2, 3\]$"):
        x[0, 0, 0]
    with pytest.raises(tessera.Error, match="not an integer or bool"):
        x[tessera.ones(2)]
    with pytest.raises(tessera.Error, match="mask"):
        x[tessera.ones(3, dtype=tessera.bool)]


def test_values():
    x = tessera.tensor([2.5])
    assert float(x) == 2.5 and int(x) == 2 and bool(x) and x.item() == 2.5 and tessera.tensor([3]).item() == 3
    assert [10, 20, 30][tessera.tensor(1)] == 20 and repr(x) == "tensor([2.5], f32[1] on cpu)"
    assert x.shape == (1,) and x.ndim == 1 and x.device == tessera.device("cpu") and x.size(0) == 1 and x.numel() == 1
    with pytest.raises(TypeError):
        len(tessera.tensor(1.0))
    with pytest.raises(tessera.Error):
        bool(tessera.ones(2))


def numeric(f, x, step=1e-6):
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        out[i] = (f(up) - f(down)) / (2 * step)
    return out


FUNCTIONS = {
    "tanh": lambda x: (x.tanh() * x).sum(),
    "softmax": lambda x: (tessera.softmax(x, dim=1) ** 2).sum(),
    "matmul": lambda x: (x @ x.T).exp().mean(),
    "indexing": lambda x: (x[[0, 2, 0], 1:] ** 3).sum() + x[1].prod(),
    "layer_norm": lambda x: (tessera.nn.functional.layer_norm(x, (4,)) * x).sum(),
    "sort": lambda x: (tessera.sort(x, 1)[0] * tessera.arange(4, dtype=x.dtype)).sum(),
    "where": lambda x: tessera.where(x > 0.5, x * x, -x).sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_against_differences(name, rng):
    f, array = FUNCTIONS[name], rng.random((3, 4)) + 0.1
    x = tessera.from_numpy(array.copy()).requires_grad_()
    f(x).backward()
    wanted = numeric(lambda a: f(tessera.from_numpy(a)).item(), array)
    assert np.linalg.norm(x.grad.numpy() - wanted) <= 1e-6 * np.linalg.norm(wanted)


def test_grad_modes_and_hooks():
    x = tessera.ones(3, requires_grad=True)
    with tessera.no_grad():
        assert not (x * 2).requires_grad and not tessera.is_grad_enabled()
        with tessera.enable_grad():
            assert (x * 2).requires_grad
    assert tessera.no_grad()(lambda: (x * 2).requires_grad)() is False and (x * 2).requires_grad
    seen = []
    y = x * 3
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.sum().backward()
    assert seen == [[1, 1, 1]] and x.grad.tolist() == [3, 3, 3]
    x.grad = None
    assert x.grad is None
    second = tessera.grad([tessera.grad([(x ** 3).sum()], [x], create_graph=True)[0].sum()], [x])[0]
    assert second.tolist() == [6, 6, 6]


def test_a_function_with_its_own_backward():
    x = tessera.tensor([1.0, 2.0], requires_grad=True)
    double = tessera.autograd.custom_function("double", [x], lambda xs: [xs[0] * 2], lambda xs, ys, gs: [gs[0] * 5])[0]
    double.sum().backward()
    assert double.tolist() == [2, 4] and x.grad.tolist() == [5, 5]

    def fails(xs):
        raise ValueError("not today")
    with pytest.raises(ValueError, match="not today"):
        tessera.autograd.custom_function("fails", [x], fails, lambda xs, ys, gs: gs)


def test_errors_are_the_librarys_sentences(tmp_path):
    with pytest.raises(tessera.Error, match=r"^matmul: inner dimensions differ: \[4, 3\] x \[5, 2\]$"):
        tessera.zeros(4, 3) @ tessera.zeros(5, 2)
    with pytest.raises(RuntimeError, match="^reduction: 'most' is none of: none, mean, sum$"):
        tessera._C.cross_entropy(tessera.ones(1, 2), tessera.zeros(1, dtype="int64"), "most")
    with pytest.raises(tessera.FileError, match="nowhere"):
        tessera.load_safetensors(str(tmp_path / "nowhere"))
    with pytest.raises(tessera.Error, match="dtype"):
        tessera.zeros(2, dtype="float31")
    with pytest.raises(tessera.Error):
        tessera.zeros(2, device="somewhere")
    with pytest.raises(TypeError):
        tessera.exp("x")
    with pytest.raises(TypeError):
        tessera.exp(None)
    assert issubclass(tessera.FileError, tessera.Error) and issubclass(tessera.OutOfMemoryError, tessera.Error)
    assert issubclass(tessera.onnx.Unsupported, tessera.Error)


def test_long_calls_let_other_threads_run():
    x = tessera.randn(1200, 1200)
    x @ x
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)
    thread = threading.Thread(target=count)
    thread.start()
    while not counted[0]:
        time.sleep(0.001)
    before = counted[0]
    for _ in range(3):
        x @ x
    during = counted[0] - before
    done.set()
    thread.join()
    assert during > 100


def test_threads_call_at_once(rng):
    a = rng.random((64, 64)).astype(np.float32)
    x, wrong = tessera.from_numpy(a), []

    def work():
        for _ in range(50):
            y = tessera.from_numpy(a.copy())  # freed by whichever thread is last
            if not np.allclose((x @ y).numpy(), a @ a, rtol=1e-4):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_an_index_out_of_range_is_told_as_it_is():
    x = tessera.arange(100)
    assert x[tessera.tensor([-100, 99])].tolist() == [0, 99]
    for index in (-101, 100, -250):
        with pytest.raises(tessera.Error, match=f"index {index} is out of range for size 100"):
            x[tessera.tensor([0, index])]
