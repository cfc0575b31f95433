"""PyTorch's time beside that of bench_convolutions, whose output is the argument: ratios ours / PyTorch, eager.

With the program as a second argument, ours is timed anew, in turns with PyTorch's: on a machine with other work.
The environment: BENCHMARK=1 lets cuDNN measure its algorithms, ROWS=40 says how many of the largest are shown,
and TESSERA_BENCH_CLOCK=process counts processor time, as in bench_convolutions. On the CPU, OMP_NUM_THREADS says how many threads.
PyTorch runs in a process of its own ("-" as the argument), so that a convolution that ends it costs only that line."""
import math
import os
import subprocess
import sys
import time

TURNS = 2
PASSES = ("forward", "input gradient", "weight gradient")

now = time.process_time if os.environ.get("TESSERA_BENCH_CLOCK") == "process" else time.perf_counter


class Torch:
    """PyTorch's three passes of a convolution."""

    def __init__(self):
        import torch
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.backends.cudnn.benchmark = os.environ.get("BENCHMARK") == "1"

    def name(self):
        place = self.torch.cuda.get_device_name() if self.device == "cuda" else f"{self.torch.get_num_threads()} threads"
        return f"{self.torch.__version__} {place}"

    def timed(self, call):
        def passed(calls):
            begin = now()
            for _ in range(calls):
                call()
            if self.device == "cuda":
                self.torch.cuda.synchronize()
            return (now() - begin) * 1e6

        passed(2)
        calls = int(min(max((10000 if self.device == "cuda" else 1000) / passed(1), 1), 200))
        rounds = [passed(calls) for _ in range(5)]
        while sum(rounds) < 20000:
            rounds.append(passed(calls))
        return min(rounds) / calls

    def times(self, problem):
        torch, words = self.torch, problem.split()
        n, c, h, w, k, r, s, groups, s0, s1, p0, p1, d0, d1 = map(int, words[:14])
        layout = torch.channels_last if words[14] == "last" else torch.contiguous_format
        make = lambda *shape: torch.randn(shape, device=self.device, dtype=self.dtype).to(memory_format=layout)
        x, weight = make(n, c, h, w), make(k, c // groups, r, s)
        options = (s0, s1), (p0, p1), (d0, d1)
        forward = lambda: torch.nn.functional.conv2d(x, weight, None, *options, groups)
        dy = torch.randn_like(forward())
        backward = lambda mask: torch.ops.aten.convolution_backward(dy, x, weight, None, *options, False, (0, 0), groups, mask)
        calls = (forward, lambda: backward((True, False, False)), lambda: backward((False, True, False)))
        with torch.no_grad():
            return [self.timed(call) for call in calls]


class Program:
    """A program that is asked for one convolution at a time, and is begun again where it ended."""

    def __init__(self, *command):
        self.command, self.process = command, None

    def line(self):
        return self.process.stdout.readline()

    def begin(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, problem):
        """The words of its answer; none where it ended."""
        if self.process is None:
            self.begin()
        print(problem, file=self.process.stdin, flush=True)
        words = self.line().split()
        if not words:
            self.process = None
        return words


class Peer(Program):
    def __init__(self):
        super().__init__(sys.executable, __file__, "-")
        self.name = ""

    def begin(self):
        super().begin()
        self.name = self.line().strip()


def answer():
    peer = Torch()
    print(peer.name(), flush=True)
    for problem in sys.stdin:
        print(*peer.times(problem), flush=True)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def compare(line, program, peer):
    """Our times and kernels, and PyTorch's times; None where that ended."""
    words = line.split()
    problem = " ".join(words[:15])
    ours, kernels, theirs = list(map(float, words[15:18])), words[18:21], [math.inf] * 3
    for turn in range(TURNS if program else 1):
        if program:
            time.sleep(0.003)  # PyTorch's other threads wait for work a while
            reply = program.ask(problem)
            if not reply:
                raise RuntimeError(f"bench_convolutions ended at {problem}")
            kernels = reply[18:]
            ours = [min(least, float(now)) for least, now in zip(ours if turn else theirs, reply[15:18])]
        reply = peer.ask(problem)
        if not reply:
            return None
        theirs = [min(least, float(now)) for least, now in zip(theirs, reply)]
    return problem, ours, kernels, theirs


def main():
    ratios, rows, lost = {p: [] for p in PASSES}, [], []
    program, peer = Program(sys.argv[2], "-") if len(sys.argv) > 2 else None, Peer()
    for line in open(sys.argv[1]):
        if line.startswith("#"):
            print(line.strip(), flush=True)
            continue
        answers = compare(line, program, peer)
        if answers is None:
            lost.append(line.strip())
            continue
        problem, ours, kernels, theirs = answers
        for name, kernel, our, their in zip(PASSES, kernels, ours, theirs):
            ratios[name].append(our / their)
            rows.append((our / their, our, their, name, f"{problem}  {kernel}"))
    rows.sort(reverse=True)
    print(peer.name)
    for ratio, ours, theirs, name, problem in rows[:int(os.environ.get("ROWS", "40"))]:
        print(f"{ratio:6.2f}  {ours:9.1f} us  PyTorch {theirs:9.1f} us  {name:16s} {problem}")
    for line in lost:
        print(f"PyTorch ended at {line}")
    for name, values in ratios.items():
        print(f"{name:16s} geometric mean {geometric_mean(values):.3f}, above 1.5: {sum(v > 1.5 for v in values)} of {len(values)}")
    print(f"all              geometric mean {geometric_mean([r[0] for r in rows]):.3f}, largest {rows[0][0]:.2f}")


answer() if sys.argv[1] == "-" else main()
