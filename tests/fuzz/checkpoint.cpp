// A checkpoint of any bytes is read or refused with a FileError; so are a GPT's options in it. The checksum is made
// right first, or nothing would come past it.
#include <cstdint>
#include <string>

#include "core/util/hash.h"
#include "models/train_config.h"
#include "tessera/io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= 8) {
    Hash hash;
    hash.update(bytes.data(), size - 8);
    const std::uint64_t sum = hash.value();
    bytes.replace(size - 8, 8, reinterpret_cast<const char*>(&sum), 8);
  }
  try {
    const Checkpoint checkpoint = parse_checkpoint(std::move(bytes));
    auto config = checkpoint.metadata.find("config");
    if (config != checkpoint.metadata.end()) models::config_from_json(config->second, "fuzz");
  } catch (const FileError&) {
  }
  return 0;
}
