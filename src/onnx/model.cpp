#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <typeinfo>

#include "io/file.h"
#include "onnx/graph.h"
#include "onnx/handler.h"
#include "onnx/optimize.h"
#include "onnx/specialize.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/ops.h"

namespace tessera::onnx {

struct detail::LoadedModel {
  std::string file;
  LoadOptions options;
  bool is_random = false;
  std::shared_ptr<void> owner;
  Graph graph;
  mutable Specializations specializations;
};

const Tensor& Value::tensor() const {
  if (!is_tensor()) throw Error(fmt::format("{} is no tensor", describe(*this)));
  return tensor_;
}
const std::vector<Value>& Value::sequence() const {
  if (!is_sequence()) throw Error(fmt::format("{} is no sequence", describe(*this)));
  return *sequence_;
}
std::string describe(const Value& value) {
  if (value.is_tensor()) return tessera::describe(value.tensor());
  if (value.is_absent()) return "nothing";
  return fmt::format("a sequence of {}", value.sequence().size());
}
std::string describe(const Port& port) {
  std::string type = port.type.empty() ? "any" : port.type;
  if (port.has_shape) type += fmt::format("[{}]", fmt::join(port.dims, ", "));
  if (port.kind == Port::kSequence) type = "sequence of " + type;
  if (port.kind == Port::kOptional) type = "optional " + type;
  return type;
}

int64_t known_size(const std::string& dim) {
  int64_t size = -1;
  const auto [end, error] = std::from_chars(dim.data(), dim.data() + dim.size(), size);
  return error == std::errc() && end == dim.data() + dim.size() && size >= 0 ? size : -1;
}

namespace {

bool draws(const Graph& graph) {
  return std::any_of(graph.steps.begin(), graph.steps.end(), [](const Step& step) {
    return (step.entry && step.entry->random) || (step.function && draws(*step.function)) ||
           std::any_of(step.bodies.begin(), step.bodies.end(), [](const Body& body) { return draws(*body.graph); });
  });
}

std::shared_ptr<const detail::LoadedModel> load(Bytes bytes, Source source, std::shared_ptr<void> owner,
                                                const LoadOptions& options) {
  const NoGrad no_grad;
  const DeviceGuard guard(options.device);
  auto loaded = std::make_shared<detail::LoadedModel>();
  loaded->file = source.file();
  loaded->options = options;
  loaded->owner = std::move(owner);  // attributes view its bytes
  loaded->graph = prepare(read_proto<ModelProto>(bytes, source.file()), source, options);
  loaded->is_random = draws(loaded->graph);
  fold_constants(loaded->graph, options);
  if (options.optimize) optimize(loaded->graph, options.dtype);
  return loaded;
}

// What the model says of an input, held against what it is given.
void check(const std::string& file, const Port& port, int64_t type, const Value& value) {
  const auto fail = [&](const std::string& what) {
    throw Error(fmt::format("{}: input {} is {}, but {}", file, in_quotes(port.name), describe(port), what));
  };
  if (port.kind == Port::kOptional && value.is_absent()) return;
  if (port.kind == Port::kSequence && !value.is_sequence()) fail("is given " + describe(value));
  if (port.kind != Port::kTensor) return;
  if (!value.is_tensor()) fail("is given " + describe(value));
  const Tensor& t = value.tensor();
  if (type != 0 && dtype_from(type) != t.dtype()) fail("is given " + describe(value));
  if (!port.has_shape) return;
  if (static_cast<size_t>(t.dim()) != port.dims.size()) fail("is given " + describe(value));
  for (size_t d = 0; d < port.dims.size(); ++d)
    if (const int64_t size = known_size(port.dims[d]); size >= 0 && size != t.size(static_cast<int64_t>(d)))
      fail("is given " + describe(value));
}

}  // namespace

Model::Model(const std::string& path, const LoadOptions& options) {
  const auto file = map_file(path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  loaded_ =
      load(Bytes(file->data, file->size), Source(path, folder.empty() ? "." : folder, file, file.get()), file, options);
  // Kernels read packed copies of most weights: neither the file nor what it took to make them stays in memory.
  file->release_pages();
  empty_cache(cpu());
}
Model Model::from_bytes(std::string bytes, const std::string& name, const LoadOptions& options) {
  const auto owner = std::make_shared<std::string>(std::move(bytes));
  Model model;
  model.loaded_ = load(*owner, Source(name, "", owner), owner, options);
  return model;
}

const std::vector<Port>& Model::inputs() const { return loaded_->graph.inputs; }
const std::vector<Port>& Model::outputs() const { return loaded_->graph.outputs; }

std::map<std::string, int64_t> Model::calls() const {
  std::map<std::string, int64_t> out;
  for (const Step& step : loaded_->graph.steps) ++out[step.op];
  return out;
}

bool Model::is_random() const { return loaded_->is_random; }

// Where one name stands for two sizes. Many such files run all the same, so it is told where a run fails.
static std::string contradiction(const Graph& graph, const Values& inputs) {
  struct Seen {
    std::string_view name, input;
    Dim size;
  };
  std::vector<Seen> all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Port& port = graph.inputs[i];
    if (!inputs[i].is_tensor() || !port.has_shape) continue;
    const Shape& shape = inputs[i].tensor().shape();
    for (size_t d = 0; d < port.dims.size(); ++d) {
      const std::string& name = port.dims[d];
      if (name == "?" || known_size(name) >= 0) continue;
      const auto same = std::find_if(all.begin(), all.end(), [&](const Seen& s) { return s.name == name; });
      if (same == all.end()) all.push_back({name, port.name, shape[d]});
      else if (!(same->size == shape[d]))
        return fmt::format("; size {} is {} in input {}, and {} in input {}", in_quotes(name), same->size.to_string(),
                           in_quotes(std::string(same->input)), shape[d].to_string(), in_quotes(port.name));
    }
  }
  return {};
}

Values Model::run(const Values& inputs) const {
  const Graph& graph = loaded_->graph;
  if (inputs.size() > graph.inputs.size() || inputs.size() < graph.required_inputs)
    throw Error(fmt::format("{}: takes {} inputs, not {}", loaded_->file, graph.required_inputs, inputs.size()));
  const NoGrad no_grad;
  const DeviceGuard guard(loaded_->options.device);
  Values there = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].is_absent() && i >= graph.required_inputs) continue;
    check(loaded_->file, graph.inputs[i], graph.input_types[i], inputs[i]);
    if (inputs[i].is_tensor()) there[i] = inputs[i].tensor().to(loaded_->options.device);
  }
  std::optional<amp::Autocast> region;
  if (loaded_->options.dtype != Float32)
    region.emplace(loaded_->options.dtype, amp::AutocastOptions{.cache_weights = false});
  const auto special = loaded_->specializations.find(graph, there, loaded_->options);
  Values out;
  try {
    out = special ? onnx::run(graph, *special, there, loaded_->options) : onnx::run(graph, there, loaded_->options);
  } catch (const Error& e) {
    const std::string why = typeid(e) == typeid(Error) ? contradiction(graph, inputs) : "";
    if (why.empty()) throw;
    throw Error(e.what() + why);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (!out[i].is_tensor()) continue;
    if (region && graph.outputs[i].type == "float") out[i] = cast(out[i].tensor(), Float32);
    const Port& port = graph.outputs[i];
    try {
      out[i] = contiguous(out[i].tensor());
    } catch (const OutOfMemoryError& e) {  // a view that repeats its elements
      throw OutOfMemoryError(fmt::format("{}: output {}: {}", loaded_->file, in_quotes(port.name), e.what()));
    }
    if (!port.type.empty() && port.kind == Port::kTensor &&
        port.type != type_name(data_type_of(out[i].tensor().dtype())))
      throw Error(fmt::format("{}: output {} is declared as {}, but is {}", loaded_->file, in_quotes(port.name),
                              describe(port), describe(out[i])));
  }
  return out;
}

