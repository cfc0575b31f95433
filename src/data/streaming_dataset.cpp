#include <fmt/format.h>

#include <algorithm>

#include "data/stream_sampling.h"
#include "tessera/streaming.h"

namespace tessera {
namespace {

constexpr int64_t kAheadBatches = 64, kAheadSamples = 1024;

int64_t ranks_of(const SampleOrderOptions& o) { return o.nodes * o.ranks_per_node; }

void check_streaming(const StreamingOptions& o) {
  if (o.order.workers != 1) throw Error("streaming: a rank has one worker");
  if (o.order.nodes < 1 || o.order.ranks_per_node < 1 || o.order.batch < 1)
    throw Error("streaming: nodes, ranks and batch are at least 1");
  if (o.rank < 0 || o.rank >= ranks_of(o.order))
    throw Error(fmt::format("streaming: there is no rank {} of {}", o.rank, ranks_of(o.order)));
  if (o.granularity < 1) throw Error(fmt::format("streaming: a granularity of {} samples", o.granularity));
  if (o.ahead < 0) throw Error(fmt::format("streaming: {} samples ahead", o.ahead));
}

}  // namespace

struct StreamingDataset::State {
  StreamingOptions options;
  std::vector<std::shared_ptr<const MdsReader>> readers;
  std::vector<std::vector<int64_t>> shards;  // their sizes, of each stream
  std::vector<int64_t> ends, chosen;         // of each stream
  int64_t epoch_size = 0;
  bool is_remote = false;

  // Where this rank is.
  int64_t epoch = 0, first = 0;
  bool begun = false;
  std::vector<int64_t> ids;  // of the epoch at hand, from `first` on
  size_t at = 0;

  State(const std::vector<DataStream>& streams, StreamingOptions o) : options(std::move(o)) {
    check_weights(streams, options.epoch_size);
    check_streaming(options);
    std::vector<int64_t> sizes;
    for (const DataStream& stream : streams) {
      const auto reader = std::make_shared<const MdsReader>(stream.folder, options.reader);
      if (!readers.empty() && reader->columns() != readers[0]->columns())
        throw FileError(fmt::format("{}: has other columns than {}", reader->folder(), readers[0]->folder()));
      readers.push_back(reader);
      shards.push_back(reader->shard_sizes());
      sizes.push_back(reader->size());
      ends.push_back(reader->size() + (ends.empty() ? 0 : ends.back()));
      is_remote = is_remote || reader->is_remote();
    }
    SampleOrderOptions& order = options.order;
    const bool many = order.shuffle == Shuffle::Py1s || order.shuffle == Shuffle::Py2s;
    if (order.canonical_nodes == 0) order.canonical_nodes = order.nodes * (many ? 64 : 1);
    chosen = samples_per_stream(streams, sizes, options.epoch_size, order.seed);
    for (int64_t count : chosen) epoch_size += count;
    if (epoch_size == 0) throw Error("streaming: an epoch without samples");
    if (options.ahead == 0) options.ahead = std::max(kAheadBatches * order.batch, kAheadSamples);
  }

  Tensor order(int64_t which, int64_t from) const { return order(options.order, which, from); }
  Tensor order(const SampleOrderOptions& o, int64_t which, int64_t from) const {
    if (which < 0) throw Error(fmt::format("streaming: epoch {}", which));
    const SampledEpoch drawn = sample_streams(shards, chosen, options, which);
    Tensor out = sample_order(drawn.sizes, o, which, from);
    if (!drawn.ids.empty())
      for (int64_t& id : std::span(out.data<int64_t>(), static_cast<size_t>(out.numel())))
        if (id >= 0) id = drawn.ids[static_cast<size_t>(id)];
    return out;
  }

