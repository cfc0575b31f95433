#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <mutex>
#include <optional>
#include <set>

#include "data/mds_shard.h"
#include "data/packed_bytes.h"
#include "data/remote_folder.h"
#include "tessera/io.h"
#include "tessera/mds.h"

namespace tessera {

struct MdsReader::State {
  struct Place {
    size_t shard;
    uint32_t sample;
  };
  struct Slot {
    std::shared_ptr<const mds::Shard> shard;
    std::list<size_t>::iterator used;  // in `recent`
  };

  std::string folder;
  MdsReaderOptions options;
  mds::Index index;
  std::vector<int64_t> ends;  // of each shard, in samples

  std::mutex mutex;
  std::vector<Slot> open;
  std::list<size_t> recent;  // decompressed or downloaded ones, the one used last comes first
  int64_t kept = 0;          // their bytes

  std::optional<RemoteFolder> remote;  // where the folder is another machine's; its threads end before the rest goes

  State(const std::string& path, const MdsReaderOptions& o) : folder(path), options(o) {
    if (tessera::is_remote(folder)) read_remote_index();
    else read_index();
    int64_t end = 0;
    for (const mds::ShardInfo& shard : index.shards) ends.push_back(end += shard.samples);
    if (end == 0) throw FileError(folder + "/" + mds::kIndexFile + ": there is no sample in it");
    open.resize(index.shards.size());
  }
  void read_index() {
    const std::string file = folder + "/" + mds::kIndexFile;
    std::error_code ignored;
    if (std::filesystem::is_directory(folder, ignored) && !std::filesystem::exists(file, ignored))
      throw FileError(folder + ": no folder of MDS, or not complete: it has no index.json");
    index = mds::parse_index(read_file(file), file);
  }
  void read_remote_index() {
    remote.emplace(folder, options.remote);
    folder = remote->store().name;
    const std::string text = remote->read(mds::kIndexFile);
    index = mds::parse_index(text, folder + "/" + mds::kIndexFile);
    remote->set_state(text);
  }

  Place find(int64_t sample) const {
    if (sample < 0 || sample >= ends.back())
      throw Error(fmt::format("mds: no sample {}, {} has {}", sample, folder, ends.back()));
    const auto at = std::upper_bound(ends.begin(), ends.end(), sample) - ends.begin();
    return {static_cast<size_t>(at), static_cast<uint32_t>(sample - (at ? ends[static_cast<size_t>(at) - 1] : 0))};
  }

  std::string path(const mds::FileInfo& file) const { return folder + "/" + file.name; }
  bool is_there(const mds::FileInfo& file) const {
    std::error_code ignored;
    return std::filesystem::exists(path(file), ignored);
  }
  // Whether the uncompressed file is there, or must be. Of another machine comes what has fewer bytes.
  bool is_raw(const mds::ShardInfo& shard) const { return !shard.compressed || (!remote && is_there(shard.raw)); }

  // The first known hash, or all of them.
  void check_hashes(const mds::FileInfo& file, const std::string& name, std::string_view bytes, bool all) const {
    bool known = file.hashes.empty();
    for (const auto& [algorithm, digits] : file.hashes) {
      if (!is_known_hash(algorithm) || (known && !all)) continue;
      known = true;
      if (const std::string found = hash_of(algorithm, bytes); found != digits)
        throw FileError(fmt::format("{}: {} is {}, the index says {}", name, algorithm, found, digits));
    }
    if (!known)
      throw FileError(fmt::format("{}: its hash {} cannot be checked, only: {}", name,
                                  in_quotes(file.hashes.begin()->first), known_hashes()));
  }

  void check(const mds::FileInfo& file, std::string_view bytes, bool all_hashes) const {
    const std::string name = path(file);
    if (bytes.size() != file.bytes)
      throw FileError(fmt::format("{}: has {} bytes, the index says {}", name, bytes.size(), file.bytes));
    if (options.check_hashes || all_hashes) check_hashes(file, name, bytes, all_hashes);
  }
  RemoteFolder::Wanted wanted(const mds::FileInfo& file, bool all_hashes) const {
    return {file.name, file.bytes, [this, &file, all_hashes](auto bytes) { check(file, bytes, all_hashes); }};
  }
  std::shared_ptr<MappedFile> map(const mds::FileInfo& file, bool all_hashes) const {
    if (remote) return remote->map(wanted(file, all_hashes));
    auto out = map_file(path(file));
    check(file, {out->data, out->size}, all_hashes);
    return out;
  }

  std::shared_ptr<const mds::Shard> load(const mds::ShardInfo& shard, bool all_hashes = false) const {
    if (is_raw(shard)) return std::make_shared<mds::Shard>(path(shard.raw), map(shard.raw, all_hashes), shard.samples);
    const std::string name = path(*shard.compressed);
    std::shared_ptr<MappedFile> raw;
    try {
      const auto file = map(*shard.compressed, all_hashes);
      const Compression compression = parse_compression(shard.compression);
      raw = decompress(compression, {file->data, file->size}, shard.raw.bytes);
    } catch (const FileError& e) {
      if (std::string_view(e.what()).find(name) != std::string_view::npos) throw;
      throw FileError(name + ": " + e.what());
    } catch (const Error& e) {
      throw FileError(name + ": " + e.what());
    }
    if (all_hashes) check_hashes(shard.raw, name + ", decompressed", {raw->data, raw->size}, true);
    return std::make_shared<mds::Shard>(name, raw, shard.samples);
  }

