"""Modules that compute with sizes which a file leaves open."""
import numpy as np
import pytest
import tessera
from tessera import nn

F = nn.functional

# Of h [batch, tokens, 4], both open: the ways in which modules write shapes.
WAYS = {
    "reshape": lambda h: h.reshape(h.shape[0], -1),
    "view": lambda h: h.view(h.size(0), -1, 2),
    "product": lambda h: h.view(h.shape[0] * h.shape[1], 4).unflatten(0, (h.shape[0], h.shape[1])),
    "flatten": lambda h: h.flatten(1),
    "heads": lambda h: h.view(h.shape[0], h.shape[1], 2, 2).transpose(1, 2).reshape(*h.shape),
    "permute": lambda h: h.permute(1, 0, 2).contiguous().view(h.shape[1], -1),
    "zeros_like": lambda h: tessera.zeros_like(h) + h,
    "ones_like": lambda h: tessera.ones_like(h) + h,
    "full_like": lambda h: tessera.full_like(h, 2.5) + h,
    "zeros": lambda h: tessera.cat([tessera.zeros(h.shape[0], 2, 4), h, h.new_ones((h.shape[0], 1, 4))], 1),
    "expand": lambda h: tessera.cat([tessera.ones(1, 1, 4).expand(h.shape[0], -1, -1), h], 1),
    "repeat": lambda h: tessera.cat([tessera.ones(1, 1, 4).repeat(h.shape[0], 2, 1), h.tile(1, 2, 1)], 1),
    "repeat_interleave": lambda h: h.repeat_interleave(h.shape[1], 0),
    "arange": lambda h: h + tessera.arange(h.shape[1])[:, None],
    "arange from": lambda h: h.cumsum(1) / tessera.arange(1, h.shape[1] + 1, dtype=tessera.float32)[:, None],
    "slice": lambda h: tessera.arange(20.0)[:h.shape[1]][:, None] + h,
    "slices": lambda h: tessera.cat([h[1:], h[:-1], h[::2]], 0)[:, ::-1],
    "narrow": lambda h: h.narrow(1, 1, h.shape[1] - 1),
    "last": lambda h: tessera.stack([h[-1], h[h.shape[0] - 1]]),
    "places": lambda h: h[tessera.arange(h.shape[0]), h.argmax(1)[:, 0]],
    "mean": lambda h: h.mean(1) + h.sum((0, 1)) / h.shape[0] + h.sum() / h.numel(),
    "numbers": lambda h: h * (2 * h.shape[0] - 1) + h.shape[1] ** 0.5 - 1 / h.shape[0],
    "mask": lambda h: (h @ h.mT).masked_fill(tessera.ones(h.shape[1], h.shape[1]).tril() == 0, float("-inf")).softmax(-1) @ h,
    "eye": lambda h: tessera.eye(h.shape[1]) + h.sum(-1, keepdim=True),
    "attention": lambda h: F.scaled_dot_product_attention(*(h[:, None],) * 3, is_causal=True),
    "softmax": lambda h: F.softmax(h.flatten(1), -1).view_as(h),
    "bounds": lambda h: h if h.shape[0] >= 1 and h.shape[0] != 0 else h * 2,
}




def written(write):
    """A copy of h that write() has changed."""
    def way(h):
        x = h * 1
        write(x)
        return x
    return way


def keep_views(h):
    x = h * 1
    first, turned = x[:, 0], x.transpose(0, 1)
    x.mul_(2)
    turned[0].add_(first)
    first.fill_(3)
    return tessera.cat([x.flatten(1), first, turned[0], turned.permute(1, 0, 2).flatten(1)], 1)


def filled_by_rows(x):
    out = tessera.empty(x.shape[0], 3, 4)
    for i in range(3):
        out[:, i] = x[:, -1] * i
    return out


# Writes in place, of values and of views of them.
WAYS.update({f"in place: {name}": written(write) for name, write in {
    "relu": lambda x: F.relu(x, inplace=True),
    "sums": lambda x: x.add_(x[:1], alpha=2).sub_(1).mul_(x[:, :1]).mul_(3),
    "slice": lambda x: x[:, 1:-1].mul_(2)[..., 0].fill_(5),
    "steps": lambda x: x[:, 1::2].add_(x[:, ::2].sum(1, keepdim=True)),
    "item": lambda x: x.__setitem__((slice(None), -1), 7.0),
    "columns": lambda x: x.__setitem__((..., slice(0, None, 2)), x[..., 1::2].sin()),
    "mask": lambda x: x.masked_fill_(x > 0, -1),
    "transposed": lambda x: x.transpose(1, 2).unflatten(1, (2, 2))[:, 1].add_(1),
    "flat": lambda x: x.view(-1, 2)[:, 0].copy_(x.view(-1, 2)[:, 1]),
    "scatter": lambda x: x.scatter_(2, x.argmax(2, keepdim=True), 9.0),
    "index_add": lambda x: x.index_add_(1, tessera.tensor([0, 0]), x[:, :2]),
    "places": lambda x: x.__setitem__((tessera.arange(x.shape[0]), x.argmax(1)[:, 0]), x[:, 0] * 2),
}.items()})

