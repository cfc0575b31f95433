"""Learning rates by step, under PyTorch's names: step() after each step of the optimizer, or after each epoch.

Every schedule is a function of the step and of the rate that a group began with, so that it goes on from its state alone.
"""
from __future__ import annotations

import math
from .. import _C

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._types import Any, Callable, Sequence


class LRScheduler:
    """The base: `rate(step, base)` is the rate at a step, of a group that began with `base`."""

    def __init__(self, optimizer: _C._optim.Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        self.base_lrs = [optimizer.initial_lr(group) for group in range(optimizer.groups())]
        self.last_epoch = last_epoch
        self.step()

    def rate(self, step: int, base: float) -> float:
        raise NotImplementedError

    def rates(self, step: int) -> list[float]:
        """Of every group."""
        return [self.rate(step, base) for base in self.base_lrs]

    def step(self) -> None:
        self.last_epoch += 1
        self._set(self.rates(self.last_epoch))

    def get_last_lr(self) -> list[float]:
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["base_lrs"]) != len(self.base_lrs):
            raise ValueError(f"a schedule of {len(state['base_lrs'])} groups for an optimizer of {len(self.base_lrs)}")
        self.last_epoch, self.base_lrs = state["last_epoch"], list(state["base_lrs"])
        self._set(self.rates(self.last_epoch))

    def _set(self, rates: Sequence[float]) -> None:
        self._last_lr = list(rates)
        for group, rate in enumerate(rates):
            self.optimizer.set_lr(rate, group)


def _of_groups(optimizer, value, what):
    """A number for each group."""
    values = [float(value)] * optimizer.groups() if isinstance(value, (int, float)) else list(value)
    if len(values) != optimizer.groups():
        raise ValueError(f"{len(values)} {what} for {optimizer.groups()} groups")
    return values


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, not {value}")


class LambdaLR(LRScheduler):
    """base * f(step); one function, or one of each group."""

    def __init__(self, optimizer: _C._optim.Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        groups = optimizer.groups()
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"{len(self.lr_lambdas)} functions for {groups} groups")
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        return [base * f(step) for base, f in zip(self.base_lrs, self.lr_lambdas)]


class MultiplicativeLR(LambdaLR):
    """The rate times f(step) at each step."""

    def rates(self, step: int) -> list[float]:
        return [base * math.prod(f(i) for i in range(1, step + 1)) for base, f in zip(self.base_lrs, self.lr_lambdas)]


