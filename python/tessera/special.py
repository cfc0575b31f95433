"""Special functions, as torch.special has them. Those of series are computed in f64, of many plain operators."""
from __future__ import annotations

import math

from . import _C, creation, functions
from ._guard import guard as _guard
from ._C import Tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Callable, Operand

erf, erfc, erfinv, digamma, psi = _C.erf, functions.erfc, _C.erfinv, _C.digamma, _C.digamma
gammaln, expit, exp2, expm1, log1p = _C.lgamma, _C.sigmoid, _C.exp2, _C.expm1, _C.log1p
logit, xlogy, sinc, round = functions.logit, functions.xlogy, functions.sinc, functions.round
softmax, log_softmax, logsumexp = functions.softmax, functions.log_softmax, functions.logsumexp
multigammaln = functions.mvlgamma


def entr(input: Tensor) -> Tensor:
    """-x log(x), 0 at 0, -inf below."""
    inner = _C.neg(functions.xlogy(input, input))
    below = _C.lt(input, 0)
    return _C.where(below, creation.full_like(inner, -math.inf), inner)


def xlog1py(input: Tensor, other: Operand) -> Tensor:
    """input log(1 + other), 0 where input is 0; they broadcast."""
    return functions.xlogy(input, other + 1)


def ndtr(input: Tensor) -> Tensor:
    """The normal distribution function."""
    return functions.erfc(_C.mul(input, -math.sqrt(0.5))) * 0.5


def ndtri(input: Tensor) -> Tensor:
    """The inverse of ndtr."""
    return _C.erfinv(2 * input.to(_C.dtype.float64) - 1).to(functions._floating(input)) * math.sqrt(2)


# ---- scaled functions, by series of Chebyshev's polynomials that were fitted to integrals in f64

_I0_NEAR = (
    3.383976372047380e-01, -3.046826723431983e-01, 1.716209015222087e-01, -9.490109704804756e-02, 4.930528423967061e-02,
    -2.373741480589958e-02, 1.054646039459490e-02, -4.324309995050629e-03, 1.639475616941516e-03, -5.763755745387776e-04,
    1.885028850959942e-04, -5.754195010098989e-05, 1.644844807089024e-05, -4.416738358616116e-06, 1.117387539230285e-06,
    -2.670793855259768e-07, 6.046995019153455e-08, -1.300025003127630e-08, 2.659823719058293e-09, -5.189795585212776e-10,
    9.675795640633484e-11, -1.726825274376604e-11, 2.954878603921173e-12, -4.855738744208976e-13, 7.679821347008390e-14,
    -1.182531913185557e-14, 1.734762553334252e-15, -2.676167414233684e-16, 9.519504935394554e-17, -1.414421974732677e-16,
    9.018549361397373e-17, -7.609386701643479e-17, 1.023201942837989e-16, 1.857689804066727e-17, 8.223132298117741e-17,
    2.056544069886636e-17, -1.854944247716243e-16, 1.614314651055497e-16, -1.552116805567782e-16)
_I0_FAR = (
    4.022452055070690e-01, 3.369116478226657e-03, 6.889758349825048e-05, 2.891370491752594e-06, 2.048918880553694e-07,
    2.266666078513538e-08, 3.396261171333573e-09, 4.940310940144587e-10, 1.191830954740187e-11, -3.152831852144328e-11,
    -1.318664367706992e-11, -1.823321493036255e-12, 7.471655213304001e-13)
_I1_NEAR = (
    1.262935932218182e-01, -1.764165183578368e-01, 1.026436586898498e-01, -5.294598120809775e-02, 2.472644903062926e-02,
    -1.056408489462900e-02, 4.156422944315580e-03, -1.513572450634013e-03, 5.122859561714222e-04, -1.617608158287100e-04,
    4.781565107823300e-05, -1.327316365877611e-05, 3.470251310790767e-06, -8.568720291286910e-07, 2.003294779903414e-07,
    -4.445059384191257e-08, 9.381539857714873e-09, -1.887252192694873e-09, 3.625614873677854e-10, -6.663732973070657e-11,
    1.173855716860281e-11, -1.986374110382581e-12, 3.247075785149981e-13, -5.277219895405389e-14, 9.990571816902785e-15)
_I1_FAR = (
    3.892881175091545e-01, -9.761097491390524e-03, -1.105889387335600e-04, -3.882564837963050e-06, -2.512235946952133e-07,
    -2.631471759797018e-08, -3.835351260388386e-09, -5.590035063314799e-10, -1.894580608641610e-11, 3.249687558995532e-11,
    1.415496360127411e-11, 2.006459144633407e-12, -6.907091477461800e-13)
