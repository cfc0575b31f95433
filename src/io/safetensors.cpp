#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "io/file.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxHeader = 100'000'000;  // as in the reference implementation
constexpr std::string_view kDTypeNames[] = {"BOOL", "U8",  "I8",  "I16",  "U16", "I32", "U32",
                                            "I64",  "U64", "F16", "BF16", "F32", "F64"};

bool find_dtype(const Json& value, DType& dtype) {
  if (!value.is_string()) return false;
  const auto* it = std::find(std::begin(kDTypeNames), std::end(kDTypeNames), value.get_ref<const std::string&>());
  dtype = static_cast<DType>(it - kDTypeNames);
  return it != std::end(kDTypeNames);
}

// Parses without exceptions; refuses duplicate keys and nesting deeper than the format has.
Json parse_header(const std::string& file, const char* text, size_t size) {
  constexpr int kDeepest = 4;
  std::set<std::string> keys[kDeepest + 2];  // of the open object at each depth
  auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kDeepest) throw FileError(file + ": the header is nested too deeply");
    if (event == Json::parse_event_t::object_start) keys[depth + 1].clear();
    if (event == Json::parse_event_t::key && !keys[depth].insert(value.get<std::string>()).second)
      throw FileError(file + ": the key " + in_quotes(value.get_ref<const std::string&>()) + " appears twice");
    return true;
  };
  Json header = Json::parse(text, text + size, watch, /*allow_exceptions=*/false);
  if (!header.is_object()) throw FileError(file + ": the header is not a JSON object");
  return header;
}

Metadata parse_metadata(const std::string& file, const Json& json) {
  Metadata out;
  if (!json.is_object()) throw FileError(file + ": __metadata__ is not an object");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) throw FileError(file + ": metadata " + in_quotes(key) + " is not a string");
    out[key] = value.get<std::string>();
  }
  return out;
}

TensorMeta parse_meta(const std::string& where, const Json& json) {
  TensorMeta meta;
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets"))
    throw FileError(where + "needs exactly dtype, shape and data_offsets");
  if (!find_dtype(json["dtype"], meta.dtype))
    throw FileError(where + "unsupported dtype " + in_quotes(json["dtype"].dump()));
  const Json& shape = json["shape"];
  if (!shape.is_array() || shape.size() > 64) throw FileError(where + "the shape is not a list of at most 64 sizes");
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX)
      throw FileError(where + "size " + in_quotes(size.dump()) + " is not a count");
    meta.shape.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }
  return meta;
}

}  // namespace

bool dense_bytes(const Shape& shape, DType dtype, size_t& bytes) {
  int64_t all = static_cast<int64_t>(size_of(dtype));
  bool empty = false;
  for (Dim d : shape) {  // sizes of 0 count as 1 here, so that strides cannot overflow either
    empty |= d.value() == 0;
    if (__builtin_mul_overflow(all, std::max<int64_t>(d.value(), 1), &all)) return false;
  }
  bytes = empty ? 0 : static_cast<size_t>(all);
  return true;
}

SafeTensors::SafeTensors(const std::string& path) {
  auto file = map_file(path);
  parse(path, file->data, file->size, file);
}

SafeTensors SafeTensors::from_bytes(std::string bytes, std::string name) {
  auto owner = std::make_shared<std::string>(std::move(bytes));
  SafeTensors out;
  out.parse(std::move(name), owner->data(), owner->size(), owner);
  return out;
}

void SafeTensors::parse(std::string name, char* data, size_t size, std::shared_ptr<void> owner) {
  name_ = std::move(name);
  data_ = data;
  size_ = size;
  owner_ = std::move(owner);
  if (size < 8) throw FileError(fmt::format("{}: {} bytes are too few for a safetensors file", name_, size));
  uint64_t header_size;
  std::memcpy(&header_size, data, 8);
  if (header_size > size - 8 || header_size > kMaxHeader)
    throw FileError(fmt::format("{}: a header of {} bytes in a file of {}: not safetensors, or truncated", name_,
                                header_size, size));
  data_begin_ = 8 + header_size;
  const size_t data_size = size - data_begin_;
  const Json header = parse_header(name_, data + 8, header_size);
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      metadata_ = parse_metadata(name_, value);
      continue;
    }
    const std::string where = fmt::format("{}: tensor {}: ", name_, in_quotes(key));
    Entry entry{parse_meta(where, value)};
    const Json& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned())
      throw FileError(where + "data_offsets are not two counts");
    const uint64_t begin = offsets[0], end = offsets[1];
    if (begin > end || end > data_size)
      throw FileError(fmt::format("{}offsets {} to {} leave the data of {} bytes", where, begin, end, data_size));
    size_t bytes;
    if (!dense_bytes(entry.meta.shape, entry.meta.dtype, bytes) || bytes != end - begin)
      throw FileError(fmt::format("{}{}{} does not take {} bytes", where, tessera::name(entry.meta.dtype),
                                  to_string(entry.meta.shape), end - begin));
    entry.begin = data_begin_ + begin;
    entry.end = data_begin_ + end;
    entries_.emplace(key, std::move(entry));
  }
  check_layout();
}

