#include "tessera/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/numpy_random.h"
#include "io/io_check.h"

namespace tessera {
namespace {

// numpy.random.default_rng(9176): integers(0, 2**64, 3, "uint64"), then random(), integers(0, 10, 5), permutation(8)
// and integers(0, 2**40, 2).
TEST(NumpyRandom, DrawsWhatNumPyDraws) {
  NumpyRandom random(9176);
  EXPECT_EQ(random.next64(), 14864287112915649284u);
  EXPECT_EQ(random.next64(), 2538383001129672880u);
  EXPECT_EQ(random.next64(), 13548176007687939484u);
  EXPECT_EQ(random.real(), 0.853959218605359);
  for (int64_t wanted : {7, 3, 7, 8, 5}) EXPECT_EQ(random.integer(0, 10), wanted);
  std::vector<int64_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  random.shuffle(std::span(ids));
  EXPECT_EQ(ids, (std::vector<int64_t>{2, 0, 5, 6, 1, 7, 3, 4}));
  for (int64_t wanted : {832612232340, 1077369105212}) EXPECT_EQ(random.integer(0, int64_t{1} << 40), wanted);
}

std::vector<int64_t> sizes_of(int64_t shards) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < shards; ++i) out.push_back(17 + i * 13 % 31);
  return out;
}

TEST(SampleOrder, EveryShuffleIsAPermutation) {
  const auto sizes = sizes_of(37);
  const int64_t samples = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::set<std::vector<int64_t>> seen;
  for (const char* name : {"none", "naive", "py1s", "py2s", "py1br", "py1e"})
    for (int64_t epoch : {0, 1}) {
      SampleOrderOptions o;
      o.shuffle = parse_shuffle(name);
      o.canonical_nodes = 4;
      o.block = 100;
      std::vector<int64_t> ids = shuffled_samples(sizes, o, epoch);
      EXPECT_EQ(ids, shuffled_samples(sizes, o, epoch)) << name;
      const bool new_one = seen.insert(ids).second;
      EXPECT_EQ(new_one, epoch == 0 || std::string(name) != "none") << name << epoch;
      std::sort(ids.begin(), ids.end());
      for (int64_t i = 0; i < samples; ++i) ASSERT_EQ(ids[static_cast<size_t>(i)], i) << name;
    }
}

// The global batches: what all ranks read at one time, each as a set.
std::vector<std::multiset<int64_t>> global_batches(const SampleOrderOptions& o, int64_t first) {
  const Tensor ids = sample_order(sizes_of(37), o, 3, first);
  std::vector<std::multiset<int64_t>> out(static_cast<size_t>(ids.size(3)));
  const int64_t* next = ids.data<int64_t>();
  for (int64_t rank = 0; rank < ids.size(0) * ids.size(1); ++rank)
    for (auto& batch : out)
      for (int64_t i = 0; i < ids.size(4); ++i) batch.insert(*next++);
  return out;
}

TEST(SampleOrder, NoNumberOfRanksChangesIt) {
  SampleOrderOptions one;
  one.canonical_nodes = 8;
  one.block = 100;
  one.batch = 48;
  const auto wanted = global_batches(one, 0);
  for (int64_t nodes : {1, 2, 4, 8})
    for (int64_t ranks : {1, 2, 3}) {
      SampleOrderOptions o = one;
      o.nodes = nodes;
      o.ranks_per_node = ranks;
      o.batch = 48 / (nodes * ranks);
      auto got = global_batches(o, 0);
      for (size_t i = 0; i + 1 < wanted.size(); ++i) EXPECT_EQ(got[i], wanted[i]) << nodes << " " << ranks << " " << i;
      got = global_batches(o, 48 * 5);  // goes on where another number of ranks was
      for (size_t i = 5; i + 1 < wanted.size(); ++i)
        EXPECT_EQ(got[i - 5], wanted[i]) << nodes << " " << ranks << " " << i;
    }
  SampleOrderOptions three = one;  // which does not divide 8: only the nodes of the beginning do
  three.nodes = 3;
  three.batch = 16;
  EXPECT_EQ(error_of([&] { global_batches(three, 48); }),
            "sample_order: neither of 8 canonical nodes and 3 nodes divides the other");
  three.initial_nodes = 2;
  const auto got = global_batches(three, 48 * 5);
  for (size_t i = 5; i + 1 < wanted.size(); ++i) EXPECT_EQ(got[i - 5], wanted[i]) << i;
}

TEST(SampleOrder, Refuses) {
  const auto refusal = [](SampleOrderOptions o, int64_t first = 0, std::vector<int64_t> sizes = {10, 20}) {
    return error_of([&] { sample_order(sizes, o, 0, first); });
  };
  SampleOrderOptions o;
  EXPECT_EQ(refusal(o, 32), "sample_order: an epoch of 30 samples does not go on from sample 32");
  EXPECT_EQ(refusal(o, 0, {0, 0}), "sample_order: there are no samples");
  EXPECT_EQ(refusal(o, 0, {-1}), "sample_order: -1 samples in a shard");
  o.batch = 0;
  EXPECT_EQ(refusal(o), "sample_order: batch = 0 is out of range");
  o = {.shuffle = Shuffle::Py1br, .block = 1};
  EXPECT_EQ(refusal(o), "sample_order: py1br needs blocks of at least 2 samples, not 1");
  o = {.canonical_nodes = 64, .nodes = 1};
  EXPECT_EQ(refusal(o), "sample_order: a canonical node of 64 has no samples");
  o = {.canonical_nodes = 4, .nodes = 3, .batch = 5, .initial_nodes = 2};
  EXPECT_EQ(refusal(o), "sample_order: 2 initial nodes of 1 ranks do not divide a global batch of 15");
  EXPECT_EQ(error_of([] { parse_shuffle("py3"); }),
            "unknown shuffle \"py3\", not of: none, naive, py1s, py2s, py1br, py1e");
}

}  // namespace
}  // namespace tessera
