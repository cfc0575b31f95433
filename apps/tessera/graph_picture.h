// Graphs of model files as pictures.
#pragma once
#include <string>

#include "tessera/onnx.h"

namespace tessera::app {

/// The graph in Graphviz's language: nodes with the sizes of their weights, inputs, outputs and what flows between.
std::string graphviz_text(const onnx::Inspection& model);
/// Throws UsageError for a file that does not end in .dot, .svg, .png or .pdf, or that cannot be written.
void require_graph_file(const std::string& path);
/// Writes that to a file that ends in .dot, and otherwise a picture by Graphviz's `dot`, of the format that the ending
/// names. Throws FileError where dot is missing or fails.
void write_graph(const onnx::Inspection& model, const std::string& path);

}  // namespace tessera::app
