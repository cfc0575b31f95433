"""Layers that PyTorch has, too: against NumPy in float64, and whole modules against what they are made of."""
import collections
import copy
import math

import numpy as np
import pytest
import tessera
from tessera import nn, optim


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def attention(q, k, v, mask, heads):
    """softmax(q k^T / sqrt(width) + mask) v of each head, and the mean of the weights; all [batch, tokens, width]."""
    split = lambda x: x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = map(split, (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 1, 3)
    return out.reshape(*out.shape[:2], -1), weights.mean(1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("widths", [(None, None), (5, 3)])
@pytest.mark.parametrize("kind", ["bool", "float", "each"])
def test_attention_with_masks(batch_first, widths, kind):
    layer = nn.MultiheadAttention(8, 2, kdim=widths[0], vdim=widths[1], batch_first=batch_first).double()
    nn.init.normal_(layer.in_proj_bias)
    query, key, value = (numbers(3, n, w, seed=n) for n, w in ((5, 8), (7, widths[0] or 8), (7, widths[1] or 8)))
    hidden = np.triu(np.ones((5, 7), bool), 3)
    padding = np.zeros((3, 7), bool)
    padding[1, 4:] = True
    mask = {"bool": hidden, "float": np.where(hidden, -np.inf, numbers(5, 7)), "each": np.repeat(hidden[None], 6, 0)}[kind]
    added = np.where(mask, -np.inf, 0.0) if mask.dtype == bool else mask
    added = added.reshape(3, 2, 5, 7) if kind == "each" else added
    weights = [w.detach().numpy() for w in (layer.in_proj_weight.chunk(3) if widths[0] is None else
                                            (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight))]
    projected = [x @ w.T + b.detach().numpy() for x, w, b in zip((query, key, value), weights, layer.in_proj_bias.chunk(3))]
    out, seen = attention(*projected, added + np.where(padding, -np.inf, 0)[:, None, None], 2)
    out = out @ layer.out_proj.weight.detach().numpy().T + layer.out_proj.bias.detach().numpy()
    turned = [tessera.from_numpy(x if batch_first else np.ascontiguousarray(x.swapaxes(0, 1))) for x in (query, key, value)]
    for need in (True, False):
        y, told = layer(*turned, tessera.from_numpy(padding), need, tessera.from_numpy(mask))
        y = y.detach().numpy()
        np.testing.assert_allclose(y if batch_first else y.swapaxes(0, 1), out, atol=1e-12)
        assert (told is None) == (not need)
        if need:
            np.testing.assert_allclose(told.detach().numpy(), seen, atol=1e-12)


def test_attention_without_a_batch_and_bad_ones():
    layer = nn.MultiheadAttention(4, 2)
    x = tessera.randn(3, 4)
    y, weights = layer(x, x, x)
    assert tuple(y.shape) == (3, 4) and tuple(weights.shape) == (3, 3)
    np.testing.assert_allclose(y.detach().numpy(), layer(x[:, None], x[:, None], x[:, None])[0][:, 0].detach().numpy(), atol=1e-6)
    with pytest.raises(tessera.Error, match="3 heads do not divide 4"):
        nn.MultiheadAttention(4, 3)
    with pytest.raises(tessera.Error, match="is_causal"):
        layer(x, x, x, is_causal=True)
    with pytest.raises(tessera.Error, match="none of: relu, gelu"):
        nn.TransformerEncoderLayer(4, 2, activation="tanh")


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformers_are_their_parts(norm_first):
    model = nn.Transformer(8, 2, 2, 1, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first).double()
    assert len(set(p.data_ptr() for p in model.parameters())) == len(list(model.parameters()))
    x, y = tessera.randn(2, 5, 8).double(), tessera.randn(2, 3, 8).double()
    causal = model.generate_square_subsequent_mask(3).double()

    def step(layer, number, x, part):
        norm = getattr(layer, f"norm{number}")
        return x + part(norm(x)) if norm_first else norm(x + part(x))

    def feed(layer):
        return lambda z: layer.linear2(nn.functional.gelu(layer.linear1(z)))
    h = x
    for layer in model.encoder.layers:
        h = step(layer, 1, h, lambda z, layer=layer: layer.self_attn(z, z, z)[0])
        h = step(layer, 2, h, feed(layer))
    memory = model.encoder.norm(h)
    layer, out = model.decoder.layers[0], y
    out = step(layer, 1, out, lambda z: layer.self_attn(z, z, z, attn_mask=causal)[0])
    out = step(layer, 2, out, lambda z: layer.multihead_attn(z, memory, memory)[0])
    out = model.decoder.norm(step(layer, 3, out, feed(layer)))
    given = model(x, y, tgt_mask=causal)
    np.testing.assert_allclose(given.detach().numpy(), out.detach().numpy(), atol=1e-12)
    given.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("cell,layer", [(nn.RNNCell, nn.RNN), (nn.GRUCell, nn.GRU), (nn.LSTMCell, nn.LSTM)])
def test_cells_are_steps_of_layers(cell, layer):
    one, all_steps = cell(3, 5).double(), layer(3, 5).double()
    with tessera.no_grad():
        for name, p in one.named_parameters():
            getattr(all_steps, name + "_l0").copy_(p)
    x = tessera.randn(4, 2, 3).double()
    state = None
    for t in range(4):
        state = one(x[t], state)
    hidden = state[0] if isinstance(state, tuple) else state
    np.testing.assert_allclose(hidden.detach().numpy(), all_steps(x)[0][-1].detach().numpy(), atol=1e-12)
    assert len(dict(cell(3, 5, bias=False).named_parameters())) == 2


@pytest.mark.parametrize("dims", [1, 3])
def test_transposed_convolutions_undo_shapes(dims):
    name = f"ConvTranspose{dims}d"
    layer = getattr(nn, name)(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    x = tessera.randn(2, 4, *[5] * dims)
    assert tuple(layer(x).shape) == (2, 6, *[10] * dims)
    wanted = getattr(nn.functional, f"conv_transpose{dims}d")(x, layer.weight, layer.bias, 2, 1, 1, 2)
    assert np.array_equal(layer(x).detach().numpy(), wanted.detach().numpy())


@pytest.mark.parametrize("kind,mode", [("Zero", "constant"), ("Reflection", "reflect"), ("Replication", "edge"), ("Circular", "wrap")])
def test_pads_are_those_of_numpy(kind, mode):
    x = numbers(2, 3, 5, 6)
    y = getattr(nn, kind + "Pad2d")((1, 2, 3, 0))(tessera.from_numpy(x))
    np.testing.assert_array_equal(y.numpy(), np.pad(x, ((0, 0), (0, 0), (3, 0), (1, 2)), mode=mode))
    assert tuple(getattr(nn, kind + "Pad1d")(1)(tessera.from_numpy(x[0])).shape) == (3, 5, 8)


def test_norms_of_instances_and_without_weights():
    x = numbers(2, 3, 4, 5)
    y = nn.InstanceNorm2d(3)(tessera.from_numpy(x)).numpy()
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5), atol=1e-12)
    assert not nn.InstanceNorm1d(3).state_dict() and len(nn.InstanceNorm3d(3, affine=True, track_running_stats=True).state_dict()) == 4
    plain = nn.BatchNorm1d(3, affine=False).double()
    z = plain(tessera.from_numpy(x[..., 0])).numpy()
    np.testing.assert_allclose(z, (x[..., 0] - x[..., 0].mean((0, 2), keepdims=True)) / np.sqrt(x[..., 0].var((0, 2), keepdims=True) + 1e-5),
                               atol=1e-12)


def test_dropouts_of_channels_rest_in_evaluation():
    x = tessera.ones(4, 64, 3, 3)
    layer = nn.Dropout2d(0.5)
    y = layer(x).numpy()
    assert set(np.unique(y)) == {0, 2} and (y.std((2, 3)) == 0).all()
    assert np.array_equal(layer.eval()(x).numpy(), x.numpy())
    assert nn.functional.dropout1d(tessera.ones(8, 3), 0.5).shape == (8, 3)


def test_gumbel_softmax_draws_one_of_all():
    y = nn.functional.gumbel_softmax(tessera.zeros(50, 4, requires_grad=True), tau=0.5, hard=True, dim=-1)
    assert sorted(set(np.unique(y.detach().numpy().round(5)))) == [0, 1] and y.sum().item() == pytest.approx(50)


def test_lists_and_dicts_of_parameters():
    row = nn.ParameterList([nn.Parameter(tessera.ones(2)), tessera.zeros(3)])
    named = nn.ParameterDict({"a": nn.Parameter(tessera.ones(2))})
    named["b"] = nn.Parameter(tessera.ones(1))
    assert [tuple(p.shape) for p in row] == [(2,), (3,)] and row[1].requires_grad and list(named) == ["a", "b"]
    assert list(row.state_dict()) == ["0", "1"] and tuple(named["b"].shape) == (1,)


def test_gradients_are_clipped():
    def gradients():
        parameters = [nn.Parameter(tessera.zeros(3)), nn.Parameter(tessera.zeros(2, 2)), nn.Parameter(tessera.zeros(1))]
        for p, seed in zip(parameters[:2], (1, 2)):
            p.grad = tessera.from_numpy(numbers(*p.shape, seed=seed).astype(np.float32))
        return parameters, np.concatenate([p.grad.numpy().ravel() for p in parameters[:2]])
    for order, norm in ((2, lambda x: np.sqrt((x**2).sum())), (1, lambda x: abs(x).sum()), (math.inf, lambda x: abs(x).max())):
        parameters, flat = gradients()
        assert nn.utils.clip_grad_norm_(iter(parameters), 0.5, norm_type=order).item() == pytest.approx(norm(flat), rel=1e-5)
        after = np.concatenate([p.grad.numpy().ravel() for p in parameters[:2]])
        np.testing.assert_allclose(after, flat * 0.5 / norm(flat), rtol=1e-4)
    parameters, flat = gradients()
    nn.utils.clip_grad_value_(parameters, 0.3)
    np.testing.assert_allclose(parameters[0].grad.numpy(), flat[:3].clip(-0.3, 0.3))
    vector = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(tessera.arange(8.0), parameters)
    assert tuple(vector.shape) == (8,) and parameters[1].tolist() == [[3, 4], [5, 6]]
    with pytest.raises(tessera.Error, match="7 elements for 8"):
        nn.utils.vector_to_parameters(tessera.arange(7.0), parameters)
    parameters[0].grad[0] = math.nan
    with pytest.raises(tessera.Error, match="nan"):
        nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)


