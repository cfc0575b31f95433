"""Tessera beside PyTorch on the CPU: the same work, on the same machine and threads, in turns.

usage: against_torch.py [--threads N] [--rounds R] [--tessera build/tessera] [--text FILE] [--only TEXT] [--markdown FILE]
Needs PyTorch. Each round times every candidate once (a median of repeats); the table shows medians over rounds. Rows of
training steps also show the time their FLOPs would take at the FMA peak ("floor"). As the clock changes within a round, the
peak is measured for 4 ms before and after each step, in its process: a round's "/ floor" is the median of its steps' own
ratios, the table shows the median of rounds, and a line below their spread and the clock.
TESSERA_ISA=avx2 holds PyTorch to AVX2, too."""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time
import warnings
import weakref

if os.environ.get("TESSERA_ISA") == "avx2":
    os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

warnings.filterwarnings("ignore")


def median_ms(fn, seconds=0.5, warm=3):
    for _ in range(warm):
        fn()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 5:
        t = time.perf_counter()
        fn()
        times.append(time.perf_counter() - t)
    return statistics.median(times) * 1e3


class TensorBytes(TorchDispatchMode):
    """Bytes of all live tensor storages, and the most there ever were: what tessera's memory_stats counts."""

    def __init__(self, existing=()):
        super().__init__()
        self.live, self.now, self.peak = set(), 0, 0
        for tensor in existing:
            self.see(tensor)

    def see(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live or storage.nbytes() == 0:
            return
        self.live.add(key)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.drop, key, storage.nbytes())

    def drop(self, key, size):
        self.live.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.see(tensor)
        return out


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, layers, heads, width, block):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, index, target):
        x = self.tokens(index) + self.positions(torch.arange(index.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())


def torch_training_step(vocab, layers, heads, width, block, batch, compiled=False, **adamw):
    torch.manual_seed(0)
    model = GPT(vocab, layers, heads, width, block)
    run = torch.compile(model, dynamic=False) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.99), **adamw)
    index, target = (torch.randint(0, vocab, (batch, block)) for _ in range(2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        run(index, target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def peak():
        step()
        state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        optimizer.zero_grad(set_to_none=True)
        with TensorBytes([*model.parameters(), *state, index, target]) as counter:
            step()
        return counter.peak

    return step, peak


class Tessera:
    def __init__(self, command, threads):
        self.command, self.threads = command, threads

    def run(self, *arguments):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            subprocess.run([self.command, *arguments, "--threads", str(self.threads), "--json", file.name], check=True,
                           stdout=subprocess.DEVNULL)
            return json.load(open(file.name))

    def gemm_ms(self, m, n, k, epilogue="none"):
        report = self.run("bench", "op", "gemm", "--m", str(m), "--n", str(n), "--k", str(k), "--epilogue", epilogue,
                          "--seconds", "0.5")
        name = "tessera" if epilogue == "none" else "tessera add_add_gelu"
        rate = next(r["value"] for r in report["results"] if r["name"] == name)
        return 2 * m * n * k / rate * 1e-6

    def op_ms(self, op, label):
        report = self.run("bench", "op", op, "--seconds", "0.5")
        return next(r["value"] for r in report["results"] if r["name"] == f"{op} {label}")

    def train(self, text, steps, *more, **shape):
        with tempfile.TemporaryDirectory() as folder:
            flags = [f for name, value in shape.items() for f in (f"--{name}", str(value))]
            return self.run("train", "gpt", "--preset", "shakespeare-char-cpu", "--text", text, "--out", folder,
                              "--steps", "1000", "--stop-after", str(steps), "--eval-interval", "0", *more, *flags)

    def step_ms(self, text, steps, **shape):
        return statistics.median(s["ms"] for s in self.train(text, steps, **shape)["steps"][5:])

    def floor(self, text, steps, **shape):
        """Of a run whose steps are measured beside the peak of their moment."""
        return Floor(self.train(text, steps, "--fma-peak", **shape))


class Floor:
    """Milliseconds that the FLOPs of a step take at the FMA peak, times of steps over them, and clocks seen."""

    def __init__(self, report):
        steps = report["steps"][5:]
        flops = next(r["value"] for r in report["results"] if r["name"] == "flops_per_step")
        floors = [flops / s["fma_gflops"] * 1e-6 for s in steps]
        self.ms = statistics.median(floors)
        self.ratios = [s["ms"] / floor for s, floor in zip(steps, floors)]
        self.clocks = [s["clock_ghz"] for s in steps]
        self.share = statistics.median(s["fma_gflops"] / s["clock_ghz"] for s in steps) / 32 / report["threads"]


def spread(floors):
    """The line below a row: ratios to the floor by round, and what they were measured at."""
    rounds = ", ".join(f"{a:.2f} ({b:.2f} to {c:.2f})" for b, a, c in (statistics.quantiles(f.ratios) for f in floors))
    clocks = ", ".join(f"{statistics.median(f.clocks):.2f}" for f in floors)
    share = statistics.median(f.share for f in floors)
    return (f"  / floor by round, with quartiles of its steps: {rounds}; clock {clocks} GHz, "
            f"peak {100 * share:.1f} % of 32 per core and cycle")


def rows(tessera, text):
    """name, {candidate: function giving milliseconds}"""
    for m, n, k in ((1024, 1024, 1024), (768, 3072, 768), (128, 3072, 768)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        yield f"GEMM {m}×{n}×{k}", {"tessera": lambda: tessera.gemm_ms(m, n, k), "eager": lambda: median_ms(lambda: a @ b)}
    m, n, k = 768, 3072, 768
    a, b, d0, d1 = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n), torch.randn(n)

    def fused(a, b, d0, d1):
        return F.gelu(a @ b + d0 + d1, approximate="tanh")

    fused_compiled = torch.compile(fused)
    yield "GEMM+Add+Add+FastGeLU 768×3072×768", {
        "tessera": lambda: tessera.gemm_ms(m, n, k, "add_add_gelu"),
        "eager": lambda: median_ms(lambda: fused(a, b, d0, d1)),
        "compile": lambda: median_ms(lambda: fused_compiled(a, b, d0, d1)),
    }
    x, w = torch.randn(8, 64, 56, 56), torch.randn(64, 64, 3, 3)
    blocked = x.to(memory_format=torch.channels_last)
    yield "conv 3×3 8×64×56×56", {
        "tessera": lambda: tessera.op_ms("conv2d", "8x64x56x56, 64 3x3"),
        "eager": lambda: min(median_ms(lambda: F.conv2d(x, w, padding=1)), median_ms(lambda: F.conv2d(blocked, w, padding=1))),
    }
    x, w = torch.randn(4096, 768), torch.ones(768)
    yield "layer_norm 4096×768", {
        "tessera": lambda: tessera.op_ms("layer_norm", "4096x768"),
        "eager": lambda: median_ms(lambda: F.layer_norm(x, (768,), w, w)),
    }
    yield "softmax 4096×768", {
        "tessera": lambda: tessera.op_ms("softmax", "4096x768"),
        "eager": lambda: median_ms(lambda: F.softmax(x, -1)),
    }
    q, kk, v = (torch.randn(1, 12, 1024, 64) for _ in range(3))
    yield "causal attention 12×1024×64", {
        "tessera": lambda: tessera.op_ms("scaled_dot_product_attention", "12x1024x64 causal"),
        "eager": lambda: median_ms(lambda: F.scaled_dot_product_attention(q, kk, v, is_causal=True)),
    }
    if text:
        vocab = len(set(pathlib.Path(text).read_text()))
        for name, steps, shape in (
            ("GPT step, shakespeare-char-cpu", 60, dict(layers=4, heads=4, width=128, block=64, batch=12)),
            ("GPT step, 6 layers, width 384, block 256, batch 4", 12, dict(layers=6, heads=6, width=384, block=256, batch=4)),
        ):
            fused, peak = torch_training_step(vocab, **shape, fused=True)
            foreach, _ = torch_training_step(vocab, **shape, foreach=True)
            compiled, _ = torch_training_step(vocab, **shape, compiled=True, fused=True)
            yield name, {
                "tessera": lambda: tessera.step_ms(text, steps, **shape),
                "eager": lambda: min(median_ms(fused, 1), median_ms(foreach, 1)),
                "compile": lambda: median_ms(compiled, 1),
                "floor": lambda: tessera.floor(text, steps, **shape),
            }
            yield name + ": peak MiB of tensors", {
                "tessera": lambda: tessera.train(text, 8, **shape)["peak_memory_bytes"] / 2**20,
                "eager": lambda: peak() / 2**20,
            }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tessera", default="build/tessera")
    parser.add_argument("--text", help="a text to train on; without it the training rows are left out")
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", help="write the table to this file, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    candidates_shown = ("tessera", "eager", "compile", "floor")
    lines = ["| work | tessera | PyTorch eager | torch.compile | floor | / eager | / compile | / floor |", "|" + "---|" * 8]
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads, torch {torch.__version__}, ms unless said")
    for name, candidates in rows(Tessera(options.tessera, options.threads), options.text):
        if options.only not in name:
            continue
        grad = torch.enable_grad() if name.startswith("GPT") else torch.no_grad()
        with grad:
            times = {c: [] for c in candidates}
            for _ in range(options.rounds):
                for candidate, measure in candidates.items():
                    times[candidate].append(measure())
        floors = times.pop("floor", [])
        times |= {"floor": [f.ms for f in floors]} if floors else {}
        ours, *others = (statistics.median(times[c]) if c in times else None for c in candidates_shown)
        cell = lambda v: "" if v is None else f"{v:.3f}" if v < 100 else f"{v:.1f}"
        ratios = [ours / v if v else None for v in others[:2]]
        ratios.append(statistics.median(statistics.median(f.ratios) for f in floors) if floors else None)
        ratio = lambda v: "" if v is None else f"{v:.2f}"
        lines.append(f"| {name} | " + " | ".join([cell(v) for v in (ours, *others)] + [ratio(v) for v in ratios]) + " |")
        print(lines[-1], flush=True)
        if floors:
            print(spread(floors), flush=True)
    if options.markdown:
        pathlib.Path(options.markdown).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
