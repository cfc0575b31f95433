// The host's side of a GPU: memory, streams, events, graphs and what happens when a call fails, on a made-up device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "core/gpu/backend.h"
#include "fake_runtime.h"
#include "ops/ops_check.h"
#include "tessera/foreign.h"
#include "tessera/ops.h"
#include "tessera/random.h"
#include "tessera/stream.h"

namespace tessera {
namespace {

constexpr size_t MiB = size_t(1) << 20;

class FakeGpu : public testing::Test {
 protected:
  FakeGpu() : runtime(*new FakeRuntime) { gpu::install(DeviceType::HIP, plugin_of(runtime)); }
  ~FakeGpu() override { gpu::install(DeviceType::HIP, nullptr); }
  FakeRuntime& runtime;
  Device device = hip(0);
};

TEST_F(FakeGpu, CopiesGoThereAndBack) {
  Tensor x = tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor there = x.to(device);
  EXPECT_EQ(to_string(there.device()), "hip:0");
  EXPECT_EQ(there.to(cpu()).to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(x.transpose(0, 1).to(device).to(cpu()).to_vector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(there.select(0, 1).select(0, 2).item(), 6);
  EXPECT_THROW(there.data<float>(), Error);
}

TEST_F(FakeGpu, GradientsComeBackAcrossDevices) {
  Tensor x = tensor<float>({1, 2}, {2}).set_requires_grad();
  Tensor y = x.to(device).to(cpu());
  y.backward(tensor<float>({3, 5}, {2}));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{3, 5}));
}

TEST_F(FakeGpu, MemoryIsReusedCutAndJoined) {
  { Tensor a = empty({100000}, Float32, device); }
  const int allocations = runtime.count("allocate");
  void* first = empty({100000}, Float32, device).data_ptr();
  EXPECT_EQ(empty({50000}, Float32, device).data_ptr(), first);  // the smallest that is large enough
  EXPECT_EQ(runtime.count("allocate"), allocations);
  {
    Tensor a = empty({1000}, Float32, device), b = empty({1000}, Float32, device), c = empty({1000}, Float32, device);
    EXPECT_EQ(memory_stats(device).allocated, 12000);
    EXPECT_EQ(memory_stats(device).reserved, static_cast<int64_t>(2 * MiB));  // one segment holds all
  }
  EXPECT_EQ(memory_stats(device).allocated, 0);
  EXPECT_EQ(empty({int64_t(2 * MiB)}, UInt8, device).numel(), int64_t(2 * MiB));
  empty_cache(device);
  EXPECT_EQ(memory_stats(device).reserved, 0);
  EXPECT_TRUE(runtime.allocated.empty());
  EXPECT_EQ(memory_stats(device).peak_allocated, static_cast<int64_t>(2 * MiB));
  reset_peak_memory(device);
  EXPECT_EQ(memory_stats(device).peak_allocated, 0);
}

TEST_F(FakeGpu, SmallBlocksComeBackAsTheyAreAndAreJoinedForLargerOnes) {
  std::vector<void*> places;
  {
    Tensors held;
    for (int i = 0; i < 256; ++i) held.push_back(empty({2048}, Float32, device));  // all of a segment
    for (const Tensor& t : held) places.push_back(t.data_ptr());
  }
  const int allocations = runtime.count("allocate");
  void* last = empty({2048}, Float32, device).data_ptr();
  EXPECT_EQ(empty({2048}, Float32, device).data_ptr(), last);
  EXPECT_NE(std::find(places.begin(), places.end(), last), places.end());
  {
    const StreamGuard side{Stream(device)};
    EXPECT_NE(empty({2048}, Float32, device).data_ptr(), last);  // a segment of that stream's own
  }
  EXPECT_EQ(runtime.count("allocate"), allocations + 1);
  EXPECT_EQ(empty({200000}, Float32, device).data_ptr(), *std::min_element(places.begin(), places.end()));
  EXPECT_EQ(runtime.count("allocate"), allocations + 1);
  empty_cache(device);
  EXPECT_EQ(memory_stats(device).reserved, 0);
}

TEST_F(FakeGpu, OutOfMemoryComesAfterTheCacheWasEmptied) {
  { Tensor cached = empty({int64_t(40 * MiB)}, UInt8, device); }
  Tensor held = empty({int64_t(50 * MiB)}, UInt8, device);  // fits once the cached 40 MiB are given back
  EXPECT_EQ(error_of([&] { empty({int64_t(30 * MiB)}, UInt8, device); }),
            "out of memory on hip:0: 31457280 bytes (0.03 GiB) asked for, 52428800 bytes (0.05 GiB) held by tensors, "
            "14680064 bytes (0.01 GiB) free of 67108864 bytes (0.06 GiB)");
  EXPECT_THROW(empty({int64_t(30 * MiB)}, UInt8, device), OutOfMemoryError);
  EXPECT_THROW(empty({int64_t(1) << 61}, UInt8, device), OutOfMemoryError);
  held = Tensor();
  EXPECT_EQ(empty({int64_t(30 * MiB)}, UInt8, device).numel(), int64_t(30 * MiB));
  EXPECT_EQ(ones({3}).sum().item(), 3);  // and the CPU goes on
}

TEST_F(FakeGpu, TensorsHoldNoMoreThanALimitAllows) {
  set_memory_limit(1000, device);
  {
    const Tensor held = empty({600}, UInt8, device);
    EXPECT_EQ(error_of([&] { empty({401}, UInt8, device); }),
              "out of memory on hip:0: 401 bytes (0.00 GiB) asked for, 600 bytes (0.00 GiB) held by tensors, "
              "1000 bytes (0.00 GiB) allowed");
    EXPECT_EQ(empty({400}, UInt8, device).numel(), 400);
  }
  EXPECT_EQ(empty({1000}, UInt8, device).numel(), 1000);
  EXPECT_EQ(error_of([&] { set_memory_limit(-1, device); }), "set_memory_limit: -1 bytes are less than none");
  EXPECT_EQ(error_of([&] { set_memory_limit(1, meta(device)); }), "set_memory_limit: meta(hip:0) has no memory");
  set_memory_limit(0, device);
  EXPECT_EQ(empty({2000}, UInt8, device).numel(), 2000);
}

TEST_F(FakeGpu, BlocksStayWithTheirStreamUntilOthersAreDone) {
  Stream side(device);
  void* mine = empty({1000}, Float32, device).data_ptr();
  {
    StreamGuard guard(side);
    EXPECT_NE(empty({1000}, Float32, device).data_ptr(), mine);
  }
  runtime.events_happen = false;
  {
    Tensor shared = empty({1000}, Float32, device);
    EXPECT_EQ(shared.data_ptr(), mine);
    record_stream(shared, side);
  }
  EXPECT_NE(empty({1000}, Float32, device).data_ptr(), mine);  // `side` may still read it
  runtime.events_happen = true;
  EXPECT_EQ(empty({1000}, Float32, device).data_ptr(), mine);
}

TEST_F(FakeGpu, BlocksWhoseUsersCannotBeWaitedForStay) {
  const Stream side(device);
  Tensor shared = empty({1000}, Float32, device);
  void* const place = shared.data_ptr();
  const int events = runtime.events;
  record_stream(shared, side);
  runtime.failing = "record";
  shared = Tensor();
  runtime.failing.clear();
  EXPECT_EQ(runtime.events, events);
  EXPECT_NE(empty({1000}, Float32, device).data_ptr(), place);
}

TEST_F(FakeGpu, AStreamOfAnotherCardIsRefused) {
  runtime.devices = 2;
  gpu::install(DeviceType::HIP, plugin_of(runtime));
  const Tensor x = empty({4}, Float32, device);
  EXPECT_EQ(error_of([&] { record_stream(x, Stream(hip(1))); }),
            "record_stream: a tensor of hip:0, but a stream of hip:1");
  record_stream(x, Stream(cpu()));  // its work is done
}

TEST_F(FakeGpu, MemoryOfOthersGoesBackOnceAfterTheWorkOnIt) {
  const Stream side(device);
  std::array<float, 4> theirs = {1, 2, 3, 4};
  int returned = 0, before = 0, after = 0;  // of waits
  {
    const Ref<Storage> storage = foreign::adopt(theirs.data(), sizeof(theirs), device, [&] {
      ++returned;
      after = runtime.count("synchronize");
    });
    Tensor x = as_strided(storage, {2}, {1}, 2, Float32);
    EXPECT_EQ(x.data_ptr(), theirs.data() + 2);
    record_stream(x, side);
    EXPECT_EQ(x.to(cpu()).to_vector<float>(), (std::vector<float>{3, 4}));
    before = runtime.count("synchronize");
    EXPECT_EQ(returned, 0);
  }
  EXPECT_EQ(returned, 1);
  EXPECT_EQ(after, before + 2);     // the stream then, and `side`
  runtime.failing = "synchronize";  // a lost device
  foreign::adopt(theirs.data(), sizeof(theirs), device, [&] { ++returned; });
  EXPECT_EQ(returned, 2);
  runtime.failing.clear();
  EXPECT_THROW(foreign::adopt(theirs.data(), 4, hip(7), [] {}), Error);
  foreign::adopt(theirs.data(), 4, cpu(), [&] { ++returned; });
  EXPECT_EQ(returned, 3);
}

TEST_F(FakeGpu, WhatIsLentWaitsForTheStreamThatWorksOnIt) {
  const auto theirs = reinterpret_cast<foreign::StreamHandle>(uintptr_t{0x7000});
  const int events = runtime.events, waits = runtime.count("wait");
  foreign::wait(theirs, current_stream(device));
  foreign::wait(theirs, Stream(cpu()));
  EXPECT_EQ(runtime.count("wait"), waits + 1);
  EXPECT_EQ(runtime.events, events);
  void* place = nullptr;
  {
    Tensor x = empty({1000}, Float32, device);
    place = x.data_ptr();
    const foreign::Loan loan(x.storage(), foreign::default_stream(device));
    runtime.events_happen = false;
  }
  EXPECT_EQ(runtime.count("synchronize_device"), 0);
  EXPECT_NE(empty({1000}, Float32, device).data_ptr(), place);  // the default stream may still read it
  runtime.events_happen = true;
  EXPECT_EQ(empty({1000}, Float32, device).data_ptr(), place);
  for (const std::optional<foreign::StreamHandle> stream : {std::optional(theirs), {}}) {
    const int before = runtime.count("synchronize_device");
    { const foreign::Loan loan(empty({1000}, Float32, device).storage(), stream); }
    EXPECT_EQ(runtime.count("synchronize_device"), before + 1);
  }
  const foreign::Loan nothing(empty({4}, Float32, cpu()).storage(), {});
}

TEST_F(FakeGpu, StreamsEventsAndPinnedMemoryGiveBackWhatTheyTook) {
  synchronize(device);  // brings the device up
  const int streams = runtime.streams, events = runtime.events;
  const size_t pinned = runtime.pinned.size();
  {
    Stream stream(device);
    EXPECT_TRUE(stream.is_idle());
    Event start(device, true), end(device, true);
    start.record(stream);
    end.record(stream);
    end.synchronize();
    EXPECT_EQ(end.milliseconds_since(start), 1.5f);
    EXPECT_THROW(end.milliseconds_since(Event(cpu())), Error);
    Tensor host = empty_pinned({4}, Float32, device);
    host.fill_(3);
    EXPECT_EQ(host.to(device).to(cpu()).sum().item(), 12);
    EXPECT_EQ(runtime.streams, streams + 1);
    EXPECT_GT(runtime.pinned.size(), pinned);
  }
  EXPECT_EQ(runtime.streams, streams);
  EXPECT_EQ(runtime.events, events);
  EXPECT_EQ(runtime.pinned.size(), pinned);
}

TEST_F(FakeGpu, AStreamLivesAsLongAsAHandleOnIt) {
  Stream kept(cpu());
  const int streams = runtime.streams;
  {
    Stream side(device);
    StreamGuard guard(side);
    kept = current_stream(device);
  }
  EXPECT_EQ(runtime.streams, streams + 1 + (streams == 0));  // and the device's own
  EXPECT_EQ(kept.device(), device);
  kept = Stream(cpu());
  EXPECT_EQ(runtime.streams, streams + (streams == 0));
}

TEST_F(FakeGpu, PinnedMemoryWaitsForEveryStreamAndCard) {
  Tensor host = empty_pinned({4}, Float32, device);
  host.fill_(3);
  host.to(device);
  const int waits = runtime.count("wait");
  Stream side(device);
  {
    StreamGuard guard(side);
    host.to(device);
  }
  EXPECT_EQ(runtime.count("wait"), waits + 1);  // whoever waits for this copy waits for the first, too
  FakeRuntime& other = *new FakeRuntime;
  gpu::install(DeviceType::CUDA, plugin_of(other));
  EXPECT_EQ(host.to(cuda(0)).to(cpu()).sum().item(), 12);
  const auto synchronized = std::find(other.calls.begin(), other.calls.end(), "synchronize");
  EXPECT_LT(std::find(other.calls.begin(), other.calls.end(), "copy"), synchronized);
  gpu::install(DeviceType::CUDA, nullptr);
}

TEST_F(FakeGpu, TensorsGoFromVendorToVendorByTheHost) {
  gpu::install(DeviceType::CUDA, plugin_of(*new FakeRuntime));
  {
    Tensor x = tensor<float>({1, 2, 3}, {3}).set_requires_grad();
    const Tensor there = x.to(device).to(cuda(0));
    EXPECT_EQ(there.device(), cuda(0));
    EXPECT_EQ(there.to(cpu()).to_vector<float>(), (std::vector<float>{1, 2, 3}));
    there.backward(tensor<float>({4, 5, 6}, {3}).to(cuda(0)));
    EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{4, 5, 6}));
    Event event(device);
    event.record(current_stream(device));
    EXPECT_EQ(error_of([&] { event.wait(current_stream(cuda(0))); }),
              "event: waited for on a stream of another vendor");
  }
  gpu::install(DeviceType::CUDA, nullptr);
}

