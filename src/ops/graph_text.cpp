// Graphs read back from text. Nothing is trusted: each line must be what its operator's `infer` says.
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "core/symbols.h"
#include "ops/capture.h"
#include "ops/op_table.h"
#include "ops/schema.h"

namespace tessera {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// Where the bracket at `open` closes, quotations skipped.
size_t closing(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth;
    } else if (c == ')' || c == ']' || c == '}') {
      if (--depth == 0) return i;
    }
  }
  throw Error(fmt::format("'{}' is not closed", text[open]));
}

class GraphReader {
 public:
  explicit GraphReader(std::string_view text) : text_(text) {}

  Ref<Graph> read() {
    try {
      header();
      for (std::string_view at = line(); !at.starts_with("return"); at = line()) node(at);
      graph_->outputs = values(trimmed(line_.substr(6)));
      if (line() != "}") throw Error("the graph ends with '}'");
      if (!trimmed(rest()).empty()) throw Error("something follows the graph");
    } catch (const Error& e) {
      throw Error(fmt::format("graph, line {}: {}", number_, e.what()));
    }
    return std::move(graph_);
  }

 private:
  std::string_view rest() const {
    std::string_view left = text_.substr(std::min(at_, text_.size()));
    while (left.ends_with('\n')) left.remove_suffix(1);
    return left;
  }

  // The next line that is not empty; brackets in it may reach over several.
  std::string_view line() {
    while (true) {
      if (at_ >= text_.size()) throw Error("the text ends within the graph");
      ++number_;
      const auto end = std::min(text_.find('\n', at_), text_.size());
      line_ = trimmed(text_.substr(at_, end - at_));
      at_ = end + 1;
      if (!line_.empty()) return line_;
    }
  }

  void header() {
    const std::string_view first = line();
    const size_t open = std::string_view("graph").size();
    if (!first.starts_with("graph(") || !first.ends_with(" {")) throw Error("a graph begins with 'graph(...) {'");
    const size_t close = closing(first, open);
    declare_symbols(trimmed(first.substr(close + 1, first.size() - close - 2)));
    for (std::string_view input : split_list(first.substr(open + 1, close - open - 1))) {
      const auto on = input.rfind(" on ");
      if (on == input.npos) throw Error(fmt::format("'{}' names no device", input));
      const Device device = parse_device(trimmed(input.substr(on + 4)));
      graph_->inputs.push_back(declare(input.substr(0, on), device));
    }
  }

  // "where n in [0, 12], m in [1, inf]", or nothing.
  void declare_symbols(std::string_view text) {
    Symbols bounded;
    if (!text.empty()) {
      if (!text.starts_with("where ")) throw Error(fmt::format("'{}' follows the inputs", text.substr(0, 80)));
      for (std::string_view bounds : split_list(text.substr(6))) {
        const size_t before = bounded.all().size();
        bounded.add(parse_bounds(bounds));
        if (bounded.all().size() == before) throw Error(fmt::format("'{}' stands twice", bounds));
      }
    }
    names_.emplace(bounded.all());
  }

  // "%3: f32[2, batch]{6, 1}", the next value.
  int32_t declare(std::string_view text, Device device) {
    const auto colon = text.find(':');
    const int32_t value = number(trimmed(text.substr(0, colon)));
    if (colon == text.npos || value != static_cast<int32_t>(graph_->values.size()))
      throw Error(fmt::format("'{}' does not declare %{}", text, graph_->values.size()));
    const std::string_view type = trimmed(text.substr(colon + 1));
    const auto bracket = type.find('[');
    if (bracket == type.npos) throw Error(fmt::format("'{}' is no type", type));
    const size_t end = closing(type, bracket);
    GraphValue v;
    v.meta.dtype = parse_dtype(type.substr(0, bracket));
    v.meta.shape = std::get<DimList>(parse_attr(AttrKind::Shape, type.substr(bracket, end + 1 - bracket))).shape();
    v.meta.device = device;
    for (const Dim d : v.meta.shape)
      if (!d.is_symbolic() && d.value() < 0) throw Error(fmt::format("a negative size in '{}'", type));
    std::string_view rest = type.substr(end + 1);
    if (rest.starts_with('<')) {
      const auto closed = rest.find('>');
      if (closed == rest.npos || closed == 1) throw Error(fmt::format("'{}' names no layout", rest));
      v.meta.packing = packing_named(rest.substr(1, closed - 1));
      rest = rest.substr(closed + 1);
    }
    if (!rest.empty()) read_strides(rest, v);
    graph_->values.push_back(std::move(v));
    return value;
  }

  void read_strides(std::string_view text, GraphValue& v) {
    if (!text.starts_with('{') || !text.ends_with('}')) throw Error(fmt::format("'{}' are no strides", text));
    for (std::string_view item : split_list(text.substr(1, text.size() - 2))) v.strides.push_back(Dim::parse(item));
    if (v.strides.size() != v.meta.shape.size())
      throw Error(fmt::format("{} strides for shape {}", v.strides.size(), to_string(v.meta.shape)));
  }

