// The order in which blocks take tiles of rows of attention's heads.
#pragma once
#include "../../base.h"

TESSERA_TILE_BEGIN
namespace sm90 {

/// Tiles of rows of all heads: some heads together, whose operands fit into the cache. Where the last rows of a head
/// take longest, heads walked together go from those to the first or, every other time, back; lengths change slowly so,
/// and since blocks go along every other round backwards, they get equal shares.
struct HeadTiles {
  int tiles, heads, together;  // of a head; of all batches; walked together
  bool last_longest;           // the last rows of a head take longest

  struct Place {
    int head, tile;
  };
  TESSERA_HD Place operator()(int index) const {
    const int group = index / (together * tiles), groups = (heads + together - 1) / together;
    const int first = group * together, members = first + together < heads ? together : heads - first;
    const int within = index - first * tiles, tile = within / members;
    const bool falls = last_longest && (groups - 1 - group) % 2 == 0;  // the very last tiles are short ones
    return {first + within % members, falls ? tiles - 1 - tile : tile};
  }
  /// fn(place) for all of a block's, of so many blocks.
  template <class Fn>
  TESSERA_HD void each(int block, int blocks, const Fn& fn) const {
    const int count = tiles * heads;
    for (int round = 0; round * blocks < count; ++round) {
      const int index = round * blocks + (round % 2 ? blocks - 1 - block : block);
      if (index < count) fn((*this)(index));
    }
  }
};

}  // namespace sm90
TESSERA_TILE_END
