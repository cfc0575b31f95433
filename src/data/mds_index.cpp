#include "data/mds_index.h"

#include <fmt/format.h>

#include <set>

#include "io/file.h"

namespace tessera::mds {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 16;

// Reads members of one object; errors name the file and where in it they are.
class Member {
 public:
  Member(const Json& json, const std::string& file, std::string where)
      : json_(json), file_(file), where_(std::move(where)) {
    if (!json.is_object()) fail("is no object");
  }
  [[noreturn]] void fail(std::string_view rule) const {
    throw FileError(fmt::format("{}: {} {}", file_, where_, rule));
  }
  const Json& get(const char* name) const {
    const auto it = json_.find(name);
    if (it == json_.end()) fail(fmt::format("has no {}", name));
    return *it;
  }
  uint64_t count(const char* name, uint64_t most) const {
    const Json& value = get(name);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
      fail(fmt::format("has {} which is no number from 0 to {}", name, most));
    return value.get<uint64_t>();
  }
  std::string text(const char* name) const {
    const Json& value = get(name);
    if (!value.is_string()) fail(fmt::format("has {} which is no text", name));
    return value.get<std::string>();
  }
  // Null where it is null.
  std::string text_or_null(const char* name) const { return get(name).is_null() ? "" : text(name); }
  std::vector<std::string> texts(const char* name) const {
    const Json& value = get(name);
    if (!value.is_array()) fail(fmt::format("has {} which is no list", name));
    std::vector<std::string> out;
    for (const Json& item : value) {
      if (!item.is_string()) fail(fmt::format("has {} which is no list of texts", name));
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  Member member(const char* name) const { return {get(name), file_, where_ + ", " + name}; }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  const std::string& file_;
  std::string where_;
};

// A path that stays below the folder.
bool stays_below(const std::string& path) {
  if (path.empty() || path[0] == '/' || path.find('\0') != path.npos) return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

FileInfo parse_file(const Member& file) {
  FileInfo out{file.text("basename"), file.count("bytes", UINT32_MAX), {}};
  if (!stays_below(out.name))
    file.fail(fmt::format("names {}, which is no file below the folder", in_quotes(out.name)));
  const Member hashes = file.member("hashes");
  for (const auto& [algorithm, digits] : hashes.json().items()) out.hashes[algorithm] = hashes.text(algorithm.c_str());
  return out;
}

std::vector<MdsColumn> parse_columns(const Member& shard) {
  const auto names = shard.texts("column_names"), encodings = shard.texts("column_encodings");
  if (names.size() != encodings.size() || names.empty()) shard.fail("has not one encoding for each column");
  std::vector<MdsColumn> out;
  for (size_t i = 0; i < names.size(); ++i) out.push_back({names[i], encodings[i]});
  return out;
}

// The encodings of the columns, whose lengths the shard repeats.
std::vector<Encoding> parse_encodings(const Member& shard, const std::vector<MdsColumn>& columns) {
  std::vector<Encoding> out;
  std::set<std::string> names;
  const Json& lengths = shard.get("column_sizes");
  if (!lengths.is_array() || lengths.size() != columns.size()) shard.fail("has not one size for each column");
  for (const MdsColumn& column : columns) {
    const std::string called = "has column " + in_quotes(column.name);
    if (!names.insert(column.name).second) shard.fail(called + " twice");
    try {
      out.push_back(parse_encoding(column.encoding));
    } catch (const Error& e) {
      shard.fail(fmt::format("{}: {}", called, e.what()));
    }
    const Json& length = lengths[out.size() - 1];
    const std::optional<uint32_t> wanted = out.back().length;
    if (wanted ? length != *wanted : !length.is_null())
      shard.fail(
          fmt::format("{} of size {}, not {}", called, length.dump(), wanted ? std::to_string(*wanted) : "null"));
  }
  return out;
}

ShardInfo parse_shard(const Member& shard) {
  if (shard.text("format") != "mds")
    shard.fail(fmt::format("has format {}, only mds is read", in_quotes(shard.text("format"))));
  if (shard.count("version", UINT32_MAX) != 2) shard.fail("is not of version 2");
  ShardInfo out;
  out.samples = static_cast<uint32_t>(shard.count("samples", UINT32_MAX));
  out.compression = shard.text_or_null("compression");
  out.raw = parse_file(shard.member("raw_data"));
  if (!shard.get("zip_data").is_null()) out.compressed = parse_file(shard.member("zip_data"));
  if (out.compressed.has_value() == out.compression.empty())
    shard.fail("has compression without a compressed file, or the reverse");
  return out;
}

}  // namespace

Index parse_index(std::string_view text, const std::string& file) {
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw FileError(file + ": JSON nested too deeply");
    return true;
  };
  const Json json = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw FileError(file + ": not JSON, or cut short");
  const Member whole(json, file, "the index");
  if (whole.count("version", UINT32_MAX) != 2) whole.fail("is not of version 2");
  const Json& shards = whole.get("shards");
  if (!shards.is_array() || shards.empty()) whole.fail("lists no shards");
  Index out;
  for (const Json& item : shards) {
    const Member shard(item, file, fmt::format("shard {}", out.shards.size()));
    out.shards.push_back(parse_shard(shard));
    std::vector<MdsColumn> columns = parse_columns(shard);
    std::vector<Encoding> encodings = parse_encodings(shard, columns);
    if (out.columns.empty()) out.columns = std::move(columns), out.encodings = std::move(encodings);
    else if (columns != out.columns) shard.fail("has other columns than the first one");
  }
  return out;
}

std::string python_json(const Json& json) {
  if (!json.is_structured()) return json.dump(-1, ' ', /*ensure_ascii=*/true);
  std::string out;
  for (const auto& [key, value] : json.items()) {
    if (!out.empty()) out += ", ";
    if (json.is_object()) out += Json(key).dump(-1, ' ', true) + ": ";
    out += python_json(value);
  }
  return json.is_object() ? "{" + out + "}" : "[" + out + "]";
}

}  // namespace tessera::mds
