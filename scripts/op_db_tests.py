#!/usr/bin/env python3
"""Runs PyTorch's own samples for operators (torch.testing._internal, op_db) in f32 through tessera, forward and backward.

usage: op_db_tests.py [NAME...] [--list] [--samples]

An entry is claimed where tessera has a function of its name, or one that the tables below name. All samples of a claimed
entry must agree with PyTorch, and so must the gradients of all inputs. The last line says how many are claimed and pass.
Needs torch, expecttest and the package of tessera; it is no part of the other tests.
"""
import argparse
import functools
import math
import sys
import warnings

import numpy  # noqa: F401: torch wants it first
import torch

import tessera

T = tessera.Tensor
F = tessera.nn.functional

# Entries that have another name here, or no function of their own.
OTHERS = {
    "T": lambda x: x.T, "H": lambda x: x.H, "mT": lambda x: x.mT, "mH": lambda x: x.mH,
    "__radd__": T.__radd__, "__rdiv__": T.__rtruediv__, "__rmul__": T.__rmul__, "__rmod__": T.__rmod__,
    "__rpow__": T.__rpow__, "__rsub__": T.__rsub__, "__rmatmul__": lambda x, y: y @ x, "__getitem__": T.__getitem__,
    "broadcast_to": tessera.expand, "unsafe_chunk": tessera.chunk, "unsafe_split": tessera.split,
    "split_with_sizes": tessera.split, "constant_pad_nd": lambda x, pad, value=0: F.pad(x, pad, "constant", value),
    "einsum": lambda operands, equation: tessera.einsum(equation, operands),
    "nn.functional.embedding": lambda weight, index, **options: F.embedding(index, weight, **options), "alias_copy": tessera.same, "conj": tessera.same,
    "conj_physical": tessera.same, "resolve_conj": tessera.same, "resolve_neg": tessera.same, "real": tessera.same,
    "positive": tessera.same, "max": tessera.max, "min": tessera.min, "nn.functional.upsample_bilinear":
        functools.partial(F.interpolate, mode="bilinear", align_corners=True),
    "nn.functional.upsample_nearest": functools.partial(F.interpolate, mode="nearest"),
    "grid_sampler_2d": lambda x, grid, mode, beyond, corners: F.grid_sample(
        x, grid, ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[beyond], corners),
    "grid_sampler_3d": lambda x, grid, mode, beyond, corners: F.grid_sample(
        x, grid, ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[beyond], corners),
    "native_layer_norm": lambda *arguments: _native_layer_norm(*arguments),
    "where": lambda x, condition, other: tessera.where(condition, x, other),
    "zero_": lambda x: x.clone().zero_(),
    "torch.ops.aten._safe_softmax.default": lambda x, dim, dtype=None: _safe_softmax(x, dim, dtype),
    "item": T.item, "slice": lambda x, dim=0, start=None, end=None, step=1: _slice(x, dim, start, end, step),
    "linspace": lambda a, b, steps, **options: tessera.linspace(_number(a), _number(b), steps, **options),
    "logspace": lambda a, b, steps, base=10.0, **options: tessera.logspace(_number(a), _number(b), steps, base, **options),
    "_softmax_backward_data": lambda grad, output, dim, dtype: (grad - tessera.sum(grad * output, dim, True)) * output,
    "triangular_solve": lambda b, a, upper=True, transpose=False, unitriangular=False: _triangular_solve(
        b, a, upper, transpose, unitriangular),
    "native_group_norm": lambda *arguments: _native_group_norm(*arguments),
    "native_batch_norm": lambda *arguments: _native_batch_norm(*arguments),
    "_native_batch_norm_legit": lambda *arguments: _native_batch_norm(
        *(arguments if len(arguments) == 8 else arguments[:3] + (None, None) + arguments[3:])),
    "_chunk_cat": lambda tensors, dim, count: _chunk_cat(tensors, dim, count),
    "polygamma": lambda x, n: tessera.special.polygamma(n, x), "special.polygamma": lambda x, n: tessera.special.polygamma(n, x),
    "nn.functional.embedding_bag": lambda weight, index, **options: F.embedding_bag(index, weight, **options),
    # PyTorch gives places in the dtype of the input.
    "masked.argmax": lambda x, *dim, **options: tessera.masked.argmax(x, *dim, **options).to(x.dtype),
    "masked.argmin": lambda x, *dim, **options: tessera.masked.argmin(x, *dim, **options).to(x.dtype),
    "short": T.short, "bool": T.bool, "byte": T.byte, "char": T.char, "double": T.double, "float": T.float, "half": T.half, "int": T.int,
    "long": T.long, "bfloat16": T.bfloat16,
}
# Random results, memory that nobody wrote, complex numbers, sparse tensors, and names whose meaning is another one. The
# gradient that PyTorch's ctc_loss gives of log-probabilities is that of the logits before them.
UNCLAIMED = {
    "uniform", "normal", "rand_like", "randn", "randn_like", "randint", "randint_like", "bernoulli", "multinomial",
    "empty", "empty_like", "new_empty", "nn.functional.dropout", "nn.functional.alpha_dropout", "native_dropout_backward",
    "nn.functional.feature_alpha_dropout|with_train", "nn.functional.ctc_loss", "stft", "view_as_complex",
    "norm|nuc", "linalg.norm", "linalg.matrix_norm",
}