std::map<std::string, Value> Model::run_by_name(const std::map<std::string, Value>& inputs) const {
  const Graph& graph = loaded_->graph;
  Values in(graph.inputs.size());
  size_t found = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const auto at = inputs.find(graph.inputs[i].name);
    if (at != inputs.end()) in[i] = at->second, ++found;
    else if (i < graph.required_inputs && graph.inputs[i].kind != Port::kOptional)
      throw Error(fmt::format("{}: input {} is missing", loaded_->file, in_quotes(graph.inputs[i].name)));
  }
  if (found != inputs.size())
    for (const auto& [name, value] : inputs)
      if (std::none_of(graph.inputs.begin(), graph.inputs.end(), [&](const Port& p) { return p.name == name; }))
        throw Error(fmt::format("{}: has no input {}", loaded_->file, in_quotes(name)));
  const Values out = run(in);
  std::map<std::string, Value> named;
  for (size_t i = 0; i < out.size(); ++i) named[graph.outputs[i].name] = out[i];
  return named;
}

namespace {

void count(const Graph& graph, Inspection& out) {
  for (const Step& step : graph.steps) {
    if (step.function) {
      count(*step.function, out);
      continue;
    }
    ++out.nodes;
    ++out.operators[step.op];
    for (const Body& body : step.bodies) count(*body.graph, out);
  }
}

}  // namespace

