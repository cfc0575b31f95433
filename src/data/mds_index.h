// index.json of a folder of MDS shards.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/mds_encoding.h"

namespace tessera::mds {

inline constexpr const char* kIndexFile = "index.json";

struct FileInfo {
  std::string name;  // below the folder
  uint64_t bytes = 0;
  std::map<std::string, std::string> hashes;
};
struct ShardInfo {
  uint32_t samples = 0;
  std::string compression;
  FileInfo raw;
  std::optional<FileInfo> compressed;
};
struct Index {
  std::vector<MdsColumn> columns;
  std::vector<Encoding> encodings;
  std::vector<ShardInfo> shards;
};

/// Throws FileError that begins with `file`.
Index parse_index(std::string_view text, const std::string& file);
/// JSON as Python writes it, keys sorted: so shards are the same byte for byte, whoever writes them.
std::string python_json(const nlohmann::json& json);

}  // namespace tessera::mds
