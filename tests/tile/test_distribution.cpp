// Distributions: who holds what, operand layouts of matrix instructions, reductions, bank conflicts and
// drawings.
#include "tile/distribution.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "tile/ascii.h"
#include "tile/descriptor.h"
#include "tile/matrix_layout.h"

namespace tessera::tile {
namespace {

struct Block {
  static constexpr auto layout() { return named("mn", repeat(4, 1) * warps(2, 2) * lanes(16, 4) * vec(1, 8)); }
};
constexpr auto block = Block::layout();

TEST(Distribution, CountsFollowFromTheFactors) {
  static_assert(block.registers() == 32 && block.vector() == 8);
  static_assert(block.lanes() == 64 && block.warps() == 4 && block.threads() == 256);
  static_assert(block.length(0) == 128 && block.length(1) == 64);
  static_assert(block.dim('m') == 0 && block.dim('n') == 1 && block.dim('k') == -1);
  static_assert(lanes(8, 4).vector() == 1 && (vec(1, 4) * lanes(8, 4)).vector() == 1, "only a vec at the end");
}

TEST(Distribution, CoordinatesOfAThreadsRegister) {
  // Warp 3 is (1, 1), lane 21 is (5, 1), register 10 is repetition 1, element 2.
  constexpr auto c = block.coords(3 * 64 + 21, 10);
  static_assert(c[0] == 1 * 32 + 1 * 16 + 5 && c[1] == 1 * 32 + 1 * 8 + 2);
  constexpr auto owner = block.owner(c);
  static_assert(owner.thread == 3 * 64 + 21 && owner.reg == 10);
}

template <int Rank>
void check_bijection(const Distribution<Rank>& d) {
  std::set<std::pair<int, int>> owners;
  int elements = 1;
  for (int i = 0; i < Rank; ++i) elements *= d.length(i);
  ASSERT_EQ(elements, d.threads() * d.registers());
  for (int thread = 0; thread < d.threads(); ++thread) {
    for (int reg = 0; reg < d.registers(); ++reg) {
      const auto c = d.coords(thread, reg);
      for (int i = 0; i < Rank; ++i) {
        ASSERT_GE(c[i], 0);
        ASSERT_LT(c[i], d.length(i));
      }
      const Owner owner = d.owner(c);
      ASSERT_EQ(owner.thread, thread);
      ASSERT_EQ(owner.reg, reg);
    }
  }
}

TEST(Distribution, EveryElementHasOneOwner) {
  check_bijection(block);
  check_bijection(repeat(3, 1, 2) * lanes(1, 5, 7) * warps(2, 1, 1) * vec(1, 1, 3));  // odd sizes, three dimensions
  check_bijection(lanes(1, 2) * lanes(16, 1) * repeat(2, 2) * vec(1, 4));
  check_bijection(vec(1, 1));
  check_bijection(MmaSync16x8x16::A::layout());
  check_bijection(MmaSync16x8x16::B::layout());
  check_bijection(MmaSync16x8x16::C::layout());
  check_bijection(MmaSync16x8x8::A::layout());
  check_bijection(MmaSync16x8x8::B::layout());
  check_bijection(MmaSync16x8x8Tf32::A::layout());
  check_bijection(MmaSync16x8x8Tf32::B::layout());
  check_bijection(Wgmma64<24>::C::layout());
  check_bijection(Mfma32x32x8::A::layout());
  check_bijection(Mfma32x32x8::C::layout());
  check_bijection(Mfma16x16x16::A::layout());
  check_bijection(Mfma16x16x16::C::layout());
}

// The manuals' formulas for lane t and element i of an operand: (row, column) of A and C, (k, n) of B.
template <class Layout, class Row, class Column>
void check_operand(int lanes, int registers, Row row, Column column, bool transposed = false) {
  constexpr auto d = Layout::layout();
  ASSERT_EQ(d.lanes(), lanes);
  ASSERT_EQ(d.registers(), registers);
  for (int t = 0; t < lanes; ++t) {
    for (int i = 0; i < registers; ++i) {
      const auto c = d.coords(t, i);
      ASSERT_EQ(c[transposed ? 1 : 0], row(t, i)) << "lane " << t << " element " << i;
      ASSERT_EQ(c[transposed ? 0 : 1], column(t, i)) << "lane " << t << " element " << i;
    }
  }
}

TEST(MatrixLayout, MmaSync16x8x16) {
  check_operand<MmaSync16x8x16::A>(
      32, 8, [](int t, int i) { return t / 4 + (i < 2 || (i >= 4 && i < 6) ? 0 : 8); },
      [](int t, int i) { return t % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8); });
  check_operand<MmaSync16x8x16::B>(
      32, 4, [](int t, int i) { return t % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8); }, [](int t, int) { return t / 4; },
      true);
  check_operand<MmaSync16x8x16::C>(
      32, 4, [](int t, int i) { return t / 4 + (i < 2 ? 0 : 8); }, [](int t, int i) { return t % 4 * 2 + (i & 1); });
}

