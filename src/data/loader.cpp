#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "data/download.h"
#include "tessera/data.h"
#include "tessera/stream.h"

namespace tessera {
namespace {

// SplitMix64 (Steele, Lea & Flood 2014) as a function of seed and index: any number of a stream without the ones
// before.
uint64_t random_number(uint64_t seed, uint64_t index) {
  auto mix = [](uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  };
  return mix(mix(seed + 0x9e3779b97f4a7c15u) + (index + 1) * 0x9e3779b97f4a7c15u);
}

// Below `n`, by the high half of a product (Lemire 2019); the bias is below n / 2^64.
uint64_t random_below(uint64_t n, uint64_t seed, uint64_t index) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(random_number(seed, index)) * n >> 64);
}

// The numbers below n in an order of its own for each epoch. The order of the last epoch asked for is kept.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed) : order_(static_cast<size_t>(n)), seed_(seed) {}
  const std::vector<int64_t>& order(int64_t epoch) {
    if (epoch == epoch_) return order_;
    std::iota(order_.begin(), order_.end(), int64_t{0});
    const uint64_t n = order_.size(), first = static_cast<uint64_t>(epoch) * n;
    for (uint64_t i = n - 1; i > 0; --i) std::swap(order_[i], order_[random_below(i + 1, seed_, first + i)]);
    epoch_ = epoch;
    return order_;
  }

 private:
  std::vector<int64_t> order_;
  uint64_t seed_;
  int64_t epoch_ = -1;
};

}  // namespace

BatchSource shuffled_windows(Tokens tokens, int64_t block, int64_t batch, uint64_t seed) {
  if (block < 1 || batch < 1) throw Error("shuffled_windows: block and batch must be at least 1");
  const auto size = static_cast<int64_t>(tokens->size());
  if (size <= block) throw Error(fmt::format("shuffled_windows: {} tokens are too few for blocks of {}", size, block));
  const int64_t windows = std::max<int64_t>(1, (size - block) / block), shifts = size - windows * block;
  return [=, shuffle = Permutation(windows, seed)](int64_t index) mutable {
    Tensor x = empty({batch, block}, Int64), y = empty({batch, block}, Int64);
    for (int64_t row = 0; row < batch; ++row) {
      const int64_t count = index * batch + row, epoch = count / windows;
      const auto shift = random_below(static_cast<uint64_t>(shifts), ~seed, static_cast<uint64_t>(epoch));
      const int64_t window = shuffle.order(epoch)[static_cast<size_t>(count % windows)];
      const int32_t* from = tokens->data() + static_cast<int64_t>(shift) + window * block;
      std::copy_n(from, block, x.data<int64_t>() + row * block);
      std::copy_n(from + 1, block, y.data<int64_t>() + row * block);
    }
    return Tensors{x, y};
  };
}

BatchSource shuffled_rows(std::vector<Tensor> columns, int64_t batch, uint64_t seed) {
  if (columns.empty() || batch < 1) throw Error("shuffled_rows: needs columns and a batch of at least 1");
  for (Tensor& t : columns) {
    if (t.dim() < 1 || t.size(0) != columns[0].size(0) || t.device() != cpu())
      throw Error(fmt::format("shuffled_rows: columns do not match: {} and {}", describe(columns[0]), describe(t)));
    t = t.contiguous();
  }
  const int64_t rows = columns[0].size(0), batches = rows / batch;
  if (batches == 0) throw Error(fmt::format("shuffled_rows: {} rows are too few for batches of {}", rows, batch));
  return [=, shuffle = Permutation(rows, seed)](int64_t index) mutable {
    const int64_t* chosen = shuffle.order(index / batches).data() + index % batches * batch;
    Tensors out;
    for (const Tensor& t : columns) {
      Shape shape = t.shape();
      shape[0] = batch;
      Tensor part = empty(shape, t.dtype());
      const size_t bytes = static_cast<size_t>(t.numel() / rows) * size_of(t.dtype());
      for (int64_t i = 0; i < batch; ++i)
        std::memcpy(static_cast<char*>(part.data_ptr()) + static_cast<size_t>(i) * bytes,
                    static_cast<const char*>(t.data_ptr()) + static_cast<size_t>(chosen[i]) * bytes, bytes);
      out.push_back(std::move(part));
    }
    return out;
  };
}

