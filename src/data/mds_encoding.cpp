#include "data/mds_encoding.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "io/safetensors.h"
#include "tessera/data.h"

namespace tessera::mds {
namespace {

constexpr size_t kMostBytes = UINT32_MAX;
constexpr size_t kMostDims = 63;

// Elements of arrays: as the column names them, and as an array says of itself.
struct Element {
  std::string_view name;
  uint8_t code;
  DType dtype;
};
constexpr Element kElements[] = {{"uint8", 8, UInt8},  {"int8", 9, Int8},        {"uint16", 16, UInt16},
                                 {"int16", 17, Int16}, {"float16", 18, Float16}, {"uint32", 32, UInt32},
                                 {"int32", 33, Int32}, {"float32", 34, Float32}, {"uint64", 64, UInt64},
                                 {"int64", 65, Int64}, {"float64", 66, Float64}};

template <class Fn>
const Element* find_element(const Fn& fits) {
  for (const Element& e : kElements)
    if (fits(e)) return &e;
  return nullptr;
}
const Element* element_named(std::string_view name) {
  return find_element([&](const Element& e) { return e.name == name; });
}

std::optional<Encoding::Kind> kind_of_bytes(std::string_view text) {
  using enum Encoding::Kind;
  if (text == "jpeg") return Jpeg;
  if (text == "png") return Png;
  if (text == "json") return Json;
  for (const char* name : {"str", "str_int", "str_float", "str_decimal"})
    if (text == name) return Text;
  for (const char* name : {"bytes", "pil", "jpeg_array", "jpegarray", "list[jpeg]", "list[png]", "list[pil]"})
    if (text == name) return Bytes;
  return std::nullopt;
}

Shape parse_sizes(std::string_view text, std::string_view encoding) {
  Shape out;
  while (true) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (error != std::errc() || size < 1 || (!text.empty() && text[0] != ','))
      throw Error(in_quotes(encoding) + " has a shape that is no list of sizes of at least 1");
    out.push_back(size);
    if (out.size() > kMostDims) throw Error(in_quotes(encoding) + " has more than 63 dimensions");
    if (text.empty()) return out;
    text.remove_prefix(1);
  }
}

// "ndarray", "ndarray:DTYPE" or "ndarray:DTYPE:SIZES".
Encoding parse_array(std::string_view text) {
  Encoding out{.kind = Encoding::Array};
  if (text.find(':') == text.npos) return out;
  std::string_view rest = text.substr(text.find(':') + 1);
  const size_t colon = rest.find(':');
  const Element* element = element_named(rest.substr(0, colon));
  if (!element) throw Error(in_quotes(text) + " is of no known element type");
  out.dtype = element->dtype;
  if (colon == rest.npos) return out;
  out.shape = parse_sizes(rest.substr(colon + 1), text);
  size_t bytes;
  if (!dense_bytes(*out.shape, *out.dtype, bytes) || bytes > kMostBytes)
    throw Error(in_quotes(text) + " takes more than 4 GiB");
  out.length = static_cast<uint32_t>(bytes);
  return out;
}

// A text may have zero bytes, which read_text() refuses.
bool is_utf8(std::string_view text) {
  for (size_t at; (at = find_non_text(text)) != text.npos; text.remove_prefix(at + 1))
    if (text[at] != 0) return false;
  return true;
}

template <class E>
void check_bytes(const Encoding& encoding, std::string_view bytes) {
  const bool text = encoding.kind == Encoding::Text || encoding.kind == Encoding::Json;
  if (text && !is_utf8(bytes)) throw E("is not UTF-8");
  if (encoding.kind == Encoding::Jpeg && !bytes.starts_with("\xff\xd8\xff")) throw E("is no JPEG image");
  if (encoding.kind == Encoding::Png && !bytes.starts_with("\x89PNG\r\n\x1a\n")) throw E("is no PNG image");
}

uint8_t log2_bytes(uint64_t size) { return size < 1 << 8 ? 0 : size < 1 << 16 ? 1 : size >> 32 == 0 ? 2 : 3; }

// What an array of no fixed type or shape says before its elements.
void append_array_header(std::string& out, const Encoding& encoding, const Tensor& t) {
  if (!encoding.dtype) {
    const Element* element = find_element([&](const Element& e) { return e.dtype == t.dtype(); });
    if (!element) throw Error(fmt::format("is {}, which arrays of MDS cannot be", name(t.dtype())));
    out += static_cast<char>(element->code);
  }
  if (encoding.shape) return;
  if (t.dim() < 1 || t.dim() > static_cast<int64_t>(kMostDims))
    throw Error(fmt::format("has {} dimensions, an array has 1 to 63", t.dim()));
  uint8_t log2 = 0;
  for (const Dim& size : t.shape()) log2 = std::max(log2, log2_bytes(static_cast<uint64_t>(size.value())));
  out += static_cast<char>(t.dim() << 2 | log2);
  for (const Dim& size : t.shape()) {
    const int64_t value = size.value();
    out.append(reinterpret_cast<const char*>(&value), size_t{1} << log2);
  }
}

void append_tensor(std::string& out, const Encoding& encoding, const Tensor& value) {
  if (encoding.dtype && value.dtype() != *encoding.dtype)
    throw Error(fmt::format("is {}, the column {}", name(value.dtype()), name(*encoding.dtype)));
  if (encoding.kind == Encoding::Number && value.numel() != 1)
    throw Error(fmt::format("is {}, the column has numbers", describe(value)));
  if (encoding.shape && value.shape() != *encoding.shape)
    throw Error(fmt::format("has shape {}, the column {}", to_string(value.shape()), to_string(*encoding.shape)));
  if (value.numel() == 0) throw Error("has no elements, which arrays of MDS cannot be");
  const Tensor host = dense_on_host(value);
  if (encoding.kind == Encoding::Array) append_array_header(out, encoding, host);
  out.append(static_cast<const char*>(host.data_ptr()), bytes_of(host));
}

// Type and shape of an array, taken off the front of `bytes`.
TensorMeta take_array_header(const Encoding& encoding, std::string_view& bytes) {
  const auto take = [&](size_t count) {
    if (bytes.size() < count) throw FileError("ends within the header of an array");
    const std::string_view out = bytes.substr(0, count);
    bytes.remove_prefix(count);
    return out;
  };
  TensorMeta meta;
  if (encoding.dtype) {
    meta.dtype = *encoding.dtype;
  } else {
    const auto code = static_cast<uint8_t>(take(1)[0]);
    const Element* element = find_element([&](const Element& e) { return e.code == code; });
    if (!element) throw FileError(fmt::format("is an array of unknown type {}", code));
    meta.dtype = element->dtype;
  }
  if (encoding.shape) return meta.shape = *encoding.shape, meta;
  const auto head = static_cast<uint8_t>(take(1)[0]);
  const size_t width = size_t{1} << (head & 3);
  for (int d = 0; d < head >> 2; ++d) {
    uint64_t size = 0;
    std::memcpy(&size, take(width).data(), width);
    if (size < 1 || size > kMostBytes) throw FileError(fmt::format("is an array with a dimension of {}", size));
    meta.shape.push_back(static_cast<int64_t>(size));
  }
  return meta;
}

// Of numbers and arrays: what the elements are, whose bytes are left in `bytes`.
TensorMeta take_header(const Encoding& encoding, std::string_view& bytes) {
  TensorMeta meta;
  if (encoding.kind == Encoding::Number) meta.dtype = *encoding.dtype;
  else meta = take_array_header(encoding, bytes);
  size_t wanted;
  if (!dense_bytes(meta.shape, meta.dtype, wanted) || wanted != bytes.size())
    throw FileError(
        fmt::format("is {}{}, which does not take {} bytes", name(meta.dtype), to_string(meta.shape), bytes.size()));
  return meta;
}

bool is_tensor(const Encoding& encoding) { return encoding.kind >= Encoding::Number; }

}  // namespace

