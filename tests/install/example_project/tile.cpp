// An application that uses the tile library and the thread pool, without the rest.
#include <tessera/parallel.h>
#include <tessera/tile/base.h>
#include <tessera/version.h>

#include <cstdio>

int main() {
  std::printf("tessera %s, ceil_div(7, 2) = %d\n", TESSERA_VERSION, int(tessera::tile::ceil_div(7, 2)));
}
