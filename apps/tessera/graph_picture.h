// Graphs of model files as pictures.
#pragma once
#include <string>

#include "tessera/onnx.h"

namespace tessera::app {

/// The graph in Graphviz's language: nodes with the sizes of their weights, inputs, outputs and what flows between.
std::string graphviz_text(const onnx::Inspection& model);
/// Writes that to a file that ends in .dot, and otherwise a picture by Graphviz's `dot`, of the format that the ending
/// names: .svg, .png, .pdf. Throws UsageError for another ending, FileError
/// where it cannot be written, and dot is missing or fails.
void write_graph(const onnx::Inspection& model, const std::string& path);

}  // namespace tessera::app
