#!/usr/bin/env python3
"""Trains a GPT of MPT-1B's shape, cut to two layers, by `tessera train gpt --preset mpt-1b` on streamed tokens and by PyTorch, from
the same weights on the same batches, and compares the losses: each within 0.5 % of PyTorch's.

usage: recipe_tests.py [--small | --device cuda:0] [--steps N] [--batch N] [--block N] [--amp off,bf16] [--tessera FILE]
                       [--folder DIR]

--small takes seconds on a CPU: narrower layers of three heads, short blocks, few steps, in f32 and bf16. Otherwise it is MPT-1B's
width 2048, 16 heads, vocabulary 50368 and blocks of 2048 tokens, in bf16, for 200 steps. On a CPU that takes an hour with
--batch 1 --block 128; --folder keeps what both have done, shows progress, and a second call goes on from there. The text is made up
here, of thousands of characters with an order to learn. PyTorch's model is below, with all scores in memory. The last line is
'N passed, N failed'. Needs torch and build/tessera; it is no part of the other tests.
"""
import argparse
import ctypes
import json
import math
import random
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.005  # of the loss


@dataclass
class Shape:
    layers: int = 2
    heads: int = 16
    width: int = 2048
    block: int = 2048
    vocab: int = 50368
    characters: int = 20000
    steps: int = 200
    batch: int = 4
    lr: float = 2e-4
    warmup: int = 100
    seed: int = 17


SMALL = Shape(heads=3, width=96, block=64, vocab=1024, characters=1000, steps=60, batch=8, lr=3e-3, warmup=10)


# ---- data: a text whose characters mostly follow from the one before, as blocks in shards


def make_text(shape, tokens):
    """Each character has eight likely successors, of unlike weight; now and then any other comes."""
    rng = random.Random(5)
    successors = [[rng.randrange(shape.characters) for _ in range(8)] for _ in range(shape.characters)]
    at, out = 0, []
    for _ in range(tokens):
        place = min(int(rng.expovariate(0.7)), 7)
        at = successors[at][place] if rng.random() < 0.9 else int(shape.characters * rng.random() ** 3)
        out.append(at)
    return "".join(chr(0x4E00 + i) if i < 20000 else chr(0xAC00 + i - 20000) for i in out)


def read_shards(folder):
    """The column `tokens` of an MDS folder without compression: a tensor of integers [samples, block + 1]."""
    index = json.loads((folder / "index.json").read_text())
    rows = []
    for shard in index["shards"]:
        kind, dtype, length = shard["column_encodings"][0].split(":")
        assert shard["column_names"] == ["tokens"] and kind == "ndarray"
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        count = struct.unpack_from("<I", data)[0]
        offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
        form = {"uint16": "H", "int32": "i"}[dtype]
        rows += [struct.unpack_from(f"<{length}{form}", data, at) for at in offsets[:-1]]
    return torch.tensor(rows)


def batches(tessera, folder, shape):
    """Inputs and targets of each step, in the order in which tessera streams them."""
    samples = read_shards(folder / "train")
    made, epoch = 0, 0
    while made < shape.steps:
        order = subprocess.run([tessera, "data", "order", folder / "train", "--shuffle-seed", str(3 * shape.seed + 1), "--batch",
                                str(shape.batch), "--epoch", str(epoch)], check=True, capture_output=True, text=True).stdout
        for line in order.splitlines():
            ids = [int(i) for i in line.split(": ")[1].split()]
            if -1 not in ids and made < shape.steps:
                made += 1
                yield samples[ids, :-1], samples[ids, 1:]
        epoch += 1


# ---- the model, in Hugging Face's names


def slopes(heads):
    """Of ALiBi, as its paper has them."""
    if math.log2(heads).is_integer():
        return [2 ** (-8 * (i + 1) / heads) for i in range(heads)]
    lower = 2 ** math.floor(math.log2(heads))
    return slopes(lower) + slopes(2 * lower)[::2][: heads - lower]