_ERFCX = (
    5.770337386164697e-01, 3.554369212704984e-01, 6.509515882878661e-02, 3.671142395836599e-03, -1.112844743352501e-03,
    -1.607582991536376e-04, 3.278031574194765e-05, 5.442441645665703e-06, -1.515466555425763e-06, -1.429760816954111e-07,
    8.234608822632377e-08, -1.296284553230325e-09, -4.154721702336784e-09, 6.347059920481903e-10, 1.432082314646274e-10,
    -6.160382302211368e-11, 2.061225186438359e-12, 3.571456450218190e-12, -8.586456134851443e-13, -6.140597610374430e-14,
    7.431428599721483e-14, -1.284609153486208e-14, -2.220021541652985e-15, 1.539047189843651e-15)


def _series(x, numbers):
    """The sum of numbers[i] T_i(x), x in [-1, 1], by Clenshaw's recurrence."""
    before, last = creation.zeros_like(x), creation.zeros_like(x)
    for number in reversed(numbers[1:]):
        before, last = last, 2.0 * x * last - before + number
    return x * last - before + numbers[0]


def _wide(x):
    return x.to(_C.dtype.float64)


def _bessel(input, near, far):
    """exp(-|x|) I_n(x) of magnitudes: `near` to 8, and beyond."""
    x = _C.abs(_wide(input))
    beyond = _C.maximum(x, 8.0)
    return _C.where(_C.le(x, 8.0), _series(_C.minimum(x, 8.0) * 0.25 - 1.0, near),
                    _series(16.0 / beyond - 1.0, far) / _C.sqrt(beyond))


def _narrow(x, input):
    return x.to(functions._floating(input))


def i0e(input: Tensor) -> Tensor:
    """exp(-|x|) i0(x)."""
    return _narrow(_bessel(input, _I0_NEAR, _I0_FAR), input)


def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of order 0."""
    return _narrow(_C.mul(_bessel(input, _I0_NEAR, _I0_FAR), _C.exp(_C.abs(_wide(input)))), input)


def _i1e(input):
    x = _wide(input)
    scaled = _C.where(_C.le(_C.abs(x), 8.0), x, _C.sign(x))
    return scaled * _bessel(input, _I1_NEAR, _I1_FAR)


def i1e(input: Tensor) -> Tensor:
    """exp(-|x|) i1(x)."""
    return _narrow(_i1e(input), input)


def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of order 1."""
    return _narrow(_i1e(input) * _C.exp(_C.abs(_wide(input))), input)


modified_bessel_i0, modified_bessel_i1 = i0, i1


def _erfcx(x):
    """Of x >= 0 in f64."""
    scale = 2.0 / (2.0 + x)
    return _series(2.0 * scale - 1.0, _ERFCX) * scale


def erfcx(input: Tensor) -> Tensor:
    """exp(x²) erfc(x)."""
    x = _wide(input)
    right = _erfcx(_C.maximum(x, 0.0))
    left = 2.0 * _C.exp(_C.square(_C.minimum(x, 0.0))) - _erfcx(_C.maximum(_C.neg(x), 0.0))
    return _narrow(_C.where(_C.lt(x, 0.0), left, right), input)


