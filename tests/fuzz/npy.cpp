// An npy file of any bytes is read or refused with a FileError.
#include <cstdint>
#include <string_view>

#include "tessera/io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    parse_npy({reinterpret_cast<const char*>(data), size});
  } catch (const FileError&) {
  }
  return 0;
}
