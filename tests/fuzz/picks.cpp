// A file of picks of any bytes is read or refused with a FileError; what was read is written so that it reads the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/picks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    const std::string text = format_picks(parse_picks({reinterpret_cast<const char*>(data), size}));
    if (format_picks(parse_picks(text)) != text) std::abort();
  } catch (const FileError&) {
  }
  return 0;
}
