// The host side of libtessera_hip.so, compiled against AMD's headers, on the stand-in for libamdhip64.so: what it
// calls, and that every failure is an error that names what failed, after which the rest goes on. Kernels do not run
// here.
#include <hip/hiprtc.h>

#include <map>

#include "core/gpu/backend.h"
#include "hip_check.h"
#include "ops/ops_check.h"

namespace tessera {
namespace {

using HipRuntime = HipTest;

TEST_F(HipRuntime, DescribesTheCard) {
  EXPECT_EQ(device_count(DeviceType::HIP), 1);
  const DeviceProperties p = properties(hip());
  EXPECT_EQ(p.architecture, "gfx90a");
  EXPECT_EQ(p.multiprocessors, 104);
  EXPECT_EQ(p.warp_size, 64);
  EXPECT_EQ(p.shared_memory, 64 * 1024u);
  EXPECT_EQ(why_unavailable({DeviceType::HIP, 1}), "there is only hip:0");
}

TEST_F(HipRuntime, CallsBecomeLaunchesAndCopies) {
  Tensor x = on_card({37, 5});
  const long launches = calls("hipLaunchKernel"), copies = calls("hipMemcpyAsync"),
             waits = calls("hipStreamSynchronize");
  Tensor y = softmax(x, 1);
  EXPECT_EQ(calls("hipLaunchKernel"), launches + 1);
  EXPECT_EQ(calls("hipStreamSynchronize"), waits);
  y.to(cpu());
  EXPECT_EQ(calls("hipMemcpyAsync"), copies + 1);
  EXPECT_EQ(calls("hipStreamSynchronize"), waits + 1);
  EXPECT_EQ(on_card({0, 5}).numel() + softmax(on_card({0, 5}), 1).numel(), 0);
}

TEST_F(HipRuntime, MemoryComesBackAndIsReused) {
  Tensor x = on_card({1 << 20});
  const long allocations = calls("hipMalloc"), releases = calls("hipFree");
  x = {};
  x = on_card({1 << 20});
  EXPECT_EQ(calls("hipMalloc"), allocations);
  x = {};
  empty_cache(hip());
  EXPECT_GT(calls("hipFree"), releases);
}

TEST_F(HipRuntime, OutOfMemoryEmptiesTheCacheAndThenIsAnError) {
  { Tensor kept = on_card({8 << 20}); }  // stays cached
  const long releases = calls("hipFree");
  fail("hipMalloc", hipErrorOutOfMemory);
  const std::string message = error_of([] { on_card({32 << 20}); });
  EXPECT_NE(message.find("out of memory on hip:0: 134217728 bytes (0.12 GiB) asked for"), std::string::npos) << message;
  EXPECT_GT(calls("hipFree"), releases);
  EXPECT_THROW(on_card({32 << 20}), OutOfMemoryError);
  fail("hipMalloc", hipSuccess);
  EXPECT_EQ(on_card({32 << 20}).numel(), 32 << 20);
}

TEST_F(HipRuntime, ARefusedLaunchIsAnErrorAndNothingMore) {
  Tensor x = on_card({7, 3});
  fail("hipLaunchKernel", hipErrorInvalidConfiguration);
  const std::string message = error_of([&] { softmax(x, 1); });
  EXPECT_NE(message.find("softmax failed: invalid configuration argument"), std::string::npos) << message;
  fail("hipLaunchKernel", hipSuccess);
  EXPECT_EQ(softmax(x, 1).numel(), 21);
}

TEST_F(HipRuntime, ATensorOutlivesAStreamThatUsedIt) {
  Tensor x = on_card({8});
  {
    Stream side(hip());
    record_stream(x, side);
  }
  const long events = calls("hipEventRecord");
  x = {};
  EXPECT_EQ(calls("hipEventRecord"), events);
}

// HIP remembers it as an error, like any other status.
TEST_F(HipRuntime, WhatIsNotDoneYetIsNoErrorOfTheNextLaunch) {
  Tensor x = on_card({7, 3});
  Stream side(hip());
  Event event(hip());
  event.record(side);
  fail("hipStreamQuery", hipErrorNotReady);
  fail("hipEventQuery", hipErrorNotReady);
  EXPECT_FALSE(side.is_idle());
  EXPECT_EQ(softmax(x, 1).numel(), 21);
  EXPECT_FALSE(event.has_happened());
  EXPECT_EQ(softmax(x, 1).numel(), 21);
}

// ---- programs that hipRTC compiles

TEST_F(HipRuntime, ProgramsAreCompiledOnceAndLaunched) {
  const char* functions[] = {"hiprtcCreateProgram",  "hiprtcCompileProgram", "hiprtcGetCode",
                             "hiprtcDestroyProgram", "hipModuleLoadData",    "hipModuleGetFunction"};
  std::map<std::string, long> before;
  for (const char* function : functions) before[function] = calls(function);
  const long launches = calls("hipModuleLaunchKernel");
  const std::string epilogue = new_epilogue();
  for (int i = 0; i < 3; ++i) run_program(epilogue);
  for (const char* function : functions) EXPECT_EQ(calls(function), before[function] + 1) << function;
  EXPECT_EQ(calls("hipModuleLaunchKernel"), launches + 3);
}

TEST_F(HipRuntime, FailuresOfAProgramSayWhatFailedAndLastWhereItsTextIsWrong) {
  const auto message = [](const char* function, int status) {
    const std::string epilogue = new_epilogue();
    fail(function, static_cast<hipError_t>(status));
    const std::string text = error_of([&] { run_program(epilogue); });
    fail(nullptr, hipSuccess);
    const bool wrong = function == std::string_view("hiprtcCompileProgram");
    EXPECT_EQ(error_of([&] { run_program(epilogue); }), wrong ? text : "no error") << function;
    return text;
  };
  const auto expect = [&](const char* function, int status, const char* text) {
    const std::string said = message(function, status);
    EXPECT_NE(said.find(text), std::string::npos) << function << ": " << said;
  };
  expect("hiprtcCreateProgram", HIPRTC_ERROR_OUT_OF_MEMORY,
         "hipRTC: taking a program failed: HIPRTC_ERROR_OUT_OF_MEMORY");
  expect("hiprtcCompileProgram", HIPRTC_ERROR_COMPILATION, "told to fail");
  expect("hiprtcGetCodeSize", HIPRTC_ERROR_INTERNAL_ERROR, "asking for the size of its code failed");
  expect("hiprtcGetCode", HIPRTC_ERROR_INTERNAL_ERROR, "asking for its code failed");
  expect("hipModuleLoadData", hipErrorOutOfMemory, "loading a compiled program failed: out of memory");
  expect("hipModuleGetFunction", hipErrorOutOfMemory, "looking for a kernel failed: out of memory");
  expect("hipModuleLaunchKernel", hipErrorInvalidConfiguration, "launching a compiled kernel failed: invalid configur");
}

TEST_F(HipRuntime, ACompilerWithoutALogIsStillAnError) {
  for (const char* function : {"hiprtcGetProgramLogSize", "hiprtcGetProgramLog"}) {
    fail("hiprtcCompileProgram", static_cast<hipError_t>(HIPRTC_ERROR_COMPILATION));
    fail(function, static_cast<hipError_t>(HIPRTC_ERROR_INTERNAL_ERROR));
    const std::string message = error_of([] { run_program(new_epilogue()); });
    EXPECT_NE(message.find("HIPRTC_ERROR of the stand-in"), std::string::npos) << message;
    fail(nullptr, hipSuccess);
  }
}

// ---- lost devices

// Each in a process of its own, since a lost device stays lost.
void lose(const char* function, hipError_t status) {
  const Surroundings surroundings;
  Tensor x = on_card({7, 3}), kept = full({4}, 5, Float32, cpu());
  Event event(hip());
  fail(function, status);
  int errors = 0;
  const bool compiled = std::string_view(function) == "hipModuleLaunchKernel";
  for (int i = 0; i < 3; ++i) try {
      compiled ? run_program("acc") : void(softmax(x, 1).to(cpu()));
    } catch (const DeviceError& error) {
      ++errors;
      std::fprintf(stderr, "%s\n", error.what());
    }
  fail(function, hipSuccess);
  try {
    on_card({1 << 24});
  } catch (const DeviceError&) {
    ++errors;
  }
  const bool goes_on = (kept + 1).sum().item() == 24;
  x = {};
  std::_Exit(errors == 4 && goes_on ? 0 : 1);
}

TEST(HipRuntimeDeathTest, FaultsLoseTheDeviceAndNothingElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends = testing::ExitedWithCode(0);
  EXPECT_EXIT(lose("hipStreamSynchronize", hipErrorLaunchFailure), ends,
              "failed: unspecified launch failure\n.*the device was lost: unspecified launch failure");
  EXPECT_EXIT(lose("hipLaunchKernel", hipErrorIllegalAddress), ends, "softmax failed: an illegal memory access");
  EXPECT_EXIT(lose("hipMemcpyAsync", hipErrorECCNotCorrectable), ends, "copying failed: uncorrectable ECC error");
  EXPECT_EXIT(lose("hipModuleLaunchKernel", hipErrorLaunchFailure), ends,
              "launching a compiled kernel failed: unspecified launch failure");
}

TEST(HipRuntimeDeathTest, WhatFailsAtTheStartIsTheReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto reason = [](const char* function, hipError_t status) {
    dlopen(std::getenv("TESSERA_HIP_RUNTIME"), RTLD_NOW | RTLD_GLOBAL);  // before the plugin is
    fail(function, status);
    std::fprintf(stderr, "%s\n", why_unavailable(hip()).c_str());
    std::_Exit(0);
  };
  const auto ends = testing::ExitedWithCode(0);
  EXPECT_EXIT(reason("hipGetDeviceCount", hipErrorNoDevice), ends, "no such card was found");
  EXPECT_EXIT(reason("hipGetDeviceCount", hipErrorInsufficientDriver), ends, "the driver takes programs up to version");
  EXPECT_EXIT(reason("hipGetDeviceCount", hipErrorOutOfMemory), ends, "counting devices failed: out of memory");
  EXPECT_EXIT(reason("hipGetDeviceProperties", hipErrorInvalidDevice), ends, "a device's properties failed");
}

TEST(HipRuntimeDeathTest, ACompilerThatCannotSayItsVersionIsAskedAgain) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask_twice = [] {
    const Surroundings surroundings;
    device_count(DeviceType::HIP);
    fail("hiprtcVersion", static_cast<hipError_t>(HIPRTC_ERROR_INTERNAL_ERROR));
    std::fprintf(stderr, "%s\n", error_of([] { run_program("acc"); }).c_str());
    fail(nullptr, hipSuccess);
    run_program("acc");
    std::_Exit(0);
  };
  EXPECT_EXIT(ask_twice(), testing::ExitedWithCode(0), "hipRTC: asking for its version failed");
}

TEST_F(HipRuntime, GraphsAreCapturedAndReplayed) {
  Tensor x = on_card({33, 5}), y;
  DeviceGraph graph;
  graph.capture(hip(), [&] { y = softmax(exp(x), 1); });
  const long launches = calls("hipLaunchKernel");
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(calls("hipGraphLaunch"), 3);
  EXPECT_EQ(calls("hipLaunchKernel"), launches);
  EXPECT_THROW(DeviceGraph().capture(hip(), [&] { y.item(); }), Error);
  EXPECT_EQ((x + 1).numel(), 165);
}

TEST_F(HipRuntime, AGraphSaysItsSteps) {
  const Tensor x = on_card({33, 5});
  const auto steps = gpu::steps_of(hip(), [&] { softmax(x, 1), zeros({33, 5}, Float32, hip()), run_program("acc"); });
  ASSERT_GE(steps.size(), 3u);
  EXPECT_NE(steps[0].name.find("Softmax<"), std::string::npos) << steps[0].name;
  EXPECT_GE(steps[0].grid[0], 1u);
  EXPECT_GE(steps[0].block[0], 64u);
  EXPECT_EQ(steps.back().name, "a kernel");  // compiled at run time: HIP has no name for it
  EXPECT_GE(steps.back().block[0], 64u);
  EXPECT_EQ(calls("hipGraphLaunch"), 0);
  EXPECT_EQ((x + 1).numel(), 165);
}

// What uses every function that can fail.
void use_everything() {
  empty_cache(hip());
  Tensor x = on_card({33, 5}), pinned = empty_pinned({33, 5}, Float32, hip());
  zeros({33, 5}, Float32, hip());
  Stream side(hip());
  Event from(hip(), true), to(hip(), true);
  from.record(current_stream(hip()));
  x.copy_(pinned);
  {
    StreamGuard guard(side);
    from.wait(side);
    softmax(x, 1);
    record_stream(x, side);
  }
  side.is_idle();
  to.record(side);
  to.has_happened();
  to.synchronize();
  to.milliseconds_since(from);
  synchronize(hip());
  pinned.copy_(x);
  x.to(cpu());
  DeviceGraph graph;
  graph.capture(hip(), [&] { softmax(x, 1); });
  graph.replay();
  gpu::steps_of(hip(), [&] { softmax(x, 1); });
  run_program(new_epilogue());
  x = {};
  empty_cache(hip());
  try {
    on_card({int64_t{1} << 40});  // asks for the memory that is free, to say so
  } catch (const OutOfMemoryError&) {
  }
}

class EveryCall : public testing::TestWithParam<const char*> {
  Surroundings surroundings;
};

TEST_P(EveryCall, ThatFailsIsAnError) {
  const char* function = GetParam();
  use_everything();
  const long before = calls(function);
  use_everything();
  ASSERT_GT(calls(function), before) << "nothing calls it";
  fail(function, hipErrorInvalidHandle);
  EXPECT_THROW(use_everything(), Error);
  fail(nullptr, hipSuccess);
  use_everything();
}

INSTANTIATE_TEST_SUITE_P(Hip, EveryCall,
                         testing::Values("hipMalloc", "hipHostMalloc", "hipMemcpyAsync", "hipMemGetInfo",
                                         "hipLaunchKernel", "hipStreamCreateWithFlags", "hipStreamSynchronize",
                                         "hipStreamQuery", "hipStreamWaitEvent", "hipDeviceSynchronize",
                                         "hipEventCreateWithFlags", "hipEventRecord", "hipEventQuery",
                                         "hipEventSynchronize", "hipEventElapsedTime", "hipStreamBeginCapture",
                                         "hipStreamEndCapture", "hipStreamGetCaptureInfo_v2", "hipGraphGetNodes",
                                         "hipGraphInstantiate", "hipGraphLaunch", "hipModuleLoadData",
                                         "hipModuleGetFunction", "hipModuleLaunchKernel", "hiprtcCreateProgram",
                                         "hiprtcCompileProgram", "hiprtcGetCodeSize", "hiprtcGetCode"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera
