"""PyTorch's time beside that of bench_convolutions, whose output is the argument: ratios ours / PyTorch, eager.

With the program as a second argument, ours is timed anew, in turns with PyTorch's: on a machine with other work.
The environment: BENCHMARK=1 lets cuDNN measure its algorithms, ROWS=40 says how many of the largest are shown,
and TESSERA_BENCH_CLOCK=process counts processor time, as in bench_convolutions. On the CPU, OMP_NUM_THREADS says how many threads."""
import math
import os
import subprocess
import sys
import time

import torch

TURNS = 2

now = time.process_time if os.environ.get("TESSERA_BENCH_CLOCK") == "process" else time.perf_counter


def timed(call, device):
    def passed(calls):
        begin = now()
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (now() - begin) * 1e6

    passed(2)
    calls = int(min(max((10000 if device == "cuda" else 1000) / passed(1), 1), 200))
    rounds = [passed(calls) for _ in range(5)]
    while sum(rounds) < 20000:
        rounds.append(passed(calls))
    return min(rounds) / calls


class Program:
    """bench_convolutions, which is asked for one convolution at a time."""

    def __init__(self, path):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([path, "-"], stdin=pipe, stdout=pipe, text=True)

    def times(self, problem):
        print(problem, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().split()[15:]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.backends.cudnn.benchmark = os.environ.get("BENCHMARK") == "1"
    print(torch.__version__, torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads")
    passes = ("forward", "input gradient", "weight gradient")
    ratios, rows = {p: [] for p in passes}, []
    program = Program(sys.argv[2]) if len(sys.argv) > 2 else None
    for line in open(sys.argv[1]):
        if line.startswith("#"):
            print(line.strip())
            continue
        words = line.split()
        problem = " ".join(words[:15])
        n, c, h, w, k, r, s, groups, s0, s1, p0, p1, d0, d1 = map(int, words[:14])
        layout = torch.channels_last if words[14] == "last" else torch.contiguous_format
        make = lambda *shape: torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)
        x, weight = make(n, c, h, w), make(k, c // groups, r, s)
        options = (s0, s1), (p0, p1), (d0, d1)
        forward = lambda: torch.nn.functional.conv2d(x, weight, None, *options, groups)
        dy = torch.randn_like(forward())
        backward = lambda mask: torch.ops.aten.convolution_backward(dy, x, weight, None, *options, False, (0, 0), groups, mask)
        calls = (forward, lambda: backward((True, False, False)), lambda: backward((False, True, False)))
        ours, kernels, theirs = list(map(float, words[15:18])), words[18:21], [math.inf] * 3
        with torch.no_grad():
            for turn in range(TURNS if program else 1):
                if program:
                    time.sleep(0.003)  # PyTorch's other threads wait for work a while
                    reply = program.times(problem)
                    kernels = reply[3:]
                    ours = [min(least, float(now)) for least, now in zip(ours if turn else theirs, reply)]
                theirs = [min(least, timed(call, device)) for least, call in zip(theirs, calls)]
        for name, kernel, our, their in zip(passes, kernels, ours, theirs):
            ratios[name].append(our / their)
            rows.append((our / their, our, their, name, f"{problem}  {kernel}"))
    rows.sort(reverse=True)
    for ratio, ours, theirs, name, problem in rows[:int(os.environ.get("ROWS", "40"))]:
        print(f"{ratio:6.2f}  {ours:9.1f} us  PyTorch {theirs:9.1f} us  {name:16s} {problem}")
    for name, values in ratios.items():
        print(f"{name:16s} geometric mean {geometric_mean(values):.3f}, above 1.5: {sum(v > 1.5 for v in values)} of {len(values)}")
    print(f"all              geometric mean {geometric_mean([r[0] for r in rows]):.3f}, largest {rows[0][0]:.2f}")


main()
