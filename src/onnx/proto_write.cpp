// Writes messages in the wire format, from the same table as they are read by.
#include <protozero/pbf_writer.hpp>

#include "onnx/proto.h"

namespace tessera::onnx {
namespace {

using Tag = protozero::pbf_tag_type;

/// A message being written, and where its bytes go.
struct Output {
  std::string& bytes;
  protozero::pbf_writer writer;
};

template <class Message>
void write_message(Output& out, const Message& message);

// Zero is what a field is without being there.
void write_field(Output& out, Tag tag, Bytes value) {
  if (value.data()) out.writer.add_bytes(tag, value.data(), value.size());
}
void write_field(Output& out, Tag tag, int64_t value) {
  if (value != 0) out.writer.add_int64(tag, value);
}
void write_field(Output& out, Tag tag, float value) {
  if (value != 0) out.writer.add_float(tag, value);
}
template <class Message>
requires requires { Fields<Message>::all; }
void write_field(Output& out, Tag tag, const Message& value) {
  const size_t before = out.bytes.size();
  {
    Output inner{out.bytes, protozero::pbf_writer(out.writer, tag)};
    write_message(inner, value);
  }
  // protozero drops messages without fields, such as the shape of a scalar.
  if (out.bytes.size() == before) out.writer.add_message(tag, "", 0);
}
template <class T>
void write_field(Output& out, Tag tag, const Optional<T>& value) {
  if (!value) return;
  if constexpr (std::is_same_v<T, int64_t>) out.writer.add_int64(tag, *value);  // a 0 that is there
  else write_field(out, tag, *value);
}
template <class T>
void write_field(Output& out, Tag tag, const std::vector<T>& all) {
  if constexpr (std::is_same_v<T, int64_t>) out.writer.add_packed_int64(tag, all.begin(), all.end());
  else if constexpr (std::is_same_v<T, float>) out.writer.add_packed_float(tag, all.begin(), all.end());
  else if constexpr (std::is_same_v<T, double>) out.writer.add_packed_double(tag, all.begin(), all.end());
  else if constexpr (std::is_same_v<T, Bytes>)
    for (const Bytes one : all)
      out.writer.add_bytes(tag, one.data() ? one.data() : "", one.size());  // "" has its place
  else
    for (const T& one : all) write_field(out, tag, one);
}

template <class Message>
void write_message(Output& out, const Message& message) {
  std::apply([&](auto... fields) { (write_field(out, static_cast<Tag>(fields.number), message.*fields.member), ...); },
             Fields<Message>::all);
}

}  // namespace

template <class Message>
std::string write_proto(const Message& message, size_t bytes) {
  std::string text;
  text.reserve(bytes);
  Output out{text, protozero::pbf_writer(text)};
  write_message(out, message);
  return text;
}
template std::string write_proto(const ModelProto&, size_t);
template std::string write_proto(const NodeProto&, size_t);
template std::string write_proto(const TensorProto&, size_t);

}  // namespace tessera::onnx
