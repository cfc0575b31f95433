#include "core/gpu/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "core/util/bytes.h"

namespace tessera::gpu {

struct Block {
  std::byte* data;
  size_t bytes;
  StreamHandle stream;
  int pool;
  bool small;
  bool used = true;
  size_t requested = 0;
  Block *before = nullptr, *after = nullptr;  // neighbours in the segment
  Block* next_ready = nullptr;
  std::vector<StreamHandle> users = {};  // other streams
  int waits = 0;                         // events that must happen before it is free
};

namespace {

constexpr size_t kGrain = 512;              // sizes are multiples of it, and addresses
constexpr size_t kSmall = size_t(1) << 20;  // up to here blocks share small segments
constexpr size_t kSmallSegment = size_t(2) << 20;
constexpr size_t kLargeSegment = size_t(20) << 20;  // for blocks up to half of it
constexpr size_t kSegmentGrain = size_t(2) << 20;

size_t rounded(size_t bytes, size_t grain) { return (bytes + grain - 1) / grain * grain; }
size_t block_size(size_t bytes) { return std::max(kGrain, rounded(bytes, kGrain)); }
size_t segment_size(size_t bytes) {
  if (bytes <= kSmall) return kSmallSegment;
  return bytes <= kLargeSegment / 2 ? kLargeSegment : rounded(bytes, kSegmentGrain);
}

}  // namespace

bool Allocator::Order::operator()(const Block* a, const Block* b) const {
  return std::tuple(a->stream, a->bytes, a->data) < std::tuple(b->stream, b->bytes, b->data);
}

Allocator::Allocator(Runtime& runtime, std::string name) : runtime_(runtime), name_(std::move(name)) {}
Allocator::~Allocator() { trim(); }

void* Allocator::data(const Block* block) { return block->data; }

std::set<Block*, Allocator::Order>& Allocator::list_of(const Block* block) {
  Pool& pool = pools_[block->pool];
  return block->small ? pool.small : pool.large;
}

Block* Allocator::allocate(size_t bytes, StreamHandle stream, int pool) {
  if (bytes > size_t(1) << 62)
    throw OutOfMemoryError(fmt::format("out of memory: {} asked for", describe_bytes(bytes)));
  std::lock_guard lock(lock_);
  limit_.check(bytes, stats_.allocated, name_);
  const size_t size = block_size(bytes);
  collect(false);
  Block* block = take_ready(size, stream, pool);
  if (!block) {
    block = take_cached(size, stream, pool);
    if (!block) block = take_segment(size, stream, pool);
    block->used = true;
    split(block, size);
  }
  block->requested = bytes;
  stats_.allocated += static_cast<int64_t>(bytes);
  stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
  return block;
}

// Null for sizes that have none.
Block** Allocator::ready_list(size_t bytes) {
  const size_t index = bytes / kGrain - 1;
  return index < ready_.size() ? &ready_[index] : nullptr;
}

Block* Allocator::take_ready(size_t bytes, StreamHandle stream, int pool) {
  Block** list = pool == 0 ? ready_list(bytes) : nullptr;
  if (!list || !*list || (*list)->stream != stream) return nullptr;
  return std::exchange(*list, (*list)->next_ready);
}

void Allocator::join_ready(Block*& list) {
  while (Block* block = list) {
    list = block->next_ready;
    make_free(block);
  }
}
void Allocator::join_ready() {
  for (Block*& list : ready_) join_ready(list);
}

// The smallest free block of the stream that is large enough.
Block* Allocator::take_cached(size_t bytes, StreamHandle stream, int pool) {
  Block wanted{nullptr, bytes, stream, pool, bytes <= kSmall};
  auto& list = list_of(&wanted);
  auto found = list.lower_bound(&wanted);
  if (found == list.end() || (*found)->stream != stream) return nullptr;
  Block* block = *found;
  list.erase(found);
  return block;
}

Block* Allocator::take_segment(size_t bytes, StreamHandle stream, int pool) {
  if (pool == 0 && bytes <= kSmall) {
    join_ready();
    if (Block* block = take_cached(bytes, stream, pool)) return block;
  }
  const size_t size = segment_size(bytes);
  void* data = runtime_.allocate(size);
  if (!data) {  // blocks that wait for other streams, and all that is cached
    collect(true);
    if (Block* block = take_cached(bytes, stream, pool)) return block;
    trim();
    data = runtime_.allocate(size);
  }
  if (!data) {
    const FreeMemory memory = runtime_.memory();
    throw OutOfMemoryError(fmt::format("out of memory on {}: {} asked for, {} held by tensors, {} free of {}", name_,
                                       describe_bytes(bytes), describe_bytes(static_cast<size_t>(stats_.allocated)),
                                       describe_bytes(memory.free), describe_bytes(memory.total)));
  }
  stats_.reserved += static_cast<int64_t>(size);
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  return new Block{static_cast<std::byte*>(data), size, stream, pool, bytes <= kSmall};
}

// Cuts off what a block has too much, if that is worth a block.
void Allocator::split(Block* block, size_t bytes) {
  const size_t rest = block->bytes - bytes;
  if (rest < (block->small ? kGrain : kSmall)) return;
  auto* tail = new Block{block->data + bytes, rest, block->stream, block->pool, block->small, false};
  tail->before = block;
  tail->after = block->after;
  if (tail->after) tail->after->before = tail;
  block->after = tail;
  block->bytes = bytes;
  list_of(tail).insert(tail);
}

void Allocator::use(Block* block, StreamHandle stream) {
  std::lock_guard lock(lock_);
  if (stream == block->stream || std::count(block->users.begin(), block->users.end(), stream)) return;
  block->users.push_back(stream);
}

void Allocator::end(StreamHandle stream) {
  std::lock_guard lock(lock_);
  ended_.insert(stream);
}

void Allocator::begin(StreamHandle stream) {
  std::lock_guard lock(lock_);
  ended_.erase(stream);
}

void Allocator::release(Block* block) noexcept {
  std::lock_guard lock(lock_);
  stats_.allocated -= static_cast<int64_t>(block->requested);
  if (captures_ > 0 && !block->users.empty()) return released_meanwhile_.push_back(block);
  wait_for_users(block);
}

void Allocator::wait_for_users(Block* block) noexcept {
  for (StreamHandle user : block->users) {
    if (ended_.contains(user)) continue;
    ++block->waits;  // for ever where recording fails: nobody can tell when that user is done
    EventHandle event = nullptr;
    try {
      event = runtime_.create_event(false);
      runtime_.record(event, user);
      waiting_.push_back({event, block});
    } catch (const Error&) {
      if (event) runtime_.destroy_event(event);
    }
  }
  block->users.clear();
  if (block->waits == 0) keep_ready(block);
}

void Allocator::keep_ready(Block* block) {
  Block** list = block->pool == 0 ? ready_list(block->bytes) : nullptr;
  if (!list) return make_free(block);
  if (*list && (*list)->stream != block->stream) join_ready(*list);
  block->next_ready = std::exchange(*list, block);
}

void Allocator::make_free(Block* block) {
  block->used = false;
  auto absorb = [this](Block* into, Block* from) {
    list_of(from).erase(from);
    into->bytes += from->bytes;
    into->data = std::min(into->data, from->data);
    (from == into->before ? into->before : into->after) = from == into->before ? from->before : from->after;
    if (into->before) into->before->after = into;
    if (into->after) into->after->before = into;
    delete from;
  };
  if (block->before && !block->before->used) absorb(block, block->before);
  if (block->after && !block->after->used) absorb(block, block->after);
  Pool& pool = pools_[block->pool];
  if (pool.dropped && !block->before && !block->after) {
    runtime_.release(block->data);
    stats_.reserved -= static_cast<int64_t>(block->bytes);
    delete block;
    return;
  }
  list_of(block).insert(block);
}

// Frees the blocks whose other streams have got past them.
void Allocator::collect(bool wait) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (wait) runtime_.synchronize_event(it->event);
    if (!runtime_.has_happened(it->event)) {
      ++it;
      continue;
    }
    runtime_.destroy_event(it->event);
    Block* block = it->block;
    it = waiting_.erase(it);
    if (--block->waits == 0) keep_ready(block);
  }
}

