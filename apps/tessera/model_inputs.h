// Inputs of model files: read, or drawn.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tessera/onnx.h"

namespace tessera::app {

/// "batch=2" and the like, by name. Throws UsageError.
std::map<std::string, int64_t> parse_dims(const std::vector<std::string>& texts);
/// "NAME=FILE", by name. Throws UsageError.
std::map<std::string, std::string> parse_files(const std::vector<std::string>& texts);

/// Throws UsageError for a size that no input has.
void require_dims(const std::vector<onnx::Port>& inputs, const std::map<std::string, int64_t>& dims);

/// A seeded random value of the declared shape: normal numbers, integers below 10, bools. Throws UsageError where a
/// size is open that `dims` does not name, which offers --input where the command has it.
onnx::Value draw_input(const onnx::Port& port, const std::map<std::string, int64_t>& dims, bool takes_files);

/// Draws for all inputs.
std::map<std::string, onnx::Value> drawn_inputs(const onnx::Model& model, const std::map<std::string, int64_t>& dims);
/// What files hold for inputs that they name (.npy, or .pb as in ONNX's tests), and draws for all others.
std::map<std::string, onnx::Value> model_inputs(const onnx::Model& model,
                                                const std::map<std::string, std::string>& files,
                                                const std::map<std::string, int64_t>& dims);

}  // namespace tessera::app
