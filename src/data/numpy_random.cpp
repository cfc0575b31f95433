#include "data/numpy_random.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tessera/error.h"

namespace tessera {
namespace {

// SeedSequence, NumPy's form of O'Neill's seed_seq: 32-bit words are hashed into a pool of four, and it into any
// number.
class SeedSequence {
 public:
  explicit SeedSequence(uint64_t seed) {
    const uint32_t words[] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
    uint32_t constant = 0x43b0d7e5;
    const auto hash = [&](uint32_t value) {
      value ^= constant;
      constant *= 0x931e8875;
      value *= constant;
      return value ^ value >> 16;
    };
    for (size_t i = 0; i < 4; ++i) pool_[i] = hash(words[i]);
    for (size_t from = 0; from < 4; ++from)
      for (size_t to = 0; to < 4; ++to) {
        if (from == to) continue;
        const uint32_t mixed = 0xca01f9dd * pool_[to] - 0x4973f715 * hash(pool_[from]);
        pool_[to] = mixed ^ mixed >> 16;
      }
  }

  uint64_t next64() {
    const uint64_t low = next32();
    return low | uint64_t{next32()} << 32;
  }

 private:
  uint32_t next32() {
    uint32_t value = pool_[next_++ % 4] ^ constant_;
    constant_ *= 0x58f38ded;
    value *= constant_;
    return value ^ value >> 16;
  }

  std::array<uint32_t, 4> pool_;
  uint32_t constant_ = 0x8b51f9dd;
  size_t next_ = 0;
};

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  SeedSequence words(seed);
  const auto next128 = [&] {
    const auto high = static_cast<unsigned __int128>(words.next64()) << 64;
    return high | words.next64();
  };
  const unsigned __int128 start = next128();
  increment_ = next128() << 1 | 1;
  state_ = 0;
  next64();
  state_ += start;
  next64();
}

std::vector<int64_t> NumpyRandom::choose(int64_t population, int64_t count) {
  if (count < 0 || count > population) throw Error(fmt::format("random: {} of {} numbers", count, population));
  const int64_t first = population - count;
  const auto shuffle_from = [&](std::vector<int64_t>& numbers,
                                int64_t least) {  // draws bounded numbers, unlike shuffle()
    for (int64_t i = static_cast<int64_t>(numbers.size()) - 1; i >= least; --i)
      std::swap(numbers[static_cast<size_t>(i)], numbers[up_to(static_cast<uint64_t>(i))]);
  };
  if (population > 10000 && count > population / 50) {  // the end of a shuffle
    std::vector<int64_t> all(static_cast<size_t>(population));
    std::iota(all.begin(), all.end(), int64_t{0});
    shuffle_from(all, std::max<int64_t>(first, 1));
    return {all.begin() + first, all.end()};
  }
  std::vector<int64_t> out;  // Floyd's algorithm (Bentley & Floyd 1987)
  std::vector<bool> taken(static_cast<size_t>(population));
  for (int64_t i = first; i < population; ++i) {
    auto drawn = static_cast<int64_t>(up_to(static_cast<uint64_t>(i)));
    if (taken[static_cast<size_t>(drawn)]) drawn = i;
    taken[static_cast<size_t>(drawn)] = true;
    out.push_back(drawn);
  }
  shuffle_from(out, 1);
  return out;
}

}  // namespace tessera
