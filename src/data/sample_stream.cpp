#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>

#include "tessera/streaming.h"

namespace tessera {
namespace {

// Copies the first `count` numbers of an array of integers; false if it is another or a shorter one.
bool copy_tokens(const Tensor& from, int64_t count, int64_t* to) {
  if (from.dim() != 1 || from.numel() < count) return false;
  const auto copy = [&]<class T>(const T* data) { std::copy_n(data, count, to); };
  switch (from.dtype()) {
    case UInt8:
      return copy(from.data<uint8_t>()), true;
    case UInt16:
      return copy(from.data<uint16_t>()), true;
    case Int32:
      return copy(from.data<int32_t>()), true;
    case UInt32:
      return copy(from.data<uint32_t>()), true;
    case Int64:
      return copy(from.data<int64_t>()), true;
    default:
      return false;
  }
}

// Where samples come from, of one folder or of several.
struct TokenSource {
  std::string name;
  std::function<Tensor(int64_t epoch)> order;
  std::function<MdsValue(int64_t id)> value;
  std::function<void(std::span<const int64_t> ids)> prefetch;  // none where all is here
};

// The batches of one epoch after another, each of ids of samples.
class Epochs {
 public:
  Epochs(const TokenSource& source, int64_t batch) : source_(source), batch_(batch), ids_(source.order(0)) {
    batches_ = whole() / batch_;
  }
  int64_t batches() const { return batches_; }
  const int64_t* batch(int64_t index) {
    constexpr int64_t ahead = 64;  // batches whose shards are downloaded meanwhile
    if (const int64_t epoch = index / batches_; epoch != epoch_) {
      ids_ = source_.order(epoch);
      epoch_ = epoch;
      hinted_ = -1;
    }
    const int64_t at = index % batches_, hint = at / (ahead / 4);
    const int64_t* const out = ids_.data<int64_t>() + at * batch_;
    if (source_.prefetch && hint != hinted_) {
      source_.prefetch({out, static_cast<size_t>(std::min(ahead, batches_ - at) * batch_)});
      hinted_ = hint;
    }
    return out;
  }

 private:
  int64_t whole() const {
    const auto* first = ids_.data<int64_t>();
    return std::find(first, first + ids_.numel(), -1) - first;
  }
  TokenSource source_;
  int64_t batch_;
  Tensor ids_;
  int64_t epoch_ = 0, batches_ = 0, hinted_ = -1;
};

std::string text_of(const Tensor* array) {
  return array && array->dim() == 1 ? fmt::format("a list of {} {}", array->size(0), name(array->dtype())) : "none";
}

BatchSource batches_of_tokens(const TokenSource& source, const std::string& column, int64_t block, int64_t batch,
                              int64_t vocabulary) {
  Epochs epochs(source, batch);
  return [=, tokens = std::vector<int64_t>(static_cast<size_t>(block) + 1)](int64_t index) mutable {
    const int64_t* ids = epochs.batch(index);
    Tensor x = empty({batch, block}, Int64, cpu()), y = empty({batch, block}, Int64, cpu());
    for (int64_t row = 0; row < batch; ++row) {
      const MdsValue value = source.value(ids[row]);
      const Tensor* array = std::get_if<Tensor>(&value);
      if (!array || !copy_tokens(*array, block + 1, tokens.data()))
        throw FileError(
            fmt::format("{}: sample {} has {} in column {}, not a list of {} tokens, as a block of {} needs",
                        source.name, ids[row], text_of(array), column, block + 1, block));
      for (int64_t token : tokens)
        if (token < 0 || token >= vocabulary)
          throw FileError(fmt::format("{}: sample {} has token {}, the vocabulary {} tokens", source.name, ids[row],
                                      token, vocabulary));
      std::copy_n(tokens.begin(), block, x.data<int64_t>() + row * block);
      std::copy_n(tokens.begin() + 1, block, y.data<int64_t>() + row * block);
    }
    return Tensors{x, y};
  };
}

void check_token_batches(int64_t samples, int64_t block, int64_t batch) {
  if (block < 1 || batch < 1) throw Error("streamed_tokens: block and batch must be at least 1");
  if (samples < batch)
    throw FileError(fmt::format("streamed_tokens: {} samples are too few for batches of {}", samples, batch));
}

}  // namespace

BatchSource streamed_tokens(std::shared_ptr<const MdsReader> reader, const std::string& column, int64_t block,
                            int64_t batch, int64_t vocabulary, SampleOrderOptions order) {
  check_token_batches(reader->size(), block, batch);
  const size_t place = reader->column(column);
  order.nodes = order.ranks_per_node = order.workers = 1;
  order.batch = batch;
  TokenSource source{.name = reader->folder(),
                     .order = [=](int64_t epoch) { return sample_order(reader->shard_sizes(), order, epoch); },
                     .value = [=](int64_t id) { return reader->value(id, place); },
                     .prefetch = {}};
  if (reader->is_remote()) source.prefetch = [=](std::span<const int64_t> ids) { reader->prefetch(ids); };
  return batches_of_tokens(source, column, block, batch, vocabulary);
}

BatchSource streamed_tokens(std::shared_ptr<const StreamingDataset> data, const std::string& column, int64_t block,
                            int64_t batch, int64_t vocabulary) {
  check_token_batches(data->epoch_size(), block, batch);
  const size_t place = data->column(column);
  const TokenSource source{.name = data->name(),
                           .order = [=](int64_t epoch) { return data->order_of_one_rank(epoch, batch); },
                           .value = [=](int64_t id) { return data->value(id, place); },
                           .prefetch = [=](std::span<const int64_t> ids) { data->prefetch(ids); }};
  return batches_of_tokens(source, column, block, batch, vocabulary);
}

}  // namespace tessera
