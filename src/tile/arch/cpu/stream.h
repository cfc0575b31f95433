// Results that no cache would hold until they are read: written past the caches. Else each line of memory is read
// first, only to be overwritten, and drives others out.
#pragma once

#include "../../expr.h"

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

/// One vector, whose place is aligned as it is.
template <class V>
inline void stream(element_t<V>* to, V v) {
#if TESSERA_X86 && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64)
    return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(v.v));
#elif TESSERA_X86 && defined(__AVX2__)
  if constexpr (sizeof(V) == 32)
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(v.v));
#endif
  store(to, v);
}

/// An epilogue that writes rows of whole vectors past the caches.
template <class T, class E>
struct StreamRows {
  using IsExpression = void;
  T* data;
  i64 pitch;
  E value;
  template <class R>
  struct Row {
    T* to;
    R value;
    template <class V, class Lanes>
    TESSERA_HD V operator()(V a, i64 n, Lanes lanes) const {
      const V v = value(a, n, lanes);
      if constexpr (is_same_v<Lanes, AllLanes>) cpu::stream(to + n, v);
      else store(to + n, v, lanes);
      return v;
    }
  };
  template <bool Unit = false>
  TESSERA_HD auto row(i64 m) const {
    return Row<decltype(value.template row<Unit>(m))>{data + m * pitch, value.template row<Unit>(m)};
  }
  template <class F>
  TESSERA_HD void views(const F& f) const {
    value.views(f);
  }
};
template <class T, Expression E>
StreamRows<T, E> stream_rows(T* data, i64 pitch, E value) {
  return {data, pitch, value};
}

inline void fence() {
#if TESSERA_X86
  _mm_sfence();
#endif
}

}  // namespace cpu
TESSERA_TILE_END