struct DataLoader::State {
  struct Item {
    Tensors batch;
    std::exception_ptr error;
    size_t place = 0;  // in `staged`
  };

  // Page-locked memory of a batch on its way to a GPU; the event says when it has arrived.
  struct Staged {
    Tensors batch;
    std::optional<Event> sent;
  };

  BatchSource source;
  Device device;
  size_t prefetch;
  std::vector<Staged> staged;  // taken in turns: one more than batches can wait
  size_t staged_next = 0;
  pid_t owner = getpid();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> ready;  // batches position, position + 1, ...
  int64_t position = 0;
  uint64_t seeks = 0;
  std::atomic<bool> stop = false;
  std::thread thread;

  // Copies a batch to page-locked memory.
  void stage(Item& item) {
    item.place = staged_next++ % staged.size();
    Staged& to = staged[item.place];
    if (to.sent) to.sent->synchronize();
    to.batch.resize(item.batch.size());
    for (size_t i = 0; i < item.batch.size(); ++i) {
      const Tensor from = item.batch[i].contiguous();
      Tensor& pinned = to.batch[i];
      if (!pinned.defined() || pinned.shape() != from.shape() || pinned.dtype() != from.dtype())
        pinned = empty_pinned(from.shape(), from.dtype(), device);
      std::memcpy(pinned.data_ptr(), from.data_ptr(), static_cast<size_t>(from.numel()) * size_of(from.dtype()));
      item.batch[i] = pinned;
    }
  }

  // The front batch, on the device.
  Tensors send() {
    Item& item = ready.front();
    if (!device.is_card()) return std::move(item.batch);
    Tensors out;
    for (const Tensor& t : item.batch) out.push_back(t.to(device));
    auto& sent = staged[item.place].sent;
    if (!sent) sent.emplace(device);
    sent->record(current_stream(device));
    return out;
  }

  void work() {
    const DownloadsEnd end([this] { return stop.load(); });
    std::unique_lock lock(mutex);
    while (!stop) {
      if (ready.size() >= prefetch) {
        changed.wait(lock);
        continue;
      }
      const int64_t index = position + static_cast<int64_t>(ready.size());
      const uint64_t epoch = seeks;
      lock.unlock();
      Item item;
      try {
        item.batch = source(index);
        if (device.is_card()) stage(item);
      } catch (...) {
        item.error = std::current_exception();
      }
      lock.lock();
      if (epoch != seeks) continue;  // made for a position that was left
      ready.push_back(std::move(item));
      changed.notify_all();
    }
  }
};

DataLoader::DataLoader(BatchSource source, int prefetch, Device device) : state_(std::make_unique<State>()) {
  if (prefetch < 1) throw Error("DataLoader: prefetch must be at least 1");
  state_->source = std::move(source);
  state_->device = device;
  state_->staged.resize(static_cast<size_t>(prefetch) + 1);
  state_->prefetch = static_cast<size_t>(prefetch);
  state_->thread = std::thread([s = state_.get()] { s->work(); });
}

DataLoader::~DataLoader() {
  if (state_->owner != getpid()) {  // in a fork there is no thread to join, and its locks may be held for ever
    static_cast<void>(state_.release());
    return;
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

Tensors DataLoader::next() {
  State& s = *state_;
  if (s.owner != getpid()) throw Error("DataLoader: used in a forked process; make one there");
  std::unique_lock lock(s.mutex);
  s.changed.wait(lock, [&] { return !s.ready.empty(); });
  if (s.ready.front().error) std::rethrow_exception(s.ready.front().error);
  Tensors out = s.send();
  s.ready.pop_front();
  ++s.position;
  s.changed.notify_all();
  return out;
}

int64_t DataLoader::position() const {
  if (state_->owner != getpid()) throw Error("DataLoader: used in a forked process; make one there");
  std::lock_guard lock(state_->mutex);
  return state_->position;
}

void DataLoader::seek(int64_t position) {
  if (position < 0) throw Error(fmt::format("DataLoader: position {} is negative", position));
  if (state_->owner != getpid()) throw Error("DataLoader: used in a forked process; make one there");
  std::lock_guard lock(state_->mutex);
  state_->position = position;
  state_->ready.clear();
  ++state_->seeks;
  state_->changed.notify_all();
}

}  // namespace tessera