WAYS.update({
    "views stay views": keep_views,
    "rows": filled_by_rows,
    "in place: bools": lambda h: (h > 0).logical_not_().to(h.dtype),
    "in place: integers": lambda h: (lambda n: n.float() + n.fill_(2))((h * 9).to(tessera.int32)),
})

tessera.manual_seed(1)
LSTM, GRU, RNN = nn.LSTM(4, 5, 2, batch_first=True), nn.GRU(4, 3, bidirectional=True), nn.RNN(4, 5, nonlinearity="relu")
CELLS, ATTENTION = (nn.LSTMCell(4, 6), nn.GRUCell(4, 6)), nn.MultiheadAttention(4, 2, batch_first=True)
LAYERS = [layer.eval() for layer in (
    nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.TransformerDecoderLayer(4, 2, 8, norm_first=True, batch_first=True),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, nn.LayerNorm(4)))]
NET = nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval()


def causal(h):
    return nn.Transformer.generate_square_subsequent_mask(h.shape[1])


WAYS.update({
    "LSTM": lambda h: tessera.cat([LSTM(h)[0], LSTM(h)[1][1][-1:].transpose(0, 1).expand(-1, h.shape[1], -1)], 2),
    "LSTM, states": lambda h: LSTM(h, (tessera.ones(2, h.shape[0], 5), tessera.zeros(2, h.shape[0], 5)))[0],
    "GRU": lambda h: GRU(h)[0] + GRU(h)[1].sum(),
    "RNN": lambda h: RNN(h.transpose(0, 1))[0],
    "cells": lambda h: CELLS[0](h[:, 0])[0] + CELLS[1](h[:, 1]),
    "MultiheadAttention": lambda h: tessera.cat([ATTENTION(h, h, h)[0], ATTENTION(h, h[:, :2], h[:, :2])[1]], 2),
    "MultiheadAttention, masks": lambda h: ATTENTION(h, h, h, key_padding_mask=h[..., 0] > 9, attn_mask=causal(h))[0],
    "TransformerEncoderLayer": lambda h: LAYERS[0](h, causal(h), h[..., 0] > 9),
    "TransformerDecoderLayer": lambda h: LAYERS[1](h, h * 2, tgt_mask=causal(h)),
    "TransformerEncoder": lambda h: LAYERS[2](h, src_key_padding_mask=(h[..., 0] > 9).transpose(0, 1)),
    "Transformer": lambda h: NET(h, h[:, :3], tgt_mask=causal(h[:, :3]), src_key_padding_mask=h[..., 0] > 9),
})


class Way(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, h):
        return self.way(h)


def runs_of(path):
    """This library, and ONNX Runtime where it is."""
    model = tessera.load_onnx(path)
    yield lambda x: next(iter(model.run(x).values())).numpy()
    try:
        import onnxruntime
    except ImportError:
        return
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    yield lambda x: session.run(None, {"input": x.numpy()})[0]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("open", [(), [{0: "batch", 1: "tokens"}]], ids=["batch", "both"])
def test_a_module_is_written(name, open, tmp_path):
    tessera.manual_seed(3)
    module, path = Way(WAYS[name]).eval(), tmp_path / "way.onnx"
    tessera.onnx.save(module, tessera.randn(2, 6, 4), path, open=open)
    assert tessera.onnx.inspect(str(path)).inputs[0].dims[:2] == ["batch", "tokens" if open else "6"]
    for batch, tokens in ((1, 6), (5, 6), *(((3, 9), (2, 4)) if open else ())):
        x = tessera.randn(batch, tokens, 4)
        want = module(x).detach().numpy()
        for run in runs_of(path):
            got = run(x)
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", [
    lambda h: h * len(h), lambda h: h * int(h.shape[0]), lambda h: sum(h[i] for i in range(h.shape[0])),
    lambda h: h / float(h.size(0)), lambda h: sum(row for row in h), lambda h: h.squeeze() if h.shape[0] == 1 else h,
    lambda h: h if h.shape[0] < 5 else h * 2, lambda h: tessera.linspace(0, 1, h.shape[0]),
    lambda h: F.interpolate(h.transpose(0, 1)[:, None], scale_factor=0.7), 
    lambda h: F.interpolate(h[:, None], size=(h.shape[0], 4), antialias=True, mode="bilinear")])
