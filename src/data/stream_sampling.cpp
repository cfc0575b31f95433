#include "data/stream_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "data/numpy_random.h"

namespace tessera {
namespace {

int64_t sum(const std::vector<int64_t>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t{0}); }

// In the order of NumPy: eight sums of every eighth number, halves of more than 128.
double sum_in_pairs(const double* numbers, size_t count) {
  if (count > 128) {
    const size_t half = count / 2 / 8 * 8;
    return sum_in_pairs(numbers, half) + sum_in_pairs(numbers + half, count - half);
  }
  double out = 0;
  size_t i = 0;
  if (count >= 8) {
    double r[8];
    std::copy_n(numbers, 8, r);
    for (i = 8; i + 8 <= count; i += 8)
      for (size_t k = 0; k < 8; ++k) r[k] += numbers[i + k];
    out = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  }
  for (; i < count; ++i) out += numbers[i];
  return out;
}

bool has_weight(const DataStream& s) { return s.proportion || s.repeat || s.choose; }

// `total` samples in these proportions; those that rounding leaves over go to streams that are drawn.
std::vector<int64_t> by_proportion(std::vector<double> proportions, int64_t total, uint64_t seed) {
  const double all = sum_in_pairs(proportions.data(), proportions.size());
  std::vector<int64_t> out;
  for (double p : proportions) out.push_back(static_cast<int64_t>(static_cast<double>(total) * (p / all)));
  const int64_t left = total - sum(out);
  if (left < 0 || left > static_cast<int64_t>(out.size()))
    throw Error(fmt::format("streaming: proportions do not share {} samples", total));
  for (int64_t i : NumpyRandom(seed).choose(static_cast<int64_t>(out.size()), left)) ++out[static_cast<size_t>(i)];
  return out;
}

// Samples to take from each shard of a stream: whole rounds, and of a last one granules that are drawn.
std::vector<int64_t> samples_per_shard(const std::vector<int64_t>& shards, int64_t choose, int64_t granularity,
                                       uint64_t seed) {
  const int64_t samples = sum(shards), rounds = choose / samples;
  int64_t left = choose % samples;
  std::vector<int64_t> out;
  for (int64_t size : shards) out.push_back(size * rounds);
  if (left == 0) return out;
  struct Granule {
    size_t shard;
    int64_t samples;
  };
  std::vector<Granule> granules;
  for (size_t shard = 0; shard < shards.size(); ++shard)
    for (int64_t at = 0; at < shards[shard]; at += granularity)
      granules.push_back({shard, std::min(granularity, shards[shard] - at)});
  NumpyRandom(seed).shuffle(std::span(granules));
  for (size_t i = 0; left > 0; ++i) {
    const int64_t take = std::min(left, granules[i].samples);
    out[granules[i].shard] += take;
    left -= take;
  }
  return out;
}

}  // namespace

void check_weights(const std::vector<DataStream>& streams, int64_t epoch_size) {
  if (streams.empty()) throw Error("streaming: needs a stream");
  const auto fail = [](size_t i, std::string_view rule) {
    throw Error(fmt::format("streaming: stream {} {}", i, rule));
  };
  for (size_t i = 0; i < streams.size(); ++i) {
    const DataStream& s = streams[i];
    if (s.proportion.has_value() + s.repeat.has_value() + s.choose.has_value() > 1)
      fail(i, "has more than one of proportion, repeat and choose");
    if (s.proportion.has_value() != streams[0].proportion.has_value())
      fail(i, s.proportion ? "has a proportion, the first one none" : "has no proportion, the first one has");
    for (const auto& [name, value] : {std::pair{"proportion", s.proportion}, {"repeat", s.repeat}})
      if (value && (!(*value >= 0) || *value > 1e12)) fail(i, fmt::format("has {} {}", name, *value));
    if (s.choose && (*s.choose < 0 || *s.choose > UINT32_MAX)) fail(i, fmt::format("has choose {}", *s.choose));
  }
  const bool relative = streams[0].proportion.has_value();
  if (relative && std::all_of(streams.begin(), streams.end(), [](const DataStream& s) { return *s.proportion == 0; }))
    throw Error("streaming: the proportions are all 0");
  if (epoch_size < 0 || epoch_size > UINT32_MAX)
    throw Error(fmt::format("streaming: an epoch of {} samples", epoch_size));
  if (epoch_size && !relative && std::any_of(streams.begin(), streams.end(), has_weight))
    throw Error("streaming: an epoch's size is for streams with proportions, or with no weights at all");
}

std::vector<int64_t> samples_per_stream(const std::vector<DataStream>& streams, const std::vector<int64_t>& sizes,
                                        int64_t epoch_size, uint64_t seed) {
  check_weights(streams, epoch_size);
  const bool relative = streams[0].proportion.has_value();
  if (relative || epoch_size) {
    std::vector<double> proportions;
    for (size_t i = 0; i < streams.size(); ++i)
      proportions.push_back(relative ? *streams[i].proportion : static_cast<double>(sizes[i]));
    return by_proportion(std::move(proportions), epoch_size ? epoch_size : sum(sizes), seed);
  }
  std::vector<int64_t> out;
  for (size_t i = 0; i < streams.size(); ++i) {
    const double repeated = streams[i].repeat ? *streams[i].repeat * static_cast<double>(sizes[i]) : 0;
    if (repeated > UINT32_MAX) throw Error(fmt::format("streaming: stream {} repeats to {} samples", i, repeated));
    out.push_back(streams[i].repeat ? static_cast<int64_t>(repeated) : streams[i].choose.value_or(sizes[i]));
  }
  return out;
}

SampledEpoch sample_streams(const std::vector<std::vector<int64_t>>& shards, const std::vector<int64_t>& chosen,
                            const StreamingOptions& options, int64_t epoch) {
  const uint64_t seed = options.order.seed, epoch_seed = seed + static_cast<uint64_t>(epoch);
  const bool fixed = options.same_each_epoch, shuffled = options.order.shuffle != Shuffle::None;
  NumpyRandom random(fixed ? seed : epoch_seed);
  SampledEpoch out;
  bool each_once = true;
  for (size_t stream = 0; stream < shards.size(); ++stream)
    each_once = each_once && chosen[stream] == sum(shards[stream]);
  if (each_once) {
    for (const auto& sizes : shards)
      std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(out.sizes), [](int64_t size) { return size > 0; });
    return out;
  }
  int64_t first = 0;  // of the shard
  for (size_t stream = 0; stream < shards.size(); ++stream) {
    const auto wanted =
        samples_per_shard(shards[stream], chosen[stream], options.granularity, shuffled && !fixed ? epoch_seed : seed);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const int64_t size = shards[stream][i], rounds = size ? wanted[i] / size : 0, part = size ? wanted[i] % size : 0;
      for (int64_t round = 0; round < rounds; ++round) {
        out.sizes.push_back(size);
        for (int64_t k = 0; k < size; ++k) out.ids.push_back(first + k);
      }
      if (part) {
        out.sizes.push_back(part);
        std::vector<int64_t> drawn = random.choose(size, part);
        std::sort(drawn.begin(), drawn.end());
        for (int64_t k : drawn) out.ids.push_back(first + k);
      }
      first += size;
    }
  }
  return out;
}

}  // namespace tessera
