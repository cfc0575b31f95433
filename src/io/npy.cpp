// NumPy's array format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "io/file.h"
#include "io/safetensors.h"
#include "tessera/io.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::string_view kDescriptions[] = {"|b1", "|u1", "|i1", "<i2", "<u2", "<i4", "<u4",
                                              "<i8", "<u8", "<f2", "",    "<f4", "<f8"};

// The header is a Python dict of three entries, as {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& file) : rest_(text), file_(file) {}

  struct Header {
    TensorMeta meta;
    bool fortran = false;  // the first dim runs first
  };
  Header parse() {
    Header header;
    auto& [meta, fortran] = header;
    bool descr = false, order = false, shape = false;
    expect("{");
    while (!accept("}")) {
      const std::string_view key = string();
      expect(":");
      if (key == "descr" && !descr) descr = true, meta.dtype = dtype();
      else if (key == "fortran_order" && !order) order = true, fortran = is_fortran();
      else if (key == "shape" && !shape) shape = true, meta.shape = sizes();
      else fail("unexpected " + in_quotes(key));
      if (!accept(",") && !peek("}")) fail("expected , or }");
    }
    if (!descr || !order || !shape || !(skip(), rest_.empty())) fail("needs exactly descr, fortran_order and shape");
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw FileError(fmt::format("{}: bad npy header: {}", file_, why));
  }
  void skip() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  bool peek(std::string_view token) {
    skip();
    return rest_.starts_with(token);
  }
  bool accept(std::string_view token) {
    if (!peek(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail(fmt::format("expected {}", token));
  }
  std::string_view string() {
    const bool single = accept("'");
    if (!single) expect("\"");
    const size_t end = rest_.find(single ? '\'' : '"');
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view out = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return out;
  }
  DType dtype() {
    if (peek("[")) throw FileError(file_ + ": structured arrays are not supported");
    const std::string_view text = string();
    for (int i = 0; i < kDTypeCount; ++i)
      if (text == kDescriptions[i] && !text.empty()) return static_cast<DType>(i);
    throw FileError(fmt::format("{}: elements of type {} are not supported", file_, in_quotes(text)));
  }
  bool is_fortran() {
    if (accept("True")) return true;
    expect("False");
    return false;
  }
  Shape sizes() {
    Shape out;
    expect("(");
    while (!accept(")")) {
      skip();
      int64_t size = 0;
      auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
      if (error != std::errc() || size < 0) fail("a size is not a count");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      out.push_back(size);
      if (out.size() > 64) fail("more than 64 dimensions");
      if (!accept(",") && !peek(")")) fail("expected , or )");
    }
    return out;
  }

  std::string_view rest_;
  const std::string& file_;
};

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& name) {
  if (!bytes.starts_with(kMagic) || bytes.size() < 10) throw FileError(name + ": not an npy file");
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) throw FileError(fmt::format("{}: npy format {} is not supported", name, version));
  const size_t before = version == 1 ? 10 : 12;
  uint32_t header = 0;
  if (bytes.size() >= before) std::memcpy(&header, bytes.data() + 8, before - 8);
  if (bytes.size() < before || header > bytes.size() - before) throw FileError(name + ": truncated npy header");
  const auto [meta, fortran] = HeaderParser(bytes.substr(before, header), name).parse();
  const std::string_view data = bytes.substr(before + header);
  size_t wanted;
  if (!dense_bytes(meta.shape, meta.dtype, wanted) || wanted != data.size())
    throw FileError(fmt::format("{}: {}{} does not take {} bytes", name, tessera::name(meta.dtype),
                                to_string(meta.shape), data.size()));
  if (meta.dtype == Bool)
    for (char c : data)
      if (c != 0 && c != 1) throw FileError(name + ": bool elements that are neither 0 nor 1");
  Shape lies = meta.shape;
  if (fortran) std::reverse(lies.begin(), lies.end());
  const Tensor out = empty(lies, meta.dtype);
  if (wanted) std::memcpy(out.data_ptr(), data.data(), wanted);
  if (!fortran || out.dim() < 2) return out;
  Dims turned;
  for (int64_t d = out.dim(); d-- > 0;) turned.push_back(d);
  return contiguous(permute(out, turned));
}

Tensor load_npy(const std::string& path) {
  auto file = map_file(path);
  return parse_npy({file->data, file->size}, path);
}

void save_npy(const std::string& path, const Tensor& tensor) {
  const std::string_view description = kDescriptions[static_cast<int>(tensor.dtype())];
  if (description.empty()) throw Error("save_npy: NumPy has no " + std::string(name(tensor.dtype())));
  const Tensor host = dense_on_host(tensor);
  std::string sizes;
  for (Dim d : host.shape()) sizes += std::to_string(d.value()) + ", ";
  if (host.dim() > 1) sizes.resize(sizes.size() - 2);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", description, sizes);
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  const auto size = static_cast<uint16_t>(header.size());
  AtomicFile file(path);
  file.write(kMagic.data(), kMagic.size());
  file.write("\x01\x00", 2);
  file.write(&size, 2);
  file.write(header.data(), header.size());
  file.write(host.place(), bytes_of(host));
  file.commit();
}

}  // namespace tessera
