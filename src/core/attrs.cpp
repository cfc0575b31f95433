#include "core/attrs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {

std::string AttrsPrinter::print(double v) { return fmt::format("{}", v); }
std::string AttrsPrinter::print(std::span<const int64_t> v) { return fmt::format("[{}]", fmt::join(v, ", ")); }
std::string AttrsPrinter::print(Activation v) {
  constexpr const char* names[] = {"none", "relu", "gelu_tanh", "gelu_erf", "silu", "tanh"};
  return names[static_cast<int>(v)];
}
std::string AttrsPrinter::print(Reduction v) {
  constexpr const char* names[] = {"none", "mean", "sum"};
  return names[static_cast<int>(v)];
}

}  // namespace tessera