Inspection inspect(const std::string& path) {
  const auto file = map_file(path);
  const auto proto = read_proto<ModelProto>(Bytes(file->data, file->size), path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  Source source(path, folder.empty() ? "." : folder, file);
  Inspection out;
  out.producer = fmt::format("{} {}", proto.producer_name, proto.producer_version);
  while (out.producer.ends_with(' ')) out.producer.pop_back();
  out.ir_version = proto.ir_version;
  for (const OperatorSet& set : proto.opsets)
    out.opsets[set.domain.empty() ? "ai.onnx" : std::string(set.domain)] = set.version;
  const Graph graph = prepare(proto, source, {}, &out.unsupported);
  out.inputs = graph.inputs;
  out.outputs = graph.outputs;
  for (const auto& [slot, value] : graph.constants) {
    out.parameters += value.tensor().numel();
    out.parameter_bytes += value.tensor().numel() * static_cast<int64_t>(size_of(value.tensor().dtype()));
  }
  count(graph, out);
  if (!proto.graph) return out;
  const auto texts = [](const std::vector<Bytes>& names) {
    return std::vector<std::string>(names.begin(), names.end());
  };
  for (const NodeProto& node : proto.graph->nodes)
    out.graph.push_back({std::string(node.op_type), std::string(node.name), texts(node.inputs), texts(node.outputs)});
  for (const TensorProto& weight : proto.graph->initializers) out.weights[std::string(weight.name)] = weight.dims;
  return out;
}

namespace {

Value sequence_of(const SequenceProto& proto, Source& source) {
  Values all;
  for (const TensorProto& t : proto.tensors) all.emplace_back(source.tensor(t));
  for (const SequenceProto& s : proto.sequences) all.push_back(sequence_of(s, source));
  return Value(std::move(all));
}

}  // namespace

Value read_value(std::string bytes, Port::Kind kind, const std::string& name) {
  const auto owner = std::make_shared<std::string>(std::move(bytes));
  Source source(name, "", owner);
  if (kind == Port::kSequence) return sequence_of(read_proto<SequenceProto>(*owner, name), source);
  if (kind == Port::kTensor) return source.tensor(read_proto<TensorProto>(*owner, name));
  const auto optional = read_proto<OptionalProto>(*owner, name);
  if (optional.tensor) return source.tensor(*optional.tensor);
  return optional.sequence ? sequence_of(*optional.sequence, source) : Value();
}

}  // namespace tessera::onnx
