#include "data/shard_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/util/disk_cache.h"
#include "io/file.h"
#include "tessera/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIncoming = ".part";
constexpr const char* kShards = "shards";
constexpr double kLockPause = 0.02;  // seconds

/// A descriptor, and with it the lock that it holds.
struct LockedFile {
  int fd = -1;
  LockedFile() = default;
  LockedFile(const LockedFile&) = delete;
  ~LockedFile() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

// Whether the open file is still the one of that name: its owner may have renamed or removed it.
bool is_named(int fd, const std::string& path) {
  struct stat mine, current;
  return ::fstat(fd, &mine) == 0 && ::stat(path.c_str(), &current) == 0 && mine.st_ino == current.st_ino &&
         mine.st_dev == current.st_dev;
}

bool disk_is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

struct KeptFile {
  fs::path path;
  fs::file_time_type used;
  uint64_t bytes;
};

// Those of all data sets, the one used last comes last. What nobody downloads any more is removed.
std::vector<KeptFile> kept_files(const fs::path& root) {
  std::vector<KeptFile> out;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    if (!it->is_regular_file(gone) || it.depth() == 0) continue;
    const KeptFile file{it->path(), it->last_write_time(gone), it->file_size(gone)};
    if (gone) continue;  // others make room, too
    if (file.path.extension() == kIncoming) {
      LockedFile part;
      part.fd = ::open(file.path.c_str(), O_RDWR | O_CLOEXEC);
      if (part.fd >= 0 && ::flock(part.fd, LOCK_EX | LOCK_NB) == 0 && is_named(part.fd, file.path.string())) {
        ::unlink(file.path.c_str());  // whoever wrote it has died
        continue;
      }
    }
    out.push_back(file);
  }
  std::sort(out.begin(), out.end(), [](const KeptFile& a, const KeptFile& b) { return a.used < b.used; });
  return out;
}

bool is_evictable(const KeptFile& file, const std::string& keep) {
  return file.path.extension() != kIncoming && file.path != keep;
}

bool evict(const KeptFile& file) {
  std::error_code ignored;
  if (!fs::remove(file.path, ignored)) return false;
  ::rmdir(file.path.parent_path().c_str());  // of a data set that has left
  return true;
}

}  // namespace

ShardCache::ShardCache(fs::path root, const std::string& key, int64_t limit)
    : root_((root.empty() ? cache_folder() : std::move(root)) / kShards),
      folder_(root_ / key),
      limit_(static_cast<uint64_t>(std::max<int64_t>(limit, 0))) {
  if (const std::string why_not = open_cache_folder(root_.parent_path(), kShards); !why_not.empty())
    throw Error("no cache folder for shards: " + why_not);
}

bool ShardCache::use(const std::string& name) const {
  return ::utimensat(AT_FDCWD, path(name).c_str(), nullptr, 0) == 0;
}

void ShardCache::drop(const std::string& name) const { ::unlink(path(name).c_str()); }

std::unique_ptr<ShardCache::Incoming> ShardCache::receive(const std::string& name, uint64_t size,
                                                          const Patience& patience) const {
  if (size > limit_)
    throw Error(fmt::format("a cache of {} bytes is too small for {}, which has {}", limit_, name, size));
  const std::string final_path = path(name), part = final_path + kIncoming;
  for (;;) {
    std::error_code code;
    fs::create_directories(fs::path(part).parent_path(), code);
    LockedFile file;
    file.fd = ::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file.fd < 0 && errno == ENOENT && patience.left() > 0) continue;  // the folder has just been tidied away
    if (file.fd < 0) throw Error(fmt::format("cannot write {}: {}", in_quotes(part), std::strerror(errno)));
    const bool locked = ::flock(file.fd, LOCK_EX | LOCK_NB) == 0;
    if (locked && is_named(file.fd, part)) {
      if (use(name)) {  // somebody finished it meanwhile
        ::unlink(part.c_str());
        return nullptr;
      }
      return std::unique_ptr<Incoming>(new Incoming(*this, part, file.release(), size));
    }
    const bool is_over = !locked && !patience.wait(kLockPause);
    if (is_over && patience.left() > 0) throw FileError("the download was ended");
    if (is_over)
      throw FileError(
          fmt::format("not there after {} s, in which another download of it did not end", patience.deadline));
    if (!locked && use(name)) return nullptr;
  }
}

void ShardCache::make_room(uint64_t bytes, const std::string& keep) const {
  const std::string path = (root_ / "lock").string();
  LockedFile lock;
  lock.fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock.fd < 0 || ::flock(lock.fd, LOCK_EX) != 0)
    throw Error(fmt::format("cannot lock {}: {}", in_quotes(path), std::strerror(errno)));
  const std::vector<KeptFile> files = kept_files(root_);
  uint64_t total = bytes;
  for (const KeptFile& file : files) total += file.path == keep ? 0 : file.bytes;
  for (const KeptFile& file : files) {
    if (total <= limit_) break;
    if (is_evictable(file, keep) && evict(file)) total -= file.bytes;
  }
}

bool ShardCache::evict_one(const std::string& keep) const {
  const std::vector<KeptFile> files = kept_files(root_);
  return std::any_of(files.begin(), files.end(), [&](auto& file) { return is_evictable(file, keep) && evict(file); });
}

ShardCache::Incoming::Incoming(const ShardCache& cache, std::string path, int fd, uint64_t size)
    : cache_(cache), path_(std::move(path)), fd_(fd), size_(size) {}

ShardCache::Incoming::~Incoming() {
  if (!committed_) ::unlink(path_.c_str());
  ::close(fd_);
}

void ShardCache::Incoming::fail(int error) const {
  throw Error(fmt::format("cannot keep {}: {}", in_quotes(path_), std::strerror(error)));
}

void ShardCache::Incoming::begin() {
  if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) fail(errno);
  written_ = 0;
  cache_.make_room(size_, path_);
  // All of it at once: a disk that is full says so now, and others see how much comes.
  while (size_ && ::fallocate(fd_, 0, 0, static_cast<off_t>(size_)) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EOPNOTSUPP || error == ENOSYS) break;
    if (!disk_is_full(error) || !cache_.evict_one(path_)) fail(error);
  }
}

void ShardCache::Incoming::write(std::string_view bytes) {
  if (bytes.size() > size_ - written_)
    throw FileError(fmt::format("more than the {} bytes that the index says", size_));
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno);
    written_ += static_cast<uint64_t>(n);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void ShardCache::Incoming::expect_whole() const {
  if (written_ != size_) throw FileError(fmt::format("has {} bytes, the index says {}", written_, size_));
}

void ShardCache::Incoming::commit() {
  if (::fdatasync(fd_) != 0 && errno != EINVAL) fail(errno);
  const std::string path = path_.substr(0, path_.size() - std::string_view(kIncoming).size());
  if (::rename(path_.c_str(), path.c_str()) != 0) fail(errno);
  committed_ = true;
}

}  // namespace tessera
