// Tests of operators on a GPU, if there is one, against float64.
#pragma once
#include "check.h"
#include "tessera/device.h"
#include "tessera/ops.h"

namespace tessera {

inline Device gpu() {
  for (DeviceType type : {DeviceType::CUDA, DeviceType::HIP})
    if (device_count(type) > 0) return {type, 0};
  return cpu();
}

class GpuAgainstFloat64 : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu().is_gpu()) GTEST_SKIP() << "no GPU: " << why_unavailable(cuda());
  }

  /// Values that `dtype` holds exactly, in float64.
  Tensor values(const Shape& shape, DType dtype) { return normal64(shape, generator).to(dtype).to(Float64); }
  static double error(const Tensor& got, const Tensor& want) { return relative_error(got.to(cpu()).to(Float64), want); }

  Generator generator{29};
};

}  // namespace tessera
