// An address is parsed or refused with a FileError, and an error of S3 has a code or none. The bytes: an address, a
// zero byte, an endpoint, a zero byte, an answer.
#include "data/store.h"

#include <cstdint>
#include <cstdlib>

#include "io/file.h"
#include "tessera/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  auto part = [rest = all]() mutable {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view out = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return out;
  };
  const std::string_view address = part(), endpoint = part(), answer = part();
  for (char c : s3_error_code(answer))
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) std::abort();
  try {
    const Store store = parse_store(address, [&](const char* name) {
      return std::string(name) == "AWS_ENDPOINT_URL" ? std::string(endpoint) : std::string();
    });
    const std::string url = store.url_of(answer);
    if (!url.starts_with("http://") && !url.starts_with("https://")) std::abort();
    for (char c : url)
      if (c <= ' ' || c > '~') std::abort();
  } catch (const FileError&) {
  }
  return 0;
}
