#include "data/remote_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "core/util/disk_cache.h"
#include "tessera/error.h"
#include "tessera/io.h"

namespace tessera {
namespace {

constexpr size_t kMostInMemory = size_t{1} << 30;
constexpr size_t kBackgroundThreads = 4;

class InMemory : public Receiver {
 public:
  std::string bytes;
  void begin() override { bytes.clear(); }
  void take(std::string_view more) override {
    if (more.size() > kMostInMemory - bytes.size()) throw FileError("has more than 1 GiB");
    bytes += more;
  }
  void finish() override {}
};

class OnDisk : public Receiver {
 public:
  OnDisk(ShardCache::Incoming& file, const RemoteFolder::Wanted& wanted) : file_(file), wanted_(wanted) {}
  void begin() override { file_.begin(); }
  void take(std::string_view bytes) override { file_.write(bytes); }
  void finish() override {
    file_.expect_whole();
    const auto bytes = map_file(file_.path());
    wanted_.check({bytes->data, bytes->size});
    file_.commit();
  }

 private:
  ShardCache::Incoming& file_;
  const RemoteFolder::Wanted& wanted_;
};

void check_options(const std::string& address, const RemoteOptions& o) {
  if (o.attempts < 1 || !(o.stall > 0) || !(o.deadline > 0) || o.deadline > 1e6 || o.cache_limit < 0)
    throw Error(address + ": attempts, seconds and the cache's limit must be above 0");
}

}  // namespace

RemoteFolder::RemoteFolder(const std::string& address, const RemoteOptions& options)
    : store_(parse_store(address, environment_variable)), options_(options), owner_(getpid()) {
  check_options(store_.name, options_);
}

RemoteFolder::~RemoteFolder() {
  if (owner_ != getpid()) {  // in a fork there is no thread to join
    static_cast<void>(new std::vector<std::thread>(std::move(threads_)));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::string RemoteFolder::read(const std::string& file) const {
  InMemory receiver;
  download(store_, file, Patience(options_), receiver);
  return std::move(receiver.bytes);
}

void RemoteFolder::set_state(std::string_view state) { key_ = cache_key({store_.url, state}); }

const ShardCache& RemoteFolder::cache() const {
  std::call_once(opened_, [this] { cache_.emplace(options_.cache, key_, options_.cache_limit); });
  return *cache_;
}

void RemoteFolder::fetch(const Wanted& wanted, const Patience& patience) const {
  if (cache().use(wanted.file)) return;
  try {
    const auto incoming = cache().receive(wanted.file, wanted.bytes, patience);
    if (!incoming) return;
    OnDisk receiver(*incoming, wanted);
    download(store_, wanted.file, patience, receiver);
  } catch (const FileError& e) {
    const std::string name = store_.name_of(wanted.file);
    if (std::string_view(e.what()).starts_with(name)) throw;
    throw FileError(fmt::format("{}: {}", name, e.what()));
  }
}

std::shared_ptr<MappedFile> RemoteFolder::map(const Wanted& wanted) const {
  const Patience patience(options_);
  for (bool again = false;; again = true) {
    fetch(wanted, patience);
    std::shared_ptr<MappedFile> out;
    try {
      out = map_file(cache().path(wanted.file));
    } catch (const FileError&) {  // another process has just made room
      if (patience.left() <= 0) throw;
      continue;
    }
    try {
      wanted.check({out->data, out->size});
      return out;
    } catch (const FileError&) {  // damaged on this disk
      if (again) throw;
      cache().drop(wanted.file);
    }
  }
}

void RemoteFolder::prefetch(std::vector<Wanted> wanted) {
  if (owner_ != getpid()) return;
  const std::lock_guard lock(mutex_);
  queue_.assign(std::make_move_iterator(wanted.begin()), std::make_move_iterator(wanted.end()));
  while (threads_.size() < std::min(kBackgroundThreads, queue_.size())) threads_.emplace_back([this] { work(); });
  changed_.notify_all();
}

void RemoteFolder::work() {
  RemoteOptions once = options_;
  once.attempts = 1;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Wanted wanted = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    try {
      fetch(wanted, Patience(once, &stop_));
    } catch (const std::exception&) {  // whoever needs the file tries again, and says why it does not come
    }
    lock.lock();
  }
}

bool is_remote(const std::string& path) { return path.find("://") != path.npos; }

std::string read_stored_file(const std::string& path, const RemoteOptions& options) {
  if (!is_remote(path)) return read_file(path);
  const size_t at = path.rfind('/');
  return RemoteFolder(path.substr(0, at), options).read(path.substr(at + 1));
}

std::optional<std::string> find_stored_file(const std::string& path, const RemoteOptions& options) {
  if (std::error_code error; !is_remote(path) && !std::filesystem::exists(path, error)) return {};
  try {
    return read_stored_file(path, options);
  } catch (const MissingFile&) {
    return {};
  }
}

}  // namespace tessera
