// The engine "mpi": this program as ranks that mpirun begins, told by TESSERA_TEST_MPI what to do.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "dist/engine.h"
#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::dist::through_mpi {
namespace {

// What rank r has.
Tensor input(int r, const Shape& shape, DType dtype) {
  Generator g(static_cast<uint64_t>(100 + r));
  return cast(randn(shape, g, Float32) * (is_floating(dtype) ? 1.0 : 50.0), dtype);
}

void expect_same(const Tensor& got, const Tensor& expected) {
  ASSERT_EQ(got.dtype(), expected.dtype());
  ASSERT_EQ(got.shape(), expected.shape());
  const Tensor a = got.contiguous(), b = expected.contiguous();
  EXPECT_EQ(std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.numel()) * size_of(a.dtype())), 0);
}

// The sum of all ranks' inputs in the one order, made by this rank alone.
Tensor sum_of_all(int ranks, const Shape& shape, DType dtype, ReduceOp op) {
  Tensors all;
  std::vector<const char*> parts;
  for (int r = 0; r < ranks; ++r)
    parts.push_back(static_cast<const char*>(all.emplace_back(input(r, shape, dtype)).data_ptr()));
  Tensor out = empty(shape, dtype);
  combine(parts, static_cast<char*>(out.data_ptr()), out.numel(), dtype, op);
  return out;
}