TEST_F(FakeGpu, CopiesToPinnedMemoryAreOnlyQueuedWhereAsked) {
  Tensor host = empty_pinned({4}, Float32, device), part = host.slice(0, 0, 4, 2);
  Tensor ordinary = zeros({4}), there = full({4}, 5, Float32, cpu()).to(device);
  const auto copies = [&](Tensor& to) {
    const int waits = runtime.count("synchronize");
    copy_async(to, there.slice(0, 0, to.numel()));
    EXPECT_EQ(to.sum().item(), 5. * static_cast<double>(to.numel()));
    return runtime.count("synchronize") - waits;
  };
  const auto version = host.storage()->version.load();
  EXPECT_EQ(copies(host), 0);
  EXPECT_GT(host.storage()->version.load(), version);
  EXPECT_EQ(copies(part), 1);
  EXPECT_EQ(copies(ordinary), 1);
  EXPECT_EQ(error_of([&] { copy_async(host, full({3}, 1, Float32, cpu()).to(device)); }),
            error_of([&] { host.copy_(full({3}, 1, Float32, cpu())); }));
  runtime.events_happen = false;
  copy_async(host, there);
  host = part = Tensor();
  EXPECT_GT(runtime.count("synchronize_event"), 0);  // memory is given back after the copy
  Tensor recorded = zeros({4}).set_requires_grad() * 1;
  EXPECT_NO_THROW(copy_async(recorded, there));
}

