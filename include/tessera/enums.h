// Choices that operators take.
#pragma once
#include <cstdint>

namespace tessera {

enum class Activation : int64_t { None, Relu, GeluTanh, GeluErf, Silu, Tanh };
enum class Reduction : int64_t { None, Mean, Sum };

}  // namespace tessera
