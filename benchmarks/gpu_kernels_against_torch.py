"""Tessera's GPU kernels beside cuBLAS, cuDNN and FlashAttention, through PyTorch, on one GPU in one run.

usage: gpu_kernels_against_torch.py [--tessera build/tessera] [--only PART ...] [--seconds S] [--rounds R] [--out DIR]
Needs PyTorch with CUDA. Parts:
  gpt2       the products of GPT-2 124M, all three passes, batches of 12 and 64 sequences, vocabulary 50257 (peer: 50304)
  encoders   the products of BERT-base and ViT-B
  fused      fp16 GEMM + Add + Add + FastGeLU beside cuBLAS's plain product, eager PyTorch and torch.compile
  attention  forward and backward, 16384 tokens, fp16; PyTorch's cuDNN also held to deterministic algorithms;
             `free` is ours with --nondeterministic
`ours` uses cuBLASLt and cuDNN where the lists put them first, `own` runs with TESSERA_VENDOR=off. Medians of queued calls;
of attention, of --rounds turns.
--out writes the figures as JSON and, of the parts that ran, a roofline picture."""

import argparse
import json
import math
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F
from gpu_against_torch import CUDNN, FLASH, Tessera, median_ms
from torch.nn.attention import sdpa_kernel

WIDTHS = {"qkv": (2304, 768), "proj": (768, 768), "up": (3072, 768), "down": (768, 3072)}  # out, in


def gpt2_products(batch):
    tokens, layers = batch * 1024, WIDTHS | {"vocabulary": (50257, 768)}
    for name, (out, into) in layers.items():
        yield f"b{batch} {name}", (tokens, out, into, "nt")
        yield f"b{batch} {name} dx", (tokens, into, out, "nn")
        yield f"b{batch} {name} dw", (out, into, tokens, "tn")


def encoder_products():
    for model, rows in (("bert 32x128", 4096), ("bert 32x512", 16384), ("vit 64x197", 12608), ("vit 256x197", 50432)):
        for name, (out, into) in WIDTHS.items():
            yield f"{model} {name}", (rows, out, into, "nt")


def cublas_ms(m, n, k, transpose):
    """The peer gets a vocabulary that its user has padded."""
    m, n, k = (50304 if v == 50257 else v for v in (m, n, k))
    make = lambda rows, columns, t: torch.randn(*((columns, rows) if t else (rows, columns)), device="cuda", dtype=torch.bfloat16)
    a, b = make(m, k, transpose[0] == "t"), make(k, n, transpose[1] == "t")
    a, b = a.t() if transpose[0] == "t" else a, b.t() if transpose[1] == "t" else b
    return median_ms(lambda: a @ b, rounds=10)


def products(name, cases, tessera, options, report):
    texts = {label: f"{m}x{n}x{k}:{t}" for label, (m, n, k, t) in cases}
    times = {}
    for who, vendor in (("ours", True), ("own", False)):
        result = tessera.run("bench", "op", "gemm", "--dtype", "bf16", "--seconds", options.seconds, "--products", *texts.values(), vendor=vendor)
        found = {r["name"]: r["value"] for r in result["results"]}
        times[who] = {label: found[text] for label, text in texts.items()}
    ratios = {"ours": [], "own": []}
    for label, (m, n, k, t) in cases:
        peer = cublas_ms(m, n, k, t)
        torch.cuda.empty_cache()
        for who in ratios:
            ratios[who].append(peer / times[who][label])
        flops, moved = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
        report[f"{name} {label}"] = {"flops": flops, "bytes": moved, "ms": {who: times[who][label] for who in times} | {"cublas": peer}}
        print(f"{label:22s} {m}x{n}x{k}:{t:3s} ours {times['ours'][label]:.4f}  own {times['own'][label]:.4f}  cublas {peer:.4f} ms   "
              f"ratio {ratios['ours'][-1]:.2f}  own {ratios['own'][-1]:.2f}", flush=True)
    for who, values in ratios.items():
        print(f"{name}, {who}: geometric mean {math.exp(statistics.mean(map(math.log, values))):.3f} of cuBLAS, least {min(values):.3f}", flush=True)


def gpt2(tessera, options, report):
    for batch in (12, 64):
        products("gpt2", list(gpt2_products(batch)), tessera, options, report)


def encoders(tessera, options, report):
    products("encoders", list(encoder_products()), tessera, options, report)


