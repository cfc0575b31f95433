// An index and the shard that it describes, of any bytes, are read or refused with a FileError. The bytes: u32 size of
// the index, the index, the file.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "data/mds_shard.h"
#include "data/packed_bytes.h"

namespace {

using namespace tessera;

std::shared_ptr<MappedFile> in_memory(std::string_view bytes) {
  auto out = map_memory(bytes.size());
  if (!bytes.empty()) std::memcpy(out->data, bytes.data(), bytes.size());
  return out;
}

void read(const mds::Index& index, std::string_view file) {
  const mds::ShardInfo& info = index.shards[0];
  std::shared_ptr<MappedFile> bytes;
  if (!info.compressed) bytes = in_memory(file);
  else if (info.compression == "zstd" || info.compression == "gz")
    bytes = decompress(parse_compression(info.compression), file, std::min<size_t>(info.raw.bytes, 1 << 24));
  else return;
  const mds::Shard shard("shard", bytes, info.samples);
  for (uint32_t i = 0; i < shard.samples(); ++i)
    for (size_t c = 0; c < index.columns.size(); ++c)
      mds::decode(index.encodings[c], shard.value(i, index.encodings, c));
  shard.verify(index);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint32_t length = 0;
  if (size < sizeof length) return 0;
  std::memcpy(&length, data, sizeof length);
  const std::string_view rest(reinterpret_cast<const char*>(data) + sizeof length, size - sizeof length);
  if (length > rest.size()) return 0;
  try {
    read(mds::parse_index(rest.substr(0, length), "index.json"), rest.substr(length));
  } catch (const FileError&) {
  }
  return 0;
}
