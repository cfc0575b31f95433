// Ranks with a GPU each, against the same collectives of the host.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/gpu_check.h"
#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera::dist {
namespace {

/// Skips where there are no two cards whose library is there.
class GpuRanks : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ranks = std::min(device_count(card().type), 4);
    if (ranks < 2) GTEST_SKIP() << "one GPU";
    std::string why_not;
    run_ranks(ranks, [&](const World& world) {
      all_reduce(full({1}, 1, Float32, device(world)), world);
      if (world.rank() == 0) why_not = world.state().on_devices.at(0).why_not;
    });
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
  static Device device(const World& world) { return {card().type, static_cast<int8_t>(world.rank())}; }

  int ranks = 0;
};

Tensor elements_of_rank(int r, const Shape& shape, DType dtype) {
  Generator g(static_cast<uint64_t>(100 + r));
  if (dtype == Bool) return gt(rand(shape, g, Float32), full({}, 0.5));
  return cast(randn(shape, g, Float32) * (is_floating(dtype) ? 1.0 : 50.0), dtype);
}

void expect_near(const Tensor& got, const Tensor& want, double limit) {
  ASSERT_EQ(got.dtype(), want.dtype());
  ASSERT_EQ(to_string(got.shape()), to_string(want.shape()));
  const auto a = got.detach().to(cpu()).to_vector<double>(), b = want.detach().to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_LE(std::abs(a[i] - b[i]), limit * (1 + std::abs(b[i]))) << i;
}

