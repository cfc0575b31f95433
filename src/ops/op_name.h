// An operator's name as a template argument, so that one infer function serves a family and still names the op in
// errors.
#pragma once
#include <algorithm>
#include <string_view>

namespace tessera {

template <size_t N>
struct OpName {
  char text[N];
  constexpr OpName(const char (&s)[N]) { std::copy(s, s + N, text); }
  constexpr std::string_view view() const { return {text, N - 1}; }
};

}  // namespace tessera
