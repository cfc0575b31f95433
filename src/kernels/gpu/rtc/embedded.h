// The headers of the tile library, carried inside the library for compilers that run in the program. Those of the CPU
// are among them, since kernels/ includes them.
#pragma once
#include <span>

namespace tessera::gpu {

struct EmbeddedHeader {
  const char* name;  // tessera/tile/...
  const char* text;
};
/// All of them, as they were when the library was built (cmake/embed.cmake).
std::span<const EmbeddedHeader> embedded_headers();

}  // namespace tessera::gpu