TEST_F(FakeGpu, ACardThatFailsLeavesTheOthersChosen) {
  runtime.devices = 2;
  gpu::install(DeviceType::HIP, plugin_of(runtime));
  empty({4}, Float32, device);
  runtime.failing = "create_stream";
  EXPECT_THROW(empty({4}, Float32, hip(1)), DeviceError);
  runtime.failing.clear();
  empty({4}, Float32, device);
  EXPECT_EQ(runtime.current, 0);
}

TEST_F(FakeGpu, WhatACaptureReleasesComesBackAfterIt) {
  const Stream own = current_stream(device), side(device);
  const StreamGuard guard(side);
  Tensor before = empty({8}, Float32, device);
  void* const place = before.data_ptr();
  DeviceGraph graph;
  const auto capture_own = [&](const std::function<void()>& fn) {
    const StreamGuard captured(own);
    graph.capture(device, fn);
  };
  capture_own([&] {
    const StreamGuard forked(side);
    record_stream(std::exchange(before, {}), own);  // what is recorded there now never happens
    for (int i = 0; i < 2; ++i) record_stream(empty({8}, Float32, device), own);
  });
  EXPECT_EQ(empty({8}, Float32, device).data_ptr(), place);
  graph = DeviceGraph();
  empty_cache(device);
  EXPECT_EQ(memory_stats(device).reserved, 0);
}

