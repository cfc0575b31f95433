"""Functions of matrices, special functions and reductions under masks, beside NumPy and beside what defines them."""
import math

import numpy as np
import pytest
import tessera
from tessera import linalg, masked, special


def close(ours, theirs, bound=1e-9):
    ours = ours.detach().numpy() if isinstance(ours, tessera.Tensor) else ours
    assert ours.shape == np.shape(theirs)
    assert np.linalg.norm(ours - theirs) <= bound * max(1, np.linalg.norm(theirs))


def slope(function, x, weight):
    """Finite differences of the sum of a function's results times weights."""
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        sides = []
        for step in (1e-6, -1e-6):
            y = x.copy()
            y[at] += step
            sides.append((function(tessera.from_numpy(y)).numpy() * weight).sum())
        out[at] = (sides[0] - sides[1]) / 2e-6
    return out


@pytest.mark.parametrize("name,function", [
    ("matrix_exp", linalg.matrix_exp), ("logdet", lambda x: linalg.slogdet(x)[1]), ("r", lambda x: linalg.qr(x)[1]),
    ("q", lambda x: linalg.qr(x)[0]), ("lower", lambda x: linalg.solve_triangular(x, x + 1.0, upper=False)),
    ("i0", special.i0), ("i1e", special.i1e), ("erfcx", special.erfcx), ("log_ndtr", special.log_ndtr)])
def test_gradients(name, function, rng):
    x = rng.normal(size=(2, 3, 3)) * 1.5
    weight = rng.normal(size=function(tessera.from_numpy(x)).shape)
    leaf = tessera.from_numpy(x).requires_grad_()
    (function(leaf) * tessera.from_numpy(weight)).sum().backward()
    close(leaf.grad, slope(function, x, weight), 1e-6)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 3, 1), (1, 1), (0, 2)])
def test_qr(shape, rng):
    a = rng.normal(size=shape)
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(tessera.from_numpy(a), mode)
        wanted = np.linalg.qr(a, mode)
        close(q, wanted[0])
        close(r, wanted[1])
    assert linalg.qr(tessera.from_numpy(a), "r")[0].shape == (0,)
    singular = np.ones((3, 2))
    q, r = linalg.qr(tessera.from_numpy(singular))
    close(tessera.matmul(q, r), singular)
    with pytest.raises(tessera.Error, match="^qr: mode 'other' is none of"):
        linalg.qr(tessera.ones(2, 2), "other")
    with pytest.raises(tessera.Error, match="are no matrices"):
        linalg.qr(tessera.ones(2))


def test_systems(rng):
    a = rng.normal(size=(2, 4, 4)) + 4 * np.eye(4)
    spd = a @ np.swapaxes(a, 1, 2)
    b = rng.normal(size=(2, 4, 3))
    low = np.linalg.cholesky(spd)
    for upper in (False, True):
        factor = tessera.from_numpy(np.ascontiguousarray(np.swapaxes(low, 1, 2)) if upper else low)
        close(tessera.cholesky_solve(tessera.from_numpy(b), factor, upper), np.linalg.solve(spd, b))
        close(tessera.cholesky_inverse(factor, upper), np.linalg.inv(spd))
        triangle = np.triu(a) if upper else np.tril(a)
        close(linalg.solve_triangular(tessera.from_numpy(a), tessera.from_numpy(b), upper=upper), np.linalg.solve(triangle, b))
    sign, logs = tessera.slogdet(tessera.from_numpy(-a[:, :3, :3]))
    close(sign, np.linalg.slogdet(-a[:, :3, :3])[0])
    close(logs, np.linalg.slogdet(-a[:, :3, :3])[1])
    large = 1e3 * (rng.normal(size=(200, 200)) + 20 * np.eye(200))
    close(tessera.slogdet(tessera.from_numpy(large))[1], np.linalg.slogdet(large)[1])
    assert math.isnan(tessera.logdet(tessera.tensor([[-1.0]])).item())
    close(linalg.tensorinv(tessera.from_numpy(a[0].reshape(2, 2, 4)), 2), np.linalg.tensorinv(a[0].reshape(2, 2, 4), 2))
    close(linalg.tensorsolve(tessera.from_numpy(a[0].reshape(4, 2, 2)), tessera.from_numpy(b[0, :, 0].copy())),
          np.linalg.tensorsolve(a[0].reshape(4, 2, 2), b[0, :, 0]))
    turn = tessera.tensor([[0.0, -math.pi / 2], [math.pi / 2, 0.0]], dtype="float64")
    close(tessera.matrix_exp(turn), np.array([[0.0, -1.0], [1.0, 0.0]]))
    for call in (lambda: linalg.tensorinv(tessera.ones(2, 3)), lambda: tessera.matrix_exp(tessera.ones(2, 3)),
                 lambda: linalg.tensorsolve(tessera.ones(2, 3), tessera.ones(2))):
        with pytest.raises(tessera.Error):
            call()


def bessel(n, x):
    t = (np.arange(2000) + 0.5) * np.pi / 2000
    return (np.exp(x[..., None] * (np.cos(t) - 1)) * np.cos(n * t)).mean(-1)


