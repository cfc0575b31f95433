"""emulator.py WAVE_LOOP BASE CODE_BYTES BYTES: executes kernels of gfx90a for the stand-in of HIP's runtime (stand_in/card.cpp),
which asks in file 3, hears in file 4, and shares the card's memory in file 5. Instructions come from the emulator of CDNA in the
repository tinygrad/tinygrad (test/mockgpu/amd/emu.py there), whose checkout EMULATOR_HOME names. With TESSERA_EMULATOR_LOG, the
kernels that ran are appended to that file: launches, instructions of waves, cycles of shared memory and how many of them without a
bank that is asked twice, name."""
import ctypes
import importlib.util
import mmap
import os
import struct
import sys

REQUEST = struct.Struct("<QQ3I3II3I")  # descriptor, arguments, blocks, threads, shared; group, private and name's bytes
ENDED, BARRIER, UNKNOWN, SPENT = range(4)
MOST_INSTRUCTIONS = 1 << 33  # of a launch
WAVE = 64

# What the emulator's source, as of late 2026, gets wrong or cannot do: (theirs, ours).
CORRECTIONS = [
    # Register r of a lane's 32x32 result holds row 8 * (r / 4) + 4 * (lane / 32) + r % 4 (MI200 ISA, 7.1.4).
    ("c_grp * UOp.const(16, dtypes.int) + UOp.const((out_reg // 4) * 4 + out_reg % 4, dtypes.int)",
     "c_grp * UOp.const(4, dtypes.int) + UOp.const((out_reg // 4) * 8 + out_reg % 4, dtypes.int)"),
    # Registers from 128 on are upper halves to the 16-bit instructions of RDNA 3, not to those of CDNA.
    ("src0_hi = src0_off >= _c(384)", "src0_hi = src0_off >= _c(512)"),
    ("(vdst_reg >= _c(128))", "(vdst_reg >= _c(256))"),
    ("(vsrc1_reg >= _c(128))", "(vsrc1_reg >= _c(256))"),
    ("vsrc1_off >= _c(128)", "vsrc1_off >= _c(256)"),
]


def load_emulator(home):
    sys.path.insert(0, home)
    os.environ.setdefault("DEV", "CPU")
    spec = importlib.util.find_spec("test.mockgpu.amd.emu")
    with open(spec.origin) as file:
        source = file.read()
    for theirs, ours in CORRECTIONS:
        if theirs not in source:
            print(f"note: the emulator no longer says {theirs!r}", file=sys.stderr)
        source = source.replace(theirs, ours)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


class Step(ctypes.Structure):  # of wave.cpp
    _fields_ = [("call", ctypes.c_void_p), ("buffers", ctypes.c_uint32 * 6), ("barrier", ctypes.c_uint32)]


class Wave:
    """Registers of one wave, those of the emulator's buffers 0 (scalar), 1 (vector) and 5 (accumulation), and its scratch."""

    vectors = 256 * WAVE * 4

    def __init__(self, scalar_count):
        self.scalar_bytes = scalar_count * 4
        self.memory = mmap.mmap(-1, 2 * self.vectors + mmap.PAGESIZE + (WAVE << 16))
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.vector, self.accumulation, self.scalar = at, at + self.vectors, at + 2 * self.vectors
        self.scratch = self.scalar + mmap.PAGESIZE
        self.scalars = (ctypes.c_uint32 * scalar_count).from_address(self.scalar)


