// Choices that operators take.
#pragma once
#include <cstdint>

namespace tessera {

enum class Activation : int64_t { None, Relu, GeluTanh, GeluErf, Silu, Tanh };
enum class Reduction : int64_t { None, Mean, Sum };

/// How [n, c, h, w] lies in memory: row-major, or in the order n, h, w, c.
enum class MemoryFormat : uint8_t { Contiguous, ChannelsLast };
using enum MemoryFormat;

}  // namespace tessera
