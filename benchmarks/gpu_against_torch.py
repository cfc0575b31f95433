"""Tessera beside PyTorch on one GPU: the same work on the same card, in turns, in one run.

usage: gpu_against_torch.py [--tessera build/tessera] [--text FILE] [--only PART ...] [--rounds R] [--batches B ...] [--out DIR]
Needs PyTorch with CUDA. Parts:
  loss   200 steps of GPT-2 124M in bf16 from the same weights on the same batches. PyTorch runs in bf16 with FlashAttention-2
         and with cuDNN's attention, which shows how far two runs of its own are apart: with a vocabulary that is filled up to
         50304 rows, whose logits are left out of the loss ("padded"); as it is, where cuBLAS adds up the gradient of what
         logits are made of in parts of bf16 ("flash", "cudnn"); the same held to f32 where ours is ("exact"): cuBLAS adds
         parts in f32, and cross-entropy takes f32 logits, since under autocast it rounds log-probabilities to bf16; and in
         f32. "read" is what a run's own logits give when the loss is worked out in f32, while it is trained as before.
  gradients  of the first of these steps, each parameter's, against PyTorch's in f32
  step   milliseconds and peak memory of a training step of GPT-2 124M, 12 x 1024 tokens or --batches, bf16
  gemm   TFLOP/s of square products
  convmodel  the mixed-precision experiment: training and inference
Each figure is a median; `ours` uses cuBLASLt and cuDNN where they are faster, `own` runs with TESSERA_VENDOR=off.
--out writes the figures and the losses as JSON, and the losses as a picture."""

import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FLASH, CUDNN = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
VOCAB, PADDED, WIDTH, HEADS, LAYERS, BLOCK = 50257, 50304, 768, 12, 12, 1024