TEST(MatrixLayout, MmaSync16x8x8) {
  check_operand<MmaSync16x8x8::A>(
      32, 4, [](int t, int i) { return t / 4 + (i < 2 ? 0 : 8); }, [](int t, int i) { return t % 4 * 2 + (i & 1); });
  check_operand<MmaSync16x8x8::B>(
      32, 2, [](int t, int i) { return t % 4 * 2 + i; }, [](int t, int) { return t / 4; }, true);
  check_operand<MmaSync16x8x8Tf32::A>(
      32, 4, [](int t, int i) { return t / 4 + (i % 2 == 0 ? 0 : 8); },
      [](int t, int i) { return t % 4 + (i < 2 ? 0 : 4); });
  check_operand<MmaSync16x8x8Tf32::B>(
      32, 2, [](int t, int i) { return t % 4 + 4 * i; }, [](int t, int) { return t / 4; }, true);
}

TEST(MatrixLayout, Mfma) {
  check_operand<Mfma32x32x8::A>(
      64, 4, [](int t, int) { return t % 32; }, [](int t, int i) { return t / 32 * 4 + i; });
  check_operand<Mfma32x32x8::B>(
      64, 4, [](int t, int i) { return t / 32 * 4 + i; }, [](int t, int) { return t % 32; }, true);
  check_operand<Mfma32x32x8::C>(
      64, 16, [](int t, int i) { return 8 * (i / 4) + 4 * (t / 32) + i % 4; }, [](int t, int) { return t % 32; });
  check_operand<Mfma16x16x16::A>(
      64, 4, [](int t, int) { return t % 16; }, [](int t, int i) { return t / 16 * 4 + i; });
  check_operand<Mfma16x16x16::B>(
      64, 4, [](int t, int i) { return t / 16 * 4 + i; }, [](int t, int) { return t % 16; }, true);
  check_operand<Mfma16x16x16::C>(
      64, 4, [](int t, int i) { return 4 * (t / 16) + i; }, [](int t, int) { return t % 16; });
}

TEST(MatrixLayout, WgmmaAccumulator) {
  constexpr auto d = Wgmma64<24>::C::layout();
  static_assert(d.registers() == 12 && d.warps() == 4);
  for (int t = 0; t < 128; ++t) {
    for (int i = 0; i < 12; ++i) {
      const auto c = d.coords(t, i);
      ASSERT_EQ(c[0], t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8);
      ASSERT_EQ(c[1], i / 4 * 8 + t % 4 * 2 + i % 2);
    }
  }
}

