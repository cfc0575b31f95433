// The checksum of what is kept in files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera {

/// 64-bit checksum of a stream of bytes. Each step is a bijection of the state and of the word, so that a change within
/// one aligned word is always noticed.
class Hash {
 public:
  void update(const void* data, size_t bytes) {
    const char* p = static_cast<const char*>(data);
    length_ += bytes;
    while (bytes > 0 && pending_ > 0) byte(*p++), --bytes;
    for (; bytes >= 8; p += 8, bytes -= 8) {
      uint64_t w;
      std::memcpy(&w, p, 8);
      word(w);
    }
    while (bytes > 0) byte(*p++), --bytes;
  }
  uint64_t value() const {
    Hash h = *this;
    h.word(h.partial_);
    h.word(h.length_);
    return h.state_;
  }

 private:
  void byte(char c) {
    partial_ |= uint64_t(static_cast<unsigned char>(c)) << (8 * pending_);
    if (++pending_ < 8) return;
    word(partial_);
    partial_ = pending_ = 0;
  }
  void word(uint64_t w) {
    state_ = (state_ ^ w) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 32;
  }
  uint64_t state_ = 0x243f6a8885a308d3u, length_ = 0, partial_ = 0, pending_ = 0;
};

}  // namespace tessera
