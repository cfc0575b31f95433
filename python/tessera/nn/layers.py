"""Layers that are made of functions here, beside those of the library."""
from __future__ import annotations

import math

from .. import _C, creation
from .._documents import signature_of as _signature_of
from . import functional
from .base import Module, Parameter


class _Functional(Module):
    """A function with its options; it takes these as the function does, behind the tensors."""

    def __init__(self, *args, **options):
        super().__init__()
        given = _signature_of(self.function).bind_partial(*[None] * self.tensors, *args, **options).arguments
        self.options = dict(list(given.items())[self.tensors:])
        for name, value in self.options.items():
            if isinstance(value, _C.Tensor):  # goes where the module goes
                self.register_buffer(name, value)

    def _given(self):
        return {name: getattr(self, name) if isinstance(value, _C.Tensor) else value for name, value in self.options.items()}

    def forward(self, *tensors):
        return type(self).function(*tensors, **self._given())

    def extra_repr(self):
        return ", ".join(f"{name}={value}" for name, value in self.options.items())

    def __getattr__(self, name):
        """An option, given or by default."""
        if name in self.__dict__.get("options", ()):
            return self.options[name]
        known = {} if name.startswith("_") else dict(list(_signature_of(self.function).parameters.items())[self.tensors:])
        if name in known and known[name].default not in (known[name].empty, ...):
            return known[name].default
        return super().__getattr__(name)

    def __setattr__(self, name, value):
        if name in self.__dict__.get("options", ()) and not isinstance(value, _C.Tensor):
            self.options[name] = value
        else:
            super().__setattr__(name, value)


def _layer(name, function, tensors=1, base=None):
    doc = (function.__doc__ or "").strip() or f"nn.functional.{function.__name__}() as a module."
    return type(name, (base or _Functional,), {"function": staticmethod(function), "tensors": tensors, "__doc__": doc,
                                       "__module__": "tessera.nn.layers"})


_ONE = """MaxPool1d max_pool1d, MaxPool2d max_pool2d, MaxPool3d max_pool3d, AvgPool1d avg_pool1d, AvgPool2d avg_pool2d,
AvgPool3d avg_pool3d, AdaptiveAvgPool1d adaptive_avg_pool1d, AdaptiveAvgPool2d adaptive_avg_pool2d,
AdaptiveAvgPool3d adaptive_avg_pool3d, AdaptiveMaxPool1d adaptive_max_pool1d, AdaptiveMaxPool2d adaptive_max_pool2d,
AdaptiveMaxPool3d adaptive_max_pool3d, LeakyReLU leaky_relu, ELU elu, SELU selu, CELU celu, Softplus softplus, Softmax softmax,
LogSoftmax log_softmax, Softmin softmin, Softsign softsign, Softshrink softshrink, Hardtanh hardtanh, Hardswish hardswish,
Hardsigmoid hardsigmoid, Hardshrink hardshrink, Mish mish, LogSigmoid logsigmoid, Tanhshrink tanhshrink, Threshold threshold,
GLU glu, PixelShuffle pixel_shuffle, PixelUnshuffle pixel_unshuffle, Upsample interpolate, Unfold unfold, Fold fold,
ChannelShuffle channel_shuffle, LocalResponseNorm local_response_norm, LPPool1d lp_pool1d, LPPool2d lp_pool2d, LPPool3d lp_pool3d,
UpsamplingNearest2d upsample_nearest, UpsamplingBilinear2d upsample_bilinear"""
_TWO = """CrossEntropyLoss cross_entropy, MSELoss mse_loss, L1Loss l1_loss, NLLLoss nll_loss, BCELoss binary_cross_entropy,
BCEWithLogitsLoss binary_cross_entropy_with_logits, SmoothL1Loss smooth_l1_loss, HuberLoss huber_loss, KLDivLoss kl_div,
PoissonNLLLoss poisson_nll_loss, HingeEmbeddingLoss hinge_embedding_loss, SoftMarginLoss soft_margin_loss,
MultiMarginLoss multi_margin_loss, MultiLabelSoftMarginLoss multilabel_soft_margin_loss, CosineSimilarity cosine_similarity,
PairwiseDistance pairwise_distance, MultiLabelMarginLoss multilabel_margin_loss, MaxUnpool1d max_unpool1d,
MaxUnpool2d max_unpool2d, MaxUnpool3d max_unpool3d"""
_THREE = """GaussianNLLLoss gaussian_nll_loss, MarginRankingLoss margin_ranking_loss, CosineEmbeddingLoss cosine_embedding_loss,
TripletMarginLoss triplet_margin_loss, TripletMarginWithDistanceLoss triplet_margin_with_distance_loss"""
_FOUR = "CTCLoss ctc_loss"
for _count, _pairs in enumerate((_ONE, _TWO, _THREE, _FOUR), start=1):
    for _pair in _pairs.split(","):
        _name, _function = _pair.split()
        globals()[_name] = _layer(_name, getattr(functional, _function), _count)


