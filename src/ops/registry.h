// Operators that a program or a folder above defines, for those that look for operators by name or run closures.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "core/op.h"

namespace tessera {

/// Null: there is none of that name.
const Op* find_built_in(std::string_view name);
const Op* find_registered(std::string_view name);

/// Operators that belong together, as the page of operators shows them.
struct Family {
  std::string_view title;
  std::span<const Op* const> ops;
};
/// Those of a folder above this one, which live for good, are found by name from now on. Throws Error where a name is
/// taken.
void add_ops(std::string_view title, std::span<const Op* const> ops);
/// What was added so, in that order.
std::vector<Family> added_families();

/// What a program's function returned as the outputs of `name`: outside of any graph, dense, and in no memory of its
/// inputs. Throws Error where they are not as wanted.
Tensors as_new_outputs(std::string_view name, Tensors found, const Metas& wanted, std::span<const Tensor> in);

}  // namespace tessera
