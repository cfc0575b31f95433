// Indexing.
#include "onnx/writer.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

AttributeProto along(const OpCall& c) { return integer("axis", c.axis(c.attrs<DimAttrs>().dim)); }

Names gather_of(const OpCall& c) { return {c.node("GatherElements", {c.in(0), c.in(1)}, {along(c)})}; }
Names index_select_of(const OpCall& c) { return {c.node("Gather", {c.in(0), c.in(1)}, {along(c)})}; }
Names embedding_of(const OpCall& c) { return {c.node("Gather", {c.in(1), c.in(0)})}; }

Names one_hot_of(const OpCall& c) {
  const Name classes = c.number(static_cast<double>(c.attrs<OneHotAttrs>().classes), Int64);
  return {c.node("OneHot", {c.in(0), classes, c.ints({0, 1})})};
}
Names nonzero_of(const OpCall& c) {
  if (c.type(0).shape.empty()) c.refuse("of a number differs in ONNX");
  return {c.transpose(c.node("NonZero", {c.in(0)}), {1, 0})};
}

constexpr char kNone[] = "none", kAdd[] = "add", kMul[] = "mul", kMax[] = "max", kMin[] = "min";
template <const char* reduction>
Names scatter_by(const OpCall& c) {
  return {c.node("ScatterElements", {c.in(0), c.in(1), c.in(2)}, {along(c), text("reduction", reduction)})};
}

constexpr WriterEntry entries[] = {
    {"embedding", embedding_of},
    {"gather", gather_of},
    {"index_select", index_select_of},
    {"nonzero", nonzero_of},
    {"one_hot", one_hot_of},
    {"scatter", scatter_by<kNone>},
    {"scatter_add", scatter_by<kAdd>},
    {"scatter_amax", scatter_by<kMax>},
    {"scatter_amin", scatter_by<kMin>},
    {"scatter_prod", scatter_by<kMul>},
};

}  // namespace

std::span<const WriterEntry> indexing_writers() { return entries; }

}  // namespace tessera::onnx
