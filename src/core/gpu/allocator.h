// A caching allocator for one GPU. Memory is ordered by streams: a block that is released is handed out again at once,
// but only to work of the stream it belonged to, which runs later.
#pragma once
#include <array>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/gpu/runtime.h"
#include "core/util/memory_limit.h"
#include "core/util/spin_lock.h"
#include "tessera/tensor.h"

namespace tessera::gpu {

/// Blocks are cut from segments of the runtime and joined again when neighbours are free.
struct Block;

class Allocator {
 public:
  /// `name` is what messages call the device; the runtime's current device must be it whenever a function is called.
  Allocator(Runtime& runtime, std::string name);
  ~Allocator();
  Allocator(const Allocator&) = delete;

  /// Throws OutOfMemoryError, after all cached memory was given back, with the sizes. Pools share no memory; 0 is
  /// everybody's.
  Block* allocate(size_t bytes, StreamHandle stream, int pool);
  static void* data(const Block* block);
  void release(Block* block) noexcept;
  /// Work of `stream` uses the block, too: once released, it waits for what is queued there by then.
  void use(Block* block, StreamHandle stream);
  /// The stream's work is done and it is no more: blocks that it used wait for it no longer.
  void end(StreamHandle stream);
  /// The handle is that of a new stream.
  void begin(StreamHandle stream);

  void empty_cache();
  MemoryStats stats() const;
  void reset_peak();
  void set_limit(int64_t bytes);

  /// Between these, blocks that other streams used stay: what is recorded on a captured stream never happens.
  void begin_capture();
  void end_capture();
  /// Gives a pool's memory back as soon as its blocks are released.
  void drop_pool(int pool);

 private:
  struct Order {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct Pool {
    std::set<Block*, Order> small, large;
    bool dropped = false;
  };
  struct Waiting {
    EventHandle event;
    Block* block;
  };

  std::set<Block*, Order>& list_of(const Block* block);
  Block** ready_list(size_t bytes);
  Block* take_ready(size_t bytes, StreamHandle stream, int pool);
  void keep_ready(Block* block);
  void join_ready(Block*& list);
  void join_ready();
  Block* take_cached(size_t bytes, StreamHandle stream, int pool);
  Block* take_segment(size_t bytes, StreamHandle stream, int pool);
  void split(Block* block, size_t bytes);
  void wait_for_users(Block* block) noexcept;
  void make_free(Block* block);
  void collect(bool wait);
  void trim();

  Runtime& runtime_;
  std::string name_;
  mutable SpinLock lock_;
  std::map<int, Pool> pools_;
  /// Small blocks of pool 0 that were released, by size: handed out again as they are, and joined with their neighbours
  /// only once no other will do. Those of a list are of one stream.
  std::array<Block*, 64> ready_{};
  std::list<Waiting> waiting_;
  int captures_ = 0;                        // under way
  std::vector<Block*> released_meanwhile_;  // with users
  std::set<StreamHandle> ended_;
  MemoryStats stats_;
  MemoryLimit limit_;
};

}  // namespace tessera::gpu
