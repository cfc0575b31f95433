// Operators that a program defines, for those that look for operators by name or run closures.
#pragma once
#include <span>
#include <string_view>

#include "core/op.h"

namespace tessera {

/// Null: there is none of that name.
const Op* find_built_in(std::string_view name);
const Op* find_registered(std::string_view name);

/// What a program's function returned as the outputs of `name`: outside of any graph, dense, and in no memory of its
/// inputs. Throws Error where they are not as wanted.
Tensors as_new_outputs(std::string_view name, Tensors found, const Metas& wanted, std::span<const Tensor> in);

}  // namespace tessera
