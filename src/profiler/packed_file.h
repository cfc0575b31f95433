// Text files, gzipped where their names end in ".gz".
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "io/file.h"

namespace tessera::profiler {

/// Text on its way to a file, which appears whole on commit() or not at all.
class PackedFile {
 public:
  /// Throws FileError, as write() and commit() do, for example when the disk is full.
  explicit PackedFile(const std::string& path);
  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;
  void write(std::string_view text);
  void commit();

 private:
  struct Packer;
  std::unique_ptr<AtomicFile> file_;
  std::unique_ptr<Packer> packer_;  ///< none: the text goes to the file as it is
};

/// Whether bytes of a file are gzipped, by their first two.
bool is_packed(std::string_view bytes);
/// What gzipped bytes hold. Throws FileError if they are cut short, damaged, or of more than `most` bytes.
std::string unpack(std::string_view bytes, const std::string& file, size_t most = size_t{4} << 30);

}  // namespace tessera::profiler
