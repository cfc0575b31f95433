// Commands of `tessera data`.
#pragma once
#include "command.h"

namespace tessera::app {

void add_data_pack(Command data);
void add_data_order(Command data);

}  // namespace tessera::app
