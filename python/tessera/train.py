"""A training loop: micro-batches, ranks, mixed precision, checkpoints and signals.

    from tessera import train

    trainer = train.Trainer(model, optimizer, train.shuffled_rows([x, y], 64, seed=1), loss,
                            train.Options(until=train.steps(1000), accumulate=4, checkpoint="run/checkpoint"), world)
    result = trainer.run(on_step=lambda info: print(info.step, info.loss))

`loss(batch)` gets what the batches are, a tuple of tensors. The losses are the same bit for bit on every number of ranks
that gives each a power of two of a step's micro-batches, or one rank all, and through every stop.
"""
from . import _C

Every, EvalInfo, Options, Result, StepInfo = _C._train.Every, _C._train.EvalInfo, _C._train.Options, _C._train.Result, _C._train.StepInfo
Trainer = _C._train.Trainer
steps, items, epochs = _C._train.steps, _C._train.items, _C._train.epochs
shuffled_rows, caught_signal = _C._train.shuffled_rows, _C._train.caught_signal
AUTO_MICROBATCH = _C._train.AUTO_MICROBATCH  # as many samples at a time as fit into memory
