#include <fmt/format.h>

#include <algorithm>

#include "tessera/mds.h"

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

// The batches of one epoch after another, each of ids of samples.
class Epochs {
 public:
  Epochs(std::vector<int64_t> sizes, const SampleOrderOptions& order)
      : sizes_(std::move(sizes)), order_(order), ids_(sample_order(sizes_, order_, 0)) {
    const auto* first = ids_.data<int64_t>();
    batches_ = (std::find(first, first + ids_.numel(), -1) - first) / order_.batch;
  }
  int64_t batches() const { return batches_; }
  const int64_t* batch(int64_t index) {
    if (const int64_t epoch = index / batches_; epoch != epoch_) {
      ids_ = sample_order(sizes_, order_, epoch);
      epoch_ = epoch;
    }
    return ids_.data<int64_t>() + index % batches_ * order_.batch;
  }

 private:
  std::vector<int64_t> sizes_;
  SampleOrderOptions order_;
  Tensor ids_;
  int64_t epoch_ = 0, batches_ = 0;
};

}  // namespace

BatchSource streamed_tokens(std::shared_ptr<const MdsReader> reader, const std::string& column, int64_t block,
                            int64_t batch, int64_t vocabulary, SampleOrderOptions order) {
  if (block < 1 || batch < 1) throw Error("streamed_tokens: block and batch must be at least 1");
  const size_t place = reader->column(column);
  order.nodes = order.ranks_per_node = order.workers = 1;
  order.batch = batch;
  Epochs epochs(reader->shard_sizes(), order);
  if (epochs.batches() == 0)
    throw Error(fmt::format("streamed_tokens: {} samples are too few for batches of {}", reader->size(), batch));
  return [=, tokens = std::vector<int64_t>(static_cast<size_t>(block) + 1)](int64_t index) mutable {
    const int64_t* ids = epochs.batch(index);
    Tensor x = empty({batch, block}, Int64, cpu()), y = empty({batch, block}, Int64, cpu());
    for (int64_t row = 0; row < batch; ++row) {
      const MdsValue value = reader->value(ids[row], place);
      const Tensor* array = std::get_if<Tensor>(&value);
      if (!array || !copy_tokens(*array, block + 1, tokens.data()))
        throw FileError(fmt::format("{}: sample {} has no list of {} tokens in column {}", reader->folder(), ids[row],
                                    block + 1, column));
      for (int64_t token : tokens)
        if (token < 0 || token >= vocabulary)
          throw FileError(fmt::format("{}: sample {} has token {}, the vocabulary {} tokens", reader->folder(),
                                      ids[row], token, vocabulary));
      std::copy_n(tokens.begin(), block, x.data<int64_t>() + row * block);
      std::copy_n(tokens.begin() + 1, block, y.data<int64_t>() + row * block);
    }
    return Tensors{x, y};
  };
}

}  // namespace tessera
