// Hashes and compression of files, by the names that MDS gives them.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "io/file.h"

namespace tessera {

/// In hexadecimal digits. Throws Error on an unknown name.
std::string hash_of(std::string_view algorithm, std::string_view bytes);
bool is_known_hash(std::string_view algorithm);
/// The known hashes with commas between them, those computed fastest first.
std::string known_hashes();

/// What "zstd", "gz" or one of them with ":LEVEL" says.
struct Compression {
  std::string name;  // empty: none
  int level = 0;
};
/// Throws Error on anything else.
Compression parse_compression(std::string_view text);
/// Throws Error.
std::string compress(const Compression& compression, std::string_view bytes);
/// In memory of its own. Throws FileError unless they come to exactly `size` bytes.
std::shared_ptr<MappedFile> decompress(const Compression& compression, std::string_view bytes, size_t size);

}  // namespace tessera
