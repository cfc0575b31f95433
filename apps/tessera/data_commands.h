// Commands of `tessera data`.
#pragma once
#include "command.h"

namespace tessera::app {

/// "1 shard" or "3 shards".
std::string shards_text(int64_t count);
void add_data_pack(Command data);
void add_data_order(Command data);

}  // namespace tessera::app
