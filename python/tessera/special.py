"""Special functions, as torch.special has them."""
from __future__ import annotations

import math

from . import _C, creation, functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._types import Operand

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
