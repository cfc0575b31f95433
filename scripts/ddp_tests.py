#!/usr/bin/env python3
"""Trains the same small network by PyTorch's DistributedDataParallel over Gloo and by tessera's DataParallel, and compares
the gradients and parameters of every step; the same of post-local SGD, in one level and in two. Then compares the steps at
which 200 random hierarchies average with PyTorch's HierarchicalModelAverager.

usage: ddp_tests.py [--ranks N...] [--steps N] [--cases NAME...]

Cases of training: as it is; buckets of a few bytes; gradients accumulated under no_sync(); parameters that some ranks, or all of them, do
not use in a step; a norm over the batches of all ranks. The last line is 'N passed, N failed'. Needs torch (Debian's
python3-torch will do), numpy, the package of tessera and build/tessera; it is no part of the other tests.
"""
import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "build/python"))
CASES = ["plain", "buckets", "accumulation", "unused", "norm", "local", "local_pairs", "local_levels"]
WARMUP, PERIOD = 4, 3  # of local SGD; local_pairs and local_levels also have gradients of pairs after the warm-up
LEVELS = {3: 2, 6: 4}  # periods and ranks of local_levels
WIDTHS = {"first": (6, 8), "left": (8, 8), "right": (8, 8), "never": (3, 3), "last": (8, 4)}


def network(nn, case):
    """The same for both: `nn` is torch.nn or tessera.nn. `left` is called twice."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            for name, (a, b) in WIDTHS.items():
                if name != "never" or case == "unused":
                    setattr(self, name, nn.Linear(a, b))
            if case == "norm":
                self.norm = nn.BatchNorm2d(8)

        def forward(self, x, which):
            h = self.first(x).relu()
            if case == "norm":
                h = self.norm(h.reshape([-1, 8, 1, 1])).reshape([-1, 8])
            if which != "right":
                h = self.left(self.left(h).tanh())
            if which != "left":
                h = self.right(h).tanh()
            return self.last(h)

    return Net()


def start(case):
    rng = np.random.default_rng(CASES.index(case))
    values = {}
    for name, (a, b) in WIDTHS.items():
        values[f"{name}.weight"] = rng.standard_normal((b, a)) / np.sqrt(a)
        values[f"{name}.bias"] = rng.standard_normal(b) * 0.1
    values |= {"norm.weight": rng.uniform(0.5, 1.5, 8), "norm.bias": rng.standard_normal(8)}
    return {k: v.astype(np.float32) for k, v in values.items()}


def batches(case, rank, ranks, step):
    """This rank's micro-batches of a step, and which layers each uses."""
    for micro in range(3 if case == "accumulation" else 1):
        rng = np.random.default_rng([7, step, micro, rank])
        which = ["left", "right", "both"][(step + rank) % 3 if case == "unused" else 2]
        yield rng.standard_normal((5, 6)).astype(np.float32), rng.standard_normal((5, 4)).astype(np.float32), which


def backward(functional, tensor_of, model, parallel, parts):
    """Of all micro-batches; the gradients of ranks meet in the last one."""
    for x, y, which in parts[:-1]:
        with parallel.no_sync():
            functional.mse_loss(model(tensor_of(x), which), tensor_of(y)).backward()
    x, y, which = parts[-1]
    functional.mse_loss(model(tensor_of(x), which), tensor_of(y)).backward()


