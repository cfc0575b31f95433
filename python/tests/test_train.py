"""The training loop with functions of Python: losses as by hand and as in C++, on ranks, through stops."""
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera import distributed as dist
from tessera import nn, optim, train
from test_distributed import ENVIRONMENT, launch, needs_command

EXAMPLE = Path(__file__).parents[2] / "build" / "examples" / "trainer"


def batch(i):
    """Of 1 to 5 rows."""
    rng = np.random.default_rng(i)
    x = rng.standard_normal((1 + i % 5, 3)).astype(np.float32)
    return tessera.from_numpy(x), tessera.from_numpy(x.sum(1, keepdims=True))


class Run:
    """A model that learns sums of three numbers, and what a Trainer needs for it."""

    def __init__(self, dropout=0.1):
        tessera.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)

    def loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y)

    def trainer(self, group=None, work={}, **options):
        options = {"until": train.steps(12), "accumulate": 4, "clip": 1.0, "seed": 3, "catch_signals": False, **options}
        work = {"count": lambda b: b[0].shape[0], "epoch": 8, "validation": lambda i: batch(1000 + i), "validation_batches": 3, **work}
        return train.Trainer(self.model, self.optimizer, batch, self.loss, train.Options(**options), group, **work)


def losses(result):
    return [s.loss for s in result.steps]


def test_a_step_is_that_of_a_loop_by_hand():
    run, by_hand = Run(dropout=0.0), Run(dropout=0.0)
    result = run.trainer(clip=0.0, until=train.steps(5)).run()
    for step in range(5):
        parts = dist.GradientSum(list(by_hand.model.parameters()))
        batches = [batch(4 * step + i) for i in range(4)]
        rows = sum(b[0].shape[0] for b in batches)
        total = 0.0
        for b in batches:
            share = b[0].shape[0] / rows
            loss = by_hand.loss(b)
            (loss * share).backward()
            total += loss.item() * share
            parts.add()
        parts.finish()
        by_hand.optimizer.step()
        by_hand.optimizer.zero_grad()
        assert result.steps[step].loss == pytest.approx(total, rel=1e-6)
    for a, b in zip(run.model.parameters(), by_hand.model.parameters()):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-7)
    assert result.items == sum(1 + i % 5 for i in range(20)) and not result.stopped and result.skipped == 0
    assert result.val_loss == result.evals[-1].loss and result.evals[-1].step == 5


RING = """
import sys
import tessera
from tessera import distributed as dist, nn, optim, train

world = dist.World()
tessera.manual_seed(1)
x = tessera.randn(8192, 2)
radius = tessera.norm(x, dim=1)
inside = ((radius > 0.7) & (radius < 1.5)).long()
layers = [None, nn.ReLU(), None]
for i in map(int, sys.argv[1]):  # the compiler of C++ decides which argument is made first
    layers[i] = nn.Linear(2, 64) if i == 0 else nn.Linear(64, 2)
model = nn.Sequential(*layers)
optimizer = optim.AdamW(model.parameters(), lr=1e-2)
def loss(batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
def say(info):
    if world.rank == 0 and info.step % 160 == 0: print(f"step {info.step}  loss {info.loss:.9f}")
train.Trainer(model, optimizer, train.shuffled_rows([x, inside], 64, 1), loss,
              train.Options(until=train.epochs(20), accumulate=4, clip=1.0), world, epoch=8192 // 64).run(on_step=say)
"""


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not built")
@needs_command
def test_losses_are_those_of_the_example_in_cpp():
    environment = {**ENVIRONMENT, "TESSERA_THREADS": "1"}
    in_cpp = subprocess.run([EXAMPLE], capture_output=True, text=True, env=environment, timeout=300).stdout
    assert in_cpp.count("step") == 4, in_cpp
    alone = {order: subprocess.run([sys.executable, "-c", RING, order], capture_output=True, text=True, env=environment, timeout=300)
             for order in ("02", "20")}
    assert in_cpp in [a.stdout for a in alone.values()], [in_cpp, *alone.values()]
    order = next(o for o, a in alone.items() if a.stdout == in_cpp)
    on_two = launch(RING, 2, order)
    assert on_two.returncode == 0, on_two.stderr
    assert re.sub(r"^\[0\] ", "", on_two.stdout, flags=re.M) == in_cpp


RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_train import Run, losses
from tessera import distributed as dist

