"""gpt2_on_paper.py BUILD [DOCUMENT]: what one training step of GPT-2 124M (bf16, 12 x 1024 tokens) launches on gfx90a, and what that takes
at best on one die of an MI250. The command trains on the stand-in for HIP's runtime, where nothing is computed, and the launches
are counted; bytes and operations come from the model's sizes, cycles of products from llvm-mca (kernels.txt). Prints a table, or
puts it between the marks of DOCUMENT."""
import collections
import os
import re
import subprocess
import sys
import tempfile

UNITS, CLOCK, BANDWIDTH = 104, 1.7e9, 1.6e12  # of a die; bytes a second
VECTOR = UNITS * 128 * CLOCK  # operations a second in f32 on ordinary cores
T, C, LAYERS, V, SEQUENCE, HEADS, D, PARAMETERS = 12 * 1024, 768, 12, 50257, 1024, 12, 64, 124439808
# Instructions of waves that a head of 1024 x 64, causal and in bf16, took in the emulator, all of 4 cycles but for MFMA's on their own pipe:
# forward; backward, both kernels and the sums of rows.
ATTENTION = 278048, 472568 + 312976 + 37952
ISSUE = 4  # cycles of the clock in one of llvm-mca, which an instruction takes
BLOCK_LOOP = 2 * 16 * 64  # cycles in which a SIMD makes the 16 MFMA of 64 cycles of two waves, one of each block on the unit


def launches(build, text, steps):
    """{kernel: launches} of a run of the command."""
    folder = tempfile.mkdtemp()
    log = os.path.join(folder, "launches")
    environment = dict(os.environ, TESSERA_HIP_RUNTIME=f"{build}/tests/amd/stand_in/libamdhip64.so.5", TESSERA_PLUGIN_DIR=build, EMULATOR_HOME="",
                       TESSERA_STAND_IN_LOG=log)
    command = [f"{build}/tessera", "train", "gpt", "--preset", "gpt2-124m", "--device", "hip:0", "--amp", "bf16", "--steps", str(steps),
               "--accumulation", "1", "--text", text, "--out", folder]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    with open(log) as file:
        names = [line.split()[2] for line in file]
    plain = subprocess.run(["c++filt"], check=True, capture_output=True, text=True, input="\n".join(names)).stdout
    for noise in ("tessera::gpu_kernels::", "tessera::tile::", "gpu::", "(anonymous namespace)::", "void "):
        plain = plain.replace(noise, "")
    return collections.Counter(line.split("(")[0] for line in plain.splitlines())


def products():
    """(m, n, k, parts of k) of each product in tiles."""
    for n, k, parts in ((3 * C, C, 3), (C, C, 5), (4 * C, C, 2), (C, 4 * C, 2)):  # as launched on 104 units
        for _ in range(LAYERS):
            yield from ((T, n, k, 1), (T, k, n, 1), (k, n, T, parts))
    yield from ((T, V, C, 1), (T, C, V, 1), (C, V, T, 1))


