#include "core/attrs.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/element.h"

namespace tessera {
namespace {

constexpr std::string_view kActivations[] = {"none", "relu", "gelu_tanh", "gelu_erf", "silu", "tanh"};
constexpr std::string_view kReductions[] = {"none", "mean", "sum"};

template <class E, size_t n>
bool assign_choice(E& member, const AttrValue& value, const std::string_view (&names)[n]) {
  const std::string* text = std::get_if<std::string>(&value);
  const auto* found = text ? std::find(names, names + n, *text) : names + n;
  if (found == names + n) return false;
  member = static_cast<E>(found - names);
  return true;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

[[noreturn]] void refuse(AttrKind kind, std::string_view text) {
  throw Error(fmt::format("'{}' is no {}", text.substr(0, 80), name(kind)));
}

template <class T>
T parse_number(AttrKind kind, std::string_view text) {
  T value{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || text.empty()) refuse(kind, text);
  return value;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text)
    if (c == '"' || c == '\\') out += {'\\', c};
    else if (c == '\n') out += "\\n";
    else out += c;
  return out + '"';
}
std::string unquoted(std::string_view text) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return std::string(text);  // a name may stand bare
  std::string out;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == '\\' && i + 2 < text.size()) ++i, out += text[i] == 'n' ? '\n' : text[i];
    else out += text[i];
  }
  return out;
}

std::vector<std::string_view> parse_list(AttrKind kind, std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') refuse(kind, text);
  return split_list(text.substr(1, text.size() - 2));
}

// The elements of a tensor on the host, in row-major order, each as a number of the widest type of its kind.
template <class Fn>
void for_elements(const Tensor& t, Fn&& fn) {
  if (t.device() != cpu())
    throw Error(fmt::format("a tensor attribute lies on the host, not on {}", to_string(t.device())));
  with_element_type(t.dtype(), [&]<class T>(T*) {
    using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    const T* const elements = static_cast<const T*>(t.data_ptr());
    SmallVector<int64_t, 8> index(static_cast<size_t>(t.dim()), 0);
    for (int64_t i = 0; i < t.numel(); ++i) {
      int64_t at = 0;
      for (int64_t d = 0; d < t.dim(); ++d) at += index[d] * t.strides()[d];
      if constexpr (std::is_integral_v<T>) fn(static_cast<Wide>(elements[at]));
      else fn(static_cast<Wide>(static_cast<double>(elements[at])));
      for (int64_t d = t.dim() - 1; d >= 0 && ++index[d] == t.size(d); --d) index[d] = 0;
    }
  });
}

// tensor(f32[2, 3], 1, 2, ...)
std::string tensor_text(const Tensor& t) {
  if (!t.defined()) return "none";
  std::string text = fmt::format("tensor({}{}", name(t.dtype()), to_string(t.shape()));
  for_elements(t, [&](auto v) { text += fmt::format(", {}", v); });
  return text + ")";
}
Tensor parse_tensor(std::string_view text) {
  if (text == "none") return {};
  constexpr std::string_view opening = "tensor(";
  if (!text.starts_with(opening) || text.back() != ')') refuse(AttrKind::Tensor, text);
  const auto items = split_list(text.substr(opening.size(), text.size() - opening.size() - 1));
  const auto bracket = items.empty() ? std::string_view::npos : items[0].find('[');
  if (bracket == std::string_view::npos) refuse(AttrKind::Tensor, text);
  const DType dtype = parse_dtype(items[0].substr(0, bracket));
  const Shape shape = std::get<DimList>(parse_attr(AttrKind::Shape, items[0].substr(bracket))).shape();
  if (shape.is_symbolic() || !(shape.numel() == Dim(static_cast<int64_t>(items.size()) - 1)))
    throw Error(fmt::format("a tensor of shape {} with {} elements", to_string(shape), items.size() - 1));
  Tensor t = empty_host(shape, dtype);
  with_element_type(dtype, [&]<class T>(T*) {
    using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    T* const elements = static_cast<T*>(t.data_ptr());
    for (size_t i = 1; i < items.size(); ++i)
      elements[i - 1] = static_cast<T>(parse_number<Wide>(AttrKind::Float, items[i]));
  });
  return t;
}

}  // namespace

