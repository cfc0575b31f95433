"""check_plugin.py PLUGIN TARGET [RECORD [--record]]: looks into the machine code of all kernels of libtessera_hip.so, or of a code
object. Matrix kernels multiply by MFMA where the target has it, no kernel but those that sample uses memory of its own in
scratch, none has more than 64 KiB of LDS, and a compute unit (of gfx90a) has the registers for one block of each and for two
waves on a SIMD of matrix kernels. Loops of matrix kernels fetch ahead and in wide accesses (pipeline_faults). Prints a line for
each kernel, with llvm-mca's estimate for its main loop, all of it, and what differs from RECORD; --record writes it."""
import collections
import re
import struct
import subprocess
import sys
import tempfile

MATRIX = re.compile(r"(Half|Float)Product|attention_(forward|keys|queries)_kernel")
# Tiles that fill the LDS, or rows that fill the registers: one block, of a wave for each SIMD.
ONE_WAVE = re.compile(r"attention_keys_kernel<.*, 128>|attention_(forward|queries)_kernel<float, 128>")
MATRIX_TARGETS = re.compile(r"gfx(908|90a|94)")
Kernel = collections.namedtuple("Kernel", "threads registers spilled scratch lds loop cycles")


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


def code_objects(path, target):
    """The code for the target in each of clang's bundles."""
    with open(path, "rb") as file:
        plugin = file.read()
    if plugin[:4] == b"\x7fELF" and plugin[18] == 224:  # EM_AMDGPU
        yield plugin
    magic = b"__CLANG_OFFLOAD_BUNDLE__"
    at = plugin.find(magic)
    while at >= 0:
        entry = at + len(magic) + 8
        for _ in range(struct.unpack_from("<Q", plugin, at + len(magic))[0]):
            offset, size, length = struct.unpack_from("<QQQ", plugin, entry)
            if plugin[entry + 24:entry + 24 + length].decode().endswith("--" + target) and size:
                yield plugin[at + offset:at + offset + size]
            entry += 24 + length
        at = plugin.find(magic, at + 1)


def resources(path):
    """{kernel: {name: number}} from the notes of a code object."""
    found, kernels = {}, {}
    for key, value in re.findall(r"\.(\w+): +(\S+)", output("llvm-readelf-19", "--notes", path)):
        found[key] = value
        if key == "wavefront_size":  # the last one of a kernel
            kernels[found["symbol"].removesuffix(".kd")] = found
            found = {}
    return kernels


def main_loop(code):
    """Of (address, instruction, target of a branch): the instructions of the longest loop without a loop in it; where matrices are
    multiplied, of those that do, and without one in it that does."""
    body = lambda loop: [i for at, i, _ in code if loop[0] <= at <= loop[1] and not re.match("s_c?branch", i)]
    loops = sorted({(target, at) for at, _, target in code if target is not None and target <= at})
    multiply = [loop for loop in loops if any(i.startswith("v_mfma") for i in body(loop))]
    loops = multiply or loops
    inner = [loop for loop in loops if not any(o != loop and o[0] >= loop[0] and o[1] <= loop[1] for o in loops)]
    return max(map(body, inner), key=len, default=[])


def disassembled(path):
    """{kernel: [(address, instruction, target of a branch)]}"""
    kernels, code, start = {}, [], 0
    line_of = re.compile(r"\s+(\S.*?)\s*// ([0-9A-F]{12}):(?: [0-9A-F]{8})+(?: <\S+\+0x([0-9a-f]+)>)?")
    for line in output("llvm-objdump-19", "-d", path).splitlines():
        if label := re.match(r"([0-9a-f]+) <(\w+)>:", line):
            start, code = int(label[1], 16), kernels.setdefault(label[2], [])
        elif found := line_of.match(line):
            code.append((int(found[2], 16), found[1], start + int(found[3], 16) if found[3] else None))
    return kernels


def estimates(loops, target):
    """Cycles of an iteration of each loop, by llvm-mca; 0 where there is no loop, or llvm-mca fails on it."""
    text = "".join(f"# LLVM-MCA-BEGIN {i}\n" + "\n".join(loop) + "\n# LLVM-MCA-END\n" for i, loop in enumerate(loops) if loop)
    command = ["llvm-mca-19", "-mtriple=amdgcn-amd-amdhsa", f"-mcpu={target}", "-iterations=10", "-instruction-info=0",
               "-resource-pressure=0"]
    result = subprocess.run(command, capture_output=True, text=True, input=text)
    if result.returncode and len(loops) > 1:  # one by one
        return [estimates([loop], target)[0] for loop in loops]
    told = result.stdout
    cycles = {int(i): int(n) / 10 for i, n in re.findall(r"Code Region - (\d+)\n.*?Total Cycles: +(\d+)", told, re.S)}
    return [cycles.get(i, 0) for i in range(len(loops))]


def all_kernels(plugin, target):
    """{demangled name: Kernel}"""
    names, kernels = [], []
    for code in code_objects(plugin, target):
        with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
            file.write(code)
            file.flush()
            known, texts = resources(file.name), disassembled(file.name)
        loops = [main_loop(texts[name]) for name in known]
        for (name, note), loop, estimate in zip(known.items(), loops, estimates(loops, target)):
            code = [i for _, i, _ in texts[name]]
            uses_scratch = any(re.match("buffer_|scratch_|flat_", i) for i in code)  # else its slots are left over
            names.append(name)
            kernels.append(Kernel(int(note["max_flat_workgroup_size"]), int(note["vgpr_count"]), int(note["sgpr_spill_count"]),
                                  uses_scratch * int(note["private_segment_fixed_size"]), int(note["group_segment_fixed_size"]),
                                  [i.split()[0] for i in loop], estimate))
    plain = output("c++filt", input="\n".join(names)).splitlines()
    for noise in ("tessera::gpu_kernels::", "tessera::tile::", "gpu::", "(anonymous namespace)::", "void "):
        plain = [name.replace(noise, "") for name in plain]
    plain = [re.sub(r"\(\w+\)(?=\d)", "", name).split("(")[0] for name in plain]  # nor values of enumerations
    return list(zip(plain, kernels))