def test_initialisers_return_and_scale():
    w = tessera.empty(256, 32, 3, 3)
    assert nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu") is w
    assert w.numpy().std() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.02)
    nn.init.kaiming_uniform_(w, a=math.sqrt(5))
    assert abs(w.numpy()).max() == pytest.approx(1 / math.sqrt(32 * 9), rel=0.01)
    assert abs(nn.init.trunc_normal_(w, std=0.5, a=-1, b=1).numpy()).max() <= 1
    for shape in ((5, 3), (3, 5), (4, 2, 3)):
        q = nn.init.orthogonal_(tessera.empty(*shape), gain=2.0).numpy().reshape(shape[0], -1).astype(np.float64)
        np.testing.assert_allclose(q @ q.T if shape[0] < q.shape[1] else q.T @ q, 4 * np.eye(min(q.shape)), atol=1e-5)
    assert nn.init.eye_(tessera.empty(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert nn.init.calculate_gain("leaky_relu", 0) == pytest.approx(math.sqrt(2))
    with pytest.raises(tessera.Error, match="fan_in, fan_out"):
        nn.init.kaiming_normal_(w, mode="fan")


def test_optimizers_take_their_options_from_groups():
    a, b = nn.Parameter(tessera.ones(2)), nn.Parameter(tessera.ones(2))
    for make in (optim.RMSprop, optim.Adagrad, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adadelta, optim.Adam):
        optimizer = make([{"params": [a], "lr": 0.0}, {"params": [b]}], foreach=False)
        a.grad, b.grad, before = tessera.ones(2), tessera.ones(2), b.tolist()
        optimizer.step()
        assert a.tolist() == [1, 1] and b.tolist() != before
        fresh = make([{"params": [a]}, {"params": [b]}])
        fresh.load_state_dict(optimizer.state_dict())
    assert "param.0.max_exp_avg_sq" in optim.AdamW([a], amsgrad=True, fused=True).state_dict()
    with pytest.raises(tessera.Error, match="alpha = 1.5"):
        optim.RMSprop([a], alpha=1.5)


def test_modules_in_a_row_are_set_and_sliced():
    row = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    row[2] = nn.Linear(3, 5)
    assert tuple(row(tessera.ones(1, 2)).shape) == (1, 5) and len(row[:2]) == 2 and row[:2][0] is row[0] and row[-1].out_features == 5
    row.extend([nn.Tanh(), nn.Flatten(0)])
    assert len(row) == 5 and [type(m) for m in row][3] is nn.Tanh
    called = nn.Sequential(collections.OrderedDict([("up", nn.Linear(2, 3)), ("act", nn.ReLU())]))
    assert list(called.state_dict()) == ["up.bias", "up.weight"] and called[0] is called.up and tuple(called(tessera.ones(1, 2)).shape) == (1, 3)
    several = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 2)])
    several[0] = nn.Linear(1, 7)
    assert several[0].out_features == 7 and len(several[:1] + several) == 3 and several[-1].out_features == 2
    assert several.state_dict()["0.weight"].shape == (7, 1)
    parts, fresh = list(several), nn.Tanh()
    several.insert(1, fresh)
    assert [a is b for a, b in zip(several, (parts[0], fresh, parts[1]))] == [True] * 3 and len(several) == 3
    named = nn.ModuleDict({"a": nn.Linear(1, 1)})
    named.update({"a": nn.Linear(1, 2), "b": nn.ReLU()})
    assert named["a"].out_features == 2 and list(named.keys()) == ["a", "b"]
    with pytest.raises(IndexError):
        row[9]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layer", [lambda b: nn.LSTM(3, 4, 2, batch_first=b), lambda b: nn.GRU(3, 4, bidirectional=True, batch_first=b),
                                   lambda b: nn.RNN(3, 4, bidirectional=True, batch_first=b)], ids=["LSTM", "GRU", "RNN"])
