// The wire format by protozero. Each field's wire type is checked before it is read, since protozero trusts its caller.
#define protozero_assert(x)  // what it would check is checked here

#include <fmt/format.h>

#include <protozero/pbf_reader.hpp>

#include "onnx/proto.h"
#include "tessera/error.h"

namespace tessera::onnx {
namespace {

using Reader = protozero::pbf_reader;
using Wire = protozero::pbf_wire_type;

constexpr int kDeepest = 256;  // messages in messages: graphs in graphs take four each

struct Malformed {
  std::string what;
};

void require(Reader& reader, Wire wire) {
  if (!reader.has_wire_type(wire)) throw Malformed{fmt::format("field {} is of another kind", reader.tag())};
}

template <class Message>
void read_message(Reader reader, Message& message, int depth);

void read_field(Reader& reader, Bytes& out, int) {
  require(reader, Wire::length_delimited);
  const protozero::data_view view = reader.get_view();
  out = Bytes(view.size() ? view.data() : "", view.size());
}
void read_field(Reader& reader, int64_t& out, int) {
  require(reader, Wire::varint);
  out = reader.get_int64();
}
void read_field(Reader& reader, float& out, int) {
  require(reader, Wire::fixed32);
  out = reader.get_float();
}
void read_field(Reader& reader, double& out, int) {
  require(reader, Wire::fixed64);
  out = reader.get_double();
}
template <class Message>
requires requires { Fields<Message>::all; }
void read_field(Reader& reader, Message& out, int depth) {
  require(reader, Wire::length_delimited);
  read_message(reader.get_message(), out, depth);
}
template <class T>
void read_field(Reader& reader, Optional<T>& out, int depth) {
  read_field(reader, out.make(), depth);
}

template <class Range, class T>
void append(const Range& range, std::vector<T>& out) {
  out.reserve(out.size() + static_cast<size_t>(range.size()));
  out.insert(out.end(), range.begin(), range.end());
}
// Numbers of a list lie together, or each as a field of its own.
template <class T>
void read_field(Reader& reader, std::vector<T>& out, int depth) {
  if constexpr (std::is_arithmetic_v<T>) {
    if (reader.has_wire_type(Wire::length_delimited)) {
      if constexpr (std::is_same_v<T, int64_t>) return append(reader.get_packed_int64(), out);
      else if constexpr (std::is_same_v<T, float>) return append(reader.get_packed_float(), out);
      else return append(reader.get_packed_double(), out);
    }
  }
  read_field(reader, out.emplace_back(), depth);
}

template <class Message>
void read_message(Reader reader, Message& message, int depth) {
  if (depth > kDeepest) throw Malformed{fmt::format("messages are nested more than {} deep", kDeepest)};
  while (reader.next()) {
    const bool known = std::apply(
        [&](auto... fields) {
          return ((reader.tag() == static_cast<protozero::pbf_tag_type>(fields.number) &&
                   (read_field(reader, message.*fields.member, depth + 1), true)) ||
                  ...);
        },
        Fields<Message>::all);
    if (!known) reader.skip();
  }
}

}  // namespace

template <class Message>
Message read_proto(Bytes bytes, const std::string& file) {
  Message message;
  try {
    read_message(Reader(bytes.data(), bytes.size()), message, 0);
  } catch (const protozero::exception&) {  // which speaks of its own words
    throw FileError(file + ": not ONNX, or truncated");
  } catch (const Malformed& e) {
    throw FileError(fmt::format("{}: not ONNX: {}", file, e.what));
  }
  return message;
}
template ModelProto read_proto(Bytes, const std::string&);
template TensorProto read_proto(Bytes, const std::string&);
template SequenceProto read_proto(Bytes, const std::string&);
template OptionalProto read_proto(Bytes, const std::string&);

}  // namespace tessera::onnx
