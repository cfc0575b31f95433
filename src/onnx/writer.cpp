#include "onnx/writer.h"

#include <algorithm>
#include <cstring>
#include <numbers>

#include "core/dim_terms.h"
#include "io/safetensors.h"
#include "onnx/tensors.h"
#include "tessera/ops.h"
#include "tessera/version.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kIrVersions[] = {8, 9, 9, 10, 10, 11, 12, 13, 13, 13, 14};  // from opset 18 on
constexpr int64_t kMostInFile = 2'000'000'000;                                // messages end at 2^31 bytes
constexpr size_t kExternalBytes = 1024;  // smaller tensors stay in the model, as is customary

OpWriter find_writer(std::string_view op) {
  static const auto table = [] {
    std::map<std::string_view, OpWriter> all;
    for (auto family : {elementwise_writers(), reduction_writers(), shape_writers(), indexing_writers(),
                        linear_writers(), window_writers(), recurrent_writers(), norm_writers(), attention_writers(),
                        creation_writers(), update_writers()})
      for (const WriterEntry& e : family)
        if (!all.emplace(e.op, e.write).second) throw Error(fmt::format("two writers of {}", e.op));
    return all;
  }();
  const auto it = table.find(op);
  return it == table.end() ? nullptr : it->second;
}

bool lies_alike(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.offset() == b.offset() && a.shape() == b.shape() && a.dtype() == b.dtype() &&
         a.strides() == b.strides();
}

}  // namespace

AttributeProto integer(Bytes name, int64_t value) { return {.name = name, .type = kIntAttribute, .i = value}; }
AttributeProto integers(Bytes name, std::vector<int64_t> values) {
  return {.name = name, .type = kIntsAttribute, .ints = std::move(values)};
}
AttributeProto real(Bytes name, double value) {
  return {.name = name, .type = kFloatAttribute, .f = static_cast<float>(value)};
}
AttributeProto text(Bytes name, Bytes value) { return {.name = name, .type = kStringAttribute, .s = value}; }
AttributeProto texts(Bytes name, std::vector<Bytes> values) {
  return {.name = name, .type = kStringsAttribute, .strings = std::move(values)};
}

// ---- the graph

GraphWriter::GraphWriter(const Program& program, const StateDict& weights, const SaveOptions& options, std::string file)
    : program_(program), graph_(*program.graph), options_(options), file_(std::move(file)) {
  values_.resize(graph_.values.size());
  find_views();
  name_inputs(weights);
}

void GraphWriter::refuse(const std::string& why) const {
  const std::string &path = program_.paths[at_], op(graph_.nodes[at_].op->name);
  throw Unsupported(path.empty() ? fmt::format("{}: operator '{}' {}", file_, op, why)
                                 : fmt::format("{}: operator '{}' of module \"{}\" {}", file_, op, path, why));
}