  std::pair<size_t, int64_t> place(int64_t id) const {
    if (id < 0 || id >= ends.back()) throw Error(fmt::format("streaming: no sample {} of {}", id, ends.back()));
    const auto stream = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), id) - ends.begin());
    return {stream, id - (stream ? ends[stream - 1] : 0)};
  }

  void prefetch(std::span<const int64_t> wanted) const {
    std::vector<std::vector<int64_t>> of_stream(readers.size());
    for (int64_t id : wanted) {
      if (id < 0) continue;
      const auto [stream, sample] = place(id);
      of_stream[stream].push_back(sample);
    }
    for (size_t i = 0; i < readers.size(); ++i) readers[i]->prefetch(of_stream[i]);
  }

  void begin() {
    if (begun) ++epoch, first = 0;
    const Tensor all = order(epoch, first);
    const auto mine = static_cast<size_t>(all.size(3) * all.size(4));
    const int64_t* from = all.data<int64_t>() + static_cast<size_t>(options.rank) * mine;
    ids.assign(from, std::find(from, from + mine, -1));
    at = 0;
    begun = true;
  }

  std::optional<int64_t> next() {
    if (!begun) begin();
    if (at == ids.size()) return {};
    const auto ahead = static_cast<size_t>(options.ahead);
    if (is_remote && at % std::max<size_t>(ahead / 4, 1) == 0)
      prefetch(std::span(ids).subspan(at, std::min(ahead, ids.size() - at)));
    return ids[at++];
  }
};

StreamingDataset::StreamingDataset(std::vector<DataStream> streams, StreamingOptions options)
    : state_(std::make_unique<State>(streams, std::move(options))) {}
StreamingDataset::~StreamingDataset() = default;

const std::string& StreamingDataset::name() const { return state_->readers[0]->folder(); }
const std::vector<MdsColumn>& StreamingDataset::columns() const { return state_->readers[0]->columns(); }
size_t StreamingDataset::column(std::string_view name) const { return state_->readers[0]->column(name); }
int64_t StreamingDataset::size() const { return state_->ends.back(); }
int64_t StreamingDataset::epoch_size() const { return state_->epoch_size; }
const std::vector<int64_t>& StreamingDataset::chosen() const { return state_->chosen; }
std::pair<size_t, int64_t> StreamingDataset::place(int64_t id) const { return state_->place(id); }
Tensor StreamingDataset::order(int64_t epoch, int64_t first) const { return state_->order(epoch, first); }
Tensor StreamingDataset::order_of_one_rank(int64_t epoch, int64_t batch) const {
  SampleOrderOptions o = state_->options.order;
  o.nodes = o.ranks_per_node = 1;
  o.batch = batch;
  const Tensor all = state_->order(o, epoch, 0);
  return all.reshape({all.size(3), batch});
}

MdsSample StreamingDataset::sample(int64_t id) const {
  const auto [stream, sample] = state_->place(id);
  return state_->readers[stream]->sample(sample);
}

MdsValue StreamingDataset::value(int64_t id, size_t column) const {
  const auto [stream, sample] = state_->place(id);
  return state_->readers[stream]->value(sample, column);
}

void StreamingDataset::prefetch(std::span<const int64_t> ids) const {
  if (state_->is_remote) state_->prefetch(ids);
}

void StreamingDataset::begin() { state_->begin(); }
std::optional<int64_t> StreamingDataset::next_id() { return state_->next(); }
std::optional<MdsSample> StreamingDataset::next() {
  const auto id = state_->next();
  if (!id) return {};
  return sample(*id);
}

StreamingState StreamingDataset::state() const {
  const SampleOrderOptions& order = state_->options.order;
  return {.epoch = state_->epoch,
          .sample_in_epoch = state_->first + static_cast<int64_t>(state_->at) * ranks_of(order),
          .num_canonical_nodes = order.canonical_nodes,
          .shuffle_seed = order.seed,
          .initial_physical_nodes = order.initial_nodes ? order.initial_nodes : order.nodes};
}

void StreamingDataset::load_state(const StreamingState& state) {
  State& s = *state_;
  if (state.epoch < 0 || state.sample_in_epoch < 0 || state.num_canonical_nodes < 1 || state.initial_physical_nodes < 0)
    throw Error("streaming: a state with numbers that cannot be");
  const SampleOrderOptions before = s.options.order;
  s.options.order.canonical_nodes = state.num_canonical_nodes;
  s.options.order.seed = state.shuffle_seed;
  s.options.order.initial_nodes = state.initial_physical_nodes;
  try {
    s.order(state.epoch, state.sample_in_epoch);
  } catch (...) {
    s.options.order = before;
    throw;
  }
  s.epoch = state.epoch;
  s.first = state.sample_in_epoch;
  s.begun = false;
  s.ids.clear();
  s.at = 0;
}

}  // namespace tessera
