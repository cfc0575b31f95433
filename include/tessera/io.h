// Files: safetensors, npy and checkpoints. Nothing that a file says is trusted: failing to read it is a FileError of
// one line that begins with the file's name. Writes are atomic: a reader sees the old file or the whole new one;
// failing to write is an Error.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tessera/state_dict.h"

namespace tessera {

/// The whole file. Throws FileError if it cannot be read.
std::string read_file(const std::string& path);
/// Replaces the file atomically: temporary file in the same folder, fsync, rename. Throws Error, the old file
/// intact.
void write_file(const std::string& path, std::string_view contents);

/// A safetensors file, mapped: tensors are views of the mapping, read from disk when they are touched. Writing to them
/// changes this process's copy only. https://huggingface.co/docs/safetensors
class SafeTensors {
 public:
  /// Maps the file and checks its header: sizes, offsets, dtypes, names. Throws FileError.
  explicit SafeTensors(const std::string& path);
  /// The same for bytes in memory; `name` stands for the file in errors.
  static SafeTensors from_bytes(std::string bytes, std::string name = "safetensors");

  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// Throws FileError if there is none of that name.
  TensorMeta meta(std::string_view name) const;
  /// A view of the file, valid as long as it lives; a copy where the file does not align it. Throws FileError.
  Tensor tensor(std::string_view name) const;
  StateDict tensors() const;
  const Metadata& metadata() const { return metadata_; }

 private:
  friend struct CheckpointReader;
  struct Entry {
    TensorMeta meta;
    size_t begin = 0, end = 0;  // bytes, from the start of the file
  };
  SafeTensors() = default;
  void parse(std::string name, char* data, size_t size, std::shared_ptr<void> owner);
  const Entry& find(std::string_view name) const;
  void check_layout() const;

  std::string name_;
  std::shared_ptr<void> owner_;
  char* data_ = nullptr;
  size_t size_ = 0, data_begin_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  Metadata metadata_;
};

/// All tensors of the file; see SafeTensors.
StateDict load_safetensors(const std::string& path);
/// Writes atomically; tensors of any device and strides. Throws Error, also for names that are not UTF-8.
void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

/// Reads an array of NumPy: little-endian, C order, bool u8 i8 i32 i64 f16 f32 f64. Throws FileError.
Tensor load_npy(const std::string& path);
/// The same from bytes in memory.
Tensor parse_npy(std::string_view bytes, const std::string& name = "npy");
/// Writes atomically. Throws Error, also for bf16, which NumPy lacks.
void save_npy(const std::string& path, const Tensor& tensor);

/// What training needs to go on after it was stopped: a safetensors file with a format version and a checksum. That of
/// many ranks (dist_checkpoint.h) is an index, and beside it a file for each rank's part: it is read as any other.
struct Checkpoint {
  StateDict tensors;
  Metadata metadata;
};
/// The newest format, that of an index; one file is of format 1. This library reads all up to this one.
inline constexpr int kCheckpointVersion = 2;
/// Writes atomically: whatever happens, `path` holds the old checkpoint or the new one. `keep` of them stay: the one
/// before is then PATH.1, the one before that PATH.2. Throws Error.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint, int keep = 1);
/// Throws FileError if the file or a part of it is damaged, missing, no checkpoint, or from a newer format. The tensors
/// view the mapped file, but for those that lie in several parts.
Checkpoint load_checkpoint(const std::string& path);
/// The newest of `path`, PATH.1, PATH.2, ... that is whole.
struct WholeCheckpoint {
  Checkpoint checkpoint;
  int age = 0;      ///< 0: `path` itself, 1: PATH.1
  std::string why;  ///< what is wrong with the newest one; empty: nothing
};
/// Looks from that age on. Throws FileError of the newest one where none is whole.
WholeCheckpoint load_whole_checkpoint(const std::string& path, int first = 0);
/// The same from bytes in memory, of one file.
Checkpoint parse_checkpoint(std::string bytes, const std::string& name = "checkpoint");

}  // namespace tessera