TEST_F(GpuRanks, ReduceAsTheHost) {
  for (const auto& [dtype, op, limit] : {std::tuple{Float32, Sum, 1e-6},
                                         {Float32, Mean, 1e-6},
                                         {Float64, Product, 1e-14},
                                         {Float16, Sum, 4e-3},
                                         {BFloat16, Mean, 3e-2},
                                         {Int64, Sum, 0.0},
                                         {Int32, Max, 0.0},
                                         {Int8, Min, 0.0},
                                         {Bool, Max, 0.0}})
    for (const Shape& shape : {Shape{4, 3}, Shape{4, 50'001}, Shape{8, 0}})
      run_ranks(ranks, [&, dtype = dtype, op = op, limit = limit](const World& world) {
        const Tensor here = elements_of_rank(world.rank(), shape, dtype), there = here.to(device(world));
        const int root = world.size() - 1;
        expect_near(all_reduce(there, world, op), all_reduce(here, world, op), limit);
        expect_near(reduce(there, root, world, op), reduce(here, root, world, op), limit);
        if (4 % world.size() == 0)
          expect_near(reduce_scatter(there, world, op), reduce_scatter(here, world, op), limit);
        Tensors list{there.clone(), there.transpose(0, 1).clone()}, wanted{here.clone(), here.transpose(0, 1).clone()};
        all_reduce_(list, world, op);
        all_reduce_(wanted, world, op);
        for (size_t i = 0; i < list.size(); ++i) expect_near(list[i], wanted[i], limit);
      });
}

// TESSERA_REDUCTION=ordered: the bits of the host.
TEST_F(GpuRanks, ReduceInOrder) {
  const char* const asked = std::getenv("TESSERA_REDUCTION");
  if (!asked || std::string(asked) != "ordered") GTEST_SKIP() << "TESSERA_REDUCTION is not ordered";
  for (const auto& [dtype, op] :
       {std::pair{Float32, Sum}, {Float32, Mean}, {BFloat16, Sum}, {Float16, Mean}, {Bool, Max}})
    run_ranks(ranks, [&, dtype = dtype, op = op](const World& world) {
      const Tensor here = elements_of_rank(world.rank(), {4, 50'001}, dtype), there = here.to(device(world));
      expect_near(all_reduce(there, world, op), all_reduce(here, world, op), 0);
      if (4 % world.size() == 0) expect_near(reduce_scatter(there, world, op), reduce_scatter(here, world, op), 0);
      Tensors list{there.clone(), there.transpose(0, 1).clone()};
      all_reduce_(list, world, op);
      expect_near(list[1], all_reduce(here, world, op).transpose(0, 1), 0);
    });
}

TEST_F(GpuRanks, MoveEveryElement) {
  for (const DType dtype : {Float32, BFloat16, Bool, Int64})
    run_ranks(ranks, [&](const World& world) {
      const Tensor here = elements_of_rank(world.rank(), {2 * world.size(), 1001}, dtype),
                   there = here.to(device(world));
      const int root = world.size() - 1, next = (world.rank() + 1) % world.size();
      const int before = (world.rank() + world.size() - 1) % world.size();
      expect_near(all_gather(there, world), all_gather(here, world), 0);
      expect_near(gather(there, root, world), gather(here, root, world), 0);
      expect_near(scatter(there, root, world), scatter(here, root, world), 0);
      expect_near(broadcast(there, root, world), broadcast(here, root, world), 0);
      expect_near(all_to_all(there, world), all_to_all(here, world), 0);
      if (world.rank() % 2 == 0) send(there, next, world);
      const Tensor received = recv({there.shape(), dtype, there.device()}, before, world);
      if (world.rank() % 2 == 1) send(there, next, world);
      expect_near(received, elements_of_rank(before, {2 * world.size(), 1001}, dtype), 0);
      barrier(world);
    });
}

TEST_F(GpuRanks, GoBackAndRunInGroups) {
  run_ranks(ranks, [&](const World& world) {
    Tensor x = elements_of_rank(world.rank(), {6}, Float32).to(device(world)).set_requires_grad();
    const Tensor y = all_reduce(x * x, world);
    const Tensor grad_x = grad({sum(y)}, {x})[0];
    expect_near(grad_x, (x.detach() * (2.0 * world.size())).to(cpu()), 1e-6);
    const Group own = world.split(world.rank());
    expect_near(all_reduce(x.detach(), own), x.detach().to(cpu()), 0);
    Work work = start(world, [&] { return all_reduce(x.detach(), world); });
    expect_near(work.wait(), all_reduce(x.detach().to(cpu()), world), 1e-6);
  });
}

TEST_F(GpuRanks, AreHeldByDeviceGraphs) {
  run_ranks(ranks, [&](const World& world) {
    const DeviceGuard guard(device(world));
    const NoGrad no_grad;
    Tensor x = full({1000}, 1.0 + world.rank()), y = zeros({1000});
    DeviceGraph graph;
    graph.capture(device(world), [&] { y.copy_(all_reduce(x, world) * 2.0); });
    for (int i = 0; i < 3; ++i) {
      x.fill_(i + world.rank());
      graph.replay();
      const double want = 2.0 * (i * world.size() + world.size() * (world.size() - 1) / 2);
      EXPECT_EQ(y.to(cpu()).to_vector<double>()[999], want);
    }
    synchronize(device(world));
    barrier(world);
  });
}

// Kernels of the library wait for a rank that will not come, and do not outlive the run.
TEST_F(GpuRanks, EndWithTheRun) {
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks(ranks,
                         [&](const World& world) {
                           const Tensor x = full({1000}, 1.0, Float32, device(world));
                           all_reduce(x, world);
                           if (world.rank() == 1) throw Error("enough");
                           for (int i = 0; i < 100; ++i) all_reduce(x, world).to(cpu());
                         }),
               Error);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

TEST_F(GpuTest, RanksOfOneCardGoThroughTheHost) {
  run_ranks(2, [&](const World& world) {
    const Tensor here = elements_of_rank(world.rank(), {4, 3}, Float32);
    expect_near(all_reduce(here.to(card()), world), all_reduce(here, world), 0);
    const std::string why_not = world.state().on_devices.at(0).why_not;
    EXPECT_TRUE(why_not == "ranks 0 and 1 share a card" || why_not.find("was not found") != std::string::npos)
        << why_not;
  });
}

}  // namespace
}  // namespace tessera::dist