def median_ms(fn, warm=5, rounds=20):
    """Of one call, by events. Short calls are queued back to back, so that the host's time hides behind the GPU."""
    for _ in range(warm):
        fn()
    times, inner = [], 1
    while len(times) < rounds:
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        for _ in range(inner):
            fn()
        end.record()
        torch.cuda.synchronize()
        ms = start.elapsed_time(end)
        if ms < 5 and inner < 100:
            inner *= 4
            continue
        times.append(ms / inner)
    return statistics.median(times)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.attn.c_attn(self.ln_1(x)).split(WIDTH, 2)
        q, k, v = (t.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for t in split)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2 124M with the parameter names of the published weights."""

    wide_loss = False  # whether cross-entropy is computed in f32 under autocast, too
    classes = None  # logits that count, unless all do
    read = None  # a list that each step's loss is appended to, worked out in f32 whatever the model is trained by

    def __init__(self, vocab=VOCAB):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if name.endswith("c_proj.weight") else 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)[..., : self.classes]
        if self.wide_loss:
            logits = logits.float()
        if self.read is not None:
            with torch.no_grad():
                self.read.append(F.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def save_safetensors(model, path):
    """As published: the weights of linear layers are stored [in, out]."""
    header, parts, at = {}, [], 0
    for name, p in model.named_parameters():
        t = (p.t() if name.endswith("weight") and ".c_" in name else p).detach().float().cpu().contiguous()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.numel() * 4]}
        parts.append(t.numpy().tobytes())
        at += t.numel() * 4
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


class Windows:
    """The batches of `tessera train gpt`: the first 90 % of a text, cut into windows that are shuffled by SplitMix64."""

    def __init__(self, text, seed):
        characters = sorted(set(text))
        place = {c: i for i, c in enumerate(characters)}
        self.tokens = torch.tensor([place[c] for c in text[: int(len(text) * 0.9)]])
        self.seed = seed
        self.windows = max(1, (len(self.tokens) - BLOCK) // BLOCK)
        self.shifts = len(self.tokens) - self.windows * BLOCK
        self.epoch, self.order = -1, []

    @staticmethod
    def below(n, seed, index):
        word = (1 << 64) - 1

        def mix(z):
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
            z = (z ^ z >> 27) * 0x94D049BB133111EB & word
            return z ^ z >> 31

        return mix(mix(seed + 0x9E3779B97F4A7C15 & word) + (index + 1) * 0x9E3779B97F4A7C15 & word) * n >> 64

    def batch(self, index, size):
        rows = []
        for count in range(index * size, (index + 1) * size):
            epoch = count // self.windows
            if epoch != self.epoch:
                self.epoch, self.order = epoch, list(range(self.windows))
                for i in range(self.windows - 1, 0, -1):
                    j = self.below(i + 1, self.seed, epoch * self.windows + i)
                    self.order[i], self.order[j] = self.order[j], self.order[i]
            shift = self.below(self.shifts, ~self.seed & (1 << 64) - 1, epoch)
            at = shift + self.order[count % self.windows] * BLOCK
            rows.append(self.tokens[at : at + BLOCK + 1])
        both = torch.stack(rows)
        return both[:, :-1].cuda(), both[:, 1:].cuda()


class Tessera:
    def __init__(self, command):
        self.command = command

    def run(self, *arguments, vendor=True):
        """The JSON that a subcommand writes."""
        environment = os.environ | ({} if vendor else {"TESSERA_VENDOR": "off"})
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [self.command, *map(str, arguments), "--device", "cuda:0", "--json", file.name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
            return json.load(open(file.name))

    def train(self, text, steps, batch, *flags, vendor=True):
        with tempfile.TemporaryDirectory() as folder:
            return self.run("train", "gpt", "--preset", "gpt2-124m", "--vocab", VOCAB, "--text", text,
                            *([] if "--out" in flags else ["--out", folder]), "--steps", steps, "--batch", batch, "--accumulation", 1, "--eval-interval", 0, "--amp",
                            "bf16", *flags, vendor=vendor)


def adamw(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}]
    return torch.optim.AdamW(groups, 6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def train_step(model, optimizer, backend, lower=True):
    def step(tokens, targets):
        with sdpa_kernel(backend):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=lower):
                loss = model(tokens, targets)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def polyline(values, low, high, colour):
    points = " ".join(f"{40 + 600 * i / (len(values) - 1):.1f},{340 - 320 * (v - low) / (high - low):.1f}" for i, v in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{colour}"/>'


def picture(losses, path):
    everything = [v for curve in losses.values() for v in curve]
    low, high = min(everything), max(everything)
    colours = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#7f7f7f", "#e377c2", "#17becf"]
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" width="660" height="360" font-family="sans-serif" font-size="12">',
             '<rect width="660" height="360" fill="white"/>', f'<text x="2" y="24">{high:.2f}</text><text x="2" y="342">{low:.2f}</text>']
    for i, (name, curve) in enumerate(losses.items()):
        lines += [polyline(curve, low, high, colours[i]), f'<text x="440" y="{30 + 16 * i}" fill="{colours[i]}">{name}</text>']
    pathlib.Path(path).write_text("\n".join(lines + ["</svg>"]) + "\n")


SEED, BATCH = 7, 4  # of losses and gradients
RUNS = (("flash", FLASH, True), ("cudnn", CUDNN, True), ("exact", FLASH, True), ("exact cudnn", CUDNN, True),
        ("f32", SDPBackend.EFFICIENT_ATTENTION, False))
PADDED_RUNS = ("padded", FLASH, True), ("padded cudnn", CUDNN, True)


def initial_model(seed=SEED):
    torch.manual_seed(seed)
    return GPT().cuda()


def windows(options, seed=SEED):
    return Windows(pathlib.Path(options.text).read_text(), seed * 3 + 1)


def copy_of(model, vocab=VOCAB):
    """Of the same loss, whatever its vocabulary is filled up to."""
    copy, state = GPT(vocab).cuda(), model.state_dict()
    state["wte.weight"] = F.pad(state["wte.weight"], (0, 0, 0, vocab - VOCAB))
    copy.load_state_dict(state)
    copy.classes = VOCAB
    return copy


def losses_of(tessera, options, seed):
    """Batch 4 x 1024. The learning rate rises to 6e-4 over --warmup steps and would fall to a tenth by step 600000: the preset's schedule."""
    initial, losses = initial_model(seed), {}
    with tempfile.TemporaryDirectory() as folder:
        save_safetensors(initial, f"{folder}/model.safetensors")
        for name, vendor in (("ours", True), ("own", False)):
            result = tessera.train(options.text, 600000, BATCH, "--stop-after", options.steps, "--init", f"{folder}/model.safetensors",
                                   "--warmup", options.warmup, "--seed", seed, vendor=vendor)
            losses[name] = [s["loss"] for s in result["steps"]]
    for name, backend, lower in (*PADDED_RUNS, *RUNS):
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = "exact" not in name
        model, batches, curve = copy_of(initial, PADDED if "padded" in name else VOCAB), windows(options, seed), []
        model.wide_loss, model.read = "exact" in name, []
        optimizer = adamw(model)
        step = train_step(model, optimizer, backend, lower)
        for i in range(options.steps):
            done = (i - options.warmup) / (600000 - options.warmup)
            factor = (i + 1) / (options.warmup + 1) if done < 0 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = 6e-4 * factor
            curve.append(step(*batches.batch(i, BATCH)))
        losses[name] = [v.item() for v in curve]
        losses[f"{name} read"] = [v.item() for v in model.read]
    return losses


