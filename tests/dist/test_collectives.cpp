// Collectives of ranks that are threads, over each engine, against what they are by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "dist/page_locked.h"
#include "tessera/autograd.h"
#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::dist {
namespace {

constexpr int kSizes[] = {1, 2, 3, 5};
const Shape kShapes[] = {{5}, {4, 3}, {1, 200'001}, {30, 0}};

// What rank r has.
Tensor input(int r, const Shape& shape, DType dtype) {
  Generator g(static_cast<uint64_t>(100 + r));
  if (dtype == Bool) return gt(rand(shape, g, Float32), full({}, 0.5));
  return cast(randn(shape, g, Float32) * (is_floating(dtype) ? 1.0 : 50.0), dtype);
}

void expect_same(const Tensor& got, const Tensor& expected) {
  ASSERT_EQ(got.dtype(), expected.dtype());
  ASSERT_EQ(got.shape(), expected.shape());
  const Tensor a = got.detach().contiguous(), b = expected.detach().contiguous();
  EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.numel()) * size_of(a.dtype())), 0);
}

// Neighbours pair at each level, an odd last one passes up; halves in f32.
Tensor tree(Tensors level, ReduceOp op) {
  const DType dtype = level[0].dtype();
  const bool is_half = dtype == Float16 || dtype == BFloat16;
  const double count = static_cast<double>(level.size());
  if (is_half)
    for (Tensor& t : level) t = cast(t, Float32);
  while (level.size() > 1) {
    Tensors next;
    for (size_t i = 0; i < level.size(); i += 2) {
      if (i + 1 == level.size()) next.push_back(level[i]);
      else if (op == Max) next.push_back(maximum(level[i], level[i + 1]));
      else if (op == Min) next.push_back(minimum(level[i], level[i + 1]));
      else if (op == Product) next.push_back(level[i] * level[i + 1]);
      else next.push_back(level[i] + level[i + 1]);
    }
    level = next;
  }
  if (op == Mean) level[0] = level[0] / full({}, count, level[0].dtype());
  return cast(level[0], dtype);
}

Tensors inputs(int size, const Shape& shape, DType dtype) {
  Tensors all;
  for (int r = 0; r < size; ++r) all.push_back(input(r, shape, dtype));
  return all;
}

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// The thread sanitizer does not see how Gloo, which is not built with it, orders what its threads do.
std::vector<const char*> engines_of_this_build() {
  std::vector<const char*> engines{"neighbours", "tcp"};
#if defined(TESSERA_GLOO) && !defined(__SANITIZE_THREAD__)
  engines.push_back("gloo");
#endif
  return engines;
}

