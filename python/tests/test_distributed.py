"""Ranks that are processes of Python."""
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera import distributed as dist

COMMAND = Path(__file__).parents[2] / "build" / "tessera"

TRAIN = """
import sys
import numpy as np
import tessera
from tessera import distributed as dist, nn, optim

world = dist.World()
rng = np.random.default_rng(0)
x, y = (tessera.from_numpy(rng.standard_normal((12, n)).astype(np.float32)) for n in (5, 3))
tessera.manual_seed(world.rank)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
parallel = dist.DataParallel(model, world)
start = [p.detach().numpy().copy() for p in model.parameters()]
optimizer = optim.SGD(model.parameters(), lr=0.1)
rows = slice(world.rank * 12 // world.size, (world.rank + 1) * 12 // world.size)
for _ in range(10):
    optimizer.zero_grad()
    with parallel.no_sync():
        pass
    nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
assert (dist.all_gather(tessera.full([1], world.rank), world).numpy() == np.arange(world.size)).all()
if world.rank == 0:
    np.savez(sys.argv[1], *start, *[p.detach().numpy() for p in model.parameters()])
"""


def command_of(script, procs, *arguments, options=()):
    return [COMMAND, "launch", "--procs", str(procs), "--grace", "1", *options, "--", sys.executable, "-c", script, *arguments]


TEMPORARY = tempfile.TemporaryDirectory()  # where failed runs leave their last collectives
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tessera.__file__).parents[1]), "TMPDIR": TEMPORARY.name}


def launch(script, procs, *arguments):
    return subprocess.run(command_of(script, procs, *arguments), capture_output=True, text=True, env=ENVIRONMENT, timeout=120)


needs_command = pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")


def test_a_process_is_a_world_of_its_own():
    world = dist.World()
    assert (world.rank, world.size, world.engine) == (0, 1, "none")
    x = tessera.randn(4, 3)
    for y in (dist.all_reduce(x, world), dist.all_gather(x, world), dist.broadcast(x, 0, world), dist.all_to_all(x, world),
              dist.reduce_scatter(x, world, "mean"), dist.scatter(x, 0, world), dist.gather(x, 0, world), dist.reduce(x, 0, world)):
        assert np.array_equal(y.numpy(), x.numpy())
    dist.barrier(world)
    with pytest.raises(ValueError, match="op is \"average\""):
        dist.all_reduce(x, world, "average")
    with pytest.raises(tessera.Error, match="there is no rank 1 among 1"):
        dist.broadcast(x, 1, world)


@needs_command
def test_ranks_train_as_one_process_does(tmp_path):
    results = []
    for procs in (1, 2, 3):
        ended = launch(TRAIN, procs, str(tmp_path / "p.npz"))
        assert ended.returncode == 0, ended.stderr
        results.append([v for v in np.load(tmp_path / "p.npz").values()])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_collectives_go_on_in_the_background():
    world = dist.World()
    x = tessera.randn(4, 3)
    for work in (dist.start(dist.all_reduce, x, world, "mean"), dist.start(dist.all_gather, x, group=world),
                 dist.start(dist.broadcast, x, 0, world)):
        assert np.array_equal(work.wait().numpy(), x.numpy()) and work.done()
    with pytest.raises(ValueError, match="is no collective that gives a tensor"):
        dist.start(dist.barrier, world)
    assert "one rank" in dist.explain_engines(world)
    assert str(world.device("cpu")) == "cpu"
    with pytest.raises(ValueError, match='phase is "lunch"'):
        dist.phase(world, "lunch")


PARTS = """
import numpy as np
import tessera
from tessera import distributed as dist, nn

world = dist.World()
assert "-> neighbours" in dist.explain_engines(world) and world.engine_of("cpu") == "neighbours"
a, b = tessera.full([3], world.rank + 1), tessera.full([2, 2], world.rank)
with dist.phase(world, "data"):
    dist.set_step(world, 3)
dist.all_reduce_([a, b], world)
assert (a.numpy() == 3).all() and (b.numpy() == 1).all()
work = dist.start(dist.all_to_all, tessera.full([2, 1], world.rank), world)
assert (work.wait().numpy().ravel() == [0, 1]).all()
model = nn.Linear(4, 2)
parallel = dist.DataParallel(model, world, "sum", bucket_bytes=16, first_bucket_bytes=8, overlap=True,
                             gradient_dtype=tessera.bfloat16)
parts = dist.GradientSum(model.parameters())
for micro in range(2):
    with parallel.no_sync():
        model(tessera.full([1, 4], float(world.rank * 2 + micro))).sum().backward()
    parts.add()
parts.finish()
parallel.reduce()
assert (model.weight.grad.numpy() == 6).all() and (model.bias.grad.numpy() == 4).all()
"""