Encoding parse_encoding(std::string_view text) {
  if (text == "pkl") throw Error("\"pkl\" is refused: reading a pickle runs what is in it");
  if (const auto kind = kind_of_bytes(text)) return {.kind = *kind};
  const Element* number = element_named(text == "int" ? "int64" : text);
  if (number) {
    const auto length = static_cast<uint32_t>(size_of(number->dtype));
    Encoding out{.kind = Encoding::Number, .dtype = number->dtype, .length = length};
    out.shape.emplace();
    return out;
  }
  if (text == "ndarray" || text.starts_with("ndarray:")) return parse_array(text);
  throw Error(in_quotes(text) + " is no known encoding");
}

void append(std::string& out, const Encoding& encoding, const MdsValue& value) {
  const size_t before = out.size();
  if (is_tensor(encoding)) {
    const Tensor* tensor = std::get_if<Tensor>(&value);
    if (!tensor || !tensor->defined()) throw Error("is no tensor, as the column's encoding wants");
    if (encoding.kind == Encoding::Number && tensor->numel() == 1) append_tensor(out, encoding, tensor->reshape({}));
    else append_tensor(out, encoding, *tensor);
  } else {
    const std::string* bytes = std::get_if<std::string>(&value);
    if (!bytes) throw Error("is a tensor, the column has bytes");
    check_bytes<Error>(encoding, *bytes);
    if (encoding.kind == Encoding::Json && !nlohmann::json::accept(*bytes)) throw Error("is no JSON");
    out += *bytes;
  }
  if (out.size() - before > kMostBytes) throw Error("takes more than 4 GiB");
}

MdsValue decode(const Encoding& encoding, std::string_view bytes) {
  if (!is_tensor(encoding)) return std::string(bytes);
  const TensorMeta meta = take_header(encoding, bytes);
  Tensor out = empty(meta.shape, meta.dtype, cpu());
  std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
  return out;
}

void check(const Encoding& encoding, std::string_view bytes) {
  if (is_tensor(encoding)) take_header(encoding, bytes);
  else check_bytes<FileError>(encoding, bytes);
}

}  // namespace tessera::mds
