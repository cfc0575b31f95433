"""check_code.py gfx90a|sm90a CODE_OBJECT TOOL...: looks into the machine code of the GEMM kernels. The main loop of each, the
innermost one with matrix instructions, must also load, wait at a barrier and read shared memory; nothing may spill.
TOOL...: llvm-objdump and llvm-readelf for gfx90a, nvdisasm for sm90a."""
import collections
import re
import subprocess
import sys

Instruction = collections.namedtuple("Instruction", "address name target")

# What the main loop of each pipeline is made of.
MAIN_LOOP = {
    "gfx90a": {"v_mfma": 16, "ds_read_b128": 4, "global_load": 4, "ds_write": 4, "s_barrier": 1},
    "gfx90a, 16 x 16": {"v_mfma": 8, "ds_read_b128": 4, "global_load": 2, "ds_write": 2, "s_barrier": 1},
    "sm90a": {"HMMA.16816.F32": 64, "LDSM.16": 16, "LDGSTS": 8, "BAR.SYNC": 1},
}
# All of the matrix instructions of a kernel of gfx90a, by the start of its name.
MFMA = {"f16x16": "f32_16x16x16f16", "bf16x16": "f32_16x16x16bf16_1k", "f32x16": "f32_16x16x4f32", "i8x16": "i32_16x16x16i8",
        "f16": "f32_32x32x8f16", "bf16": "f32_32x32x8bf16_1k", "f32": "f32_32x32x2f32", "i8": "i32_32x32x8i8"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def gfx90a_kernels(path, objdump):
    """{kernel: [Instruction]} of an AMD code object."""
    kernels = {}
    for line in output(objdump, "-d", path).splitlines():
        if label := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            start = None
            code = kernels.setdefault(label[1], [])
        elif found := re.match(r"\s+(\S+).*// ([0-9A-F]{12}): \S+(?:.*<\w+\+0x([0-9a-f]+)>)?", line):
            address = int(found[2], 16)
            start = address if start is None else start
            code.append(Instruction(address, found[1], start + int(found[3], 16) if found[3] else None))
    return kernels


def sm90a_kernels(path, nvdisasm):
    """{kernel: [Instruction]} of a cubin."""
    kernels, labels, code = {}, {}, []
    for line in output(nvdisasm, path).splitlines():
        if section := re.match(r"\.section\s+\.text\.(\w+)", line.strip()):
            code = kernels.setdefault(section[1], [])
        elif label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = code[-1].address + 16 if code else 0
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)(?:.*\((\.L\w+)\))?", line):
            code.append(Instruction(int(found[1], 16), found[2], found[3]))
    return {name: [i._replace(target=labels.get(i.target)) for i in code] for name, code in kernels.items()}


def main_loop(code, matrix):
    """The instructions of the shortest loop that holds most matrix instructions."""
    best, most = [], 0
    for branch in code:
        if branch.target is None or branch.target > branch.address:
            continue
        body = [i for i in code if branch.target <= i.address <= branch.address]
        count = sum(i.name.startswith(matrix) for i in body)
        if count > most or (count == most and count and len(body) < len(best)):
            best, most = body, count
    return best


def gfx90a_resources(path, readelf):
    """{kernel: {name: number}} from the notes of an AMD code object."""
    resources, found = {}, {}
    for key, value in re.findall(r"\.(\w+): +(\S+)", output(readelf, "--notes", path)):
        if key in ("group_segment_fixed_size", "private_segment_fixed_size", "vgpr_count", "vgpr_spill_count"):
            found[key] = int(value)
        elif key == "symbol":
            name = value.removesuffix(".kd")
        if key == "wavefront_size":  # the last one of a kernel
            resources[name], found = found, {}
    return resources


def main():
    target, path, *tools = sys.argv[1:]
    kernels = (gfx90a_kernels if target == "gfx90a" else sm90a_kernels)(path, tools[0])
    faults = [] if kernels else ["no kernels"]
    for name, code in kernels.items():
        wanted = MAIN_LOOP["gfx90a, 16 x 16" if "x16_" in name else target]
        body = main_loop(code, next(iter(wanted)))
        needed = {i: n for i, n in wanted.items() if not (i == "LDGSTS" and "_any_" in name)}  # cp.async moves 4 bytes
        counts = {start: sum(i.name.startswith(start) for i in body) for start in needed}
        print(f"{name}: main loop of {len(body)} instructions, " + ", ".join(f"{n} {i}" for i, n in counts.items()))
        faults += [f"{name}: {counts[i]} {i} in the main loop, not {n}" for i, n in needed.items() if counts[i] < n]
        mfma = {i.name for i in code if i.name.startswith("v_mfma")}
        faults += [f"{name}: {i}" for i in mfma - {"v_mfma_" + MFMA.get(name.split("_")[0], "")}]
        spills = [i.name for i in code if re.match(r"(scratch_|LDL|STL)", i.name)]
        faults += [f"{name}: memory for spills"] if spills else []
    if target == "gfx90a":
        for name, found in gfx90a_resources(path, tools[1]).items():
            print(f"{name}: {found}")
            if found["private_segment_fixed_size"] or found["vgpr_spill_count"]:
                faults.append(f"{name}: memory for spills")
            if found["group_segment_fixed_size"] > 64 * 1024:
                faults.append(f"{name}: more than 64 KiB of shared memory")
            if found["vgpr_count"] > 168:
                faults.append(f"{name}: too many registers for three waves on a SIMD")
    print("\n".join(faults) or f"{len(kernels)} kernels as planned")
    sys.exit(1 if faults else 0)


main()
