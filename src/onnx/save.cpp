// Modules as files: captured, written node by node, and put on the disk at once.
#include <filesystem>

#include "io/file.h"
#include "io/safetensors.h"
#include "onnx/writer.h"

#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/nn.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kFirstOpset = 18, kLastOpset = 28;

Program captured(const nn::Module& module, const Tensors& inputs, const std::string& batch, const std::string& path) {
  const NoGrad no_grad;
  const amp::NoAutocast as_given;
  const nn::EvalMode eval(module);
  Tensors open;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    if (!t.defined() || t.device().meta) {
      open.push_back(t);
      continue;
    }
    Shape shape = t.shape();
    const Tensor& first = inputs[0];
    const bool is_batch = !batch.empty() && !shape.empty() && first.dim() > 0 && shape[0] == first.shape()[0];
    if (is_batch) shape[0] = Dim::symbol(batch, 1);
    open.push_back(empty(shape, t.dtype(), meta(t.device())));
  }
  try {
    return capture([&](const Tensors& in) { return module(in); }, open);
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (const Error& e) {
    const bool is_open = std::string_view(e.what()).find("is symbolic") != std::string_view::npos;
    throw Error(fmt::format("{}: {}{}", path, e.what(), is_open ? "; the model reads it, so it must be fixed" : ""));
  }
}

void write_external(const std::vector<GraphWriter::Weight>& weights, AtomicFile& file) {
  const std::string zeros(64, '\0');
  for (const auto& [name, tensor] : weights) {
    const size_t bytes = bytes_of(tensor);
    file.write(tensor.place(), bytes);
    file.write(zeros.data(), padded_bytes(bytes) - bytes);
  }
}

}  // namespace

size_t padded_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }
std::string external_name(const std::string& path) { return std::filesystem::path(path).filename().string() + ".data"; }

void save(const nn::Module& module, const Tensors& inputs, const std::string& path, const SaveOptions& options) {
  if (options.opset < kFirstOpset || options.opset > kLastOpset)
    throw Error(fmt::format("{}: opset {} is none of {} to {}", path, options.opset, kFirstOpset, kLastOpset));
  const Program program = captured(module, inputs, options.batch, path);
  GraphWriter writer(program, module.state_dict(), options, path);
  writer.write();
  std::vector<GraphWriter::Weight> external;
  const ModelProto proto = writer.model(external);
  size_t size = size_t{1} << 16;  // of nodes and names, about
  for (const TensorProto& t : proto.graph->initializers) size += t.raw_data.size();
  const std::string bytes = write_proto(proto, size);
  if (external.empty()) return write_file(path, bytes);
  AtomicFile model(path), data(path + ".data");
  write_external(external, data);
  model.write(bytes.data(), bytes.size());
  data.commit();
  model.commit();
}

}  // namespace tessera::onnx
