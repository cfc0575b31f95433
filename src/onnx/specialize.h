// Exporters spell sizes that stay open as nodes: Shape, Gather, Concat and what follows. For inputs of one size all
// these give the same each time.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "onnx/graph.h"

namespace tessera::onnx {

struct InputSize {
  bool is_absent = true;
  Shape shape = {};
  DType dtype = Float32;
  bool operator==(const InputSize&) const = default;
};

/// The latest of a graph. Sizes that are seen once only, as of a cache that grows, cost nothing.
class Specializations {
 public:
  /// Null: the whole graph is to be run.
  std::shared_ptr<const Specialization> find(const Graph& graph, const Values& inputs, const LoadOptions& options);

 private:
  struct Seen {
    std::vector<InputSize> sizes;
    std::shared_ptr<const Specialization> found;
  };
  std::mutex mutex_;
  std::vector<Seen> seen_;  // the latest first
};

}  // namespace tessera::onnx
