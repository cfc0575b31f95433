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
// Bytes that messages may take for each of the file, and in any case. Those of real files take 30 at most.
constexpr int64_t kLargestShare = 64, kLeastRoom = 1 << 20;

struct Malformed {
  std::string what;
};

void require(Reader& reader, Wire wire) {
  if (!reader.has_wire_type(wire)) throw Malformed{fmt::format("field {} is of another kind", reader.tag())};
}

/// Where a message lies, and how many bytes those still to be read may take.
struct Place {
  int depth;
  int64_t& room;
};

template <class Message>
void read_message(Reader reader, Message& message, Place place);

void read_field(Reader& reader, Bytes& out, Place) {
  require(reader, Wire::length_delimited);
  const protozero::data_view view = reader.get_view();
  out = Bytes(view.size() ? view.data() : "", view.size());
}
void read_field(Reader& reader, int64_t& out, Place) {
  require(reader, Wire::varint);
  out = reader.get_int64();
}
void read_field(Reader& reader, float& out, Place) {
  require(reader, Wire::fixed32);
  out = reader.get_float();
}
void read_field(Reader& reader, double& out, Place) {
  require(reader, Wire::fixed64);
  out = reader.get_double();
}
template <class Message>
requires requires { Fields<Message>::all; }
void read_field(Reader& reader, Message& out, Place place) {
  require(reader, Wire::length_delimited);
  read_message(reader.get_message(), out, place);
}
template <class T>
void read_field(Reader& reader, Optional<T>& out, Place place) {
  read_field(reader, out.make(), place);
}

// What is reserved grows with what is there: a list may come in a million pieces.
template <class Range, class T>
void append(const Range& range, std::vector<T>& out) {
  out.insert(out.end(), range.begin(), range.end());
}
// Numbers of a list lie together, or each as a field of its own.
template <class T>
void read_field(Reader& reader, std::vector<T>& out, Place place) {
  if constexpr (std::is_arithmetic_v<T>) {
    if (reader.has_wire_type(Wire::length_delimited)) {
      if constexpr (std::is_same_v<T, int64_t>) return append(reader.get_packed_int64(), out);
      else if constexpr (std::is_same_v<T, float>) return append(reader.get_packed_float(), out);
      else return append(reader.get_packed_double(), out);
    }
  }
  read_field(reader, out.emplace_back(), place);
}

template <class Message>
void read_message(Reader reader, Message& message, Place place) {
  if (place.depth > kDeepest) throw Malformed{fmt::format("messages are nested more than {} deep", kDeepest)};
  if ((place.room -= static_cast<int64_t>(sizeof(Message))) < 0)
    throw Malformed{fmt::format("messages take more than {} times their bytes", kLargestShare)};
  while (reader.next()) {
    const bool known = std::apply(
        [&](auto... fields) {
          return ((reader.tag() == static_cast<protozero::pbf_tag_type>(fields.number) &&
                   (read_field(reader, message.*fields.member, {place.depth + 1, place.room}), true)) ||
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
  int64_t room = kLeastRoom + kLargestShare * static_cast<int64_t>(bytes.size());
  try {
    read_message(Reader(bytes.data(), bytes.size()), message, {0, room});
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
