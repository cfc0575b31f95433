// Checkpoints that many ranks write together: a file for each rank's part, and an index that is renamed into place
// last.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tessera/io.h"

namespace tessera {

/// A block of a tensor: `data` are its elements from `offset` on.
struct TensorSlice {
  std::string name;
  Shape whole;                  ///< of the tensor
  std::vector<int64_t> offset;  ///< in each dim
  Tensor data;
};

/// What part `part` of `parts` writes of tensors that all of them have: rows, about as many bytes as any other part.
std::vector<TensorSlice> share_of(const StateDict& tensors, int part, int parts);

/// Removes what writers that were killed have left of the checkpoint `path`, and returns a number that no parts have.
int64_t next_generation(const std::string& path);
/// Writes PATH.GENERATION-PART.part, and returns what the index says of it. Throws Error.
std::string save_part(const std::string& path, int64_t generation, int part, const std::vector<TensorSlice>& slices);
/// Makes the parts with these entries the checkpoint `path`, of which `keep` stay, then removes those of older ones.
/// Throws Error.
void save_index(const std::string& path, const std::vector<std::string>& entries, const Metadata& metadata,
                int keep = 1);
/// Removes parts that neither the checkpoint `path` nor PATH.old nor one that was kept names.
void remove_unnamed_parts(const std::string& path);

/// Writes a safetensors file that ends with a checksum of all before it, which is returned. `keep`: how many of that
/// name stay. Throws Error.
uint64_t save_with_checksum(const std::string& path, const StateDict& tensors, const Metadata& metadata, int keep = 1);

/// Gives the part with that file name. Throws FileError.
using OpenPart = std::function<SafeTensors(const std::string& file)>;
/// The checkpoint in `bytes`, whose parts `open` gives. Throws FileError.
Checkpoint parse_checkpoint(std::string bytes, const std::string& name, const OpenPart& open);

/// A checkpoint that a later version has written: whole, but not for this one.
struct NewerFormat : FileError {
  using FileError::FileError;
};

/// Reads what SafeTensors leaves open.
struct CheckpointReader {
  static Checkpoint read(const SafeTensors& file, const OpenPart& open);
  /// Metadata `key`, or nothing.
  static std::string value(const SafeTensors& file, std::string_view key);
  /// Throws FileError unless the file ends with the checksum of all before it, which is returned.
  static uint64_t checksum(const SafeTensors& file);
  static const std::string& name(const SafeTensors& file) { return file.name_; }
  static size_t size(const SafeTensors& file) { return file.size_; }
  static int64_t version(const SafeTensors& file);
};
inline constexpr const char* kChecksum = "checksum";  // the last tensor of each file

/// What an index of format 2 says, without a look at its parts. Throws FileError.
struct IndexedSlice {
  std::string name;
  std::vector<int64_t> whole, offset, extent;
};
struct IndexedPart {
  std::string file;
  uint64_t bytes = 0, checksum = 0;
  std::vector<IndexedSlice> slices;
};
std::vector<IndexedPart> parse_index(const std::string& text, const std::string& name);
/// The tensors of the parts. Throws FileError.
StateDict assemble(const std::vector<IndexedPart>& parts, const std::string& name, const OpenPart& open);

}  // namespace tessera
