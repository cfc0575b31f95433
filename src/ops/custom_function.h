// Closures as attributes.
#pragma once
#include "core/op.h"
#include "tessera/autograd.h"

namespace tessera {

/// The attributes with which the operator custom_function calls these.
Attrs function_attrs(std::string name, CustomForward forward, CustomBackward backward);

}  // namespace tessera
