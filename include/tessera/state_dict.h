// Named tensors: what modules and optimizers save, and what files hold.
#pragma once
#include <map>
#include <string>

#include "tessera/tensor.h"

namespace tessera {

using StateDict = std::map<std::string, Tensor, std::less<>>;
/// Free text that a file carries beside its tensors.
using Metadata = std::map<std::string, std::string, std::less<>>;

}  // namespace tessera
