// A graph's text of any bytes is read or refused with an Error; what was read prints so that it reads back equal.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ops/capture.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const TemporaryDims dims;
  try {
    const Ref<Graph> graph = parse_graph({reinterpret_cast<const char*>(data), size});
    const Ref<Graph> again = parse_graph(graph->text());
    if (!again->equals(*graph)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
