"""torch.nn.functional: layers, pools, activations and losses as functions."""
from __future__ import annotations

import builtins
import functools
import inspect
import math

from .. import _C, autograd, creation, functions, shapes
from .._documents import signature_of as _signature_of, text_of as _text_of
from .._guard import guard as _guard
from .._C import (  # noqa: F401
    celu, channel_shuffle, elu, hardsigmoid, hardswish, logsigmoid, mish, pixel_shuffle, pixel_unshuffle, relu,
    relu6, selu, sigmoid, silu, softsign, tanh, tanhshrink)
from .._C import Tensor, dtype
from ..functions import gelu, pdist  # noqa: F401
from ..shapes import one_hot  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any, Callable, DTypeLike, Dims, Operand, Sequence


def _each(value, n):
    """A number for each of n dims."""
    if isinstance(value, (tuple, list)):
        return list(value) * (n if len(value) == 1 else 1)
    return [value] * n


def _reduced(loss, reduction, count=None):
    if reduction == "none":
        return loss
    if reduction == "sum":
        return _C.sum(loss)
    if reduction != "mean":
        raise _C.Error(f"reduction: {reduction!r} is none of: none, mean, sum")
    return _C.mean(loss) if count is None else _C.sum(loss) / count


def _weighted(loss, weight, reduction):
    """The same with a factor for each element, by whose sum a mean divides."""
    if weight is None:
        return _reduced(loss, reduction)
    return _reduced(loss * weight, reduction, _C.sum(weight.expand(loss.shape)))


def _loss(function, reduction, input, target, *arguments):
    """A loss of elements, to whose shape both broadcast."""
    if reduction not in ("none", "mean", "sum"):
        raise _C.Error(f"reduction: {reduction!r} is none of: none, mean, sum")
    if input.shape != target.shape:
        input, target = shapes.broadcast_tensors(input, target)
    return function(input, target, *arguments, reduction)


def _batched(rank):
    """Lets a function of images take one without a batch: `rank` counts the batch and the channels."""
    def decorate(function):
        def wrapped(input, *args, **kwargs):
            if input.ndim == rank:
                return function(input, *args, **kwargs)
            out = function(input.unsqueeze(0), *args, **kwargs)
            return tuple(o.squeeze(0) for o in out) if isinstance(out, tuple) else _C.squeeze(out, 0)
        functools.update_wrapper(wrapped, function)
        return wrapped
    return decorate


# ---- linear layers


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _C.linear(input, weight, bias) if weight.ndim == 2 and input.ndim > 1 else _plain_linear(input, weight, bias)


