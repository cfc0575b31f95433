"""Memory that is shared with NumPy and others, and who keeps it."""
import gc

import ml_dtypes
import numpy as np
import pytest
import tessera

DTYPES = [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64,
          np.float16, np.float32, np.float64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("kind", DTYPES, ids=lambda d: np.dtype(d).name)
def test_numpy_both_ways_without_copies(kind, rng):
    array = (rng.random((3, 5)) * 7).astype(kind)
    x = tessera.from_numpy(array)
    assert x.data_ptr() == array.ctypes.data and x.shape == (3, 5) and x.dtype.name == np.dtype(kind).name
    back = x.numpy()
    assert back.ctypes.data == array.ctypes.data and back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    back[1, 2] = 1
    assert array[1, 2] == 1 and x[1, 2].item() == 1


def test_strides_are_kept(rng):
    array = rng.random((4, 6)).astype(np.float32)
    for view in (array[:, ::2], array.T, array[::-1], array[1:3, 2:], np.broadcast_to(array[0], (3, 6)).copy()):
        x = tessera.from_numpy(view)
        assert x.data_ptr() == view.ctypes.data
        np.testing.assert_array_equal((x + 0.0).numpy(), view)
        np.testing.assert_array_equal(x.numpy(), view)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3)])
def test_odd_shapes(shape):
    x = tessera.from_numpy(np.ones(shape, np.float32))
    assert x.shape == shape and x.numpy().shape == shape and np.asarray(x * 2).sum() == 2 * np.ones(shape).sum()


def test_dlpack_both_ways(rng):
    array = rng.random((2, 3)).astype(np.float32)
    x = tessera.from_dlpack(array)
    back = np.from_dlpack(x)
    assert back.ctypes.data == array.ctypes.data and x.__dlpack_device__() == (1, 0)
    assert tessera.from_dlpack(x).data_ptr() == x.data_ptr()


def test_dlpack_with_torch(rng):
    torch = pytest.importorskip("torch")
    theirs = torch.randn(3, 4, dtype=torch.bfloat16)
    ours = tessera.from_dlpack(theirs)
    assert ours.data_ptr() == theirs.data_ptr() and ours.dtype == tessera.bfloat16
    again = torch.from_dlpack(ours)
    assert again.data_ptr() == theirs.data_ptr() and torch.equal(again, theirs)


def test_memory_outlives_its_owners(rng):
    array = rng.random(1000).astype(np.float32)
    wanted = array.copy()
    x = tessera.from_numpy(array)
    del array
    gc.collect()
    junk = [rng.random(1000) for _ in range(50)]  # would take the place of what was freed
    np.testing.assert_array_equal(x.numpy(), wanted)
    view, alone = x.numpy(), np.from_dlpack(x * 1)
    del x
    gc.collect()
    junk.append(rng.random(1000))
    np.testing.assert_array_equal(view, wanted)
    np.testing.assert_array_equal(alone, wanted)


def test_an_array_is_let_go():
    import weakref

    class Array(np.ndarray):
        pass

    array = np.ones(4, np.float32).view(Array)
    seen = weakref.ref(array)
    x = tessera.from_numpy(array)
    y = x[1:]
    del array, x
    gc.collect()
    assert seen() is not None
    del y
    gc.collect()
    assert seen() is None


def test_a_converted_module_leaves_arrays_alone():
    layer = tessera.nn.Linear(3, 2)
    weights = layer.weight.detach().numpy()
    before = weights.copy()
    layer.to(tessera.float64)
    gc.collect()
    np.testing.assert_array_equal(weights, before)


def test_numbers_and_lists():
    assert tessera.tensor([[1, 2], [3, 4]]).dtype == tessera.int64
    assert tessera.tensor([1, 2.5]).tolist() == [1, 2.5] and tessera.tensor(True).dtype == tessera.bool
    assert tessera.tensor(2**53 + 1).item() == 2**53 + 1
    assert tessera.tensor([]).shape == (0,) and tessera.tensor([[1.0], [2.0]], dtype="bfloat16").dtype == tessera.bfloat16
    array = np.ones(3, np.float32)
    copy = tessera.tensor(array)
    array[0] = 5
    assert copy.tolist() == [1, 1, 1]


def test_what_cannot_be_shared():
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(tessera.Error, match="^from_dlpack: the array is read-only; make a copy of it first$"):
        tessera.from_numpy(frozen)
    assert tessera.as_tensor(frozen).tolist() == [1, 1, 1]
    with pytest.raises(tessera.Error, match="are no dtype of tessera"):
        tessera.from_numpy(np.ones(3, np.complex64))
    with pytest.raises(tessera.Error, match="has no elements"):
        tessera.from_dlpack(object())
    with pytest.raises(tessera.Error, match="do not lie at multiples"):
        tessera.from_numpy(np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float32))
    with pytest.raises(tessera.Error, match="requires a gradient; use detach"):
        tessera.ones(2, requires_grad=True).numpy()
    with pytest.raises(tessera.Error, match="not of one length"):
        tessera.tensor([[1, 2], [3]])
    with pytest.raises(tessera.Error, match="is no number"):
        tessera.tensor(["a"])


def test_a_norm_has_read_what_others_may_write(rng):
    array = rng.random((2, 3, 4, 4)).astype(np.float32)
    x = tessera.from_numpy(array)
    norm = lambda: tessera.nn.functional.batch_norm(x, None, None, training=True)
    want = norm().numpy().copy()
    y = norm()
    array[:] = 0
    np.testing.assert_array_equal(y.numpy(), want)