def make_weights(shape):
    torch.manual_seed(shape.seed)
    width, std = shape.width, 0.02
    weights = {"transformer.wte.weight": torch.randn(shape.vocab, width) * std, "transformer.norm_f.weight": torch.ones(width)}
    for i in range(shape.layers):
        sizes = {"attn.Wqkv": (3 * width, width), "attn.out_proj": (width, width), "ffn.up_proj": (4 * width, width),
                 "ffn.down_proj": (width, 4 * width)}
        for name, size in sizes.items():
            writes = name in ("attn.out_proj", "ffn.down_proj")
            weights[f"transformer.blocks.{i}.{name}.weight"] = torch.randn(size) * (std / math.sqrt(2 * shape.layers) if writes else std)
        for name in ("norm_1", "norm_2"):
            weights[f"transformer.blocks.{i}.{name}.weight"] = torch.ones(width)
    return weights


def save_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        size = t.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            file.write(ctypes.string_at(t.contiguous().data_ptr(), 4 * t.numel()))


def attention(qkv, shape, bias):
    batch, tokens, _ = qkv.shape
    q, k, v = (t.reshape(batch, tokens, shape.heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1))
    with torch.autocast(qkv.device.type, enabled=False):  # products of what is in bf16, summed in f32
        scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        weights = torch.softmax(scores, -1).to(v.dtype)
        y = (weights.float() @ v.float()).to(v.dtype)
    return y.transpose(1, 2).reshape(batch, tokens, shape.width)


def loss_of(w, shape, bias, tokens, targets):
    def norm(x, name):
        return F.layer_norm(x, (shape.width,), w[f"transformer.{name}.weight"])

    def linear(x, name):
        return F.linear(x, w[f"transformer.{name}.weight"])

    x = F.embedding(tokens, w["transformer.wte.weight"])
    for i in range(shape.layers):
        x = x + linear(attention(linear(norm(x, f"blocks.{i}.norm_1"), f"blocks.{i}.attn.Wqkv"), shape, bias), f"blocks.{i}.attn.out_proj")
        x = x + linear(F.gelu(linear(norm(x, f"blocks.{i}.norm_2"), f"blocks.{i}.ffn.up_proj")), f"blocks.{i}.ffn.down_proj")
    logits = linear(norm(x, "norm_f"), "wte")
    return F.cross_entropy(logits.reshape(-1, shape.vocab).float(), targets.reshape(-1))