def _plain_linear(input, weight, bias):
    out = _C.matmul(input, shapes.t(weight))
    return out if bias is None else out + bias


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = _C.einsum("...i,oij,...j->...o", [input1, weight, input2])
    return out if bias is None else out + bias


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float =
              2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Rows of `weight`; that of `padding_idx` gets no gradient."""
    if max_norm is not None or scale_grad_by_freq:
        raise _C.Error("embedding: max_norm and scale_grad_by_freq are not there")
    return _C.embedding(input, weight) if padding_idx is None else _C.embedding(input, weight, padding_idx)


def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
                  scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None =
                  None, include_last_offset: bool = False, padding_idx: int | None = None) -> Tensor:
    if max_norm is not None or scale_grad_by_freq:
        raise _C.Error("embedding_bag: max_norm and scale_grad_by_freq are not there")
    return _C.embedding_bag(input, weight, mode, offsets, include_last_offset, per_sample_weights, padding_idx)


# ---- convolutions


def _padding(padding, weight, dilation, n):
    """What lies before and behind each dim."""
    if padding == "valid":
        return [0] * n, [0] * n
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        return [t // 2 for t in total], [t - t // 2 for t in total]
    return _each(padding, n), _each(padding, n)


def _convolution(n):
    @_batched(n + 2)
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Dims | None = 1, padding: Dims | str = 0,
             dilation: Dims = 1, groups: int = 1) -> Tensor:
        dilation = _each(dilation, n)
        low, high = _padding(padding, weight, dilation, n)
        if n == 2 and low == high:
            return _C.conv2d(input, weight, bias, _each(stride, n), low, dilation, groups)
        return _C.conv(input, weight, bias, stride=_each(stride, n), low=low, high=high, dilation=dilation, groups=groups)
    conv.__name__ = f"conv{n}d"
    conv.__doc__ = f"x [n, c, sizes of {n} dims], weight [out, c / groups, windows], bias [out] -> [n, out, ...]."
    return conv


def _transposed(n):
    @_batched(n + 2)
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Dims | None = 1, padding: Dims | str = 0,
             output_padding: Dims = 0, groups: int = 1, dilation: Dims = 1) -> Tensor:
        cut = _each(padding, n)
        return _C.conv_transpose(input, weight, bias, stride=_each(stride, n), low=cut, high=cut,
                                 output_padding=_each(output_padding, n), dilation=_each(dilation, n), groups=groups)
    conv.__name__ = f"conv_transpose{n}d"
    conv.__doc__ = f"x [n, c, sizes of {n} dims], weight [c, out / groups, windows], bias [out] -> [n, out, ...]."
    return conv


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed, (1, 2, 3))


@_batched(4)
def unfold(input: Tensor, kernel_size: Dims, dilation: Dims = 1, padding: Dims = 0, stride: Dims | None = 1) -> Tensor:
    cut = _each(padding, 2)
    return _C.unfold(input, _each(kernel_size, 2), stride=_each(stride, 2), low=cut, high=cut, dilation=_each(dilation, 2))


@_batched(3)
def fold(input: Tensor, output_size: Dims, kernel_size: Dims, dilation: Dims = 1, padding: Dims = 0, stride: Dims = 1) -> Tensor:
    cut = _each(padding, 2)
    return _C.fold(input, _each(output_size, 2), _each(kernel_size, 2), stride=_each(stride, 2), low=cut, high=cut,
                   dilation=_each(dilation, 2))


# ---- pools


def _windows(n, kernel_size, stride, padding, dilation, ceil_mode):
    size, cut = _each(kernel_size, n), _each(padding, n)
    for k, p in zip(size, cut):
        if p > k / 2:
            raise _C.Error(f"pool: padding {p} is more than half of the window {k}")
    return {"size": size, "stride": size if stride in (None, ()) else _each(stride, n), "low": cut, "high": cut,
            "dilation": _each(dilation, n), "ceil": ceil_mode}


def _max_pool(n):
    @_batched(n + 2)
    def pool(input: Tensor, kernel_size: Dims, stride: Dims | None = None, padding: Dims = 0, dilation: Dims = 1, ceil_mode: bool
             = False, return_indices: bool = False) -> Any:
        windows = _windows(n, kernel_size, stride, padding, dilation, ceil_mode)
        return (_C.max_pool_with_indices if return_indices else _C.max_pool)(input, **windows)
    pool.__name__ = f"max_pool{n}d"
    pool.__doc__ = f"Maxima of windows: x [n, c, sizes of {n} dims] -> [n, c, windows], and where they are with `return_indices`."
    return pool


def _avg_pool(n):
    @_batched(n + 2)
    def pool(input: Tensor, kernel_size: Dims, stride: Dims | None = None, padding: Dims = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
        windows = _windows(n, kernel_size, stride, padding, 1, ceil_mode)
        if divisor_override is None:
            return _C.avg_pool(input, **windows, count_include_pad=count_include_pad)
        # With the padding made zeros, all windows have as many elements; those that begin beyond it are left out.
        size, step, cut = windows["size"], windows["stride"], windows["low"]
        room = [c + (s - 1 if ceil_mode else 0) for c, s in zip(cut, step)]
        out = _C.avg_pool(_C.pad(input, cut, room), size, step) * (math.prod(size) / divisor_override)
        for d, (length, s, c) in enumerate(zip(input.shape[2:], step, cut), start=2):
            out = _C.slice(out, d, 0, builtins.min(out.shape[d], (length + c - 1) // s + 1))
        return out
    pool.__name__ = f"avg_pool{n}d"
    pool.__doc__ = f"Means of windows: x [n, c, sizes of {n} dims] -> [n, c, windows]."
    return pool


def _lp_pool(n):
    def pool(input: Tensor, norm_type: float, kernel_size: Dims, stride: Dims | None = None, ceil_mode: bool = False) -> Tensor:
        means = (avg_pool1d, avg_pool2d, avg_pool3d)[n - 1](_C.pow(input, norm_type), kernel_size, stride, 0, ceil_mode)
        return _C.pow(means * math.prod(_each(kernel_size, n)), 1.0 / norm_type)
    pool.__name__ = f"lp_pool{n}d"
    pool.__doc__ = f"Norms of order norm_type of windows: x [n, c, sizes of {n} dims] -> [n, c, windows]."
    return pool


def _adaptive(n, plain):
    @_batched(n + 2)
    def pool(input: Tensor, output_size: int | Sequence[int | None], return_indices: bool = False) -> Any:
        sizes = [input.shape[i - n] if s is None else s for i, s in enumerate(_each(output_size, n))]
        return (plain(input, sizes), _places_of_maxima(input, sizes)) if return_indices else plain(input, sizes)
    pool.__name__ = f"{plain.__name__}{n}d"
    pool.__doc__ = f"As many windows as `output_size` says: x [n, c, sizes of {n} dims] -> [n, c, output_size]."
    return pool


def _places_of_maxima(input, sizes):
    """Where adaptive_max_pool finds its maxima, row-major in each plane."""
    n, x = len(sizes), input.detach()
    place = creation.arange(math.prod(x.shape[2:]), device=x.device).reshape(x.shape[2:])
    for d, m in enumerate(sizes):  # window i of dim d becomes row i of two dims, filled up by its first element
        length, at, dim = x.shape[2 + 2 * d], [], 2 + 2 * d
        bounds = [(i * length // m, -(-(i + 1) * length // m)) for i in range(m)]
        widest = builtins.max(b - a for a, b in bounds)
        at = creation.tensor([[a + k if a + k < b else a for k in range(widest)] for a, b in bounds], device=x.device)
        x = _C.index_select(x, dim, at.reshape((-1,))).reshape(x.shape[:dim] + at.shape + x.shape[dim + 1:])
        place = _C.index_select(place, 2 * d, at.reshape((-1,))).reshape(
            place.shape[:2 * d] + at.shape + place.shape[2 * d + 1:])
    order = [2 * d for d in range(n)] + [2 * d + 1 for d in range(n)]
    place = _C.permute(place, order).reshape((*sizes, -1))
    windows = _C.permute(x, [0, 1, *(o + 2 for o in order)]).reshape(x.shape[:2] + (*sizes, -1))
    best = _C.argmax(windows, -1, True)
    return _C.squeeze(_C.gather(place.expand(windows.shape), -1, best), -1)


def _unpool(n):
    def pool(input: Tensor, indices: Tensor, kernel_size: Dims, stride: Dims | None = None, padding: Dims = 0, output_size: int |
             Sequence[int | None] = None) -> Any:
        size, cut = _each(kernel_size, n), _each(padding, n)
        step = size if stride in (None, ()) else _each(stride, n)
        if output_size is None:
            output_size = [(d - 1) * s - 2 * p + k for d, s, p, k in zip(input.shape[-n:], step, cut, size)]
        # Of several values for one place the last one stays, and all get its gradient; max_unpool() gives their sum.
        sizes = list(output_size)[-n:]
        planes = input.shape[:-n] + (math.prod(sizes),)
        lines = planes[:-1] + (-1,)
        blank = creation.zeros(planes, dtype=input.dtype, device=input.device)
        at, values = indices.reshape(lines), input.reshape(lines)
        if values.requires_grad and _C.is_grad_enabled():
            out = _C.custom_function("max_unpool", [values], lambda xs: [_C.scatter(blank, -1, at, xs[0])],
                                     lambda xs, ys, grads: [_C.gather(grads[0], -1, at)])[0]
        else:
            out = _C.scatter(blank, -1, at, values)
        return out.reshape(planes[:-1] + tuple(sizes))
    pool.__name__ = f"max_unpool{n}d"
    pool.__doc__ = f"Maxima of {n}-d windows back where they were, and 0 elsewhere."
    return pool


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))
max_unpool1d, max_unpool2d, max_unpool3d = map(_unpool, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive(n, _C.adaptive_avg_pool) for n in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive(n, _C.adaptive_max_pool) for n in (1, 2, 3))


# ---- sampling


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`pad` holds what goes before and behind the last dim, then the one before it, and so on; negative numbers cut."""
    low, high = list(pad[0::2])[::-1], list(pad[1::2])[::-1]
    if mode == "replicate" and builtins.min(pad) < 0:
        for dim, (a, b) in enumerate(zip(low, high), start=input.ndim - len(low)):
            n = input.shape[dim]
            input = _C.index_select(input, dim, _C.clamp(creation.arange(-a, n + b, device=input.device), 0, n - 1))
        return input
    if mode != "circular":  # cut off first
        for dim, (a, b) in enumerate(zip(low, high), start=input.ndim - len(low)):
            if (a < 0 or b < 0) and input.shape[dim] + builtins.min(a, 0) + builtins.min(b, 0) >= 0:
                input = _C.slice(input, dim, -builtins.min(a, 0), input.shape[dim] + builtins.min(b, 0))
                low[dim - input.ndim], high[dim - input.ndim] = builtins.max(a, 0), builtins.max(b, 0)
    if mode == "constant":
        return _C.pad(input, low, high, 0 if value is None else float(value))
    kinds = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in kinds:
        raise _C.Error(f"pad: mode {mode!r} is none of: constant, {', '.join(kinds)}")
    return _C.pad(input, low, high, kinds[mode])


