#include "model_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "command_line.h"
#include "onnx/tensors.h"
#include "tessera/io.h"
#include "tessera/ops.h"

namespace tessera::app {
namespace {

std::pair<std::string, std::string> halves(const std::string& text, const char* form) {
  const size_t at = text.rfind('=');
  if (at == text.npos || at == 0) throw UsageError(fmt::format("'{}' is not {}", text, form));
  return {text.substr(0, at), text.substr(at + 1)};
}
std::optional<DType> dtype_named(const onnx::Port& port) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (const auto dtype = static_cast<DType>(i); port.type == onnx::type_name(onnx::data_type_of(dtype))) return dtype;
  return std::nullopt;
}

}  // namespace

std::map<std::string, int64_t> parse_dims(const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> dims;
  for (const std::string& text : texts) {
    const auto [name, size] = halves(text, "NAME=SIZE");
    if (dims.contains(name)) throw UsageError(fmt::format("--dim: size {} is given twice", name));
    if ((dims[name] = onnx::known_size(size)) < 0) throw UsageError(fmt::format("'{}' is not NAME=SIZE", text));
  }
  return dims;
}
std::map<std::string, std::string> parse_files(const std::vector<std::string>& texts) {
  std::map<std::string, std::string> files;
  for (const std::string& text : texts)
    if (const auto [at, fresh] = files.insert(halves(text, "NAME=FILE")); !fresh)
      throw UsageError(fmt::format("--input: input {} is given twice", at->first));
  return files;
}

void require_dims(const std::vector<onnx::Port>& inputs, const std::map<std::string, int64_t>& dims) {
  for (const auto& [name, size] : dims)
    if (std::none_of(inputs.begin(), inputs.end(), [&](const onnx::Port& port) {
          return std::find(port.dims.begin(), port.dims.end(), name) != port.dims.end();
        }))
      throw UsageError(fmt::format("no input has a size called {}", name));
}

onnx::Value draw_input(const onnx::Port& port, const std::map<std::string, int64_t>& dims, bool takes_files) {
  if (port.kind == onnx::Port::kOptional) return {};
  const auto named_dtype = dtype_named(port);
  if (port.kind != onnx::Port::kTensor || !port.has_shape || !named_dtype)
    throw UsageError(fmt::format("input {} is {}: {}", port.name, describe(port),
                                 takes_files ? "give it a file by --input" : "such inputs cannot be drawn"));
  const DType dtype = *named_dtype;
  Shape shape;
  for (const std::string& dim : port.dims) {
    int64_t size = onnx::known_size(dim);
    const auto named = dims.find(dim);
    if (size < 0 && named == dims.end())
      throw UsageError(fmt::format("input {} is {}: say --dim {}=SIZE{}", port.name, describe(port), dim,
                                   takes_files ? ", or give it a file by --input" : ""));
    shape.push_back(size >= 0 ? size : named->second);
  }
  if (dtype == Bool) return cast(randint(0, 2, shape), Bool);
  return is_floating(dtype) ? cast(randn(shape), dtype) : cast(randint(0, 10, shape), dtype);
}

std::map<std::string, onnx::Value> drawn_inputs(const onnx::Model& model, const std::map<std::string, int64_t>& dims) {
  std::map<std::string, onnx::Value> all;
  require_dims(model.inputs(), dims);
  for (const onnx::Port& port : model.inputs()) all[port.name] = draw_input(port, dims, false);
  return all;
}

std::map<std::string, onnx::Value> model_inputs(const onnx::Model& model,
                                                const std::map<std::string, std::string>& files,
                                                const std::map<std::string, int64_t>& dims) {
  std::map<std::string, onnx::Value> all;
  std::map<std::string, std::string> left = files;
  require_dims(model.inputs(), dims);
  for (const onnx::Port& port : model.inputs()) {
    const auto at = left.find(port.name);
    if (at == left.end()) {
      all[port.name] = draw_input(port, dims, true);
      continue;
    }
    all[port.name] = at->second.ends_with(".pb") ? onnx::read_value(read_file(at->second), port.kind, at->second)
                                                 : onnx::Value(load_npy(at->second));
    left.erase(at);
  }
  if (!left.empty()) {
    std::string names;
    for (const onnx::Port& port : model.inputs()) names += (names.empty() ? "" : ", ") + port.name;
    throw UsageError(fmt::format("no input is called {}; there are: {}", left.begin()->first, names));
  }
  return all;
}

}  // namespace tessera::app
