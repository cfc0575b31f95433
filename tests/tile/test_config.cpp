#include "tile/config.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

using namespace tessera::tile;

namespace {

constexpr Problem square{1000, 1000, 1000, 2};
constexpr Config good{128, 128, 32, 4, 4}, good_amd{128, 128, 32, 4, 2};

Config with(Config config, int Config::*knob, int value) {
  config.*knob = value;
  return config;
}

TEST(Config, GoodOnesServe) {
  static_assert(validate(good, square, Arch::sm80) == Reason::ok);
  static_assert(validate(good_amd, square, Arch::cdna) == Reason::ok);
  EXPECT_EQ(validate({128, 256, 64, 8, 3}, square, Arch::sm80), Reason::ok);
  EXPECT_EQ(validate({256, 128, 64, 8, 3}, square, Arch::sm80), Reason::ok);
  EXPECT_EQ(validate({64, 64, 32, 4, 2}, square, Arch::sm80), Reason::ok);
  EXPECT_EQ(validate(good, {0, 0, 0, 2}, Arch::sm80), Reason::ok);
  EXPECT_EQ(validate(good, {0, 0, 0, 4}, Arch::sm80), Reason::ok);
  EXPECT_EQ(validate({128, 128, 16, 8, 4}, {1, 1, 1, 4}, Arch::sm80), Reason::ok);
}

TEST(Config, AmdCardsTakeSixteenSquaredWhereWarpsGetNoMore) {
  EXPECT_EQ(unit_of(good_amd, Arch::cdna), 32);
  EXPECT_EQ(unit_of(good, Arch::sm80), 16);
  for (const Config narrow : {Config{16, 64, 128, 4, 2}, Config{64, 16, 128, 4, 2}, Config{32, 32, 64, 4, 2}}) {
    EXPECT_EQ(unit_of(narrow, Arch::cdna), 16);
    EXPECT_EQ(validate(narrow, square, Arch::cdna), Reason::ok);
  }
  EXPECT_EQ(validate({128, 128, 64, 4, 2}, {1, 1, 1, 1}, Arch::cdna), Reason::ok);
}

TEST(Config, EveryRefusalHasItsReason) {
  EXPECT_EQ(validate(good, {-1, 1, 1, 2}, Arch::sm80), Reason::shape);
  EXPECT_EQ(validate(good, {1, i64{1} << 31, 1, 2}, Arch::sm80), Reason::shape);
  EXPECT_EQ(validate({32, 32, 32, 1, 4}, {2000000000, 2000000000, 1, 2}, Arch::sm80), Reason::shape);
  EXPECT_EQ(validate(good, {1, 1, 1, 8}, Arch::sm80), Reason::elements);
  EXPECT_EQ(validate(good_amd, {1, 1, 1, 8}, Arch::cdna), Reason::elements);
  EXPECT_EQ(validate(good, {1, 1, 1, 1}, Arch::sm80), Reason::elements);
  for (int tile : {0, -128, 8, 16, 96, 512}) {
    EXPECT_EQ(validate(with(good, &Config::tile_m, tile), square, Arch::sm80), Reason::tile);
    EXPECT_EQ(validate(with(good, &Config::tile_n, tile), square, Arch::cdna),
              tile == 16 ? Reason::fetch : Reason::tile);
    EXPECT_EQ(validate(with(good, &Config::tile_k, tile), square, Arch::sm80), Reason::tile);
  }
  EXPECT_EQ(validate(with(good, &Config::tile_k, 128), {1, 1, 1, 4}, Arch::sm80), Reason::tile);
  for (int warps : {0, -4, 3, 5, 32, 1 << 30})
    EXPECT_EQ(validate(with(good, &Config::warps, warps), square, Arch::sm80), Reason::warps);
  EXPECT_EQ(validate({32, 32, 64, 8, 2}, square, Arch::cdna), Reason::warps);
  EXPECT_EQ(validate({32, 256, 32, 8, 4}, square, Arch::sm80), Reason::fetch);
  EXPECT_EQ(validate({256, 256, 64, 2, 2}, square, Arch::cdna), Reason::fetch);
  EXPECT_EQ(validate({256, 256, 32, 8, 4}, square, Arch::sm80), Reason::registers);
  for (int stages : {-1, 0, 1, 9})
    EXPECT_EQ(validate(with(good, &Config::stages, stages), square, Arch::sm80), Reason::stages);
  EXPECT_EQ(validate(good, square, Arch::cdna), Reason::stages);
  EXPECT_EQ(validate({128, 256, 64, 8, 4}, square, Arch::sm80), Reason::shared_memory);
  EXPECT_EQ(validate({256, 256, 64, 8, 2}, square, Arch::cdna), Reason::shared_memory);
  EXPECT_EQ(validate({128, 256, 32, 8, 2}, square, Arch::cdna), Reason::epilogue);
  EXPECT_EQ(validate(with(good, &Config::cluster, 2), square, Arch::sm80), Reason::cluster);
  EXPECT_EQ(validate(with(good, &Config::split_k, 2), square, Arch::sm80), Reason::split_k);
}

TEST(Config, ProcessorsTakeAnyTileOnOneThread) {
  constexpr Problem odd{7, 1, 1000, 4};
  constexpr Config any{13, 24, 5, 1, 1};
  static_assert(validate(any, odd, Arch::cpu) == Reason::ok);
  for (int bytes : {2, 8}) EXPECT_EQ(validate(any, {7, 1, 1000, bytes}, Arch::cpu), Reason::ok);
  EXPECT_EQ(validate(any, {0, 0, i64{1} << 35, 4}, Arch::cpu), Reason::ok);
  EXPECT_EQ(validate(any, {1, -1, 1, 4}, Arch::cpu), Reason::shape);
  EXPECT_EQ(validate(any, {1, 1, i64{1} << 40, 4}, Arch::cpu), Reason::shape);
  EXPECT_EQ(validate(any, {1, 1, 1, 1}, Arch::cpu), Reason::elements);
  for (int tile : {0, -1}) {
    EXPECT_EQ(validate(with(any, &Config::tile_m, tile), odd, Arch::cpu), Reason::tile);
    EXPECT_EQ(validate(with(any, &Config::tile_n, tile), odd, Arch::cpu), Reason::tile);
    EXPECT_EQ(validate(with(any, &Config::tile_k, tile), odd, Arch::cpu), Reason::tile);
  }
  EXPECT_EQ(validate(with(any, &Config::warps, 4), odd, Arch::cpu), Reason::warps);
  EXPECT_EQ(validate(with(any, &Config::stages, 2), odd, Arch::cpu), Reason::stages);
  EXPECT_EQ(validate({1 << 20, 1 << 20, 1 << 20, 1, 1}, odd, Arch::cpu), Reason::shared_memory);
  EXPECT_EQ(validate(with(any, &Config::cluster, 2), odd, Arch::cpu), Reason::cluster);
  EXPECT_EQ(validate(with(any, &Config::split_k, 2), odd, Arch::cpu), Reason::split_k);
  EXPECT_EQ(validate({13, 24, 5, 1, 1, 1, Schedule::linear}, odd, Arch::cpu), Reason::schedule);
}

TEST(Config, OrdinaryCoresTakeTwoTiles) {
  constexpr Problem odd{7, 1, 1000, 4};
  constexpr Config small{64, 64, 16, 8, 2};
  static_assert(validate(small, odd, Arch::simt) == Reason::ok);
  EXPECT_EQ(validate({128, 128, 16, 8, 2}, odd, Arch::simt), Reason::ok);
  EXPECT_EQ(validate(small, {1, i64{1} << 31, 1, 4}, Arch::simt), Reason::shape);
  EXPECT_EQ(validate(small, {2000000000, 2000000000, 1, 4}, Arch::simt), Reason::shape);
  for (int bytes : {2, 8}) EXPECT_EQ(validate(small, {7, 1, 1000, bytes}, Arch::simt), Reason::elements);
  for (auto knob : {&Config::tile_m, &Config::tile_n, &Config::tile_k})
    for (int tile : {0, 32, 128}) EXPECT_EQ(validate(with(small, knob, tile), odd, Arch::simt), Reason::tile);
  EXPECT_EQ(validate(with(small, &Config::warps, 4), odd, Arch::simt), Reason::warps);
  EXPECT_EQ(validate(with(small, &Config::stages, 3), odd, Arch::simt), Reason::stages);
  EXPECT_EQ(validate(with(small, &Config::cluster, 2), odd, Arch::simt), Reason::cluster);
  EXPECT_EQ(validate(with(small, &Config::split_k, 2), odd, Arch::simt), Reason::split_k);
}

TEST(Config, EveryReasonHasItsSentence) {
  std::set<std::string> sentences;
  for (int r = 0; r <= static_cast<int>(Reason::schedule); ++r) sentences.insert(sentence(static_cast<Reason>(r)));
  EXPECT_EQ(sentences.size(), static_cast<std::size_t>(Reason::schedule) + 1);
  EXPECT_FALSE(sentences.count(""));
}

TEST(Config, PartsOfATileAreEqualAndAsSquareAsPossible) {
  EXPECT_EQ(warps_down(128, 128, 4, 16, 16), 2);
  EXPECT_EQ(warps_down(256, 64, 4, 16, 16), 4);
  EXPECT_EQ(warps_down(64, 256, 4, 16, 16), 1);
  EXPECT_EQ(warps_down(32, 32, 4, 32, 32), 0);
}

}  // namespace