// Gives back every segment that is one free block.
void Allocator::trim() {
  join_ready();
  for (auto& [id, pool] : pools_) {
    if (id != 0 && !pool.dropped) continue;  // a graph will use these addresses
    for (auto* list : {&pool.small, &pool.large})
      for (auto it = list->begin(); it != list->end();) {
        Block* block = *it;
        if (block->before || block->after) {
          ++it;
          continue;
        }
        it = list->erase(it);
        runtime_.release(block->data);
        stats_.reserved -= static_cast<int64_t>(block->bytes);
        delete block;
      }
  }
}

void Allocator::empty_cache() {
  std::lock_guard lock(lock_);
  collect(false);
  trim();
}

MemoryStats Allocator::stats() const {
  std::lock_guard lock(lock_);
  return stats_;
}

void Allocator::reset_peak() {
  std::lock_guard lock(lock_);
  stats_.peak_allocated = stats_.allocated;
  stats_.peak_reserved = stats_.reserved;
}

void Allocator::set_limit(int64_t bytes) {
  std::lock_guard lock(lock_);
  limit_.set(bytes);
}

void Allocator::begin_capture() {
  std::lock_guard lock(lock_);
  ++captures_;
}

void Allocator::end_capture() {
  std::lock_guard lock(lock_);
  if (--captures_ > 0) return;
  for (Block* block : std::exchange(released_meanwhile_, {})) wait_for_users(block);
}

void Allocator::drop_pool(int pool) {
  std::lock_guard lock(lock_);
  pools_[pool].dropped = true;
  trim();
}

}  // namespace tessera::gpu
