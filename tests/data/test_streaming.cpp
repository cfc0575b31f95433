#include "tessera/streaming.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/http_server.h"
#include "data/numpy_random.h"
#include "data/stream_sampling.h"
#include "io/io_check.h"
#include "tessera/io.h"

namespace tessera {
namespace {

// numpy.random.default_rng(9176): choice(10, 4, False), choice(7, 7, False), choice(20000, 3, False), the last three of
// choice(20000, 1000, False), then integers(0, 1000).
TEST(NumpyRandom, ChoosesWhatNumPyChooses) {
  NumpyRandom random(9176);
  EXPECT_EQ(random.choose(10, 4), (std::vector<int64_t>{7, 1, 8, 6}));
  EXPECT_EQ(random.choose(7, 7), (std::vector<int64_t>{6, 3, 2, 0, 4, 5, 1}));
  EXPECT_EQ(random.choose(20000, 3), (std::vector<int64_t>{15145, 11631, 18169}));
  const std::vector<int64_t> many = random.choose(20000, 1000);
  EXPECT_EQ(std::vector<int64_t>(many.end() - 3, many.end()), (std::vector<int64_t>{17875, 6967, 2528}));
  EXPECT_EQ(random.integer(0, 1000), 417);
  EXPECT_EQ(error_of([&] { random.choose(3, 4); }), "random: 4 of 3 numbers");
}

class Streaming : public testing::Test {
 protected:
  // Two folders of 40 and 25 samples in shards; `v` says which sample of all it is.
  Streaming() {
    int64_t v = 0;
    for (const auto& [name, count] : {std::pair{"a", 40}, {"b", 25}}) {
      MdsWriter writer(folder_ / name, {{"v", "int"}, {"t", "ndarray:uint16:4"}}, {"zstd", {"xxh64"}, 600});
      for (int i = 0; i < count; ++i, ++v)
        writer.write(
            {{"v", full({}, static_cast<double>(v), Int64)}, {"t", full({4}, static_cast<double>(v), UInt16)}});
      writer.finish();
    }
  }
  std::vector<DataStream> streams() const { return {{folder_ / "a"}, {folder_ / "b"}}; }

