#include "core/util/disk_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/util/hash.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// What an entry's file begins with; its content follows.
struct Header {
  char magic[8];
  char key[32];
  uint64_t bytes, checksum;  // of the content
};
constexpr char magic[8] = {'T', 'S', 'R', 'E', 'N', 'T', 'R', '1'};

uint64_t checksum(std::string_view content) {
  Hash hash;
  hash.update(content.data(), content.size());
  return hash.value();
}

void say_once(const std::string& why) {
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) fmt::print(stderr, "warning: compiled code is not kept on disk: {}\n", why);
}

/// The whole file, or nothing if there is none or it has more than `limit` bytes.
std::optional<std::string> read_file(const fs::path& path, uintmax_t limit) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  const uintmax_t bytes = fs::file_size(path, error);
  if (error || bytes > limit) return {};
  std::ifstream in(path, std::ios::binary);
  std::string text(bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!in) return {};
  return text;
}

bool write_file(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return out.good();
}

}  // namespace

fs::path cache_folder() {
  const auto variable = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (auto own = variable("TESSERA_CACHE_DIR"); !own.empty()) return own;
  if (auto xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg / "tessera";
  if (auto home = variable("HOME"); !home.empty()) return home / ".cache" / "tessera";
  return {};
}

std::string cache_key(std::initializer_list<std::string_view> parts) {
  Hash hashes[2];
  hashes[1].update("second", 6);
  for (Hash& hash : hashes)
    for (std::string_view part : parts) {
      const uint64_t bytes = part.size();
      hash.update(&bytes, sizeof bytes);
      hash.update(part.data(), part.size());
    }
  return fmt::format("{:016x}{:016x}", hashes[0].value(), hashes[1].value());
}

std::string encode_cache_entry(std::string_view key, std::string_view content) {
  Header header{};
  std::memcpy(header.magic, magic, sizeof magic);
  std::memcpy(header.key, key.data(), std::min(key.size(), sizeof header.key));
  header.bytes = content.size();
  header.checksum = checksum(content);
  std::string file(reinterpret_cast<const char*>(&header), sizeof header);
  return file.append(content);
}

std::optional<std::string_view> decode_cache_entry(std::string_view key, std::string_view file) {
  Header header;
  if (file.size() < sizeof header) return {};
  std::memcpy(&header, file.data(), sizeof header);
  const std::string_view content = file.substr(sizeof header);
  const bool whole = std::memcmp(header.magic, magic, sizeof magic) == 0 &&
                     std::string_view(header.key, sizeof header.key) == key && header.bytes == content.size() &&
                     header.checksum == checksum(content);
  if (!whole) return {};
  return content;
}

DiskCache::DiskCache(fs::path root, const char* name, uintmax_t limit)
    : root_(std::move(root)), folder_(root_ / name), limit_(limit) {}

std::optional<std::string> DiskCache::find(const std::string& key) const {
  if (root_.empty()) return {};
  const fs::path path = folder_ / key;
  std::error_code ignored;
  const auto file = read_file(path, limit_);
  if (!file) return {};
  const auto content = decode_cache_entry(key, *file);
  if (!content) {
    fs::remove(path, ignored);
    return {};
  }
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // used: others leave before it
  return std::string(*content);
}

std::string open_cache_folder(const fs::path& root, const char* name) {
  if (root.empty()) return "set TESSERA_CACHE_DIR or HOME";
  std::error_code error;
  if (!fs::exists(root / cache_mark, error)) {
    const bool fresh = fs::create_directories(root, error);
    if (error) return root.string() + ": " + error.message();
    if (!fresh && !fs::is_empty(root, error) && !fs::exists(root / cache_mark, error))
      return root.string() + ": holds files, but not of tessera";
    if (fresh) fs::permissions(root, fs::perms::owner_all, error);
    write_file(root / cache_mark, "");
  }
  fs::create_directory(root / name, error);
  return error ? (root / name).string() + ": " + error.message() : "";
}

void DiskCache::keep(const std::string& key, std::string_view content) const {
  if (content.size() + sizeof(Header) > limit_) return;
  if (const std::string why_not = open_cache_folder(root_, folder_.filename().c_str()); !why_not.empty())
    return say_once(why_not);
  static std::atomic<int> count{0};
  const fs::path temporary = folder_ / fmt::format("{}.{}.{}.tmp", key, getpid(), count++);
  std::error_code error;
  if (write_file(temporary, encode_cache_entry(key, content))) fs::rename(temporary, folder_ / key, error);
  else error = std::make_error_code(std::errc::io_error);
  if (error) {
    say_once(folder_.string() + " cannot be written");
    fs::remove(temporary, error);
    return;
  }
  trim();
}

void DiskCache::drop(const std::string& key) const {
  std::error_code ignored;
  if (!root_.empty()) fs::remove(folder_ / key, ignored);
}

void DiskCache::trim() const {
  struct File {
    fs::path path;
    fs::file_time_type time;
    uintmax_t bytes;
  };
  std::vector<File> files;
  uintmax_t total = 0;
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const File file{it->path(), it->last_write_time(gone), it->file_size(gone)};
    if (gone) continue;  // others trim, too
    if (file.path.extension() == ".tmp") {
      if (now - file.time > std::chrono::hours(1)) fs::remove(file.path, gone);  // whoever wrote it has died
      continue;
    }
    files.push_back(file);
    total += file.bytes;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.time < b.time; });
  for (const File& file : files) {
    if (total <= limit_) break;
    fs::remove(file.path, error);
    total -= file.bytes;
  }
}

}  // namespace tessera
