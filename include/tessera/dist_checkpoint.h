// Checkpoints of many ranks: each writes its share of every tensor, and any number of ranks reads them.
#pragma once
#include <string>

#include "tessera/dist.h"
#include "tessera/io.h"

namespace tessera::dist {

/// Saves what all ranks have alike, each rank about as many bytes; all of them see the folder. Whatever happens to any
/// of them, `path` is the old checkpoint or the new one. Throws Error, upon which the run cannot go on: other ranks
/// wait for the one that could not write. `load_checkpoint(path)` reads it, and a group of one rank writes one file. As
/// that of one process, `keep` of them stay.
void save_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Group& group, int keep = 1);

}  // namespace tessera::dist
