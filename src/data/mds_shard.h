// One MDS shard in memory: u32 samples | u32 offsets, one more | JSON | samples. A sample is u32 sizes of the columns
// whose values differ in size, then all values.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/mds_index.h"
#include "io/file.h"

namespace tessera::mds {

class Shard {
 public:
  /// Checks what is read only once; offsets are checked as they are used. Throws FileError that begins with `name`.
  Shard(std::string name, std::shared_ptr<const MappedFile> data, uint32_t samples);

  uint32_t samples() const { return samples_; }
  size_t bytes() const { return data_->size; }
  /// Throws FileError unless its place is within the shard and after that of the sample before.
  std::string_view sample(uint32_t i) const;
  /// The value of one column. Throws FileError.
  std::string_view value(uint32_t i, const std::vector<Encoding>& encodings, size_t column) const;
  /// What the shard says of itself.
  std::string_view config() const;
  /// Every offset and every value. Throws FileError.
  void verify(const Index& index) const;
  /// Throws FileError with the name of the file, of the sample and of the column.
  [[noreturn]] void fail(uint32_t sample, std::string_view rule) const;

 private:
  uint32_t number(size_t at) const;

  std::string name_;
  std::shared_ptr<const MappedFile> data_;
  uint32_t samples_;
};

/// The bytes of a shard whose samples end at `ends`, counted from the first one. Throws Error above 4 GiB.
std::string shard_bytes(std::string_view config, const std::vector<uint64_t>& ends, std::string_view samples);

}  // namespace tessera::mds
