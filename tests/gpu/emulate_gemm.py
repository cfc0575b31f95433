"""emulate_gemm.py CODE_OBJECT: executes the kernels of cdna_gemm.hip in the emulator and compares them with float64."""
import ctypes
import os
import sys

if not os.environ.get("EMULATOR_HOME"):
    print("skipped: EMULATOR_HOME names no checkout with a CDNA emulator (docs/gpu.md)")
    sys.exit()
sys.dont_write_bytecode = True
import numpy as np

from emulator import CodeObject, load_emulator


class Args(ctypes.Structure):  # GemmArgs of gemm_kernels.h
    _fields_ = [(name, ctypes.c_void_p) for name in ("a", "b", "d0", "bias", "d")] + [
        (name, ctypes.c_int) for name in ("m", "n", "k", "lda", "ldb", "ldd")]


class Half:
    dtype, tolerance = np.float16, 5e-4

    @staticmethod
    def pack(x):
        return x.astype(np.float16)

    @staticmethod
    def unpack(x):
        return x.astype(np.float64)


class Bfloat:
    dtype, tolerance = np.uint16, 4e-3

    @staticmethod
    def pack(x):
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    @staticmethod
    def unpack(x):
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Single:
    dtype, tolerance = np.float32, 2e-6

    @staticmethod
    def unpack(x):
        return x.astype(np.float64)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relative_error(got, want):
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30)


def run(code, rng, kernel, m, n, k, pad):
    """One product with rows `pad` elements longer than needed; returns whether it is right."""
    kind = Bfloat if kernel.startswith("bf16") else Half
    fused, transposed_a, transposed_b = "gelu" in kernel, kernel[-2] == "t", kernel[-1] == "t"
    out = kind if fused else Single

    def random(rows, columns):
        return kind.pack(rng.standard_normal((rows, columns + pad)))

    a = random(k, m) if transposed_a else random(m, k)
    b = random(n, k) if transposed_b else random(k, n)
    d0, bias = random(m, n), random(1, n)
    d = np.full((m, n + pad), 77, out.dtype)
    args = Args(a.ctypes.data, b.ctypes.data, d0.ctypes.data, bias.ctypes.data, d.ctypes.data, m, n, k,
                a.shape[1], b.shape[1], d.shape[1])
    code.launch(kernel, -(-m // 128) * -(-n // 128), 256, args)

    left = kind.unpack(a)[:, :m].T if transposed_a else kind.unpack(a)[:, :k]
    right = kind.unpack(b)[:, :k].T if transposed_b else kind.unpack(b)[:, :n]
    want = left @ right
    if fused:
        want = gelu_tanh(want + kind.unpack(d0)[:, :n] + kind.unpack(bias)[:, :n])
    error = relative_error(out.unpack(d)[:, :n], want)
    untouched = bool((d[:, n:] == 77).all())
    good = error < out.tolerance and untouched
    print(f"{'ok ' if good else 'BAD'} {kernel:13} {m:4} x {n:4} x {k:4} pad {pad:2}  relative error {error:.1e}"
          + ("" if untouched else ", wrote outside the result"), flush=True)
    return good


def main():
    rng = np.random.default_rng(20260115)
    code = CodeObject(sys.argv[1], load_emulator(os.environ["EMULATOR_HOME"]))
    cases = [
        ("f16_nn", 33, 64, 40, 8), ("f16_nn", 1, 8, 8, 0), ("f16_nn", 130, 136, 104, 16),
        ("f16_nt", 33, 65, 40, 0), ("f16_nt", 257, 1, 64, 8), ("f16_nt", 127, 131, 32, 0),
        ("f16_tn", 40, 72, 37, 8), ("f16_tn", 136, 8, 1, 0), ("f16_tt", 40, 65, 40, 0), ("f16_tt", 128, 129, 96, 8),
        ("f16_any_nn", 33, 65, 41, 3), ("f16_any_nn", 1, 1, 1, 0), ("f16_any_nn", 131, 129, 67, 1),
        ("f16_half_nt", 37, 65, 44, 4), ("bf16_nn", 33, 64, 40, 8), ("bf16_nn", 129, 136, 72, 0),
        ("f16_gelu_nn", 33, 64, 40, 8), ("f16_gelu_nn", 131, 136, 40, 0),
        ("bf16_gelu_nt", 33, 65, 40, 0), ("bf16_gelu_nt", 129, 131, 72, 8),
    ]
    good = [run(code, rng, *case) for case in cases]
    print(f"{sum(good)} of {len(good)} right")
    sys.exit(0 if all(good) else 1)


main()