  // One that is kept, which then counts as the one used last; or null.
  std::shared_ptr<const mds::Shard> find_open(size_t i) {
    const Slot& slot = open[i];
    if (slot.shard && slot.used != std::list<size_t>::iterator()) recent.splice(recent.begin(), recent, slot.used);
    return slot.shard;
  }
  std::shared_ptr<const mds::Shard> shard(size_t i) {
    std::unique_lock lock(mutex);
    if (auto found = find_open(i)) return found;
    const mds::ShardInfo& info = index.shards[i];
    if (remote) lock.unlock();  // other threads need not wait until it is there
    auto loaded = load(info);
    if (remote) {
      lock.lock();
      if (auto found = find_open(i)) return found;
    }
    if (remote || !is_raw(info)) keep_recent(i, static_cast<int64_t>(loaded->bytes()));
    return open[i].shard = std::move(loaded);
  }
  void keep_recent(size_t i, int64_t bytes) {
    kept += bytes;
    while (kept > options.cache_limit && !recent.empty()) drop(recent.back());
    recent.push_front(i);
    open[i].used = recent.begin();
  }
  void drop(size_t i) {
    kept -= static_cast<int64_t>(open[i].shard->bytes());
    recent.erase(open[i].used);
    open[i] = {};
  }

  // Half of the disk's cache is left to what is read now.
  void prefetch(std::span<const int64_t> samples) {
    std::vector<RemoteFolder::Wanted> out;
    std::set<size_t> seen;
    uint64_t bytes = 0;
    for (int64_t sample : samples) {
      const size_t i = find(sample).shard;
      if (!seen.insert(i).second) continue;
      const mds::ShardInfo& info = index.shards[i];
      const mds::FileInfo& file = is_raw(info) ? info.raw : *info.compressed;
      if ((bytes += file.bytes) > remote->cache_limit() / 2) break;
      out.push_back(wanted(file, false));
    }
    remote->prefetch(std::move(out));
  }
};

MdsReader::MdsReader(const std::string& folder, MdsReaderOptions options)
    : state_(std::make_unique<State>(folder, options)) {}
MdsReader::~MdsReader() = default;

const std::string& MdsReader::folder() const { return state_->folder; }
const std::vector<MdsColumn>& MdsReader::columns() const { return state_->index.columns; }
int64_t MdsReader::size() const { return state_->ends.back(); }

size_t MdsReader::column(std::string_view name) const {
  std::string all;
  for (size_t c = 0; c < columns().size(); ++c) {
    if (columns()[c].name == name) return c;
    all += (c ? ", " : "") + in_quotes(columns()[c].name);
  }
  throw FileError(fmt::format("{}: no column {}, only: {}", state_->folder, in_quotes(name), all));
}

std::vector<MdsShardInfo> MdsReader::shards() const {
  std::vector<MdsShardInfo> out;
  for (const mds::ShardInfo& shard : state_->index.shards) {
    MdsShardInfo info;
    const mds::FileInfo& file = state_->is_raw(shard) ? shard.raw : *shard.compressed;
    info.file = file.name;
    info.compression = shard.compression;
    for (const auto& [algorithm, digits] : file.hashes) info.hashes.push_back(algorithm);
    info.samples = shard.samples;
    info.bytes = static_cast<int64_t>(shard.raw.bytes);
    info.compressed_bytes = shard.compressed ? static_cast<int64_t>(shard.compressed->bytes) : 0;
    out.push_back(std::move(info));
  }
  return out;
}

std::vector<int64_t> MdsReader::shard_sizes() const {
  std::vector<int64_t> out;
  for (const mds::ShardInfo& shard : state_->index.shards) out.push_back(shard.samples);
  return out;
}

MdsBytes MdsReader::bytes(int64_t index, size_t column) const {
  const auto [i, sample] = state_->find(index);
  if (column >= columns().size()) throw Error(fmt::format("mds: no column {} of {}", column, columns().size()));
  auto shard = state_->shard(i);
  const std::string_view bytes = shard->value(sample, state_->index.encodings, column);
  return {bytes, std::move(shard)};
}

MdsValue MdsReader::value(int64_t index, size_t column) const {
  const MdsBytes found = bytes(index, column);
  try {
    return mds::decode(state_->index.encodings[column], found.bytes);
  } catch (const FileError& e) {
    const std::string rule = fmt::format("column {} {}", in_quotes(columns()[column].name), e.what());
    static_cast<const mds::Shard*>(found.owner.get())->fail(state_->find(index).sample, rule);
  }
}

MdsSample MdsReader::sample(int64_t index) const {
  MdsSample out;
  for (size_t c = 0; c < columns().size(); ++c) out.emplace(columns()[c].name, value(index, c));
  return out;
}

bool MdsReader::is_remote() const { return state_->remote.has_value(); }

void MdsReader::prefetch(std::span<const int64_t> samples) const {
  if (state_->remote) state_->prefetch(samples);
}

void MdsReader::verify(int64_t shard) const {
  const auto& shards = state_->index.shards;
  if (shard < 0 || shard >= static_cast<int64_t>(shards.size()))
    throw Error(fmt::format("mds: no shard {} of {}", shard, shards.size()));
  state_->load(shards[static_cast<size_t>(shard)], true)->verify(state_->index);
}

}  // namespace tessera