TEST_F(FakeGpu, OtherThreadsTakeNoMemoryOfAGraph) {
  DeviceGraph graph;
  void *inside = nullptr, *outside = nullptr;
  graph.capture(device, [&] {
    inside = empty({8}, Float32, device).data_ptr();
    std::thread([&] { outside = empty({8}, Float32, device).data_ptr(); }).join();
  });
  EXPECT_NE(inside, outside);
  EXPECT_EQ(empty({8}, Float32, device).data_ptr(), outside);
}

TEST_F(FakeGpu, GraphsKeepTheirMemoryAndRefuseTheHost) {
  Tensor x = ones({8}).to(device);
  DeviceGraph graph;
  EXPECT_THROW(graph.replay(), Error);
  Tensor inside;
  graph.capture(device, [&] { inside = empty({8}, Float32, device); });
  void* place = inside.data_ptr();
  inside = Tensor();
  EXPECT_NE(empty({8}, Float32, device).data_ptr(), place);  // nobody else gets it
  graph.replay();
  EXPECT_EQ(runtime.count("launch"), 1);
  EXPECT_EQ(error_of([&] { DeviceGraph().capture(device, [&] { x.to(cpu()); }); }),
            "a graph is being captured: data cannot move between host and device");
  EXPECT_EQ(x.to(cpu()).sum().item(), 8);  // after the refused capture everything works again
  EXPECT_THROW(DeviceGraph().capture(cpu(), [] {}), Error);
  graph = DeviceGraph();
  EXPECT_EQ(runtime.graphs, 0);  // of the refused capture, too
}

