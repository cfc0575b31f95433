"""Functions with their own backward, gradients of gradients, and functions that backward runs again."""
import gc
import weakref

import numpy as np
import pytest
import tessera
from tessera import nn
from tessera.utils.checkpoint import checkpoint, checkpoint_sequential


def test_gradients_of_gradients_as_pytorch_asks_for_them():
    x = tessera.tensor([1.0, 2.0], requires_grad=True)
    y = x ** 3
    first, = tessera.autograd.grad(outputs=y, inputs=x, grad_outputs=tessera.ones(2), create_graph=True, only_inputs=True)
    second = tessera.autograd.grad(first.sum(), [x])
    assert first.tolist() == [3, 12] and second[0].tolist() == [6, 12] and x.grad is None
    assert tessera.autograd.grad((x * 2).sum(), (x, tessera.ones(1, requires_grad=True)), allow_unused=True)[1] is None
    with pytest.raises(tessera.Error):
        tessera.autograd.grad((x * 2).sum(), tessera.ones(1, requires_grad=True))


def test_results_may_keep_their_gradient():
    x = tessera.tensor([1.0, -2.0], requires_grad=True)
    y = x * 3
    y.retain_grad()
    for times in (1, 2):
        (y * y).sum().backward(retain_graph=True)
        assert y.grad.tolist() == [6 * times, -12 * times]
    assert x.where(x > 0, 0.5).tolist() == [1, 0.5] and tessera.broadcast_to(x, (2, 2)).tolist() == [[1, -2]] * 2
    gone = weakref.ref(y)
    del y
    gc.collect()
    assert gone() is None


class Scaled(tessera.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, y):
        out = x * factor
        ctx.save_for_backward(x, out, None, y)
        ctx.factor = factor
        return out, x + y

    @staticmethod
    def backward(ctx, of_product, of_sum):
        x, out, nothing, y = ctx.saved_tensors
        assert nothing is None and ctx.needs_input_grad == (True, False, False)
        np.testing.assert_allclose(out.numpy(), x.detach().numpy() * ctx.factor)
        return of_product * ctx.factor * 10 + of_sum, None, None


class Reversed(tessera.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, grad):
        assert grad.shape == ctx.shape
        return -grad


class Short(Scaled):
    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


def test_functions_have_their_own_backward():
    x, y = tessera.tensor([1.0, 2.0], requires_grad=True), tessera.ones(2)
    product, added = Scaled.apply(x * 1, 3.0, y)
    (product.sum() + added.sum() * 2).backward()
    assert product.tolist() == [3, 6] and x.grad.tolist() == [32, 32]
    x.grad = None
    Scaled.apply(x, 3.0, y)[0].sum().backward()  # no gradient reaches the second output
    assert x.grad.tolist() == [30, 30]
    x.grad = None
    Reversed.apply(x).sum().backward()
    assert x.grad.tolist() == [-1, -1]
    with pytest.raises(tessera.Error, match="Short: backward.* gave 1 gradients for 3 inputs"):
        Short.apply(x, 3.0, y)[0].sum().backward()


def test_functions_leave_nothing_behind():
    x = tessera.ones(3, requires_grad=True)
    out = Scaled.apply(x, 2.0, tessera.ones(3))
    gone = weakref.ref(out[0])
    del out
    gc.collect()
    assert gone() is None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 16), nn.Linear(16, 6), nn.Dropout(0.5)
        self.runs = 0

    def forward(self, x, factor=1.0):
        self.runs += 1
        return x + self.b(self.drop(nn.functional.gelu(self.a(x)))) * factor


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_what_runs_again_gives_the_same(lower, leaf):
    block, x = Block(), tessera.randn(5, 6)
    x.requires_grad_(leaf)

    def step(call):
        tessera.manual_seed(3)
        block.zero_grad()
        x.grad = None
        with tessera.autocast(device_type="cpu", dtype=tessera.bfloat16, enabled=lower):
            y = call(x, 2.0)
            after = tessera.rand(3).tolist()
        (y.float() ** 2).sum().backward()
        gradients = [p.grad.numpy() for p in block.parameters()] + ([x.grad.numpy()] if leaf else [])
        return y.detach().float().numpy(), after, gradients, tessera.rand(2).tolist()
    wanted = step(block)
    before = block.runs
    given = step(lambda *args: checkpoint(block, *args, use_reentrant=False))
    assert block.runs == before + 2
    assert np.array_equal(wanted[0], given[0]) and wanted[1] == given[1] and wanted[3] == given[3]
    for one, other in zip(wanted[2], given[2]):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_what_runs_again_in_parts():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)])
    x = tessera.randn(3, 4)
    model(x).sum().backward()
    wanted = [p.grad.numpy().copy() for p in model.parameters()]
    for segments in (1, 2, 5):
        model.zero_grad()
        checkpoint_sequential(model, segments, x, use_reentrant=False).sum().backward()
        for one, p in zip(wanted, model.parameters()):
            np.testing.assert_allclose(p.grad.numpy(), one, rtol=1e-5, atol=1e-7)
    with tessera.no_grad():
        assert not checkpoint(model, x).requires_grad
    with pytest.raises(tessera.Error, match="6 segments of 5 functions"):
        checkpoint_sequential(model, 6, x)


def test_autocast_and_scaler_take_pytorchs_arguments():
    @tessera.autocast("cpu")
    def product(a):
        return a @ a
    a = tessera.randn(4, 4)
    assert product(a).dtype == tessera.bfloat16 and (a @ a).dtype == tessera.float32
    scope = tessera.amp.autocast(device_type="cpu", dtype=tessera.float16)
    with scope, scope:
        assert (a @ a).dtype == tessera.float16
    assert tessera.amp.GradScaler("cpu", init_scale=8.0).get_scale() == 8 and tessera.amp.GradScaler(16.0).get_scale() == 16
