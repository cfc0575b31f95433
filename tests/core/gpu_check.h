// What tests on a real GPU share.
#pragma once
#include <gtest/gtest.h>

#include "tessera/tessera.h"

namespace tessera {

/// The first GPU there is, of whatever vendor; the CPU where there is none.
inline Device card() {
  for (DeviceType type : {DeviceType::CUDA, DeviceType::HIP})
    if (why_unavailable({type, 0}).empty()) return {type, 0};
  return cpu();
}

/// Skips its tests where there is no GPU.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!card().is_gpu()) GTEST_SKIP() << "no GPU: " << why_unavailable(cuda());
  }
};

/// Elements at an address where the GPU has no memory: a kernel that reads them loses the device.
inline Tensor elements_of_nowhere() {
  auto storage = make_ref<Storage>();
  storage->data = reinterpret_cast<void*>(uintptr_t{1} << 44);
  storage->bytes = 1 << 20;
  storage->device = card();
  return as_strided(storage, {1 << 18}, {1}, 0, Float32);
}

}  // namespace tessera
