"""DLPack's protocol: who keeps memory, how often a capsule is taken, versions, flags, copies and devices."""
import ctypes
import gc
import weakref

import numpy as np
import pytest
import tessera

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


class Producer:
    """An array that speaks DLPack alone, and says what it was asked for."""

    def __init__(self, array, versions=True, **replies):
        self.array, self.versions, self.replies, self.asked = array, versions, replies, []

    def __dlpack__(self, **options):
        self.asked.append(options)
        if not self.versions and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.replies.get("capsule") or self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.replies.get("device", (1, 0))


class Kept(np.ndarray):
    """An array that weak references can watch."""


def watched(count=64):
    array = np.arange(count, dtype=np.float32).view(Kept)
    return array, weakref.ref(array)


def name_of(capsule):
    function = ctypes.pythonapi.PyCapsule_GetName
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return function(capsule).decode()


@pytest.mark.parametrize("versions", [True, False], ids=["versioned", "unversioned"])
def test_a_tensor_keeps_what_it_was_made_of(versions):
    array, seen = watched()
    producer = Producer(array, versions)
    x = tessera.from_dlpack(producer)
    assert x.data_ptr() == array.ctypes.data and ("max_version" in producer.asked[-1]) == versions
    y = x[3:].reshape(-1)
    del array, producer, x
    gc.collect()
    assert seen() is not None and y.sum().item() == sum(range(3, 64))
    del y
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 0)], ids=str)
def test_a_capsule_keeps_the_memory_until_it_is_taken_or_dropped(version):
    name = "dltensor_versioned" if version and version[0] else "dltensor"
    before = tessera.memory_allocated("cpu")
    x = tessera.ones(1000)
    capsule = x.__dlpack__(max_version=version)
    assert name_of(capsule) == name
    del x
    assert tessera.memory_allocated("cpu") == before + 4000
    del capsule  # nobody took it
    gc.collect()
    assert tessera.memory_allocated("cpu") == before
    taken = tessera.from_dlpack(tessera.ones(1000).__dlpack__(max_version=version))
    assert taken.tolist() == [1] * 1000 and tessera.memory_allocated("cpu") == before + 4000
    del taken
    gc.collect()
    assert tessera.memory_allocated("cpu") == before


def test_a_consumer_keeps_the_memory():
    before = tessera.memory_allocated("cpu")
    array = np.from_dlpack(tessera.ones(1000))
    gc.collect()
    junk = [tessera.zeros(1000) for _ in range(20)]  # would take the place of what was freed
    assert array.sum() == 1000 and tessera.memory_allocated("cpu") == before + 4000 * 21
    del array, junk
    gc.collect()
    assert tessera.memory_allocated("cpu") == before


def test_a_capsule_is_taken_once():
    for version in (None, (1, 1)):
        capsule = tessera.ones(3).__dlpack__(max_version=version)
        first = tessera.from_dlpack(capsule)
        assert name_of(capsule).startswith("used_dltensor")
        with pytest.raises(tessera.Error, match="^from_dlpack: the capsule has been consumed; each is taken once$"):
            tessera.from_dlpack(capsule)
        assert first.tolist() == [1, 1, 1]


def test_what_is_no_capsule_of_dlpack():
    other = ctypes.pythonapi.PyCapsule_New
    other.restype, other.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for name in (b"something", None):
        with pytest.raises(tessera.Error, match="has no elements that DLPack or a buffer could share"):
            tessera.from_dlpack(other(1, name, None))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_both_ways(dtype, rng):
    array = (rng.random((3, 5)) * 7).astype(dtype)
    x = tessera.from_dlpack(Producer(array))
    assert x.dtype.name == dtype and x.data_ptr() == array.ctypes.data
    back = np.from_dlpack(x)
    assert back.dtype == array.dtype and back.ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(back, array)


def test_dtypes_that_are_refused():
    for dtype, code, bits in ((np.complex64, 5, 64), (np.complex128, 5, 128)):
        with pytest.raises(tessera.Error, match=f"^from_dlpack: elements of code {code} with {bits} bits are no dtype"):
            tessera.from_dlpack(Producer(np.ones(3, dtype)))