TEST_F(FakeGpu, ReplaysDrawFreshNumbers) {
  Generator generator(7);
  DeviceGraph graph;
  Tensor state;
  graph.capture(device, [&] { state = generator.reserve(64, device); });
  const uint64_t before = generator.offset();
  graph.replay();
  graph.replay();
  EXPECT_EQ(generator.offset(), before + 2 * 16);
  EXPECT_EQ(state.to(cpu()).to_vector<int64_t>(), (std::vector<int64_t>{7, static_cast<int64_t>(before + 16)}));
}

TEST_F(FakeGpu, WhatAReplayDrawsLiesWhereNoCallOfTheGraphWorks) {
  Generator generator(7);
  DeviceGraph graph;
  void *temporary = nullptr, *again = nullptr;
  Tensor state;
  graph.capture(device, [&] {
    temporary = empty({2}, Int64, device).data_ptr();
    state = generator.reserve(64, device);
    again = empty({2}, Int64, device).data_ptr();
  });
  EXPECT_EQ(temporary, again);
  EXPECT_NE(state.data_ptr(), temporary);
}

TEST_F(FakeGpu, EveryFailureIsAnErrorAndNothingMore) {
  Tensor x = ones({4}).to(device);
  for (const char* call : {"allocate", "copy", "synchronize"}) {
    runtime.failing = call;
    EXPECT_THROW(empty({int64_t(8 * MiB)}, Float32, device).to(cpu()), DeviceError) << call;
    EXPECT_EQ(ones({3}).sum().item(), 3) << call;
    runtime.failing.clear();
  }
  EXPECT_EQ(x.to(cpu()).sum().item(), 4);
  runtime.failing = "create_event";
  {
    Stream side(device);
    Tensor y = empty({4}, Float32, device);
    record_stream(y, side);
  }  // giving memory back never throws
  runtime.failing.clear();
}

