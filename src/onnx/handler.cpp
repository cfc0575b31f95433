#include "onnx/handler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/capture_state.h"
#include "onnx/tensors.h"
#include "tessera/autocast.h"

namespace tessera::onnx {

Call::Call(const Step& step, const Frame& frame, Values in) : step_(step), frame_(frame), in_(std::move(in)) {
  if (!frame.options.device.is_gpu()) return;
  for (const Value& v : in_) on_device_ = on_device_ || (v.is_tensor() && v.tensor().device() == frame.options.device);
}

const Value& Call::value(size_t i) const {
  static const Value absent;
  return i < in_.size() ? in_[i] : absent;
}
const Tensor& Call::in(size_t i) const {
  if (!has(i)) fail("input {} is missing", i);
  if (!in_[i].is_tensor()) fail("input {} is no tensor", i);
  if (on_device_ && !in_[i].tensor().device().is_gpu()) in_[i] = in_[i].tensor().to(frame_.options.device);
  return in_[i].tensor();
}
Tensors Call::tensors() const {
  Tensors out;
  for (size_t i = 0; i < in_.size(); ++i) out.push_back(in(i));
  return out;
}
std::vector<int64_t> Call::ints(size_t i) const {
  constexpr int64_t kMost = int64_t{1} << 24;  // a view may repeat one number without end
  if (!has(i)) fail("input {} is missing", i);
  const Tensor& t = in_[i].tensor();
  if (is_floating(t.dtype()) || t.dim() > 1) fail("input {} must be a list of integers, not {}", i, describe(t));
  if (t.numel() > kMost) fail("input {} is a list of {}", i, t.numel());
  const PauseCapture read;  // now, also where the call itself is captured
  return t.to(cpu()).to_vector<int64_t>();
}
int64_t Call::whole(size_t i, int64_t least, int64_t most) const {
  const Tensor& t = in(i);
  if (is_floating(t.dtype()) || t.numel() != 1) fail("input {} must be an integer, not {}", i, describe(t));
  const PauseCapture read;
  const int64_t value = t.item<int64_t>();
  if (value < least || value > most) fail("input {} is {}, not from {} to {}", i, value, least, most);
  return value;
}
std::vector<double> Call::numbers(size_t i) const {
  const PauseCapture read;
  return in(i).to(cpu()).to_vector<double>();
}

const AttributeProto* Call::find(std::string_view name) const {
  for (const AttributeProto& a : step_.attributes)
    if (a.name == name) return &a;
  return nullptr;
}
const AttributeProto* Call::find(std::string_view name, AttributeType type) const {
  const AttributeProto* a = find(name);
  // Files of before IR 2 do not say the type.
  if (a && a->type != type && a->type != 0) fail("attribute {} is of another type", name);
  return a;
}
int64_t Call::integer(std::string_view name, int64_t otherwise) const {
  const AttributeProto* a = find(name, kIntAttribute);
  return a ? a->i : otherwise;
}
double Call::real(std::string_view name, double otherwise) const {
  const AttributeProto* a = find(name, kFloatAttribute);
  return a ? static_cast<double>(a->f) : otherwise;
}
std::string Call::text(std::string_view name, std::string_view otherwise) const {
  const AttributeProto* a = find(name, kStringAttribute);
  return std::string(a ? a->s : otherwise);
}
std::vector<int64_t> Call::integers(std::string_view name, std::vector<int64_t> otherwise) const {
  const AttributeProto* a = find(name, kIntsAttribute);
  return a ? a->ints : otherwise;
}
std::vector<double> Call::reals(std::string_view name, std::vector<double> otherwise) const {
  const AttributeProto* a = find(name, kFloatsAttribute);
  return a ? std::vector<double>(a->floats.begin(), a->floats.end()) : otherwise;
}
std::vector<std::string> Call::texts(std::string_view name) const {
  const AttributeProto* a = find(name, kStringsAttribute);
  return a ? std::vector<std::string>(a->strings.begin(), a->strings.end()) : std::vector<std::string>();
}
Tensor Call::tensor(std::string_view name) const {
  const AttributeProto* a = find(name, kTensorAttribute);
  if (!a || !a->t) fail("attribute {} is missing", name);
  return Source(step_.file, "", nullptr).tensor(*a->t);
}
DType Call::dtype(std::string_view name, DType otherwise) const {
  const AttributeProto* a = find(name, kIntAttribute);
  return a ? required_dtype(a->i, where(step_)) : otherwise;
}

namespace {
const Graph& body_of(const Step& step, std::string_view name) {
  for (const Body& body : step.bodies)
    if (body.name == name) return *body.graph;
  throw Error(fmt::format("{}attribute {} is missing", where(step), name));
}
}  // namespace

Values Call::run(std::string_view graph, const Values& inputs) const {
  const Graph& body = body_of(step_, graph);
  if (inputs.size() > body.inputs.size() || inputs.size() < body.required_inputs)
    fail("the graph {} takes {} inputs, not {}", graph, body.inputs.size(), inputs.size());
  return onnx::run(body, inputs, frame_.options, &frame_);
}
int64_t Call::axis_in(int64_t axis, int64_t rank) const {
  if (axis < -rank || axis >= rank) fail("axis {} is outside of {} dims", axis, rank);
  return axis < 0 ? axis + rank : axis;
}
void Call::check_types() const {
  if (in(0).dtype() != in(1).dtype() && !amp::autocast_enabled(frame_.options.device.type))
    fail("types differ: {} and {}", describe(in(0)), describe(in(1)));
}
bool Call::has_graph(std::string_view name) const {
  return std::any_of(step_.bodies.begin(), step_.bodies.end(), [&](const Body& body) { return body.name == name; });
}
void Call::count_turn() const {
  if (++frame_.turns > frame_.options.loop_limit) fail("loops take more than {} turns", frame_.options.loop_limit);
}
size_t Call::inputs_of(std::string_view graph) const { return body_of(step_, graph).inputs.size(); }

namespace {

using Key = std::pair<std::string_view, std::string_view>;  // domain and operator

const std::multimap<Key, const Entry*>& all_entries() {
  static const std::multimap<Key, const Entry*> all = [] {
    std::multimap<Key, const Entry*> entries;
    for (const auto family : {math_handlers(),
                              shape_handlers(),
                              reduction_handlers(),
                              linear_handlers(),
                              norm_handlers(),
                              index_handlers(),
                              control_handlers(),
                              creation_handlers(),
                              loss_handlers(),
                              quantize_handlers(),
                              attention_handlers(),
                              function_handlers(),
                              order_handlers(),
                              window_handlers(),
                              image_handlers(),
                              recurrent_handlers(),
                              signal_handlers(),
                              feature_handlers(),
                              microsoft_handlers(),
                              microsoft_attention_handlers(),
                              microsoft_quantize_handlers()})
      for (const Entry& entry : family) entries.emplace(Key(entry.domain, entry.op), &entry);
    return entries;
  }();
  return all;
}

}  // namespace

const std::vector<std::string_view>& all_operators() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> out;
    for (const auto& [key, entry] : all_entries())
      if (out.empty() || out.back() != key.second) out.push_back(key.second);
    return out;
  }();
  return names;
}

const Entry* find_handler(std::string_view domain, std::string_view op, int opset) {
  const Entry* best = nullptr;
  const auto [begin, end] = all_entries().equal_range(Key(domain, op));
  for (auto at = begin; at != end; ++at)
    if (at->second->since <= opset && (!best || at->second->since > best->since)) best = at->second;
  return best;
}

}  // namespace tessera::onnx