def in_turns_ms(graphs, seconds):
    """Medians of replays in turns, for as long as ours are timed: a card that has rested is faster."""
    times, begin = {who: [] for who in graphs}, time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times["eager"]) < 10:
        for who, graph in graphs.items():
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[who].append(start.elapsed_time(end))
    return {who: statistics.median(t) for who, t in times.items()}


def fused(tessera, options, report):
    def composed(a, b, d0, d1):
        return F.gelu(a @ b + d0 + d1, approximate="tanh")

    for m, n, k in ((3840, 4096, 4096), (16384, 3072, 768), (512, 3072, 768)):
        result = tessera.run("bench", "op", "gemm", "--m", m, "--n", n, "--k", k, "--dtype", "f16", "--epilogue", "add_add_gelu", "--seconds", options.seconds)
        rates = {r["name"]: r["value"] for r in result["results"]}
        ms = {"ours": 2e-6 * m * n * k / max(v for name, v in rates.items() if "add_add_gelu" in name)}
        a, b, d0, d1 = (torch.randn(*s, device="cuda", dtype=torch.float16) for s in ((m, k), (k, n), (m, n), (n,)))
        torch._dynamo.reset()
        compiled = torch.compile(composed, dynamic=False)
        graphs = {}
        for who, call in (("cublas plain", lambda: a @ b), ("eager", lambda: composed(a, b, d0, d1)), ("compile", lambda: compiled(a, b, d0, d1))):
            for _ in range(3):
                call()
            graphs[who] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[who]):
                for _ in range(20):
                    call()
        ms |= {who: t / 20 for who, t in in_turns_ms(graphs, options.seconds).items()}
        label = f"add_add_gelu {m}x{n}x{k}"
        report[label] = {"flops": 2.0 * m * n * k, "bytes": 2.0 * (m * k + k * n + 2 * m * n + n), "ms": ms}
        print(f"{label:32s} " + "  ".join(f"{w} {v * 1e3:.1f}" for w, v in ms.items()) + f" us   over plain {ms['ours'] / ms['cublas plain']:.3f}", flush=True)


def torch_attention(shape, causal, backend, deterministic):
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3))
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would write every result once more
    try:
        with sdpa_kernel(backend):
            forward = median_ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), rounds=10)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            dy = torch.randn_like(y)
            backward = median_ms(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), rounds=10)
        return forward, backward
    finally:
        torch.use_deterministic_algorithms(False)