void reduce_all(const World& world) {
  for (const Shape& shape : {Shape{1}, Shape{4, 3}, Shape{700'001}, Shape{0, 3}})
    for (const auto& [dtype, op] :
         {std::pair{Float32, Sum}, {Float32, Mean}, {BFloat16, Sum}, {Float64, Max}, {Int64, Sum}, {Int32, Product}}) {
      const Tensor mine = input(world.rank(), shape, dtype), all = sum_of_all(world.size(), shape, dtype, op);
      expect_same(all_reduce(mine, world, op), all);
      const Tensor at_root = reduce(mine, world.size() - 1, world, op);
      expect_same(at_root, world.rank() == world.size() - 1 ? all : mine);
    }
  const int64_t n = world.size();
  const Shape shape{3 * n, 5};
  const Tensor all = sum_of_all(world.size(), shape, Float32, Sum);
  expect_same(reduce_scatter(input(world.rank(), shape, Float32), world),
              all.slice(0, 3 * world.rank(), 3 * world.rank() + 3));
  Tensors several{full({7}, world.rank(), Float32), full({100'000}, 2.0 * world.rank(), Float32),
                  full({0}, 1, Float32)};
  all_reduce_(several, world);
  const double sum = static_cast<double>(n * (n - 1)) / 2;
  EXPECT_EQ(several[0].slice(0, 6, 7).item(), sum);
  EXPECT_EQ(several[1].slice(0, 99'999, 100'000).item(), 2 * sum);
}

void move_all(const World& world) {
  const int n = world.size(), me = world.rank();
  const auto of = [](int r) { return full({2, 3}, r, Float32); };
  const Tensor gathered = all_gather(of(me), world);
  const Tensor turned = all_to_all(full({2 * n, 3}, me, Float32), world);
  for (int r = 0; r < n; ++r) {
    expect_same(gathered.slice(0, 2 * r, 2 * r + 2), of(r));
    expect_same(turned.slice(0, 2 * r, 2 * r + 2), of(r));
  }
  expect_same(broadcast(of(me), n - 1, world), of(n - 1));
  EXPECT_EQ(gather(of(me), 0, world).size(0), me == 0 ? 2 * n : 0);
  expect_same(scatter(me == 0 ? gathered : zeros({2 * n, 3}), 0, world), of(me));
  barrier(world);
  // Messages, both ways and longer than what is sent before somebody receives.
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{300'000}}) {
    const Tensor mine = full({rows}, me, Float32);
    const int other = me ^ 1;
    if (me & 1) send(mine, other, world);
    const Tensor got = recv({{rows}, Float32, cpu()}, other, world);
    if (!(me & 1)) send(mine, other, world);
    expect_same(got, full({rows}, other, Float32));
  }
  const Group half = world.split(me % 2);
  EXPECT_EQ(half.size(), n / 2);
  expect_same(all_reduce(full({3}, me, Float32), half), full({3}, n == 2 ? me : 2.0 * (me % 2) + 2, Float32));
  Work work = start(world, [&] { return all_reduce(of(me), world); });
  expect_same(work.wait(), full({2, 3}, n * (n - 1) / 2.0, Float32));
}

void rank_does(const std::string& what) {
  const World world;
  if (what == "explain") {
    const std::string text = explain_engines(world, cpu());
    EXPECT_NE(text.find("-> mpi              chosen: messages of MPI\n"), std::string::npos) << text;
    EXPECT_NE(text.find("   tcp              another one comes before it\n"), std::string::npos) << text;
    return;
  }
  ASSERT_EQ(world.engine(), "mpi");
  if (what == "reduce") return reduce_all(world);
  if (what == "move") return move_all(world);
  barrier(world);
  if (world.rank() == 1) {
    if (what == "early") return;
    if (what == "throw") throw Error("of the test");
    if (what == "kill") raise(SIGKILL);
    if (what == "differ") broadcast(ones({2}), 0, world);
  }
  all_reduce(ones({300'000}), world);
}

TEST(MpiRank, Does) {
  const char* const what = std::getenv("TESSERA_TEST_MPI");
  if (!what) GTEST_SKIP() << "mpirun did not begin this";
  try {
    rank_does(what);
  } catch (const Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    FAIL();
  }
}

struct Ended {
  int code = -1;
  std::string said;
  bool says(const std::string& text) const { return said.find(text) != std::string::npos; }
};

// Sanitizers report what Open MPI leaks, and its locks.
#if defined(TESSERA_MPIRUN) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
struct MpiRanks : testing::Test {
  // This program as so many ranks, which do that.
  static Ended run(int ranks, const std::string& what, const std::string& variables = "") {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string command = "TESSERA_TEST_MPI=" + what + " " + variables +
                                " timeout 120 " TESSERA_MPIRUN " --oversubscribe --allow-run-as-root -n " +
                                std::to_string(ranks) + " " + self +
                                " --gtest_filter=MpiRank.Does --gtest_brief=1 2>&1";
    Ended ended;
    FILE* const pipe = popen(command.c_str(), "r");
    char line[1024];
    while (std::fgets(line, sizeof line, pipe)) ended.said += line;
    const int status = pclose(pipe);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ended;
  }
};

TEST_F(MpiRanks, ReduceAlongTheTree) {
  for (const int ranks : {2, 4}) {
    const Ended ended = run(ranks, "reduce");
    EXPECT_EQ(ended.code, 0) << ended.said;
  }
}

TEST_F(MpiRanks, MoveEveryElement) {
  for (const int ranks : {2, 4}) {
    const Ended ended = run(ranks, "move");
    EXPECT_EQ(ended.code, 0) << ended.said;
  }
}

TEST_F(MpiRanks, AreExplained) {
  const Ended ended = run(2, "explain");
  EXPECT_EQ(ended.code, 0) << ended.said;
}

TEST_F(MpiRanks, SayWhatDiffers) {
  const Ended ended = run(2, "differ");
  EXPECT_NE(ended.code, 0);
  EXPECT_TRUE(
      ended.says("error: collective 2 differs: all_reduce sum of f32[300000] on rank 0, broadcast of f32[2] with "
                 "root 0 on rank 1"))
      << ended.said;
}

TEST_F(MpiRanks, ARankThatFailsEndsTheOthers) {
  for (const char* what : {"early", "throw"}) {
    const Ended ended = run(2, what);
    EXPECT_NE(ended.code, 0);
    EXPECT_TRUE(ended.says("error: rank 1 has ended, and rank 0 waits for it")) << ended.said;
  }
  EXPECT_NE(run(2, "kill").code, 0);
}

TEST_F(MpiRanks, WithoutThePluginThereIsAnother) {
  const Ended asked = run(2, "reduce", "TESSERA_PLUGIN_DIR=/none TESSERA_ENGINE=mpi");
  EXPECT_NE(asked.code, 0);
  EXPECT_TRUE(asked.says("error: dist: the engine mpi was asked for: libtessera_mpi.so was not found")) << asked.said;
  const Ended other = run(2, "explain", "TESSERA_ENGINE=tcp");
  EXPECT_TRUE(other.says("   mpi              tcp was asked for\n")) << other.said;
}
#endif

std::string error_of(const WorldOptions& options) {
  try {
    run_ranks(
        2, [](const World&) {}, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Engines, SayWhyTheyCannotBeHad) {
  EXPECT_EQ(error_of({.engine = "mpi"}),
            "dist: the engine mpi was asked for: `tessera launch` or one process began several ranks, mpirun did not");
  EXPECT_EQ(error_of({.engine = "ucx"}), "dist: there is no engine ucx");
  setenv("TESSERA_ENGINE", "ucx", 1);
  EXPECT_EQ(error_of({}), "dist: there is no engine ucx");
  EXPECT_EQ(error_of({.engine = "tcp"}), "no error");
  unsetenv("TESSERA_ENGINE");
}

}  // namespace
}  // namespace tessera::dist::through_mpi
