// A file of any bytes is the entry of its key, which comes out again as it was, or it is refused.
#include <cstdint>
#include <cstdlib>

#include "core/util/disk_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  // The key that the file claims; a checksum that the fuzzer cannot guess is set right in a copy.
  const std::string key(file.substr(0, 40).substr(std::min<std::size_t>(size, 8)));
  if (const auto content = decode_cache_entry(key, file); content && encode_cache_entry(key, *content) != file)
    std::abort();
  if (size < 56) return 0;
  const std::string right = encode_cache_entry(key, file.substr(56));
  const auto content = decode_cache_entry(key, right);
  if (!content || *content != file.substr(56) || decode_cache_entry("another", right)) std::abort();
  return 0;
}