def interpolate(input: Tensor, size: Dims | None = None, scale_factor: float | Sequence[float] | None = None, mode: str =
                'nearest', align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool =
                False) -> Tensor:
    """Images resized; modes nearest, nearest-exact, linear, bilinear, trilinear, bicubic and area."""
    n = input.ndim - 2
    if (size is None) == (scale_factor is None):
        raise _C.Error("interpolate: one of size and scale_factor is given")
    sizes = _each(size, n) if size is not None else None
    if scale_factor is not None:
        scales = [float(s) for s in _each(scale_factor, n)]
        if recompute_scale_factor or align_corners or mode == "area":
            sizes = [d * int(s) if s == int(s) else math.floor(d * s) for d, s in zip(input.shape[2:], scales)]
    if mode == "area":
        return _C.adaptive_avg_pool(input, sizes)
    kinds = {"nearest": "nearest", "nearest-exact": "nearest", "linear": "linear", "bilinear": "linear",
             "trilinear": "linear", "bicubic": "cubic"}
    if mode not in kinds:
        raise _C.Error(f"interpolate: mode {mode!r} is none of: area, {', '.join(kinds)}")
    options = {"interpolation": kinds[mode], "coordinates": "align_corners" if align_corners else "half_pixel"}
    if mode == "nearest":
        options.update(coordinates="asymmetric", nearest="floor")
    elif mode == "nearest-exact":
        options.update(nearest="round_prefer_ceil")
    if antialias:
        options.update(antialias=True, exclude_outside=True, cubic=-0.5)
    dims = list(range(2, n + 2))
    if sizes is not None:
        return _C.resize(input, dims, sizes, **options)
    return _C.resize_by(input, dims, scales, **options)


