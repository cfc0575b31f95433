// What tests on the stand-in for libamdhip64.so share.
#pragma once
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>

#include <cstdlib>

#include "io/temporary_folder.h"
#include "stand_in/control.h"
#include "tessera/tessera.h"

namespace tessera {

template <class F>
F* in_stand_in(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
}
inline void fail(const char* function, hipError_t status, long skip = 0) {
  in_stand_in<StandInFail>(stand_in_fail_name)(function, skip, status);
}
inline long calls(const char* function) { return in_stand_in<StandInCalls>(stand_in_calls_name)(function); }

/// Kernels do nothing; programs are not found on disk, but compiled by the stand-in.
struct Surroundings {
  TemporaryFolder cache;
  Surroundings() {
    setenv("TESSERA_CACHE_DIR", cache.path().c_str(), 1);
    setenv("TESSERA_HIPRTC", std::getenv("TESSERA_HIP_RUNTIME"), 1);
    setenv("EMULATOR_HOME", "", 1);
  }
};

class HipTest : public testing::Test {
 protected:
  Surroundings surroundings;
  void SetUp() override { ASSERT_EQ(why_unavailable(hip()), ""); }
  void TearDown() override { fail(nullptr, hipSuccess); }
};

inline Tensor on_card(const Shape& shape) { return empty(shape, Float32, hip()); }

/// One that was never asked for before: of another epilogue.
inline std::string new_epilogue() {
  static int number = 0;
  return fmt::format("acc + {}", ++number);
}
inline void run_program(const std::string& epilogue) {
  fused_gemm(empty({16, 16}, Float16, hip()), empty({16, 16}, Float16, hip()), epilogue);
}

}  // namespace tessera
