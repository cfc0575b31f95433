// tessera data order: which samples each rank reads.
#include <fmt/format.h>

#include <charconv>
#include <numeric>

#include "data/stream_sampling.h"
#include "data_commands.h"
#include "mixture.h"
#include "tessera/io.h"

namespace tessera::app {
namespace {

struct OrderCommand {
  StreamingOptions options;
  std::vector<std::string> streams;
  Mixture mixture;
  std::string shuffle = "py1e", out;
  int64_t epoch = 0, first = 0;
};

// Sizes between commas, or those of a folder's shards.
std::vector<int64_t> shard_sizes(const std::string& text) {
  std::vector<int64_t> out;
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || (next < end && *next != ',')) return MdsReader(text).shard_sizes();
    out.push_back(size);
    at = next + 1;
  }
  return out;
}

Tensor order_of(const OrderCommand& c) {
  std::vector<std::vector<int64_t>> shards;
  std::vector<int64_t> sizes;
  for (const std::string& stream : c.streams) {
    shards.push_back(shard_sizes(stream));
    sizes.push_back(std::accumulate(shards.back().begin(), shards.back().end(), int64_t{0}));
    if (shards.size() > 1 && sizes.back() < 1) throw UsageError(stream + ": a stream without samples");
  }
  const auto& o = c.options;
  const std::vector<DataStream> streams = c.mixture.streams(c.streams);
  if (shards.size() == 1 && !c.mixture.given()) return sample_order(shards[0], o.order, c.epoch, c.first);
  const auto chosen = samples_per_stream(streams, sizes, c.mixture.epoch_size, o.order.seed);
  const SampledEpoch drawn = sample_streams(shards, chosen, o, c.epoch);
  Tensor ids = sample_order(drawn.sizes, o.order, c.epoch, c.first);
  if (!drawn.ids.empty())
    for (int64_t& id : std::span(ids.data<int64_t>(), static_cast<size_t>(ids.numel())))
      if (id >= 0) id = drawn.ids[static_cast<size_t>(id)];
  return ids;
}

void print(const Tensor& ids) {
  const int64_t* next = ids.data<int64_t>();
  for (int64_t node = 0; node < ids.size(0); ++node)
    for (int64_t rank = 0; rank < ids.size(1); ++rank)
      for (int64_t worker = 0; worker < ids.size(2); ++worker)
        for (int64_t batch = 0; batch < ids.size(3); ++batch) {
          fmt::print("node {} rank {} worker {} batch {}:", node, rank, worker, batch);
          for (int64_t i = 0; i < ids.size(4); ++i) fmt::print(" {}", *next++);
          fmt::print("\n");
        }
}

}  // namespace

void add_data_order(Command data) {
  const Command command = data.command("order", "Say which samples each rank reads in an epoch.");
  auto c = std::make_shared<OrderCommand>();
  SampleOrderOptions& order = c->options.order;
  command.option("streams", c->streams, "folders with index.json, or their shards' numbers of samples such as 100,200")
      .required()
      .take_all();
  c->mixture.add_to(command);
  command
      .option("--granularity", c->options.granularity, "samples drawn together from a shard that an epoch has in part")
      .range(1, 1 << 30)
      .with_default();
  command.flag("--same-each-epoch", c->options.same_each_epoch, "draw the same samples in each epoch");
  command.option("--shuffle", c->shuffle, "the algorithm")
      .one_of({"none", "naive", "py1s", "py2s", "py1br", "py1e"})
      .with_default();
  command.option("--shuffle-seed", order.seed, "its seed").with_default();
  command.option("--shuffle-block", order.block, "its block, in samples; 0: by the canonical nodes").with_default();
  command.option("--canonical-nodes", order.canonical_nodes, "nodes that the order is made for; 0: by --nodes")
      .with_default();
  command.option("--nodes", order.nodes, "nodes that there are").with_default();
  command.option("--initial-nodes", order.initial_nodes, "nodes that the run began with; 0: the same").with_default();
  command.option("--ranks", order.ranks_per_node, "ranks of each node").with_default();
  command.option("--workers", order.workers, "workers of each rank").with_default();
  command.option("--batch", order.batch, "samples of a batch of one rank").with_default();
  command.option("--epoch", c->epoch, "which epoch").with_default();
  command.option("--first", c->first, "samples of the epoch that were read before").with_default();
  command.option("--out", c->out, "write the numbers as an array (.npy) instead");
  command.run([c] {
    c->options.order.shuffle = parse_shuffle(c->shuffle);
    Tensor ids;
    try {
      ids = order_of(*c);
    } catch (const FileError&) {
      throw;
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
    if (c->out.empty()) print(ids);
    else save_npy(c->out, ids);
  });
}

}  // namespace tessera::app
