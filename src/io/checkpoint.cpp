// A checkpoint is a safetensors file whose last tensor, `checksum`, covers every byte before it. That of many ranks is
// an index of such files, one for each rank's part.
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/util/hash.h"
#include "io/checkpoint_parts.h"
#include "io/file.h"
#include "io/kept_checkpoints.h"
#include "io/safetensors.h"

namespace tessera {
namespace {

constexpr const char* kFormat = "tessera checkpoint";
constexpr int kIndexed = 2;  // the format whose tensors are in parts

OpenPart beside(const std::string& path) {
  return [folder = std::filesystem::path(path).parent_path()](const std::string& file) {
    return SafeTensors((folder / file).string());
  };
}

// Whether `path` holds the same checkpoint now.
bool is_still(const std::string& path, const SafeTensors& file) {
  try {
    return CheckpointReader::checksum(SafeTensors(path)) == CheckpointReader::checksum(file);
  } catch (const FileError&) {
    return true;
  }
}

}  // namespace

std::string CheckpointReader::value(const SafeTensors& file, std::string_view key) {
  auto it = file.metadata_.find(key);
  return it == file.metadata_.end() ? std::string() : it->second;
}

uint64_t CheckpointReader::checksum(const SafeTensors& file) {
  auto it = file.entries_.find(kChecksum);
  if (it == file.entries_.end() || it->second.end != file.size_ || it->second.end - it->second.begin != 8)
    throw FileError(file.name_ + ": damaged checkpoint: no checksum");
  Hash hash;
  hash.update(file.data_, it->second.begin);
  const uint64_t computed = hash.value();
  if (std::memcmp(&computed, file.data_ + it->second.begin, 8) != 0)
    throw FileError(file.name_ + ": damaged checkpoint: the checksum does not match");
  return computed;
}

int64_t CheckpointReader::version(const SafeTensors& file) {
  if (value(file, "format") != kFormat) throw FileError(file.name_ + ": not a checkpoint of tessera");
  const std::string text = value(file, "version");
  int version = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || end != text.data() + text.size() || version < 1)
    throw FileError(file.name_ + ": damaged checkpoint: format version " + in_quotes(text));
  if (version > kCheckpointVersion)
    throw NewerFormat(fmt::format("{}: written by a newer program: checkpoint format {}, this one reads up to {}",
                                  file.name_, version, kCheckpointVersion));
  return version;
}

Checkpoint CheckpointReader::read(const SafeTensors& file, const OpenPart& open) {
  const bool indexed = version(file) == kIndexed;
  checksum(file);
  Checkpoint out{file.tensors(), file.metadata_};
  out.tensors.erase(kChecksum);
  if (indexed) {
    if (!out.tensors.empty()) throw FileError(file.name_ + ": damaged checkpoint: tensors in an index");
    out.tensors = assemble(parse_index(value(file, "parts"), file.name_), file.name_, open);
    out.metadata.erase("parts");
  }
  out.metadata.erase("format");
  out.metadata.erase("version");
  return out;
}

uint64_t save_with_checksum(const std::string& path, const StateDict& named, const Metadata& metadata, int keep) {
  if (named.contains(kChecksum)) throw Error("save_checkpoint: no tensor can be called checksum");
  NamedTensors tensors = aligned_order(named);
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
  for (const auto& [key, t] : tensors) write(dense_on_host(t).place(), bytes_of(t));
  const uint64_t sum = hash.value();
  file.write(&sum, sizeof sum);
  keep_replaced(path, keep);
  file.commit();
  return sum;
}

void save_checkpoint(const std::string& path, const Checkpoint& checkpoint, int keep) {
  Metadata metadata = checkpoint.metadata;
  metadata["format"] = kFormat;
  metadata["version"] = "1";
  save_with_checksum(path, checkpoint.tensors, metadata, keep);
  remove_replaced(path, keep);
  remove_unnamed_parts(path);
}

void save_index(const std::string& path, const std::vector<std::string>& entries, const Metadata& given, int keep) {
  Metadata metadata = given;
  metadata["format"] = kFormat;
  metadata["version"] = std::to_string(kIndexed);
  metadata["parts"] = fmt::format("[{}]", fmt::join(entries, ",\n"));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const IndexedPart& part : parse_index(metadata["parts"], path)) {
    std::error_code code;
    if (std::filesystem::file_size(folder / part.file, code) != part.bytes || code)
      throw Error(
          fmt::format("cannot write {}: this rank does not see {} as another wrote it; all ranks need one folder",
                      in_quotes(path), in_quotes(part.file)));
  }
  save_with_checksum(path, {}, metadata, keep);
  remove_replaced(path, keep);
  remove_unnamed_parts(path);
}

// Where a writer has replaced the checkpoint meanwhile, and removed its parts, the new one is read.
Checkpoint load_checkpoint(const std::string& path) {
  for (;;) {
    const SafeTensors file(path);
    try {
      return CheckpointReader::read(file, beside(path));
    } catch (const FileError&) {
      if (is_still(path, file)) throw;
    }
  }
}

Checkpoint parse_checkpoint(std::string bytes, const std::string& name, const OpenPart& open) {
  return CheckpointReader::read(SafeTensors::from_bytes(std::move(bytes), name), open);
}

Checkpoint parse_checkpoint(std::string bytes, const std::string& name) {
  return parse_checkpoint(std::move(bytes), name, [&](const std::string& file) -> SafeTensors {
    throw FileError(name + ": the checkpoint has parts, such as " + in_quotes(file) +
                    ": give load_checkpoint its path");
  });
}

}  // namespace tessera
