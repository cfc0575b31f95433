// Files of other machines on this one's disk: a folder that any number of processes share. A file has its name only
// once it is whole. Whoever downloads one holds a lock, for which the others wait; the files used last stay.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "data/download.h"

namespace tessera {

class ShardCache {
 public:
  /// Below `root`, with `key` for one state of one data set. Throws Error where the folder cannot be made, or is not
  /// ours.
  ShardCache(std::filesystem::path root, const std::string& key, int64_t limit);

  /// A file on its way: another name, which the destructor removes.
  class Incoming {
   public:
    ~Incoming();
    Incoming(const Incoming&) = delete;
    /// Empties it, and makes room. Throws Error where the disk is full.
    void begin();
    /// Throws Error where the disk is full, FileError beyond the size that was announced.
    void write(std::string_view bytes);
    /// Throws FileError unless all of it has come.
    void expect_whole() const;
    const std::string& path() const { return path_; }
    /// Gives it its name.
    void commit();

   private:
    friend class ShardCache;
    Incoming(const ShardCache& cache, std::string path, int fd, uint64_t size);
    [[noreturn]] void fail(int error) const;
    const ShardCache& cache_;
    std::string path_;
    int fd_;
    uint64_t size_, written_ = 0;
    bool committed_ = false;
  };

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// Whether a file is there; it then counts as the one used last.
  bool use(const std::string& name) const;
  /// Waits until nobody else downloads the file. Null: it is there by now. Throws FileError where patience ends.
  std::unique_ptr<Incoming> receive(const std::string& name, uint64_t size, const Patience& patience) const;
  void drop(const std::string& name) const;

 private:
  void make_room(uint64_t bytes, const std::string& keep) const;
  bool evict_one(const std::string& keep) const;

  std::filesystem::path root_, folder_;
  uint64_t limit_;
};

}  // namespace tessera
