#include "onnx/tensors.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <filesystem>

#include "io/safetensors.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

constexpr std::string_view kTypeNames[] = {
    "undefined", "float",      "uint8",      "int8",         "uint16",         "int16",      "int32",
    "int64",     "string",     "bool",       "float16",      "double",         "uint32",     "uint64",
    "complex64", "complex128", "bfloat16",   "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
    "uint4",     "int4",       "float4e2m1", "float8e8m0",   "uint2",          "int2"};
constexpr int64_t kDataTypes[] = {kBool,  kUInt8,  kInt8,    kInt16,    kUInt16, kInt32, kUInt32,
                                  kInt64, kUInt64, kFloat16, kBFloat16, kFloat,  kDouble};

// What few numbers may become: bytes in any case, and how many zeros for each.
constexpr size_t kLargestOfFew = size_t{64} << 20, kMostZeros = 1000;

// Sizes of one tensor, checked.
Shape shape_from(const std::vector<int64_t>& dims, const std::string& where) {
  if (dims.size() > 64) throw FileError(fmt::format("{}{} dims are too many", where, dims.size()));
  for (const int64_t d : dims)
    if (d < 0) throw FileError(fmt::format("{}a size of {}", where, d));
  return Shape(std::span<const int64_t>(dims));
}

template <class To, class From>
void convert(const std::vector<From>& from, Tensor& to) {
  To* const out = static_cast<To*>(to.data_ptr());
  for (size_t i = 0; i < from.size(); ++i) out[i] = static_cast<To>(from[i]);
}

// From one of the lists of numbers, of which each holds several types.
Tensor from_numbers(const TensorProto& proto, const Shape& shape, DType dtype, const std::string& where) {
  const auto count = [&]() -> size_t {
    switch (dtype) {
      case Float32:
        return proto.float_data.size();
      case Float64:
        return proto.double_data.size();
      case Int64:
        return proto.int64_data.size();
      case UInt32:
      case UInt64:
        return proto.uint64_data.size();
      default:
        return proto.int32_data.size();
    }
  }();
  if (count != static_cast<size_t>(shape.numel().value()))
    throw FileError(fmt::format("{}{} elements, of shape {}", where, count, to_string(shape)));
  Tensor out = empty_host(shape, dtype);
  switch (dtype) {
    case Float32:
      convert<float>(proto.float_data, out);
      break;
    case Float64:
      convert<double>(proto.double_data, out);
      break;
    case Int64:
      convert<int64_t>(proto.int64_data, out);
      break;
    case UInt64:
      convert<uint64_t>(proto.uint64_data, out);
      break;
    case Int32:
      convert<int32_t>(proto.int32_data, out);
      break;
    case UInt32:
      convert<uint32_t>(proto.uint64_data, out);
      break;
    case Int16:
    case UInt16:
    case Float16:
    case BFloat16:
      convert<uint16_t>(proto.int32_data, out);
      break;  // their bits
    case Bool:
      for (size_t i = 0; i < count; ++i) out.data<bool>()[i] = proto.int32_data[i] != 0;
      break;
    default:
      convert<uint8_t>(proto.int32_data, out);
      break;
  }
  return out;
}

}  // namespace

std::string type_name(int64_t data_type) {
  if (data_type >= 0 && static_cast<size_t>(data_type) < std::size(kTypeNames))
    return std::string(kTypeNames[data_type]);
  return fmt::format("type {}", data_type);
}

std::optional<DType> dtype_from(int64_t data_type) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (kDataTypes[i] == data_type) return static_cast<DType>(i);
  return {};
}
int64_t data_type_of(DType dtype) { return kDataTypes[static_cast<int>(dtype)]; }

DType required_dtype(int64_t data_type, const std::string& where) {
  if (const auto dtype = dtype_from(data_type)) return *dtype;
  throw Unsupported(fmt::format("{}elements of {} are not supported", where, type_name(data_type)));
}

Tensor Source::tensor(const TensorProto& proto) {
  const std::string where = fmt::format("{}: tensor {}: ", file_, in_quotes(proto.name));
  const Shape shape = shape_from(proto.dims, where);
  const DType dtype = required_dtype(proto.data_type, where);
  size_t bytes;
  if (!dense_bytes(shape, dtype, bytes)) throw FileError(fmt::format("{}a shape of {}", where, to_string(shape)));
  Located at{proto.raw_data, owner_, mapped_};
  if (proto.data_location == 1) at = external(proto, where);
  else if (!proto.raw_data.data()) return from_numbers(proto, shape, dtype, where);
  if (at.bytes.size() != bytes)
    throw FileError(fmt::format("{}{} bytes, of {}{}", where, at.bytes.size(), name(dtype), to_string(shape)));
  if (dtype == Bool)
    for (const char c : at.bytes)
      if (c != 0 && c != 1) throw FileError(fmt::format("{}a bool that is {}", where, static_cast<int>(c)));
  char* const data = const_cast<char*>(at.bytes.data());  // a private mapping: writes do not reach the file
  constexpr size_t kFewBytes = size_t{1} << 20;           // not worth a call of the system
  const auto release = [file = at.mapped, owner = at.owner, data, bytes](void*) { file->release_pages(data, bytes); };
  const bool gives_back = at.mapped && bytes >= kFewBytes;
  if (at.owner && reinterpret_cast<uintptr_t>(data) % size_of(dtype) == 0)
    return from_memory(data, shape, dtype, gives_back ? std::shared_ptr<void>(data, release) : at.owner);
  Tensor out = empty_host(shape, dtype);
  if (bytes) std::memcpy(out.data_ptr(), data, bytes);
  if (gives_back) release(nullptr);
  return out;
}