class Identity(Module):
    """What it is given; it takes any arguments and forgets them."""

    def __init__(self, *args, **options):
        super().__init__()

    def forward(self, input):
        return input


class Softmax2d(Module):
    """softmax() over the channels of images, [n, c, h, w] or [c, h, w]."""

    def forward(self, input):
        if input.ndim not in (3, 4):
            raise _C.Error(f"Softmax2d: takes 3 or 4 dims, not {list(input.shape)}")
        return functional.softmax(input, -3)


class Unflatten(Module):
    """A dim as several."""

    def __init__(self, dim, unflattened_size):
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input):
        return input.unflatten(self.dim, self.unflattened_size)


class _TrainedOnly(_Functional):
    """A function that is what it is in training, and nothing in evaluation."""

    def forward(self, input):
        return type(self).function(input, training=self.training, **self._given())


for _name, _function in (("Dropout1d", "dropout1d"), ("Dropout2d", "dropout2d"), ("Dropout3d", "dropout3d"), ("RReLU", "rrelu"),
                         ("AlphaDropout", "alpha_dropout"), ("FeatureAlphaDropout", "feature_alpha_dropout")):
    _made = _layer(_name, getattr(functional, _function), base=_TrainedOnly)
    globals()[_name] = _made


class _Convolution(Module):
    """x [n, in, ...] -> [n, out, ...]; weights uniform in ±1/sqrt(inputs of an output)."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True,
                 padding_mode="zeros"):
        super().__init__()
        window = functional._each(kernel_size, self.dims)
        self.in_channels, self.out_channels, self.kernel_size, self.around = in_channels, out_channels, tuple(window), None
        if padding_mode != "zeros":
            low, high = functional._padding(padding, creation.empty(1, 1, *window), functional._each(dilation, self.dims), self.dims)
            self.around = {"pad": [n for pair in zip(low[::-1], high[::-1]) for n in pair], "mode": padding_mode}
            padding = 0
        self.options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        bound = 1 / math.sqrt(in_channels // groups * math.prod(window))
        self.weight = Parameter(creation.empty(out_channels, in_channels // groups, *window).uniform_(-bound, bound))
        self.bias = Parameter(creation.empty(out_channels).uniform_(-bound, bound)) if bias else None

    def forward(self, input):
        if self.around:
            input = functional.pad(input, **self.around)
        return type(self).function(input, self.weight, self.bias, **self.options)


class Conv1d(_Convolution):
    """x [n, in, length] -> [n, out, length']."""
    dims, function = 1, staticmethod(functional.conv1d)


class Conv3d(_Convolution):
    """x [n, in, d, h, w] -> [n, out, d', h', w']."""
    dims, function = 3, staticmethod(functional.conv3d)


class _ConvTranspose(Module):
    """x [n, in, ...] -> [n, out, ...]; weights uniform in ±1/sqrt(out / groups * taps)."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, bias=True,
                 dilation=1):
        super().__init__()
        window = functional._each(kernel_size, self.dims)
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, tuple(window)
        self.options = {"stride": stride, "padding": padding, "output_padding": output_padding, "groups": groups,
                        "dilation": dilation}
        bound = 1 / math.sqrt(out_channels // groups * math.prod(window))
        self.weight = Parameter(creation.empty(in_channels, out_channels // groups, *window).uniform_(-bound, bound))
        self.bias = Parameter(creation.empty(out_channels).uniform_(-bound, bound)) if bias else None

    def forward(self, input):
        return type(self).function(input, self.weight, self.bias, **self.options)


class ConvTranspose1d(_ConvTranspose):
    """x [n, in, length] -> [n, out, length']."""
    dims, function = 1, staticmethod(functional.conv_transpose1d)


class ConvTranspose3d(_ConvTranspose):
    """x [n, in, d, h, w] -> [n, out, d', h', w']."""
    dims, function = 3, staticmethod(functional.conv_transpose3d)


class _BatchNorm(Module):
    tracks = True

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=None):
        super().__init__()
        self.num_features, self.eps = num_features, eps
        self.weight = Parameter(creation.ones(num_features)) if affine else None
        self.bias = Parameter(creation.zeros(num_features)) if affine else None
        tracks = self.tracks if track_running_stats is None else track_running_stats
        self.register_buffer("running_mean", creation.zeros(num_features) if tracks else None)
        self.register_buffer("running_var", creation.ones(num_features) if tracks else None)
        self.momentum = momentum

    @property
    def momentum(self):
        return self._momentum

    @momentum.setter
    def momentum(self, value):
        self._momentum = value
        if value is None and self.running_mean is not None and not hasattr(self, "num_batches_tracked"):
            self.register_buffer("num_batches_tracked", creation.zeros((), dtype=_C.dtype.int64))

    def _of_batch(self):
        return self.training or self.running_mean is None

    def _share(self):
        """How much of the estimates a batch becomes; without a momentum they are means over all batches, which a buffer counts."""
        if self.momentum is not None or not self.training or self.running_mean is None:
            return self.momentum or 0.0
        return 1 / self.num_batches_tracked.add_(1).item()

    def forward(self, input):
        return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, self._of_batch(),
                                     self._share(), self.eps)


