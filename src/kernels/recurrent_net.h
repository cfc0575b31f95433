// What the operator of recurrent nets asks its kernels before it is called.
#pragma once
#include "core/kernel.h"

namespace tessera {

/// The bytes that the kernel of such a call on a card keeps for backward, or -1 where none takes it.
long long kept_by_net(const Call& call);

}  // namespace tessera