def product_work(loop):
    size = flops = cycles = 0
    for m, n, k, parts in products():
        blocks = -(-m // 128) * -(-n // 128) * parts
        flops += 2 * m * n * k
        size += 2 * (m * k + k * n) + (2 if parts == 1 else 4 * parts) * m * n
        cycles += -(-blocks // (2 * UNITS)) * -(-k // (32 * parts)) * max(loop * ISSUE, BLOCK_LOOP)
    return size, flops, cycles


def rows(loop):
    """(what, pattern of its kernels, bytes, operations, cycles or 0, and what takes them, or operations a second)"""
    act = T * C
    scores = SEQUENCE * SEQUENCE // 2 * D * HEADS * (T // SEQUENCE) * LAYERS
    joined = 4 * sum(m * n * parts for m, n, _, parts in products() if parts > 1)
    size, flops, cycles = product_work(loop)
    heads = HEADS * (T // SEQUENCE) * LAYERS * 4 / (4 * UNITS)  # on a SIMD, times the cycles of an instruction
    return [
        ("products, MFMA", "tiled_kernel", size, flops, cycles, "MFMA"),
        ("attention, MFMA: forward", "attention_forward", 8 * act * LAYERS, 4 * scores, round(heads * ATTENTION[0]), "instructions"),
        ("attention, MFMA: backward", "attention_(keys|queries|row_sums)", 24 * act * LAYERS, 14 * scores, round(heads * ATTENTION[1]), "instructions"),
        ("sums of parts of products", "join_kernel$", joined + 2 * 12 * C * C * LAYERS, joined // 4, 0, VECTOR),
        ("casts of activations and their gradients", "copy_kernel", 26 * 6 * act, 0, 0, VECTOR),
        ("residual sums and layer norms: forward", "row_kernel<(SumNorm|LayerNorm)", (24 * 12 + 8) * act, 25 * 9 * act, 0, VECTOR),
        ("the same: backward", "turns_kernel<NormBackward|weights_sum", 25 * 14 * act, 25 * 17 * act, 0, VECTOR),
        ("gradients of biases", "(reduce|join).*SumFold|add_kernel", 2 * 5 * act * LAYERS, 5 * act * LAYERS, 0, VECTOR),
        ("cross-entropy", "cross_entropy", 3 * 2 * T * V, 10 * T * V, 0, VECTOR),
        ("norm of the gradients", "squares_kernel|norm_kernel", 4 * PARAMETERS, 2 * PARAMETERS, 0, VECTOR),
        ("AdamW", "step_kernel|count_step", 30 * PARAMETERS, 15 * PARAMETERS, 0, VECTOR),
        ("embedding and its gradient", "take_kernel|.*entries|count_digits|sum_counts|(list|clear|sum_short|sum_long)_rows|find_starts", 5 * 4 * act, act, 0, VECTOR),
        ("scalars and the rest", "", 0, 0, 0, VECTOR),
    ]


def table(counts, loop):
    lines = ["| work | launches | GB | GFLOP | cycles (estimate) | at best, ms | bound by |", "|---|---|---|---|---|---|---|"]
    total = collections.Counter()
    for what, pattern, size, flops, cycles, rate in rows(loop):
        mine = [name for name in counts if re.match(pattern, name)]
        number = sum(counts.pop(name) for name in mine)
        times = {"memory": size / BANDWIDTH}
        times |= {rate: cycles / CLOCK} if cycles else {"ordinary cores": flops / rate}
        bound = max(times, key=times.get)
        total.update(launches=number, size=size, flops=flops, time=times[bound])
        lines.append(f"| {what} | {number} | {size / 1e9:.2f} | {flops / 1e9:.0f} | {round(times[bound] * CLOCK)} | {times[bound] * 1e3:.2f} | "
                     f"{bound if times[bound] else 'the launches'} |")
    lines.append(f"| all | {total['launches']} | {total['size'] / 1e9:.1f} | {total['flops'] / 1e9:.0f} | {round(total['time'] * CLOCK)} | "
                 f"{total['time'] * 1e3:.1f} | |")
    return "\n".join(lines)


def main():
    build = os.path.abspath(sys.argv[1])
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.txt")) as file:
        loop = max(int(cycles) for cycles in re.findall(r"(\d+)  tiled_kernel<HalfProduct<bf16>, Choice<128, ", file.read()))
    text = os.path.join(tempfile.mkdtemp(), "text")
    with open(text, "w") as file:
        file.write("".join(f"{i} bottles of beer on the wall\n" for i in range(20000)))
    counts = launches(build, text, 4)
    counts.subtract(launches(build, text, 3))
    lines = table(+counts, loop)
    if len(sys.argv) < 3:
        return print(lines)
    with open(sys.argv[2]) as file:
        document = file.read()
    mark, end = "<!-- gpt2_on_paper.py -->\n", "<!-- end -->"
    before, rest = document.split(mark)
    with open(sys.argv[2], "w") as file:
        file.write(before + mark + lines + "\n" + end + rest.split(end)[1])


main()