  static std::vector<int64_t> epoch_of(StreamingDataset& data, size_t most = SIZE_MAX) {
    std::vector<int64_t> out;
    while (out.size() < most) {
      const auto sample = data.next();
      if (!sample) break;
      out.push_back(std::get<Tensor>(sample->at("v")).item<int64_t>());
    }
    return out;
  }
  static std::map<int64_t, int> counts(const std::vector<int64_t>& ids) {
    std::map<int64_t, int> out;
    for (int64_t id : ids) ++out[id];
    return out;
  }
  TemporaryFolder folder_;
};

TEST_F(Streaming, AnEpochHasEachSampleOnce) {
  StreamingDataset data(streams());
  EXPECT_EQ(data.size(), 65);
  EXPECT_EQ(data.epoch_size(), 65);
  EXPECT_EQ(data.column("v"), 1u);
  EXPECT_EQ(data.place(41), (std::pair<size_t, int64_t>{1, 1}));
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    data.begin();
    const std::vector<int64_t> ids = epoch_of(data);
    orders.insert(ids);
    EXPECT_EQ(counts(ids).size(), 65u);
    EXPECT_EQ(ids.size(), 65u);
    EXPECT_EQ(data.state().epoch, epoch);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST_F(Streaming, StreamsComeInTheirShares) {
  const auto chosen = [&](std::vector<DataStream> s, int64_t epoch_size = 0) {
    StreamingDataset data(s, {.epoch_size = epoch_size});
    const std::vector<int64_t> ids = epoch_of(data);
    std::vector<int64_t> out(2);
    for (int64_t id : ids) ++out[id >= 40];
    EXPECT_EQ(out, data.chosen());
    EXPECT_EQ(data.epoch_size(), static_cast<int64_t>(ids.size()));
    return out;
  };
  using Two = std::vector<int64_t>;
  auto s = streams();
  s[0].proportion = 3, s[1].proportion = 1;
  EXPECT_EQ(chosen(s, 100), (Two{75, 25}));
  const Two shared = chosen(s);
  EXPECT_EQ(shared[0] + shared[1], 65);
  EXPECT_NEAR(shared[0], 48.75, 1);
  s = streams();
  const Two by_size = chosen(s, 130);
  EXPECT_EQ(by_size, (Two{80, 50}));
  s[0].repeat = 2.5, s[1].choose = 7;
  EXPECT_EQ(chosen(s), (Two{100, 7}));
  s[1].choose = 0;
  EXPECT_EQ(chosen(s), (Two{100, 0}));
  StreamingDataset data({s[0]});
  const auto found = counts(epoch_of(data));
  EXPECT_EQ(found.size(), 40u);
  for (const auto& [id, count] : found) EXPECT_TRUE(count == 2 || count == 3) << id;
}

TEST_F(Streaming, PartsDifferByEpochUnlessTheyShallNot) {
  for (bool same : {false, true}) {
    auto s = streams();
    s[0].choose = 10;
    StreamingDataset data(s, {.granularity = 3, .same_each_epoch = same});
    std::set<std::set<int64_t>> parts;
    for (int epoch = 0; epoch < 4; ++epoch) {
      data.begin();
      std::set<int64_t> part;
      for (int64_t id : epoch_of(data))
        if (id < 40) part.insert(id);
      EXPECT_EQ(part.size(), 10u);
      parts.insert(part);
    }
    EXPECT_EQ(parts.size() == 1, same);
  }
}

// Global batches, whoever reads them.
TEST_F(Streaming, GoesOnWithOtherRanks) {
  auto s = streams();
  s[0].repeat = 1.5, s[1].choose = 24;
  const auto options = [](int64_t ranks, int64_t rank, uint64_t seed) {
    return StreamingOptions{.order = {.seed = seed, .canonical_nodes = 4, .ranks_per_node = ranks, .batch = 12 / ranks},
                            .rank = rank};
  };
  StreamingDataset whole(s, options(1, 0, 3));
  whole.begin();
  epoch_of(whole);
  whole.begin();  // the second epoch
  const std::vector<int64_t> all = epoch_of(whole);
  ASSERT_EQ(all.size(), 84u);

  StreamingState state;
  std::vector<std::multiset<int64_t>> batches(7);
  const auto read = [&](int64_t ranks, size_t from, size_t to, uint64_t seed) {
    StreamingState after;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      StreamingDataset data(s, options(ranks, rank, seed));
      if (from) data.load_state(state);
      data.begin();
      if (!from) data.begin();
      for (size_t batch = from; batch < to; ++batch)
        for (int64_t id : epoch_of(data, static_cast<size_t>(12 / ranks))) batches[batch].insert(id);
      after = data.state();
    }
    state = after;
  };
  read(2, 0, 2, 3);
  EXPECT_EQ(state.epoch, 1);
  EXPECT_EQ(state.sample_in_epoch, 24);
  EXPECT_EQ(state.num_canonical_nodes, 4);
  EXPECT_EQ(state.shuffle_seed, 3u);
  read(3, 2, 5, 99);  // the seed is the state's
  EXPECT_EQ(state.sample_in_epoch, 60);
  read(1, 5, 7, 3);
  for (size_t batch = 0; batch < 7; ++batch)
    EXPECT_EQ(batches[batch], std::multiset<int64_t>(all.begin() + static_cast<int64_t>(batch) * 12,
                                                     all.begin() + static_cast<int64_t>(batch) * 12 + 12))
        << batch;
}

TEST_F(Streaming, TokensOfAMixture) {
  auto s = streams();
  s[0].proportion = 1, s[1].proportion = 1;
  const auto data = std::make_shared<const StreamingDataset>(s, StreamingOptions{.epoch_size = 60});
  BatchSource source = streamed_tokens(data, "t", 3, 20, 100);
  for (int64_t index : {0, 2, 3, 1}) {  // three batches an epoch
    const Tensor order = data->order_of_one_rank(index / 3, 20);
    const Tensors batch = source(index);
    for (int64_t row = 0; row < 20; ++row)
      for (int64_t i = 0; i < 3; ++i) {
        const int64_t id = order.data<int64_t>()[index % 3 * 20 + row];
        ASSERT_EQ(batch[0].data<int64_t>()[row * 3 + i], id);
        ASSERT_EQ(batch[1].data<int64_t>()[row * 3 + i], id);
      }
  }
  EXPECT_EQ(error_of([&] { streamed_tokens(data, "t", 3, 61, 100); }),
            "streamed_tokens: 60 samples are too few for batches of 61");
}

TEST_F(Streaming, ReadsAheadFromAServer) {
  HttpServer server([&](auto& path, int) {
    const std::string local = folder_ / path;
    return std::filesystem::is_regular_file(local) ? HttpAnswer{200, read_file(local)} : HttpAnswer{404, ""};
  });
  StreamingOptions o;
  o.reader.remote = {.cache = folder_ / "cache", .attempts = 1, .deadline = 20};
  StreamingDataset data({{server / "a"}, {folder_ / "b"}}, o);
  data.begin();
  EXPECT_EQ(counts(epoch_of(data)).size(), 65u);
  data.begin();
  EXPECT_EQ(counts(epoch_of(data)).size(), 65u);
  EXPECT_EQ(server.asked("a/shard.00000.mds.zstd"), 1);
}

TEST_F(Streaming, Refuses) {
  const auto refusal = [&](std::vector<DataStream> s, StreamingOptions o = {}) {
    return error_of([&] { StreamingDataset(std::move(s), std::move(o)); });
  };
  auto s = streams();
  EXPECT_EQ(refusal({}), "streaming: needs a stream");
  s[0].proportion = 1;
  EXPECT_EQ(refusal(s), "streaming: stream 1 has no proportion, the first one has");
  s[1].proportion = 0;
  s[0].proportion = 0;
  EXPECT_EQ(refusal(s), "streaming: the proportions are all 0");
  s[0].proportion = -1;
  EXPECT_EQ(refusal(s), "streaming: stream 0 has proportion -1");
  s = streams();
  s[1].repeat = 1, s[1].choose = 1;
  EXPECT_EQ(refusal(s), "streaming: stream 1 has more than one of proportion, repeat and choose");
  s = streams();
  s[0].choose = -3;
  EXPECT_EQ(refusal(s), "streaming: stream 0 has choose -3");
  s[0].choose = 3;
  EXPECT_EQ(refusal(s, {.epoch_size = 9}),
            "streaming: an epoch's size is for streams with proportions, or with no weights at all");
  s[0].choose = s[1].choose = 0;
  EXPECT_EQ(refusal(s), "streaming: an epoch without samples");
  EXPECT_EQ(refusal(streams(), {.rank = 1}), "streaming: there is no rank 1 of 1");
  EXPECT_EQ(refusal(streams(), {.order = {.workers = 2}}), "streaming: a rank has one worker");
  EXPECT_EQ(refusal(streams(), {.granularity = 0}), "streaming: a granularity of 0 samples");
  MdsWriter other(folder_ / "c", {{"v", "str"}});
  other.write({{"v", "x"}});
  other.finish();
  EXPECT_EQ(refusal({{folder_ / "a"}, {folder_ / "c"}}), folder_ / "c" + ": has other columns than " + folder_ / "a");
  StreamingDataset data(streams());
  EXPECT_EQ(error_of([&] { data.sample(65); }), "streaming: no sample 65 of 65");
  EXPECT_EQ(error_of([&] { data.load_state({.sample_in_epoch = 70, .num_canonical_nodes = 1}); }),
            "sample_order: an epoch of 65 samples does not go on from sample 70");
  EXPECT_EQ(error_of([&] { data.load_state({.epoch = -1, .num_canonical_nodes = 1}); }),
            "streaming: a state with numbers that cannot be");
  EXPECT_EQ(epoch_of(data).size(), 65u);  // as if nothing had been loaded
}

}  // namespace
}  // namespace tessera