def attention(tessera, options, report):
    for width, heads in ((64, 32), (128, 16)):
        for length in (512, 1024, 4096, 16384):
            for causal in (False, True):
                shape = (16384 // length, heads, length, width)
                flops, turns = 4.0 * math.prod(shape) * length * (0.5 if causal else 1), {}
                for _ in range(options.rounds):
                    for who, vendor, order in (("ours", True, []), ("own", False, []), ("free", True, ["--nondeterministic"])):
                        result = tessera.run("bench", "op", "sdpa", *order, "--shape", "x".join(map(str, shape)), "--dtype", "f16", "--seconds", options.seconds,
                                             *(["--causal"] if causal else []), vendor=vendor)
                        turns.setdefault(who, []).append([r["value"] * 1e-3 for r in result["results"]][:2])
                    for who, backend, deterministic in (("flash", FLASH, False), ("cudnn", CUDNN, False), ("cudnn det", CUDNN, True)):
                        times = torch_attention(shape, causal, backend, deterministic)
                        turns.setdefault(who, []).append([flops * factor / ms * 1e-9 for factor, ms in zip((1, 2.5), times)])
                rates = {who: [statistics.median(r) for r in zip(*of)] for who, of in turns.items()}
                label = f"attention {width} {length} {'causal' if causal else 'full'}"
                for at, kind in enumerate(("forward", "backward")):
                    work = flops * (1, 2.5)[at]
                    report[f"{label} {kind}"] = {"flops": work, "bytes": 2.0 * math.prod(shape) * (4, 8)[at],
                                                 "ms": {who: work / r[at] * 1e-9 for who, r in rates.items()}}
                print(f"{label:28s} " + "  ".join(f"{who} {r[0]:.0f}/{r[1]:.0f}" for who, r in rates.items()) + " TFLOP/s forward/backward"
                      f"   over cudnn {rates['ours'][0] / rates['cudnn'][0]:.2f}/{rates['ours'][1] / rates['cudnn det'][1]:.2f}, "
                      f"free {rates['free'][1] / rates['cudnn'][1]:.2f}", flush=True)


def ceilings():
    """What the card does here: TB/s of a long copy, read and write, and TFLOP/s of cuBLAS's best square product."""
    x = torch.empty(2**29, device="cuda", dtype=torch.float32).normal_()
    y = torch.empty_like(x)
    copy = 8.0 * x.numel() / median_ms(lambda: y.copy_(x), rounds=10) * 1e-9
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return copy, 2.0 * 8192**3 / median_ms(lambda: a @ a, rounds=10) * 1e-9


def roofline(report, path):
    """Our kernels by intensity and rate, logarithmic, under the ceilings that were measured in the same run."""
    copy, peak = report["ceilings"]["copy TB/s"], report["ceilings"]["product TFLOP/s"]
    x_of = lambda intensity: 60 + 640 * math.log10(max(intensity, 10) / 10) / 3  # 10 to 10000 FLOP a byte
    y_of = lambda rate: 400 - 360 * math.log10(max(rate, 20) / 20) / math.log10(50)  # 20 to 1000 TFLOP/s
    colours = {"gpt2": "#1f77b4", "encoders": "#2ca02c", "add_add_gelu": "#d62728", "attention": "#9467bd"}
    lines = ['<svg xmlns="http://www.w3.org/2000/svg" width="740" height="450" font-family="sans-serif" font-size="12">',
             '<rect width="740" height="450" fill="white"/>']
    for rate in (20, 50, 100, 200, 500, 1000):
        lines.append(f'<path d="M60 {y_of(rate):.1f}H700" stroke="#ddd"/><text x="54" y="{y_of(rate) + 4:.1f}" text-anchor="end">{rate}</text>')
    for intensity in (10, 100, 1000, 10000):
        lines.append(f'<path d="M{x_of(intensity):.1f} 40V400" stroke="#ddd"/><text x="{x_of(intensity):.1f}" y="418" text-anchor="middle">{intensity}</text>')
    ridge = peak / copy
    lines.append(f'<polyline points="60,{y_of(10 * copy):.1f} {x_of(ridge):.1f},{y_of(peak):.1f} 700,{y_of(peak):.1f}" fill="none" stroke="black"/>')
    lines += [f'<text x="70" y="{y_of(10 * copy) - 26:.1f}">copy {copy:.2f} TB/s</text>', f'<text x="696" y="{y_of(peak) - 6:.1f}" text-anchor="end">cuBLAS 8192³ {peak:.0f} TFLOP/s</text>',
              '<text x="380" y="440" text-anchor="middle">FLOP a byte that must move</text><text x="60" y="26">TFLOP/s; filled: ours, ring: the best peer</text>']
    for at, (kind, colour) in enumerate(colours.items()):
        lines.append(f'<text x="{300 + 110 * at}" y="26" fill="{colour}">{kind}</text>')
    for name, row in report.items():
        colour = next((c for kind, c in colours.items() if name.startswith(kind)), None)
        if not colour:
            continue
        rate = lambda ms: row["flops"] / ms * 1e-9
        x, best = x_of(row["flops"] / row["bytes"]), min(ms for who, ms in row["ms"].items() if who not in ("ours", "own", "free"))
        lines.append(f'<circle cx="{x:.1f}" cy="{y_of(rate(best)):.1f}" r="4" fill="none" stroke="{colour}" opacity="0.6"/>')
        lines.append(f'<circle cx="{x:.1f}" cy="{y_of(rate(row["ms"]["ours"])):.1f}" r="2.5" fill="{colour}"><title>{name}</title></circle>')
    pathlib.Path(path).write_text("\n".join(lines + ["</svg>"]) + "\n")


PARTS = (gpt2, encoders, fused, attention)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", default="build/tessera")
    parser.add_argument("--only", nargs="*", default=[], choices=[p.__name__ for p in PARTS])
    parser.add_argument("--seconds", type=float, default=0.2, help="for each kernel")
    parser.add_argument("--rounds", type=int, default=1, help="of attention: ours and the peers in turns")
    parser.add_argument("--out")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), flush=True)
    copy, peak = ceilings()
    report = {"device": torch.cuda.get_device_name(), "ceilings": {"copy TB/s": copy, "product TFLOP/s": peak}}
    print(f"copy {copy:.2f} TB/s, cuBLAS 8192^3 {peak:.0f} TFLOP/s", flush=True)
    torch.cuda.empty_cache()
    for part in PARTS:
        if not options.only or part.__name__ in options.only:
            part(Tessera(options.tessera), options, report)
    if options.out:
        pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.out, "gpu_kernels.json").write_text(json.dumps(report, indent=1) + "\n")
        roofline(report, f"{options.out}/roofline.svg")


if __name__ == "__main__":
    main()
