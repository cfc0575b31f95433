#include "onnx/handler.h"

namespace tessera::onnx {
std::span<const Entry> attention_handlers() { return {}; }
}  // namespace tessera::onnx
