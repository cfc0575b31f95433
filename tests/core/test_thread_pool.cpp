#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "tessera/error.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

struct Threads {
  int before = num_threads();
  explicit Threads(int n) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
};

TEST(ThreadPool, RunsEachIndexOnce) {
  for (int threads : {1, 2, 5}) {
    Threads scope(threads);
    for (long long count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> seen(count);
      executor().parallel(count, [&](long long i, int thread) {
        EXPECT_LT(thread, threads);
        seen[i]++;
      });
      for (auto& s : seen) EXPECT_EQ(s, 1);
    }
  }
}

// With more threads than processors many come when a region is over, and must leave the next one alone.
TEST(ThreadPool, LateThreadsMissTheirRegion) {
  Threads scope(16);
  std::atomic<int> inside{0};
  for (int round = 0; round < 5000; ++round) {
    std::vector<int> seen(static_cast<size_t>(2 + round % 37));  // gone when the region is
    executor().parallel(static_cast<long long>(seen.size()), [&](long long i, int) {
      ++inside;
      seen[static_cast<size_t>(i)] += round;
      --inside;
    });
    ASSERT_EQ(inside, 0);
    for (const int s : seen) ASSERT_EQ(s, round);
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  Threads scope(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(executor().parallel(100,
                                     [](long long i, int) {
                                       if (i == 37) throw Error("boom");
                                     }),
                 Error);
    std::atomic<long long> sum{0};
    executor().parallel(100, [&](long long i, int) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(ThreadPool, NestedRegionsRunSerially) {
  Threads scope(4);
  std::atomic<int> calls{0};
  executor().parallel(8, [&](long long, int outer) {
    executor().parallel(8, [&](long long, int inner) {
      EXPECT_EQ(inner, outer);
      calls++;
    });
  });
  EXPECT_EQ(calls, 64);
}

TEST(ThreadPool, HostThreadsDoNotShareScratch) {
  Threads scope(2);
  std::vector<std::thread> hosts;
  std::atomic<int> mistakes{0};
  for (int h = 0; h < 3; ++h)
    hosts.emplace_back([&, h] {
      for (int round = 0; round < 200; ++round) {
        auto* outside = static_cast<int*>(executor().scratch(0, 4096));
        std::fill_n(outside, 1024, h);
        executor().parallel(4, [&](long long i, int thread) {
          auto* mine = static_cast<int*>(executor().scratch(thread, 4096));
          int tag = h * 100 + static_cast<int>(i);
          std::fill_n(mine, 1024, tag);
          for (int n = 0; n < 1024; ++n) mistakes += mine[n] != tag;
        });
        for (int n = 0; n < 1024; ++n) mistakes += outside[n] != h;
      }
    });
  for (auto& t : hosts) t.join();
  EXPECT_EQ(mistakes, 0);
}

TEST(ThreadPool, RefusesBadCounts) {
  EXPECT_THROW(set_num_threads(0), Error);
  EXPECT_THROW(set_num_threads(100000), Error);
}

#if !defined(__SANITIZE_THREAD__)  // the sanitizer does not follow threads made after fork
TEST(ThreadPool, WorksAfterFork) {
  Threads scope(3);
  executor().parallel(100, [](long long, int) {});
  pid_t child = fork();
  if (child == 0) {
    std::atomic<long long> sum{0};
    executor().parallel(1000, [&](long long i, int) { sum += i; });
    _exit(sum == 499500 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

}  // namespace
}  // namespace tessera
