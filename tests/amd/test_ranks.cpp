// dist's engine of GPUs on a stand-in for librccl.so, between the made-up cards of another one for libamdhip64.so: what
// it calls and when, in groups and graphs, and how runs end. Kernels do not run here, so tensors come from the host,
// and what would copy them by a kernel is done in place.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/gpu/backend.h"
#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::dist {
namespace {

constexpr int kRanks = 3;  // and cards

Device device(const World& world) { return {DeviceType::HIP, static_cast<int8_t>(world.rank())}; }

Tensor elements_of_rank(int r, const Shape& shape, DType dtype) {
  Generator g(static_cast<uint64_t>(100 + r));
  return cast(randn(shape, g, Float32) * (is_floating(dtype) ? 1.0 : 5.0), dtype);
}

void expect_near(const Tensor& got, const Tensor& want, double limit) {
  ASSERT_EQ(got.dtype(), want.dtype());
  ASSERT_EQ(to_string(got.shape()), to_string(want.shape()));
  const auto a = got.detach().to(cpu()).to_vector<double>(), b = want.detach().to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_LE(std::abs(a[i] - b[i]), limit * (1 + std::abs(b[i]))) << i;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// What a run ended with, and after how many seconds.
std::pair<std::string, double> failure_of(const std::function<void(const World&)>& body, double timeout = 60) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_ranks(kRanks, body, {.timeout = timeout});
  } catch (const Error& error) {
    return {error.what(), seconds_since(begin)};
  }
  return {"", seconds_since(begin)};
}

TEST(HipRanks, ReduceAsTheHost) {
  for (const auto& [dtype, op, limit] : {std::tuple{Float32, Sum, 1e-6},
                                         {Float64, Product, 1e-14},
                                         {Float16, Sum, 4e-3},
                                         {BFloat16, Mean, 3e-2},
                                         {Int64, Sum, 0.0},
                                         {Int32, Max, 0.0},
                                         {Int8, Min, 0.0}})
    for (const Shape& shape : {Shape{6, 3}, Shape{3, 5001}, Shape{3, 0}})
      run_ranks(kRanks, [&, dtype = dtype, op = op, limit = limit](const World& world) {
        const Tensor here = elements_of_rank(world.rank(), shape, dtype), there = here.to(device(world));
        expect_near(reduce_scatter(there, world, op), reduce_scatter(here, world, op), limit);
        Tensors list{there, here.to(device(world))}, wanted{here.clone(), here.clone()};
        all_reduce_(list, world, op);
        all_reduce_(wanted, world, op);
        for (size_t i = 0; i < list.size(); ++i) expect_near(list[i], wanted[i], limit);
        EXPECT_EQ(world.engine(device(world)), "rccl");
        EXPECT_NE(explain_engines(world, device(world)).find("-> rccl "), std::string::npos);
      });
}

TEST(HipRanks, MoveEveryElement) {
  for (const DType dtype : {Float32, BFloat16, Bool, Int64})
    run_ranks(kRanks, [&](const World& world) {
      const Tensor here = elements_of_rank(world.rank(), {2 * kRanks, 1001}, dtype), there = here.to(device(world));
      const int root = 1, next = (world.rank() + 1) % kRanks, before = (world.rank() + kRanks - 1) % kRanks;
      expect_near(all_gather(there, world), all_gather(here, world), 0);
      expect_near(gather(there, root, world), gather(here, root, world), 0);
      expect_near(scatter(there, root, world), scatter(here, root, world), 0);
      expect_near(all_to_all(there, world), all_to_all(here, world), 0);
      if (world.rank() == 0) send(there, next, world);
      const Tensor received = recv({there.shape(), dtype, there.device()}, before, world);
      if (world.rank() != 0) send(there, next, world);
      expect_near(received, elements_of_rank(before, {2 * kRanks, 1001}, dtype), 0);
      barrier(world);
    });
}

TEST(HipRanks, RunInGroupsAndInTheBackground) {
  run_ranks(kRanks, [&](const World& world) {
    const Tensor here = elements_of_rank(world.rank(), {6}, Float32);
    const Group pair = world.split(world.rank() == 2 ? 1 : 0);
    Tensors x{here.to(device(world))}, want{here.clone()};
    all_reduce_(x, pair);
    all_reduce_(want, pair);
    expect_near(x[0], want[0], 1e-6);
    const Tensor there = here.to(device(world)), all = all_gather(here, world);
    Work work = start(world, [&] { return all_gather(there, world); });
    expect_near(work.wait(), all, 0);
  });
}

TEST(HipRanks, AreHeldByDeviceGraphs) {
  run_ranks(kRanks, [&](const World& world) {
    const DeviceGuard guard(device(world));
    const NoGrad no_grad;
    const Tensors x{full({1000}, 1.0, Float64, cpu()).to(device(world))};
    DeviceGraph graph;
    all_reduce_(x, world);  // makes the communicator
    graph.capture(device(world), [&] { all_reduce_(x, world); });
    for (int i = 0; i < 4; ++i) graph.replay();
    EXPECT_EQ(x[0].to(cpu()).to_vector<double>()[999], std::pow(kRanks, 5));
    barrier(world);
  });
}

