// Values of MDS columns as bytes.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "tessera/mds.h"

namespace tessera::mds {

struct Encoding {
  enum Kind { Bytes, Jpeg, Png, Text, Json, Number, Array } kind = Bytes;
  std::optional<DType> dtype = {};      // of numbers; of arrays, if all have one
  std::optional<Shape> shape = {};      // of arrays, if all have one
  std::optional<uint32_t> length = {};  // in bytes, if all values have one
};

/// Throws Error that says what `text` is not.
Encoding parse_encoding(std::string_view text);
/// Appends a value. Throws Error where it is none of the encoding's.
void append(std::string& out, const Encoding& encoding, const MdsValue& value);
/// The value that these bytes are. Throws FileError.
MdsValue decode(const Encoding& encoding, std::string_view bytes);
/// Throws FileError unless they are a value.
void check(const Encoding& encoding, std::string_view bytes);

}  // namespace tessera::mds
