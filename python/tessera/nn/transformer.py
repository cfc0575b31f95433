"""Attention and transformers with PyTorch's arguments, names of parameters, and masks."""
from __future__ import annotations

import copy
import math

from .. import _C, creation
from . import functional, init
from .base import Module, Parameter
from .layers import ModuleList

_nn = _C._nn


def _added(mask, dtype):
    """A mask as what is added to scores: -inf where a bool one is true."""
    if mask is None or mask.is_floating_point():
        return mask
    return creation.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


class MultiheadAttention(Module):
    """Attention of `query` to `key` and `value`, each [tokens, batch, width], or [batch, tokens, width] if `batch_first`. Returns
    the output and, if `need_weights`, the weights, a mean over heads if `average_attn_weights`. Masks are added to scores;
    a bool one hides where it is true. Vaswani et al. 2017."""

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False, kdim=None, vdim=None,
                 batch_first=False):
        super().__init__()
        if embed_dim % num_heads:
            raise _C.Error(f"MultiheadAttention: {num_heads} heads do not divide {embed_dim}")
        if add_bias_kv or add_zero_attn:
            raise _C.Error("MultiheadAttention: add_bias_kv and add_zero_attn are not there")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        widths = (embed_dim, embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim)
        self.packed = set(widths) == {embed_dim}
        if self.packed:
            self.in_proj_weight = Parameter(init.xavier_uniform_(creation.empty(3 * embed_dim, embed_dim)))
        else:
            for name, width in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), widths):
                setattr(self, name, Parameter(init.xavier_uniform_(creation.empty(embed_dim, width))))
        self.in_proj_bias = Parameter(creation.zeros(3 * embed_dim)) if bias else None
        self.out_proj = _nn.Linear(embed_dim, embed_dim, bias)
        if bias:
            init.constant_(self.out_proj.bias, 0.0)

    def _projected(self, query, key, value):
        if self.packed and query is key and key is value:
            return functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        weights = self.in_proj_weight.chunk(3) if self.packed else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]

    def _mask(self, key_padding_mask, attn_mask, is_causal, q, k):
        """What is added to scores [batch, heads, tokens of q, tokens of k], and whether a kernel's causal mask is all."""
        if is_causal and attn_mask is None:
            raise _C.Error("MultiheadAttention: is_causal is a hint that needs attn_mask")
        added = _added(attn_mask, q.dtype)
        if added is not None and added.ndim == 3:
            added = added.reshape(q.shape[0], self.num_heads, q.shape[2], k.shape[2])
        if key_padding_mask is not None:
            hidden = _added(key_padding_mask, q.dtype)[:, None, None, :]
            added = hidden if added is None else added + hidden
        return added

    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None, average_attn_weights=True,
                is_causal=False):
        one = query.ndim == 2
        if one:
            lead = 0 if self.batch_first else 1
            query, key, value = _each_once(lambda x: x.unsqueeze(lead), query, key, value)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = _each_once(lambda x: x.transpose(0, 1), query, key, value)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in self._projected(query, key, value))
        added = self._mask(key_padding_mask, attn_mask, is_causal, q, k)
        drop, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = functional.softmax(scores if added is None else scores + added, dim=-1)
            out = (functional.dropout(weights, drop) if drop else weights) @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            out = functional.scaled_dot_product_attention(q, k, v, added, drop)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        if not self.batch_first:
            out = out.transpose(0, 1)
        if one:
            out, weights = out.squeeze(lead), None if weights is None else weights.squeeze(0)
        return out, weights


def _each_once(function, *tensors):
    """function() of each, the same result for the same tensor."""
    made = {id(x): function(x) for x in tensors}
    return [made[id(x)] for x in tensors]


_ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu}