Name GraphWriter::unique(const Name& wanted) {
  Name name = wanted;
  for (int i = 2; !taken_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
  return name;
}

void GraphWriter::name_inputs(const StateDict& weights) {
  const auto named = [](const Names& given, const char* what, size_t count, const std::string& file) {
    if (given.size() > count) throw Error(fmt::format("{}: {} names for {} {}s", file, given.size(), count, what));
    Names all = given;
    for (size_t i = all.size(); i < count; ++i) all.push_back(i ? fmt::format("{}_{}", what, i + 1) : what);
    return all;
  };
  inputs_ = named(options_.inputs, "input", program_.inputs, file_);
  outputs_ = named(options_.outputs, "output", program_.outputs, file_);
  for (const Names& list : {inputs_, outputs_})
    for (const Name& name : list) {
      if (name.empty() || !taken_.insert(name).second)
        throw Error(fmt::format("{}: inputs and outputs need names of their own, not \"{}\" again", file_, name));
      if (weights.contains(name)) throw Error(fmt::format("{}: a parameter is called \"{}\", too", file_, name));
    }
  for (size_t i = 0; i < program_.inputs; ++i) bind(graph_.inputs[i], inputs_[i]);
  for (const auto& [name, t] : weights) taken_.insert(name);
  std::set<Name> added;
  for (size_t i = 0; i < program_.closed_over.size(); ++i) {
    const Tensor& t = program_.closed_over[i];
    const auto it =
        std::find_if(weights.begin(), weights.end(), [&](const auto& w) { return lies_alike(w.second, t); });
    const Name name = it == weights.end() ? unique("constant") : it->first;
    if (added.insert(name).second) weights_.push_back({name, dense_on_host(t)});
    bind(graph_.inputs[program_.inputs + i], name);
  }
}

void GraphWriter::bind(int32_t value, const Name& name) {
  if (value < 0) return;
  values_[static_cast<size_t>(value)] = name;
  const Shape& shape = graph_.values[static_cast<size_t>(value)].meta.shape;
  for (int64_t d = 0; d < shape.rank(); ++d) {
    const Dim size = shape[d];
    if (!size.is_symbolic() || std::any_of(sizes_.begin(), sizes_.end(), [&](auto& s) { return s.first == size; }))
      continue;
    sizes_.emplace_back(size, name);
    size_dims_.push_back(d);
  }
}

Names GraphWriter::nodes(std::string_view op, const Names& in, size_t outputs, Attributes attributes) {
  std::string key = fmt::format("{}\n{}\n{}\n", op, fmt::join(in, "\n"), outputs);
  key += write_proto(NodeProto{.attributes = attributes});
  Names& results = results_[key];
  if (!results.empty()) return results;
  const std::string& path = program_.paths[at_];
  const Name name = unique(path.empty() ? std::string(op) : fmt::format("{}/{}", path, op));
  results.push_back(name);
  for (size_t i = 1; i < outputs; ++i) results.push_back(unique(fmt::format("{}:{}", name, i)));
  Names given = in;
  while (!given.empty() && given.back().empty()) given.pop_back();  // absent ones at the end
  made_.push_back({std::string(op), name, std::move(given), results, std::move(attributes)});
  return results;
}

Name GraphWriter::constant(const Tensor& value) {
  const Tensor dense = dense_on_host(value);
  const size_t bytes = bytes_of(dense);
  const auto add = [&] {
    const Name name = unique("constant");
    weights_.push_back({name, dense});
    return name;
  };
  if (bytes > 4096) return add();
  std::string key = fmt::format("{}{} ", tessera::name(dense.dtype()), to_string(dense.shape()));
  key.append(static_cast<const char*>(dense.place()), bytes);
  const auto it = constants_.find(key);
  return it != constants_.end() ? it->second : constants_.emplace(key, add()).first->second;
}

const GraphNode* GraphWriter::maker(int32_t value) const {
  if (is_overwritten(value)) return nullptr;
  for (const GraphNode& node : graph_.nodes)
    if (std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end()) return &node;
  return nullptr;
}

Tensor GraphWriter::known(int32_t value) const {
  const GraphNode* made;
  while ((made = maker(value)) && made->op->name == "reshape") value = made->inputs[0];
  const auto at = std::find(graph_.inputs.begin() + static_cast<int64_t>(program_.inputs), graph_.inputs.end(), value);
  if (at == graph_.inputs.end()) return {};
  return program_.closed_over[static_cast<size_t>(at - graph_.inputs.begin()) - program_.inputs];
}

Name GraphWriter::dim(Dim d) {
  if (!d.is_symbolic()) return constant(tensor(std::vector<int64_t>{d.value()}, {1}));
  for (size_t i = 0; i < sizes_.size(); ++i)
    if (sizes_[i].first == d)
      return nodes("Shape", {sizes_[i].second}, 1,
                   {integer("start", size_dims_[i]), integer("end", size_dims_[i] + 1)})[0];
  for (size_t i = 0; i < sizes_.size(); ++i) {  // a multiple, a part, or so many more
    const Dim known = sizes_[i].first, times = known.low() > 0 ? d / known : Dim(0), rest = d - known;
    if (!(times == Dim(0)) && times * known == d && !(times == d)) return nodes("Mul", {dim(known), dim(times)}, 1)[0];
    const Dim parts = d.low() > 0 ? known / d : Dim(0);
    if (!parts.is_symbolic() && !(parts == Dim(0)) && parts * d == known) return quotient(known, parts);
    if (!rest.is_symbolic()) return nodes("Add", {dim(known), dim(rest)}, 1)[0];
  }
  Name sum;
  for (const DimTerm& term : terms_of(d)) {
    Name product = term.coefficient == 1 && !term.factors.empty() ? Name() : dim(term.coefficient);
    for (const DimFactor& f : term.factors) {
      const bool divides = !(f.denominator == Dim(0));
      if (!divides && f.self == d) refuse(fmt::format("needs the size {}, which no value has", d.to_string()));
      const Name factor = divides ? quotient(f.numerator, f.denominator) : dim(f.self);
      product = product.empty() ? factor : nodes("Mul", {product, factor}, 1)[0];
    }
    sum = sum.empty() ? product : nodes("Add", {sum, product}, 1)[0];
  }
  return sum;
}

// Rounded down; ONNX's division of integers rounds to zero.
Name GraphWriter::quotient(Dim numerator, Dim denominator) {
  const Name by = dim(denominator);
  Name x = dim(numerator);
  if (numerator.low() < 0) x = nodes("Sub", {x, nodes("Mod", {x, by}, 1)[0]}, 1)[0];
  return nodes("Div", {x, by}, 1)[0];
}

Names GraphWriter::write_node(const GraphNode& node) {
  const OpWriter write = find_writer(node.op->name);
  if (!write) refuse("has no counterpart in ONNX");
  Names in;
  for (const int32_t v : node.inputs) {
    if (v >= 0) renew(v);
    in.push_back(v < 0 ? Name() : values_[static_cast<size_t>(v)]);
    if (v >= 0 && in.back().empty()) refuse("needs what an operator keeps for backward alone");
  }
  return write(OpCall(*this, graph_, node, std::move(in)));
}

void GraphWriter::write() {
  for (at_ = 0; at_ < graph_.nodes.size(); ++at_) {
    const GraphNode& node = graph_.nodes[at_];
    const Names out = write_node(node);
    for (size_t i = 0; i < out.size() && i < node.outputs.size(); ++i) {
      bind(node.outputs[i], out[i]);
      if (node.op->in_place) write_back(node.outputs[i]);
    }
  }
  for (const int32_t v : graph_.outputs)
    if (v >= 0) renew(v);
  at_ = 0;
  name_outputs();
  drop_unused();
}

// ---- writes in place: a value gets another name, and what lies in its memory is made again

void GraphWriter::find_views() {
  views_.resize(values_.size()), writes_.resize(values_.size()), overwritten_.resize(values_.size());
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const GraphNode& node = graph_.nodes[i];
    if (program_.views[i]) views_[static_cast<size_t>(node.outputs[0])] = {node.inputs[0], i, 0};
    for (const int32_t v : node.outputs)
      if (node.op->in_place && v >= 0) overwritten_[static_cast<size_t>(memory_of(v))] = true;
  }
}

