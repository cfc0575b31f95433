// Instructions of gfx90a that emulator.py does not leave to the emulator, which has no notion of lanes that take no
// part in an access, of accesses that are not aligned to words, and of the windows of shared and private memory (MI200
// ISA, 8 to 11).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tile/distribution.h"

namespace {

constexpr int wave_size = 64, exec_low = 126, pc_low = 256, private_bytes = 259;  // of the emulator's scalar registers
constexpr uint64_t shared_window = 0x10000, private_window = 0x20000;             // upper halves of addresses

uint32_t bits(uint32_t word, int from, int count) { return word >> from & ((1u << count) - 1); }

// The wave at the instruction that it executes.
struct Wave {
  uint32_t *scalar, *vector, *accumulation;
  char *lds, *scratch;
  uint64_t pc, active;
  uint32_t word[2];

  Wave(uint64_t s, uint64_t v, uint64_t lds, uint64_t scratch, uint64_t accumulation)
      : scalar(reinterpret_cast<uint32_t*>(s)),
        vector(reinterpret_cast<uint32_t*>(v)),
        accumulation(reinterpret_cast<uint32_t*>(accumulation)),
        lds(reinterpret_cast<char*>(lds)),
        scratch(reinterpret_cast<char*>(scratch)),
        pc(pair(pc_low)),
        active(pair(exec_low)) {
    std::memcpy(word, reinterpret_cast<const void*>(pc), sizeof word);
  }
  uint64_t pair(uint32_t r) const { return scalar[r] | uint64_t{scalar[r + 1]} << 32; }
  void set_pair(uint32_t r, uint64_t value) {
    scalar[r] = static_cast<uint32_t>(value);
    scalar[r + 1] = static_cast<uint32_t>(value >> 32);
  }
  void go_on(int words) { set_pair(pc_low, pc + words * 4); }
  uint32_t& v(uint32_t r, int lane) { return vector[r * wave_size + lane]; }
  uint32_t& data(bool accumulates, uint32_t r, int lane) {
    return (accumulates ? accumulation : vector)[r * wave_size + lane];
  }
  template <class Fn>
  void each_lane(const Fn& fn) const {
    for (int lane = 0; lane < wave_size; ++lane)
      if (active >> lane & 1) fn(lane);
  }
  char* shared(uint64_t at, int bytes) {
    if (at + bytes > 64 * 1024) std::fprintf(stderr, "beyond shared memory\n"), std::abort();
    return lds + at;
  }
  char* private_memory(uint64_t at, int lane) { return scratch + lane * scalar[private_bytes] + at; }
};

// What loads and stores of flat, global and buffer instructions move; bytes is 0 for those that are not known.
struct Access {
  int bytes = 0;
  bool stores = false, is_signed = false, keeps_half = false, high_half = false;
};

Access access_of(uint32_t op) {
  constexpr int sizes[] = {1, 1, 2, 2, 4, 8, 12, 16};
  if (op >= 16 && op < 24) return {sizes[op - 16], false, op == 17 || op == 19};
  if (op >= 24 && op < 28) return {op < 26 ? 1 : 2, true, false, false, op % 2 == 1};
  if (op >= 28 && op < 32) return {sizes[op - 24], true};
  if (op >= 32 && op < 38) return {op < 36 ? 1 : 2, false, op == 34 || op == 35, true, op % 2 == 1};
  return {};
}

void move(Wave& wave, const Access& access, bool accumulates, uint32_t reg, int lane, char* at) {
  uint32_t held[4] = {};
  const int words = (access.bytes + 3) / 4;
  if (access.stores) {
    for (int i = 0; i < words; ++i) held[i] = wave.data(accumulates, reg + i, lane);
    if (access.high_half) held[0] >>= 16;
    std::memcpy(at, held, access.bytes);
    return;
  }
  std::memcpy(held, at, access.bytes);
  if (access.is_signed)
    held[0] = static_cast<uint32_t>(access.bytes == 1 ? int32_t{static_cast<int8_t>(held[0])}
                                                      : int32_t{static_cast<int16_t>(held[0])});
  if (access.keeps_half) {
    const uint32_t before = wave.data(accumulates, reg, lane);
    held[0] = access.high_half ? (before & 0xFFFF) | held[0] << 16 : (before & 0xFFFF0000) | (held[0] & 0xFFFF);
  }
  for (int i = 0; i < words; ++i) wave.data(accumulates, reg + i, lane) = held[i];
}

#define BUFFERS uint64_t s, uint64_t v, uint64_t, uint64_t lds, uint64_t scratch, uint64_t accumulation
#define WAVE Wave wave(s, v, lds, scratch, accumulation)

constexpr uint32_t compare_and_swap = 65;

void flat(BUFFERS) {
  WAVE;
  const uint32_t op = bits(wave.word[0], 18, 7), segment = bits(wave.word[0], 14, 2),
                 address = bits(wave.word[1], 0, 8), source = bits(wave.word[1], 8, 8),
                 base = bits(wave.word[1], 16, 7), to = bits(wave.word[1], 24, 8);
  const bool accumulates = bits(wave.word[1], 23, 1), global = segment == 2, has_base = global && base != 0x7F;
  const int offset = global ? static_cast<int>(wave.word[0] << 19) >> 19 : static_cast<int>(bits(wave.word[0], 0, 12));
  const Access access = access_of(op);
  wave.each_lane([&](int lane) {
    uint64_t at = wave.v(address, lane) + offset;
    if (has_base) at += wave.pair(base);
    else at += uint64_t{wave.v(address + 1, lane)} << 32;
    char* memory = reinterpret_cast<char*>(at);
    if (!global && at >> 32 == shared_window) memory = wave.shared(at & 0xFFFFFFFF, access.bytes);
    if (!global && at >> 32 == private_window) memory = wave.private_memory(at & 0xFFFFFFFF, lane);
    if (op != compare_and_swap) return move(wave, access, accumulates, access.stores ? source : to, lane, memory);
    uint32_t before;
    std::memcpy(&before, memory, 4);
    if (before == wave.v(source + 1, lane)) std::memcpy(memory, &wave.v(source, lane), 4);
    if (bits(wave.word[0], 16, 1)) wave.v(to, lane) = before;
  });
  wave.go_on(2);
}

// Only private memory is reached by these in HIP's code, and the private segment begins at 0.
void buffer(BUFFERS) {
  WAVE;
  const Access access = access_of(bits(wave.word[0], 18, 7));
  wave.each_lane([&](int lane) {
    uint64_t at = bits(wave.word[0], 0, 12);
    if (bits(wave.word[0], 12, 1)) at += wave.v(bits(wave.word[1], 0, 8), lane);
    move(wave, access, bits(wave.word[1], 23, 1), bits(wave.word[1], 8, 8), lane, wave.private_memory(at, lane));
  });
  wave.go_on(2);
}

void scalar_load(BUFFERS) {
  WAVE;
  const bool immediate = bits(wave.word[0], 17, 1), by_register = bits(wave.word[0], 14, 1);
  uint64_t at = wave.pair(bits(wave.word[0], 0, 6) * 2);
  if (immediate) at += static_cast<int64_t>(static_cast<int32_t>(wave.word[1] << 11) >> 11);
  else at += wave.scalar[bits(wave.word[1], 0, 7)];
  if (immediate && by_register) at += wave.scalar[bits(wave.word[1], 25, 7)];
  std::memcpy(&wave.scalar[bits(wave.word[0], 6, 7)], reinterpret_cast<const void*>(at & ~uint64_t{3}),
              4u << bits(wave.word[0], 18, 8));
  wave.go_on(2);
}

// Shared memory: what an instruction moves, how many pieces, and in what units their offsets count.
struct SharedAccess {
  Access each;
  int pieces = 1, unit = 1;
};

SharedAccess shared_access_of(uint32_t op) {
  switch (op) {
    case 13:
      return {{4, true}};
    case 14:
      return {{4, true}, 2, 4};
    case 15:
      return {{4, true}, 2, 256};
    case 30:
      return {{1, true}};
    case 31:
      return {{2, true}};
    case 54:
      return {{4}};
    case 55:
      return {{4}, 2, 4};
    case 56:
      return {{4}, 2, 256};
    case 57:
      return {{1, false, true}};
    case 58:
      return {{1}};
    case 59:
      return {{2, false, true}};
    case 60:
      return {{2}};
    case 77:
      return {{8, true}};
    case 78:
      return {{8, true}, 2, 8};
    case 79:
      return {{8, true}, 2, 512};
    case 84:
      return {{1, true, false, false, true}};
    case 85:
      return {{2, true, false, false, true}};
    case 86:
    case 87:
      return {{1, false, false, true, op == 87}};
    case 90:
    case 91:
      return {{2, false, false, true, op == 91}};
    case 118:
      return {{8}};
    case 119:
      return {{8}, 2, 8};
    case 120:
      return {{8}, 2, 512};
    case 222:
      return {{12, true}};
    case 223:
      return {{16, true}};
    case 254:
      return {{12}};
    case 255:
      return {{16}};
    default:
      return {};
  }
}

constexpr uint32_t shared_add = 0, backward_permute = 63;

// Cycles that accesses to shared memory have taken, by the tile library's account of its banks: 32 of a word, each of
// which serves one word in a cycle, to whoever wants it.
uint64_t bank_cycles = 0, bank_cycles_ideal = 0;

void count_banks(uint64_t active, const uint32_t* at, int bytes, bool stores) {
  using tessera::tile::SharedMemory;
  const SharedMemory memory = stores ? SharedMemory::amd_write : SharedMemory::amd_read;
  uint32_t words[64][wave_size * 4 / 8];  // of each cycle
  int counts[64] = {};
  for (int lane = 0; lane < wave_size; ++lane) {
    if (!(active >> lane & 1)) continue;
    const int cycle = tessera::tile::shared_cycle(memory, lane, bytes);
    for (uint32_t word = at[lane] / 4; word <= (at[lane] + bytes - 1) / 4; ++word) {
      bool seen = false;
      for (int i = 0; i < counts[cycle]; ++i) seen = seen || words[cycle][i] == word;
      if (!seen && counts[cycle] < wave_size * 4 / 8) words[cycle][counts[cycle]++] = word;
    }
  }
  for (int cycle = 0; cycle < 64; ++cycle) {
    if (counts[cycle] == 0) continue;
    int load[32] = {}, worst = 0;
    for (int i = 0; i < counts[cycle]; ++i) {
      int& of_bank = load[words[cycle][i] % 32];
      worst = ++of_bank > worst ? of_bank : worst;
    }
    bank_cycles += worst;
    ++bank_cycles_ideal;
  }
}

void shared(BUFFERS) {
  WAVE;
  const uint32_t op = bits(wave.word[0], 17, 8), offset = bits(wave.word[0], 0, 16), address = bits(wave.word[1], 0, 8),
                 source = bits(wave.word[1], 8, 8), second = bits(wave.word[1], 16, 8), to = bits(wave.word[1], 24, 8);
  const bool accumulates = bits(wave.word[0], 25, 1);
  if (op == backward_permute) {
    uint32_t taken[wave_size] = {};
    wave.each_lane([&](int lane) {
      const int from = (wave.v(address, lane) + offset) / 4 % wave_size;
      taken[lane] = wave.active >> from & 1 ? wave.v(source, from) : 0;
    });
    wave.each_lane([&](int lane) { wave.v(to, lane) = taken[lane]; });
    return wave.go_on(2);
  }
  const SharedAccess access = shared_access_of(op);
  const int words = access.each.bytes / 4;
  uint32_t at[wave_size];  // an instruction may load to the register of its address
  wave.each_lane([&](int lane) { at[lane] = wave.v(address, lane); });
  for (int piece = 0; piece < access.pieces && op != shared_add; ++piece) {
    const uint32_t more = access.pieces == 1 ? offset : bits(offset, 8 * piece, 8) * access.unit;
    uint32_t places[wave_size];
    wave.each_lane([&](int lane) { places[lane] = at[lane] + more; });
    count_banks(wave.active, places, access.each.bytes, access.each.stores);
  }
  wave.each_lane([&](int lane) {
    if (op == shared_add) {
      uint32_t sum;
      char* memory = wave.shared(at[lane] + offset, 4);
      std::memcpy(&sum, memory, 4);
      sum += wave.v(source, lane);
      std::memcpy(memory, &sum, 4);
      return;
    }
    for (int piece = 0; piece < access.pieces; ++piece) {
      const uint32_t more = access.pieces == 1 ? offset : bits(offset, 8 * piece, 8) * access.unit;
      const uint32_t reg = access.each.stores ? (piece ? second : source) : to + piece * words;
      move(wave, access.each, accumulates, reg, lane, wave.shared(uint64_t{at[lane]} + more, access.each.bytes));
    }
  });
  wave.go_on(2);
}

void get_pc(BUFFERS) {
  WAVE;
  wave.set_pair(bits(wave.word[0], 16, 7), wave.pc + 4);
  wave.go_on(1);
}
void set_pc(BUFFERS) {
  WAVE;
  wave.set_pair(pc_low, wave.pair(bits(wave.word[0], 0, 8)));
}
void window(BUFFERS) {
  WAVE;
  const uint64_t upper = bits(wave.word[0], 0, 8) == 235 ? shared_window : private_window;
  wave.set_pair(bits(wave.word[0], 16, 7), upper << 32);
  wave.go_on(1);
}

// v_mad_f32, which gfx942, whose instructions the emulator knows, has no more: rounded twice.
void multiply_add(BUFFERS) {
  WAVE;
  const auto source = [&](int i, int lane) {
    const uint32_t from = bits(wave.word[1], 9 * i, 9);
    uint32_t raw = from >= 256 ? wave.v(from - 256, lane) : wave.scalar[from];
    if (bits(wave.word[0], 8 + i, 1)) raw &= 0x7FFFFFFF;
    if (bits(wave.word[1], 29 + i, 1)) raw ^= 0x80000000;
    float value;
    std::memcpy(&value, &raw, 4);
    return value;
  };
  wave.each_lane([&](int lane) {
    const volatile float product = source(0, lane) * source(1, lane);
    const float sum = product + source(2, lane);
    std::memcpy(&wave.v(bits(wave.word[0], 0, 8), lane), &sum, 4);
  });
  wave.go_on(2);
}

// v_div_fixup_f16: of quotient, denominator and numerator.
void fix_quotient(BUFFERS) {
  WAVE;
  wave.each_lane([&](int lane) {
    const auto source = [&](int i) {
      const uint32_t from = bits(wave.word[1], 9 * i, 9);
      return (from >= 256 ? wave.v(from - 256, lane) : wave.scalar[from]) & 0xFFFF;
    };
    constexpr uint32_t infinite = 0x7C00, quiet = 0x200, none = 0xFE00;
    const uint32_t below = source(1) & 0x7FFF, above = source(2) & 0x7FFF, sign = (source(1) ^ source(2)) & 0x8000;
    uint32_t value = sign | (source(0) & 0x7FFF);
    if (above > infinite) value = source(2) | quiet;
    else if (below > infinite) value = source(1) | quiet;
    else if ((below == 0 && above == 0) || (below == infinite && above == infinite)) value = none;
    else if (below == infinite || above == 0) value = sign;
    else if (below == 0 || above == infinite) value = sign | infinite;
    wave.v(bits(wave.word[0], 0, 8), lane) = value;
  });
  wave.go_on(2);
}

// v_fma_mix_f32, v_fma_mixlo_f16 and v_fma_mixhi_f16: each operand is f32, or one half of a register.
void mixed_multiply_add(BUFFERS) {
  WAVE;
  const uint32_t halves = bits(wave.word[1], 27, 2) | bits(wave.word[0], 14, 1) << 2;
  const auto source = [&](int i, int lane) {
    const uint32_t from = bits(wave.word[1], 9 * i, 9);
    const uint32_t raw = from >= 256 ? wave.v(from - 256, lane) : wave.scalar[from];
    float value;
    std::memcpy(&value, &raw, 4);
    if (halves >> i & 1 && (from < 240 || from > 248)) {
      const auto half = static_cast<uint16_t>(raw >> (bits(wave.word[0], 11 + i, 1) ? 16 : 0));
      _Float16 narrow;
      std::memcpy(&narrow, &half, 2);
      value = static_cast<float>(narrow);
    }
    if (bits(wave.word[0], 8 + i, 1)) value = __builtin_fabsf(value);
    return bits(wave.word[1], 29 + i, 1) ? -value : value;
  };
  wave.each_lane([&](int lane) {
    const float sum = __builtin_fmaf(source(0, lane), source(1, lane), source(2, lane));
    uint32_t& to = wave.v(bits(wave.word[0], 0, 8), lane);
    const uint32_t op = bits(wave.word[0], 16, 7);
    if (op == 32) std::memcpy(&to, &sum, 4);
    const auto narrow = static_cast<_Float16>(sum);
    if (op != 32) std::memcpy(reinterpret_cast<char*>(&to) + (op == 34 ? 2 : 0), &narrow, 2);
  });
  wave.go_on(2);
}

// v_mfma for edge x edge sums: of floats, of halves where the operands are, or of i8 where the sums are integers.
struct MatrixProduct {
  int edge = 0, bytes = 0;
  bool brain = false;
};
MatrixProduct matrix_product_of(uint32_t op) {
  const int edge = op % 2 ? 16 : 32;
  switch (op & ~1u) {
    case 0x44:
      return {edge, 4};
    case 0x4C:
      return {edge, 2};
    case 0x54:
      return {edge, 1};
    case 0x66:
      return {edge, 2, true};
    default:
      return {};
  }
}
float element(const MatrixProduct& kind, uint32_t word, int place, float) {
  const auto half = static_cast<uint16_t>(word >> place * 16);
  if (kind.bytes == 2 && (half & (kind.brain ? 0x7F80 : 0x7C00)) == 0) return 0;  // as are subnormal numbers
  if (kind.bytes == 2 && !kind.brain) {
    _Float16 narrow;
    std::memcpy(&narrow, &half, 2);
    return static_cast<float>(narrow);
  }
  const uint32_t raw = kind.bytes == 4 ? word : uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &raw, 4);
  return value;
}
int32_t element(const MatrixProduct&, uint32_t word, int place, int32_t) {
  return static_cast<int8_t>(word >> place * 8);
}

