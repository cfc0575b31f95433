// What is kept on disk between runs: a file for each entry, in a folder that any number of processes share. An entry is
// complete or not there: files are written under another name first, and verified whenever they are read.
#pragma once
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// TESSERA_CACHE_DIR, or tessera/ in $XDG_CACHE_HOME or ~/.cache. Empty where none of these variables is set.
std::filesystem::path cache_folder();
/// The file that marks a cache folder as ours: only then may what lies in it be removed.
inline constexpr const char* cache_mark = "tessera-cache";

/// Makes the folder `name` of a cache folder, and marks that as ours. Says why not, or nothing. A folder that others
/// filled is not taken over: clearing the cache would empty it.
std::string open_cache_folder(const std::filesystem::path& root, const char* name);

/// 32 hex digits that depend on every byte of every part, and on where parts end.
std::string cache_key(std::initializer_list<std::string_view> parts);

/// The file of an entry.
std::string encode_cache_entry(std::string_view key, std::string_view content);
/// The content of an entry's file; nothing if the file is damaged, cut short, or of another key.
std::optional<std::string_view> decode_cache_entry(std::string_view key, std::string_view file);

/// Entries of one kind. Nothing here throws: what cannot be kept is made again, which is said once on stderr.
class DiskCache {
 public:
  /// In the folder `name` of `root`, which is made when the first entry is kept; at most `limit` bytes.
  DiskCache(std::filesystem::path root, const char* name, uintmax_t limit);
  std::optional<std::string> find(const std::string& key) const;
  /// Entries that were not used for longest leave if there are too many.
  void keep(const std::string& key, std::string_view content) const;
  /// Whoever asks for it next finds nothing.
  void drop(const std::string& key) const;

 private:
  void trim() const;

  std::filesystem::path root_, folder_;
  uintmax_t limit_;
};

}  // namespace tessera