std::string_view name(AttrKind kind) {
  constexpr std::string_view names[] = {"bool",   "int",          "float", "dim",    "text",  "dtype",
                                        "device", "list of ints", "shape", "tensor", "object"};
  return names[static_cast<int>(kind)];
}

std::string to_text(const AttrValue& value) {
  switch (static_cast<AttrKind>(value.index())) {
    case AttrKind::Bool:
      return std::get<bool>(value) ? "true" : "false";
    case AttrKind::Int:
      return std::to_string(std::get<int64_t>(value));
    case AttrKind::Float:
      return fmt::format("{}", std::get<double>(value));
    case AttrKind::Dim:
      return std::get<Dim>(value).to_string();
    case AttrKind::Text:
      return quoted(std::get<std::string>(value));
    case AttrKind::DType:
      return std::string(name(std::get<DType>(value)));
    case AttrKind::Device:
      return to_string(std::get<Device>(value));
    case AttrKind::Ints:
      return fmt::format("[{}]", fmt::join(std::get<IntList>(value), ", "));
    case AttrKind::Shape:
      return to_string(std::get<DimList>(value).shape());
    case AttrKind::Tensor:
      return tensor_text(std::get<Tensor>(value));
    case AttrKind::Object:
      break;
  }
  const auto& object = std::get<Ref<AttrObject>>(value);
  return object ? object->text() : "none";
}

AttrValue parse_attr(AttrKind kind, std::string_view text) {
  text = trimmed(text);
  switch (kind) {
    case AttrKind::Bool:
      if (text != "true" && text != "false") refuse(kind, text);
      return text == "true";
    case AttrKind::Int:
      return parse_number<int64_t>(kind, text);
    case AttrKind::Float:
      return parse_number<double>(kind, text);
    case AttrKind::Dim:
      return Dim::parse(text);
    case AttrKind::Text:
      return unquoted(text);
    case AttrKind::DType:
      return parse_dtype(text);
    case AttrKind::Device:
      return parse_device(text);
    case AttrKind::Ints: {
      IntList list;
      for (std::string_view item : parse_list(kind, text)) list.push_back(parse_number<int64_t>(AttrKind::Int, item));
      return list;
    }
    case AttrKind::Shape: {
      Shape shape;
      for (std::string_view item : parse_list(kind, text)) shape.push_back(Dim::parse(item));
      return DimList(shape);
    }
    case AttrKind::Tensor:
      return parse_tensor(text);
    case AttrKind::Object:
      break;
  }
  if (text != "none") throw Error(fmt::format("an object cannot be read from text: '{}'", text.substr(0, 80)));
  return Ref<AttrObject>();
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> items;
  std::string open;  // brackets
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
      if (i >= text.size()) throw Error("a quotation that does not end");
    } else if (c == '(' || c == '[' || c == '{') {
      open += c;
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != (c == ')' ? '(' : static_cast<char>(c - 2)))
        throw Error(fmt::format("'{}' closes nothing", c));
      open.pop_back();
    } else if (c == ',' && open.empty()) {
      items.push_back(trimmed(text.substr(begin, i - begin)));
      begin = i + 1;
    }
  }
  if (!open.empty()) throw Error(fmt::format("'{}' is not closed", open.back()));
  const std::string_view last = trimmed(text.substr(begin));
  if (!last.empty() || !items.empty()) items.push_back(last);
  return items;
}
std::vector<std::string_view> split_names(std::string_view names) { return split_list(names); }

// ---- members as values