def upsample(input: Tensor, size: Dims | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = "nearest",
             align_corners: bool | None = None) -> Tensor:
    """interpolate() under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def grid_sample(input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool =
                False) -> Tensor:
    kinds = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    return _C.grid_sample(input, grid, kinds[mode], padding_mode, bool(align_corners))


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    return _C.affine_grid(theta, list(size)[2:], bool(align_corners))


# ---- activations


def softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    return functions.softmax(input, _default_dim(input) if dim is None else dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    return functions.log_softmax(input, _default_dim(input) if dim is None else dim, dtype=dtype)


def softmin(input: Tensor, dim: Dims | None = None, *, dtype: DTypeLike | None = None) -> Tensor:
    return softmax(_C.neg(input), dim, dtype=dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    return _C.gumbel_softmax(logits, tau, hard, dim)


def _default_dim(input):
    return 0 if input.ndim in (0, 1, 3) else 1


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return _C.leaky_relu(input, negative_slope)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    if weight.numel() == 1:
        weight = weight.reshape((1,))
    return _C.prelu(input if input.ndim > 1 or weight.numel() == 1 else input.unsqueeze(0), weight).reshape(input.shape)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return _C.hardtanh(input, min_val, max_val)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if beta == 1 and threshold >= 20 and input.dtype != dtype.float64:  # beyond which it is x, rounded
        return _C.softplus(input)
    scaled = input * float(beta)
    return _C.where(_C.gt(scaled, threshold), input, _C.softplus(scaled) / float(beta))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    return _C.softshrink(input, lambd)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    if lambd < 0:
        return input.clone()
    return _C.hardshrink(input, lambd)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    return _C.threshold(input, threshold, value)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    return _C.glu(input, dim)


def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    return _C.rrelu(input, lower, upper, training)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Whole channels of [n, c, length] zeroed, the others scaled."""
    return _dropped_channels(input, p, training, 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Whole channels of [n, c, h, w] zeroed, the others scaled."""
    return _dropped_channels(input, p, training, 2)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Whole channels of [n, c, d, h, w] zeroed, the others scaled."""
    return _dropped_channels(input, p, training, 3)


def _dropped_channels(input, p, training, n):
    if not training or p == 0:
        return input
    if input.ndim == n + 1:
        return _C.feature_dropout(input.unsqueeze(0), p).squeeze(0)
    return _C.feature_dropout(input, p)


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    return _C.alpha_dropout(input, p) if training else input


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    return _C.feature_alpha_dropout(input, p) if training else input


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    return _C.dropout(input, p, training)


# ---- norms


def normalize(input: Tensor, p: float = 2.0, dim: Dims = 1, eps: float = 1e-12) -> Tensor:
    size = functions._vector_norm(input, p, dim, True)
    return input / _C.maximum(size, eps).expand(input.shape)


def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps:
               float = 1e-05) -> Tensor:
    if weight is None and (bias is not None or len(normalized_shape) != 1):
        weight = creation.ones(tuple(normalized_shape), dtype=input.dtype, device=input.device)
    return _C.layer_norm(input, weight, bias, eps)


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    eps = {dtype.float64: 2.220446049250313e-16}.get(input.dtype, 1.1920929e-07) if eps is None else eps
    n = len(normalized_shape)
    if input.numel() == 0:
        return input.clone()
    flat = input.reshape(input.shape[:input.ndim - n] + (-1,))
    return _C.rms_norm(flat, None if weight is None else weight.reshape((-1,)), eps).reshape(input.shape)


