// Writes messages in the wire format, from the same table as they are read by.
#include <protozero/pbf_writer.hpp>

#include "onnx/proto.h"

namespace tessera::onnx {
namespace {

using Writer = protozero::pbf_writer;
using Tag = protozero::pbf_tag_type;

template <class Message>
void write_message(Writer& writer, const Message& message);

// Zero is what a field is without being there.
void write_field(Writer& writer, Tag tag, Bytes value) {
  if (value.data()) writer.add_bytes(tag, value.data(), value.size());
}
void write_field(Writer& writer, Tag tag, int64_t value) {
  if (value != 0) writer.add_int64(tag, value);
}
void write_field(Writer& writer, Tag tag, float value) {
  if (value != 0) writer.add_float(tag, value);
}
template <class Message>
requires requires { Fields<Message>::all; }
void write_field(Writer& writer, Tag tag, const Message& value) {
  Writer inner(writer, tag);
  write_message(inner, value);
}
template <class T>
void write_field(Writer& writer, Tag tag, const Optional<T>& value) {
  if (!value) return;
  if constexpr (std::is_same_v<T, int64_t>) writer.add_int64(tag, *value);  // a 0 that is there
  else write_field(writer, tag, *value);
}
template <class T>
void write_field(Writer& writer, Tag tag, const std::vector<T>& all) {
  if constexpr (std::is_same_v<T, int64_t>) writer.add_packed_int64(tag, all.begin(), all.end());
  else if constexpr (std::is_same_v<T, float>) writer.add_packed_float(tag, all.begin(), all.end());
  else if constexpr (std::is_same_v<T, double>) writer.add_packed_double(tag, all.begin(), all.end());
  else if constexpr (std::is_same_v<T, Bytes>)
    for (const Bytes one : all) writer.add_bytes(tag, one.data() ? one.data() : "", one.size());  // "" has its place
  else
    for (const T& one : all) write_field(writer, tag, one);
}

template <class Message>
void write_message(Writer& writer, const Message& message) {
  std::apply(
      [&](auto... fields) { (write_field(writer, static_cast<Tag>(fields.number), message.*fields.member), ...); },
      Fields<Message>::all);
}

}  // namespace

template <class Message>
std::string write_proto(const Message& message) {
  std::string bytes;
  Writer writer(bytes);
  write_message(writer, message);
  return bytes;
}
template std::string write_proto(const ModelProto&);
template std::string write_proto(const TensorProto&);

}  // namespace tessera::onnx
