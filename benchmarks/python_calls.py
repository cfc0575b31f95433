#!/usr/bin/env python3
"""What Python costs, beside PyTorch in the same run: `import`, and calls on one element. Medians, interleaved.

usage: PYTHONPATH=build/python benchmarks/python_calls.py      # torch must be there for its column
"""
import os
import statistics
import subprocess
import sys
import timeit

import tessera

try:
    import torch
except ImportError:
    torch = None

CALLS = {
    "add(a, b)": "m.add(a, b)", "a + b": "a + b", "a + 1.5": "a + 1.5", "a.exp()": "a.exp()", "a.reshape((1, 1))": "a.reshape((1, 1))",
    "a.sum()": "a.sum()", "a[0]": "a[0]", "a + b, recorded": "r + b",
}


def operands(module):
    return {"m": module, "a": module.ones(1), "b": module.ones(1), "r": module.ones(1, requires_grad=True)}


def per_call(code, names, count=20000):
    return timeit.timeit(code, globals=names, number=count) / count * 1e6


def import_ms(module):
    code = f"import time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main():
    print(f"load {os.getloadavg()[0]:.1f}; µs a call")
    modules = [tessera] + ([torch] if torch else [])
    scopes = [operands(m) for m in modules]
    for name, code in CALLS.items():
        rounds = [[per_call(code, scope) for scope in scopes] for _ in range(9)]
        medians = [statistics.median(column) for column in zip(*rounds)]
        ratio = f"   {medians[0] / medians[1]:5.2f}" if torch else ""
        print(f"{name:20}" + "".join(f"{m:8.3f}" for m in medians) + ratio)
    for module in modules:
        print(f"import {module.__name__}: {statistics.median(import_ms(module.__name__) for _ in range(5)):.1f} ms")


if __name__ == "__main__":
    main()
