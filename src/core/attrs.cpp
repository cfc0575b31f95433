#include "core/attrs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {

std::string_view AttrsPrinter::next(std::string_view& names) {
  const auto comma = names.find(',');
  std::string_view name = names.substr(0, comma);
  names.remove_prefix(comma == names.npos ? names.size() : comma + 2);
  if (const auto bracket = name.find('('); bracket != name.npos)
    name = name.substr(bracket + 1, name.size() - bracket - 2);
  return name;
}
void AttrsPrinter::append(std::string_view name, std::string_view value) {
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
