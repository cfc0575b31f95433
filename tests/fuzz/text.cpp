// Any bytes are either no text, or go through the tokenizer and back unchanged.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tessera/data.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const std::size_t at = find_non_text(text); at != std::string_view::npos) {
    if (find_non_text(text.substr(0, at)) != std::string_view::npos) std::abort();
    return 0;
  }
  const CharTokenizer tokenizer(text);
  if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
  if (CharTokenizer(tokenizer.vocabulary()).vocabulary() != tokenizer.vocabulary()) std::abort();
  return 0;
}
