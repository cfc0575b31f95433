#include "profiler/kernel_name.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/util/demangled.h"

namespace tessera::profiler {
namespace {

constexpr std::string_view kGap = "..", kAnonymous = "(anonymous namespace)::";

bool is_word(char c) { return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Without qualifiers: of "a::b::c" only c stays. Spaces stay where they part words.
std::string without_namespaces(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i, kAnonymous.size()) == kAnonymous) {
      i += kAnonymous.size();
    } else if (text.substr(i, 2) == "::") {
      while (!out.empty() && is_word(out.back())) out.pop_back();
      i += 2;
    } else if (text[i] == ' ') {
      const std::string_view next = text.substr(i + 1);
      const bool word = !next.empty() && (is_word(next[0]) || next.starts_with(kAnonymous));
      if (word && !out.empty() && (is_word(out.back()) || out.back() == '>')) out += ' ';
      ++i;
    } else {
      out += text[i++];
    }
  }
  return out;
}

/// Up to the parameters: the last bracket that opens outside of template arguments, if it closes at the end.
std::string_view without_parameters(std::string_view text) {
  int angles = 0, round = 0;
  size_t opened = text.npos;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '<') ++angles;
    if (c == '>' && angles > 0) --angles;
    if (angles > 0) continue;
    if (c == '(' && round++ == 0) opened = i;
    if (c == ')' && --round < 0) return text;
  }
  return opened == text.npos || opened == 0 || round != 0 ? text : text.substr(0, opened);
}

/// The result's type stands before a space outside of all brackets.
std::string_view without_result(std::string_view text) {
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<' || text[i] == '(') ++depth;
    if ((text[i] == '>' || text[i] == ')') && depth > 0) --depth;
    if (text[i] == ' ' && depth == 0) begin = i + 1;
  }
  return begin < text.size() ? text.substr(begin) : text;
}

/// "(Activation)3", as compilers write enumerators, is "Activation3".
std::string without_casts(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t close = text[i] == '(' ? text.find(')', i) : text.npos;
    const bool cast = close != text.npos && close + 1 < text.size() && text[close + 1] >= '0' && text[close + 1] <= '9';
    if (cast) {
      out.append(text, i + 1, close - i - 1);
      i = close;
    } else {
      out += text[i];
    }
  }
  return out;
}

/// "Tile<1,2>" that comes again is "Tile".
std::string without_repeats(const std::string& text) {
  std::string out;
  std::set<std::string> seen;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '<') {
      out += text[i++];
      continue;
    }
    size_t word = i, end = i;
    while (word > 0 && is_word(text[word - 1])) --word;
    int depth = 0;
    do {
      if (text[end] == '<') ++depth;
      if (text[end] == '>') --depth;
    } while (++end < text.size() && depth > 0);
    const bool again = depth == 0 && word > 0 && !seen.insert(text.substr(word, end - word)).second;
    if (again) i = end;
    else out += text[i++];
  }
  return out;
}

/// The beginning and what follows the first `same` characters, in which others of that look are alike.
std::string where_it_differs(const std::string& text, size_t same, size_t width) {
  const size_t head = width / 3, context = 4;
  if (same <= head + context + kGap.size())  // it is near the begin
    return text.size() <= width ? text : text.substr(0, width - kGap.size()) + std::string(kGap);
  const std::string tail = text.substr(same - context), begin = text.substr(0, head) + std::string(kGap);
  if (begin.size() + tail.size() <= width) return begin + tail;
  return begin + tail.substr(0, width - begin.size() - kGap.size()) + std::string(kGap);
}

/// How much of it begins one of the others, too.
size_t alike(const std::string& text, const std::set<std::string>& others) {
  size_t most = 0;
  for (const std::string& other : others) {
    if (other == text) continue;
    const size_t length = std::min(text.size(), other.size());
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(length);
    most = std::max(most, static_cast<size_t>(std::mismatch(text.begin(), end, other.begin()).first - text.begin()));
  }
  return most;
}

}  // namespace

std::string plain_kernel_name(std::string_view name) {
  const std::string all = demangled(std::string(name));
  const size_t bracket = all.find('(');
  const bool has_parameters = bracket != all.npos && bracket > 0 && is_word(all[bracket - 1]);
  if (!has_parameters && all.find('<') == all.npos && all.find("::") == all.npos) return all;
  // Namespaces go first: the brackets of "(anonymous namespace)" are no parameters.
  const std::string plain = without_namespaces(all);
  const std::string kept(without_result(without_parameters(plain)));
  const std::string out = without_repeats(without_casts(kept));
  return out.empty() ? all : out;
}

std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width || width <= kGap.size()) return text.substr(0, width);
  const size_t kept = width - kGap.size(), head = kept - kept * 2 / 5;
  return text.substr(0, head) + std::string(kGap) + text.substr(text.size() - (kept - head));
}

std::vector<std::string> short_kernel_names(const std::vector<std::string>& names, size_t width) {
  std::vector<std::string> plain, out;
  std::map<std::string, std::set<std::string>> looks;
  for (const std::string& name : names) {
    plain.push_back(plain_kernel_name(name));
    out.push_back(shortened(plain.back(), width));
    looks[out.back()].insert(plain.back());
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const std::set<std::string>& same = looks[out[i]];
    if (same.size() > 1) out[i] = where_it_differs(plain[i], alike(plain[i], same), width);
  }
  return out;
}

}  // namespace tessera::profiler