def waves(kernel):
    """What a SIMD, with 512 registers for each lane in units of 8, has room for."""
    return min(8, 512 // max(8, -(-kernel.registers // 8) * 8))


def pipeline_faults(name, loop):
    """How a loop that multiplies matrices moves its operands: from shared memory 16 bytes at a time, and from global memory 16, or 8 where
    rows of images or heads are not aligned to more; only convolutions whose neighbours are none in memory (of packs of 1) take
    elements. In products a tile is asked for before the one in shared memory is multiplied, put into the other half behind that, and
    then the waves meet, once."""
    tiled, product = name.startswith("tiled_kernel"), re.match("tiled_kernel|implicit_mma_kernel", name)
    places = lambda pattern: [at for at, i in enumerate(loop) if re.match(pattern, i)]
    multiply = places("v_mfma")
    if not places("ds_read_b128") or (product and len(places("ds_read")) != len(places("ds_read_b128"))):
        yield "operands are read from shared memory in less than 16 bytes"
    wide = places("global_load_dwordx4" if tiled else "global_load_dwordx[24]")
    if not re.fullmatch("implicit_mma_kernel<.*, 1>", name) and (not wide or product and len(wide) != len(places("global_load"))):
        yield f"operands are read from global memory in less than {16 if tiled else 8} bytes"
    if product and (max(places("global_load")) > multiply[0] or min(places("ds_write"), default=0) < multiply[-1]):
        yield "the next tile is not fetched while this one is multiplied"
    if product and len(places("s_barrier")) != 1:
        yield "waves do not wait for each other once a tile"


# Known to keep the taps of a point, which loops index, in scratch: to be unrolled.
SAMPLES = re.compile(r"GridSources|^grid_grad_kernel")


def faults_of(name, kernel, target):
    matrix = any(i.startswith("v_mfma") for i in kernel.loop)
    if matrix != bool(MATRIX.search(name) and MATRIX_TARGETS.match(target)):
        yield "MFMA in its loop" if matrix else "no MFMA in its loop"
    elif matrix:
        yield from pipeline_faults(name, kernel.loop)
    if kernel.scratch and not SAMPLES.search(name):
        yield f"{kernel.scratch} bytes of scratch"
    if kernel.lds > 64 * 1024:
        yield f"{kernel.lds} bytes of LDS"
    needed = max(-(-kernel.threads // 256), 2 if matrix and not ONE_WAVE.search(name) else 1)  # a block lies on four SIMDs
    if target == "gfx90a" and waves(kernel) < needed:
        yield f"{kernel.registers} registers: room for {waves(kernel)} waves on a SIMD, not {needed}"


def table(kernels):
    """{name: numbers}, both as they are printed; kernels of several units that share a name are numbered."""
    lines = {}
    for name, kernel in sorted(kernels):
        copies = sum(known == name or known.startswith(name + " #") for known in lines)
        numbers = (kernel.registers, kernel.spilled, waves(kernel), kernel.lds, kernel.scratch, round(kernel.cycles))
        lines[f"{name} #{copies + 1}" if copies else name] = "".join(f"{number:6d}" for number in numbers)
    return lines


def compare(lines, record):
    with open(record) as file:
        before = {line[36:].strip(): line[:36] for line in file.read().splitlines()[1:]}
    changed = [name for name in sorted(before.keys() | lines.keys()) if before.get(name) != lines.get(name)]
    for name in changed:
        print(f"differs from {record}: {name}:{before.get(name, ' none')}, now{lines.get(name, ' none')}")
    print(f"{len(changed)} of {len(lines)} kernels differ from {record}")


def main():
    plugin, target, *record = sys.argv[1:]
    versions = {code[8] + 2 for code in code_objects(plugin, target)}  # EI_ABIVERSION
    kernels = all_kernels(plugin, target)
    lines = table(kernels)
    text = "\n".join([" regs spill waves  LDS scratch cycles", *(f"{lines[name]}  {name}" for name in lines)])
    print(f"{len(kernels)} kernels for {target}: registers of a lane (of 512), scalars that have no registers and lie in those, waves for "
          "which a SIMD has registers, bytes of LDS (those that a launch asks for not among them) and of scratch, llvm-mca's estimate "
          "for an iteration of the main loop, loads and waits included, of one wave alone, in cycles of an instruction, four of the clock:")
    print(text)
    if record[1:] == ["--record"]:
        with open(record[0], "w") as file:
            file.write(text + "\n")
    if record:
        compare(lines, record[0])
    faults = [f"{name}: {fault}" for name, kernel in kernels for fault in faults_of(name, kernel, target)]
    if "libamdhip64" in output("llvm-readelf-19", "--needed-libs", plugin):
        faults.append("a version of HIP's runtime is linked, and others are not taken")
    faults += [f"code objects of version {version}, which Debian's runtime does not load" for version in versions - {4}]
    print("\n".join(f"BAD {fault}" for fault in faults) or "all as planned")
    sys.exit(1 if faults or not kernels else 0)


main()
