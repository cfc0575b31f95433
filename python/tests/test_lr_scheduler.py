"""Learning rates by step: each schedule beside what it says of itself, step after step."""
import math

import pytest
import tessera
from tessera import optim
from tessera.optim import lr_scheduler

RATES = [0.3, 0.05]


def optimizer_of(rates=RATES):
    return optim.SGD([{"params": [tessera.ones(2).requires_grad_()], "lr": rate} for rate in rates])


def rates_of(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def walked(make, steps, rates=RATES):
    """The rates of each step, and of a schedule that was saved and loaded halfway."""
    optimizer, other = optimizer_of(rates), optimizer_of(rates)
    schedule, resumed = make(optimizer), None
    seen = []
    for step in range(steps):
        seen.append(rates_of(optimizer))
        if step == steps // 2:
            resumed = make(other)
            resumed.load_state_dict(schedule.state_dict())
        if resumed is not None:
            assert rates_of(other) == seen[-1]
            resumed.step()
        schedule.step()
    return seen


def expect_factors(make, factors):
    seen = walked(make, len(factors))
    for step, factor in enumerate(factors):
        assert seen[step] == pytest.approx([factor * rate for rate in RATES], rel=1e-6), step


def running(start, change, steps):
    """start, then change(step, factor) of the factor before."""
    factors = [start]
    for step in range(1, steps):
        factors.append(change(step, factors[-1]))
    return factors


def test_factors_of_each_step():
    s = lr_scheduler
    expect_factors(lambda o: s.StepLR(o, 3, 0.5), running(1, lambda i, f: f * (0.5 if i % 3 == 0 else 1), 20))
    expect_factors(lambda o: s.MultiStepLR(o, [4, 4, 9], 0.1), running(1, lambda i, f: f * {4: 0.01, 9: 0.1}.get(i, 1), 15))
    expect_factors(lambda o: s.ExponentialLR(o, 0.9), running(1, lambda i, f: f * 0.9, 20))
    expect_factors(lambda o: s.MultiplicativeLR(o, lambda i: 1 - i / 100), running(1, lambda i, f: f * (1 - i / 100), 20))
    expect_factors(lambda o: s.ConstantLR(o, 0.25, 4), [0.25] * 4 + [1] * 6)
    expect_factors(lambda o: s.LinearLR(o, 0.2, 1, 4), running(0.2, lambda i, f: min(1, f + 0.2), 9))
    expect_factors(lambda o: s.PolynomialLR(o, 5, 2), [(1 - min(i, 5) / 5)**2 for i in range(9)])
    expect_factors(lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 3), s.ExponentialLR(o, 0.9)]),
                   [(0.5 if i < 3 else 1) * 0.9**i for i in range(9)])
    expect_factors(lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.1, 99), s.ExponentialLR(o, 0.5)], [3]),
                   [0.1] * 3 + [0.5**i for i in range(5)])


def test_functions_of_groups():
    seen = walked(lambda o: lr_scheduler.LambdaLR(o, [lambda i: 1 + i, lambda i: 2.0]), 4)
    assert seen[3] == pytest.approx([4 * RATES[0], 2 * RATES[1]], rel=1e-6)


def test_cosines_fall_and_begin_anew():
    seen = [rate for rate, _ in walked(lambda o: lr_scheduler.CosineAnnealingLR(o, 10, 0.01), 11)]
    assert seen[0] == pytest.approx(0.3) and seen[5] == pytest.approx(0.155) and seen[10] == pytest.approx(0.01)
    assert all(a > b for a, b in zip(seen, seen[1:]))
    seen = [rate for rate, _ in walked(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2), 15)]
    assert [i for i, rate in enumerate(seen) if rate == pytest.approx(0.3)] == [0, 2, 6, 14]


@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("three_phase", [False, True])
def test_one_cycle_goes_up_and_down(strategy, three_phase):
    steps = 40
    seen = [rate for rate, _ in walked(lambda o: lr_scheduler.OneCycleLR(
        o, [0.5, 0.1], total_steps=steps, pct_start=0.25, anneal_strategy=strategy, three_phase=three_phase), steps)]
    assert seen[0] == pytest.approx(0.02) and max(seen) == pytest.approx(0.5) and seen[-1] == pytest.approx(2e-6)
    top = seen.index(max(seen))
    assert top == 9 and sorted(seen[:top]) == seen[:top] and sorted(seen[top:], reverse=True) == seen[top:]
    if three_phase:
        assert seen[18] == pytest.approx(0.02)