TEST(Distribution, LoweredPartsAddUp) {
  int next_register = 0;
  for_each_register<Block>([&](auto r, auto m, auto n) {
    EXPECT_EQ(r, next_register++);
    for (int thread = 0; thread < block.threads(); thread += 37) {
      const auto base = thread_coords<Block>(thread), c = block.coords(thread, r);
      EXPECT_EQ(base[0] + m, c[0]);
      EXPECT_EQ(base[1] + n, c[1]);
    }
  });
  EXPECT_EQ(next_register, 32);
  static_assert(register_coords<Block>(8)[0] == 32 && register_coords<Block>(3)[1] == 3);
}

TEST(Distribution, LoopNestVisitsEveryElementOnce) {
  std::set<std::pair<int, int>> seen;
  for_each_element<MmaSync16x8x16::A>([&](int thread, auto r, int m, int k) {
    const Owner owner = MmaSync16x8x16::A::layout().owner({m, k});
    EXPECT_EQ(owner.thread, thread);
    EXPECT_EQ(owner.reg, r);
    EXPECT_TRUE(seen.emplace(m, k).second);
  });
  EXPECT_EQ(seen.size(), 256u);
}

TEST(Distribution, ReductionOverADimension) {
  constexpr auto rows = MmaSync16x8x16::C::layout().reduction(1);  // over n: the four lanes of a row
  static_assert(rows.registers == 2 && rows.mask_count == 2 && rows.masks[0] == 1 && rows.masks[1] == 2);
  constexpr auto columns = MmaSync16x8x16::C::layout().reduction(0);
  static_assert(columns.registers == 2 && columns.mask_count == 3 && columns.masks[2] == 16 && columns.warps == 1);
  static_assert(block.reduction(1).warps == 2 && block.reduction(0).registers == 4);

  // Following the plan sums exactly the elements that share the other coordinate.
  constexpr auto d = Mfma32x32x8::C::layout();
  constexpr auto plan = d.reduction(0);
  for (int lane = 0; lane < 64; ++lane) {
    std::set<int> reached{lane};
    for (int i = 0; i < plan.mask_count; ++i)
      for (int other : std::set<int>(reached)) reached.insert(other ^ plan.masks[i]);
    std::set<int> met;
    for (int other : reached)
      for (int r = 0; r < d.registers(); ++r) {
        ASSERT_EQ(d.coords(other, r)[1], d.coords(lane, 0)[1]);
        met.insert(d.coords(other, r)[0]);
      }
    ASSERT_EQ(met.size(), 32u);
  }
}

TEST(Distribution, BankConflicts) {
  const auto row_major = [](int pitch) { return [=](const auto& c) { return static_cast<i64>(c[0]) * pitch + c[1]; }; };
  // 32 lanes read a column of floats: all in one bank, unless the rows are padded by one.
  constexpr auto column = lanes(32, 1) * vec(1, 1);
  static_assert(bank_use(column, SharedMemory::nvidia, 4, row_major(32)).cycles == 32);
  static_assert(bank_use(column, SharedMemory::nvidia, 4, row_major(33)).is_conflict_free());
  static_assert(bank_use(column, SharedMemory::nvidia, 4, row_major(0)).is_conflict_free(), "one word is broadcast");
  static_assert(bank_use(column, SharedMemory::nvidia, 2, row_major(64)).cycles == 32);
  // 16-byte rows of halves, eight lanes per cycle: a swizzle of 16-byte units frees it.
  constexpr auto wide = lanes(32, 1) * vec(1, 8);
  static_assert(bank_use(wide, SharedMemory::nvidia, 2, row_major(64)).cycles == 32);
  static_assert(bank_use(wide, SharedMemory::nvidia, 2, row_major(64)).ideal == 4);
  constexpr auto tile = make_strided(tuple(Int<32>{}, Int<64>{}), tuple(Int<64>{}, Int<1>{}));
  constexpr auto swizzled = transform(tile, swizzle<0, 1, 8, 8>());
  static_assert(bank_use(wide, SharedMemory::nvidia, 2, [=](const auto& c) {
                  return swizzled.offset(convert<int>(c));
                }).is_conflict_free());
}

