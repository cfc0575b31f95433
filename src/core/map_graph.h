// A function of elements as a graph, which is run as one operator.
#pragma once
#include "core/graph.h"

namespace tessera {

/// The attribute of map_graph. Nodes are maps, casts and constants, and each makes a value of its own; sizes in the
/// graph mean nothing.
struct MapGraph : AttrObject {
  Ref<Graph> graph;
};

/// Throws Error where there is none.
inline const MapGraph& map_graph_of(const Attrs& attrs) {
  const auto* found = dynamic_cast<const MapGraph*>(attrs.as<FunctionAttrs>().function.get());
  if (!found) throw Error("map_graph: it has no graph, which text cannot hold");
  return *found;
}

}  // namespace tessera
