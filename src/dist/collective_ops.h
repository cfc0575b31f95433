// Collectives as operators.
#pragma once
#include <span>

#include "core/attr_value.h"
#include "core/op.h"
#include "tessera/dist.h"

namespace tessera {

template <>
struct AttrTraits<dist::ReduceOp> {
  static AttrValue value(dist::ReduceOp member) { return std::string(dist::name(member)); }
  static bool assign(dist::ReduceOp& member, const AttrValue& value);
  static bool equal(dist::ReduceOp a, dist::ReduceOp b) { return a == b; }
};

namespace dist {

struct CollectiveAttrs {
  Ref<AttrObject> group;  ///< of ranks, which text cannot hold
  ReduceOp op = Sum;
  int64_t root = 0;
  static constexpr std::string_view attr_names = "group, op, root";
  auto members() { return std::tie(group, op, root); }
  auto members() const { return std::tie(group, op, root); }
};

/// All of them. They are found by name from the first call on, which every World makes.
std::span<const Op* const> collective_ops();

}  // namespace dist
}  // namespace tessera
