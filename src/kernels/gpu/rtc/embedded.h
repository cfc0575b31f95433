// The headers of the tile library, carried inside the library for compilers that run in the program. Those of the CPU
// are among them, since kernels/ includes them.
#pragma once
#include "core/util/embedded.h"

namespace tessera::gpu {

/// All of them, "tessera/tile/...", as they were when the library was built.
std::span<const EmbeddedFile> embedded_headers();

}  // namespace tessera::gpu
