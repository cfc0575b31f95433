// An application that uses the tile library alone.
#include <tessera/tile/base.h>
#include <tessera/version.h>

#include <cstdio>

int main() {
  std::printf("tessera %s, ceil_div(7, 2) = %d\n", TESSERA_VERSION, int(tessera::tile::ceil_div(7, 2)));
}