int32_t GraphWriter::memory_of(int32_t value) const {
  while (views_[static_cast<size_t>(value)].of >= 0) value = views_[static_cast<size_t>(value)].of;
  return value;
}

// Makes a view again where its memory was written to since.
void GraphWriter::renew(int32_t value) {
  View& view = views_[static_cast<size_t>(value)];
  const size_t writes = writes_[static_cast<size_t>(memory_of(value))];
  if (view.of < 0 || view.writes == writes) return;
  const size_t now = std::exchange(at_, view.node);
  bind(value, write_node(graph_.nodes[view.node])[0]);
  at_ = now;
  view.writes = writes;
}

// After a value was overwritten: puts it into what it is a view of.
void GraphWriter::write_back(int32_t value) {
  const int32_t memory = memory_of(value);
  const auto closed_over = graph_.inputs.begin() + static_cast<int64_t>(program_.inputs);
  if (std::find(closed_over, graph_.inputs.end(), memory) != graph_.inputs.end())
    refuse("writes to a parameter or buffer, which a file cannot keep");
  const size_t writes = ++writes_[static_cast<size_t>(memory)];
  for (View* view = &views_[static_cast<size_t>(value)]; view->of >= 0; view = &views_[static_cast<size_t>(value)]) {
    view->writes = writes;
    const Name part = values_[static_cast<size_t>(value)], whole = values_[static_cast<size_t>(view->of)];
    bind(view->of, written_back(OpCall(*this, graph_, graph_.nodes[view->node], {whole}), part));
    value = view->of;
  }
}

bool GraphWriter::is_made(const Name& name) const {
  return std::any_of(made_.begin(), made_.end(),
                     [&](const Made& m) { return std::find(m.out.begin(), m.out.end(), name) != m.out.end(); });
}

void GraphWriter::rename(const Name& from, const Name& to) {
  for (Made& m : made_)
    for (Names* list : {&m.in, &m.out}) std::replace(list->begin(), list->end(), from, to);
  std::replace(values_.begin(), values_.end(), from, to);
}

// What a node gives is called as the output is; an input, a weight or another output is copied.
void GraphWriter::name_outputs() {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const int32_t v = graph_.outputs[i];
    const Name name = v < 0 ? Name() : values_[static_cast<size_t>(v)];
    if (name.empty()) throw Error(fmt::format("{}: output {} is undefined", file_, i));
    const bool is_output = std::find(outputs_.begin(), outputs_.end(), name) != outputs_.end();
    if (is_made(name) && !is_output) rename(name, outputs_[i]);
    else made_.push_back({"Identity", unique("Identity"), {name}, {outputs_[i]}, {}});
  }
}