class Machine:
    def __init__(self, emulator, loop, base, code_bytes):
        self.emulator, self.base = emulator, base
        library = ctypes.CDLL(loop)
        self.loop, self.native = library.tessera_run_wave, library.tessera_native
        self.native.restype = ctypes.c_void_p
        self.count_banks, self.banks = library.tessera_bank_cycles, (ctypes.c_uint64 * 2)()
        self.table = mmap.mmap(-1, code_bytes // 4 * 8)  # a pointer to a Step for every four bytes of code
        self.steps = (ctypes.c_void_p * (code_bytes // 4)).from_buffer(self.table)
        self.known = {}  # what the instruction does -> Step
        self.waves = []
        self.lds = mmap.mmap(-1, 64 * 1024)
        self.first_scalars = self.initial_scalars()
        self.packet = (ctypes.c_char * 64)()  # what HSA's dispatch packet says
        self.budget = ctypes.c_int64()
        self.ran = {}  # kernel -> [launches, instructions, cycles of shared memory, of them ideal]

    def initial_scalars(self):
        """Inline constants, as the emulator lays them out behind the registers."""
        scalars = (ctypes.c_uint32 * self.emulator.SGPR_COUNT)()
        for i in range(65):
            scalars[128 + i] = i
        for i in range(16):
            scalars[193 + i] = -(i + 1) & 0xFFFFFFFF
        for at, value in self.emulator.F32_INLINE.items():
            scalars[at] = value
        return scalars

    def decode(self, pc):
        """The Step of the instruction at `pc`."""
        emulator = self.emulator
        if native := self.native(ctypes.c_uint64(pc)):
            return self.known.setdefault(native, Step(native, (ctypes.c_uint32 * 6)(*range(6)), False))
        code = bytearray((ctypes.c_char * 16).from_address(pc).raw)
        if code[3] == 0xD3 and code[2] in (0xE6, 0xE7):  # v_mfma of bf16_1k, of which the emulator knows gfx942's number
            code[2] -= 6
        instruction = emulator.decode_inst(bytes(code), "cdna")
        try:
            program, runtime = emulator._get_runner(bytes(code[:instruction.size() + 4]), "cdna")
        except Exception as error:
            raise RuntimeError(f"{instruction!r}: {type(error).__name__}: {error}") from error
        barrier = isinstance(instruction, emulator.irc.SOPP) and instruction.op in emulator._BARRIER_OPS
        key = ctypes.cast(runtime.fxn, ctypes.c_void_p).value, barrier
        if key not in self.known:
            buffers = list(program.arg.globals)
            self.known[key] = Step(key[0], (ctypes.c_uint32 * 6)(*buffers, *[0] * (6 - len(buffers))), barrier)
        return self.known[key]

    def start(self, wave, first, threads, descriptor, arguments, block):
        """The registers as a wave finds them (LLVM's guide for AMDGPU, "Initial Kernel Execution State")."""
        ctypes.memset(wave.vector, 0, 2 * wave.vectors)
        ctypes.memmove(wave.scalar, self.first_scalars, wave.scalar_bytes)
        private, = struct.unpack_from("<I", descriptor, 4)
        entry, = struct.unpack_from("<q", descriptor, 16)
        resources, properties = struct.unpack_from("<IH", descriptor, 52)
        user = []
        packet = ctypes.addressof(self.packet)
        for bit, values in enumerate(([0] * 4, [packet & 0xFFFFFFFF, packet >> 32], [0] * 2,
                                      [arguments & 0xFFFFFFFF, arguments >> 32])):
            user += values if properties >> bit & 1 else []
        at = resources >> 1 & 31
        wave.scalars[:len(user)] = user
        for dim in range(3):
            if resources >> 7 + dim & 1:
                wave.scalars[at] = block[dim]
                at += 1
        count = threads[0] * threads[1] * threads[2]
        lanes = min(WAVE, count - first)
        ids = [(t // (threads[0] * threads[1])) << 20 | (t // threads[0] % threads[1]) << 10 | t % threads[0]
               for t in range(first, first + lanes)]
        (ctypes.c_uint32 * lanes).from_address(wave.vector)[:] = ids
        active = (1 << lanes) - 1
        wave.scalars[126], wave.scalars[127] = active & 0xFFFFFFFF, active >> 32
        wave.scalars[self.emulator.SCRATCH_STRIDE_IDX] = private
        pc = self.descriptor_at + entry
        wave.scalars[256], wave.scalars[257] = pc & 0xFFFFFFFF, pc >> 32

    def run_block(self, waves, buffers, control):
        waiting = list(range(len(waves)))
        while waiting:
            going_on = []
            for w in waiting:
                while True:
                    reason = self.loop(self.steps, ctypes.c_uint64(self.base), buffers[w], ctypes.byref(self.budget), control)
                    if reason != UNKNOWN:
                        break
                    pc = waves[w].scalars[256] | waves[w].scalars[257] << 32
                    self.steps[(pc - self.base) // 4] = ctypes.addressof(self.decode(pc))
                if reason == SPENT:
                    raise RuntimeError("it does not come to an end")
                if reason == BARRIER:
                    going_on.append(w)
            waiting = going_on

    def launch(self, name, descriptor_at, arguments, blocks, threads, shared):
        self.descriptor_at = descriptor_at
        descriptor = (ctypes.c_char * 64).from_address(descriptor_at).raw
        mode, = struct.unpack_from("<I", descriptor, 48)
        control = 0x1F80 | (0 if mode >> 16 & 3 else 0x8040)  # what f32 does with subnormal numbers
        count = -(-threads[0] * threads[1] * threads[2] // WAVE)
        while len(self.waves) < count:
            self.waves.append(Wave(self.emulator.SGPR_COUNT))
        waves = self.waves[:count]
        lds = ctypes.addressof(ctypes.c_char.from_buffer(self.lds))
        buffers = [(ctypes.c_uint64 * 6)(w.scalar, w.vector, 0, lds, w.scratch, w.accumulation) for w in waves]
        grid = [b * t for b, t in zip(blocks, threads)]
        struct.pack_into("<HHHHHHIIIIIQQ", self.packet, 0, 0, 3, *threads, 0, *grid, 0, shared, descriptor_at, arguments)
        self.budget.value = MOST_INSTRUCTIONS
        self.count_banks(self.banks)
        before = list(self.banks)
        for z in range(blocks[2]):
            for y in range(blocks[1]):
                for x in range(blocks[0]):
                    ctypes.memset(lds, 0xFF, shared)
                    for w, wave in enumerate(waves):
                        self.start(wave, w * WAVE, threads, descriptor, arguments, (x, y, z))
                    self.run_block(waves, buffers, control)
        self.count_banks(self.banks)
        new = [1, MOST_INSTRUCTIONS - self.budget.value, *(now - then for now, then in zip(self.banks, before))]
        self.ran[name] = [a + b for a, b in zip(self.ran.get(name, [0] * 4), new)]


def share_memory(base, size):
    """The card's memory, at the address that it has in the other process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    fixed = 0x100000  # MAP_FIXED_NOREPLACE
    if libc.mmap(base, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | fixed, 5, 0) != base:
        raise OSError("cannot share the card's memory")


def main():
    loop, base, code_bytes, size = sys.argv[1], *map(int, sys.argv[2:5])
    share_memory(base, size)
    machine = Machine(load_emulator(os.environ["EMULATOR_HOME"]), loop, base, code_bytes)
    requests, replies = os.fdopen(3, "rb"), os.fdopen(4, "wb", buffering=0)
    while head := requests.read(REQUEST.size):
        descriptor, arguments, *rest = REQUEST.unpack(head)
        blocks, threads, (dynamic, group, _, length) = rest[:3], rest[3:6], rest[6:]
        name = requests.read(length).decode()
        fault = b""
        try:
            machine.launch(name, descriptor, arguments, blocks, threads, group + dynamic)
        except Exception as error:
            fault = str(error).encode() or b"unknown"
        replies.write(struct.pack("<I", len(fault)) + fault)
    if log := os.environ.get("TESSERA_EMULATOR_LOG"):
        with open(log, "a") as file:
            file.writelines(" ".join(map(str, numbers)) + f" {name}\n" for name, numbers in machine.ran.items())


if __name__ == "__main__":
    main()