def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float =
               1e-05) -> Tensor:
    return _C.group_norm(input, num_groups, weight, bias, eps)


def instance_norm(input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None =
                  None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float =
                  1e-05) -> Tensor:
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None:
        with autograd.no_grad():
            dims = [0, *range(2, input.ndim)]
            mean, var = _C.mean(input, dims[1:]), _C.var(input, dims[1:])
            running_mean.copy_(running_mean * (1 - momentum) + _C.mean(mean, 0) * momentum)
            running_var.copy_(running_var * (1 - momentum) + _C.mean(var, 0) * momentum)
    return _C.instance_norm(input, weight, bias, eps)


def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None, bias: Tensor
               | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-05) -> Tensor:
    if input.numel() == 0:
        return input.clone()
    if weight is None and bias is not None:
        weight = creation.ones_like(bias)
    return _C.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def local_response_norm(input: Tensor, size: Dims, alpha: float = 0.0001, beta: float = 0.75, k: int = 1.0) -> Tensor:
    """PyTorch's windows of an even size have one more channel before, and ours one more behind."""
    if size % 2:
        return _C.local_response_norm(input, size, alpha, beta, k)
    channels = input.shape[1]
    squares = _C.pad(input * input, [size // 2, *[0] * (input.ndim - 2)], [(size - 1) // 2, *[0] * (input.ndim - 2)])
    means = _C.mean(_C.sliding_windows(squares, 1, size), -1)
    return input / _C.pow(_C.slice(means, 1, 0, channels) * alpha + k, beta)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: Dims | None = 1, eps: float = 1e-08) -> Tensor:
    a, b = shapes.broadcast_tensors(x1, x2)
    sizes = [_C.maximum(functions._vector_norm(x, 2, dim, True), eps) for x in (a, b)]
    return functions.sum((a / sizes[0]) * (b / sizes[1]), dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> Tensor:
    return functions._vector_norm(_C.add(_C.sub(x1, x2), eps), p, -1, keepdim)


# ---- attention


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float =
                                 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
                                 alibi: float = 0.0) -> Tensor:
    """dropout(softmax(scale q k^T + mask)) v of [batch..., heads, tokens, width]; `alibi` as in SelfAttention."""
    all_three = [x.unsqueeze(0) if x.ndim == 2 else x for x in (query, key, value)]
    lead = shapes.broadcast_shapes(*(x.shape[:-3] for x in all_three))
    batch = math.prod(lead)  # not -1: there may be no keys
    q, k, v = (x.expand(lead + x.shape[-3:]).reshape((batch,) + x.shape[-3:]) for x in all_three)
    if attn_mask is not None and attn_mask.ndim > 4:
        attn_mask = attn_mask.expand(lead + attn_mask.shape[-3:]).reshape((batch,) + attn_mask.shape[-3:])
    out = _C.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal,
                                          scale=0.0 if scale is None else scale, dropout_p=dropout_p, alibi=alibi)
    out = out.reshape(lead + out.shape[-3:])
    return out.squeeze(0) if query.ndim == 2 else out


