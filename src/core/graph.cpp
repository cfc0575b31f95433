#include "core/graph.h"

#include <fmt/format.h>

namespace tessera {
namespace {

std::string number(int32_t value) { return value < 0 ? "none" : fmt::format("%{}", value); }

// f32[2, 3], with strides where it does not lie dense, and f32[2, 3]<layout> where a kernel packed it
std::string type_text(const GraphValue& v) {
  std::string text = std::string(name(v.meta.dtype)) + to_string(v.meta.shape);
  if (v.meta.packing) text += '<' + *v.meta.packing + '>';
  if (v.strides.empty()) return text;
  std::string strides;
  for (const Dim s : v.strides) strides += (strides.empty() ? "" : ", ") + s.to_string();
  return text + "{" + strides + "}";
}

template <class List, class Text>
std::string joined(const List& list, const Text& text) {
  std::string all;
  for (const int32_t v : list) all += (all.empty() ? "" : ", ") + text(v);
  return all;
}

// " where n in [0, 12], m in [1, inf]"; nothing where no symbol has bounds.
std::string where_text(const Graph& graph) {
  std::string text;
  const Symbols symbols = graph.symbols();
  for (const Dim symbol : symbols.all())
    if (const std::string bounds = bounds_text(symbol); !bounds.empty())
      text += (text.empty() ? " where " : ", ") + bounds;
  return text;
}

}  // namespace

Symbols Graph::symbols() const {
  Symbols all;
  for (const GraphValue& v : values) {
    all.add_all(v.meta.shape);
    all.add_all(v.strides);
  }
  for (const GraphNode& node : nodes) all.add_all(node.attrs);
  return all;
}

std::string Graph::text() const {
  const auto at = [&](int32_t v) -> const GraphValue& { return values[static_cast<size_t>(v)]; };
  std::string text =
      "graph(" +
      joined(inputs,
             [&](int32_t v) {
               return fmt::format("{}: {} on {}", number(v), type_text(at(v)), to_string(at(v).meta.device));
             }) +
      ")" + where_text(*this) + " {\n";
  for (const GraphNode& node : nodes) {
    const auto declared = [&](int32_t v) { return v < 0 ? "none" : number(v) + ": " + type_text(at(v)); };
    const std::string attrs = node.attrs.describe();
    text += fmt::format("  {} = {}({}){}\n", joined(node.outputs, declared), node.op->name, joined(node.inputs, number),
                        attrs.empty() ? "" : " " + attrs);
  }
  return text + "  return " + joined(outputs, number) + "\n}\n";
}

bool Graph::equals(const AttrObject& other) const {
  const auto* graph = dynamic_cast<const Graph*>(&other);
  return graph && values == graph->values && inputs == graph->inputs && outputs == graph->outputs &&
         nodes == graph->nodes;
}

}  // namespace tessera