def test_bessel_functions():
    x = np.concatenate([np.linspace(0, 30, 301), [100.0, 250.0]])
    for n, scaled, plain in ((0, special.i0e, special.i0), (1, special.i1e, special.i1)):
        close(scaled(tessera.from_numpy(x)), bessel(n, x), 1e-11)
        close(plain(tessera.from_numpy(x)), bessel(n, x) * np.exp(x), 1e-11)
        sign = (-1) ** n
        close(scaled(tessera.from_numpy(-x)), sign * bessel(n, x), 1e-11)
    assert special.i0(tessera.tensor([1, 2])).dtype == tessera.float32


def test_erfc_scaled():
    x = np.linspace(-5, 25, 301)
    wanted = np.array([math.exp(v * v) * math.erfc(v) for v in x])
    np.testing.assert_allclose(special.erfcx(tessera.from_numpy(x)).numpy(), wanted, rtol=1e-11)
    np.testing.assert_allclose(special.log_ndtr(tessera.from_numpy(-x)).numpy(),
                               [math.log(math.erfc(v / math.sqrt(2)) / 2) for v in x], rtol=1e-9, atol=1e-12)


def test_zeta_and_polygamma():
    assert abs(special.zeta(tessera.tensor(2.0, dtype="float64"), 1).item() - math.pi ** 2 / 6) < 1e-12
    assert abs(special.polygamma(1, tessera.tensor(0.5, dtype="float64")).item() - math.pi ** 2 / 2) < 1e-11
    x = np.linspace(0.2, 9, 50)
    for n in (1, 2, 4):  # by the recurrence of the gamma function
        apart = special.polygamma(n, tessera.from_numpy(x + 1)).numpy() - special.polygamma(n, tessera.from_numpy(x)).numpy()
        np.testing.assert_allclose(apart, (-1.0) ** n * math.factorial(n) / x ** (n + 1), rtol=1e-7)
    assert special.zeta(tessera.tensor(2.0), -3.0).item() == math.inf and math.isnan(special.zeta(tessera.tensor(0.5), 1.0).item())
    with pytest.raises(tessera.Error, match="polygamma: order -1 is none"):
        special.polygamma(-1, tessera.ones(1))


@pytest.mark.parametrize("name,kind", [
    ("chebyshev_polynomial_t", np.polynomial.Chebyshev), ("legendre_polynomial_p", np.polynomial.Legendre),
    ("hermite_polynomial_h", np.polynomial.Hermite), ("hermite_polynomial_he", np.polynomial.HermiteE),
    ("laguerre_polynomial_l", np.polynomial.Laguerre)])
def test_polynomials(name, kind):
    x = np.linspace(-1, 1, 11)
    for n in (0, 1, 2, 6):
        close(getattr(special, name)(tessera.from_numpy(x), n), kind.basis(n)(x))
    assert getattr(special, name)(tessera.ones(2), -1).tolist() == [0, 0]


def test_chebyshev_polynomials_of_other_kinds():
    angle = np.linspace(0.2, 3, 11)
    x, n = tessera.from_numpy(np.cos(angle)), 5
    close(special.chebyshev_polynomial_u(x, n), np.sin((n + 1) * angle) / np.sin(angle))
    close(special.chebyshev_polynomial_v(x, n), np.cos((n + 0.5) * angle) / np.cos(angle / 2))
    close(special.chebyshev_polynomial_w(x, n), np.sin((n + 0.5) * angle) / np.sin(angle / 2))
    close(special.shifted_chebyshev_polynomial_t((x + 1) / 2, n), np.cos(n * angle))


def test_masked(rng):
    a, hold = rng.normal(size=(3, 4)), rng.random((3, 4)) < 0.6
    hold[0] = True
    hold[1] = False
    x, mask = tessera.from_numpy(a), tessera.from_numpy(hold)
    with np.errstate(all="ignore"):
        there = np.ma.array(a, mask=~hold)
        close(masked.sum(x, 1, mask=mask), there.sum(1).filled(0))
        close(masked.prod(x, 1, mask=mask), there.prod(1).filled(1))
        for name in ("mean", "var", "std"):
            theirs = getattr(there, name)(**({} if name == "mean" else {"ddof": 1}))
            close(getattr(masked, name)(x, mask=mask), np.array(theirs))
        assert masked.amax(x, 1, mask=mask).tolist() == there.max(1).filled(-np.inf).tolist()
        assert masked.argmin(x, mask=mask).item() == there.argmin()
        close(masked.cumsum(x, 1, mask=mask), np.where(hold, a, 0).cumsum(1))
        close(masked.norm(x, 2, mask=mask), np.array(np.sqrt((a[hold] ** 2).sum())))
        close(masked.median(x[:1], 1, mask=mask[:1]), np.sort(a[:1], 1)[:, 1])
    rows = masked.softmax(x, 1, mask=mask).numpy()
    assert (rows[2][~hold[2]] == 0).all() and np.isnan(rows[1]).all()
    close(rows[0], np.exp(a[0]) / np.exp(a[0]).sum())
    with pytest.raises(tessera.Error, match="^masked: the mask is of float32, not bool$"):
        masked.sum(x, mask=tessera.ones(3, 4))
