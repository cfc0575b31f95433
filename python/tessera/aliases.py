"""Other names that PyTorch has for the same."""
from __future__ import annotations

from . import _C, functions, linalg, shapes, special

absolute, arccos, arcsin, arctan, arctan2 = _C.abs, _C.acos, _C.asin, _C.atan, _C.atan2
arccosh, arcsinh, arctanh = _C.acosh, _C.asinh, _C.atanh
true_divide, divide, multiply, negative, subtract = _C.div, functions.div, _C.mul, _C.neg, _C.sub
fix, clip, ger, sgn, argwhere = _C.trunc, functions.clamp, functions.outer, _C.sign, _C.nonzero
greater, greater_equal, less, less_equal, not_equal = _C.gt, _C.ge, _C.lt, _C.le, _C.ne
bmm, mv, vdot = _C.matmul, _C.matmul, functions.dot
swapaxes, swapdims, moveaxis = shapes.transpose, shapes.transpose, shapes.movedim
cholesky_solve, cholesky_inverse, slogdet, logdet = linalg.cholesky_solve, linalg.cholesky_inverse, linalg.slogdet, linalg.logdet
matrix_exp, qr, i0, polygamma = linalg.matrix_exp, linalg.qr, special.i0, special.polygamma
matrix_power, vander = linalg.matrix_power, linalg.vander
concat, concatenate, row_stack = shapes.cat, shapes.cat, shapes.vstack


# As methods: names of PyTorch, and those of the same here.
_METHODS = """absolute abs, arccos acos, arcsin asin, arctan atan, arctan2 atan2, arccosh acosh, arcsinh asinh, arctanh atanh,
true_divide div, divide div, multiply mul, negative neg, subtract sub, fix trunc, clip clamp, ger outer, sgn sign,
argwhere nonzero, greater gt, greater_equal ge, less lt, less_equal le, not_equal ne, bmm matmul, mv matmul, vdot dot,
swapaxes transpose, swapdims transpose, moveaxis movedim"""
for _pair in _METHODS.split(","):
    _name, _same = _pair.split()
    setattr(_C.Tensor, _name, getattr(_C.Tensor, _same))
    if hasattr(_C.Tensor, _same + "_"):
        setattr(_C.Tensor, _name + "_", getattr(_C.Tensor, _same + "_"))
for _name in ("matrix_power", "matrix_exp", "slogdet", "logdet", "cholesky_solve", "cholesky_inverse"):
    setattr(_C.Tensor, _name, getattr(linalg, _name))


def _det(self) -> Tensor:  # noqa: F821
    """The determinants of matrices."""
    return _C.det(self)


def _inverse(self) -> Tensor:  # noqa: F821
    """The inverses of matrices."""
    return _C.inverse(self)


_C.Tensor.det, _C.Tensor.inverse = _det, _inverse
