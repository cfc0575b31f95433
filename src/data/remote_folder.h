// A folder of another machine: its shards are downloaded to this one's disk, some of them ahead.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/shard_cache.h"
#include "io/file.h"

namespace tessera {

class RemoteFolder {
 public:
  /// Throws FileError on an address that is none, Error on options that cannot be.
  RemoteFolder(const std::string& address, const RemoteOptions& options);
  /// Ends what is on its way in the background.
  ~RemoteFolder();
  const Store& store() const { return store_; }

  /// A whole file, not kept on disk. Throws FileError, MissingFile.
  std::string read(const std::string& file) const;

  /// A file of that size that is kept on disk. `check` throws FileError where its bytes are damaged: they come again.
  struct Wanted {
    std::string file;
    uint64_t bytes = 0;
    std::function<void(std::string_view bytes)> check;
  };
  /// What the data set is now: its files are kept apart from those of other states. To be said before map().
  void set_state(std::string_view state);
  /// Throws FileError that begins with the file's address; Error on a full disk.
  std::shared_ptr<MappedFile> map(const Wanted& wanted) const;
  /// Downloads these in the background, the first ones first, in place of what else was to come. Whatever fails is
  /// left to map(), which says so.
  void prefetch(std::vector<Wanted> wanted);
  uint64_t cache_limit() const { return static_cast<uint64_t>(options_.cache_limit); }

 private:
  const ShardCache& cache() const;
  void fetch(const Wanted& wanted, const Patience& patience) const;
  void work();

  Store store_;
  RemoteOptions options_;
  std::string key_;
  mutable std::once_flag opened_;
  mutable std::optional<ShardCache> cache_;  // made for the first file

  int owner_;  // the process that the threads are of
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Wanted> queue_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
};

}  // namespace tessera
