"""Wrong arguments raise errors with the library's own sentence."""
import numpy as np
import pytest
import tessera as ts

F = ts.nn.functional


@pytest.mark.parametrize("call,kind,message", [
    (lambda: ts.split(ts.ones(3), [9, 3], 1), ts.Error, r"^split: does not take \(float32\[3\], \[9, 3\], 1\)$"),
    (lambda: ts.frexp(None), TypeError, "^frexp: input is no tensor but None$"),
    (lambda: ts.argmin(0.5, ()), TypeError, "^argmin: input is no tensor but 0.5$"),
    (lambda: ts.scatter_reduce(ts.ones(4), -1, ts.ones(2), [1, 1], "sum"), TypeError, r"^scatter_reduce: src is no tensor but \[1, 1\]$"),
    (lambda: ts.ones(2).rot90(1, (0,)), ts.Error, r"^rot90: does not take \(float32\[2\], 1, \[0\]\)$"),
    (lambda: F.grid_sample(ts.ones(1, 1, 2, 2), ts.ones(1, 2, 2, 2), "other"), ts.Error, "^grid_sample: does not take"),
    (lambda: ts.finfo(ts.int8), ts.Error, "^finfo: int8 is no floating-point dtype$"),
    (lambda: ts.iinfo(ts.bool), ts.Error, "^iinfo: bool is no integer dtype$"),
    (lambda: ts.Tensor.index_add(ts.ones(2), 0, 3, ts.ones(1)), TypeError, "^index_add: index is no tensor but 3$")])
def test_errors_of_python_are_told(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_errors_of_callers_are_their_own():
    def distance(a, b):
        return {}["absent"]

    x = ts.ones(2, 3)
    with pytest.raises(KeyError, match="absent"):
        F.triplet_margin_with_distance_loss(x, x, x, distance_function=distance)


@pytest.mark.parametrize("call", [
    lambda: ts.ones(3, 4).permute(ts.ones(1), ts.ones(1)), lambda: ts.reshape(ts.ones(4), (0.5, ts.ones(1), 2)),
    lambda: ts.zeros(2, dtype="\ud800"), lambda: ts.zeros(2, device="\ud800"), lambda: ts.pad(ts.ones(2), 1, 1, "\ud800")])
def test_what_is_no_index_and_no_text(call):
    with pytest.raises((TypeError, ts.Error)):
        call()


def test_names_end_where_they_end():
    with pytest.raises((TypeError, ts.Error)):
        ts.zeros(2, dtype="float32\0")


@pytest.mark.parametrize("size", [-1, -2**63, -2**63 + 5, 2**62])
def test_sizes_that_are_none(size):
    for call in (lambda: ts._C.empty((size, 4)), lambda: ts.zeros(size, 4), lambda: ts.ones(1).expand(size, 2**40)):
        with pytest.raises(ts.Error):
            call()


def test_lists_in_themselves():
    endless = []
    endless.append(endless)
    with pytest.raises(ts.Error, match="^tensor: lists are nested more than 64 deep$"):
        ts.tensor(endless)


def test_numbers_of_numpy_are_data():
    for number in (np.float64(2.5), np.float32(2.5), np.array(2.5)):
        made = ts.tensor(number)
        assert made.shape == () and made.item() == 2.5 and made.dtype.name == number.dtype.name
    assert ts.tensor([np.float32(1), np.int64(2)]).tolist() == [1, 2]
    frozen = np.ones(3)
    frozen.flags.writeable = False
    assert ts.as_tensor(frozen).add_(1).tolist() == [2, 2, 2] and frozen.tolist() == [1, 1, 1]


def test_lists_that_shrink_while_they_are_read():
    class Index:
        def __index__(self):
            sizes.clear()
            return 2

    sizes = [Index(), 3, 4]
    assert ts._C.empty(sizes).shape == (2,)
    assert sizes == []


def test_degrees_that_would_not_end():
    with pytest.raises(ts.Error, match="^chebyshev_polynomial_t: a degree of 1e[+]12 is beyond 10000$"):
        ts.special.chebyshev_polynomial_t(ts.ones(2), 10**12)
    assert ts.polygamma(10**12 + 1, ts.ones(1)).item() == float("inf")
    with pytest.raises(ts.Error, match=r"^cross: no dim of \[2\] has 3 elements$"):
        ts.cross(ts.ones(2), ts.ones(2))
