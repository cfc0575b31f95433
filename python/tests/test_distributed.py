"""Ranks that are processes of Python."""
import os
import subprocess
import sys
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


def launch(script, procs, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(tessera.__file__).parents[1])}
    return subprocess.run([COMMAND, "launch", "--procs", str(procs), "--grace", "1", "--", sys.executable, "-c", script,
                           *arguments], capture_output=True, text=True, env=environment, timeout=120)


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
