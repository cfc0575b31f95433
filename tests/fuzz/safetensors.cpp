// A safetensors file of any bytes is read or refused with a FileError.
#include <cstdint>
#include <string>

#include "tessera/io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    const SafeTensors file = SafeTensors::from_bytes(std::string(reinterpret_cast<const char*>(data), size));
    for (const std::string& name : file.names()) {
      const Tensor t = file.tensor(name);
      // Every byte that the tensor claims must be there.
      volatile unsigned char sum = 0;
      const auto* p = static_cast<const unsigned char*>(t.data_ptr());
      for (std::size_t i = 0; i < static_cast<std::size_t>(t.numel()) * size_of(t.dtype()); ++i) sum = sum + p[i];
    }
  } catch (const FileError&) {
  }
  return 0;
}