def train_torch(case, rank, ranks, steps):
    import torch
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    class Sum(torch.autograd.Function):  # differentiable, as torch.distributed.nn's, which is deprecated
        @staticmethod
        def forward(context, x):
            x = x.clone()
            torch.distributed.all_reduce(x)
            return x

        @staticmethod
        def backward(context, grad):
            return Sum.forward(context, grad)

    if case == "norm":  # PyTorch has it on GPUs alone: statistics of all ranks by differentiable sums
        class Norm(torch.nn.BatchNorm2d):
            def forward(self, x):
                n = x.shape[0] * ranks
                mean = Sum.apply(x.sum((0, 2, 3))) / n
                centred = x - mean.reshape(1, -1, 1, 1)
                var = Sum.apply((centred * centred).sum((0, 2, 3))) / n
                return centred * (self.weight / (var + self.eps).sqrt()).reshape(1, -1, 1, 1) + self.bias.reshape(1, -1, 1, 1)
    model = network(torch.nn, case)
    if case == "norm":
        model.norm = Norm(8)
    first = start(case)
    for name, p in model.named_parameters():
        p.data = torch.from_numpy(first[name].copy())
    sizes = {"bucket_cap_mb": 1e-5} if case == "buckets" else {}
    parallel = torch.nn.parallel.DistributedDataParallel(
        model, find_unused_parameters=case == "unused", **sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if case.startswith("local"):
        from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hook
        from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager

        def block(group_size, group=None):  # torch.distributed.new_subgroups insists on GPUs
            all_of = [torch.distributed.new_group(list(range(first, first + group_size))) for first in range(0, ranks, group_size)]
            return all_of[rank // group_size], all_of

        torch.distributed.new_subgroups = block
        pairs = case != "local"
        state = hook.PostLocalSGDState(None, block(2 if pairs else 1)[0], WARMUP, post_local_gradient_allreduce=pairs)
        parallel.register_comm_hook(state, hook.post_localSGD_hook)
        if case == "local_levels":
            averager = hierarchical_model_averager.HierarchicalModelAverager(OrderedDict(LEVELS), WARMUP)
        else:
            averager = averagers.PeriodicModelAverager(PERIOD, WARMUP)
    for step in range(steps):
        optimizer.zero_grad()
        parts = list(batches(case, rank, ranks, step))
        backward(torch.nn.functional, torch.from_numpy, parallel, parallel, parts)
        grads = {k: None if p.grad is None else p.grad.numpy().copy() for k, p in model.named_parameters()}
        optimizer.step()
        if case.startswith("local"):
            averager.average_parameters(model.parameters())
        yield grads, {k: p.detach().numpy().copy() for k, p in model.named_parameters()}


def train_tessera(case, steps):
    import tessera
    from tessera import distributed as dist, nn, optim
    world = dist.World()
    model = network(nn, case)
    first = start(case)
    for name, p in model.named_parameters():
        with tessera.no_grad():
            p.copy_(tessera.from_numpy(first[name] if world.rank == 0 else first[name] * 0))
    if case == "norm":
        assert dist.sync_batch_norms(model, world) == 1
    sizes = {"bucket_bytes": 10, "first_bucket_bytes": 10, "overlap": True} if case == "buckets" else {}
    local = case.startswith("local")
    if local:
        levels = LEVELS if case == "local_levels" else {PERIOD: world.size}
        local = dist.LocalSGD(model, world, levels, warmup=WARMUP, gradients_within=1 if case == "local" else 2)
    else:
        parallel = dist.DataParallel(model, world, **sizes)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        parts = list(batches(case, world.rank, world.size, step))
        backward(nn.functional, tessera.from_numpy, model, None if local else parallel, parts)
        grads = {k: None if p.grad is None else p.grad.numpy().copy() for k, p in model.named_parameters()}
        optimizer.step()
        if local:
            local.step()
        yield grads, {k: p.detach().numpy().copy() for k, p in model.named_parameters()}


def averaging_steps(seed):
    """What differs between the steps at which both average, of one random hierarchy."""
    import torch.distributed.algorithms.model_averaging.hierarchical_model_averager as torch_averagers
    import tessera
    from tessera import distributed as dist, nn
    rng = np.random.default_rng(seed)
    levels = int(rng.integers(2, 5))
    periods = np.cumsum(rng.integers(1, 6, levels))
    hierarchy = dict(zip(periods.tolist(), (2 ** np.arange(1, levels + 1)).tolist()))
    warmup = int(rng.integers(0, 12))
    theirs = object.__new__(torch_averagers.HierarchicalModelAverager)  # its groups would need as many processes
    theirs.step, theirs.warmup_steps, theirs._periods, theirs.period_process_group_dict = 0, warmup, list(hierarchy), hierarchy
    seen = []
    torch_averagers.utils.average_parameters_or_parameter_groups = lambda _, ranks: seen.append((theirs.step, ranks))
    for _ in range(60):
        theirs.average_parameters([])
    ours = dist.LocalSGD.level_of  # of a hierarchy, without ranks
    mine = [(s, list(hierarchy.values())[level]) for s in range(60) if (level := ours(hierarchy, warmup, s)) is not None]
    return [] if mine == seen else [f"seed {seed}: {hierarchy} after {warmup}: {mine} and not {seen}"]


def run_rank(which, case, steps, file):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    seen = {}
    for step, (grads, values) in enumerate(train_torch(case, rank, ranks, steps) if which == "torch" else train_tessera(case, steps)):
        for name, grad in grads.items():
            if grad is not None:
                seen[f"{step} gradient of {name}"] = grad
        for name, value in values.items():
            seen[f"{step} {name}"] = value
    np.savez(f"{file}.{rank}.npz", **seen)


def launch(which, case, ranks, steps, file):
    own = [sys.executable, __file__, "--as", which, case, str(steps), str(file)]
    if which == "tessera":
        subprocess.run([ROOT / "build/tessera", "launch", "--procs", str(ranks), "--threads", "1", "--", *own], check=True, timeout=300)
        return
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    running = [subprocess.Popen(own, env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                                          "MASTER_PORT": str(port)}) for r in range(ranks)]
    if any([p.wait(300) for p in running]):
        raise RuntimeError("a rank of PyTorch failed")


def differences(case, ranks, steps, folder):
    """What differs by more than rounding, in words."""
    for which in ("torch", "tessera"):
        launch(which, case, ranks, steps, folder / which)
    for rank in range(ranks):
        theirs, ours = (dict(np.load(folder / f"{which}.{rank}.npz")) for which in ("torch", "tessera"))
        for name in sorted(theirs.keys() | ours.keys(), key=lambda n: (int(n.split()[0]), "gradient" not in n, n)):
            if name not in ours or name not in theirs:
                yield f"rank {rank}, step {name}: only {'PyTorch' if name in theirs else 'tessera'} has it"
            else:
                error = np.abs(ours[name] - theirs[name]).max() / (np.abs(theirs[name]).max() + 1e-3)
                if not error <= 2e-4:
                    yield f"rank {rank}, step {name}: {error:.2e}"


def main():
    if sys.argv[1:2] == ["--as"]:
        which, case, steps, file = sys.argv[2:6]
        return run_rank(which, case, int(steps), file)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    options = parser.parse_args()
    counts = [0, 0]
    for case in options.cases:
        for ranks in {"local_pairs": [2, 4], "local_levels": [4]}.get(case, options.ranks):
            with tempfile.TemporaryDirectory() as folder:
                found = list(differences(case, ranks, options.steps, Path(folder)))
            counts[bool(found)] += 1
            print(f"{case}, {ranks} ranks, {options.steps} steps: {'agrees' if not found else f'{len(found)} differ, first {found[0]}'}", flush=True)
    found = sum((averaging_steps(seed) for seed in range(200)), [])
    counts[bool(found)] += 1
    print(f"steps of 200 hierarchies: {'agree' if not found else found[0]}")
    print(f"{counts[0]} passed, {counts[1]} failed")
    return int(counts[1] > 0)


if __name__ == "__main__":
    sys.exit(main())
