// Which copy of a parameter is one, on a made-up device.
#include "core/lower_copies.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/gpu/backend.h"
#include "fake_runtime.h"
#include "tessera/nn.h"

namespace tessera {
namespace {

class LowerCopies : public testing::Test {
 protected:
  LowerCopies() { gpu::install(DeviceType::HIP, plugin_of(*new FakeRuntime)); }
  ~LowerCopies() override { gpu::install(DeviceType::HIP, nullptr); }
  static Tensor parameter() {
    const Tensor p = empty({8}, Float32, hip(0));
    allow_lower_copy(p);
    return p;
  }
  static const void* keep(const Tensor& p) {
    const Tensor copy = empty({8}, BFloat16, hip(0));
    keep_lower_copy(p, copy);
    return copy.data_ptr();
  }
  static bool has_copy(const Tensor& p) { return lower_copy(p, BFloat16).defined(); }
  static void write(const Tensor& p) { p.storage()->version.fetch_add(1); }
};

TEST_F(LowerCopies, OnlyTheOneThatWasWrittenStays) {
  const Tensor p = parameter();
  const void* copy = keep(p);
  EXPECT_TRUE(has_copy(p));
  wrote_lower_copy(p, copy);
  write(p);
  EXPECT_TRUE(has_copy(p));
  const Tensor written = writable_lower_copy(p);
  EXPECT_EQ(written.data_ptr(), copy);
  keep(p);  // replaced before the writer says so
  wrote_lower_copy(p, written.data_ptr());
  write(p);
  EXPECT_FALSE(has_copy(p));
  drop_lower_copy(p);
}

TEST_F(LowerCopies, WhatOthersHoldIsNotWritten) {
  const Tensor p = parameter();
  keep(p);
  Tensor saved = lower_copy(p, BFloat16);
  EXPECT_FALSE(writable_lower_copy(p).defined());
  saved = {};
  EXPECT_TRUE(writable_lower_copy(p).defined());
  drop_lower_copy(p);
}

TEST_F(LowerCopies, GoWithTheMemoryOfTheirParameter) {
  nn::Linear layer(4, 2, false);
  layer.to(hip(0));
  allow_lower_copy(layer.weight);
  keep(layer.weight);
  EXPECT_GT(memory_stats(hip(0)).allocated, 0);
  layer.to(cpu());
  EXPECT_EQ(memory_stats(hip(0)).allocated, 0);
  drop_lower_copy(layer.weight);
}

}  // namespace
}  // namespace tessera