def test_a_size_that_must_be_known_is_refused_in_one_line(way, tmp_path):
    path = tmp_path / "way.onnx"
    with pytest.raises(tessera.Error) as e:
        tessera.onnx.save(nn.Sequential(nn.Identity(), Way(way)), tessera.randn(2, 6, 4), path)
    said = str(e.value)
    assert said.startswith(f'{path}: module "1": ') and said.endswith("; the model reads it, so it must be fixed")
    assert "\n" not in said and not path.exists()
    fixed = Way(way)
    tessera.onnx.save(fixed, tessera.randn(2, 6, 4), path, batch="")
    x = tessera.randn(2, 6, 4)
    np.testing.assert_allclose(next(runs_of(path))(x), fixed(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_a_model_that_was_read_is_written_again(tmp_path):
    first, again = tmp_path / "first.onnx", tmp_path / "again.onnx"
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    tessera.onnx.save(net, tessera.ones(2, 4), first, input_names=["x"], output_names=["y"])
    x = tessera.randn(5, 4)
    tessera.onnx.save(tessera.load_onnx(first), x, again)
    model = tessera.load_onnx(again)
    assert [(p.name, p.dims) for p in model.inputs + model.outputs] == [("x", ["5", "4"]), ("y", ["5", "3"])]
    np.testing.assert_allclose(model.run(x)["y"].numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    tessera.onnx.save(tessera.load_onnx(first), x, again, open=[{0: "n"}])
    model = tessera.load_onnx(again)
    assert model.inputs[0].dims == ["n", "4"]
    np.testing.assert_allclose(model.run(x[:2])["y"].numpy(), net(x[:2]).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_open_sizes_of_inputs(tmp_path):
    class Two(nn.Module):
        def forward(self, x, y):
            return tessera.cat([x, y], 1)
    path = tmp_path / "two.onnx"
    inputs = [tessera.ones(2, 3), tessera.ones(2, 4)]
    tessera.onnx.save(Two(), inputs, path, open=[{0: "n", 1: "a"}, {0: "n", -1: "b"}])
    model = tessera.load_onnx(path)
    assert [p.dims for p in model.inputs] == [["n", "a"], ["n", "b"]]
    assert model.run(tessera.ones(5, 1), tessera.ones(5, 2))["output"].shape == (5, 3)
    with pytest.raises(tessera.Error, match="open sizes of 3 inputs"):
        tessera.onnx.save(Two(), inputs, path, open=[{}, {}, {0: "n"}])
    with pytest.raises(tessera.Error, match="dim 2 is out of range"):
        tessera.onnx.save(Two(), inputs, path, open=[{2: "n"}])


# Of x [batch, 4, height, width], all but the channels open.
IMAGES = {
    "conv1d": lambda x: F.conv1d(x.flatten(2), tessera.ones(6, 2, 3), stride=2, padding=1, groups=2),
    "conv1d, causal": lambda x: F.conv1d(F.pad(x.flatten(2), (4, 0)), tessera.ones(2, 4, 3), dilation=2),
    "conv2d, same": lambda x: F.conv2d(x, tessera.ones(2, 4, 2, 4), padding="same"),
    "conv3d": lambda x: F.conv3d(x[:, :, None].repeat(1, 1, 3, 1, 1), tessera.ones(2, 4, 3, 3, 3), padding=1),
    "conv3d, depth": lambda x: F.conv3d(x[:, None], tessera.ones(2, 1, 2, 3, 3), stride=(1, 2, 1)),
    "conv3d, open depth": lambda x: F.conv3d(x.transpose(1, 2)[:, None], tessera.ones(2, 1, 3, 2, 1), stride=(2, 1, 1)),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x.flatten(2), tessera.ones(4, 3, 4), stride=2, padding=1),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, tessera.ones(4, 3, 3, 3), stride=2, padding=1, output_padding=1),
    "conv_transpose2d, cut": lambda x: F.conv_transpose2d(x, tessera.ones(4, 3, 3, 3), stride=1, padding=0)[..., 1:-1, 1:],
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool, ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_pool1d": lambda x: F.max_pool1d(x.flatten(2), 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 2) + F.avg_pool2d(x, 2, count_include_pad=False),
    "global": lambda x: F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (1, 1)) + x.amax((2, 3), keepdim=True),
    "unfold": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "unfold dim": lambda x: x.unfold(2, 2, 1).unfold(3, 3, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, parts": lambda x: F.interpolate(x, scale_factor=(1.5, 0.5)),
    "nearest-exact": lambda x: F.interpolate(x, scale_factor=1.25, mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, scale_factor=3, mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=(2, 0.5), mode="bicubic"),
    "to a size": lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    "to open sizes": lambda x: F.interpolate(x[..., ::2, 1:], size=x.shape[2:], mode="bilinear", align_corners=True) + x,
    "nearest to open sizes": lambda x: F.interpolate(F.max_pool2d(x, 2), size=(x.size(2), x.size(3))) + x,
    "like": lambda x: F.interpolate(x[..., :1, :2], size=x.shape[-2:], mode="bicubic") + x,
    "linear": lambda x: F.interpolate(x.flatten(2), scale_factor=2, mode="linear"),
    "pad": lambda x: F.pad(x, (1, 2, -1, 0)) * 2,
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 1, 2, 1), mode="circular"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(F.interpolate(x, scale_factor=2), 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": lambda x: F.group_norm(x, 2, tessera.ones(4) * 2),
    "rms_norm": lambda x: F.rms_norm(x.permute(0, 2, 3, 1), (4,)),
    "local_response_norm": lambda x: F.local_response_norm(x, 3) + F.local_response_norm(x, 2),
    "normalize": lambda x: F.normalize(x) + F.normalize(x.flatten(2), dim=-1).view_as(x),
    "dropout": lambda x: nn.Dropout2d(0.5).eval()(F.dropout(x, 0.5, training=False)),
    "squeeze and excite": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid() + F.adaptive_avg_pool2d(x, 1)[:, :1].relu_(),
    "grid": lambda x: x + tessera.stack(tessera.meshgrid(tessera.arange(x.shape[2]), tessera.arange(x.shape[3]), indexing="ij")).sum(0),
    "attention": lambda x: F.scaled_dot_product_attention(*(x.flatten(2).mT[:, None],) * 3)[:, 0].mT.unflatten(2, x.shape[2:]),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_open_sizes(name, tmp_path):
    tessera.manual_seed(5)
    module, path = Way(IMAGES[name]).eval(), tmp_path / "way.onnx"
    tessera.onnx.save(module, tessera.randn(2, 4, 6, 8), path, open=[{0: "batch", 2: "height", 3: "width"}])
    for batch, height, width in ((2, 6, 8), (1, 7, 10), (3, 12, 5)):
        x = tessera.randn(batch, 4, height, width)
        want = module(x).detach().numpy()
        for run in runs_of(path):
            got = run(x)
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_sizes_that_are_multiples(tmp_path):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(4, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 2, 2)

        def forward(self, x):
            y = F.max_pool2d(self.down(x), 2)
            return tessera.cat([x, self.up(self.up(y)), F.interpolate(y, scale_factor=4)], 1).flatten(2)
    tessera.manual_seed(5)
    module, path, open = Half().eval(), tmp_path / "half.onnx", {0: "batch", 2: "4*height", 3: "4*width"}
    tessera.onnx.save(module, tessera.randn(2, 4, 8, 12), path, open=[open])
    assert tessera.load_onnx(path).inputs[0].dims == ["batch", "4", "4*height", "4*width"]
    for sizes in ((1, 4, 4, 4), (3, 4, 16, 8)):
        x = tessera.randn(*sizes)
        for run in runs_of(path):
            np.testing.assert_allclose(run(x), module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(tessera.Error, match="concat: shapes differ"):
        tessera.onnx.save(module, tessera.randn(2, 4, 8, 12), path, open=[{2: "height"}])


def test_writes_that_a_file_cannot_keep_are_refused(tmp_path):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", tessera.zeros(4))

        def forward(self, x):
            self.seen[:2] += 1
            return x * self.seen
    with pytest.raises(tessera.Error) as e:
        tessera.onnx.save(nn.Sequential(Counter()), tessera.ones(2, 4), tmp_path / "counter.onnx")
    assert str(e.value).endswith("""of module "0" writes to a parameter or buffer, which a file cannot keep""")


def test_counts_are_read_by_no_branch(tmp_path):
    way = Way(lambda h: h if tessera.where(h > 0)[0].numel() == 0 else -h)
    with pytest.raises(tessera.Error, match="the size .*nonzero.* depends on values, and is read as a number$"):
        tessera.onnx.save(way, tessera.ones(2, 4), tmp_path / "way.onnx")
