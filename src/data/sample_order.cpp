#include "tessera/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "data/numpy_random.h"

namespace tessera {
namespace {

using Ids = std::vector<int64_t>;

// Samples of a shard, or of a part of one, that follow one another.
struct Span {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
using Spans = std::vector<Span>;

Spans spans_of(const std::vector<int64_t>& sizes) {
  Spans out;
  int64_t end = 0;
  for (int64_t size : sizes) out.push_back({end, end + size}), end += size;
  return out;
}

// Cuts spans so that each of `parts` nodes has its share of all samples, one after another.
std::vector<Spans> divide(Spans spans, int64_t samples, int64_t parts) {
  std::vector<Spans> out(static_cast<size_t>(parts));
  size_t next = 0;
  int64_t taken = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t end = samples * (part + 1) / parts;
    Spans& mine = out[static_cast<size_t>(part)];
    for (; next < spans.size() && taken + spans[next].size() <= end; ++next) {
      mine.push_back(spans[next]);
      taken += spans[next].size();
    }
    if (next == spans.size() || taken == end) continue;
    const int64_t middle = spans[next].begin + end - taken;
    mine.push_back({spans[next].begin, middle});
    spans[next].begin = middle;
    taken = end;
  }
  return out;
}

// What all algorithms but naive begin with: shards in an order of the run, dealt to nodes, where an epoch has its own.
std::vector<Spans> shuffled_spans(const std::vector<int64_t>& sizes, int64_t samples, int64_t nodes, uint64_t seed,
                                  NumpyRandom& epoch) {
  Spans spans = spans_of(sizes);
  NumpyRandom(seed).shuffle(std::span(spans));
  std::vector<Spans> out = divide(std::move(spans), samples, nodes);
  for (Spans& mine : out) epoch.shuffle(std::span(mine));
  return out;
}

std::span<int64_t> fill(std::span<int64_t> to, const Span& span) {
  const auto part = to.first(static_cast<size_t>(span.size()));
  std::iota(part.begin(), part.end(), span.begin);
  return part;
}

int64_t samples_in(const Spans& spans) {
  int64_t out = 0;
  for (const Span& span : spans) out += span.size();
  return out;
}

void py1s(const std::vector<Spans>& nodes, NumpyRandom& random, std::span<int64_t> ids) {
  for (const Spans& spans : nodes)
    for (const Span& span : spans) {
      const auto part = fill(ids, span);
      random.shuffle(part);
      ids = ids.subspan(part.size());
    }
}

// `shards` in the order of the run, their samples in it too; an epoch shuffles both again.
void py2s(const std::vector<int64_t>& sizes, int64_t nodes, uint64_t seed, NumpyRandom& random,
          std::span<int64_t> ids) {
  Spans shards = spans_of(sizes), places;
  NumpyRandom run(seed);
  run.shuffle(std::span(shards));
  Ids samples(ids.size());
  int64_t at = 0;
  for (const Span& shard : shards) {
    places.push_back({at, at + shard.size()});
    run.shuffle(fill(std::span(samples).subspan(static_cast<size_t>(at)), shard));
    at += shard.size();
  }
  for (Spans& mine : divide(std::move(places), at, nodes)) {
    random.shuffle(std::span(mine));
    for (const Span& place : mine) {
      const auto part = ids.first(static_cast<size_t>(place.size()));
      std::copy_n(samples.begin() + place.begin, part.size(), part.begin());
      random.shuffle(part);
      ids = ids.subspan(part.size());
    }
  }
}

// The sizes of blocks are spread around their mean.
struct BlockSizes {
  int64_t least, most;
  explicit BlockSizes(int64_t block)
      : least(static_cast<int64_t>(0.75 * static_cast<double>(block))),
        most(static_cast<int64_t>(1.25 * static_cast<double>(block))) {}
  int64_t draw(NumpyRandom& random) const { return random.integer(least, most); }
};

void py1br(const std::vector<Spans>& nodes, int64_t block, NumpyRandom& random, std::span<int64_t> ids) {
  const BlockSizes sizes(block);
  if (sizes.least < 1)
    throw Error(fmt::format("sample_order: py1br needs blocks of at least 2 samples, not {}", block));
  Ids staggers;
  for (size_t i = 0; i < nodes.size(); ++i) staggers.push_back(random.integer(0, sizes.least));
  for (size_t node = 0; node < nodes.size(); ++node) {
    const int64_t samples = samples_in(nodes[node]), stagger = staggers[node];
    const auto mine = ids.first(static_cast<size_t>(samples));
    for (auto rest = mine; const Span& span : nodes[node]) rest = rest.subspan(fill(rest, span).size());
    Spans blocks;
    for (int64_t end = 0; end < samples; end += blocks.back().size()) {
      const int64_t size = sizes.draw(random);
      blocks.push_back({std::max<int64_t>(end - stagger, 0), std::min(end + size - stagger, samples)});
    }
    for (const Span& b : blocks)
      random.shuffle(mine.subspan(static_cast<size_t>(b.begin), static_cast<size_t>(b.size())));
    ids = ids.subspan(mine.size());
  }
}

// The order that sorts positions, each from 0 to below their number and not far from where it stands: they are dealt to
// buckets of one, which hold few each.
void order_of(std::span<const double> positions, std::vector<uint32_t>& order) {
  const size_t count = positions.size();
  const auto bucket = [&](size_t i) { return std::min(static_cast<size_t>(positions[i]), count - 1); };
  std::vector<uint32_t> next(count + 1);
  for (size_t i = 0; i < count; ++i) ++next[bucket(i) + 1];
  for (size_t i = 0; i < count; ++i) next[i + 1] += next[i];
  order.resize(count);
  for (size_t i = 0; i < count; ++i) order[next[bucket(i)]++] = static_cast<uint32_t>(i);
  size_t begin = 0;  // next[b] is the end of bucket b by now
  for (size_t b = 0; b < count; begin = next[b++])
    if (next[b] - begin > 1)
      std::sort(order.begin() + static_cast<int64_t>(begin), order.begin() + next[b], [&](uint32_t x, uint32_t y) {
        return positions[x] != positions[y] ? positions[x] < positions[y] : x < y;
      });
}

void py1e(const std::vector<Spans>& nodes, int64_t block, NumpyRandom& random, std::span<int64_t> ids) {
  const BlockSizes sizes(block);
  Ids samples;
  std::vector<double> positions;
  std::vector<uint32_t> order;
  for (const Spans& spans : nodes) {
    const int64_t count = samples_in(spans);
    if (count == 0) throw Error(fmt::format("sample_order: a canonical node of {} has no samples", nodes.size()));
    samples.resize(static_cast<size_t>(count));
    positions.resize(samples.size());
    for (auto rest = std::span(samples); const Span& span : spans) {
      const auto part = fill(rest, span);
      random.shuffle(part);
      rest = rest.subspan(part.size());
    }
    int64_t at = 0;
    for (const Span& span : spans) {
      const double reach = std::max(0.0, static_cast<double>(sizes.draw(random) - span.size()) / 2);
      const double low = std::max(-reach, static_cast<double>(-at));
      const double range = std::min(reach, static_cast<double>(count - at - span.size())) - low;
      for (const int64_t end = at + span.size(); at < end; ++at)
        positions[static_cast<size_t>(at)] = static_cast<double>(at) + (low + range * random.real());
    }
    order_of(positions, order);
    for (size_t i = 0; i < samples.size(); ++i) ids[i] = samples[order[i]];
    ids = ids.subspan(samples.size());
  }
}

// The options with what 0 stands for, checked.
SampleOrderOptions complete(const std::vector<int64_t>& sizes, SampleOrderOptions o, int64_t epoch) {
  for (const auto& [what, value] :
       {std::pair{"nodes", o.nodes}, {"ranks", o.ranks_per_node}, {"workers", o.workers}, {"batch", o.batch}})
    if (value < 1 || value > 1 << 24) throw Error(fmt::format("sample_order: {} = {} is out of range", what, value));
  const bool many = o.shuffle == Shuffle::Py1s || o.shuffle == Shuffle::Py2s;
  if (o.canonical_nodes == 0) o.canonical_nodes = o.nodes * (many ? 64 : 1);
  if (o.canonical_nodes < 1 || o.canonical_nodes > 1 << 24)
    throw Error(fmt::format("sample_order: {} canonical nodes", o.canonical_nodes));
  if (o.block == 0) o.block = std::max<int64_t>(4'000'000 / o.canonical_nodes, 1 << 18);
  if (o.block < 1 || o.block > int64_t{1} << 40)
    throw Error(fmt::format("sample_order: a block of {} samples", o.block));
  if (o.initial_nodes < 0) throw Error(fmt::format("sample_order: {} initial nodes", o.initial_nodes));
  if (epoch < 0) throw Error(fmt::format("sample_order: epoch {}", epoch));
  int64_t all = 0;
  for (int64_t size : sizes) {
    if (size < 0 || size > UINT32_MAX - all) throw Error(fmt::format("sample_order: {} samples in a shard", size));
    all += size;
  }
  if (all == 0) throw Error("sample_order: there are no samples");
  return o;
}

bool one_divides_other(int64_t a, int64_t b) { return std::max(a, b) % std::min(a, b) == 0; }

// The samples of all canonical nodes, dealt in turn: node 0's first, node 1's first, ... Rows that are short repeat.
std::vector<uint32_t> dealt(int64_t samples, int64_t canonical, int64_t nodes) {
  const int64_t each = (samples + canonical - 1) / canonical, ratio = canonical < nodes ? nodes / canonical : 1;
  const int64_t padding = (ratio - each % ratio) % ratio, length = each + padding;
  std::vector<uint32_t> out(
      static_cast<size_t>(canonical * length));  // half the memory of ids, which is most of the time
  if (samples < canonical || (samples == canonical && canonical < nodes)) {
    for (int64_t column = 0, i = 0; column < length; ++column)
      for (int64_t row = 0; row < canonical; ++row, ++i)
        out[static_cast<size_t>(i)] = static_cast<uint32_t>((row * length + column) % samples);
    return out;
  }
  if (padding > 0 && each < ratio + padding - 1)
    throw Error(fmt::format("sample_order: {} samples are too few for {} nodes", samples, nodes));
  Ids starts;
  for (int64_t row = 0; row <= canonical; ++row) starts.push_back(row * samples / canonical);
  for (int64_t column = 0, i = 0; column < length; ++column) {
    const int64_t at = column < each ? column : column - padding - ratio + 1;
    for (int64_t row = 0; row < canonical; ++row, ++i) {
      const int64_t start = starts[static_cast<size_t>(row)], stop = starts[static_cast<size_t>(row) + 1];
      out[static_cast<size_t>(i)] = static_cast<uint32_t>(start + at - (column == each - 1 && stop - start < each));
    }
  }
  return out;
}

// Ids as i64 [nodes, ranks, workers, batches, batch].
Tensor deal(int64_t samples, const SampleOrderOptions& o, int64_t first) {
  if (!one_divides_other(o.canonical_nodes, o.nodes))
    throw Error(fmt::format("sample_order: neither of {} canonical nodes and {} nodes divides the other",
                            o.canonical_nodes, o.nodes));
  first -= first % o.nodes;
  const std::vector<uint32_t> all = dealt(samples, o.canonical_nodes, o.nodes);
  const int64_t left = std::max<int64_t>(static_cast<int64_t>(all.size()) - first, 0) / o.nodes;
  const int64_t ranks = o.ranks_per_node, missing = (ranks - left % ranks) % ranks, of_rank = (left + missing) / ranks;
  const bool enough = ranks + missing - 1 <= left;
  // The i-th sample of a node; behind its last one are others again, of the same rank's place where there are enough.
  const auto id = [&](int64_t node, int64_t i) {
    if (i >= left) i = enough ? i - ranks - missing + 1 : (i - left) % left;
    return int64_t{all[static_cast<size_t>(first + i * o.nodes + node)]};
  };
  const int64_t round = o.workers * o.batch, batches = (of_rank + round - 1) / round;
  Tensor out = empty({o.nodes, ranks, o.workers, batches, o.batch}, Int64, cpu());
  int64_t* next = out.data<int64_t>();
  for (int64_t node = 0; node < o.nodes; ++node)
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t worker = 0; worker < o.workers; ++worker)
        for (int64_t b = 0; b < batches; ++b) {
          const int64_t begin = (b * o.workers + worker) * o.batch;
          for (int64_t i = begin; i < begin + o.batch; ++i) *next++ = i < of_rank ? id(node, i * ranks + rank) : -1;
        }
  return out;
}

// As the nodes that the run began with would deal, given to those that are there now in the order of their turns.
Tensor deal_again(int64_t samples, const SampleOrderOptions& o, int64_t first) {
  if (o.initial_nodes == 0 || one_divides_other(o.canonical_nodes, o.nodes)) return deal(samples, o, first);
  const int64_t global = o.nodes * o.ranks_per_node * o.batch;
  SampleOrderOptions initial = o;
  initial.nodes = o.initial_nodes;
  initial.batch = global / (o.initial_nodes * o.ranks_per_node);
  if (global % (o.initial_nodes * o.ranks_per_node) != 0)
    throw Error(fmt::format("sample_order: {} initial nodes of {} ranks do not divide a global batch of {}",
                            o.initial_nodes, o.ranks_per_node, global));
  const Tensor dealt_then = deal(samples, initial, first);
  const int64_t batches = dealt_then.size(3);
  Tensor out = empty({o.nodes, o.ranks_per_node, o.workers, batches, o.batch}, Int64, cpu());
  const int64_t* from = dealt_then.data<int64_t>();
  int64_t* to = out.data<int64_t>();
  for (int64_t b = 0; b < batches; ++b)
    for (int64_t worker = 0; worker < o.workers; ++worker)
      for (int64_t j = 0; j < global; ++j) {
        const auto place = [&](int64_t batch) {  // of the j-th sample of this global batch
          return ((j / batch * o.workers + worker) * batches + b) * batch + j % batch;
        };
        to[place(o.batch)] = from[place(initial.batch)];
      }
  return out;
}

}  // namespace

