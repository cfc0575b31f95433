// The inner loop of emulator.py: one wave from instruction to instruction, each a function that the emulator compiled.
#include <xmmintrin.h>
#include <cstdint>

namespace {

constexpr uint64_t end_of_program = ~uint64_t{0};
constexpr int pc_low = 256;  // of the emulator's scalar registers, in buffer 0

enum Reason : int { Ended, Barrier, Unknown, Spent };

}  // namespace

extern "C" {

/// An instruction: its function, which of the buffers it takes, and whether the wave waits behind it for the block's
/// others.
struct Step {
  void (*call)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
  uint32_t buffers[6], barrier;
};

/// Runs until the wave ends or waits, or meets an instruction that `steps`, one for every four bytes from `base` on, do
/// not know yet. `budget` counts instructions down.
int tessera_run_wave(const Step* const* steps, uint64_t base, const uint64_t* buffers, int64_t* budget,
                     uint32_t control) {
  const auto* scalars = reinterpret_cast<const volatile uint32_t*>(buffers[0]);
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(control);
  int reason = Spent;
  while (*budget > 0) {
    const uint64_t pc = scalars[pc_low] | uint64_t{scalars[pc_low + 1]} << 32;
    if (pc == end_of_program) {
      reason = Ended;
      break;
    }
    const Step* step = steps[(pc - base) / 4];
    if (!step) {
      reason = Unknown;
      break;
    }
    const auto argument = [&](int i) { return buffers[step->buffers[i]]; };
    step->call(argument(0), argument(1), argument(2), argument(3), argument(4), argument(5));
    --*budget;
    if (step->barrier) {
      reason = Barrier;
      break;
    }
  }
  _mm_setcsr(before);
  return reason;
}

}  // extern "C"