def _number(x):
    return x.item() if isinstance(x, T) else x


def _slice(x, dim, start, end, step):
    return x[tuple([slice(None)] * (dim % x.ndim) + [slice(start, end, step)])]


def _safe_softmax(x, dim, dtype):
    nothing = tessera.all(tessera.eq(x, -math.inf), dim, True)
    out = tessera.softmax(tessera.where(nothing, tessera.zeros_like(x), x), dim, dtype=dtype)
    return tessera.where(nothing, tessera.zeros_like(out), out)


def _native_layer_norm(x, shape, weight, bias, eps):
    dims = list(range(x.ndim - len(shape), x.ndim))
    mean, var = tessera.mean(x, dims, True), tessera.var(x, dims, correction=0, keepdim=True)
    return F.layer_norm(x, shape, weight, bias, eps), mean, tessera.rsqrt(var + eps)


def _triangular_solve(b, a, upper, transpose, unitriangular):
    a = a.mT if transpose else a
    return tessera.linalg.solve_triangular(a, b, upper=upper != transpose, unitriangular=unitriangular), a.clone()


def _native_group_norm(x, weight, bias, n, c, size, groups, eps):
    lines = x.reshape((n, groups, c // groups * size))
    mean, var = tessera.mean(lines, 2), tessera.var(lines, 2, correction=0)
    return F.group_norm(x, groups, weight, bias, eps), mean, tessera.rsqrt(var + eps)


def _native_batch_norm(x, weight, bias, mean, var, training, momentum, eps):
    dims = [0, *range(2, x.ndim)]
    out = F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    if not training:
        return out, tessera.zeros(0), tessera.zeros(0)
    return out, tessera.mean(x, dims), tessera.rsqrt(tessera.var(x, dims, correction=0) + eps)


def _chunk_cat(tensors, dim, count):
    parts = []
    dim %= tensors[0].ndim
    for x in tensors:
        size = -(-x.shape[dim] // count)
        x = tessera.pad(x, [0] * x.ndim, [count * size - x.shape[dim] if d == dim else 0 for d in range(x.ndim)])
        parts.append(x.reshape(x.shape[:dim] + (count, -1)))
    return tessera.cat(parts, -1)


def function_of(entry):
    """What runs an entry, or None."""
    variant = f"{entry.name}|{entry.variant_test_name}"
    if entry.name in UNCLAIMED or variant in UNCLAIMED:
        return None
    name = entry.name.removesuffix("_copy") if entry.name.endswith("_copy") and entry.name != "index_copy" else entry.name
    for key in (variant, name):
        if key in OTHERS:
            return OTHERS[key]
    try:
        found = functools.reduce(getattr, name.split("."), tessera)
    except AttributeError:
        found = getattr(T, name, None) if "." not in name else None
    return found if callable(found) and not isinstance(found, type) else None


class Unfit(Exception):
    """A sample that tessera's types cannot hold."""


DTYPES = {getattr(torch, d.name): d for d in tessera.dtype}


def converted(value, leaves):
    """A sample's value for tessera; `leaves` collects pairs of tensors whose gradients are compared."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.dtype not in DTYPES or value.is_conj():
            raise Unfit(str(value.dtype))
        made = tessera.from_dlpack(value.detach().clone())
        if value.requires_grad:
            made.requires_grad_()
            leaves.append((value, made))
        return made
    if isinstance(value, torch.dtype):
        if value not in DTYPES:
            raise Unfit(str(value))
        return DTYPES[value]
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.memory_format):
        raise Unfit(str(value))
    if isinstance(value, (list, tuple)):
        return type(value)(converted(v, leaves) for v in value)
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, torch.nn.PairwiseDistance):
        return functools.partial(F.pairwise_distance, p=value.norm, eps=value.eps, keepdim=value.keepdim)
    if isinstance(value, complex):
        raise Unfit("complex")
    if isinstance(value, slice):
        return slice(*(converted(v, leaves) for v in (value.start, value.stop, value.step)))
    return value


def flat(value):
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in flat(v)]
    return [value]


def off(x, exact):
    return float((x.double() - exact).norm())


def agree(ours, theirs, what, exact=None):
    """Within PyTorch's usual bounds of f32, or as near to `exact`, PyTorch's result in f64, as PyTorch's in f32 is."""
    ours, theirs = flat(ours), flat(theirs)
    if len(ours) != len(theirs):
        raise AssertionError(f"{what}: {len(ours)} results, not {len(theirs)}")
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if isinstance(b, torch.Tensor):
            if b.dtype not in DTYPES:
                raise Unfit(str(b.dtype))
            if not isinstance(a, T):
                raise AssertionError(f"{what} {i}: {type(a).__name__}, no tensor")
            a, b = torch.from_dlpack(a.detach()), b.detach().resolve_conj().resolve_neg()
            if a.shape == b.shape and a.dtype == b.dtype and a.is_floating_point() and \
                    off(a, b.double()) <= 1e-5 * float(b.double().norm()):
                continue
            if exact and a.shape == b.shape and a.is_floating_point() and not torch.allclose(a, b, 1e-4, 2e-5, True):
                truth = flat(exact())[i]
                if truth is not None and off(a, truth.detach()) <= 2 * off(b, truth.detach()):
                    continue
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5, equal_nan=True, check_stride=False,
                                       msg=lambda m: f"{what} {i}: {' '.join(m.split())}")
        elif a != b and not (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-5)):
            raise AssertionError(f"{what} {i}: {a} is not {b}")


def of_pairs(value):
    """PyTorch's result, with complex numbers as pairs of real ones."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(of_pairs, value)) if type(value) in (list, tuple) else tuple(map(of_pairs, value))
    return torch.view_as_real(value.resolve_conj()) if isinstance(value, torch.Tensor) and value.is_complex() else value


def doubled(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to(torch.float64 if value.dtype == torch.float32 else value.dtype).requires_grad_(value.requires_grad)
    return type(value)(map(doubled, value)) if type(value) in (list, tuple) else value


def check(entry, function, sample):
    if sample.kwargs.get("dropout_p", 0) or (entry.name == "nn.functional.rrelu" and sample.kwargs.get("training")):
        raise Unfit("random")
    leaves = []
    arguments = [converted(a, leaves) for a in (sample.input, *sample.args)]
    keywords = {k: converted(v, leaves) for k, v in sample.kwargs.items() if k not in ("out", "device", "layout", "pin_memory")}
    peer = (lambda *a, **k: of_pairs(entry.op(*a, **k))) if entry.name.startswith("fft.") else entry.op
    theirs = peer(sample.input, *sample.args, **sample.kwargs)
    for b in flat(theirs):
        if isinstance(b, torch.Tensor) and b.dtype not in DTYPES:
            raise Unfit(str(b.dtype))
    ours = function(*arguments, **keywords)
    wide = [doubled(v) for v in (sample.input, *sample.args)]
    wide_keywords = {k: doubled(v) for k, v in sample.kwargs.items()}
    agree(ours, theirs, "result", lambda: peer(*wide, **wide_keywords))
    pairs = [(a, b) for a, b in zip(flat(ours), flat(theirs))
             if isinstance(b, torch.Tensor) and b.requires_grad and b.is_floating_point()]
    if not leaves or not pairs:
        return
    generator = torch.Generator().manual_seed(7)
    weights = [torch.rand(b.shape, generator=generator, dtype=b.dtype) + 0.5 for _, b in pairs]
    wanted = torch.autograd.grad([b for _, b in pairs], [x for x, _ in leaves], weights, allow_unused=True)
    # What requires no gradient here has the gradient 0.
    steps = [(a, tessera.from_dlpack(w)) for (a, _), w in zip(pairs, weights) if a.requires_grad]
    found = tessera.grad([a for a, _ in steps], [x for _, x in leaves], [w for _, w in steps],
                         allow_unused=True) if steps else [None] * len(leaves)
    def exact_gradients():
        results = [b for b in flat(peer(*wide, **wide_keywords)) if isinstance(b, torch.Tensor) and b.requires_grad]
        inputs = [x for x in flat(wide + list(wide_keywords.values())) if isinstance(x, torch.Tensor) and x.requires_grad]
        return torch.autograd.grad(results, inputs, [w.double() for w in weights], allow_unused=True)

    for i, (a, b) in enumerate(zip(found, wanted)):
        zeros = torch.zeros(leaves[i][0].shape, dtype=leaves[i][0].dtype)
        agree(tessera.from_dlpack(zeros) if a is None else a, zeros if b is None else b, f"gradient {i}",
              lambda: exact_gradients()[i])


def run(entry, function, verbose):
    """How many samples passed and were unfit, and the first complaint of those that failed."""
    passed, unfit, complaints = 0, 0, []
    for sample in entry.sample_inputs("cpu", torch.float32, requires_grad=entry.supports_autograd):
        try:
            torch.manual_seed(0)
            check(entry, function, sample)
            passed += 1
        except Unfit:
            unfit += 1
        except Exception as e:  # noqa: BLE001: whatever is thrown is a failure of this sample
            complaints.append(f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:220]
                              + (f"  [{summary(sample)}]"[:240] if verbose else ""))
    return passed, unfit, complaints


def summary(sample):
    def short(v):
        if isinstance(v, torch.Tensor):
            return f"{str(v.dtype)[6:]}{list(v.shape)}"
        return f"[{', '.join(map(short, v))}]" if isinstance(v, (list, tuple)) else repr(v)
    return ", ".join([*map(short, (sample.input, *sample.args)), *(f"{k}={short(v)}" for k, v in sample.kwargs.items())])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", help="entries; all without")
    arguments.add_argument("--list", action="store_true", help="only says which entries are claimed, and which are not")
    arguments.add_argument("--samples", action="store_true", help="names each sample that fails")
    options = arguments.parse_args()
    warnings.filterwarnings("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    claimed = failed = agreed = beyond = 0
    unclaimed = []
    for entry in op_db:
        name = entry.name + (f"|{entry.variant_test_name}" if entry.variant_test_name else "")
        if not entry.supports_dtype(torch.float32, "cpu") or (options.names and entry.name not in options.names
                                                             and name not in options.names):
            continue
        function = function_of(entry)
        if function is None:
            unclaimed.append(name)
            continue
        if options.list:
            claimed += 1
            continue
        try:
            passed, unfit, complaints = run(entry, function, options.samples)
        except Exception as e:  # noqa: BLE001: of PyTorch's generators
            passed, unfit, complaints = 0, 0, [f"samples: {e}"[:200]]
        if not complaints and not passed:
            unclaimed.append(name)  # nothing of it can be said in tessera's types
            continue
        claimed += 1
        agreed += passed
        beyond += unfit
        if complaints:
            failed += 1
            print(f"failed  {name}: {len(complaints)} of {passed + len(complaints)}: {complaints[0]}", flush=True)
            if options.samples:
                print("".join(f"        {c}\n" for c in complaints[1:12]), end="")
    print(f"not claimed: {' '.join(unclaimed)}")
    print(f"{claimed} entries claimed, {claimed - failed} passed, {failed} failed; {agreed} samples agree, "
          f"{beyond} are random or of types that tessera lacks")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
