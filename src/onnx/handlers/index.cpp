#include "onnx/handler.h"

namespace tessera::onnx {
std::span<const Entry> index_handlers() { return {}; }
}  // namespace tessera::onnx
