"""Values that PyTorch gives, or refuses, for integers and where nothing is there."""
import pytest

import tessera as ts


def test_integers_are_not_cut():
    x = ts.tensor([-5, 2, 7])
    with pytest.raises(ts.Error, match="quantile: takes floating-point tensors"):
        ts.quantile(x, 0.3)
    signed = ts.copysign(ts.tensor([1, 2]), ts.tensor([-1, 3]))
    assert signed.dtype == ts.float32 and signed.tolist() == [-1, 2]


def test_numbers_that_do_not_fit_are_refused():
    for number in (300, -1, 300.5):
        with pytest.raises(ts.Error, match="does not fit u8"):
            ts.tensor([0, number], dtype=ts.uint8)
    assert ts.tensor([255, 2.5], dtype=ts.uint8).tolist() == [255, 2]


def test_attention_without_keys_gives_zeros():
    q, kv = ts.ones(1, 1, 2, 4), ts.ones(1, 1, 0, 4)
    assert ts.nn.functional.scaled_dot_product_attention(q, kv, kv).tolist() == [[[[0.0] * 4] * 2]]