# ---- losses


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    if weight is None:
        return _loss(_C.mse_loss, reduction, input, target)
    return _weighted(_loss(_C.mse_loss, "none", input, target), weight, reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    if weight is None:
        return _loss(_C.l1_loss, reduction, input, target)
    return _weighted(_loss(_C.l1_loss, "none", input, target), weight, reduction)


def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None =
               None) -> Tensor:
    if weight is None:
        return _loss(_C.huber_loss, reduction, input, target, delta)
    return _weighted(_loss(_C.huber_loss, "none", input, target, delta), weight, reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    return _loss(_C.smooth_l1_loss, reduction, input, target, beta)


def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str =
             'mean') -> Tensor:
    """input [n, classes, ...] of logarithms of probabilities, target [n, ...]."""
    if input.ndim == 1:
        target = target.reshape(())
    return _C.nll_loss(input, target, weight, ignore_index, reduction)


def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Tensor:
    """input [n, classes, ...] of logits; target [n, ...] of classes, or of the shape of input, probabilities."""
    if input.shape == target.shape and target.is_floating_point():
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    plain = weight is None and input.ndim == 2 and target.numel() > 0
    if plain:
        return _C.cross_entropy(input, target, reduction, ignore_index, label_smoothing)
    if weight is None and input.ndim > 2 and target.numel() > 0 and label_smoothing == 0:
        return _C.cross_entropy(input, target, None, 1, ignore_index, 0.0, reduction).to(input.dtype)
    logs = log_softmax(input, 1 if input.ndim > 1 else 0)
    loss = nll_loss(logs, target, weight, ignore_index, reduction)
    if label_smoothing == 0:
        return loss
    classes = 1 if input.ndim > 1 else 0
    spread = logs if weight is None else logs * weight.reshape([-1 if d == classes else 1 for d in range(logs.ndim)])
    there = _C.ne(target, ignore_index)
    smooth = _C.neg(_C.sum(spread, classes)) / logs.shape[classes]
    smooth = _C.where(there, smooth, creation.zeros_like(smooth))
    counted = there.to(input.dtype)
    if weight is not None:
        index = _C.where(there, target, creation.zeros_like(target))
        counted = counted * _C.index_select(weight, 0, index.reshape((-1,))).reshape(index.shape)
    return loss * (1 - label_smoothing) + _reduced(smooth, reduction, _C.sum(counted)) * label_smoothing


def _soft_cross_entropy(input, target, weight, reduction, label_smoothing):
    classes = 1 if input.ndim > 1 else 0
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / input.shape[classes]
    logs = log_softmax(input, classes) * target
    if weight is not None:
        logs = logs * weight.reshape([-1 if d == classes else 1 for d in range(input.ndim)])
    loss = _C.neg(_C.sum(logs, classes))
    return _reduced(loss, reduction, loss.numel() if loss.numel() else None)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    return _loss(_C.binary_cross_entropy, reduction, input, target, weight)


def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
                                     pos_weight: Tensor | None = None) -> Tensor:
    return _loss(_C.binary_cross_entropy_with_logits, reduction, input, target, weight, pos_weight)


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    if reduction == "batchmean":
        total = _loss(_C.kl_div, "sum", input, target, log_target)
        return total / input.shape[0] if input.ndim else total
    return _loss(_C.kl_div, reduction, input, target, log_target)


