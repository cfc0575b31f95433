// What an operator's schema says: names of inputs and outputs, attributes with kinds and defaults. Documentation, the
// command and graphs as text derive from it.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/op.h"

namespace tessera {

/// One of Op::inputs or Op::outputs.
struct OpValue {
  std::string_view name;
  bool optional = false;  ///< may be absent
  bool list = false;      ///< any number of tensors
};
std::vector<OpValue> inputs_of(const Op& op);
std::vector<OpValue> outputs_of(const Op& op);

/// Every attribute at its default.
Attrs default_attrs(const Op& op);
/// Throws Error `softmax takes 1 inputs, not 2` or `softmax: x is absent`; `is_absent(i)` tells of input i.
void require_inputs_of(const Op& op, size_t count, const std::function<bool(size_t)>& is_absent);

/// "softmax(x, dim: int = 0, keepdim: bool = false) -> y"
std::string signature(const Op& op);

/// The op's attributes, "dim=1, keepdim=true", others at their defaults. Throws Error
/// `softmax: no attribute 'axis', of: dim, keepdim`.
Attrs read_attrs(const Op& op, std::string_view text);
/// Throws Error where these are attributes of another operator.
void require_attrs(const Op& op, const Attrs& attrs);

/// Of an elementwise operator, what makes an element of its result: "max(x, V(0))", C++ as tile/kernels/maps.h
/// explains, of inputs x, or a and b, or a, b and c, in the schema's order, and attributes by name. Empty for other
/// operators.
std::string_view scalar_expression(const Op& op);

/// docs/operators.md: every operator with its signature, its policy under autocast and whether it has a gradient.
std::string operators_page();

}  // namespace tessera
