"""Other names that PyTorch has for the same."""
from . import _C, functions, shapes

absolute, arccos, arcsin, arctan, arctan2 = _C.abs, _C.acos, _C.asin, _C.atan, _C.atan2
arccosh, arcsinh, arctanh = _C.acosh, _C.asinh, _C.atanh
true_divide, divide, multiply, negative, subtract = _C.div, functions.div, _C.mul, _C.neg, _C.sub
fix, clip, ger, sgn, argwhere = _C.trunc, functions.clamp, functions.outer, _C.sign, _C.nonzero
greater, greater_equal, less, less_equal, not_equal = _C.gt, _C.ge, _C.lt, _C.le, _C.ne
bmm, mv, vdot = _C.matmul, _C.matmul, functions.dot
swapaxes, swapdims, moveaxis = shapes.transpose, shapes.transpose, shapes.movedim
concat, concatenate, row_stack = shapes.cat, shapes.cat, shapes.vstack


def _method(function):
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


for _name, _function in list(globals().items()):
    if not _name.startswith("_") and callable(_function) and not _name.startswith(("concat", "row_")):
        setattr(_C.Tensor, _name, _method(_function))
