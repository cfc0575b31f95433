"""Order, counts and neighbours beside NumPy."""
import math

import numpy as np
import pytest
import tessera


def test_mode():
    values, places = tessera.mode(tessera.tensor([[3, 1, 3, 2, 1], [5, 4, 4, 4, 5]]))
    assert values.tolist() == [1, 4] and places.tolist() == [4, 3]
    values, places = tessera.mode(tessera.tensor([[1, 2], [1, 3], [2, 3]]), 0, True)
    assert values.tolist() == [[1, 3]] and places.tolist() == [[1, 2]]
    x = tessera.tensor([2.0, 2.0, 1.0], requires_grad=True)
    tessera.mode(x)[0].backward()
    assert x.grad.tolist() == [0, 1, 0]
    with pytest.raises(tessera.Error, match="^mode: dim 0 of .* is empty$"):
        tessera.mode(tessera.zeros(0), 0)


def test_nanmedian(rng):
    a = rng.normal(size=(4, 7))
    a[rng.random(a.shape) < 0.3] = math.nan
    values, places = tessera.nanmedian(tessera.from_numpy(a), 1)
    wanted = [np.sort(row[~np.isnan(row)])[(np.sum(~np.isnan(row)) - 1) // 2] for row in a]
    assert values.tolist() == wanted and [a[i, p] for i, p in enumerate(places.tolist())] == wanted
    assert tessera.nanmedian(tessera.tensor([math.nan, 3.0, 1.0])).item() == 1
    assert math.isnan(tessera.nanmedian(tessera.tensor([math.nan])).item())


def test_unique_consecutive():
    x = tessera.tensor([1, 1, 2, 2, 2, 1])
    values, inverse, counts = tessera.unique_consecutive(x, True, True)
    assert values.tolist() == [1, 2, 1] and inverse.tolist() == [0, 0, 1, 1, 1, 2] and counts.tolist() == [2, 3, 1]
    rows = tessera.tensor([[1, 2], [1, 2], [1, 3]])
    assert tessera.unique_consecutive(rows, dim=0).tolist() == [[1, 2], [1, 3]]
    assert tessera.unique_consecutive(rows, dim=1).tolist() == rows.tolist()
    assert tessera.unique_consecutive(tessera.zeros(0)).shape == (0,)


def test_combinations():
    x = tessera.tensor([1, 2, 3])
    assert tessera.combinations(x).tolist() == [[1, 2], [1, 3], [2, 3]]
    assert tessera.combinations(x, 3, True).shape == (10, 3) and tessera.combinations(x, 4).shape == (0, 4)
    with pytest.raises(tessera.Error, match="^combinations: takes one dim"):
        tessera.combinations(tessera.ones(2, 2))


@pytest.mark.parametrize("bins", [1, 7, "edges"])
def test_histogram(bins, rng):
    a, weight = rng.normal(size=200), rng.random(200)
    edges = np.array([-1.0, -0.2, 0.1, 2.0])
    ours = tessera.from_numpy(edges) if bins == "edges" else bins
    for density in (False, True):
        for w in (None, weight):
            counts, places = tessera.histogram(tessera.from_numpy(a), ours, weight=None if w is None else tessera.from_numpy(w), density=density)
            wanted = np.histogram(a, edges if bins == "edges" else bins, weights=w, density=density)
            np.testing.assert_allclose(counts.numpy(), wanted[0], rtol=1e-9)
            np.testing.assert_allclose(places.numpy(), wanted[1], rtol=1e-9)
    with pytest.raises(tessera.Error, match="^histogram: 0 bins"):
        tessera.histogram(tessera.ones(2), 0)


def test_nonzero_static():
    x = tessera.tensor([0, 1, 1, 0, 1])
    assert tessera.nonzero_static(x, size=2).tolist() == [[1], [2]]
    assert tessera.nonzero_static(x, size=5, fill_value=9).tolist() == [[1], [2], [4], [9], [9]]
    with pytest.raises(tessera.Error, match="size -1 is negative"):
        tessera.nonzero_static(x, size=-1)


@pytest.mark.parametrize("order", [1, 2])
def test_gradient(order, rng):
    a, places = rng.normal(size=(4, 6)), np.cumsum(rng.random(6) + 0.1)
    x = tessera.from_numpy(a)
    for ours, theirs in zip(tessera.gradient(x, spacing=0.5, edge_order=order), np.gradient(a, 0.5, edge_order=order)):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9)
    (ours,) = tessera.gradient(x, spacing=(tessera.from_numpy(places),), dim=1, edge_order=order)
    np.testing.assert_allclose(ours.numpy(), np.gradient(a, places, axis=1, edge_order=order), rtol=1e-9)
    with pytest.raises(tessera.Error, match="fewer than"):
        tessera.gradient(tessera.ones(1), edge_order=order)


def test_bits_of_numbers(rng):
    a = np.concatenate([rng.normal(size=100) * 10.0 ** rng.integers(-38, 38, 100), [0.0, -0.0, np.inf, -np.inf, 1e-45, 1.0]])
    a = a.astype(np.float32)
    mantissa, exponent = tessera.frexp(tessera.from_numpy(a))
    wanted = np.frexp(a)
    np.testing.assert_array_equal(mantissa.numpy(), wanted[0])
    finite = np.isfinite(a)
    assert exponent.dtype == tessera.int32 and (exponent.numpy() == wanted[1])[finite].all()
    for kind in (np.float32, np.float64):
        b = a.astype(kind)
        for other in (kind(0), kind(np.inf), kind(-np.inf), kind(np.nan)):
            np.testing.assert_array_equal(tessera.nextafter(tessera.from_numpy(b), tessera.tensor(other)).numpy(), np.nextafter(b, other))
    with pytest.raises(tessera.Error, match="^frexp: takes floating-point tensors"):
        tessera.frexp(tessera.tensor([1]))
    with pytest.raises(tessera.Error, match="^nextafter: takes"):
        tessera.nextafter(tessera.tensor([1.0]), tessera.tensor([1]))
