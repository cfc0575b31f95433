// Lines of shared memory that threads fill with several neighbours each, and of which others read single elements.
#pragma once
#include "../../distribution.h"
#include "block.h"

TESSERA_TILE_BEGIN

/// `Count` neighbours from shared memory, up to 16 bytes by one instruction; `from` is a multiple of their size.
template <int Count, class T>
TESSERA_HD Pack<T, Count> load_chunk(const T* from) {
  Pack<T, Count> chunk;            // copied as bytes: of elements, clang would make loads of their own
  const void* const bytes = from;  // nvcc fails on other pointers below
  __builtin_memcpy(&chunk, __builtin_assume_aligned(bytes, sizeof chunk), sizeof chunk);
  return chunk;
}
template <int Count, class T>
TESSERA_HD void store_chunk(T* to, const Pack<T, Count>& chunk) {
  void* const bytes = to;
  __builtin_memcpy(__builtin_assume_aligned(bytes, sizeof chunk), &chunk, sizeof chunk);
}

/// Lines, aligned to 16 bytes, of which every thread moves Held neighbours in chunks of up to 16 bytes. Chunks of a
/// thread are permuted, so that neither they nor reads of single elements by neighbouring threads meet a bank twice.
template <class T, int Held>
struct SharedLine {
  static constexpr int chunk = min(Held, max(1, 16 / static_cast<int>(sizeof(T)))), chunks = Held / chunk;
  static_assert((chunks & (chunks - 1)) == 0 && chunks <= 8 && chunks * chunk == Held);

  /// Where element j lies.
  static constexpr TESSERA_HD int place(int j) { return j ^ j / (8 * chunk) % chunks * chunk; }

  /// Elements j, a multiple of Held, and those behind it.
  static TESSERA_HD void store(T* line, int j, const T (&values)[Held]) {
    unroll<chunks>([&](auto c) {
      Pack<T, chunk> pack;
      unroll<chunk>([&](auto i) { pack.lane[i] = values[c * chunk + i]; });
      store_chunk(line + place(j + c * chunk), pack);
    });
  }
  static TESSERA_HD void load(const T* line, int j, T (&values)[Held]) {
    unroll<chunks>([&](auto c) {
      const auto pack = load_chunk<chunk>(line + place(j + c * chunk));
      unroll<chunk>([&](auto i) { values[c * chunk + i] = pack.lane[i]; });
    });
  }

  /// Asked by tests, since every unit would take seconds to answer.
  static constexpr TESSERA_HD bool meets_no_bank_twice() {
    const auto free = [](const auto& layout, SharedMemory memory) {
      return bank_use(layout, memory, sizeof(T), [](const auto& c) { return place(c[0]); }).is_conflict_free();
    };
    constexpr auto held = named("j", lanes(64) * repeat(chunks) * vec(chunk)), single = named("j", lanes(64));
    return free(held, SharedMemory::amd_write) && free(held, SharedMemory::amd_read) &&
           free(single, SharedMemory::amd_read);
  }
};

TESSERA_TILE_END
