// Files that the build puts into the library, as cmake/embed.cmake writes them.
#pragma once
#include <span>

namespace tessera {

struct EmbeddedFile {
  const char* name;
  const char* text;
};

}  // namespace tessera