def factor(step, shape):
    """Of the learning rate: a linear warm-up, then a cosine down to a tenth."""
    if step < shape.warmup:
        return (step + 1) / (shape.warmup + 1)
    done = (step - shape.warmup) / (shape.steps - shape.warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def train_torch(weights, shape, data, device, amp, state):
    """The losses of all steps. A file `state`, if given, keeps the run every 20 steps, and it goes on from there."""
    w = {name: t.clone().to(device).requires_grad_() for name, t in weights.items()}
    optimizer = torch.optim.AdamW(w.values(), lr=shape.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    places = torch.arange(shape.block, device=device)
    distance = (places[None, :] - places[:, None]).float()
    bias = torch.tensor(slopes(shape.heads), device=device)[:, None, None] * distance
    bias = bias.masked_fill(distance > 0, -math.inf)
    losses = []
    if state and state.exists():
        saved = torch.load(state, map_location=device)
        losses = saved["losses"]
        optimizer.load_state_dict(saved["optimizer"])
        with torch.no_grad():
            for name, t in w.items():
                t.copy_(saved["weights"][name])
    for step, (tokens, targets) in enumerate(data):
        if step < len(losses):
            continue
        optimizer.param_groups[0]["lr"] = shape.lr * factor(step, shape)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp == "bf16"):
            loss = loss_of(w, shape, bias, tokens.to(device), targets.to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if state and (step + 1) % 20 == 0:
            print(f"PyTorch, step {step + 1}: loss {losses[-1]:.4f}", flush=True)
            torch.save({"losses": losses, "optimizer": optimizer.state_dict(), "weights": w}, state.with_suffix(".new"))
            state.with_suffix(".new").rename(state)
    return losses


def train_tessera(tessera, shape, folder, device, amp, kept):
    options = {"layers": shape.layers, "heads": shape.heads, "width": shape.width, "block": shape.block, "vocab": shape.vocab,
               "batch": shape.batch, "accumulation": 1, "steps": shape.steps, "lr": shape.lr, "min-lr": 0.1 * shape.lr,
               "warmup": shape.warmup, "seed": shape.seed, "amp": amp, "device": device, "eval-interval": 0, "checkpoint-interval": 20 if kept else 0,
               "init": folder / "weights", "data": folder / "data", "out": folder / f"out-{amp}", "json": folder / f"{amp}.json"}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    if (folder / f"out-{amp}" / "checkpoint.safetensors").exists():
        words.append("--resume")
    subprocess.run([tessera, "train", "gpt", "--preset", "mpt-1b", *words], check=True, stdout=None if kept else subprocess.DEVNULL)
    return [step["loss"] for step in json.loads((folder / f"{amp}.json").read_text())["steps"]]


def compare(theirs, ours):
    """The largest difference of a step's loss, as a share of PyTorch's; infinite where one is missing."""
    if len(theirs) != len(ours):
        return math.inf
    return max(abs(a - b) / a if math.isfinite(a) and math.isfinite(b) else math.inf for a, b in zip(theirs, ours))


def make_inputs(tessera, folder, shape):
    """Tokens and first weights, unless they are there."""
    folder.mkdir(exist_ok=True)
    if (folder / "weights").exists():
        return
    text = make_text(shape, int(shape.steps * shape.batch * (shape.block + 1) / 0.85) + 20 * shape.block)
    (folder / "text").write_text(text, encoding="utf-8")
    subprocess.run([tessera, "data", "pack", folder / "text", "--block", str(shape.block), "--out", folder / "data"], check=True,
                   stdout=subprocess.DEVNULL)
    save_safetensors(folder / "weights.new", make_weights(shape))
    (folder / "weights.new").rename(folder / "weights")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--amp", help="off, bf16 or both, between commas")
    parser.add_argument("--tessera", default=ROOT / "build/tessera", type=Path)
    parser.add_argument("--folder", type=Path, help="keeps what was done; a call with the same options goes on from it")
    for name in ("steps", "batch", "block"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    shape = SMALL if options.small else Shape()
    for name in ("steps", "batch", "block"):
        if getattr(options, name):
            setattr(shape, name, getattr(options, name))
    shape.warmup = min(shape.warmup, shape.steps // 2)
    amps = (options.amp or ("off,bf16" if options.small else "bf16")).split(",")
    torch.backends.cuda.matmul.allow_tf32 = False
    passed = failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        make_inputs(options.tessera, folder, shape)
        for amp in amps:
            ours = train_tessera(options.tessera, shape, folder, options.device, amp, kept=options.folder is not None)
            theirs = train_torch(make_weights(shape), shape, batches(options.tessera, folder / "data", shape), options.device, amp,
                                 options.folder and options.folder / f"torch-{amp}.state")
            worst, last = compare(theirs, ours), len(theirs) // 10
            learned = sum(theirs[-last:]) < 0.95 * sum(theirs[:last])  # or there was nothing to compare
            ok = worst <= TOLERANCE and learned
            passed, failed = passed + ok, failed + (not ok)
            print(f"{amp}: {len(ours)} steps of {shape.batch} x {shape.block} tokens on {options.device}, loss {theirs[0]:.4f} to "
                  f"{theirs[-1]:.4f} by PyTorch, {ours[0]:.4f} to {ours[-1]:.4f} by tessera: at most {100 * worst:.3f} % apart", flush=True)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