// Element e of the left operand in a lane: row lane % edge, k held (lane / edge) + e; of the right one the column; of
// the sums: row 256 / edge (e / 4) + 4 (lane / edge) + e % 4, column lane % edge (MI200 ISA, 7.1.4).
template <class Sum>
void multiply_matrices(Wave& wave, const MatrixProduct& kind) {
  const int edge = kind.edge, held = kind.bytes == 4 ? 1 : 4, in_word = 4 / kind.bytes, depth = held * wave_size / edge;
  const auto operand = [&](int i, int line, int k) {
    const uint32_t first = bits(wave.word[1], 9 * i, 8) + k % held / in_word;
    return element(kind, wave.data(bits(wave.word[1], 27 + i, 1), first, k / held * edge + line), k % in_word, Sum{});
  };
  Sum left[32][16], right[32][16], sums[16][wave_size];
  for (int line = 0; line < edge; ++line)
    for (int k = 0; k < depth; ++k) left[line][k] = operand(0, line, k), right[line][k] = operand(1, line, k);
  const bool accumulates = bits(wave.word[0], 15, 1);
  const uint32_t start = bits(wave.word[1], 18, 9), to = bits(wave.word[0], 0, 8);
  for (int r = 0; r < edge * edge / wave_size; ++r)
    for (int lane = 0; lane < wave_size; ++lane) {
      const uint32_t raw = start >= 256 ? wave.data(accumulates, start - 256 + r, lane) : wave.scalar[start];
      std::memcpy(&sums[r][lane], &raw, 4);
      const int row = 256 / edge * (r / 4) + 4 * (lane / edge) + r % 4;
      for (int k = 0; k < depth; ++k) sums[r][lane] += left[row][k] * right[lane % edge][k];
    }
  for (int r = 0; r < edge * edge / wave_size; ++r)
    for (int lane = 0; lane < wave_size; ++lane) std::memcpy(&wave.data(accumulates, to + r, lane), &sums[r][lane], 4);
  wave.go_on(2);
}
void matrix_product(BUFFERS) {
  WAVE;
  const MatrixProduct kind = matrix_product_of(bits(wave.word[0], 16, 7));
  if (kind.bytes == 1) multiply_matrices<int32_t>(wave, kind);
  else multiply_matrices<float>(wave, kind);
}

}  // namespace

