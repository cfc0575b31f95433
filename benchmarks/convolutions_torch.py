"""PyTorch's time beside that of bench_convolutions, whose output is the argument: ratios ours / PyTorch, eager.

BENCHMARK=1 in the environment lets cuDNN measure its algorithms. On the CPU, OMP_NUM_THREADS says how many threads."""
import math
import os
import sys
import time

import torch


def timed(call, device):
    def passed(calls):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    passed(2)
    calls = int(min(max(10000 / passed(1), 1), 200))
    return min(passed(calls) for _ in range(5)) / calls


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.backends.cudnn.benchmark = os.environ.get("BENCHMARK") == "1"
    print(torch.__version__, torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads")
    passes = ("forward", "input gradient", "weight gradient")
    ratios, rows = {p: [] for p in passes}, []
    for line in open(sys.argv[1]):
        if line.startswith("#"):
            print(line.strip())
            continue
        words = line.split()
        n, c, h, w, k, r, s, groups, s0, s1, p0, p1, d0, d1 = map(int, words[:14])
        layout = torch.channels_last if words[14] == "last" else torch.contiguous_format
        make = lambda *shape: torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)
        x, weight = make(n, c, h, w), make(k, c // groups, r, s)
        options = (s0, s1), (p0, p1), (d0, d1)
        forward = lambda: torch.nn.functional.conv2d(x, weight, None, *options, groups)
        dy = torch.randn_like(forward())
        backward = lambda mask: torch.ops.aten.convolution_backward(dy, x, weight, None, *options, False, (0, 0), groups, mask)
        calls = (forward, lambda: backward((True, False, False)), lambda: backward((False, True, False)))
        with torch.no_grad():
            for name, ours, kernel, call in zip(passes, map(float, words[15:18]), words[18:21], calls):
                theirs = timed(call, device)
                ratios[name].append(ours / theirs)
                rows.append((ours / theirs, ours, theirs, name, " ".join(words[:15]) + "  " + kernel))
    rows.sort(reverse=True)
    for ratio, ours, theirs, name, problem in rows[:40]:
        print(f"{ratio:6.2f}  {ours:9.1f} us  PyTorch {theirs:9.1f} us  {name:16s} {problem}")
    for name, values in ratios.items():
        print(f"{name:16s} geometric mean {geometric_mean(values):.3f}, above 1.5: {sum(v > 1.5 for v in values)} of {len(values)}")
    print(f"all              geometric mean {geometric_mean([r[0] for r in rows]):.3f}, largest {rows[0][0]:.2f}")


main()