void GraphWriter::drop_unused() {
  std::set<Name> used(outputs_.begin(), outputs_.end());
  std::vector<Made> kept;
  for (size_t i = made_.size(); i-- > 0;) {
    Made& m = made_[i];
    if (std::none_of(m.out.begin(), m.out.end(), [&](const Name& n) { return used.count(n); })) continue;
    used.insert(m.in.begin(), m.in.end());
    kept.push_back(std::move(m));
  }
  made_.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  std::erase_if(weights_, [&](const Weight& w) { return !used.count(w.name); });
}

// ---- the model

ValueInfoProto GraphWriter::info(const Name& name, int32_t value) {
  const TensorMeta& meta = graph_.values[static_cast<size_t>(value)].meta;
  ValueInfoProto out{.name = name};
  TensorType& type = out.type.make().tensor.make();
  type.elem_type = data_type_of(meta.dtype);
  TensorShapeProto& shape = type.shape.make();
  for (const Dim d : meta.shape) {
    Dimension& dim = shape.dims.emplace_back();
    if (d.is_symbolic()) dim.param = texts_.emplace_back(d.is_symbol() ? d.name() : d.to_string());
    else dim.value.make() = d.value();
  }
  return out;
}

TensorProto GraphWriter::weight(const Weight& w) const {
  TensorProto out{.data_type = data_type_of(w.tensor.dtype()), .name = w.name};
  for (const Dim d : w.tensor.shape()) out.dims.push_back(d.value());
  const auto* const data = static_cast<const char*>(w.tensor.place());
  out.raw_data = Bytes(data ? data : "", bytes_of(w.tensor));
  return out;
}

ModelProto GraphWriter::model(std::vector<Weight>& external) {
  ModelProto model{.ir_version = kIrVersions[options_.opset - 18],
                   .opsets = {{"", options_.opset}},
                   .producer_name = "tessera",
                   .producer_version = TESSERA_VERSION};
  GraphProto& graph = model.graph.make();
  graph.name = "tessera";
  for (const Made& m : made_) {
    NodeProto& node = graph.nodes.emplace_back(NodeProto{.name = m.name, .op_type = m.op, .attributes = m.attributes});
    node.inputs.assign(m.in.begin(), m.in.end());
    node.outputs.assign(m.out.begin(), m.out.end());
  }
  for (size_t i = 0; i < inputs_.size(); ++i) graph.inputs.push_back(info(inputs_[i], graph_.inputs[i]));
  for (size_t i = 0; i < outputs_.size(); ++i) graph.outputs.push_back(info(outputs_[i], graph_.outputs[i]));
  int64_t all = 0;
  for (const Weight& w : weights_) all += static_cast<int64_t>(bytes_of(w.tensor));
  size_t offset = 0;
  for (const Weight& w : weights_) {
    TensorProto& proto = graph.initializers.emplace_back(weight(w));
    const size_t bytes = bytes_of(w.tensor);
    if (all <= std::min(options_.most_bytes, kMostInFile) || bytes < kExternalBytes) continue;
    const auto keep = [&](std::string text) { return Bytes(texts_.emplace_back(std::move(text))); };
    proto.raw_data = {};
    proto.data_location = 1;
    proto.external_data = {{"location", keep(external_name(file_))},
                           {"offset", keep(std::to_string(offset))},
                           {"length", keep(std::to_string(bytes))}};
    external.push_back(w);
    offset += padded_bytes(bytes);
  }
  return model;
}

// ---- what writers of operators share

std::optional<OpCall::Bytes8> OpCall::bytes(size_t i) const {
  const auto before_cast = [&](int32_t value) -> int32_t {
    const GraphNode* const node = value < 0 ? nullptr : writer_.maker(value);
    if (!node || node->op->name != "cast" || writer_.is_overwritten(node->inputs[0])) return -1;
    const DType dtype = graph_.values[static_cast<size_t>(node->inputs[0])].meta.dtype;
    return dtype == Int8 || dtype == UInt8 ? node->inputs[0] : -1;
  };
  const auto meta = [&](int32_t value) -> const TensorMeta& { return graph_.values[static_cast<size_t>(value)].meta; };
  int32_t given = node_.inputs[i];
  Bytes8 found;
  if (const GraphNode* const pad = given < 0 ? nullptr : writer_.maker(given); pad && pad->op->name == "pad") {
    const auto& a = pad->attrs.as<PadAttrs>();
    if (a.value != 0 || std::any_of(a.low, a.low + 4, [](int64_t n) { return n != 0; }) ||
        std::any_of(a.high, a.high + 4, [](int64_t n) { return n != 0; }))
      return {};
    std::copy(a.low + 4, a.low + 6, found.low);
    std::copy(a.high + 4, a.high + 6, found.high);
    given = pad->inputs[0];
  }
  if (const int32_t plain = before_cast(given); plain >= 0) {
    found.values = writer_.name_of(plain), found.type = meta(plain);
    return found;
  }
  const GraphNode* const less = given < 0 ? nullptr : writer_.maker(given);
  if (!less || less->op->name != "sub") return {};
  const int32_t values = before_cast(less->inputs[0]), zero = before_cast(less->inputs[1]);
  if (values < 0 || zero < 0 || meta(values).dtype != meta(zero).dtype || !(meta(values).shape == meta(given).shape))
    return {};
  found.values = writer_.name_of(values), found.zero = writer_.name_of(zero);
  found.type = meta(values), found.zero_type = meta(zero);
  const Tensor all = writer_.known(zero);
  if (!all.defined() || all.numel() == 0) return found;
  const auto numbers = all.to(cpu()).to_vector<int64_t>();
  if (std::count(numbers.begin(), numbers.end(), numbers[0]) == static_cast<int64_t>(numbers.size()))
    found.same_zero = full({}, static_cast<double>(numbers[0]), all.dtype(), cpu());
  return found;
}