Source::Located Source::external(const TensorProto& proto, const std::string& where) {
  std::string location;
  uint64_t offset = 0, length = 0;
  bool has_length = false;
  const auto number = [&](Bytes text, uint64_t& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (error != std::errc() || end != text.data() + text.size())
      throw FileError(fmt::format("{}{} is no count of bytes", where, in_quotes(text)));
  };
  for (const StringPair& pair : proto.external_data) {
    if (pair.key == "location") location = pair.value;
    else if (pair.key == "offset") number(pair.value, offset);
    else if (pair.key == "length") number(pair.value, length), has_length = true;
  }
  namespace fs = std::filesystem;
  if (folder_.empty() || location.empty()) throw FileError(where + "its data lies in another file, which is not named");
  std::error_code broken;  // names that are too long, links in a circle
  const fs::path folder = fs::weakly_canonical(folder_, broken);
  const fs::path path = broken ? fs::path() : fs::weakly_canonical(folder / location, broken);
  if (broken || location.find('\0') != location.npos)
    throw FileError(fmt::format("{}its data lies in {}, which is no file", where, in_quotes(location)));
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  if (fs::path(location).is_absolute() || end != folder.end() || rest == path.end())
    throw FileError(fmt::format("{}its data lies outside of the model's folder, in {}", where, in_quotes(location)));
  auto& file = others_[path.string()];
  if (!file) file = map_file(path.string());
  if (offset > file->size) throw FileError(fmt::format("{}begins behind the end of {}", where, in_quotes(location)));
  if (!has_length) {
    size_t bytes = 0;
    (void)dense_bytes(shape_from(proto.dims, where), required_dtype(proto.data_type, where), bytes);
    length = bytes;
  }
  if (length > file->size - offset)
    throw FileError(fmt::format("{}ends behind the end of {}", where, in_quotes(location)));
  return {Bytes(file->data + offset, length), file, file.get()};
}

Tensor Source::tensor(const SparseTensorProto& proto) {
  const std::string where =
      fmt::format("{}: sparse tensor {}: ", file_, in_quotes(proto.values ? proto.values->name : ""));
  if (!proto.values || !proto.indices) throw FileError(where + "values or indices are missing");
  const Tensor values = tensor(*proto.values), indices = tensor(*proto.indices);
  const Shape shape = shape_from(proto.dims, where);
  size_t bytes;
  const size_t most = std::max(kLargestOfFew, bytes_of(values) * kMostZeros);
  if (!dense_bytes(shape, values.dtype(), bytes) || bytes > most)
    throw FileError(fmt::format("{}a shape of {}", where, to_string(shape)));
  if (values.dim() != 1 || indices.dtype() != Int64 || indices.dim() < 1 || indices.dim() > 2 ||
      indices.size(0) != values.size(0) || (indices.dim() == 2 && indices.size(1) != shape.rank()))
    throw FileError(where + "indices do not fit the values");
  std::vector<int64_t> flat(static_cast<size_t>(values.numel()));
  const std::vector<int64_t> all = indices.to_vector<int64_t>();
  for (size_t i = 0; i < flat.size(); ++i) {
    if (indices.dim() == 1) flat[i] = all[i];
    else
      for (int64_t d = 0; d < shape.rank(); ++d) {
        const int64_t at = all[i * static_cast<size_t>(shape.rank()) + static_cast<size_t>(d)];
        if (at < 0 || at >= shape[d].value()) throw FileError(fmt::format("{}index {} is outside", where, at));
        flat[i] = flat[i] * shape[d].value() + at;
      }
    if (flat[i] < 0 || flat[i] >= shape.numel().value())
      throw FileError(fmt::format("{}index {} is outside", where, flat[i]));
  }
  Tensor out = empty_host(shape, values.dtype());  // memory, also while a function is captured
  if (bytes) std::memset(out.data_ptr(), 0, bytes);
  const size_t size = size_of(values.dtype());
  const Tensor dense = values.contiguous();
  for (size_t i = 0; i < flat.size(); ++i)
    std::memcpy(static_cast<char*>(out.data_ptr()) + static_cast<size_t>(flat[i]) * size,
                static_cast<const char*>(dense.data_ptr()) + i * size, size);
  return out;
}

}  // namespace tessera::onnx