TEST(Distribution, BankConflictsOf64Lanes) {
  const auto offset = [](const auto& c) { return static_cast<i64>(c[0]) * 32 + c[1]; };
  constexpr auto rows = lanes(8, 8) * vec(1, 4);  // 8 lanes take a row of 32 floats
  static_assert(bank_use(rows, SharedMemory::amd_write, 4, offset).ideal == 8);
  static_assert(bank_use(rows, SharedMemory::amd_write, 4, offset).is_conflict_free());
  // A read serves lanes 0-3 with 20-23: of the third row those are the upper half, so they still fit
  // together.
  static_assert(shared_cycle(SharedMemory::amd_read, 21, 16) == 0 && shared_cycle(SharedMemory::amd_read, 17, 16) == 1);
  static_assert(shared_cycle(SharedMemory::amd_read, 63, 16) == 6 && shared_cycle(SharedMemory::amd_read, 56, 16) == 7);
  static_assert(bank_use(rows, SharedMemory::amd_read, 4, offset).is_conflict_free());
  // Four lanes per row of 16 floats: consecutive lanes fit, the pairs of a read do not.
  const auto narrow = [](const auto& c) { return static_cast<i64>(c[0] % 2) * 16 + c[0] / 2 * 32 + c[1]; };
  constexpr auto four = lanes(16, 4) * vec(1, 4);
  static_assert(bank_use(four, SharedMemory::amd_write, 4, narrow).is_conflict_free());
  for (int cycle = 0; cycle < 8; ++cycle) {
    int lanes_served = 0;
    for (int lane = 0; lane < 64; ++lane) lanes_served += shared_cycle(SharedMemory::amd_read, lane, 16) == cycle;
    EXPECT_EQ(lanes_served, 8);
  }
  EXPECT_EQ(shared_cycle(SharedMemory::amd_read, 40, 4), 1) << "narrow accesses are served half a wave at a time";
}

TEST(Ascii, DrawsAnOperand) {
  char text[2048];
  const int length = print(named("mn", repeat(2, 1) * lanes(2, 4) * vec(1, 2)), text, sizeof(text));
  const std::string expected =
      "mn: repeat(2, 1) * lanes(2, 4) * vec(1, 2)\n"
      "4 x 8, threads 8, registers 4 (thread:register)\n"
      "    n0  n1  n2  n3  n4  n5  n6  n7\n"
      "m0 0:0 0:1 1:0 1:1 2:0 2:1 3:0 3:1\n"
      "m1 4:0 4:1 5:0 5:1 6:0 6:1 7:0 7:1\n"
      "m2 0:2 0:3 1:2 1:3 2:2 2:3 3:2 3:3\n"
      "m3 4:2 4:3 5:2 5:3 6:2 6:3 7:2 7:3\n";
  EXPECT_EQ(text, expected);
  EXPECT_EQ(length, static_cast<int>(expected.size()));
}

TEST(Ascii, AlignsWideNumbers) {
  char text[4096];
  print(Mfma16x16x16::A::layout(), text, sizeof(text));
  const std::string whole = text;
  EXPECT_NE(whole.find("mk: lanes(1, 4) * lanes(16, 1) * vec(1, 4)\n"), std::string::npos);
  EXPECT_NE(whole.find("m 0  0:0  0:1  0:2  0:3 16:0 16:1"), std::string::npos) << whole;
  EXPECT_NE(whole.find("m15 15:0"), std::string::npos);
}

TEST(Ascii, NeverWritesPastTheBuffer) {
  char text[16];
  for (char& c : text) c = '#';
  const int length = print(lanes(8, 4) * vec(1, 1), text, 10);
  EXPECT_GT(length, 100);
  EXPECT_STREQ(text, "xy: lanes");
  EXPECT_EQ(text[10], '#');
  EXPECT_EQ(print(lanes(8, 4) * vec(1, 1), nullptr, 0), length);
}

}  // namespace
}  // namespace tessera::tile