class BatchNorm1d(_BatchNorm):
    """x [n, channels] or [n, channels, length] normalised over each channel."""


class BatchNorm3d(_BatchNorm):
    """x [n, channels, d, h, w] normalised over each channel."""


class _InstanceNorm(_BatchNorm):
    tracks = False

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=False, track_running_stats=False):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input):
        return functional.instance_norm(input, self.running_mean, self.running_var, self.weight, self.bias, self._of_batch(),
                                        self.momentum or 0.0, self.eps)


class InstanceNorm1d(_InstanceNorm):
    """x [n, channels, length], each channel of each normalised."""


class InstanceNorm2d(_InstanceNorm):
    """x [n, channels, h, w], each channel of each normalised."""


class InstanceNorm3d(_InstanceNorm):
    """x [n, channels, d, h, w], each channel of each normalised."""


class _Pad(Module):
    def __init__(self, padding, value=0.0):
        super().__init__()
        self.padding, self.value = functional._each(padding, 2 * self.dims), value

    def forward(self, input):
        return functional.pad(input, self.padding, self.mode, self.value if self.mode == "constant" else None)


for _kind, _mode in (("Zero", "constant"), ("Constant", "constant"), ("Reflection", "reflect"), ("Replication", "replicate"),
                     ("Circular", "circular")):
    for _dims in (1, 2, 3):
        _name = f"{_kind}Pad{_dims}d"
        globals()[_name] = type(_name, (_Pad,), {"dims": _dims, "mode": _mode, "__module__": "tessera.nn.layers",
                                                 "__doc__": f"{_dims} dims padded; `padding` before and behind each, the last first."})


class EmbeddingBag(Module):
    """index [bags, n], or all in one dim with `offsets` of bags -> the sum, mean or maximum of each bag's rows."""

    def __init__(self, num_embeddings, embedding_dim, mode="mean", include_last_offset=False, padding_idx=None):
        super().__init__()
        self.options = {"mode": mode, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
        self.weight = Parameter(creation.randn(num_embeddings, embedding_dim))

    def forward(self, input, offsets=None, per_sample_weights=None):
        return functional.embedding_bag(input, self.weight, offsets, per_sample_weights=per_sample_weights, **self.options)


class Bilinear(Module):
    """x1 [..., in1], x2 [..., in2] -> x1 weight[out] x2 + bias."""

    def __init__(self, in1_features, in2_features, out_features, bias=True):
        super().__init__()
        bound = 1 / math.sqrt(in1_features)
        self.weight = Parameter(creation.empty(out_features, in1_features, in2_features).uniform_(-bound, bound))
        self.bias = Parameter(creation.empty(out_features).uniform_(-bound, bound)) if bias else None

    def forward(self, input1, input2):
        return functional.bilinear(input1, input2, self.weight, self.bias)


class PReLU(Module):
    """max(x, 0) + weight min(x, 0), with a weight for all channels or for each."""

    def __init__(self, num_parameters=1, init=0.25):
        super().__init__()
        self.weight = Parameter(creation.full((num_parameters,), init))

    def forward(self, input):
        return functional.prelu(input, self.weight)


class ParameterList(Module):
    """Parameters in a row, each under its number."""

    def __init__(self, values=()):
        super().__init__()
        for value in values:
            self.append(value)

    def append(self, value):
        self.add_parameter(str(len(self)), value if isinstance(value, Parameter) else Parameter(value))
        return self

    def __len__(self):
        return len(self._own_tensors())

    def __getitem__(self, index):
        return self._own_tensors()[index][1]

    def __iter__(self):
        return (tensor for _, tensor, _ in self._own_tensors())

    def __setitem__(self, index, value):
        setattr(self, self._own_tensors()[index][0], value if isinstance(value, Parameter) else Parameter(value))

    def extend(self, values):
        for value in values:
            self.append(value)
        return self


class ParameterDict(Module):
    """Parameters by name."""

    def __init__(self, parameters=None):
        super().__init__()
        self.update(parameters or {})

    def update(self, parameters):
        for name, value in dict(parameters).items():
            self[name] = value

    def __delitem__(self, name):
        if name not in self:
            raise KeyError(name)
        delattr(self, name)

    def __setitem__(self, name, value):
        setattr(self, name, value if isinstance(value, Parameter) else Parameter(value))

    def __getitem__(self, name):
        return dict(self.items())[name]

    def __len__(self):
        return len(self._own_tensors())

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, name):
        return name in self.keys()

    def keys(self):
        return [name for name, _, _ in self._own_tensors()]

    def values(self):
        return [tensor for _, tensor, _ in self._own_tensors()]

    def items(self):
        return [(name, tensor) for name, tensor, _ in self._own_tensors()]