TEST_F(FakeGpu, KernelsSayWhatIsWrongWithTheDataOnce) {
  Tensor x = ones({4}).to(device);
  gpu::state(device).fault->raised = 1;
  gpu::state(device).fault->op = "embedding";
  gpu::state(device).fault->index = 70;
  gpu::state(device).fault->bound = 65;
  EXPECT_EQ(error_of([&] { x.to(cpu()); }), "embedding: index 70 is out of range for size 65");
  EXPECT_EQ(x.to(cpu()).sum().item(), 4);
}

TEST_F(FakeGpu, WaitingForTheDeviceSeesFaultsOfEveryStream) {
  gpu::Fault* fault = gpu::state(device).fault;
  runtime.while_waiting = [fault] { *fault = {1, "gather", 9, 3, {}}; };
  EXPECT_EQ(error_of([&] { synchronize(device); }), "gather: index 9 is out of range for size 3");
  runtime.while_waiting = nullptr;
  synchronize(device);
}

TEST_F(FakeGpu, DevicesThatAreNotThereSayWhy) {
  EXPECT_EQ(device_count(DeviceType::HIP), 1);
  EXPECT_EQ(why_unavailable(hip(0)), "");
  EXPECT_EQ(why_unavailable(hip(3)), "there is only hip:0");
  EXPECT_EQ(error_of([&] { empty({1}, Float32, hip(3)); }), "device hip:3 is not available: there is only hip:0");
  runtime.failing = "device_count";
  gpu::install(DeviceType::HIP, plugin_of(runtime));
  EXPECT_EQ(device_count(DeviceType::HIP), 0);
  EXPECT_EQ(why_unavailable(hip(0)), "device_count failed: as told");
}

TEST_F(FakeGpu, AnUnsupportedCardIsCountedAndSaysWhy) {
  runtime.unsupported = "made up (sm_75) is not supported: sm_80 is the oldest that is";
  gpu::install(DeviceType::HIP, plugin_of(runtime));
  EXPECT_EQ(device_count(DeviceType::HIP), 1);
  EXPECT_EQ(why_unavailable(hip(0)), runtime.unsupported);
  const std::string want = "device hip:0 is not available: " + runtime.unsupported;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of([&] { empty({1}, Float32, hip(0)); }), want);
  EXPECT_EQ(error_of([&] { properties(hip(0)); }), want);
  EXPECT_EQ(ones({3}).sum().item(), 3);
}

TEST_F(FakeGpu, GuardsAreOfTheirThread) {
  EXPECT_EQ(default_device(), cpu());
  {
    DeviceGuard guard(device);
    EXPECT_EQ(empty({2}).device(), device);
    std::thread([&] { EXPECT_EQ(empty({2}).device(), cpu()); }).join();
  }
  EXPECT_EQ(empty({2}).device(), cpu());
  EXPECT_THROW(DeviceGuard(hip(9)), Error);
}

TEST_F(FakeGpu, MixedDevicesAreAnError) {
  Tensor here = ones({2}), there = ones({2}).to(device);
  EXPECT_EQ(error_of([&] { add(here, there); }), "add: inputs on different devices: f32[2] on cpu and f32[2] on hip:0");
  EXPECT_EQ(error_of([&] { add(there, there); }), "hip:0: the plugin has no kernels of this family");
}

}  // namespace
}  // namespace tessera