world = dist.World()
result = Run().trainer(world).run()
if world.rank == 0: print(losses(result), result.items)
"""


@needs_command
def test_losses_are_the_same_on_two_ranks():
    result = Run().trainer().run()
    ended = launch(RANKS, 2, str(Path(__file__).parent))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"[0] {losses(result)} {result.items}\n"


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    whole, file = Run().trainer().run(), str(tmp_path / "c")
    first = Run().trainer(checkpoint=file, metadata={"of": "the test"})
    saved = []
    stopped = first.run(on_step=lambda s: first.stop() if s.step == 5 else None, on_checkpoint=saved.append)
    assert stopped.stopped and losses(stopped) == losses(whole)[:5] and saved == [5] and stopped.val_loss is None

    seen, steps = [], []

    def look(tensors, metadata):
        seen.append((sorted(tensors)[0], metadata["of"]))

    rest = Run().trainer(checkpoint=file, work={"on_load": look}).run(on_start=steps.append)
    assert steps == [5] and seen == [("history.evals", "the test")]
    assert losses(rest) == losses(whole) and rest.val_loss == whole.val_loss

    def refuse(tensors, metadata):
        raise LookupError("another run")

    with pytest.raises(LookupError, match="another run"):
        Run().trainer(checkpoint=file, work={"on_load": refuse})

    def change(tensors, metadata):
        del tensors["model.0.weight"]

    with pytest.raises(tessera.FileError, match="missing: 0.weight"):
        Run().trainer(checkpoint=file, work={"on_load": change})


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path):
    whole, file = Run().trainer().run(), tmp_path / "c"
    options = {"checkpoint": str(file), "save": train.steps(3)}
    Run().trainer(until=train.steps(7), **options).run()
    file.write_bytes(file.read_bytes()[:100])
    trainer = Run().trainer(resume="always", **options)
    steps = []
    with pytest.warns(UserWarning, match=r"the run goes on from .*/c\.1, which was saved before it"):
        result = trainer.run(on_start=steps.append)
    assert steps == [6] and losses(result) == losses(whole)


def test_what_functions_raise_comes_out(tmp_path):
    def fails(*_):
        raise ZeroDivisionError("of the test")

    run = Run()
    for batches, loss, callbacks in ((fails, run.loss, {}), (batch, fails, {}), (batch, run.loss, {"on_step": fails})):
        trainer = train.Trainer(run.model, run.optimizer, batches, loss, train.Options(until=train.steps(2)))
        with pytest.raises(ZeroDivisionError, match="of the test"):
            trainer.run(**callbacks)
    with pytest.raises(tessera.Error, match="the loss returned None"):
        train.Trainer(run.model, run.optimizer, batch, lambda b: None, train.Options(until=train.steps(2))).run()


def test_options_are_those_of_the_header():
    header = (Path(__file__).parents[2] / "include" / "tessera" / "trainer.h").read_text()
    body = re.search(r"struct Options \{(.*?)\n\};", header, re.S)[1]
    declared = set(re.findall(r"(\w+) = [^;]*;", re.sub(r"//.*", "", body))) - {"on_load"}  # an argument of Trainer
    options = train.Options()
    assert len(declared) > 15
    assert {name for name in dir(options) if not name.startswith("_")} == declared
    assert (str(options.until), options.accumulate, options.resume, options.amp) == ("steps(1000)", 1, "if_there", "off")
    options.until = train.epochs(3)
    assert (options.until.count, options.until.unit) == (3, "epochs") and str(train.items(5)) == "items(5)"


def test_options_that_cannot_be():
    with pytest.raises(TypeError, match="there is no option 'untill'"):
        train.Options(untill=train.steps(3))
    with pytest.raises(TypeError):
        train.Options(until="long")
    with pytest.raises((TypeError, tessera.Error)):
        train.Options(amp="f8")
    with pytest.raises(tessera.Error, match="train: accumulation is out of range"):
        Run().trainer(accumulate=0)
    with pytest.raises(tessera.Error, match="train: an interval in epochs needs to know how many batches an epoch has"):
        Run().trainer(until=train.epochs(1), work={"epoch": 0})
    with pytest.raises(tessera.FileError, match="cannot open"):
        Run().trainer(checkpoint="/none/c", resume="always")


def test_microbatches_and_averages():
    whole, parts = Run(dropout=0), Run(dropout=0)
    wanted = whole.trainer().run()
    seen = []
    result = parts.trainer(microbatch=2).run(on_microbatch=lambda *found: seen.append(found))
    assert wanted.microbatch == 0 and result.microbatch == 2 and not seen  # its size was given
    assert losses(result) == pytest.approx(losses(wanted), rel=1e-5)
    found = Run(dropout=0).trainer(microbatch=train.AUTO_MICROBATCH).run(on_microbatch=lambda *found: seen.append(found))
    assert losses(found) == pytest.approx(losses(wanted), rel=1e-5) and len(seen) == 1
    averages = dist.LocalSGDOptions({2: 1}, warmup=3, outer_momentum=0.5)
    with pytest.raises(tessera.Error, match="no microbatch can be found by ranks that step by themselves"):
        Run().trainer(dist.World(), microbatch=train.AUTO_MICROBATCH, local_sgd=averages)
    assert len(Run().trainer(dist.World(), local_sgd=dist.LocalSGDOptions(period=2)).run().steps) == 12


INTERRUPTED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_train import Run
from tessera import train

def say(info): print("step", info.step, flush=True)
result = Run().trainer(until=train.steps(10**8), checkpoint=sys.argv[2], catch_signals=True).run(on_step=say)
print(result.stopped, train.caught_signal())
"""


def test_ctrl_c_saves_and_returns(tmp_path):
    file = tmp_path / "c"
    command = [sys.executable, "-c", INTERRUPTED, str(Path(__file__).parent), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as running:
        assert running.stdout.readline() == "step 1\n"
        running.send_signal(2)
        rest = running.stdout.read()
        assert running.wait(60) == 0
    assert rest.endswith("True 2\n") and file.exists()