def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(x)), exact far on the left."""
    x = _wide(input)
    left = _C.minimum(x, -1.0)
    far = _C.log(_erfcx(left * -math.sqrt(0.5)) * 0.5) - _C.square(left) * 0.5
    near = _C.log1p(functions.erfc(_C.maximum(x, -1.0) * math.sqrt(0.5)) * -0.5)
    return _narrow(_C.where(_C.lt(x, -1.0), far, near), input)


# Bernoulli's numbers B_2k over (2 k)!.
_EULER_MACLAURIN = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)


def zeta(input: Operand, other: Operand) -> Tensor:
    """Hurwitz's zeta function: the sum of (other + k)^-input for k from 0 on, by Euler and Maclaurin's formula; they broadcast."""
    like = input if isinstance(input, Tensor) else other
    s, q = (_wide(functions._tensor_like(v, like)) for v in (input, other))
    lowest = float(_C.amin(q).item()) if q.numel() else 0.0
    terms = 12 + min(max(0, -math.floor(lowest)), 1000) if lowest == lowest else 12
    total = creation.zeros_like(s + q)
    for k in range(terms):
        total = total + _C.pow(q + k, _C.neg(s))
    at = q + terms
    tail = _C.pow(at, 1.0 - s) / (s - 1.0) + _C.pow(at, _C.neg(s)) * 0.5
    factor = s * _C.pow(at, _C.neg(s) - 1.0)
    for k, number in enumerate(_EULER_MACLAURIN):
        tail = tail + factor * number
        factor = factor * (s + (2 * k + 1)) * (s + (2 * k + 2)) / _C.square(at)
    pole = _C.logical_and(_C.le(q, 0.0), _C.eq(q, _C.floor(q)))
    out = _C.where(pole, creation.full_like(total, math.inf), total + tail)
    out = _C.where(_C.eq(s, 1.0), creation.full_like(total, math.inf), out)
    undefined = _C.logical_or(_C.lt(s, 1.0), _C.logical_and(_C.lt(q, 0.0), _C.logical_and(
        _C.ne(q, _C.floor(q)), _C.ne(s, _C.floor(s)))))
    return _narrow(_C.where(undefined, creation.full_like(total, math.nan), out), like)


def polygamma(n: int, input: Tensor) -> Tensor:
    """The derivative of order `n` of digamma."""
    if not isinstance(n, int) or n < 0:
        raise _C.Error(f"polygamma: order {n} is none")
    if n == 0:
        return _C.digamma(input)
    factorial = float(math.factorial(n)) if n <= 170 else math.inf
    return _narrow(zeta(float(n + 1), _wide(input)) * (factorial if n % 2 else -factorial), input)


# ---- orthogonal polynomials


def _polynomial(name, first, step, shifted=False):
    """By a recurrence: the polynomial of degree 1, and that of degree k + 1 from those of k and k - 1."""
    def polynomial(input: Operand, n: Operand) -> Tensor:
        like = input if isinstance(input, Tensor) else n
        x, degree = (functions._tensor_like(v, like).to(functions._floating(like)) for v in (input, n))
        x, degree = x.expand((x + degree).shape), degree.expand((x + degree).shape)
        x = 2.0 * x - 1.0 if shifted else x
        degree = _C.trunc(degree)
        before, last = creation.ones_like(x), first(x)
        out = _C.where(_C.eq(degree, 0.0), before, creation.zeros_like(x))
        highest = float(_C.amax(degree).item()) if degree.numel() else 0.0
        if not highest <= 10_000:
            raise _C.Error(f"{name}: a degree of {highest:g} is beyond 10000")
        for k in range(1, int(highest) + 1):
            out = _C.where(_C.eq(degree, float(k)), last, out)
            before, last = last, step(k, x, last, before)
        return out
    polynomial.__name__ = name
    polynomial.__doc__ = "The polynomial of that name and of degree n, 0 of negative ones; they broadcast."
    return polynomial


def _chebyshev(kind, shifted):
    first: dict[str, Callable[[Tensor], Tensor]] = {
        "t": lambda x: x, "u": lambda x: 2.0 * x, "v": lambda x: 2.0 * x - 1.0, "w": lambda x: 2.0 * x + 1.0}
    name = f"{'shifted_' if shifted else ''}chebyshev_polynomial_{kind}"
    return _polynomial(name, first[kind], lambda k, x, last, before: 2.0 * x * last - before, shifted)


(chebyshev_polynomial_t, chebyshev_polynomial_u, chebyshev_polynomial_v, chebyshev_polynomial_w) = (
    _chebyshev(kind, False) for kind in "tuvw")
(shifted_chebyshev_polynomial_t, shifted_chebyshev_polynomial_u, shifted_chebyshev_polynomial_v,
 shifted_chebyshev_polynomial_w) = (_chebyshev(kind, True) for kind in "tuvw")
hermite_polynomial_h = _polynomial("hermite_polynomial_h", lambda x: 2.0 * x, lambda k, x, last, before: 2.0 * x * last - 2.0 * k * before)
hermite_polynomial_he = _polynomial("hermite_polynomial_he", lambda x: x, lambda k, x, last, before: x * last - float(k) * before)
laguerre_polynomial_l = _polynomial(
    "laguerre_polynomial_l", lambda x: 1.0 - x, lambda k, x, last, before: ((2.0 * k + 1 - x) * last - float(k) * before) / (k + 1.0))
legendre_polynomial_p = _polynomial(
    "legendre_polynomial_p", lambda x: x, lambda k, x, last, before: ((2.0 * k + 1) * x * last - float(k) * before) / (k + 1.0))


_guard(globals())