Name OpCall::cast(const Name& x, DType from, DType to) const {
  return from == to || x.empty() ? x : node("Cast", {x}, {integer("to", data_type_of(to))});
}
Name OpCall::number(double value, DType dtype) const { return constant(full({}, value, dtype, cpu())); }
Name OpCall::ints(const std::vector<int64_t>& values) const {
  return constant(tensor(values, {static_cast<int64_t>(values.size())}));
}

Name OpCall::places(Dim size) const {
  const Name end = size.is_symbolic() ? node("Squeeze", {dim(size)}) : number(static_cast<double>(size.value()), Int64);
  return node("Range", {number(0, Int64), end, number(1, Int64)});
}

Name OpCall::sizes(const Shape& shape) const {
  Names parts;
  std::vector<int64_t> known;
  const auto flush = [&] {
    if (!known.empty()) parts.push_back(ints(known));
    known.clear();
  };
  for (const Dim d : shape)
    if (d.is_symbolic()) {
      flush();
      parts.push_back(dim(d));
    } else {
      known.push_back(d.value());
    }
  flush();
  if (parts.empty()) return ints({});
  return parts.size() == 1 ? parts[0] : node("Concat", parts, {integer("axis", 0)});
}

// A size of x stays by 0, and one more may follow from the others.
Name OpCall::reshape(const Name& x, const Shape& from, const Shape& to) const {
  if (from == to) return x;
  std::vector<int64_t> sizes_to;
  bool open = false, computed = false;
  for (int64_t d = 0; d < to.rank(); ++d) {
    const Dim size = to[d];
    if (!size.is_symbolic()) sizes_to.push_back(size.value());
    else if (d < from.rank() && from[d] == size) sizes_to.push_back(0);
    else sizes_to.push_back(-1), computed |= std::exchange(open, true);
    computed |= size == Dim(0);
  }
  if (!computed) return node("Reshape", {x, ints(sizes_to)});
  return node("Reshape", {x, sizes(to)}, {integer("allowzero", 1)});
}

Name OpCall::transpose(const Name& x, const std::vector<int64_t>& order) const {
  return std::is_sorted(order.begin(), order.end()) ? x : node("Transpose", {x}, {integers("perm", order)});
}

Name OpCall::activation(const Name& x, Activation activation, DType dtype) const {
  const auto n = [&](double value) { return number(value, dtype); };
  switch (activation) {
    case Activation::None:
      return x;
    case Activation::Relu:
      return node("Relu", {x});
    case Activation::Tanh:
      return node("Tanh", {x});
    case Activation::Silu:
      return node("Mul", {x, node("Sigmoid", {x})});
    case Activation::GeluErf:
      if (opset() >= 20) return node("Gelu", {x});
      return node("Mul", {node("Mul", {x, n(0.5)}),
                          node("Add", {node("Erf", {node("Mul", {x, n(0.5 * std::numbers::sqrt2)})}), n(1)})});
    default:
      break;
  }
  if (opset() >= 20) return node("Gelu", {x}, {text("approximate", "tanh")});
  // 1 + tanh(u) = 2 sigmoid(2 u), which does not cancel.
  const Name cubic = node("Mul", {node("Mul", {node("Mul", {x, x}), x}), n(0.044715)});
  const Name twice = node("Mul", {node("Add", {x, cubic}), n(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi)});
  return node("Mul", {x, node("Sigmoid", {twice})});
}

}  // namespace tessera::onnx
