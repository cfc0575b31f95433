#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "tessera/data.h"

namespace tessera {
namespace {

std::vector<int64_t> values(const Tensor& t) {
  const int64_t* p = t.data<int64_t>();
  return {p, p + t.numel()};
}

Tokens counting(int32_t n) {
  auto out = std::make_shared<std::vector<int32_t>>(n);
  std::iota(out->begin(), out->end(), 0);
  return out;
}

BatchSource index_source() {
  return [](int64_t index) { return Tensors{tensor<int64_t>({index}, {})}; };
}

TEST(RandomWindows, AreWindowsWithTheNextTokenAsTarget) {
  const BatchSource source = random_windows(counting(101), 7, 3, 42);
  std::vector<int> starts(101);
  for (int64_t i = 0; i < 2000; ++i) {
    const Tensors batch = source(i);
    ASSERT_EQ(describe(batch[0]), "i64[3, 7] on cpu");
    const auto x = values(batch[0]), y = values(batch[1]);
    for (size_t j = 0; j < x.size(); ++j) {
      ASSERT_EQ(y[j], x[j] + 1);
      if (j % 7) {
        ASSERT_EQ(x[j], x[j - 1] + 1);
      }
    }
    for (size_t row = 0; row < 3; ++row) ++starts[static_cast<size_t>(x[7 * row])];
  }
  // 6000 draws of 94 starts: 64 each, standard deviation 8.
  for (int s = 0; s < 94; ++s) EXPECT_NEAR(starts[static_cast<size_t>(s)], 64, 40) << s;
  for (int s = 94; s < 101; ++s) EXPECT_EQ(starts[static_cast<size_t>(s)], 0) << s;
}

TEST(RandomWindows, DependOnSeedAndIndexOnly) {
  const BatchSource a = random_windows(counting(1000), 5, 2, 1), b = random_windows(counting(1000), 5, 2, 1),
                    c = random_windows(counting(1000), 5, 2, 2);
  EXPECT_EQ(values(a(17)[0]), values(b(17)[0]));
  EXPECT_NE(values(a(17)[0]), values(a(18)[0]));
  EXPECT_NE(values(a(17)[0]), values(c(17)[0]));
  EXPECT_EQ(values(random_windows(counting(6), 5, 1, 1)(0)[0])[0], 0);  // the only window
  EXPECT_THROW(random_windows(counting(5), 5, 1, 1), Error);
  EXPECT_THROW(random_windows(counting(5), 0, 1, 1), Error);
}

TEST(ShuffledRows, VisitsEveryRowOnceAnEpoch) {
  std::vector<int64_t> ids(13);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> features;
  for (int i = 0; i < 13; ++i) features.insert(features.end(), {static_cast<float>(i), static_cast<float>(-i)});
  const BatchSource source = shuffled_rows({tensor(features, {13, 2}), tensor(ids, {13})}, 3, 7);
  std::vector<std::vector<int64_t>> epochs(3);
  for (int64_t i = 0; i < 12; ++i) {
    const Tensors batch = source(i);
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t id = batch[1].data<int64_t>()[row];
      epochs[static_cast<size_t>(i / 4)].push_back(id);
      EXPECT_EQ(batch[0].data<float>()[2 * row], static_cast<float>(id));
      EXPECT_EQ(batch[0].data<float>()[2 * row + 1], static_cast<float>(-id));
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (auto& e : epochs) {
    std::sort(e.begin(), e.end());
    EXPECT_EQ(std::unique(e.begin(), e.end()), e.end());
  }
  EXPECT_THROW(shuffled_rows({tensor(ids, {13})}, 14, 0), Error);
  EXPECT_THROW(shuffled_rows({tensor(ids, {13}), tensor(features, {26})}, 2, 0), Error);
}

TEST(DataLoader, ResumesExactlyWhereItWas) {
  DataLoader a(random_windows(counting(500), 11, 4, 3));
  for (int i = 0; i < 25; ++i) a.next();
  EXPECT_EQ(a.position(), 25);
  DataLoader b(random_windows(counting(500), 11, 4, 3), 5);
  b.next();
  b.seek(a.position());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(values(a.next()[0]), values(b.next()[0]));
  a.seek(0);
  b.seek(0);
  EXPECT_EQ(values(a.next()[1]), values(b.next()[1]));
  EXPECT_THROW(a.seek(-1), Error);
}

TEST(DataLoader, SeeksAndShutsDownAtAnyTime) {
  for (int round = 0; round < 200; ++round) {
    DataLoader loader(index_source(), 1 + round % 3);
    const int64_t at = round * 7;
    if (round % 2) loader.seek(at);
    if (round % 3) {
      EXPECT_EQ(*loader.next()[0].data<int64_t>(), round % 2 ? at : 0);
    }
  }
}

TEST(DataLoader, WorksAheadButNotFurtherThanAsked) {
  std::atomic<int64_t> made{0};
  DataLoader loader(
      [&](int64_t index) {
        ++made;
        return Tensors{tensor<int64_t>({index}, {})};
      },
      3);
  for (int i = 0; i < 500 && made < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(made, 3);
}

TEST(DataLoader, ErrorsOfTheSourceReachTheCaller) {
  DataLoader loader([](int64_t index) {
    if (index == 2) throw Error("batch 2 is broken");
    return Tensors{tensor<int64_t>({index}, {})};
  });
  loader.next();
  loader.next();
  for (int i = 0; i < 2; ++i) {
    try {
      loader.next();
      FAIL();
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "batch 2 is broken");
    }
  }
  loader.seek(3);
  EXPECT_EQ(*loader.next()[0].data<int64_t>(), 3);
  EXPECT_THROW(DataLoader(index_source(), 0), Error);
}

TEST(DataLoader, RaisesInAForkedProcess) {
  auto loader = std::make_unique<DataLoader>(index_source());
  loader->next();
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      loader->next();
    } catch (const Error&) {
      code = 0;
    }
    loader.reset();  // must not wait for a thread that is not there
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(*loader->next()[0].data<int64_t>(), 1);
}

}  // namespace
}  // namespace tessera
