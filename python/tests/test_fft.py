"""Transforms and windows beside NumPy."""
import numpy as np
import pytest
import tessera
from tessera import fft
from tessera.signal import windows


def complex_of(x):
    pairs = x.numpy().astype(np.float64)
    return pairs[..., 0] + 1j * pairs[..., 1]


def pairs_of(z):
    return tessera.from_numpy(np.stack([z.real, z.imag], -1))


def close(ours, theirs):
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * max(1, abs(theirs).max(initial=0)))


NORMS = [None, "backward", "ortho", "forward"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [None, 1, 5, 12])
def test_one_dim(n, norm, rng):
    real, z = rng.normal(size=(3, 7)), rng.normal(size=(3, 7)) + 1j * rng.normal(size=(3, 7))
    x, pairs = tessera.from_numpy(real), pairs_of(z)
    for dim in (0, -1):
        for name in ("fft", "ifft", "rfft", "ihfft"):
            close(complex_of(getattr(fft, name)(x, n, dim, norm)), getattr(np.fft, name)(real, n, dim, norm))
        for name in ("fft", "ifft"):
            close(complex_of(getattr(fft, name)(pairs, n, dim, norm, complex=True)), getattr(np.fft, name)(z, n, dim, norm))
        for name in ("irfft", "hfft"):
            close(getattr(fft, name)(x, n, dim, norm).numpy(), getattr(np.fft, name)(real, n, dim, norm))
            close(getattr(fft, name)(pairs, n, dim, norm, complex=True).numpy(), getattr(np.fft, name)(z, n, dim, norm))


@pytest.mark.parametrize("norm", NORMS)
def test_several_dims(norm, rng):
    real = rng.normal(size=(4, 3, 6))
    x = tessera.from_numpy(real)
    for sizes, dims in ((None, None), ((5, 4), (0, 2)), (None, (1,))):
        for name in ("fftn", "ifftn", "rfftn"):
            close(complex_of(getattr(fft, name)(x, sizes, dims, norm)), getattr(np.fft, name)(real, sizes, dims, norm))
        close(fft.irfftn(x, sizes, dims, norm).numpy(), np.fft.irfftn(real, sizes, dims, norm))
    close(complex_of(fft.fft2(x, norm=norm)), np.fft.fft2(real, norm=norm))
    there = fft.ihfftn(x, dim=(0, 2), norm=norm)
    close(fft.hfftn(there, (4, 6), (0, 2), norm, complex=True).numpy(), real)


def test_inverse_and_gradient(rng):
    real = rng.normal(size=(2, 9))
    x = tessera.from_numpy(real).requires_grad_()
    back = fft.irfft(fft.rfft(x), 9, complex=True)
    close(back.detach().numpy(), real)
    weight = tessera.from_numpy(rng.normal(size=(2, 9)))
    (back * weight).sum().backward()
    close(x.grad.numpy(), weight.numpy())


def test_frequencies_and_shifts(rng):
    real = rng.normal(size=(4, 5))
    x = tessera.from_numpy(real)
    for n in (1, 4, 5):
        close(fft.fftfreq(n, 0.5, dtype="float64").numpy(), np.fft.fftfreq(n, 0.5))
        close(fft.rfftfreq(n, 0.5, dtype="float64").numpy(), np.fft.rfftfreq(n, 0.5))
    for dim in (None, 0, (0, 1), -1):
        close(fft.fftshift(x, dim).numpy(), np.fft.fftshift(real, dim))
        assert tessera.equal(fft.ifftshift(fft.fftshift(x, dim), dim), x)


@pytest.mark.parametrize("call,message", [
    (lambda x: fft.fft(x, 0), "a length of 0 is not positive"), (lambda x: fft.fft(x, dim=2), r"dims \[2\] of a tensor of 2 dims"),
    (lambda x: fft.fft(x, norm="other"), "norm 'other' is none of"), (lambda x: fft.fft(x, complex=True), "have a last dim of 2"),
    (lambda x: fft.fftn(x, (3, 3), (0,)), "2 lengths for 1 dims"), (lambda x: fft.fftn(x, dim=(0, 0)), "dims"),
    (lambda x: fft.irfft(x[:, :1]), "a length of 0 is not positive"), (lambda x: fft.rfftn(x, dim=()), "needs a dim")])
def test_bad_transforms(call, message):
    with pytest.raises(tessera.Error, match=message):
        call(tessera.ones(2, 3))


@pytest.mark.parametrize("M", [0, 1, 2, 7, 16])
def test_windows(M):
    wanted = {"hann": np.hanning, "hamming": np.hamming, "blackman": np.blackman, "bartlett": np.bartlett}
    for name, theirs in wanted.items():
        window = getattr(windows, name)
        close(window(M, dtype="float64").numpy(), theirs(M))
        if M > 1:
            close(window(M, sym=False, dtype=tessera.float64).numpy(), theirs(M + 1)[:-1])
    close(windows.kaiser(M, beta=9.5, dtype="float64").numpy(), np.kaiser(M, 9.5))
    close(windows.general_hamming(M, alpha=0.5, dtype="float64").numpy(), np.hanning(M))
    n = np.arange(M)
    close(windows.gaussian(M, std=2, dtype="float64").numpy(), np.exp(-((n - (M - 1) / 2) ** 2) / 8))
    close(windows.exponential(M, tau=3.0, dtype="float64").numpy(), np.exp(-abs(n - (M - 1) / 2) / 3))
    close(windows.cosine(M, dtype="float64").numpy(), np.sin(np.pi * (n + 0.5) / max(M, 1)))


@pytest.mark.parametrize("call,message", [
    (lambda: windows.hann(-1), "general_cosine: a window of -1 elements"), (lambda: windows.gaussian(3, std=0), "std 0 is not positive"),
    (lambda: windows.hann(3, dtype="int64"), "takes floating-point dtypes"), (lambda: windows.exponential(3, tau=0), "tau 0 is not positive"),
    (lambda: windows.exponential(3, center=1), "is its own"), (lambda: windows.kaiser(3, beta=-1), "beta -1 is negative"),
    (lambda: windows.general_cosine(3, []), "no coefficients")])
def test_bad_windows(call, message):
    with pytest.raises(tessera.Error, match=message):
        call()