Shuffle parse_shuffle(const std::string& name) {
  const char* const names[] = {"none", "naive", "py1s", "py2s", "py1br", "py1e"};
  for (int i = 0; i < 6; ++i)
    if (name == names[i]) return static_cast<Shuffle>(i);
  throw Error(fmt::format("unknown shuffle \"{}\", not of: none, naive, py1s, py2s, py1br, py1e", name));
}

std::vector<int64_t> shuffled_samples(const std::vector<int64_t>& shard_sizes, const SampleOrderOptions& options,
                                      int64_t epoch) {
  const SampleOrderOptions o = complete(shard_sizes, options, epoch);
  const int64_t samples = std::accumulate(shard_sizes.begin(), shard_sizes.end(), int64_t{0});
  Ids ids(static_cast<size_t>(samples));
  NumpyRandom random(o.seed + static_cast<uint64_t>(epoch));
  if (o.shuffle == Shuffle::None || o.shuffle == Shuffle::Naive) {
    fill(ids, {0, samples});
    if (o.shuffle == Shuffle::Naive) random.shuffle(std::span(ids));
  } else if (o.shuffle == Shuffle::Py2s) {
    py2s(shard_sizes, o.canonical_nodes, o.seed, random, ids);
  } else {
    const auto nodes = shuffled_spans(shard_sizes, samples, o.canonical_nodes, o.seed, random);
    if (o.shuffle == Shuffle::Py1s) py1s(nodes, random, ids);
    else if (o.shuffle == Shuffle::Py1br) py1br(nodes, o.block, random, ids);
    else py1e(nodes, o.block, random, ids);
  }
  return ids;
}

Tensor sample_order(const std::vector<int64_t>& shard_sizes, const SampleOrderOptions& options, int64_t epoch,
                    int64_t first) {
  const SampleOrderOptions o = complete(shard_sizes, options, epoch);
  const int64_t samples = std::accumulate(shard_sizes.begin(), shard_sizes.end(), int64_t{0});
  const int64_t devices = o.nodes * o.ranks_per_node;
  if (first < 0 || first > samples + devices - samples % devices)
    throw Error(fmt::format("sample_order: an epoch of {} samples does not go on from sample {}", samples, first));
  Tensor out = deal_again(samples, o, first);
  if (o.shuffle == Shuffle::None) return out;
  const Ids ids = shuffled_samples(shard_sizes, o, epoch);
  for (int64_t& id : std::span(out.data<int64_t>(), static_cast<size_t>(out.numel())))
    if (id >= 0) id = ids[static_cast<size_t>(id)];
  return out;
}

}  // namespace tessera
