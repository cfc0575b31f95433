// A checkpoint is a safetensors file whose last tensor, `checksum`, covers every byte before it.
#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "core/util/hash.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "tessera/io.h"

namespace tessera {
namespace {

constexpr const char* kFormat = "tessera checkpoint";
constexpr const char* kChecksum = "checksum";

}  // namespace

/// Checks what SafeTensors leaves open.
struct CheckpointReader {
  static Checkpoint read(const SafeTensors& file) {
    const std::string& name = file.name_;
    auto value = [&](const char* key) {
      auto it = file.metadata_.find(key);
      return it == file.metadata_.end() ? std::string() : it->second;
    };
    if (value("format") != kFormat) throw FileError(name + ": not a checkpoint of tessera");
    const std::string text = value("version");
    int version = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
    if (error != std::errc() || end != text.data() + text.size() || version < 1)
      throw FileError(name + ": damaged checkpoint: format version " + in_quotes(text));
    if (version > kCheckpointVersion)
      throw FileError(fmt::format("{}: written by a newer program: checkpoint format {}, this one reads up to {}", name,
                                  version, kCheckpointVersion));
    check_sum(file);
    Checkpoint out{file.tensors(), file.metadata_};
    out.tensors.erase(kChecksum);
    out.metadata.erase("format");
    out.metadata.erase("version");
    return out;
  }

  static void check_sum(const SafeTensors& file) {
    auto it = file.entries_.find(kChecksum);
    if (it == file.entries_.end() || it->second.end != file.size_ || it->second.end - it->second.begin != 8)
      throw FileError(file.name_ + ": damaged checkpoint: no checksum");
    Hash hash;
    hash.update(file.data_, it->second.begin);
    const uint64_t computed = hash.value();
    if (std::memcmp(&computed, file.data_ + it->second.begin, 8) != 0)
      throw FileError(file.name_ + ": damaged checkpoint: the checksum does not match");
  }
};

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  if (checkpoint.tensors.contains(kChecksum)) throw Error("save_checkpoint: no tensor can be called checksum");
  Metadata metadata = checkpoint.metadata;
  metadata["format"] = kFormat;
  metadata["version"] = std::to_string(kCheckpointVersion);
  NamedTensors tensors = aligned_order(checkpoint.tensors);
  tensors.emplace_back(kChecksum, empty({1}, Int64));  // known, and written, last
  const std::string header = safetensors_header(tensors, metadata);
  tensors.pop_back();

  AtomicFile file(path);
  Hash hash;
  auto write = [&](const void* data, size_t bytes) {
    hash.update(data, bytes);
    file.write(data, bytes);
  };
  write(header.data(), header.size());
  for (const auto& [key, t] : tensors) write(dense_on_host(t).data_ptr(), bytes_of(t));
  const uint64_t sum = hash.value();
  file.write(&sum, sizeof sum);
  file.commit();
}

Checkpoint load_checkpoint(const std::string& path) { return CheckpointReader::read(SafeTensors(path)); }
Checkpoint parse_checkpoint(std::string bytes, const std::string& name) {
  return CheckpointReader::read(SafeTensors::from_bytes(std::move(bytes), name));
}

}  // namespace tessera
