#include "onnx/handler.h"

namespace tessera::onnx {
std::span<const Entry> creation_handlers() { return {}; }
}  // namespace tessera::onnx
