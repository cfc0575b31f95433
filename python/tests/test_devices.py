"""Functions of Python make what they need beside their inputs on the inputs' device: tried on a GPU without memory."""
import pytest
import tessera

F, GPU = tessera.nn.functional, "meta(cuda:0)"


def of(*shape, dtype="float32"):
    return tessera.empty(*shape, dtype=dtype, device=GPU)


ROWS = {"dtype": "int64"}
CALLS = {
    "quantile": lambda: tessera.quantile(of(3, 4), 0.5, 1), "searchsorted": lambda: tessera.searchsorted(of(4), 0.5),
    "isin": lambda: tessera.isin(of(3), of(2)), "where": lambda: tessera.where(of(3, dtype="bool"), 1.0, of(3)),
    "where2": lambda: tessera.where(of(3, dtype="bool"), 1.0, 2.0), "xlogy": lambda: tessera.xlogy(2.0, of(3)),
    "xlogy2": lambda: tessera.xlogy(of(3), 2.0), "isreal": lambda: tessera.isreal(of(3)), "mvlgamma": lambda: tessera.mvlgamma(of(3), 2),
    "pdist": lambda: tessera.pdist(of(3, 4)), "cov": lambda: tessera.cov(of(3, 4)), "corrcoef": lambda: tessera.corrcoef(of(3, 4)),
    "diag_embed": lambda: tessera.diag_embed(of(3), 1), "scatter": lambda: of(3, 4).scatter(1, of(3, 2, **ROWS), 1.5),
    "index_fill": lambda: of(3, 4).index_fill(0, of(2, **ROWS), 2.0), "select_scatter": lambda: of(3, 4).select_scatter(of(4), 0, 1),
    "slice_scatter": lambda: of(3, 4).slice_scatter(of(2, 4), 0, 0, 2), "diagonal_scatter": lambda: of(3, 4).diagonal_scatter(of(3)),
    "masked_fill": lambda: of(3, 4).masked_fill(of(4, dtype="bool"), 0.0), "getitem": lambda: of(3, 4)[of(2, **ROWS)],
    "getitem2": lambda: of(3, 4)[:, [0, 1]], "logit": lambda: tessera.logit(of(3), 0.1), "heaviside": lambda: tessera.heaviside(of(3), of(3)),
    "copysign": lambda: tessera.copysign(of(3), -1.0), "nan_to_num": lambda: tessera.nan_to_num(of(3)), "sinc": lambda: tessera.sinc(of(3)),
    "renorm": lambda: tessera.renorm(of(3, 4), 2, 0, 1.0), "cdist": lambda: tessera.cdist(of(3, 4), of(2, 4)), "angle": lambda: tessera.angle(of(3)),
    "quotient": lambda: 1 / of(3), "power": lambda: 2 ** of(3), "compared": lambda: of(3) > 1, "clamped": lambda: of(3).clamp(of(3), None),
    "matrix_power": lambda: tessera.linalg.matrix_power(of(3, 3), 0), "vander": lambda: tessera.linalg.vander(of(3)),
    "entr": lambda: tessera.special.entr(of(3)), "normal": lambda: tessera.normal(of(3), 1.0), "randint_like": lambda: tessera.randint_like(of(3), 4),
    "zeros_like": lambda: tessera.zeros_like(of(3)), "new_ones": lambda: of(3).new_ones(2), "repeat_interleave": lambda: of(3).repeat_interleave(2),
    "embedding": lambda: F.embedding(of(2, **ROWS), of(5, 3), padding_idx=1), "adaptive_max_pool": lambda: F.adaptive_max_pool2d(of(1, 2, 5, 5), 2, True),
    "max_unpool": lambda: F.max_unpool2d(of(1, 2, 3, 3), of(1, 2, 3, 3, **ROWS), 2), "pad": lambda: F.pad(of(1, 2, 5), (1, 1), "replicate"),
    "layer_norm": lambda: F.layer_norm(of(2, 3, 4), (3, 4)), "batch_norm": lambda: F.batch_norm(of(2, 3, 4, 4), None, None, training=True),
    "group_norm": lambda: F.group_norm(of(2, 4, 3), 2), "instance_norm": lambda: F.instance_norm(of(2, 4, 3, 3)),
    "cross_entropy": lambda: F.cross_entropy(of(2, 3, 4), of(2, 4, **ROWS), weight=of(3), label_smoothing=0.1),
    "kl_div": lambda: F.kl_div(of(3), of(3)), "gaussian": lambda: F.gaussian_nll_loss(of(3), of(3), of(3)),
    "hinge": lambda: F.hinge_embedding_loss(of(3), of(3)), "margin": lambda: F.multi_margin_loss(of(2, 3), of(2, **ROWS)),
    "cosine": lambda: F.cosine_embedding_loss(of(2, 3), of(2, 3), of(2)), "softplus": lambda: F.softplus(of(3), 2.0),
    "threshold": lambda: F.threshold(of(3), 0.1, 5.0), "smooth_l1": lambda: F.smooth_l1_loss(of(3), of(3)),
    "attention": lambda: F.scaled_dot_product_attention(*(of(2, 4, 8, 16) for _ in range(3))), "one_hot": lambda: F.one_hot(of(3, **ROWS), 5),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_made_elsewhere(name):
    made = CALLS[name]()
    for x in made if isinstance(made, tuple) else (made,):
        assert str(x.device) == GPU
