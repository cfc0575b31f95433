// tessera data order: which samples each rank reads.
#include <fmt/format.h>

#include <charconv>

#include "data_commands.h"
#include "tessera/io.h"
#include "tessera/mds.h"
#include "tessera/sample_order.h"

namespace tessera::app {
namespace {

struct OrderCommand {
  SampleOrderOptions order;
  std::string shards, shuffle = "py1e", out;
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
  command.option("shards", c->shards, "a folder with index.json, or numbers of samples such as 100,200").required();
  command.option("--shuffle", c->shuffle, "the algorithm")
      .one_of({"none", "naive", "py1s", "py2s", "py1br", "py1e"})
      .with_default();
  command.option("--shuffle-seed", c->order.seed, "its seed").with_default();
  command.option("--shuffle-block", c->order.block, "its block, in samples; 0: by the canonical nodes").with_default();
  command.option("--canonical-nodes", c->order.canonical_nodes, "nodes that the order is made for; 0: by --nodes")
      .with_default();
  command.option("--nodes", c->order.nodes, "nodes that there are").with_default();
  command.option("--initial-nodes", c->order.initial_nodes, "nodes that the run began with; 0: the same")
      .with_default();
  command.option("--ranks", c->order.ranks_per_node, "ranks of each node").with_default();
  command.option("--workers", c->order.workers, "workers of each rank").with_default();
  command.option("--batch", c->order.batch, "samples of a batch of one rank").with_default();
  command.option("--epoch", c->epoch, "which epoch").with_default();
  command.option("--first", c->first, "samples of the epoch that were read before").with_default();
  command.option("--out", c->out, "write the numbers as an array (.npy) instead");
  command.run([c] {
    c->order.shuffle = parse_shuffle(c->shuffle);
    const std::vector<int64_t> sizes = shard_sizes(c->shards);
    Tensor ids;
    try {
      ids = sample_order(sizes, c->order, c->epoch, c->first);
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
    if (c->out.empty()) print(ids);
    else save_npy(c->out, ids);
  });
}

}  // namespace tessera::app