struct Collectives : testing::TestWithParam<const char*> {
  static void run(int size, const std::function<void(const World&)>& body, WorldOptions options = {}) {
    options.engine = GetParam();
    run_ranks(size, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(, Collectives, testing::ValuesIn(engines_of_this_build()),
                         [](const auto& engine) { return std::string(engine.param); });

TEST_P(Collectives, ReduceAlongTheTree) {
  for (const int size : kSizes)
    for (const Shape& shape : kShapes)
      for (const auto& [dtype, op] : {std::pair{Float32, Sum},
                                      {Float32, Mean},
                                      {Float64, Sum},
                                      {Float16, Sum},
                                      {BFloat16, Mean},
                                      {Int64, Sum},
                                      {Int32, Product},
                                      {Float32, Max},
                                      {Bool, Max}}) {
        if (dtype == Bool && shape.size() > 1 && shape[1] == 0) continue;
        const Tensor expected = dtype == Bool ? cast(tree(
                                                         [&] {
                                                           Tensors all;
                                                           for (const Tensor& t : inputs(size, shape, Bool))
                                                             all.push_back(cast(t, Int32));
                                                           return all;
                                                         }(),
                                                         op),
                                                     Bool)
                                              : tree(inputs(size, shape, dtype), op);
        run(size, [&, dtype = dtype, op = op](const World& world) {
          const Tensor mine = input(world.rank(), shape, dtype);
          expect_same(all_reduce(mine, world, op), expected);
          const int root = size / 2;
          const Tensor at_root = reduce(mine, root, world, op);
          expect_same(at_root, world.rank() == root ? expected : mine);
        });
      }
}

TEST_P(Collectives, MoveEveryElement) {
  for (const int size : kSizes)
    for (const Shape& one : kShapes) {
      Shape shape = one;
      shape[0] = one[0] * size;
      const Tensors all = inputs(size, shape, Float32);
      const int64_t each = one[0].value();
      const auto rows = [&](const Tensor& t, int r) { return t.slice(0, r * each, (r + 1) * each); };
      run(size, [&](const World& world) {
        const int r = world.rank(), root = size - 1;
        const Tensor& mine = all[static_cast<size_t>(r)];
        expect_same(all_gather(mine, world), concat(all, 0));
        expect_same(gather(mine, root, world), r == root ? concat(all, 0) : mine.slice(0, 0, 0));
        expect_same(scatter(mine, root, world), rows(all[static_cast<size_t>(root)], r));
        expect_same(broadcast(mine, root, world), all[static_cast<size_t>(root)]);
        Tensors columns;
        for (int from = 0; from < size; ++from) columns.push_back(rows(all[static_cast<size_t>(from)], r));
        expect_same(all_to_all(mine, world), concat(columns, 0));
        expect_same(reduce_scatter(mine, world), rows(tree(all, Sum), r));
        barrier(world);
      });
    }
}

TEST_P(Collectives, TakeStridesAndLists) {
  run(3, [](const World& world) {
    const Tensors all = inputs(3, {6, 7}, Float32);
    const Tensor mine = all[static_cast<size_t>(world.rank())];
    expect_same(all_reduce(mine.transpose(0, 1), world), tree(all, Sum).transpose(0, 1));
    Tensors list{mine.clone(), mine.clone().transpose(0, 1), zeros({0}), mine.slice(1, 0, 2).clone()};
    all_reduce_(list, world);
    expect_same(list[0], tree(all, Sum));
    expect_same(list[1], tree(all, Sum).transpose(0, 1));
    expect_same(list[3], tree(all, Sum).slice(1, 0, 2));
  });
}

TEST_P(Collectives, SendAndReceive) {
  run(4, [](const World& world) {
    const int next = (world.rank() + 1) % 4, before = (world.rank() + 3) % 4;
    for (const Shape& shape : {Shape{3}, Shape{70'000}, Shape{0}}) {
      const Tensor mine = input(world.rank(), shape, Float32);
      if (world.rank() % 2 == 0) {
        send(mine, next, world);
        expect_same(recv({shape, Float32, cpu()}, before, world), input(before, shape, Float32));
      } else {
        const Tensor got = recv({shape, Float32, cpu()}, before, world);
        send(mine, next, world);
        expect_same(got, input(before, shape, Float32));
      }
    }
  });
}

TEST_P(Collectives, GroupsAreApart) {
  run(5, [](const World& world) {
    const Group half = world.split(world.rank() % 2);
    EXPECT_EQ(half.size(), world.rank() % 2 ? 2 : 3);
    EXPECT_EQ(half.rank(), world.rank() / 2);
    for (int i = 0; i < 50; ++i) {  // groups do not wait for each other
      const Tensor x = full({3}, static_cast<double>(world.rank() + i), Float32);
      const double expected = world.rank() % 2 ? 4 + 2 * i : 6 + 3 * i;
      EXPECT_EQ(all_reduce(x, half).to_vector<double>(), std::vector<double>(3, expected));
    }
    EXPECT_EQ(all_reduce(ones({1}), world).item(), 5);
    const Group single = world.split(world.rank());
    EXPECT_EQ(single.size(), 1);
    EXPECT_EQ(all_reduce(ones({1}), single).item(), 1);
  });
}

TEST_P(Collectives, GoOnInTheBackground) {
  run(3, [](const World& world) {
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i)
      works.push_back(start(world, [=] { return all_reduce(full({1000}, static_cast<double>(i), Float32), world); }));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(works[static_cast<size_t>(i)].wait().slice(0, 999, 1000).item(), 3 * i);
    EXPECT_TRUE(works[0].done());
  });
}

// The group's own thread lets go of the group last.
TEST_P(Collectives, WorkOutlivesItsGroup) {
  run(2, [](const World& world) {
    Work work;
    {
      const Group pair = world.split(0);
      work = start(pair, [pair] { return all_reduce(ones({3}), pair); });
    }
    EXPECT_EQ(work.wait().to_vector<double>(), std::vector<double>(3, 2));
  });
}

// d(sum of w_r y_r)/dx over all ranks, where y comes from a collective: by finite differences of one element.
TEST_P(Collectives, HaveGradients) {
  using Fn = std::function<Tensor(const Tensor&, const Group&)>;
  const std::pair<const char*, Fn> all[] = {
      {"all_reduce", [](const Tensor& x, const Group& g) { return all_reduce(x, g); }},
      {"all_reduce mean", [](const Tensor& x, const Group& g) { return all_reduce(x, g, Mean); }},
      {"reduce_scatter", [](const Tensor& x, const Group& g) { return reduce_scatter(x, g); }},
      {"all_gather", [](const Tensor& x, const Group& g) { return all_gather(x, g); }},
      {"gather", [](const Tensor& x, const Group& g) { return gather(x, 1, g); }},
      {"scatter", [](const Tensor& x, const Group& g) { return scatter(x, 1, g); }},
      {"broadcast", [](const Tensor& x, const Group& g) { return broadcast(x, 1, g); }},
      {"all_to_all", [](const Tensor& x, const Group& g) { return all_to_all(x, g); }}};
  for (const auto& [name, fn] : all)
    for (int at = 0; at < 3; ++at) {
      std::vector<double> slopes(3);
      double before = 0, after = 0;
      const auto loss = [&fn](const Tensor& x, const World& world) {
        const Tensor y = fn(x, world);
        Generator g(static_cast<uint64_t>(7 + world.rank()));
        return sum(y * randn(y.shape(), g, Float64));
      };
      run(3, [&](const World& world) {
        const Tensor x = cast(input(world.rank(), {6, 2}, Float32), Float64).set_requires_grad();
        loss(x, world).backward();
        if (world.rank() == at) slopes[0] = x.grad().slice(0, 4, 5).slice(1, 1, 2).item();
        Tensor moved = x.detach().clone();
        if (world.rank() == at)
          moved.slice(0, 4, 5).slice(1, 1, 2).fill_(moved.slice(0, 4, 5).slice(1, 1, 2).item() + 1e-3);
        const double a = all_reduce(reshape(loss(x.detach(), world), {1}), world).item();
        const double b = all_reduce(reshape(loss(moved, world), {1}), world).item();
        if (world.rank() == 0) before = a, after = b;
      });
      EXPECT_NEAR(slopes[0], (after - before) / 1e-3, 1e-6) << name << " on rank " << at;
    }
}

TEST_P(Collectives, SayWhatDiffers) {
  const auto error = [](const std::function<void(const World&)>& body) { return message_of([&] { run(3, body); }); };
  EXPECT_EQ(error([](const World& w) { all_reduce(ones({w.rank() == 2 ? 4 : 3}), w); }),
            "collective 1 differs: all_reduce sum of f32[3] on rank 0, all_reduce sum of f32[4] on rank 2");
  EXPECT_EQ(error([](const World& w) {
              barrier(w);
              if (w.rank() == 1) broadcast(ones({2}), 0, w);
              else all_gather(ones({2}), w);
            }),
            "collective 2 differs: all_gather of f32[2] on rank 0, broadcast of f32[2] with root 0 on rank 1");
  EXPECT_EQ(error([](const World& w) { all_reduce(ones({2}), w, w.rank() ? Sum : Max); }),
            "collective 1 differs: all_reduce max of f32[2] on rank 0, all_reduce sum of f32[2] on rank 1");
  EXPECT_EQ(error([](const World& w) { all_reduce(cast(ones({2}), w.rank() == 1 ? Int64 : Float32), w); }),
            "collective 1 differs: all_reduce sum of f32[2] on rank 0, all_reduce sum of i64[2] on rank 1");
}

TEST_P(Collectives, ARankThatFailsEndsTheOthers) {
  std::atomic<int> ended{0};
  EXPECT_EQ(message_of([&] {
              run(4, [&](const World& world) {
                barrier(world);
                if (world.rank() == 2) throw Error("no more");
                try {
                  all_reduce(ones({3}), world);
                } catch (const Aborted& e) {
                  EXPECT_STREQ(e.what(), "rank 2: no more");
                  ++ended;
                  throw;
                }
              });
            }),
            "no more");
  EXPECT_EQ(ended, 3);
}

TEST_P(Collectives, RefuseWhatCannotBe) {
  run(2, [](const World& world) {
    EXPECT_EQ(message_of([&] { all_reduce(ones({2}, Int64), world, Mean); }),
              "all_reduce: a mean of i64 is none of it");
    EXPECT_EQ(message_of([&] { all_reduce(ones({2}, Bool), world); }),
              "all_reduce: of bool there are Max, which is any, and Min, which is all");
    EXPECT_EQ(message_of([&] { scatter(ones({3}), 0, world); }), "scatter: [3] has not a multiple of 2 rows");
    EXPECT_EQ(message_of([&] { broadcast(ones({3}), 2, world); }), "broadcast: there is no rank 2 among 2");
    EXPECT_EQ(message_of([&] { all_gather(ones({}), world); }),
              "all_gather: there is no dim along which to put tensors together");
    EXPECT_EQ(message_of([&] { send(ones({3}), world.rank(), world); }), "send: a rank does not send to itself");
    EXPECT_EQ(message_of([&] { all_reduce(ones({3}).set_requires_grad(), world, Max); }),
              "all_reduce: max has no gradient");
    EXPECT_EQ(message_of([&] { all_reduce(Tensor(), world); }), "all_reduce: input 0 is undefined");
  });
}

TEST_P(Collectives, ARankThatWaitsTooLongEndsTheRun) {
  EXPECT_EQ(message_of([] {
              run(2,
                  [](const World& world) {
                    if (world.rank() == 0) barrier(world);
                    else std::this_thread::sleep_for(std::chrono::seconds(1));
                  },
                  {.timeout = 0.2});
            }),
            "rank 0 has waited 0.2 s for rank 1");
}

TEST(PageLocked, IsTakenAnewOnceNobodyHasIt) {
  PageLocked memory;
  const void* first = nullptr;
  {
    const Tensor a = memory.empty({10, 3}, Float64, cpu()), b = memory.empty({30}, Float64, cpu());
    EXPECT_EQ(to_string(a.shape()), "[10, 3]");
    EXPECT_EQ(a.dtype(), Float64);
    EXPECT_NE(a.data_ptr(), b.data_ptr());
    first = a.data_ptr();
  }
  const Tensor large = memory.empty({100'000}, Float64, cpu()), same = memory.empty({7}, BFloat16, cpu());
  EXPECT_NE(large.data_ptr(), first);
  EXPECT_EQ(same.data_ptr(), first);
  EXPECT_EQ(memory.empty({0, 3}, Float32, cpu()).numel(), 0);
}

TEST(World, AProcessThatNothingLaunchedIsAlone) {
  const World world;
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.engine(), "none");
  const Tensor x = input(0, {4, 3}, Float32);
  for (const Tensor& y : {all_reduce(x, world), all_gather(x, world), reduce_scatter(x, world), broadcast(x, 0, world),
                          scatter(x, 0, world), gather(x, 0, world), all_to_all(x, world), reduce(x, 0, world)})
    expect_same(y, x);
  barrier(world);
}

}  // namespace
}  // namespace tessera::dist
