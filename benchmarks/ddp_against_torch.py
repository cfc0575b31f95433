"""Ranks that share the batches of a step, beside PyTorch's DistributedDataParallel over Gloo: a GPT on the CPU.

usage: ddp_against_torch.py [--ranks N] [--rounds R] [--steps N] [--tessera build/tessera] [--text FILE] [--only TEXT] [--ours]
Needs PyTorch. Every rank has one thread. A round times, in turns: one process of ours with as many threads as ranks, our ranks,
and PyTorch's, eager and compiled. A step is the median of a run's, without the first ones; the table shows the least of the
rounds in milliseconds, and ratios to our own process and to the better of PyTorch's. With --ours PyTorch's are left out."""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from against_torch import GPT

WARM = 5
SHAPES = {
    "shakespeare-char-cpu": {"layers": 4, "heads": 4, "width": 128, "block": 64, "batch": 12},
    "6 layers, width 384": {"layers": 6, "heads": 6, "width": 384, "block": 64, "batch": 12},
}


def torch_rank(shape, steps, compiled):
    """One of PyTorch's ranks; the first prints the median step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    vocab, batch = 65, shape["batch"] // dist.get_world_size()
    model = GPT(vocab, shape["layers"], shape["heads"], shape["width"], shape["block"])
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    run = torch.compile(parallel, dynamic=False) if compiled else parallel
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), fused=True)
    index, target = (torch.randint(0, vocab, (batch, shape["block"])) for _ in range(2))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        run(index, target).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append((time.perf_counter() - start) * 1e3)
    if dist.get_rank() == 0:
        print(statistics.median(times[WARM:]), flush=True)
    dist.destroy_process_group()


def torch_ms(shape, ranks, steps, compiled):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--rank", json.dumps([shape, steps, compiled])]
    processes = [subprocess.Popen(command, env={**base, "RANK": str(r)}, stdout=subprocess.PIPE if r == 0 else None, text=True)
                 for r in range(ranks)]
    output = processes[0].communicate()[0]
    if any(p.wait() for p in processes):
        raise SystemExit("error: a rank of PyTorch's failed")
    return float(output)


def our_ms(command, text, shape, ranks, threads, steps):
    """Ranks take a batch each, which are as large as one process's whole."""
    flags = [f for name, value in shape.items() if name != "batch" for f in (f"--{name}", str(value))]
    flags += ["--batch", str(shape["batch"] // ranks), "--accumulation", str(ranks), "--threads", str(threads)]
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/run.json"
        launch = [command, "launch", "--procs", str(ranks), "--"] if ranks > 1 else []
        subprocess.run([*launch, command, "train", "gpt", "--text", text, "--out", folder, "--steps", "1000", "--stop-after",
                        str(steps), "--eval-interval", "0", "--json", report, *flags], check=True, stdout=subprocess.DEVNULL)
        return statistics.median(s["ms"] for s in json.load(open(report))["steps"][WARM:])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--tessera", default="build/tessera")
    arguments.add_argument("--text", required="--rank" not in sys.argv)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--ours", action="store_true")
    arguments.add_argument("--rank", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.rank:
        return torch_rank(*json.loads(options.rank))
    print(f"{options.ranks} ranks of one thread, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}; milliseconds a step")
    for name, shape in SHAPES.items():
        if options.only not in name:
            continue
        ways = {"one process": lambda: our_ms(options.tessera, options.text, shape, 1, options.ranks, options.steps),
                "ranks": lambda: our_ms(options.tessera, options.text, shape, options.ranks, 1, options.steps),
                "DDP": lambda: torch_ms(shape, options.ranks, options.steps, False),
                "DDP compiled": lambda: torch_ms(shape, options.ranks, options.steps, True)}
        if options.ours:
            ways = {way: run for way, run in ways.items() if not way.startswith("DDP")}
        best = {}
        for _ in range(options.rounds):
            for way, run in ways.items():
                best[way] = min(best.get(way, float("inf")), run())
        peers = [ms for way, ms in best.items() if way.startswith("DDP")]
        print(f"{name}: " + ", ".join(f"{way} {ms:.2f}" for way, ms in best.items()) +
              f"; ranks / one process {best['ranks'] / best['one process']:.3f}" +
              (f", / DDP {best['ranks'] / min(peers):.3f}" if peers else ""), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
