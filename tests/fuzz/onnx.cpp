// A model of any bytes is loaded, or refused with an Error; what is loaded is run on small inputs, with its steps as
// they are and put together. Mutations change messages, not bytes alone: lengths stay true, so that handlers are
// reached.
#include <cstdint>
#include <cstring>
#include <string>

#include "onnx/mutator.h"
#include "onnx/small_run.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most) __attribute__((weak));

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::onnx;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const bool optimize : {true, false}) (void)run_small(bytes, {.optimize = optimize, .loop_limit = 100});
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  using namespace tessera::onnx;
  if (seed % 8 == 0 && LLVMFuzzerMutate) return LLVMFuzzerMutate(data, size, most);
  try {
    const std::string bytes(reinterpret_cast<const char*>(data), size);
    auto model = read_proto<ModelProto>(bytes, "seed");
    Mutator mutator(seed);
    mutator.mutate(model);
    const std::string changed = write_proto(model);
    if (changed.size() > most) return size;
    std::memcpy(data, changed.data(), changed.size());
    return changed.size();
  } catch (const tessera::Error&) {  // no model: its bytes are all there is
    return LLVMFuzzerMutate ? LLVMFuzzerMutate(data, size, most) : size;
  }
}