@needs_command
def test_what_a_loop_of_ones_own_needs():
    ended = launch(PARTS, 2)
    assert ended.returncode == 0, ended.stderr


AVERAGES = """
import numpy as np
import tessera
from tessera import distributed as dist, nn, optim

world = dist.World()
options = {"hierarchy": {2: 2, 4: 4}, "outer_momentum": 0.5}

def train(model, local, steps):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        rng = np.random.default_rng([step, world.rank])
        x, y = (tessera.from_numpy(rng.standard_normal((6, n)).astype(np.float32)) for n in (5, 3))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        local.step(0.1)

tessera.manual_seed(7)
whole, parts = nn.Linear(5, 3), nn.Linear(5, 3)
parts.load_state_dict(whole.state_dict())
train(whole, dist.LocalSGD(whole, world, **options), range(13))
first = dist.LocalSGD(parts, world, **options)
train(parts, first, range(9))
assert first.all_met() and first.level_at(8) == 1 and first.steps == 9
kept = {name: tensor.clone() for name, tensor in first.state_dict().items()}
assert sorted(kept) == ["bias.before", "bias.momentum", "weight.before", "weight.momentum"]
del first
second = dist.LocalSGD(parts, world, first_step=9, **options)
second.load_state_dict(kept)
train(parts, second, range(9, 13))
assert (whole.weight.detach().numpy() == parts.weight.detach().numpy()).all() and second.all_met()
bias = whole.bias.detach()
assert (dist.all_gather(bias, world).numpy().reshape(4, 3) == bias.numpy()).all()
again = dist.LocalSGD(parts, world, dist.LocalSGDOptions({2: 2, 4: 4}, warmup=3), first_step=9)
assert again.steps == 9 and [again.level_at(step) for step in (2, 6, 8)] == [None, 0, 1]
try:
    dist.LocalSGD(parts, world, {2: 3, 4: 4})
except tessera.Error as e:
    assert "blocks of 4 ranks are not made of several of 3" in str(e)
else:
    raise AssertionError("no error")
"""


@needs_command
def test_averages_go_on_with_outer_momentum():
    ended = launch(AVERAGES, 4)
    assert ended.returncode == 0, ended.stderr


@needs_command
def test_a_rank_that_is_waited_for_shows_where_it_is():
    script = """
import tessera
from tessera import distributed as dist
world = dist.World()
def endless():
    while True: pass
if world.rank == 1: endless()
dist.barrier(world)
"""
    with subprocess.Popen(command_of(script, 2, options=["--patience", "0.5"]), stderr=subprocess.PIPE, text=True,
                          env=ENVIRONMENT) as running:
        seen = []
        for line in running.stderr:
            seen.append(line)
            if sum(line.startswith("note:   ") for line in seen) == 3:
                running.terminate()
        assert running.wait(20) != 0
    assert any("rank 0 waits for rank 1 in barrier" in line for line in seen), seen
    assert any("in endless" in line for line in seen), seen
    # Nor is the handler that asked Python in the way of what the thread was in.
    assert not any("faulthandler" in line or "pthread_kill" in line for line in seen), seen


@needs_command
def test_ranks_that_others_end_say_so_in_a_line():
    script = """
import os, signal, sys, time
import tessera
from tessera import distributed as dist
signal.signal(signal.SIGINT, signal.default_int_handler)
world = dist.World()
print("begins", flush=True)
if sys.argv[1:] == ["raise"] and world.rank == 1: raise ValueError("mine")
if world.rank == 1: time.sleep(60)
dist.all_reduce(tessera.ones(3), world)
"""
    ended = launch(script, 4, "raise")
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1 and "[1] ValueError: mine" in ended.stderr
    for rank in (0, 2, 3):
        lines = [line for line in ended.stderr.splitlines() if line.startswith(f"[{rank}]")]
        assert len(lines) == 1 and lines[0].startswith(f"[{rank}] Aborted at "), ended.stderr
        assert lines[0].endswith(": rank 1 ended with exit code 1")

    with subprocess.Popen(command_of(script, 4), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=ENVIRONMENT) as running:
        for _ in range(4):
            assert "begins" in running.stdout.readline()
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        lines = running.stderr.read().splitlines()
        assert running.wait(20) == 128 + signal.SIGINT
    assert len(lines) == 4 and all("] KeyboardInterrupt at " in line for line in lines), lines


@needs_command
def test_an_exception_of_one_rank_ends_all():
    script = """
from tessera import distributed as dist
import tessera
world = dist.World()
if world.rank == 1: raise SystemExit(5)
try: dist.all_reduce(tessera.ones(3), world)
except dist.Aborted as e: print(e)
"""
    ended = launch(script, 2)
    assert ended.returncode == 5
    assert "[0] rank 1 ended with exit code 5" in ended.stdout
    assert "error: rank 1 ended with exit code 5" in ended.stderr