  // "%3", or "none": -1
  static int32_t number(std::string_view text) {
    if (text == "none") return -1;
    int32_t value = -1;
    if (!text.starts_with('%')) throw Error(fmt::format("'{}' is no value", text.substr(0, 40)));
    const auto [end, fault] = std::from_chars(text.data() + 1, text.data() + text.size(), value);
    if (fault != std::errc() || end != text.data() + text.size() || value < 0)
      throw Error(fmt::format("'{}' is no value", text.substr(0, 40)));
    return value;
  }
  template <class List = std::vector<int32_t>>
  List values(std::string_view text) const {
    List list;
    for (std::string_view item : split_list(text)) {
      const int32_t value = number(item);
      if (value >= static_cast<int32_t>(graph_->values.size())) throw Error(fmt::format("{} is not there yet", item));
      list.push_back(value);
    }
    return list;
  }

  // "%5: f32[4, 3], none = softmax(%4) dim=1"
  void node(std::string_view text) {
    const auto sign = text.find(" = ");
    if (sign == text.npos) throw Error(fmt::format("'{}' is no operation", text.substr(0, 80)));
    const std::string_view call = text.substr(sign + 3);
    const auto open = call.find('(');
    if (open == call.npos) throw Error(fmt::format("'{}' calls nothing", call.substr(0, 80)));
    const size_t close = closing(call, open);
    GraphNode made;
    made.op = &find_op(call.substr(0, open));
    made.inputs = values<decltype(made.inputs)>(call.substr(open + 1, close - open - 1));
    made.attrs = read_attrs(*made.op, trimmed(call.substr(close + 1)));
    const Metas metas = infer(made);
    const auto declared = split_list(text.substr(0, sign));
    if (declared.size() != metas.size())
      throw Error(fmt::format("{} has {} outputs, not {}", made.op->name, metas.size(), declared.size()));
    const size_t written = made.op->in_place ? metas.size() - made.op->hidden_outputs : 0;
    const size_t before = graph_->values.size();
    SymbolValues count;
    for (size_t i = 0; i < metas.size(); ++i)
      made.outputs.push_back(output(declared[i], metas[i], made, i, i < written, before, count));
    graph_->nodes.push_back(std::move(made));
  }

  Metas infer(const GraphNode& node) const {
    require_inputs_of(*node.op, node.inputs.size(), [&](size_t i) { return node.inputs[i] < 0; });
    SmallVector<TensorMeta, 4> in;
    for (const int32_t v : node.inputs) in.push_back(v < 0 ? absent_meta() : meta_of(v));
    return node.op->infer({in.data(), in.size()}, node.attrs);
  }
  const TensorMeta& meta_of(int32_t value) const { return graph_->values[static_cast<size_t>(value)].meta; }

  // What the graph calls an operator's count: a symbol that none of the first `before` values has.
  void name_count(const Shape& inferred, const Shape& declared, const Op& op, size_t before, SymbolValues& count) {
    for (size_t d = 0; d < std::min(inferred.size(), declared.size()); ++d) {
      const Dim wanted = inferred[d], name = declared[d];
      if (!wanted.is_symbol() || !wanted.name().empty() || !(count.of(wanted) == wanted)) continue;
      bool is_new = name.is_symbol() && name.counted_by() == op.name && name.high() == wanted.high();
      for (size_t v = 0; v < before && is_new; ++v)
        for (const Dim size : graph_->values[v].meta.shape)
          for (const Dim symbol : size.symbols()) is_new &= !(symbol == name);
      if (!is_new)
        throw Error(fmt::format("{}: its count must be a new symbol, one '{}', and {} is not", op.name,
                                bounds_text(wanted), name.to_string()));
      count.note({wanted}, {name});
    }
  }

  int32_t output(std::string_view text, const TensorMeta& meta, const GraphNode& node, size_t i, bool in_place,
                 size_t before, SymbolValues& count) {
    if (text == "none") return -1;
    Device device = node.inputs.empty() || node.op->transfers ? meta.device : device_of(node);
    if (in_place) {
      const int32_t same = number(trimmed(text.substr(0, text.find(':'))));
      if (same != node.inputs[i]) throw Error(fmt::format("{} writes its input {}", node.op->name, i));
      return same;
    }
    const int32_t value = declare(text, device);
    if (node.op->count) name_count(meta.shape, meta_of(value).shape, *node.op, before, count);
    const Shape shape = count.of(meta.shape);
    if (!(meta_of(value).shape == shape) || meta_of(value).dtype != meta.dtype ||
        meta_of(value).packing != meta.packing)
      throw Error(fmt::format("{} gives {}{}, not {}{}", node.op->name, name(meta.dtype), to_string(shape),
                              name(meta_of(value).dtype), to_string(meta_of(value).shape)));
    return value;
  }
  Device device_of(const GraphNode& node) const {
    for (const int32_t v : node.inputs)
      if (v >= 0) return meta_of(v).device;
    return cpu();
  }

  std::string_view text_, line_;
  size_t at_ = 0;
  int number_ = 0;
  std::optional<DimNames> names_;
  Ref<Graph> graph_ = make_ref<Graph>();
};

}  // namespace

Ref<Graph> parse_graph(std::string_view text) {
  TemporaryDims dims;  // a text that is refused leaves nothing behind
  Ref<Graph> graph = GraphReader(text).read();
  dims.keep();
  return graph;
}

}  // namespace tessera