def loss(tessera, options, report):
    """Mean differences for each seed of weights and data, and over all of --seeds."""
    report["losses"] = [losses_of(tessera, options, SEED + i) for i in range(options.seeds)]
    for a, b in (("padded", "padded cudnn"), ("ours", "padded"), ("own", "padded"), ("padded read", "padded cudnn read"),
                 ("ours", "padded read"), ("own", "padded read"), ("exact", "exact cudnn"), ("ours", "exact"), ("own", "exact"),
                 ("flash", "cudnn"), ("ours", "flash"), ("own", "flash"), ("flash read", "cudnn read"), ("ours", "flash read"),
                 ("own", "flash read"), ("ours", "f32"), ("own", "f32"), ("padded", "f32"), ("padded read", "f32"),
                 ("exact", "f32"), ("flash", "f32"), ("flash read", "f32")):
        gaps = [statistics.mean(abs(x - y) for x, y in zip(of[a], of[b])) for of in report["losses"]]
        print(f"loss {a:11s} - {b:17s}: mean {statistics.mean(gaps):.6f}, by seed {' '.join(f'{g:.6f}' for g in gaps)}", flush=True)
    for of in report["losses"]:
        print(*(f"{n} {c[0]:.5f} to {c[-1]:.5f}" for n, c in of.items()), sep=", ", flush=True)
    if options.out:
        picture({n: c for n, c in report["losses"][0].items() if "read" not in n}, f"{options.out}/gpu_loss.svg")


def load_moments(path):
    """First moments of a checkpoint, in the order of the parameters: matrices, then vectors."""
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, moments = json.loads(data[8 : 8 + length]), []
    while entry := header.get(f"optimizer.param.{len(moments)}.exp_avg"):
        begin, end = entry["data_offsets"]
        moments.append(torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=torch.float32).view(entry["shape"]))
    return moments


