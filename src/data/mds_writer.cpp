#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "data/mds_shard.h"
#include "data/packed_bytes.h"
#include "tessera/data.h"
#include "tessera/io.h"
#include "tessera/mds.h"

namespace tessera {

namespace fs = std::filesystem;

struct MdsWriter::State {
  fs::path folder;
  std::vector<MdsColumn> columns;
  std::vector<mds::Encoding> encodings;
  MdsWriterOptions options;
  Compression compression;
  nlohmann::json description;  // of each shard, in itself and in the index
  std::string config;
  nlohmann::json shards = nlohmann::json::array();
  std::vector<fs::path> written;  // to be removed unless the index is written
  bool made_folder = false, finished = false;
  int64_t samples = 0;

  // The shard at hand.
  std::string data;
  std::vector<uint64_t> ends;

  State(const std::string& path, std::vector<MdsColumn> c, MdsWriterOptions o)
      : folder(path),
        columns(std::move(c)),
        options(std::move(o)),
        compression(parse_compression(options.compression)) {
    check_columns();
    check_options();
    describe();
    std::error_code code;
    if (is_remote(path)) throw Error("mds: " + in_quotes(path) + ": only folders of this machine are written");
    if (fs::exists(folder, code) && (!fs::is_directory(folder, code) || !fs::is_empty(folder, code)))
      throw Error("mds: " + in_quotes(path) + " is there already, and nothing is overwritten");
    made_folder = fs::create_directories(folder, code);
    if (code) throw Error(fmt::format("mds: cannot make {}: {}", in_quotes(path), code.message()));
  }
  ~State() {
    if (finished) return;
    std::error_code ignored;
    for (const fs::path& file : written) fs::remove(file, ignored);
    if (made_folder) fs::remove(folder, ignored);
  }

  void check_columns() {
    if (columns.empty()) throw Error("mds: a sample needs a column");
    std::sort(columns.begin(), columns.end(), [](auto& a, auto& b) { return a.name < b.name; });
    for (size_t i = 0; i < columns.size(); ++i) {
      const std::string called = "mds: column " + in_quotes(columns[i].name);
      if (find_non_text(columns[i].name) != std::string::npos) throw Error(called + " is not UTF-8");
      if (i && columns[i].name == columns[i - 1].name) throw Error(called + " is there twice");
      try {
        encodings.push_back(mds::parse_encoding(columns[i].encoding));
      } catch (const Error& e) {
        throw Error(fmt::format("{}: {}", called, e.what()));
      }
    }
  }

  void check_options() {
    std::sort(options.hashes.begin(), options.hashes.end());
    if (std::adjacent_find(options.hashes.begin(), options.hashes.end()) != options.hashes.end())
      throw Error("mds: a hash is there twice");
    for (const std::string& hash : options.hashes) hash_of(hash, "");
    if (options.size_limit < 1 || options.size_limit > UINT32_MAX)
      throw Error(fmt::format("mds: a shard's limit of {} bytes is not from 1 to 4 GiB", options.size_limit));
  }

  void describe() {
    nlohmann::json names, texts, lengths;
    for (size_t i = 0; i < columns.size(); ++i) {
      names.push_back(columns[i].name);
      texts.push_back(columns[i].encoding);
      lengths.push_back(encodings[i].length ? nlohmann::json(*encodings[i].length) : nlohmann::json());
    }
    description = {
        {"version", 2},
        {"format", "mds"},
        {"compression", options.compression.empty() ? nlohmann::json() : nlohmann::json(options.compression)},
        {"hashes", options.hashes},
        {"size_limit", options.size_limit},
        {"column_names", names},
        {"column_encodings", texts},
        {"column_sizes", lengths}};
    config = mds::python_json(description);
  }

  // The sample as it is written.
  std::string encode(const MdsSample& sample) const {
    std::string sizes, values;
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto it = sample.find(columns[c].name);
      if (it == sample.end()) throw Error("mds: a sample without column " + in_quotes(columns[c].name));
      const size_t before = values.size();
      try {
        mds::append(values, encodings[c], it->second);
      } catch (const Error& e) {
        throw Error(fmt::format("mds: column {} {}", in_quotes(columns[c].name), e.what()));
      }
      const auto size = static_cast<uint32_t>(values.size() - before);
      if (!encodings[c].length) sizes.append(reinterpret_cast<const char*>(&size), sizeof size);
    }
    if (sample.size() != columns.size()) throw Error("mds: a sample with more than the columns");
    return sizes + values;
  }

  void write(const MdsSample& sample) {
    if (finished) throw Error("mds: the writer has finished");
    const std::string bytes = encode(sample);
    const size_t header = 8 + config.size() + 4 * ends.size();
    if (!ends.empty() && header + data.size() + bytes.size() + 4 > static_cast<size_t>(options.size_limit)) flush();
    data += bytes;
    ends.push_back(data.size());
    ++samples;
  }

  nlohmann::json file_json(const std::string& name, std::string_view bytes) const {
    nlohmann::json hashes = nlohmann::json::object();
    for (const std::string& hash : options.hashes) hashes[hash] = hash_of(hash, bytes);
    return {{"basename", name}, {"bytes", bytes.size()}, {"hashes", hashes}};
  }

  void write_new(const std::string& name, std::string_view bytes) {
    const fs::path path = folder / name;
    if (std::error_code code; fs::exists(path, code))
      throw Error("mds: " + in_quotes(path.string()) + " is there already, and nothing is overwritten");
    written.push_back(path);
    write_file(path, bytes);
  }

  void flush() {
    const std::string raw = mds::shard_bytes(config, ends, data), name = fmt::format("shard.{:05}.mds", shards.size());
    nlohmann::json shard = description;
    shard["samples"] = ends.size();
    shard["raw_data"] = file_json(name, raw);
    shard["zip_data"] = nullptr;
    if (compression.name.empty()) {
      write_new(name, raw);
    } else {
      const std::string packed = compress(compression, raw), packed_name = name + "." + compression.name;
      shard["zip_data"] = file_json(packed_name, packed);
      write_new(packed_name, packed);
    }
    shards.push_back(std::move(shard));
    data.clear();
    ends.clear();
  }

  void finish() {
    if (finished) return;
    if (!ends.empty()) flush();
    if (shards.empty()) throw Error("mds: no sample was written");
    write_new(mds::kIndexFile, mds::python_json({{"version", 2}, {"shards", shards}}));
    finished = true;
  }
};

MdsWriter::MdsWriter(const std::string& folder, std::vector<MdsColumn> columns, MdsWriterOptions options)
    : state_(std::make_unique<State>(folder, std::move(columns), std::move(options))) {}
MdsWriter::~MdsWriter() = default;

void MdsWriter::write(const MdsSample& sample) { state_->write(sample); }
void MdsWriter::finish() { state_->finish(); }
int64_t MdsWriter::samples() const { return state_->samples; }
int64_t MdsWriter::shards() const { return static_cast<int64_t>(state_->shards.size()); }

}  // namespace tessera