class ModuleList(Module):
    """Modules in a row, each a part of this one under its number."""

    def __init__(self, modules=()):
        super().__init__()
        for module in modules or ():
            self.append(module)

    def append(self, module):
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        for module in modules:
            self.append(module)
        return self

    def insert(self, index, module):
        before = self.children()
        before.insert(index, module)
        self.append(before[-1])
        for number, one in enumerate(before[:-1]):
            if one is not self[number]:
                self[number] = one

    def __delitem__(self, index):
        kept = self.children()
        del kept[index]
        for number, module in enumerate(kept):
            if module is not self[number]:
                self[number] = module
        for name, _ in self.named_children()[len(kept):]:
            self._replace(name, None)

    def pop(self, index):
        module = self[index]
        del self[index]
        return module

    def __len__(self):
        return len(self.named_children())

    def __getitem__(self, index):
        return ModuleList(self.children()[index]) if isinstance(index, slice) else self.children()[index]

    def __setitem__(self, index, module):
        _set_child(self, index, module)

    def __iter__(self):
        return iter(self.children())

    def __add__(self, other):
        return ModuleList([*self, *other])


def _set_child(self, index: int, module: Module) -> None:
    """Puts a module where the one of that number is."""
    self.replace(self.named_children()[index][0], module, any_shapes=True)


def _part_of(self, index: int | slice) -> Module:  # noqa: F821
    """The module of that number, or a Sequential of several, which are parts of both."""
    children = self.children()
    return type(self)(*children[index]) if isinstance(index, slice) else children[index]


def _extend(self, modules: Any) -> Module:  # noqa: F821
    """Appends modules."""
    for module in modules:
        self.append(module)
    return self


def _insert(self, index: int, module: Module) -> Module:  # noqa: F821
    """Puts a module before the one of that number."""
    ModuleList.insert(self, index, module)
    return self


def _joined(self, other: Any) -> Module:  # noqa: F821
    """The parts of both, in turn."""
    return type(self)(*self, *other)


def _delete(self, index: int | slice) -> None:
    """Takes modules away."""
    ModuleList.__delitem__(self, index)


def _pop(self, index: int) -> Module:
    """Takes a module away, and gives it."""
    return ModuleList.pop(self, index)


_Sequential = _C._nn.Sequential
_Sequential.__setitem__, _Sequential.__getitem__, _Sequential.extend = _set_child, _part_of, _extend
_Sequential.insert, _Sequential.__add__, _Sequential.__delitem__, _Sequential.pop = _insert, _joined, _delete, _pop


class ModuleDict(Module):
    """Modules by name, each a part of this one under its own."""

    def __init__(self, modules=None):
        super().__init__()
        self.update(modules or {})

    def __setitem__(self, name, module):
        if name in self:
            self.replace(name, module, any_shapes=True)
        else:
            self.add_module(name, module)

    def __delitem__(self, name):
        if name not in self:
            raise KeyError(name)
        self._replace(name, None)

    def pop(self, name):
        module = self[name]
        del self[name]
        return module

    def clear(self):
        for name in self.keys():
            del self[name]

    def update(self, modules):
        for name, module in dict(modules).items():
            self[name] = module

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
