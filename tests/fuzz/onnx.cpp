// A model of any bytes is loaded, or refused with an Error; what is loaded is run on small inputs.
#include <cstdint>
#include <string>

#include "tessera/onnx.h"
#include "tessera/ops.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    const auto model =
        onnx::Model::from_bytes(std::string(reinterpret_cast<const char*>(data), size), "model", {.loop_limit = 100});
    onnx::Values inputs;
    for (const onnx::Port& port : model.inputs()) {
      Shape shape;
      for (const std::string& dim : port.dims) shape.push_back(dim == "1" ? 1 : 2);
      inputs.emplace_back(port.type == "int64"   ? zeros(shape, Int64)
                          : port.type == "int32" ? zeros(shape, Int32)
                                                 : ones(shape));
    }
    (void)model.run(inputs);
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {  // a model may ask for much, and is told so
  }
  return 0;
}
