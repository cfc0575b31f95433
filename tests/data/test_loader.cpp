#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
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

TEST(ShuffledWindows, CoverTheTextOnceAnEpochWithTheNextTokenAsTarget) {
  // 101 tokens: 13 windows of 7 that start at one of 10 places.
  const BatchSource source = shuffled_windows(counting(101), 7, 1, 42);
  std::set<int> shifts;
  std::vector<int> first_order, order;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    order.clear();
    for (int64_t i = 0; i < 13; ++i) {
      const Tensors batch = source(epoch * 13 + i);
      ASSERT_EQ(describe(batch[0]), "i64[1, 7] on cpu");
      const auto x = values(batch[0]), y = values(batch[1]);
      for (size_t j = 0; j < x.size(); ++j) {
        ASSERT_EQ(x[j], x[0] + static_cast<int64_t>(j));
        ASSERT_EQ(y[j], x[j] + 1);
      }
      order.push_back(static_cast<int>(x[0]));
    }
    std::vector<int> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 1; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], sorted[i - 1] + 7);
    shifts.insert(sorted[0]);
    if (epoch == 0) first_order = order;
  }
  EXPECT_EQ(shifts.size(), 10u);
  EXPECT_EQ(*shifts.begin(), 0);
  EXPECT_EQ(*shifts.rbegin(), 9);  // 9 + 13 * 7 = 100: the last target is the last token
  EXPECT_NE(order, first_order);
}

TEST(ShuffledWindows, GoOnWithinABatchWhereAnEpochEnds) {
  const BatchSource one = shuffled_windows(counting(101), 7, 1, 5), five = shuffled_windows(counting(101), 7, 5, 5);
  for (int64_t i = 0; i < 9; ++i) {
    const auto x = values(five(i)[0]);
    for (int64_t row = 0; row < 5; ++row) EXPECT_EQ(values(one(5 * i + row)[0])[0], x[static_cast<size_t>(7 * row)]);
  }
}

TEST(ShuffledWindows, DependOnSeedAndIndexOnly) {
  const BatchSource a = shuffled_windows(counting(1000), 5, 2, 1), b = shuffled_windows(counting(1000), 5, 2, 1),
                    c = shuffled_windows(counting(1000), 5, 2, 2);
  EXPECT_EQ(values(a(17)[0]), values(b(17)[0]));
  EXPECT_NE(values(a(17)[0]), values(a(18)[0]));
  EXPECT_NE(values(a(17)[0]), values(c(17)[0]));
  EXPECT_EQ(values(shuffled_windows(counting(6), 5, 1, 1)(0)[0])[0], 0);  // the only window
  EXPECT_THROW(shuffled_windows(counting(5), 5, 1, 1), Error);
  EXPECT_THROW(shuffled_windows(counting(5), 0, 1, 1), Error);
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
  DataLoader a(shuffled_windows(counting(500), 11, 4, 3));
  for (int i = 0; i < 25; ++i) a.next();
  EXPECT_EQ(a.position(), 25);
  DataLoader b(shuffled_windows(counting(500), 11, 4, 3), 5);
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