TEST(HipRanks, NameTheDifferingCall) {
  const auto [text, seconds] = failure_of([](const World& world) {
    const Tensors x{full({4}, 1.0).to(device(world))};
    all_reduce_(x, world);
    if (world.rank() == 1) all_gather(x[0], world);
    else all_reduce_(x, world);
    x[0].to(cpu());
    barrier(world);
  });
  EXPECT_NE(text.find("collective 2 differs: "), std::string::npos) << text;
  EXPECT_NE(text.find("all_reduce sum of 4 f32 in a list on rank"), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather of f32[4] on rank 1"), std::string::npos) << text;
  EXPECT_LT(seconds, 4);  // 1.05 on a quiet machine
}

TEST(HipRanks, NameWhoDoesNotCome) {
  const auto [text, seconds] = failure_of(
      [](const World& world) {
        const Tensors x{full({4}, 1.0).to(device(world))};
        all_reduce_(x, world);
        if (world.rank() == 2) {
          while (world.state().control->abort_reason().empty())
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          return;
        }
        all_reduce_(x, world);
        x[0].to(cpu());
        barrier(world);
      },
      1.5);
  EXPECT_NE(text.find("it has waited 1.5 s for rank 2"), std::string::npos) << text;
  EXPECT_LT(seconds, 4);
}

TEST(HipRanks, EndWithTheRun) {
  const auto [text, seconds] = failure_of([](const World& world) {
    const Tensors x{full({1000}, 1.0).to(device(world))};
    all_reduce_(x, world);
    if (world.rank() == 1) throw Error("enough");
    for (int i = 0; i < 100; ++i) {
      all_reduce_(x, world);
      x[0].to(cpu());
    }
  });
  EXPECT_EQ(text, "enough");
  EXPECT_LT(seconds, 5);
}

TEST(HipRanks, OfOneCardGoThroughTheHost) {
  run_ranks(2, [](const World& world) {
    const Tensor here = elements_of_rank(world.rank(), {4, 3}, Float32);
    const Device shared{DeviceType::HIP, 0};
    expect_near(all_gather(here.to(shared), world), all_gather(here, world), 0);
    EXPECT_EQ(world.engine(shared), "neighbours through the host: ranks 0 and 1 share a card");
    // Page-locked memory is taken anew by call after call, of other sizes and dtypes.
    for (const int64_t rows : {2, 6000, 4, 0})
      for (const DType dtype : {Float32, BFloat16, Int64}) {
        const Tensor x = elements_of_rank(world.rank(), {rows, 7}, dtype), there = x.to(shared);
        expect_near(all_gather(there, world), all_gather(x, world), 0);
        expect_near(all_reduce(there, world), all_reduce(x, world), 0);
        expect_near(reduce(there, 1, world), reduce(x, 1, world), 0);
        expect_near(reduce_scatter(there, world), reduce_scatter(x, world), 0);
        expect_near(gather(there, 1, world), gather(x, 1, world), 0);
        expect_near(scatter(there, 0, world), scatter(x, 0, world), 0);
        expect_near(broadcast(there, 1, world), broadcast(x, 1, world), 0);
        expect_near(all_to_all(there, world), all_to_all(x, world), 0);
        const int other = 1 - world.rank();
        if (world.rank() == 0) send(there, other, world);
        const Tensor got = recv({x.shape(), dtype, shared}, other, world);
        if (world.rank() == 1) send(there, other, world);
        expect_near(got, elements_of_rank(other, {rows, 7}, dtype), 0);
      }
    const Tensor held = world.state().page_locked.empty({4, 7}, Float32, shared);
    EXPECT_TRUE(gpu::is_page_locked(held, shared));
  });
}

// A rank that is alone: its gradients go through the library where it was asked for.
TEST(HipRanks, OneRankAloneGoesThroughTheLibrary) {
  setenv("TESSERA_GPU_ENGINE", "rccl", 1);
  for (const bool even_alone : {false, true})
    run_ranks(1,
              [&](const World& world) {
                const Tensor here = elements_of_rank(0, {4, 3}, Float32);
                Tensors list{here.to(device(world))};
                all_reduce_(list, world);
                expect_near(list[0], here, 0);
                if (even_alone) expect_near(all_gather(list[0], world), here, 0);  // otherwise a copy by a kernel
                EXPECT_EQ(world.engine(device(world)), even_alone ? "rccl" : "none");
              },
              {.even_alone = even_alone});
  unsetenv("TESSERA_GPU_ENGINE");
}

// In a process of its own, since libraries are opened once.
TEST(HipRanks, WithoutTheLibraryGoThroughTheHost) {
  setenv("TESSERA_RCCL", "/nowhere/librccl.so", 1);
  run_ranks(2, [](const World& world) {
    const Tensor here = elements_of_rank(world.rank(), {4, 3}, Float32);
    expect_near(all_gather(here.to(device(world)), world), all_gather(here, world), 0);
    EXPECT_EQ(world.engine(device(world)),
              "neighbours through the host: rank 0: /nowhere/librccl.so was not found (TESSERA_RCCL may name it)");
  });
  setenv("TESSERA_GPU_ENGINE", "rccl", 1);
  const auto [text, seconds] =
      failure_of([](const World& world) { all_reduce(full({4}, 1.0).to(device(world)), world); });
  EXPECT_EQ(text,
            "dist: TESSERA_GPU_ENGINE=rccl: rank 0: /nowhere/librccl.so was not found (TESSERA_RCCL may name it)");
  unsetenv("TESSERA_GPU_ENGINE");
}

}  // namespace
}  // namespace tessera::dist
