#!/usr/bin/env python3
"""Operators beside PyTorch eager in one process: forward, and forward with backward, at three sizes drawn from a seed.

usage: PYTHONPATH=build/python benchmarks/operators.py [--device cuda:0] [--threads 2] [--seed 1] [--only REGEX] [--json FILE]
       [--clock process]

Results and gradients are compared before anything is timed. Ours and PyTorch's calls then take turns in short rounds, and
the fastest round of each counts. On a GPU a round is a queue of calls up to a synchronisation. An operator is a line of ROWS.
On a machine with other work, processor time of one thread is `--threads 1 --clock process`.
"""
import argparse
import gc
import json
import math
import os
import platform
import random
import re
import sys
import time
import warnings

import torch

import tessera

try:
    import torchvision
except ImportError:
    torchvision = None

SIZES = {"small": (1_000, 10_000), "middle": (100_000, 1_000_000), "large": (3_500_000, 4_500_000)}  # elements
WITH_GRADIENT = "xyzwbuv"  # inputs of these names, where they are floating
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}
clock = CLOCKS["wall"]
GATES = {"RNN": lambda p: p, "LSTM": tessera.lstm_gates_from_pytorch, "GRU": tessera.gru_gates_from_pytorch}


class Draw:
    """Random inputs of about n elements."""

    def __init__(self, n, seed):
        self.n, self.random, self.generator = n, random.Random(seed), torch.Generator().manual_seed(seed)

    def int(self, low, high):
        return self.random.randint(low, high)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator)

    def uniform(self, low, high, *shape):
        return torch.rand(shape, generator=self.generator) * (high - low) + low

    def distinct(self, *shape):
        """No two elements are equal: orders of ties differ, which PyTorch's sort does not keep."""
        n = math.prod(shape)
        return (torch.randperm(n, generator=self.generator).float() - n // 2).reshape(shape)

    def ints(self, high, *shape, dtype=torch.int64):
        return torch.randint(high, shape, generator=self.generator, dtype=dtype)

    def plane(self):
        columns = self.int(17, 400)
        return max(1, self.n // columns), columns

    def image(self, dims, channels=16, most=64):
        """[n, channels, ...] of `dims` spatial dims."""
        room = max(self.n // channels, 1)
        side = max(7, min({1: 4000, 2: most, 3: 24}[dims], int(room ** (1 / dims))) - self.int(0, 3))
        return (max(1, room // side**dims), channels) + (side,) * dims


def conv(dims, out=16, k=3, groups=1, transposed=False):
    def make(d):
        shape = d.image(dims, channels=16)
        channels = (shape[1], out // groups) if transposed else (out, shape[1] // groups)
        return {"x": d.normal(*shape), "w": d.normal(*channels, *[k] * dims) / (4 * k**(dims / 2)), "b": d.normal(out)}
    return make


def classes(d, *beyond):
    rows, columns = d.plane()
    rows = max(1, rows // math.prod(beyond))
    return {"x": d.normal(rows, columns, *beyond), "t": d.ints(columns, rows, *beyond), "s": d.uniform(0.5, 1.5, columns)}


def indexed(d):
    """x [r, c], indices into its lines, rows of an update."""
    r, c = d.plane()
    return {"x": d.normal(r, c), "i": d.ints(c, r, c), "y": d.normal(r, c)}


def rows(d):
    r, c = d.plane()
    k = max(1, r // 2)
    return {"x": d.normal(r, c), "i": d.ints(r, k), "y": d.normal(k, c)}


def attention(d):
    heads, width, tokens = 4, 64, max(5, min(500, d.n // 256) - d.int(0, 3))
    q = (max(1, d.n // (heads * tokens * width)), heads, tokens, width)
    place = torch.arange(tokens)
    return {"x": d.normal(*q), "y": d.normal(*q), "z": d.normal(*q),
            "mask": (place[:, None] - place[None, :]).abs() <= 32}


def recurrent(kind):
    def make(d):
        n = max(512, d.n // 8)  # a step's work is as the square of its width
        hidden = 32 if n < 10_000 else 128
        batch = d.int(5, 16)
        x = d.normal(max(3, n // (batch * hidden)), batch, hidden)
        return {"x": x, "net": getattr(torch.nn, kind)(hidden, hidden)}
    return make


def matrices(d):
    k = d.int(3, 12)
    a = d.normal(max(1, d.n // (k * k)), k, k)
    return {"x": a @ a.mT + k * torch.eye(k), "y": d.normal(a.shape[0], k, 1)}


def ctc(d):
    labels, steps = d.int(20, 40), d.int(40, 80)
    n = max(1, d.n // (labels * steps))
    length = steps // 3
    return {"x": d.normal(steps, n, labels), "t": d.ints(labels - 1, n, length) + 1,
            "l": torch.full((n,), steps), "k": torch.full((n,), length)}


def boxes(d):
    n = min(2000, max(10, d.n // 500))
    corner = d.uniform(0, 100, n, 2)
    return {"r": torch.cat([corner, corner + d.uniform(5, 40, n, 2)], 1), "s": d.uniform(0, 1, n)}


def regions(d):
    image = d.image(2)
    n = max(1, d.n // (16 * 49 * 4))
    corner = d.uniform(0, image[-1] / 2, n, 2)
    return {"x": d.normal(*image), "r": torch.cat([corner, corner + d.uniform(2, image[-1] / 2, n, 2)], 1),
            "i": d.ints(image[0], n)}


def deformed(d):
    made = conv(2)(d)
    n, _, h, w = made["x"].shape
    return {**made, "y": d.normal(n, 18, h, w)}


def bags(d):
    words = max(10, min(50_000, d.n // 64))
    return {"w": d.normal(words, 64), "i": d.ints(words, max(1, d.n // 640), 10)}


def pooled(d):
    shape = d.image(2)
    x = d.normal(*shape[:2], *[n // 2 * 2 for n in shape[2:]])
    y, i = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    return {"x": y, "i": i}


def sampled(d):
    image = d.image(2)
    return {"x": d.normal(*image), "y": d.uniform(-1.1, 1.1, image[0], image[2], image[3], 2)}


INPUTS = {
    "line": lambda d: {"x": d.normal(d.n)},
    "unit": lambda d: {"x": d.uniform(-0.99, 0.99, d.n)},
    "positive": lambda d: {"x": d.uniform(0.01, 3, d.n)},
    "above 1": lambda d: {"x": d.uniform(1.01, 4, d.n)},
    "wide": lambda d: {"x": d.uniform(0.05, 20, d.n)},
    "two": lambda d: {"x": d.normal(d.n), "y": d.normal(d.n)},
    "three": lambda d: {"x": d.normal(d.n), "y": d.normal(d.n), "z": d.uniform(0, 1, d.n)},
    "holes": lambda d: {"x": torch.where(d.uniform(0, 1, d.n) < 0.1, math.nan, d.normal(d.n))},
    "bits": lambda d: {"i": d.ints(1 << 20, d.n, dtype=torch.int32), "j": d.ints(12, d.n, dtype=torch.int32)},
    "counts": lambda d: {"i": d.ints(1000, d.n)},
    "size": lambda d: {"k": int(d.n ** 0.5)},
    "plane": lambda d: {"x": d.normal(*d.plane())},
    "distinct line": lambda d: {"x": d.distinct(d.n)}, "distinct plane": lambda d: {"x": d.distinct(*d.plane())},
    "halves": lambda d: {"x": d.normal(max(1, d.n // 130), 130)},
    "slopes": lambda d: {"x": d.normal(*d.image(2)), "w": d.uniform(0.1, 0.4, 16)},
    "near 1": lambda d: {"x": 1 + 0.05 * d.normal(*d.plane())},
    "mask": lambda d: {"x": d.normal(d.n), "mask": d.uniform(0, 1, d.n) < 0.4},
    "sparse": lambda d: {"t": torch.where(d.uniform(0, 1, *d.plane()) < 0.3, 1.0, 0.0)},
    "sorted": lambda d: {"s": d.normal(1001).sort().values, "t": d.normal(d.n)},
    "indexed": indexed, "rows": rows, "bags": bags,
    "1d": lambda d: {"x": d.normal(*d.image(1))}, "2d": lambda d: {"x": d.normal(*d.image(2))},
    "3d": lambda d: {"x": d.normal(*d.image(3))}, "columns": lambda d: {"x": d.normal(*d.image(2)).unfold(2, 3, 1)
                                                                        .unfold(3, 3, 1).permute(0, 1, 4, 5, 2, 3).flatten(4)
                                                                        .flatten(1, 3).contiguous()[:max(1, d.n // 9216)]},
    "pooled": pooled, "sampled": sampled, "affine": lambda d: {"x": d.normal(max(1, d.n // 8192), 2, 3)},
    "conv1": conv(1), "conv2": conv(2), "conv3": conv(3), "grouped": conv(2, groups=16), "deformed": deformed,
    "transposed1": conv(1, transposed=True), "transposed2": conv(2, transposed=True), "transposed3": conv(3, transposed=True),
    "regions": regions, "boxes": boxes, "matrices": matrices, "attention": attention, "ctc": ctc,
    "RNN": recurrent("RNN"), "GRU": recurrent("GRU"), "LSTM": recurrent("LSTM"),
    "signal": lambda d: {"x": d.normal(max(1, d.n // 8000), min(8000, d.n)), "s": torch.hann_window(256)},
    "waves": lambda d: {"x": d.normal(max(1, d.n // 128), 128)},
    "product": lambda d: {"x": d.normal(max(1, d.n // 4096), 64, 64), "y": d.normal(max(1, d.n // 4096), 64, 64)},
    "tensors": lambda d: {"x": d.normal(max(1, d.n // 512), 8, 64), "y": d.normal(64, 8, 33)},
    "planes": lambda d: (lambda p: {"x": d.normal(*p), "y": d.normal(*p)})(d.plane()),
    "points": lambda d: {"x": d.normal(max(2, int(d.n ** 0.5)), 33), "y": d.normal(max(2, int(d.n ** 0.5)), 33)},
    "targets": lambda d: {"x": d.normal(d.n), "t": d.normal(d.n)},
    "chances": lambda d: {"x": d.uniform(0.02, 0.98, d.n), "t": d.uniform(0.02, 0.98, d.n)},
    "logits": lambda d: {"x": d.normal(d.n), "t": d.uniform(0, 1, d.n)},
    "signs": lambda d: {"x": d.normal(d.n), "y": d.normal(d.n), "t": torch.where(d.uniform(0, 1, d.n) < 0.5, 1.0, -1.0)},
    "spreads": lambda d: {"x": d.normal(d.n), "t": d.normal(d.n), "v": d.uniform(0.1, 2, d.n)},
    "classes": classes, "images of classes": lambda d: classes(d, 9, 11),
    "soft classes": lambda d: (lambda p: {"x": d.normal(*p), "t": d.normal(*p).softmax(1)})(d.plane()),
    "labels": lambda d: (lambda p: {"x": d.normal(*p), "t": (d.uniform(0, 1, *p) < 0.3).float()})(d.plane()),
    "label lists": lambda d: (lambda n: {"x": d.normal(n, 30), "t": torch.cat([torch.rand(n, 30).argsort(1)[:, :5],
                                                                              torch.full((n, 25), -1)], 1)})(max(1, d.n // 30)),
    "three planes": lambda d: (lambda p: {"x": d.normal(*p), "y": d.normal(*p), "z": d.normal(*p)})(d.plane()),
    "pairs of rows": lambda d: (lambda p: {"x": d.normal(*p), "y": d.normal(*p), "t": 1.0 - 2 * d.ints(2, p[0])})(d.plane()),
    "ranks": lambda d: (lambda p: {"x": d.normal(*p), "y": d.normal(*p)})((max(1, d.n // 100), 10, 10)),
}

# Inputs, the call, and ours where it is spelt in another way. m is torch or tessera, F its nn.functional.
ROWS = [
    # convolutions and pools
    ("conv1", "F.conv1d(x, w, b, padding=1)"),
    ("conv2", "F.conv2d(x, w, b, padding=1)"),
    ("conv3", "F.conv3d(x, w, b, padding=1)"),
    ("conv2", "F.conv2d(x, w, b, 2, 'valid', 1)"),
    ("grouped", "F.conv2d(x, w, b, padding=1, groups=16)"),
    ("transposed1", "F.conv_transpose1d(x, w, b, 2, 1)"),
    ("transposed2", "F.conv_transpose2d(x, w, b, 2, 1)"),
    ("transposed3", "F.conv_transpose3d(x, w, b, 2, 1)"),
    ("deformed", "torchvision.ops.deform_conv2d(x, y, w, b, padding=1)", "m.deform_conv(x, w, y, None, b, low=[1, 1], high=[1, 1])"),
    ("1d", "F.max_pool1d(x, 3, 2, 1)"),
    ("2d", "F.max_pool2d(x, 3, 2, 1)"),
    ("3d", "F.max_pool3d(x, 3, 2, 1)"),
    ("2d", "F.max_pool2d(x, 3, 2, 1, return_indices=True)"),
    ("1d", "F.avg_pool1d(x, 3, 2, 1)"),
    ("2d", "F.avg_pool2d(x, 3, 2, 1)"),
    ("3d", "F.avg_pool3d(x, 3, 2, 1)"),
    ("2d", "F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)"),
    ("1d", "F.lp_pool1d(x, 2, 3)", "m.lp_pool(x, [3])"),
    ("2d", "F.lp_pool2d(x, 2, 3)", "m.lp_pool(x, [3, 3])"),
    ("1d", "F.adaptive_avg_pool1d(x, 5)"),
    ("2d", "F.adaptive_avg_pool2d(x, 5)"),
    ("3d", "F.adaptive_avg_pool3d(x, 5)"),
    ("2d", "F.adaptive_avg_pool2d(x, 1)"),
    ("1d", "F.adaptive_max_pool1d(x, 5)"),
    ("2d", "F.adaptive_max_pool2d(x, 5)"),
    ("3d", "F.adaptive_max_pool3d(x, 5)"),
    ("pooled", "F.max_unpool2d(x, i, 2)"),
    ("2d", "F.unfold(x, 3)"),
    ("columns", "F.fold(x, int(x.shape[2] ** 0.5) + 2, 3)"),
    # sampling
    ("1d", "F.interpolate(x, scale_factor=2, mode='nearest')"),
    ("2d", "F.interpolate(x, scale_factor=2, mode='nearest')"),
    ("1d", "F.interpolate(x, scale_factor=2, mode='linear')"),
    ("2d", "F.interpolate(x, scale_factor=2, mode='bilinear')"),
    ("3d", "F.interpolate(x, scale_factor=2, mode='trilinear')"),
    ("2d", "F.interpolate(x, scale_factor=2, mode='bicubic')"),
    ("2d", "F.interpolate(x, size=5, mode='bilinear', antialias=True)"),
    ("sampled", "F.grid_sample(x, y, align_corners=False)"),
    ("sampled", "F.grid_sample(x, y, 'nearest', 'border', align_corners=False)"),
    ("sampled", "F.grid_sample(x, y, 'bicubic', 'reflection', align_corners=False)"),
    ("affine", "F.affine_grid(x, [x.shape[0], 3, 64, 64], align_corners=False)"),
    ("2d", "F.pixel_shuffle(x, 4)"),
    ("2d", "F.pixel_unshuffle(x[:, :, :6, :6], 2)"),
    ("2d", "F.channel_shuffle(x, 4)"),
    ("2d", "F.pad(x, (1, 2, 3, 0), 'reflect')"),
    ("2d", "F.pad(x, (1, 2, 3, 0), 'replicate')"),
    ("2d", "F.pad(x, (1, 2, 3, 0), 'circular')"),
    ("regions", "torchvision.ops.roi_align(x, m.cat([i[:, None].float(), r], 1), 7, aligned=True, sampling_ratio=2)",
     "m.roi_align(x, r, i, 7, 7, sampling_ratio=2)"),
    ("boxes", "torchvision.ops.nms(r, s, 0.5)",
     "m.non_max_suppression(r[None], s[None, None], most=100000, iou_threshold=0.5)[:, 2]"),
    # recurrent
    ("RNN", "net(x)[0]", "m.rnn(x, net)[0]"),
    ("GRU", "net(x)[0]", "m.gru(x, net)[0]"),
    ("LSTM", "net(x)[0]", "m.lstm(x, net)[0]"),
    # indices and order
    ("distinct plane", "m.sort(x)"),
    ("distinct line", "m.sort(x, descending=True)"),
    ("plane", "m.argsort(x, stable=True)"),
    ("plane", "m.kthvalue(x, 7)"),
    ("plane", "m.median(x, 1)"),
    ("line", "m.median(x)"),
    ("counts", "m.unique(i)"),
    ("line", "m.unique(x)"),
    ("sorted", "m.searchsorted(s, t)"),
    ("sorted", "m.bucketize(t, s)"),
    ("line", "m.histc(x, 50, -3, 3)"),
    ("counts", "m.bincount(i)"),
    ("sparse", "m.nonzero(t)"),
    ("mask", "m.masked_select(x, mask)"),
    ("indexed", "m.take_along_dim(x, i, 1)"),
    ("indexed", "m.scatter(x, 1, i, 0.5)"),
    ("indexed", "m.scatter_reduce(x, 1, i, y, 'sum')"),
    ("indexed", "m.scatter_reduce(x, 1, i, y, 'mean')"),
    ("indexed", "m.scatter_reduce(x, 1, i, y, 'prod')"),
    ("indexed", "m.scatter_reduce(x, 1, i, y, 'amax')"),
    ("indexed", "m.scatter_reduce(x, 1, i, y, 'amin')"),
    ("rows", "m.index_put(x, [i], y, True)"),
    ("rows", "m.index_add(x, 0, i, y)"),
    ("plane", "m.max(x, 1)"),
    ("plane", "m.min(x, 0)"),
    ("plane", "m.cummax(x, 1)"),
    ("plane", "m.cummin(x, 0)"),
    ("near 1", "m.cumprod(x, 1)"),
    ("plane", "m.logcumsumexp(x, 1)"),
    # shapes
    ("product", "m.einsum('bij,bkj->bik', x, y)"),
    ("planes", "m.einsum('ij,ij->i', x, y)"),
    ("tensors", "m.tensordot(x, y, ([2, 1], [0, 1]))"),
    ("plane", "m.tile(x, (2, 3))"),
    ("plane", "m.repeat_interleave(x, 3, 1)"),
    ("plane", "m.roll(x, 5, 1)"),
    ("plane", "m.roll(x, (3, -2), (0, 1))"),
    ("plane", "x.unfold(1, 9, 4)"),
    ("ranks", "m.diagonal(x, 0, 1, 2)"),
    ("plane", "m.movedim(x, 0, 1)"),
    ("plane", "m.flip(x, (1,))"),
    ("plane", "m.meshgrid(x[0], x[:, 0], indexing='ij')"),
    ("size", "m.eye(k, device=device)"),
    ("size", "m.linspace(-1.0, 1.0, k * k, device=device)"),
    # math
    ("line", "m.tan(x)"), ("unit", "m.asin(x)"), ("unit", "m.acos(x)"), ("line", "m.atan(x)"), ("line", "m.sinh(x)"),
    ("line", "m.cosh(x)"), ("line", "m.asinh(x)"), ("above 1", "m.acosh(x)"), ("unit", "m.atanh(x)"),
    ("two", "m.atan2(x, y)"), ("line", "m.exp2(x)"), ("positive", "m.log2(x)"), ("positive", "m.log10(x)"),
    ("two", "m.fmod(x, y)"), ("two", "m.div(x, y, rounding_mode='trunc')"), ("two", "m.lerp(x, y, 0.3)"),
    ("three", "m.lerp(x, y, z)"), ("two", "m.hypot(x, y)"), ("holes", "m.nan_to_num(x)"), ("two", "m.isclose(x, y)"),
    ("unit", "m.erfinv(x)"), ("wide", "m.lgamma(x)"), ("wide", "m.digamma(x)"), ("bits", "m.bitwise_and(i, j)"),
    ("bits", "m.bitwise_xor(i, j)"), ("bits", "m.bitwise_not(i)"),
    ("bits", "m.bitwise_left_shift(i, j)", "m.left_shift(i, j)"), ("bits", "m.bitwise_right_shift(i, j)", "m.right_shift(i, j)"),
    ("matrices", "m.linalg.det(x)"), ("matrices", "m.linalg.inv(x)"), ("matrices", "m.linalg.solve(x, y)"),
    ("matrices", "m.linalg.cholesky(x)"),
    ("waves", "m.view_as_real(m.fft.fft(x))", "m.dft(x.unsqueeze(-1))"),
    ("signal", "m.view_as_real(m.stft(x, 256, 64, 256, s, center=False, return_complex=True)).transpose(1, 2)",
     "m.stft(x, s, 64)"),
    # activations
    ("line", "F.elu(x)"), ("line", "F.selu(x)"), ("line", "F.celu(x)"), ("line", "F.leaky_relu(x)"), ("slopes", "F.prelu(x, w)"),
    ("line", "F.threshold(x, 0.1, 0.5)"), ("line", "F.relu6(x)"), ("line", "F.hardsigmoid(x)"), ("line", "F.hardswish(x)"),
    ("line", "F.hardtanh(x)"), ("line", "F.mish(x)"), ("line", "F.softsign(x)"), ("line", "F.softshrink(x)"),
    ("line", "F.hardshrink(x)"), ("line", "F.tanhshrink(x)"), ("line", "F.logsigmoid(x)"), ("halves", "F.glu(x)"),
    ("plane", "F.softmin(x, 1)"), ("line", "F.softplus(x)"), ("line", "F.rrelu(x)", "m.rrelu(x)"),
    # norms
    ("2d", "F.instance_norm(x)"), ("2d", "F.local_response_norm(x, 5)"), ("plane", "F.normalize(x)"),
    ("planes", "F.cosine_similarity(x, y)"), ("points", "m.cdist(x, y)"), ("points", "F.pdist(x)"),
    ("planes", "F.pairwise_distance(x, y)"),
    # losses
    ("targets", "F.l1_loss(x, t)"), ("targets", "F.mse_loss(x, t)"), ("targets", "F.smooth_l1_loss(x, t)"),
    ("targets", "F.huber_loss(x, t)"), ("targets", "F.huber_loss(x, t, reduction='none')"),
    ("chances", "F.binary_cross_entropy(x, t)"), ("logits", "F.binary_cross_entropy_with_logits(x, t)"),
    ("classes", "F.nll_loss(x, t)"), ("classes", "F.cross_entropy(x, t, s)"), ("soft classes", "F.cross_entropy(x, t)"),
    ("images of classes", "F.cross_entropy(x, t)"), ("soft classes", "F.kl_div(x, t, reduction='batchmean')"),
    ("ctc", "F.ctc_loss(F.log_softmax(x, -1), t, l, k)", "m.ctc_loss(m.log_softmax(x, -1), t, l, k)"), ("three planes", "F.triplet_margin_loss(x, y, z)"),
    ("signs", "F.margin_ranking_loss(x, y, t, 0.1)"), ("signs", "F.hinge_embedding_loss(x, t)"),
    ("pairs of rows", "F.cosine_embedding_loss(x, y, t)"), ("spreads", "F.gaussian_nll_loss(x, t, v)"),
    ("targets", "F.poisson_nll_loss(x, t)"), ("signs", "F.soft_margin_loss(x, t)"), ("classes", "F.multi_margin_loss(x, t)"),
    ("label lists", "F.multilabel_margin_loss(x, t)", "m.multilabel_margin_loss(x, t)"),
    ("labels", "F.multilabel_soft_margin_loss(x, t)"),
    # attention and embeddings
    ("attention", "F.scaled_dot_product_attention(x, y, z, is_causal=True)"),
    ("attention", "F.scaled_dot_product_attention(x, y, z, mask)"),
    ("bags", "F.embedding_bag(i, w)", "m.embedding_bag(i, w)"), ("bags", "F.embedding_bag(i, w, mode='sum')", "m.embedding_bag(i, w, 'sum')"),
    ("bags", "F.embedding(i, w, padding_idx=3)"),
]


class Wrong(Exception):
    pass


def flat(value):
    return [x for v in value for x in flat(v)] if isinstance(value, (list, tuple)) else [value]


def to_ours(x, device):
    return tessera.from_dlpack(x.detach().cpu().contiguous().clone()).to(device)


def to_torch(x):
    return torch.from_dlpack(x.detach().cpu())


class Side:
    """One library with its copies of the inputs."""

    def __init__(self, module, code, inputs, device):
        self.ours, self.device, self.leaves = module is tessera, device, []
        names = {name: self.converted(name, value) for name, value in inputs.items()}
        self.named = len([n for n, v in inputs.items() if not isinstance(v, torch.nn.Module) and n in WITH_GRADIENT])
        scope = {"m": module, "F": module.nn.functional, "torchvision": torchvision, "device": device}
        self.function = eval(f"lambda {', '.join(names)}: {code}", scope)
        self.arguments, self.weights = tuple(names.values()), []

    def converted(self, name, value):
        if isinstance(value, torch.nn.Module):
            return self.recurrent(value)
        if not isinstance(value, torch.Tensor):
            return value
        made = to_ours(value, self.device) if self.ours else value.clone().to(self.device)
        if name in WITH_GRADIENT and value.is_floating_point():
            self.leaves.append(made.requires_grad_())
        return made

    def recurrent(self, net):
        if not self.ours:
            net = net.to(self.device)
            self.leaves += list(net.parameters())
            return net
        gates = GATES[type(net).__name__]
        parts = [gates(to_ours(p, self.device)).unsqueeze(0).contiguous().requires_grad_() for p in net.parameters()]
        self.leaves += parts
        return [tessera.RecurrentWeights(*parts)]

    def forward(self):
        with (tessera if self.ours else torch).no_grad():
            return self.function(*self.arguments)

    def results(self):
        return [x for x in flat(self.function(*self.arguments)) if x.requires_grad]

    def backward(self):
        if self.ours:
            return tessera.grad(self.results(), self.leaves, self.weights, allow_unused=True)
        return torch.autograd.grad(self.results(), self.leaves, self.weights, allow_unused=True)

    def wait(self):
        if self.device != "cpu":
            tessera.synchronize(tessera.device(self.device)) if self.ours else torch.cuda.synchronize(self.device)


def compare(ours, theirs, what):
    """Relative L2 norm, and equality of integers; places beside values may differ where values are equal."""
    ours, theirs = flat(ours), flat(theirs)
    if len(ours) != len(theirs):
        raise Wrong(f"{what}: {len(ours)} results, not {len(theirs)}")
    floating = any(b is not None and b.is_floating_point() for b in theirs)
    for a, b in zip(ours, theirs):
        if a is None or b is None:
            continue
        a, b = to_torch(a), b.detach().cpu()
        if a.shape != b.shape:
            raise Wrong(f"{what}: shape {list(a.shape)}, not {list(b.shape)}")
        if not b.is_floating_point():
            if not floating and not torch.equal(a.long(), b.long()):
                raise Wrong(f"{what}: {int((a != b).sum())} of {b.numel()} elements differ")
            continue
        same = torch.isfinite(b) & (a != b)
        off = (a.double() - b.double())[same].norm() / max(float(b.double()[torch.isfinite(b)].norm()), 1e-20)
        if not off <= 2e-4:
            raise Wrong(f"{what}: relative distance {float(off):.1e}")


def seconds(run, side, calls):
    start = clock()
    for _ in range(calls):
        run()
    side.wait()
    return (clock() - start) / calls


def timed(pair, direction, budget):
    """Seconds a call of each, taking turns."""
    runs = [getattr(side, direction) for side in pair]
    first = [min(seconds(run, side, 1) for _ in range(2)) for run, side in zip(runs, pair)]
    rounds = 7
    room = budget / (2 * rounds)
    counts = [max(1, min(2000, int(room / t))) for t in first]
    rounds = max(3, min(rounds, int(budget / sum(t * (n + 1) for t, n in zip(first, counts)))))
    best = list(first)
    gc.disable()
    for _ in range(rounds):
        for k in range(2):
            runs[k]()  # the other's threads come to rest, and caches fill
            pair[k].wait()
            best[k] = min(best[k], seconds(runs[k], pair[k], counts[k]))
    gc.enable()
    return best


def pair_of(row, n, seed, device):
    inputs = INPUTS[row[0]](Draw(n, seed))
    return [Side(tessera, row[-1], inputs, device), Side(torch, row[1], inputs, device)]


def ready_for_backward(pair):
    """Whether PyTorch has gradients, and ours too; they are compared."""
    theirs = pair[1].results()
    if not theirs:
        return False
    pair[1].weights = [torch.rand(x.shape).add(0.5).to(x.device) for x in theirs]
    try:
        wanted = pair[1].backward()
    except NotImplementedError:
        return False
    ours = pair[0].results()
    if len(ours) != len(theirs):
        raise Wrong("no gradient")
    pair[0].weights = [to_ours(w, pair[0].device) for w in pair[1].weights]
    named = pair[0].named
    compare(pair[0].backward()[:named], wanted[:named], "gradient")
    return True


def name_of(row):
    return row[1] if not row[1].startswith("net") else row[0]


def measure(row, size, seed, options, found):
    n = int(math.exp(random.Random(f"{seed}{size}{row[1]}").uniform(*map(math.log, SIZES[size]))))
    for direction in ("forward", "backward"):
        problem = None
        try:
            if direction == "forward":
                pair = pair_of(row, n, seed, options.device)
                compare(pair[0].forward(), pair[1].forward(), "result")
            elif not ready_for_backward(pair):
                return
            ours, theirs = timed(pair, direction, options.budget)
        except Exception as e:  # noqa: BLE001: whatever is thrown is said, and the next row is run
            problem = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:160]
        entry = {"name": name_of(row), "direction": direction, "size": size, "elements": n}
        if problem:
            print(f"{name_of(row):58.58} {direction:8} {n:8}  {problem}", flush=True)
            found.append({**entry, "problem": problem})
            if direction == "forward":
                return
            continue
        found.append({**entry, "ours_us": ours * 1e6, "torch_us": theirs * 1e6, "ratio": ours / theirs})
        print(f"{name_of(row):58.58} {direction:8} {n:8} {ours * 1e6:10.1f} {theirs * 1e6:10.1f} {ours / theirs:6.2f}", flush=True)


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def summary(found):
    timed_ones = [f for f in found if "ratio" in f]
    if not timed_ones:
        return
    for key in [(d, s) for d in ("forward", "backward") for s in SIZES]:
        part = [f["ratio"] for f in timed_ones if (f["direction"], f["size"]) == key]
        if part:
            print(f"{' '.join(key):16} {len(part):4} pairs, geometric mean {geometric_mean(part):.2f}, at most 1.1: "
                  f"{sum(r <= 1.1 for r in part) / len(part):.0%}, above 2: {sum(r > 2 for r in part)}")
    ratios = [f["ratio"] for f in timed_ones]
    slow = sorted((f for f in timed_ones if f["ratio"] > 2), key=lambda f: -f["ratio"])
    if slow:
        print("above 2, worst first:")
    for f in slow:
        print(f"{f['ratio']:6.2f}  {f['name']:58.58} {f['direction']:8} {f['elements']:8}")
    print(f"all {len(ratios)} pairs: geometric mean {geometric_mean(ratios):.3f}, at most 1.1: "
          f"{sum(r <= 1.1 for r in ratios) / len(ratios):.1%}, above 2: {len(slow)}, "
          f"not timed: {len(found) - len(timed_ones)}")


def main():
    global clock
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cpu", help="cpu or cuda:0")
    arguments.add_argument("--threads", type=int, default=os.cpu_count())
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", default="", help="names that this expression finds")
    arguments.add_argument("--sizes", default=",".join(SIZES))
    arguments.add_argument("--json", help="writes what is found to a file")
    arguments.add_argument("--budget", type=float, default=0.2, help="seconds for a pair in a direction")
    arguments.add_argument("--clock", choices=CLOCKS, default="wall")
    options = arguments.parse_args()
    clock = CLOCKS[options.clock]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    tessera.set_num_threads(options.threads)
    tessera.allow_nondeterministic(True)  # as in PyTorch, unless told otherwise
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # f32 beside f32
    where = torch.cuda.get_device_name(options.device) if options.device != "cpu" else platform.processor() or platform.machine()
    print(f"{where}, {options.threads} threads, seed {options.seed}, {options.clock} clock, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}; "
          f"µs a call: ours, PyTorch's, ratio", flush=True)
    found = []
    try:
        with tessera.DeviceGuard(tessera.device(options.device)):
            for row in ROWS:
                if re.search(options.only, name_of(row)) and (torchvision or "torchvision" not in row[1]):
                    for size in options.sizes.split(","):
                        measure(row, size, options.seed, options, found)
    except KeyboardInterrupt:
        pass
    summary(found)
    print(f"load {os.getloadavg()[0]:.1f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return 1 if any(f.get("problem", "").startswith("Wrong") for f in found) else 0


if __name__ == "__main__":
    sys.exit(main())