class StepLR(LRScheduler):
    """Times gamma every `step_size` steps."""

    def __init__(self, optimizer: _C._optim.Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        _positive("step_size", step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """Times gamma at each milestone."""

    def __init__(self, optimizer: _C._optim.Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        return base * self.gamma ** sum(step >= milestone for milestone in self.milestones)


class ConstantLR(LRScheduler):
    """Times `factor` until `total_iters`."""

    def __init__(self, optimizer: _C._optim.Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        return base * (self.factor if step < self.total_iters else 1)


class LinearLR(LRScheduler):
    """Times a factor that goes from one to the other in `total_iters` steps."""

    def __init__(self, optimizer: _C._optim.Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
                 last_epoch: int = -1) -> None:
        _positive("start_factor", start_factor)
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        done = min(step, self.total_iters) / self.total_iters if self.total_iters > 0 else 1
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class ExponentialLR(LRScheduler):
    """Times gamma at each step."""

    def __init__(self, optimizer: _C._optim.Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        return base * self.gamma**step


class PolynomialLR(LRScheduler):
    """Times (1 - step / total_iters)^power."""

    def __init__(self, optimizer: _C._optim.Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        _positive("total_iters", total_iters)
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        return base * (1 - min(step, self.total_iters) / self.total_iters) ** self.power


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the first rate to `eta_min` in `T_max` steps, and back (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: _C._optim.Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        _positive("T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """The same down only, begun anew after T_0 steps, then after T_mult times as many, and so on."""

    def __init__(self, optimizer: _C._optim.Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        _positive("T_0", T_0)
        _positive("T_mult", T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, step: int, base: float) -> float:
        length = self.T_0
        if self.T_mult == 1:
            step %= length
        while step >= length:
            step, length = step - length, length * self.T_mult
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / length)) / 2


class OneCycleLR(LRScheduler):
    """Up to `max_lr` and down far below the first rate, while the momentum, or beta1 of Adam's kin, goes from `max_momentum` to
    `base_momentum` and back (Smith & Topin 2018). `cycle_momentum=False` leaves it as it is."""

    def __init__(self, optimizer: _C._optim.Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
                 epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos",
                 cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.85, max_momentum: float | Sequence[float] =
                 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int =
                 -1) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        _positive("total_steps", total_steps)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"pct_start must lie between 0 and 1, not {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy {anneal_strategy!r} is none of: cos, linear")
        self.max_lrs = _of_groups(optimizer, max_lr, "rates")
        self._momenta = list(zip(_of_groups(optimizer, base_momentum, "momenta"), _of_groups(optimizer, max_momentum, "momenta")))
        self.cycle_momentum = cycle_momentum
        self.total_steps, self.cosine = total_steps, anneal_strategy == "cos"
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        top = pct_start * total_steps - 1
        # Where each part ends, and the rate there as a multiple of the largest.
        first, last = 1 / div_factor, 1 / div_factor / final_div_factor
        self._parts = [(0.0, first), (top, 1.0)]
        if three_phase:
            self._parts.append((2 * pct_start * total_steps - 2, first))
        self._parts.append((total_steps - 1.0, last))
        super().__init__(optimizer, last_epoch)

    def _place(self, step: int) -> tuple[int, float]:
        """The part that a step is in, and how far it is through it."""
        if step > self.total_steps:
            raise ValueError(f"step {step} of a cycle of {self.total_steps}")
        for part, ((begin, _), (end, _)) in enumerate(zip(self._parts, self._parts[1:])):
            if step <= end or end == self._parts[-1][0]:
                done = min(1.0, (step - begin) / (end - begin))  # the step after the last one stays there
                return part, (1 - math.cos(math.pi * done)) / 2 if self.cosine else done
        raise AssertionError("a cycle has a last part")

    def rates(self, step: int) -> list[float]:
        part, done = self._place(step)
        low, high = self._parts[part][1], self._parts[part + 1][1]
        return [rate * (low + (high - low) * done) for rate in self.max_lrs]

    def _set(self, rates: Sequence[float]) -> None:
        super()._set(rates)
        if not self.cycle_momentum:
            return
        part, done = self._place(self.last_epoch)
        for group, (least, most) in enumerate(self._momenta):
            begin, end = ((most, least), (least, most), (most, most))[part]
            self.optimizer.set_momentum(begin + (end - begin) * done, group)


class SequentialLR(LRScheduler):
    """One schedule after the other, each from its own beginning at a milestone."""

    def __init__(self, optimizer: _C._optim.Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int],
                 last_epoch: int = -1) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedules have {len(schedulers) - 1} milestones between them, not {len(milestones)}")
        if any(s.optimizer is not optimizer for s in schedulers):
            raise ValueError("the schedules are of another optimizer")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def rates(self, step: int) -> list[float]:
        number = sum(step >= milestone for milestone in self.milestones)
        return self.schedulers[number].rates(step - self.milestones[number - 1] if number else step)


class ChainedScheduler(LRScheduler):
    """The product of the schedules' factors."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: _C._optim.Optimizer | None = None) -> None:
        if not schedulers or any(s.optimizer is not schedulers[0].optimizer for s in schedulers):
            raise ValueError("a chain has schedules, all of one optimizer")
        self.schedulers = list(schedulers)
        super().__init__(schedulers[0].optimizer)

    def rates(self, step: int) -> list[float]:
        all_rates = [s.rates(step) for s in self.schedulers]
        return [base * math.prod(rates[g] / base for rates in all_rates) if base else 0.0 for g, base in enumerate(self.base_lrs)]


class ReduceLROnPlateau:
    """Times `factor` where a measure has not become better for more than `patience` calls of step(measure)."""

    def __init__(self, optimizer: _C._optim.Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | Sequence[float] = 0.0,
                 eps: float = 1e-8) -> None:
        if not factor < 1:
            raise ValueError(f"factor must be below 1, not {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"mode {mode!r} and threshold_mode {threshold_mode!r} must be min or max, and rel or abs")
        groups = optimizer.groups()
        self.min_lrs = [float(min_lr)] * groups if isinstance(min_lr, (int, float)) else list(min_lr)
        if len(self.min_lrs) != groups:
            raise ValueError(f"{len(self.min_lrs)} least rates for {groups} groups")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs, self.cooldown_counter, self.last_epoch = 0, 0, 0
        self._last_lr = [optimizer.lr(group) for group in range(groups)]

    def is_better(self, measure: float) -> bool:
        margin = self.best * self.threshold if self.threshold_mode == "rel" else self.threshold
        if math.isinf(self.best):
            margin = 0.0
        return measure < self.best - margin if self.mode == "min" else measure > self.best + margin

    def step(self, metrics: Any) -> None:
        measure = float(metrics)
        self.last_epoch += 1
        if self.is_better(measure):
            self.best, self.num_bad_epochs = measure, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            for group, rate in enumerate(self._last_lr):
                lower = max(rate * self.factor, self.min_lrs[group])
                if rate - lower > self.eps:
                    self._last_lr[group] = lower
                    self.optimizer.set_lr(lower, group)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def get_last_lr(self) -> list[float]:
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")} | {
            "rates": list(self._last_lr)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("best", "num_bad_epochs", "cooldown_counter", "last_epoch"):
            setattr(self, name, state[name])
        self._last_lr = list(state["rates"])
        for group, rate in enumerate(self._last_lr):
            self.optimizer.set_lr(rate, group)
