"""Dtypes, shapes and values of operators beside PyTorch's, on random operands of all dtypes; where torch is."""
import operator
import random
import warnings

import pytest
import tessera

torch = pytest.importorskip("torch")

NAMES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
BINARY = {n: getattr(operator, n) for n in "add sub mul truediv floordiv mod pow eq ne lt le gt ge and_ or_ xor lshift rshift".split()}
IN_PLACE = {n: getattr(operator, n) for n in
            "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()}
SHAPES = [(3,), (2, 3), (), (1,)]


def operand(r, name):
    shape = r.choice(SHAPES)
    count = torch.Size(shape).numel()
    # Not 0, by which PyTorch divides no integers, and no negative numbers beside what has no sign.
    values = [r.choice([1, 2, 3, 5] if name in ("uint8", "bool") else [-5, -2, -1, 1, 2, 3]) for _ in range(count)]
    if name == "bool":
        values = [v > 2 for v in values]
    return torch.tensor(values, dtype=getattr(torch, name)).reshape(shape)


def outcome(function, *operands):
    try:
        return function(*operands)
    except (RuntimeError, TypeError, NotImplementedError):
        return None


@pytest.mark.parametrize("name", [*BINARY, *IN_PLACE])
def test_dtypes_of_results(name):
    warnings.simplefilter("ignore")
    r, function = random.Random(name), {**BINARY, **IN_PLACE}[name]
    compared = 0
    for _ in range(400):
        a = operand(r, r.choice(NAMES))
        number = r.random() < 0.4
        b = r.choice([True, 2, 3, 1.5, 0.5]) if number else operand(r, r.choice(NAMES))
        if number is False and {a.dtype, b.dtype} == {torch.uint8, torch.int8}:
            continue  # int32 here: docs/dtypes.md
        if number is False and torch.uint8 in (a.dtype, b.dtype) and min(a.min().item(), b.min().item()) < 0:
            continue  # PyTorch converts -1 to 255 first
        ours = (tessera.from_dlpack(a.clone()), b if number else tessera.from_dlpack(b.clone()))
        pair, mine = (a.clone(), b), ours
        if number and name in BINARY and r.random() < 0.5:
            pair, mine = pair[::-1], mine[::-1]
        wanted, found = outcome(function, *pair), outcome(function, *mine)
        if wanted is None:  # PyTorch refuses what is defined here: bools that are subtracted or divided
            continue
        said = f"{name} of {pair} gives {wanted}, not {found}"
        assert found is not None, said
        assert str(wanted.dtype) == f"torch.{found.dtype.name}" and tuple(wanted.shape) == found.shape, said
        bound = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(wanted.dtype, 1e-6)
        assert torch.allclose(torch.from_dlpack(found.detach()).double(), wanted.double(), rtol=bound, equal_nan=True), said
        compared += 1
    assert compared > 60
