#include "core/attrs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {

// An operator without these has a zero or none there; any other zero (of a dim, a bound, a value) is one.
void AttrsPrinter::append(std::string_view name, std::string value) {
  constexpr std::string_view optional[] = {"activation", "correction",      "dampening", "dropout", "groups",
                                           "heads",      "label_smoothing", "momentum",  "padding", "weight_decay",
                                           "size"};
  const bool zero = value == "0" || value == "[0, 0]";
  if ((zero || value == "none") && std::ranges::count(optional, name)) return;
  if (zero && name == "scale") value = "default";
  text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, value);
}

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