def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
             blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> Tensor:
    """-log of the probability that log_probs (steps, n, classes) spells the targets, without blanks. Graves et al. 2006."""
    lengths = (n if isinstance(n, Tensor) else creation.tensor(list(n), dtype=dtype.int64) for n in (input_lengths, target_lengths))
    return _C.ctc_loss(log_probs, targets, *lengths, blank=blank, reduction=reduction, zero_infinity=zero_infinity)


def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-08, reduction: str
                     = 'mean') -> Tensor:
    return _loss(_C.poisson_nll_loss, reduction, input, target, log_input, full, eps)


def gaussian_nll_loss(input: Tensor, target: Tensor, var: Operand, full: bool = False, eps: float = 1e-06, reduction: str =
                      'mean') -> Tensor:
    if not isinstance(var, Tensor):
        var = creation.full_like(input, var)
    return _loss(_C.gaussian_nll_loss, reduction, input, target, var, full, eps)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    return _loss(_C.hinge_embedding_loss, reduction, input, target, margin)


def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    return _C.margin_ranking_loss(input1, input2, target, margin, reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return _loss(_C.soft_margin_loss, reduction, input, target)


def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    return _loss(_C.multilabel_soft_margin_loss, reduction, input, target, weight)


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return _C.multilabel_margin_loss(input, target, reduction)


def multi_margin_loss(input: Tensor, target: Tensor, p: float = 1, margin: float = 1.0, weight: Tensor | None = None, reduction:
                      str = 'mean') -> Tensor:
    return _C.multi_margin_loss(input, target, int(p), margin, weight, reduction)


def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    eps = 1e-12
    a, b = _C.sum(input1 * input1, -1) + eps, _C.sum(input2 * input2, -1) + eps
    alike = _C.sum(input1 * input2, -1) / _C.sqrt(a * b)
    zero = creation.zeros_like(alike)
    loss = _C.where(_C.eq(target, 1), 1 - alike, zero) + _C.where(_C.eq(target, -1), _C.relu(alike - margin), zero)
    return _reduced(loss, reduction)


def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float =
                        1e-06, swap: bool = False, reduction: str = 'mean') -> Tensor:
    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=lambda a, b: pairwise_distance(a, b, p, eps), margin=margin, swap=swap,
        reduction=reduction)


def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Callable[[Tensor,
                                      Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False, reduction: str =
                                      'mean') -> Tensor:
    """max(distance(anchor, positive) - distance(anchor, negative) + margin, 0), reduced."""
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = _C.minimum(far, distance(positive, negative))
    return _reduced(_C.relu(near - far + margin), reduction)


# ---- functions that may write their result to their input


def _may_write(name, function):
    """The same with a last argument `inplace`. Where backward may want the input as it was, the function gets a copy."""
    wants_input = name not in ("relu", "dropout")
    signature = _signature_of(function)
    count = len(signature.parameters) - 1

    def wrapped(input, *args, inplace=False, **kwargs):
        if len(args) > count:
            *args, inplace = args
        if not inplace:
            return function(input, *args, **kwargs)
        copied = wants_input and input.requires_grad and autograd.is_grad_enabled()
        return input.copy_(function(input.clone() if copied else input, *args, **kwargs))
    last = inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation="bool")
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values(), last])
    wrapped.__name__ = wrapped.__qualname__ = name
    wrapped.__doc__ = (function.__doc__ or "").partition("\n\n")[2] or function.__doc__ or _text_of(name)
    return wrapped


for _name in """relu relu6 elu selu celu silu mish hardswish hardsigmoid leaky_relu hardtanh threshold rrelu dropout dropout1d
dropout2d dropout3d alpha_dropout feature_alpha_dropout""".split():
    globals()[_name] = _may_write(_name, globals()[_name])


def _in_place(name, function):
    def write(input: Tensor, *args: Any) -> Tensor:
        return function(input, *args, inplace=True)
    write.__name__, write.__doc__ = name, f"{function.__name__}(), written to its input."
    return write


for _name in "relu elu selu celu leaky_relu hardtanh threshold rrelu".split():
    globals()[_name + "_"] = _in_place(_name + "_", globals()[_name])


def upsample_nearest(input: Tensor, size: Dims | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """interpolate() with the nearest elements."""
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Dims | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """interpolate() of images, corners on corners."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)

_guard(globals())
