// A trace of any bytes is read or refused with an Error; what was read is written so that it reads the same. Bytes that
// begin as gzip's do are unpacked first.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "profiler/packed_file.h"
#include "profiler/trace_json.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::profiler;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::string text;
  try {
    const std::string unpacked = is_packed(bytes) ? unpack(bytes, "fuzz", std::size_t{1} << 24) : std::string(bytes);
    text = trace_text(parse_trace(unpacked, "fuzz"));
  } catch (const tessera::Error&) {
    return 0;
  }
  if (trace_text(parse_trace(text, "fuzz")) != text) std::abort();
  return 0;
}
