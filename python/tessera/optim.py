"""Optimizers, and factors of their learning rates by step."""
from . import _C

Optimizer = _C._optim.Optimizer
SGD = _C._optim.SGD
Adam = _C._optim.Adam
AdamW = _C._optim.AdamW
constant, warmup_cosine, step_decay = _C._optim.constant, _C._optim.warmup_cosine, _C._optim.step_decay
grad_norm, clip_grad_norm_ = _C._optim.grad_norm, _C._optim.clip_grad_norm_