def test_packed_sequences_are_run_one_by_one(layer, batch_first):
    tessera.manual_seed(3)
    net, rnn = layer(batch_first), nn.utils.rnn
    parts = [tessera.randn(n, 3) for n in (2, 5, 1, 5)]
    x = rnn.pad_sequence(parts, batch_first, padding_value=7.0)
    assert x.shape == ((4, 5, 3) if batch_first else (5, 4, 3))
    packed = rnn.pack_padded_sequence(x, [2, 5, 1, 5], batch_first, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [4, 3, 2, 2, 2] and packed.data.shape == (13, 3)
    assert packed.sorted_indices.tolist() == [1, 3, 0, 2] and packed.unsorted_indices.tolist() == [2, 0, 3, 1]
    out, states = net(packed)
    y, lengths = rnn.pad_packed_sequence(out, batch_first, padding_value=-1.0, total_length=6)
    assert lengths.tolist() == [2, 5, 1, 5] and y.shape[0 if not batch_first else 1] == 6
    y = y if batch_first else y.transpose(0, 1)
    states = states if isinstance(states, tuple) else (states,)
    for i, part in enumerate(parts):
        want, alone = net(part.unsqueeze(0 if batch_first else 1))
        n = part.shape[0]
        np.testing.assert_allclose(y[i, :n].detach().numpy(), want.detach().reshape(n, -1).numpy(), rtol=1e-5, atol=1e-6)
        assert (y[i, n:] == -1).all()
        for s, one in zip(states, alone if isinstance(alone, tuple) else (alone,)):
            np.testing.assert_allclose(s[:, i].detach().numpy(), one[:, 0].detach().numpy(), rtol=1e-5, atol=1e-6)
    out.data.sum().backward()
    got = net.weight_hh_l0.grad.clone()
    net.zero_grad()
    sum(net(part.unsqueeze(0 if batch_first else 1))[0].sum() for part in parts).backward()
    np.testing.assert_allclose(got.numpy(), net.weight_hh_l0.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_sequences_in_rows():
    rnn = nn.utils.rnn
    parts = [tessera.arange(6.0).reshape(3, 2), tessera.ones(1, 2)]
    assert rnn.pad_sequence(parts, True, padding_side="left")[1].tolist() == [[0, 0], [0, 0], [1, 1]]
    for made in (rnn.unpad_sequence(rnn.pad_sequence(parts), [3, 1]), rnn.unpack_sequence(rnn.pack_sequence(parts)),
                 rnn.unpack_sequence(rnn.pack_sequence(parts[::-1], enforce_sorted=False))[::-1]):
        assert [x.tolist() for x in made] == [x.tolist() for x in parts]
    for wrong, said in ((lambda: rnn.pack_padded_sequence(tessera.ones(3, 2, 1), [1, 3]), "are not sorted"),
                        (lambda: rnn.pack_padded_sequence(tessera.ones(3, 2, 1), [4, 3]), "do not fit"),
                        (lambda: rnn.pack_padded_sequence(tessera.ones(3, 2, 1), [3]), "do not fit"),
                        (lambda: rnn.pad_packed_sequence(rnn.pack_sequence(parts), total_length=2), "is less than the longest"),
                        (lambda: rnn.pad_sequence(parts, padding_side="up"), "none of: right, left")):
        with pytest.raises(tessera.Error, match=said):
            wrong()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
def test_batch_norms_with_few_parts(affine, tracks):
    x = numbers(3, 4, 2, 2)
    plain = (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5)
    for kind, given in ((nn.BatchNorm2d, x), (nn.BatchNorm1d, x.reshape(3, 4, 4)), (nn.BatchNorm3d, x[:, :, None])):
        norm = kind(4, affine=affine, track_running_stats=tracks)
        assert sorted(norm.state_dict()) == (["bias"] if affine else []) + (["running_mean", "running_var"] if tracks else []) + (
            ["weight"] if affine else [])
        assert (norm.weight is None) != affine and (norm.running_mean is None) != tracks and norm.num_features == 4
        given = tessera.tensor(given, dtype=tessera.float32)
        for _ in range(300):
            got = norm(given)
        np.testing.assert_allclose(got.detach().numpy().reshape(x.shape), plain, rtol=1e-4, atol=1e-5)
        got = norm.eval()(given).detach().numpy().reshape(x.shape)
        np.testing.assert_allclose(got, plain * np.sqrt(11 / 12) if tracks else plain, rtol=1e-3, atol=1e-4)


def test_counts_of_batches_in_state_dicts_are_not_read():
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Linear(2, 2))
    there = {**net.state_dict(), "0.num_batches_tracked": tessera.tensor(7)}
    net.load_state_dict(there)
    nn.BatchNorm2d(2).load_state_dict({**nn.BatchNorm2d(2).state_dict(), "num_batches_tracked": tessera.tensor(7)})
    with pytest.raises(tessera.Error, match="unexpected: 0.more"):
        net.load_state_dict({**there, "0.more": tessera.tensor(7)})


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("name,shape", [("BatchNorm1d", (5, 3)), ("BatchNorm1d", (4, 3, 5)), ("BatchNorm2d", (2, 3, 4, 5)), ("BatchNorm3d", (2, 3, 2, 3, 1))])
def test_batch_norms_without_a_momentum_average_all_batches(name, shape, later):
    torch = pytest.importorskip("torch")
    ours, theirs = (getattr(n, name)(3, momentum=0.1 if later else None).double() for n in (nn, torch.nn))
    ours.momentum = theirs.momentum = None
    assert ours.momentum is None and sorted(ours.state_dict()) == sorted(theirs.state_dict())
    for seed in range(4):
        x = numbers(*shape, seed=seed)
        y, z = ours(tessera.tensor(x)), theirs(torch.tensor(x))
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), atol=1e-12)
        for key, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[key].numpy(), value.numpy(), atol=1e-12)
    twin = copy.deepcopy(ours)
    for one in (ours, theirs, twin):
        one.eval()
    np.testing.assert_allclose(ours(tessera.tensor(x)).detach().numpy(), theirs(torch.tensor(x)).detach().numpy(), atol=1e-12)
    assert ours.num_batches_tracked.item() == 4
    twin.train()(tessera.tensor(x))
    assert twin.num_batches_tracked.item() == 5 and ours.num_batches_tracked.item() == 4
    fresh = getattr(nn, name)(3, momentum=None).double()
    fresh.load_state_dict({key: tessera.tensor(value.numpy()) for key, value in theirs.state_dict().items()})
    theirs.train()(torch.tensor(x)), fresh(tessera.tensor(x))
    np.testing.assert_allclose(fresh.running_var.numpy(), theirs.running_var.numpy(), atol=1e-12)
    fresh.momentum = theirs.momentum = 0.25
    theirs(torch.tensor(x)), fresh(tessera.tensor(x))
    np.testing.assert_allclose(fresh.running_mean.numpy(), theirs.running_mean.numpy(), atol=1e-12)
    assert not getattr(nn, name)(3, momentum=None, affine=False, track_running_stats=False).state_dict()
    x = tessera.tensor(x[..., None] if len(shape) == 2 else x)
    one = nn.InstanceNorm1d(3, momentum=None, track_running_stats=True).double() if x.ndim == 3 else None
    if one:
        one(x)
        assert one.running_mean.tolist() == [0, 0, 0]


def test_batch_norm_as_a_function_with_few_arguments():
    torch = pytest.importorskip("torch")
    x, m, v, b = numbers(2, 3, 4), numbers(3), numbers(3, seed=1) ** 2, numbers(3, seed=2)
    for training in (False, True):
        for given in ((m, v), (m, v, b), (m, v, None, b), (m, v, b, b), (None, None, b, None))[:5 if training else 4]:
            y = nn.functional.batch_norm(tessera.tensor(x), *(a if a is None else tessera.tensor(a) for a in given), training=training)
            z = torch.nn.functional.batch_norm(torch.tensor(x), *(a if a is None else torch.tensor(a) for a in given), training=training)
            np.testing.assert_allclose(y.numpy(), z.numpy(), atol=1e-12)
    with pytest.raises(tessera.Error, match="^batch_norm: inference needs running statistics$"):
        nn.functional.batch_norm(tessera.tensor(x), None, None)
