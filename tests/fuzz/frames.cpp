// Bytes of a connection are messages or refused with an Error; a message that was read is written as it was.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "dist/wire.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::dist;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  MessageStream stream;
  stream.feed(rest);
  try {
    while (const auto message = stream.next()) {
      const std::string again = encode(*message);
      if (rest.substr(0, again.size()) != again) std::abort();
      rest.remove_prefix(again.size());
    }
  } catch (const tessera::Error&) {
  }
  return 0;
}
