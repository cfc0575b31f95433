"""Executes kernels of a gfx90a code object on the CPU, in the CDNA emulator of the repository tinygrad/tinygrad
(test/mockgpu/amd/emu.py there), whose checkout the environment variable EMULATOR_HOME names."""
import ctypes
import importlib.util
import mmap
import os
import struct
import sys


def load_emulator(home):
    """The function run_asm of the emulator, with the row order of 32x32 results that the hardware has: register r of a
    lane holds row 8 * (r / 4) + 4 * (lane / 32) + r % 4 (Instinct MI200 instruction set architecture, 7.1.4)."""
    sys.path.insert(0, home)
    os.environ.setdefault("DEV", "CPU")
    spec = importlib.util.find_spec("test.mockgpu.amd.emu")
    with open(spec.origin) as file:
        source = file.read()
    theirs = "c_grp * UOp.const(16, dtypes.int) + UOp.const((out_reg // 4) * 4 + out_reg % 4, dtypes.int)"
    if source.count(theirs) == 1:
        source = source.replace(theirs, "c_grp * UOp.const(4, dtypes.int) + UOp.const((out_reg // 4) * 8 + out_reg % 4, dtypes.int)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module.run_asm


class CodeObject:
    """An ELF code object in executable form; kernels are found by name."""

    def __init__(self, path, run_asm):
        self.run_asm = run_asm
        with open(path, "rb") as file:
            elf = file.read()
        program_at, section_at = struct.unpack_from("<QQ", elf, 0x20)
        program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", elf, 0x36)
        segments = [struct.unpack_from("<IIQQQQQQ", elf, program_at + i * program_size) for i in range(program_count)]
        loads = [s for s in segments if s[0] == 1]  # type, flags, offset, address, -, size in file, size in memory, -
        self.memory = mmap.mmap(-1, max(s[3] + s[6] for s in loads) + mmap.PAGESIZE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for _, flags, offset, address, _, size, _, _ in loads:
            code = elf[offset:offset + size]
            self.memory[address:address + size] = self.translated(code) if flags & 1 else code
        sections = [struct.unpack_from("<IIQQQQIIQQ", elf, section_at + i * section_size) for i in range(section_count)]
        self.symbols = {}
        for section in (s for s in sections if s[1] == 11):  # dynamic symbols: offset 4, size 5, strings in 6
            strings = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], 24):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                text = elf[strings + name:elf.index(b"\0", strings + name)].decode()
                self.symbols[text] = value

    @staticmethod
    def translated(code):
        """v_mfma_f32_32x32x8bf16_1k has opcode 0x66 on gfx90a; the emulator knows it by that of gfx942, 0x60."""
        words = list(struct.unpack(f"<{len(code) // 4}I", code))
        return struct.pack(f"<{len(words)}I", *(w & 0xFFE0FFFF if w >> 16 == 0xD3E6 else w for w in words))

    def launch(self, name, grid, block, args):
        """Runs kernel `name`, whose one parameter is the structure `args` (ctypes), for `grid` blocks of `block` threads."""
        at = self.symbols[name + ".kd"]  # kernel descriptor: LLVM's AMDGPU usage guide, "Code Object V3 Kernel Descriptor"
        shared, scratch, _, _, entry = struct.unpack_from("<IIIIq", self.memory, at)
        resources, properties = struct.unpack_from("<IH", self.memory, at + 52)
        address = ctypes.addressof(args)
        registers = []
        for bit, values in enumerate(([0] * 4, [0] * 2, [0] * 2, [address & 0xFFFFFFFF, address >> 32])):
            registers += values if properties >> bit & 1 else []
        registers += [0] * ((resources >> 1 & 31) - len(registers))
        resources = resources & ~(0x1FF << 15) | (shared + 511) // 512 << 15
        self.run_asm(self.base + at + entry, 1 << 24, grid, 1, 1, block, 1, 1, address, resources, scratch, "cdna", registers)
