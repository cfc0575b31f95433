// A checkpoint of any bytes is read or refused with a FileError; so are a GPT's options in it, and an index of parts,
// of which there are two. The checksum is made right first, or nothing would come past it.
#include <cstdint>
#include <string>

#include "core/util/hash.h"
#include "io/checkpoint_parts.h"
#include "io/safetensors.h"
#include "models/train_config.h"
#include "tessera/io.h"

namespace {

using namespace tessera;

std::string with_checksum(std::string bytes) {
  Hash hash;
  hash.update(bytes.data(), bytes.size());
  const std::uint64_t sum = hash.value();
  return bytes.append(reinterpret_cast<const char*>(&sum), 8);
}

// "0.part" has the first rows of w [4, 2], "1.part" the others, and v.
SafeTensors part(const std::string& file) {
  if (file != "0.part" && file != "1.part") throw FileError(file + ": there is none");
  NamedTensors tensors{{file == "0.part" ? "w[0:2,0:2]" : "w[2:4,0:2]", zeros({2, 2})}};
  if (file == "1.part") tensors.emplace_back("v", zeros({3}));
  std::size_t bytes = 0;
  for (const auto& [name, t] : tensors) bytes += bytes_of(t);
  tensors.emplace_back(kChecksum, empty({1}, Int64));
  std::string text = safetensors_header(tensors, {{"format", "tessera checkpoint part"}});
  return SafeTensors::from_bytes(with_checksum(text + std::string(bytes, '\0')), file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= 8) bytes = with_checksum(bytes.substr(0, size - 8));
  try {
    const Checkpoint checkpoint = parse_checkpoint(std::move(bytes), "fuzz", part);
    auto config = checkpoint.metadata.find("config");
    if (config != checkpoint.metadata.end()) models::config_from_json(config->second, "fuzz");
  } catch (const FileError&) {
  }
  return 0;
}
