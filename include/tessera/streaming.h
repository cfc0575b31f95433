// Samples of several data sets in shards, in an order that no number of ranks changes: what MosaicML Streaming 0.13
// reads with `random` batches, number for number. A run is kept as a few numbers, and goes on with other ranks.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/mds.h"

namespace tessera {

/// A data set, and how much of it an epoch has: at most one of the three, by default each sample once. With
/// `proportion` all streams of an epoch have one.
struct DataStream {
  std::string folder;                     ///< of MDS, or its address (remote.h)
  std::optional<double> proportion = {};  ///< share of an epoch, beside that of the others
  std::optional<double> repeat = {};      ///< how often each sample comes
  std::optional<int64_t> choose = {};     ///< how many samples
};

struct StreamingOptions {
  SampleOrderOptions order = {};  ///< with the nodes, ranks and batch of this run, and one worker
  int64_t rank = 0;               ///< of all nodes' ranks, node by node
  int64_t epoch_size = 0;         ///< samples, of streams with proportions or none at all; 0: as many as there are
  int64_t granularity = 1;        ///< samples that are drawn together from a shard of which an epoch has a part
  bool same_each_epoch = false;   ///< a part is the same one in each epoch
  int64_t ahead = 0;              ///< samples whose shards are downloaded ahead; 0: 64 batches, at least 1024
  MdsReaderOptions reader = {};
};

/// Where a run is. The names in Python are those of MosaicML Streaming: its states are read, and the reverse.
struct StreamingState {
  int64_t epoch = 0, sample_in_epoch = 0, num_canonical_nodes = 0;
  uint64_t shuffle_seed = 0;
  int64_t initial_physical_nodes = 0;
};

class StreamingDataset {
 public:
  /// Throws FileError on a stream that cannot be read or has other columns than the first one, Error on options that
  /// cannot be.
  StreamingDataset(std::vector<DataStream> streams, StreamingOptions options = {});
  ~StreamingDataset();

  /// The first stream's folder, for messages.
  const std::string& name() const;
  const std::vector<MdsColumn>& columns() const;
  /// The place of a column in columns(). Throws FileError if there is none of that name.
  size_t column(std::string_view name) const;
  /// Samples of all streams, each once: those of the first stream come first.
  int64_t size() const;
  /// Samples of an epoch of all ranks.
  int64_t epoch_size() const;
  /// Samples of each stream in an epoch.
  const std::vector<int64_t>& chosen() const;
  /// Throws Error, FileError. Any thread may read.
  MdsSample sample(int64_t id) const;
  MdsValue value(int64_t id, size_t column) const;
  /// The stream of a sample, and its place there.
  std::pair<size_t, int64_t> place(int64_t id) const;
  /// Who reads what in an epoch, from the sample `first` on: i64 [nodes, ranks of a node, 1, batches, batch]. -1 fills
  /// up the last batches. Throws Error.
  Tensor order(int64_t epoch, int64_t first = 0) const;
  /// The same of one rank that reads all, whatever the options say of ranks: i64 [batches, batch].
  Tensor order_of_one_rank(int64_t epoch, int64_t batch) const;
  /// Downloads the shards of these samples in the background, in place of those asked for before.
  void prefetch(std::span<const int64_t> ids) const;

  /// Begins an epoch: after load_state() the one at hand, where it was; the next one where one has begun. Throws Error.
  void begin();
  /// The next sample of this rank; nothing at the end of the epoch, until begin().
  std::optional<MdsSample> next();
  /// Its number alone, for sample() or value().
  std::optional<int64_t> next_id();
  /// Where all ranks are between two global batches, if each has read as much as this one.
  StreamingState state() const;
  /// begin() goes on from there. Throws Error on numbers that cannot be.
  void load_state(const StreamingState& state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// As streamed_tokens() of one folder (mds.h). Of the data set's options the ranks, nodes and batch are left out.
BatchSource streamed_tokens(std::shared_ptr<const StreamingDataset> data, const std::string& column, int64_t block,
                            int64_t batch, int64_t vocabulary);

}  // namespace tessera
