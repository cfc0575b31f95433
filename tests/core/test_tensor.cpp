#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <thread>

#include "tessera/tensor.h"

namespace tessera {
namespace {

TEST(DType, HalfRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {  // every half survives the way through float
    f16 h;
    h.bits = static_cast<uint16_t>(bits);
    float f = h;
    if (std::isnan(f)) EXPECT_TRUE(std::isnan(static_cast<float>(f16(f))));
    else EXPECT_EQ(f16(f).bits, bits);
  }
  EXPECT_EQ(f16(65519.f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.f).bits, 0x7c00);
  EXPECT_EQ(f16(1 + 0x1p-11f).bits, 0x3c00);  // tie to even
  EXPECT_EQ(f16(1 + 0x1p-11f + 0x1p-20f).bits, 0x3c01);
  EXPECT_EQ(f16(0x1p-25f).bits, 0);  // tie below the smallest subnormal
  EXPECT_EQ(f16(-0x1.8p-25f).bits, 0x8001);
}

TEST(DType, BrainFloatRoundsToNearestEven) {
  EXPECT_EQ(bf16(1 + 0x1p-8f).bits, 0x3f80);
  EXPECT_EQ(bf16(1 + 0x1.8p-8f).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(NAN))));
  EXPECT_EQ(static_cast<float>(bf16(INFINITY)), INFINITY);
}

TEST(DType, Promotes) {
  EXPECT_EQ(promote(Float16, BFloat16), Float32);
  EXPECT_EQ(promote(Int64, Float16), Float16);
  EXPECT_EQ(promote(UInt8, Int8), Int32);
  EXPECT_EQ(promote(Bool, Int8), Int8);
  EXPECT_EQ(parse_dtype("bf16"), BFloat16);
  EXPECT_EQ(parse_dtype("fp16"), Float16);
  EXPECT_EQ(parse_dtype("fp32"), Float32);
  EXPECT_EQ(parse_dtype("u16"), UInt16);
  try {
    parse_dtype("float");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "unknown dtype 'float': one of bool u8 i8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64");
  }
}

TEST(DType, PromotesIntegersToTheSmallestThatHoldsBoth) {
  const auto bits = [](DType t) { return static_cast<int>(8 * size_of(t)) - !is_unsigned(t); };  // without the sign
  const auto holds = [&](DType t, DType other) {
    return other == Bool || (bits(t) >= bits(other) && (is_unsigned(other) || !is_unsigned(t)));
  };
  constexpr DType all[] = {UInt8, Int8, Int16, UInt16, Int32, UInt32, Int64, UInt64};
  for (DType a : {Bool, UInt8, Int8, Int16, UInt16, Int32, UInt32, Int64, UInt64})
    for (DType b : all) {
      DType want = Float64;
      for (DType t : all)
        if (holds(t, a) && holds(t, b) && (is_floating(want) || size_of(t) < size_of(want))) want = t;
      if (want == Int16 && size_of(a) + size_of(b) == 2) want = Int32;  // which every device computes with
      EXPECT_EQ(promote(a, b), want) << name(a) << ", " << name(b);
      EXPECT_EQ(promote(b, a), want) << name(b) << ", " << name(a);
      for (DType f : {Float16, BFloat16, Float32, Float64}) EXPECT_EQ(promote(b, f), f) << name(b) << ", " << name(f);
    }
}

TEST(Device, Parses) {
  EXPECT_EQ(parse_device("cpu"), cpu());
  EXPECT_EQ(to_string(parse_device("cuda:3")), "cuda:3");
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cpu:1", "cuda:-1", "cuda:99999"})
    EXPECT_THROW(parse_device(bad), Error) << bad;
}

TEST(Device, RefusesIndicesThatDoNotFit) {
  EXPECT_EQ(to_string(cuda(127)) + to_string(hip(127)), "cuda:127hip:127");
  for (int bad : {-1, 128, 256, 300}) {
    EXPECT_THROW(cuda(bad), Error) << bad;
    EXPECT_THROW(hip(bad), Error) << bad;
  }
}

TEST(Tensor, KnowsItsLayout) {
  Tensor t = empty_pitched({4, 5}, 8);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.stride(0), 8);
  EXPECT_EQ(t.numel(), 20);
  EXPECT_EQ(describe(t), "f32[4, 5] on cpu");
  EXPECT_THROW(t.size(2), Error);
  EXPECT_THROW(t.data<double>(), Error);
  EXPECT_THROW(empty_pitched({4, 5}, 4), Error);
  EXPECT_THROW(empty({2, -1}), Error);
  EXPECT_THROW(Tensor().shape(), Error);
}

TEST(Tensor, StridedViewsStayInside) {
  Tensor t = empty({6});
  EXPECT_NO_THROW(as_strided(t.storage(), {2, 3}, {3, 1}, 0, Float32));
  EXPECT_NO_THROW(as_strided(t.storage(), {6}, {-1}, 5, Float32));
  EXPECT_THROW(as_strided(t.storage(), {2, 3}, {3, 1}, 1, Float32), Error);
  EXPECT_THROW(as_strided(t.storage(), {2}, {-1}, 0, Float32), Error);
  EXPECT_THROW(as_strided(t.storage(), {int64_t(1) << 62, 3}, {int64_t(1) << 62, 1}, 0, Float32), Error);
  EXPECT_THROW(as_strided(t.storage(), {6}, {1}, 0, Float64), Error);
}

TEST(Allocator, CountsWhatTensorsHold) {
  reset_peak_memory();
  auto before = memory_stats();
  {
    Tensor a = empty({1000}), b = empty({1000});
    EXPECT_EQ(memory_stats().allocated - before.allocated, 8000);
  }
  auto after = memory_stats();
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_EQ(after.peak_allocated - before.allocated, 8000);
  empty_cache();
  EXPECT_LE(memory_stats().reserved, after.reserved);
}

TEST(Allocator, RefusesMoreThanThereIs) {
  for (int64_t n : {int64_t(1) << 45, int64_t(1) << 61}) {
    try {
      empty({n});
      FAIL();
    } catch (const OutOfMemoryError& e) {
      EXPECT_NE(std::string(e.what()).find("out of memory"), std::string::npos);
    }
  }
  EXPECT_NO_THROW(empty({16}));
}

TEST(Allocator, SizesOfEveryClassAreUsable) {
  std::vector<Tensor> held;
  for (int64_t n = 1; n < 200000; n = n * 9 / 8 + 1) {
    Tensor t = empty({n}, UInt8);
    std::memset(t.data_ptr(), 1, n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64, 0u);
    held.push_back(t);
  }
}

TEST(Allocator, GivesNoMoreThanALimitAllows) {
  const int64_t before = memory_stats().allocated;
  set_memory_limit(before + 1000);
  {
    const Tensor held = empty({600}, UInt8);
    EXPECT_THROW(empty({401}, UInt8), OutOfMemoryError);
    EXPECT_EQ(empty({400}, UInt8).numel(), 400);
    EXPECT_EQ(memory_stats().allocated, before + 600);
  }
  EXPECT_EQ(empty({1000}, UInt8).numel(), 1000);
  set_memory_limit(0);
  EXPECT_EQ(empty({2000}, UInt8).numel(), 2000);
}

TEST(Allocator, ServesManyThreads) {
  auto before = memory_stats().allocated;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      std::mt19937 rng(i);
      std::vector<Tensor> held(16);
      for (int n = 0; n < 2000; ++n) held[rng() % 16] = empty({static_cast<int64_t>(rng() % 5000 + 1)});
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(memory_stats().allocated, before);
}

}  // namespace
}  // namespace tessera
