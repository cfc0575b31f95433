// The order in which ranks read samples: that of MosaicML Streaming 0.13, number for number. It depends on canonical
// nodes, not on how many ranks there are: a run goes on with others where it was.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/tensor.h"

namespace tessera {

enum class Shuffle {
  None,
  Naive,  ///< all samples
  Py1s,   ///< shards, and the samples within each
  Py2s,   ///< the same, once for the run and once more for the epoch
  Py1br,  ///< shards, and samples within blocks of random sizes
  Py1e    ///< shards, and each sample to a random place near its own
};
/// "none", "naive", "py1s", "py2s", "py1br" or "py1e". Throws Error.
Shuffle parse_shuffle(const std::string& name);

struct SampleOrderOptions {
  Shuffle shuffle = Shuffle::Py1e;
  uint64_t seed = 9176;
  int64_t block = 0;            ///< of py1br and py1e, in samples; 0: 4,000,000 over the canonical nodes, at least 2^18
  int64_t canonical_nodes = 0;  ///< 0: as many as `nodes`, and 64 times that with py1s and py2s
  int64_t nodes = 1, ranks_per_node = 1;
  int64_t workers = 1;  ///< of each rank, which take batches in turn
  int64_t batch = 1;    ///< samples of a batch of one rank
  /// Of a run that goes on: the nodes that it began with, so that any number may go on that divides the global batch.
  /// 0: canonical nodes and nodes must divide one another.
  int64_t initial_nodes = 0;
};

/// The place among all samples of each one of an epoch, in the order of their shards: i64 [samples].
std::vector<int64_t> shuffled_samples(const std::vector<int64_t>& shard_sizes, const SampleOrderOptions& options,
                                      int64_t epoch);
/// Who reads what in an epoch, from the sample `first` on: i64 [nodes, ranks of a node, workers, batches, batch]. -1
/// fills up the last batches. Throws Error on what cannot be divided so.
Tensor sample_order(const std::vector<int64_t>& shard_sizes, const SampleOrderOptions& options, int64_t epoch,
                    int64_t first = 0);

}  // namespace tessera
