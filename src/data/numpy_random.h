// NumPy's default_rng(seed) for the draws that an order of samples needs: PCG64 (O'Neill 2014, XSL-RR 128/64) seeded by
// SeedSequence, bounded integers after Lemire (2019); shuffles go from the end and draw under a mask until one fits.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);
  uint64_t next64();
  /// Halves of 64 bits, the lower one first.
  uint32_t next32();
  /// From 0 to `most`, both included.
  uint64_t up_to(uint64_t most);
  /// From `low` to below `high`.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(up_to(static_cast<uint64_t>(high - low - 1)));
  }
  /// In [0, 1), of 53 bits.
  double real() { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  template <class T>
  void shuffle(std::span<T> items) {
    uint64_t mask = std::bit_ceil(items.size()) - 1;
    for (size_t i = items.size(); i-- > 1;) {
      while (mask >> 1 >= i) mask >>= 1;
      std::swap(items[i], items[under(mask, i)]);
    }
  }
  /// So many different numbers below `population`, as Generator.choice(population, count, replace=False) has them.
  /// Throws Error if there are not so many.
  std::vector<int64_t> choose(int64_t population, int64_t count);

 private:
  /// From 0 to `most`, by draws of the mask's bits.
  uint64_t under(uint64_t mask, uint64_t most) {
    uint64_t out;
    do out = (most <= UINT32_MAX ? next32() : next64()) & mask;
    while (out > most);
    return out;
  }

  unsigned __int128 state_, increment_;
  uint32_t half_ = 0;
  bool has_half_ = false;
};

inline uint64_t NumpyRandom::next64() {
  constexpr auto multiplier = static_cast<unsigned __int128>(0x2360ed051fc65da4) << 64 | 0x4385df649fccf645;
  state_ = state_ * multiplier + increment_;
  const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const auto turn = static_cast<unsigned>(state_ >> 122);
  return folded >> turn | folded << (-turn & 63);
}

inline uint32_t NumpyRandom::next32() {
  if (has_half_) return has_half_ = false, half_;
  const uint64_t both = next64();
  half_ = static_cast<uint32_t>(both >> 32);
  has_half_ = true;
  return static_cast<uint32_t>(both);
}

inline uint64_t NumpyRandom::up_to(uint64_t most) {
  if (most == 0) return 0;
  if (most < UINT32_MAX) {
    const auto count = static_cast<uint32_t>(most + 1);
    uint64_t product = uint64_t{next32()} * count;
    if (static_cast<uint32_t>(product) < count) {
      const uint32_t least = (UINT32_MAX - static_cast<uint32_t>(most)) % count;
      while (static_cast<uint32_t>(product) < least) product = uint64_t{next32()} * count;
    }
    return product >> 32;
  }
  if (most == UINT32_MAX) return next32();
  if (most == UINT64_MAX) return next64();
  const uint64_t count = most + 1;
  auto product = static_cast<unsigned __int128>(next64()) * count;
  if (static_cast<uint64_t>(product) < count) {
    const uint64_t least = (UINT64_MAX - most) % count;
    while (static_cast<uint64_t>(product) < least) product = static_cast<unsigned __int128>(next64()) * count;
  }
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace tessera