def test_one_cycle_moves_the_momentum_the_other_way():
    for three_phase, places in ((False, [(0, 0.95), (9, 0.85), (39, 0.95)]), (True, [(0, 0.95), (9, 0.85), (18, 0.95), (39, 0.95)])):
        for make in (tessera.optim.AdamW, tessera.optim.SGD):
            weight = tessera.nn.Parameter(tessera.ones(2))
            optimizer = make([weight], lr=0.1)
            schedule = lr_scheduler.OneCycleLR(optimizer, 1.0, 40, pct_start=0.25, three_phase=three_phase)
            seen = [optimizer.momentum()]
            for _ in range(39):
                weight.grad = tessera.ones(2)
                optimizer.step()
                schedule.step()
                seen.append(optimizer.momentum())
            assert all(seen[at] == pytest.approx(wanted) for at, wanted in places)
            assert seen[24 if three_phase else 9 + 15] == pytest.approx(0.95 if three_phase else 0.9)
    still = tessera.optim.AdamW([weight])
    lr_scheduler.OneCycleLR(still, 1.0, 40, cycle_momentum=False)
    assert still.momentum() == 0.9
    with pytest.raises(tessera.Error, match="without a momentum"):
        lr_scheduler.OneCycleLR(tessera.optim.Adagrad([weight]), 1.0, 40)


def test_plateaus_lower_the_rate():
    optimizer = optimizer_of([1.0])
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1, min_lr=0.2)
    for measure, rate in [(3, 1), (2, 1), (2, 1), (2, 0.5), (2, 0.5), (2, 0.5), (2, 0.25), (2, 0.25), (1, 0.25), (1, 0.25), (1, 0.2)]:
        schedule.step(tessera.tensor(float(measure)))
        assert rates_of(optimizer) == pytest.approx([rate]), measure


def test_groups_are_read_and_set():
    optimizer = optimizer_of()
    group = optimizer.param_groups[1]
    assert dict(group).keys() == {"params", "lr", "initial_lr", "weight_decay"} and len(group["params"]) == 1
    group["lr"] = 0.5
    group["weight_decay"] = 0.25
    (parameter,) = group["params"]
    parameter.sum().backward()
    optimizer.step()
    assert parameter.detach().numpy() == pytest.approx([1 - 0.5 * (1 + 0.25)] * 2)
    assert optimizer.lr(0) == pytest.approx(RATES[0]) and group["initial_lr"] == pytest.approx(RATES[1])


def test_what_cannot_be_is_refused():
    optimizer = optimizer_of()
    group = optimizer.param_groups[0]
    for key in ("momentum", "initial_lr", "params"):
        with pytest.raises(KeyError, match=f"{key}.*cannot be set: lr and weight_decay can"):
            group[key] = 1
    with pytest.raises(KeyError):
        group["none"]
    assert group.get("none", 3) == 3 and "lr" in group and len(group) == len(dict(group.items()))
    for rate in (-1.0, math.inf, math.nan):
        with pytest.raises(tessera.Error, match="must not be negative"):
            group["lr"] = rate
    with pytest.raises(tessera.Error, match="there is no group 2 of 2"):
        optimizer.lr(2)
    s = lr_scheduler
    for make, sentence in [(lambda: s.StepLR(optimizer, 0), "step_size must be positive, not 0"),
                           (lambda: s.LambdaLR(optimizer, [abs]), "1 functions for 2 groups"),
                           (lambda: s.OneCycleLR(optimizer, 1.0), "needs total_steps"),
                           (lambda: s.OneCycleLR(optimizer, 1.0, 9, pct_start=2), "pct_start must lie between 0 and 1"),
                           (lambda: s.OneCycleLR(optimizer, 1.0, 9, anneal_strategy="sin"), "'sin' is none of: cos, linear"),
                           (lambda: s.SequentialLR(optimizer, [s.ConstantLR(optimizer)], [3]), "0 milestones between them, not 1"),
                           (lambda: s.ChainedScheduler([]), "all of one optimizer"),
                           (lambda: s.ReduceLROnPlateau(optimizer, factor=2), "factor must be below 1"),
                           (lambda: s.ReduceLROnPlateau(optimizer, "least"), "must be min or max")]:
        with pytest.raises(ValueError, match=sentence):
            make()