def gradients(tessera, options, report):
    """Ours come from the first moments after one step, which are the gradient but for one factor; so all are scaled to length 1."""
    initial = initial_model()
    parts = [f"h.{i}.{part}" for i in range(LAYERS) for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
    vectors = [f"h.{i}.{v}" for i in range(LAYERS) for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
               for v in ([f"{part}.weight"] if "ln" in part else []) + [f"{part}.bias"]]
    names = ["wte.weight", "wpe.weight", *(f"{p}.weight" for p in parts), *vectors, "ln_f.weight", "ln_f.bias"]
    all_of = {}
    with tempfile.TemporaryDirectory() as folder:
        save_safetensors(initial, f"{folder}/model.safetensors")
        for name, vendor in (("ours", True), ("own", False)):
            out = f"{folder}/{name}"
            tessera.train(options.text, 100, BATCH, "--stop-after", 1, "--init", f"{folder}/model.safetensors", "--seed", SEED,
                          "--out", out, vendor=vendor)
            all_of[name] = dict(zip(names, load_moments(f"{out}/checkpoint.safetensors")))
    for name, backend, lower in RUNS:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = "exact" not in name
        model = copy_of(initial)
        train_step(model, torch.optim.SGD(model.parameters(), 0.0), backend, lower)(*windows(options).batch(0, BATCH))
        all_of[name] = {n: p.grad.float().cpu() for n, p in model.named_parameters()}
    for gradient in all_of.values():
        length = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
        for g in gradient.values():
            g /= length
    errors = {}
    for name in ("ours", "own", "flash", "cudnn", "exact"):
        errors[name] = {n: ((all_of[name][n] - g).norm() / g.norm()).item() for n, g in all_of["f32"].items()}
    for kind in ("wte", "wpe", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "c_fc.weight", "c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias", "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "ln_f"):
        figures = {n: statistics.median(v for k, v in e.items() if kind in k) for n, e in errors.items()}
        print(f"gradient's error, {kind:20s}", "  ".join(f"{n} {v:.5f}" for n, v in figures.items()), flush=True)
    report["gradient errors"] = errors


def row(report, name, unit, figures, peers):
    """Prints a line: each of ours, each peer's and the ratio of the first to the best peer."""
    report[name] = figures
    best = (min if unit in ("ms", "us", "GiB", "MiB") else max)(figures[p] for p in peers)
    cells = "  ".join(f"{n} {v:.4g}" for n, v in figures.items())
    print(f"{name:34s} {cells} {unit}   first / best peer {next(iter(figures.values())) / best:.2f}", flush=True)


def step(tessera, options, report):
    for batch in options.batches:
        step_of(batch, tessera, options, report)


def step_of(batch, tessera, options, report):
    times, memory = {}, {}
    for _ in range(options.rounds):
        for name, vendor in (("ours", True), ("own", False)):
            result = tessera.train(options.text, 50, batch, "--warmup", 10, vendor=vendor)
            times.setdefault(name, []).append(statistics.median(s["ms"] for s in result["steps"][20:]))
            memory[name] = result["peak_memory_bytes"] / 2**30
        for name, vocab, backend, compiled in (("flash", VOCAB, FLASH, False), ("flash+pad", PADDED, FLASH, False),
                                               ("flash+pad+compile", PADDED, FLASH, True), ("cudnn+pad+compile", PADDED, CUDNN, True)):
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            model = GPT(vocab).cuda()
            tokens, targets = (torch.randint(0, VOCAB, (batch, BLOCK), device="cuda") for _ in range(2))
            run = train_step(torch.compile(model) if compiled else model, adamw(model), backend)
            times.setdefault(name, []).append(median_ms(lambda: run(tokens, targets), 4, 10))
            memory[name] = torch.cuda.max_memory_allocated() / 2**30
            del model, run
    peers = [n for n in times if n not in ("ours", "own")]
    row(report, f"gpt2-124m step b{batch} bf16", "ms", {n: statistics.median(t) for n, t in times.items()}, peers)
    row(report, f"gpt2-124m peak memory b{batch}", "GiB", memory, peers)


def gemm(tessera, options, report):
    """In turns, --rounds times: a card that is kept busy changes its clock."""
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")):
        for n in (2048, 4096, 8192) if dtype != torch.float32 else (4096,):
            rates = {"ours": [], "own": [], "cublas": []}
            a, b = (torch.randn(n, n, device="cuda", dtype=dtype) for _ in range(2))
            for _ in range(options.rounds):
                for label, vendor in (("ours", True), ("own", False)):
                    result = tessera.run("bench", "op", "gemm", "--m", n, "--n", n, "--k", n, "--dtype", name, "--seconds", 0.3, vendor=vendor)
                    rates[label].append(next(r["value"] for r in result["results"] if r["name"] == "tessera") / 1e3)
                rates["cublas"].append(2 * n**3 / median_ms(lambda: a @ b) * 1e-9)
            row(report, f"gemm {name} {n}", "TFLOP/s", {who: statistics.median(r) for who, r in rates.items()}, ["cublas"])


class ConvModel(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        layers = []
        for channels in (2, width, width):
            layers += [nn.Conv2d(channels, width, 1), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))

    def forward(self, x):
        return self.layers(x)


def convmodel(tessera, options, report):
    x, y = torch.rand(1, 2, 512, 512, device="cuda"), torch.rand(1, 1, 512, 512, device="cuda")
    for amp, dtype in (("off", None), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
        figures = {"train": {}, "inference": {}, "peak memory": {}}
        for label, vendor in (("ours", True), ("own", False)):
            with tempfile.TemporaryDirectory() as folder:
                result = tessera.run("train", "convmodel", "--amp", amp, "--steps", 100, "--out", folder, vendor=vendor)
            run = "standard" if amp == "off" else amp
            value = {r["name"]: r["value"] for r in result["results"]}
            figures["train"][label] = value[f"{run} step"]
            figures["inference"][label] = value[f"{run} inference"]
            figures["peak memory"][label] = value[f"{run} peak memory"]
        for label, compiled in (("eager", False), ("compile", True)):
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            model = ConvModel().cuda()
            run = torch.compile(model) if compiled else model
            optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-3), torch.amp.GradScaler("cuda", enabled=amp == "fp16")
            region = lambda: torch.autocast("cuda", dtype) if dtype else contextlib.nullcontext()

            def train():
                optimizer.zero_grad()
                with region():
                    loss = F.mse_loss(run(x).float(), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

            def infer():
                with torch.no_grad(), region():
                    run(x)

            torch.cuda.reset_peak_memory_stats()
            figures["train"][label] = median_ms(train)
            figures["peak memory"][label] = torch.cuda.max_memory_allocated() / 2**20
            model.eval()
            figures["inference"][label] = median_ms(infer)
        for kind, unit in (("train", "ms"), ("inference", "ms"), ("peak memory", "MiB")):
            row(report, f"convmodel {amp} {kind}", unit, figures[kind], ["eager", "compile"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default="build/tessera")
    parser.add_argument("--text", help="a text to train on: needed by step, gradients and loss")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--batches", nargs="*", type=int, default=[12], help="of step, in sequences of 1024")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200, help="of the losses")
    parser.add_argument("--seeds", type=int, default=1, help="of the losses' weights and data")
    parser.add_argument("--warmup", type=int, default=2000, help="of the losses' learning rate")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), flush=True)
    report = {}
    for part in (gemm, step, gradients, loss, convmodel):
        if (part.__name__ in options.only) if options.only else (options.text or part in (gemm, convmodel)):
            part(Tessera(options.tessera), options, report)
    if options.out:
        pathlib.Path(f"{options.out}/gpu_against_torch.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
