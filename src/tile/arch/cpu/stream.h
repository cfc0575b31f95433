// Results that no cache would hold until they are read: written past the caches. Else each line of memory is read
// first, only to be overwritten, and drives others out.
#pragma once

#include "../../simd.h"

TESSERA_TILE_BEGIN
namespace cpu {

/// Results of so many bytes are.
inline constexpr i64 streamed_bytes = 6 << 20;

/// Copies bytes past the caches; `from` stays in one. Other threads see them after fence().
inline void stream(void* to, const void* from, i64 bytes) {
  auto* t = static_cast<char*>(to);
  auto* f = static_cast<const char*>(from);
#if TESSERA_X86
  constexpr i64 line = 64;
  const i64 head = min(bytes, -reinterpret_cast<i64>(t) & (line - 1));
  __builtin_memcpy(t, f, head);
  for (t += head, f += head, bytes -= head; bytes >= line; t += line, f += line, bytes -= line) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(t), _mm512_loadu_si512(f));
#else
    TESSERA_UNROLL
    for (int i = 0; i < line; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(t + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(f + i)));
#endif
  }
#endif
  __builtin_memcpy(t, f, bytes);
}

inline void fence() {
#if TESSERA_X86
  _mm_sfence();
#endif
}

}  // namespace cpu
TESSERA_TILE_END
