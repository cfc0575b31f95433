// An application that uses the tile library and the thread pool, without the rest.
#include <tessera/parallel.h>
#include <tessera/tile/base.h>
#include <tessera/version.h>

#include <cstdio>
#include <vector>

int main() {
  constexpr int count = 1000, tile = 96;
  const int tiles = tessera::tile::ceil_div(count, tile);
  std::vector<int> sizes(tiles);
  tessera::executor().parallel(
      tiles, [&](long long i, int) { sizes[i] = i + 1 < tiles ? tile : count - static_cast<int>(i) * tile; });
  int total = 0;
  for (int size : sizes) total += size;
  std::printf("tessera %s: %d tiles of %d elements\n", TESSERA_VERSION, tiles, total);
  return total == count ? 0 : 1;
}