bool AttrTraits<double>::assign(double& member, const AttrValue& value) {
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return member = static_cast<double>(*whole), true;
  const double* same = std::get_if<double>(&value);
  return same && (member = *same, true);
}
bool AttrTraits<Dim>::assign(Dim& member, const AttrValue& value) {
  if (const int64_t* whole = std::get_if<int64_t>(&value)) return member = Dim(*whole), true;
  const Dim* same = std::get_if<Dim>(&value);
  return same && (member = *same, true);
}
bool AttrTraits<DimList>::assign(DimList& member, const AttrValue& value) {
  if (const IntList* list = std::get_if<IntList>(&value))
    return member = DimList(Shape(std::span<const int64_t>(list->begin(), list->size()))), true;
  const DimList* same = std::get_if<DimList>(&value);
  return same && (member = *same, true);
}
bool AttrTraits<Tensor>::assign(Tensor& member, const AttrValue& value) {
  const Tensor* same = std::get_if<Tensor>(&value);
  return same && (member = *same, true);
}
bool AttrTraits<Tensor>::equal(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || same(a, b)) return a.defined() == b.defined();
  const bool readable = a.device() == cpu() && b.device() == cpu();  // elsewhere only one tensor is equal to itself
  return readable && a.dtype() == b.dtype() && a.shape() == b.shape() && tensor_text(a) == tensor_text(b);
}
bool AttrTraits<Ref<AttrObject>>::assign(Ref<AttrObject>& member, const AttrValue& value) {
  const auto* same = std::get_if<Ref<AttrObject>>(&value);
  return same && (member = *same, true);
}
AttrValue AttrTraits<Activation>::value(Activation member) {
  return std::string(kActivations[static_cast<int>(member)]);
}
bool AttrTraits<Activation>::assign(Activation& member, const AttrValue& value) {
  return assign_choice(member, value, kActivations);
}
AttrValue AttrTraits<Reduction>::value(Reduction member) { return std::string(kReductions[static_cast<int>(member)]); }
bool AttrTraits<Reduction>::assign(Reduction& member, const AttrValue& value) {
  return assign_choice(member, value, kReductions);
}

// ---- Attrs

Attrs::Attrs() : Attrs(NoAttrs{}) {}

void Attrs::throw_other() { throw Error("operator got the parameters of another operator"); }

void* Attrs::writable_address() {
  if (type_->small) return data_;
  if (!box().unique()) box() = box()->clone();
  return box()->address();
}

const AttrField& Attrs::field(std::string_view name) const {
  std::string known;
  for (const AttrField& f : type().fields) {
    if (f.name == name) return f;
    known += (known.empty() ? "" : ", ") + std::string(f.name);
  }
  throw Error(fmt::format("no attribute '{}', {}", name, known.empty() ? "there are none" : "of: " + known));
}

std::string Attrs::describe() const {
  const AttrsType& t = type();
  std::string text;
  for (const AttrField& f : t.fields)
    if (!f.equal(address(), t.defaults, f.index))
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", f.name, to_text(f.get(address(), f.index)));
  return text;
}

bool operator==(const Attrs& a, const Attrs& b) {
  if (a.type_ != b.type_) return false;
  if (&a.type() != &b.type()) return false;
  const auto& fields = a.type().fields;
  return std::all_of(fields.begin(), fields.end(),
                     [&](const AttrField& f) { return f.equal(a.address(), b.address(), f.index); });
}

AttrValue Attrs::get(std::string_view name) const {
  const AttrField& f = field(name);
  return f.get(address(), f.index);
}

void Attrs::set(std::string_view name, const AttrValue& value) {
  const AttrField& f = field(name);
  if (!f.set(writable_address(), f.index, value))
    throw Error(f.count ? fmt::format("'{}' is a list of {} ints, not {}", name, f.count, to_text(value))
                        : fmt::format("'{}' is of kind {}, and {} is none it takes", name, tessera::name(f.kind),
                                      to_text(value)));
}

void Attrs::set_text(std::string_view name, std::string_view text) {
  const AttrKind kind = field(name).kind;
  AttrValue value;
  try {
    value = parse_attr(kind, text);
  } catch (const Error& e) {
    throw Error(fmt::format("attribute '{}': {}", name, e.what()));
  }
  set(name, value);
}

void Attrs::read(std::string_view text) {
  std::vector<std::string_view> seen;
  for (std::string_view item : split_list(text)) {
    const auto sign = item.find('=');
    if (sign == item.npos) throw Error(fmt::format("'{}' is no attribute: name=value is", item.substr(0, 80)));
    const std::string_view name = trimmed(item.substr(0, sign));
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      throw Error(fmt::format("attribute '{}' stands twice", name));
    seen.push_back(name);
    set_text(name, item.substr(sign + 1));
  }
}

}  // namespace tessera
