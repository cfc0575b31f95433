#include "onnx/handler.h"

namespace tessera::onnx {
std::span<const Entry> control_handlers() { return {}; }
}  // namespace tessera::onnx