// The tensors must cover the data once, without overlaps or holes.
void SafeTensors::check_layout() const {
  std::vector<std::pair<const Entry*, const std::string*>> order;
  for (const auto& [key, entry] : entries_) order.push_back({&entry, &key});
  std::sort(order.begin(), order.end(), [](auto& a, auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  size_t at = data_begin_;
  for (auto [entry, key] : order) {
    if (entry->begin != at)
      throw FileError(fmt::format("{}: {} tensor {}", name_, entry->begin < at ? "an overlap at" : "a hole before",
                                  in_quotes(*key)));
    at = entry->end;
  }
  if (at != size_) throw FileError(fmt::format("{}: {} bytes after the last tensor", name_, size_ - at));
}

const SafeTensors::Entry& SafeTensors::find(std::string_view name) const {
  auto it = entries_.find(name);
  if (it == entries_.end()) throw FileError(fmt::format("{}: no tensor {}", name_, in_quotes(name)));
  return it->second;
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> out;
  for (const auto& [key, entry] : entries_) out.push_back(key);
  return out;
}

TensorMeta SafeTensors::meta(std::string_view name) const { return find(name).meta; }

Tensor SafeTensors::tensor(std::string_view name) const {
  const Entry& entry = find(name);
  char* data = data_ + entry.begin;
  if (entry.meta.dtype == Bool && std::any_of(data, data_ + entry.end, [](char c) { return c != 0 && c != 1; }))
    throw FileError(fmt::format("{}: tensor {}: bool elements that are neither 0 nor 1", name_, in_quotes(name)));
  if (reinterpret_cast<uintptr_t>(data) % size_of(entry.meta.dtype) == 0)
    return from_memory(data, entry.meta.shape, entry.meta.dtype, owner_);
  Tensor copy = empty(entry.meta.shape, entry.meta.dtype);
  std::memcpy(copy.data_ptr(), data, entry.end - entry.begin);
  return copy;
}

StateDict SafeTensors::tensors() const {
  StateDict out;
  for (const auto& [key, entry] : entries_) out.emplace(key, tensor(key));
  return out;
}

StateDict load_safetensors(const std::string& path) { return SafeTensors(path).tensors(); }

NamedTensors aligned_order(const StateDict& tensors) {
  NamedTensors out(tensors.begin(), tensors.end());
  std::stable_sort(out.begin(), out.end(),
                   [](auto& a, auto& b) { return size_of(a.second.dtype()) > size_of(b.second.dtype()); });
  return out;
}

std::string safetensors_header(const NamedTensors& tensors, const Metadata& metadata) {
  Json header = Json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  size_t at = 0;
  for (const auto& [key, t] : tensors) {
    Json shape = Json::array();
    for (Dim d : t.shape()) shape.push_back(d.value());
    const size_t end = at + bytes_of(t);
    header[key] = {{"dtype", kDTypeNames[static_cast<int>(t.dtype())]}, {"shape", shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw Error("save_safetensors: a name or a metadata value is not UTF-8");
  }
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  if (text.size() > kMaxHeader) throw Error("save_safetensors: the header exceeds 100 MB");
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text;
}

Tensor dense_on_host(const Tensor& tensor) {
  const Tensor host = tensor.device() == cpu() ? tensor : tensor.to(cpu());
  return host.is_contiguous() ? host : host.contiguous();
}

void save_safetensors(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  if (tensors.contains("__metadata__")) throw Error("save_safetensors: no tensor can be called __metadata__");
  const NamedTensors order = aligned_order(tensors);
  AtomicFile file(path);
  const std::string header = safetensors_header(order, metadata);
  file.write(header.data(), header.size());
  for (const auto& [key, t] : order) file.write(dense_on_host(t).place(), bytes_of(t));
  file.commit();
}

}  // namespace tessera
