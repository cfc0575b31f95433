"""Layers that are made of functions here, beside those of the library."""
from __future__ import annotations

import math

from .. import creation
from .._documents import signature_of as _signature_of
from . import functional
from .base import Module, Parameter


class _Functional(Module):
    """A function with its options; it takes these as the function does, behind the tensors."""

    def __init__(self, *args, **options):
        super().__init__()
        given = _signature_of(self.function).bind_partial(*[None] * self.tensors, *args, **options).arguments
        self.options = dict(list(given.items())[self.tensors:])

    def forward(self, *tensors):
        return type(self).function(*tensors, **self.options)

    def extra_repr(self):
        return ", ".join(f"{name}={value}" for name, value in self.options.items())


def _layer(name, function, tensors=1):
    doc = (function.__doc__ or "").strip() or f"nn.functional.{function.__name__}() as a module."
    return type(name, (_Functional,), {"function": staticmethod(function), "tensors": tensors, "__doc__": doc,
                                       "__module__": "tessera.nn.layers"})


_ONE = """MaxPool1d max_pool1d, MaxPool2d max_pool2d, MaxPool3d max_pool3d, AvgPool1d avg_pool1d, AvgPool2d avg_pool2d,
AvgPool3d avg_pool3d, AdaptiveAvgPool1d adaptive_avg_pool1d, AdaptiveAvgPool2d adaptive_avg_pool2d,
AdaptiveAvgPool3d adaptive_avg_pool3d, AdaptiveMaxPool1d adaptive_max_pool1d, AdaptiveMaxPool2d adaptive_max_pool2d,
AdaptiveMaxPool3d adaptive_max_pool3d, LeakyReLU leaky_relu, ELU elu, SELU selu, CELU celu, Softplus softplus, Softmax softmax,
LogSoftmax log_softmax, Softmin softmin, Softsign softsign, Softshrink softshrink, Hardtanh hardtanh, Hardswish hardswish,
Hardsigmoid hardsigmoid, Hardshrink hardshrink, Mish mish, LogSigmoid logsigmoid, Tanhshrink tanhshrink, Threshold threshold,
GLU glu, PixelShuffle pixel_shuffle, PixelUnshuffle pixel_unshuffle, Upsample interpolate, Unfold unfold, Fold fold"""
_TWO = """CrossEntropyLoss cross_entropy, MSELoss mse_loss, L1Loss l1_loss, NLLLoss nll_loss, BCELoss binary_cross_entropy,
BCEWithLogitsLoss binary_cross_entropy_with_logits, SmoothL1Loss smooth_l1_loss, HuberLoss huber_loss, KLDivLoss kl_div,
PoissonNLLLoss poisson_nll_loss, HingeEmbeddingLoss hinge_embedding_loss, SoftMarginLoss soft_margin_loss,
MultiMarginLoss multi_margin_loss, MultiLabelSoftMarginLoss multilabel_soft_margin_loss, CosineSimilarity cosine_similarity,
PairwiseDistance pairwise_distance"""
_THREE = """GaussianNLLLoss gaussian_nll_loss, MarginRankingLoss margin_ranking_loss, CosineEmbeddingLoss cosine_embedding_loss,
TripletMarginLoss triplet_margin_loss"""
for _count, _pairs in enumerate((_ONE, _TWO, _THREE), start=1):
    for _pair in _pairs.split(","):
        _name, _function = _pair.split()
        globals()[_name] = _layer(_name, getattr(functional, _function), _count)


class Identity(Module):
    """What it is given; it takes any arguments and forgets them."""

    def __init__(self, *args, **options):
        super().__init__()

    def forward(self, input):
        return input


class Unflatten(Module):
    """A dim as several."""

    def __init__(self, dim, unflattened_size):
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input):
        return input.unflatten(self.dim, self.unflattened_size)


class _Convolution(Module):
    """x [n, in, ...] -> [n, out, ...]; weights uniform in ±1/sqrt(inputs of an output)."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
        super().__init__()
        window = functional._each(kernel_size, self.dims)
        self.options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        bound = 1 / math.sqrt(in_channels // groups * math.prod(window))
        self.weight = Parameter(creation.empty(out_channels, in_channels // groups, *window).uniform_(-bound, bound))
        self.bias = Parameter(creation.empty(out_channels).uniform_(-bound, bound)) if bias else None

    def forward(self, input):
        return type(self).function(input, self.weight, self.bias, **self.options)


class Conv1d(_Convolution):
    """x [n, in, length] -> [n, out, length']."""
    dims, function = 1, staticmethod(functional.conv1d)


class Conv3d(_Convolution):
    """x [n, in, d, h, w] -> [n, out, d', h', w']."""
    dims, function = 3, staticmethod(functional.conv3d)


class _BatchNorm(Module):
    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = Parameter(creation.ones(num_features)), Parameter(creation.zeros(num_features))
        self.running_mean = self.register_buffer("running_mean", creation.zeros(num_features))
        self.running_var = self.register_buffer("running_var", creation.ones(num_features))

    def forward(self, input):
        return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, self.training,
                                     self.momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """x [n, channels] or [n, channels, length] normalised over each channel."""


class BatchNorm3d(_BatchNorm):
    """x [n, channels, d, h, w] normalised over each channel."""


class PReLU(Module):
    """max(x, 0) + weight min(x, 0), with a weight for all channels or for each."""

    def __init__(self, num_parameters=1, init=0.25):
        super().__init__()
        self.weight = Parameter(creation.full((num_parameters,), init))

    def forward(self, input):
        return functional.prelu(input, self.weight)


class ModuleList(Module):
    """Modules in a row, each a part of this one under its number."""

    def __init__(self, modules=()):
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module):
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        for module in modules:
            self.append(module)
        return self

    def __len__(self):
        return len(self.named_children())

    def __getitem__(self, index):
        return self.children()[index]

    def __iter__(self):
        return iter(self.children())


class ModuleDict(Module):
    """Modules by name, each a part of this one under its own."""

    def __init__(self, modules=None):
        super().__init__()
        for name, module in (modules or {}).items():
            self[name] = module

    def __setitem__(self, name, module):
        self.add_module(name, module)

    def __getitem__(self, name):
        return dict(self.named_children())[name]

    def __len__(self):
        return len(self.named_children())

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, name):
        return name in self.keys()

    def keys(self):
        return [name for name, _ in self.named_children()]

    def values(self):
        return self.children()

    def items(self):
        return self.named_children()