class _Layer(Module):
    """What layers of encoders and decoders share: attentions and a feed-forward part, each with its norm and its residual."""

    def __init__(self, attentions, d_model, nhead, dim_feedforward=2048, dropout=0.1, activation=functional.relu,
                 layer_norm_eps=1e-5, batch_first=False, norm_first=False, bias=True):
        super().__init__()
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise _C.Error(f"{type(self).__name__}: activation {activation!r} is none of: {', '.join(_ACTIVATIONS)}")
        self.norm_first, self.activation = norm_first, _ACTIVATIONS.get(activation, activation)
        for name in attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first))
        self.linear1, self.dropout = _nn.Linear(d_model, dim_feedforward, bias), _nn.Dropout(dropout)
        self.linear2 = _nn.Linear(dim_feedforward, d_model, bias)
        for number in range(1, len(attentions) + 2):
            setattr(self, f"norm{number}", _nn.LayerNorm(d_model, layer_norm_eps, bias=bias))
            setattr(self, f"dropout{number}", _nn.Dropout(dropout))

    def _step(self, number, x, part):
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return x + dropout(part(norm(x)))
        return norm(x + dropout(part(x)))

    def _feed_forward(self, x):
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward part."""

    def __init__(self, d_model, nhead, dim_feedforward=2048, dropout=0.1, activation=functional.relu, layer_norm_eps=1e-5,
                 batch_first=False, norm_first=False, bias=True):
        super().__init__(("self_attn",), d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
                         norm_first, bias)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        def attend(x):
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]
        return self._step(2, self._step(1, src, attend), self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to an encoder's output, and a feed-forward part."""

    def __init__(self, d_model, nhead, dim_feedforward=2048, dropout=0.1, activation=functional.relu, layer_norm_eps=1e-5,
                 batch_first=False, norm_first=False, bias=True):
        super().__init__(("self_attn", "multihead_attn"), d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps,
                         batch_first, norm_first, bias)

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None,
                tgt_is_causal=False, memory_is_causal=False):
        def attend(x):
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]

        def attend_memory(x):
            return self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask,
                                       is_causal=memory_is_causal)[0]
        return self._step(3, self._step(2, self._step(1, tgt, attend), attend_memory), self._feed_forward)


class _Stack(Module):
    def __init__(self, layer, num_layers, norm=None):
        super().__init__()
        self.layers, self.num_layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers)), num_layers
        self.norm = norm

    def _run(self, x, *args, **options):
        for layer in self.layers:
            x = layer(x, *args, **options)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Copies of an encoder's layer in turn, and a norm."""

    def __init__(self, encoder_layer, num_layers, norm=None, enable_nested_tensor=True, mask_check=True):
        super().__init__(encoder_layer, num_layers, norm)

    def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
        return self._run(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))


class TransformerDecoder(_Stack):
    """Copies of a decoder's layer in turn, and a norm."""

    def __init__(self, decoder_layer, num_layers, norm=None):
        super().__init__(decoder_layer, num_layers, norm)

    def forward(self, tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None,
                tgt_is_causal=None, memory_is_causal=False):
        return self._run(tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                         memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                         memory_is_causal=memory_is_causal)


class Transformer(Module):
    """An encoder, and a decoder of what it gives. Vaswani et al. 2017."""

    def __init__(self, d_model=512, nhead=8, num_encoder_layers=6, num_decoder_layers=6, dim_feedforward=2048, dropout=0.1,
                 activation=functional.relu, custom_encoder=None, custom_decoder=None, layer_norm_eps=1e-5, batch_first=False,
                 norm_first=False, bias=True):
        super().__init__()
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        self.encoder = custom_encoder or TransformerEncoder(TransformerEncoderLayer(*options), num_encoder_layers,
                                                            _nn.LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.decoder = custom_decoder or TransformerDecoder(TransformerDecoderLayer(*options), num_decoder_layers,
                                                            _nn.LayerNorm(d_model, layer_norm_eps, bias=bias))
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, src_key_padding_mask=None,
                tgt_key_padding_mask=None, memory_key_padding_mask=None, src_is_causal=None, tgt_is_causal=None,
                memory_is_causal=False):
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
                            memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz):
        """[sz, sz] with -inf above the diagonal, and 0 elsewhere."""
        return creation.full((sz, sz), -math.inf).triu(1)