/// Cycles that accesses to shared memory have taken so far, and what they would have taken had no bank been asked
/// twice.
extern "C" void tessera_bank_cycles(uint64_t* cycles) {
  cycles[0] = bank_cycles;
  cycles[1] = bank_cycles_ideal;
}

/// The function for the instruction at `pc`, or null where the emulator's is to be used.
extern "C" void* tessera_native(uint64_t pc) {
  uint32_t word[2];
  std::memcpy(word, reinterpret_cast<const void*>(pc), sizeof word);
  const uint32_t encoding = word[0] >> 26, op = bits(word[0], 18, 7);
  using Function = void (*)(BUFFERS);
  Function found = nullptr;
  if (encoding == 0x37 && (access_of(op).bytes || op == compare_and_swap) && bits(word[0], 14, 2) != 1) found = flat;
  if (encoding == 0x38 && access_of(op).bytes && word[1] >> 24 == 128 && !bits(word[0], 13, 1)) found = buffer;
  if (encoding == 0x30 && bits(word[0], 18, 8) < 5) found = scalar_load;
  if (encoding == 0x36) {
    const uint32_t shared_op = bits(word[0], 17, 8);
    if (shared_op == shared_add || shared_op == backward_permute || shared_access_of(shared_op).each.bytes)
      found = shared;
  }
  if (word[0] >> 23 == 0x17D) {  // one operand, scalar
    const uint32_t scalar_op = bits(word[0], 8, 8), source = bits(word[0], 0, 8);
    if (scalar_op == 28) found = get_pc;
    if (scalar_op == 29) found = set_pc;
    if (scalar_op == 1 && (source == 235 || source == 237)) found = window;
  }
  if (word[0] >> 16 == 0xD1C1 && bits(word[1], 27, 2) == 0) found = multiply_add;
  if (word[0] == (0xD2070000 | bits(word[0], 0, 8)) && word[1] >> 27 == 0) found = fix_quotient;
  if (word[0] >> 23 == 0x1A7) {
    const MatrixProduct kind = matrix_product_of(bits(word[0], 16, 7));
    if (kind.edge && (kind.bytes == 1 || bits(word[1], 27, 2))) found = matrix_product;
  }
  if (word[0] >> 23 == 0x1A7 && !bits(word[0], 15, 1) && bits(word[0], 16, 7) >= 32 && bits(word[0], 16, 7) <= 34)
    found = mixed_multiply_add;
  return reinterpret_cast<void*>(found);
}