@pytest.mark.parametrize("key", [np.s_[:, ::2], np.s_[::-1], np.s_[1:3, 2:], np.s_[::-2, ::-3], np.s_[2], np.s_[3:3], np.s_[0, 0, ...]],
                         ids=str)
def test_strides_and_offsets_both_ways(key, rng):
    array = rng.random((4, 6)).astype(np.float32)
    x = tessera.from_dlpack(Producer(array[key]))
    assert x.numel() == 0 or x.data_ptr() == array[key].__array_interface__["data"][0]
    np.testing.assert_array_equal(x.numpy(), array[key])
    if 0 not in x.shape:
        x.fill_(7)
        assert (array[key] == 7).all() and (array == 7).sum() == array[key].size
    ours = tessera.from_numpy(rng.random((4, 6)))
    for view in (ours.t(), ours[1:, 2:5], ours[:, None].expand(4, 3, 6), ours[:0], ours[2, 3]):
        back = np.from_dlpack(view)
        assert back.shape == view.shape and (view.numel() == 0 or back.ctypes.data == view.data_ptr())
        np.testing.assert_array_equal(back, view.numpy())


def test_read_only_arrays_are_refused():
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    said = "^from_dlpack: the array is read-only; make a copy of it first$"
    with pytest.raises(tessera.Error, match=said):
        tessera.from_dlpack(Producer(frozen))
    with pytest.raises(tessera.Error, match=said):
        tessera.from_dlpack(frozen.__dlpack__(max_version=(1, 1)))
    with pytest.raises(tessera.Error, match=said):
        tessera.from_dlpack(b"abcd")
    assert np.from_dlpack(tessera.ones(3)).flags.writeable


def test_copies():
    x = tessera.arange(3.0)
    assert np.from_dlpack(x, copy=False).ctypes.data == x.data_ptr()
    copy = np.from_dlpack(x, copy=True)
    assert copy.ctypes.data != x.data_ptr() and copy.tolist() == [0, 1, 2]
    assert tessera.from_dlpack(x.__dlpack__(dl_device=(1, 0), copy=None)).data_ptr() == x.data_ptr()


def test_other_devices():
    x = tessera.ones(3)
    assert x.__dlpack_device__() == (1, 0)
    for device in ((2, 0), (1, 1), (8, 0)):
        with pytest.raises(BufferError, match=f"is not shared with device type {device[0]}, number {device[1]}$"):
            x.__dlpack__(dl_device=device)
    with pytest.raises(tessera.Error, match="^from_dlpack: memory of device type 8 is not taken"):
        tessera.from_dlpack(Producer(np.ones(3), device=(8, 0)))
    if not tessera.cuda.is_available():
        with pytest.raises(tessera.Error, match="device cuda:0 is not available"):
            tessera.from_dlpack(Producer(np.ones(3), device=(2, 0)))


def test_what_has_no_memory_to_share():
    with pytest.raises(tessera.Error, match="^__dlpack__: .* has no memory$"):
        tessera.empty(3, device="meta(cpu)").__dlpack__()
    with pytest.raises(tessera.Error, match="^__dlpack__: the tensor requires a gradient; use detach"):
        tessera.ones(3, requires_grad=True).__dlpack__()
    with pytest.raises(tessera.Error, match="do not lie at multiples"):
        tessera.from_dlpack(Producer(np.frombuffer(bytearray(13), np.uint8)[1:].view(np.float32)))


def test_what_a_producer_raises_is_passed_on():
    class Broken(Producer):
        def __dlpack_device__(self):
            raise ValueError("out of order")
    with pytest.raises(ValueError, match="out of order"):
        tessera.from_dlpack(Broken(np.ones(3)))
    with pytest.raises(TypeError):
        tessera.ones(3).__dlpack__(streams=1)


def test_bf16_with_torch():
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t()
    ours = tessera.from_dlpack(theirs)
    assert ours.data_ptr() == theirs.data_ptr() and ours.dtype == tessera.bfloat16 and ours.stride() == (1, 3)
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr() and torch.equal(back, theirs)
    kept = torch.from_dlpack(tessera.ones(5, dtype="bfloat16"))
    gc.collect()
    assert kept.sum().item() == 5
    assert torch.utils.dlpack.from_dlpack(tessera.ones(2).__dlpack__()).tolist() == [1, 1]
    assert tessera.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(2))).tolist() == [1, 1]
