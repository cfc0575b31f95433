#include <fmt/format.h>

#include <algorithm>

#include "tessera/data.h"
#include "tessera/io.h"

namespace tessera {
namespace {

// Takes one code point off the front of `text`; false if there is no valid one. RFC 3629.
bool take(std::string_view& text, char32_t& c) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || length > text.size()) return false;
  c = length == 1 ? first : first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return false;
    c = c << 6 | (byte(i) & 0x3f);
  }
  constexpr char32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < smallest[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
  text.remove_prefix(length);
  return true;
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
            static_cast<char>(0x80 | (c & 0x3f))};
  } else {
    out += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
            static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
  }
}

// Calls fn for each code point. Throws Error where `text` is not UTF-8.
template <class Fn>
void each_character(std::string_view text, const Fn& fn) {
  const size_t size = text.size();
  char32_t c;
  while (!text.empty()) {
    if (!take(text, c)) throw Error(fmt::format("tokenizer: byte {} of the text is not UTF-8", size - text.size()));
    fn(c);
  }
}

}  // namespace

size_t find_non_text(std::string_view text) {
  const size_t size = text.size();
  char32_t c;
  while (!text.empty()) {
    const size_t at = size - text.size();
    if (!take(text, c) || c == 0) return at;
  }
  return std::string_view::npos;
}

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  if (text.empty()) throw FileError(path + ": the file is empty");
  if (size_t at = find_non_text(text); at != std::string::npos)
    throw FileError(fmt::format("{}: not a text in UTF-8 (byte {})", path, at));
  return text;
}

CharTokenizer::CharTokenizer(std::string_view text) {
  std::vector<bool> seen(0x110000);
  each_character(text, [&](char32_t c) { seen[c] = true; });
  for (char32_t c = 0; c < seen.size(); ++c)
    if (seen[c]) characters_.push_back(c);
}

std::string CharTokenizer::vocabulary() const {
  std::string out;
  for (char32_t c : characters_) append(out, c);
  return out;
}

std::vector<int32_t> CharTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out, ascii(128, -1);  // a direct table for what most texts consist of
  out.reserve(text.size());
  for (size_t i = 0; i < characters_.size() && characters_[i] < 128; ++i)
    ascii[characters_[i]] = static_cast<int32_t>(i);
  each_character(text, [&](char32_t c) {
    if (c < 128 && ascii[c] >= 0) return out.push_back(ascii[c]);
    auto it = std::lower_bound(characters_.begin(), characters_.end(), c);
    if (it == characters_.end() || *it != c)
      throw Error(fmt::format("tokenizer: character U+{:04X} is not in the vocabulary", static_cast<uint32_t>(c)));
    out.push_back(static_cast<int32_t>(it - characters_.begin()));
  });
  return out;
}

std::string CharTokenizer::decode(const std::vector<int32_t>& tokens) const {
  std::string out;
  for (int32_t t : tokens) {
    if (t < 0 || t >= size()) throw Error(fmt::format("tokenizer: token {} is not in a vocabulary of {}", t, size()));
    append(out, characters_[static_cast<size_t>(t)]);
  }
  return out;
}

TextData make_text_data(std::string_view text, const CharTokenizer& tokenizer, int64_t block, double train_fraction) {
  if (!(train_fraction > 0 && train_fraction < 1)) throw Error("make_text_data: train_fraction is not between 0 and 1");
  const std::vector<int32_t> all = tokenizer.encode(text);
  const auto cut = all.begin() + static_cast<int64_t>(static_cast<double>(all.size()) * train_fraction);
  TextData out{tokenizer, std::make_shared<std::vector<int32_t>>(all.begin(), cut),
               std::make_shared<std::vector<int32_t>>(cut, all.end())};
  for (const Tokens& split : {out.train, out.validation})
    if (static_cast<int64_t>(split->size()) <= block)
      throw FileError(fmt::format("the text is too short: its {} split has {} characters, a block needs {}",
                                  split == out.train ? "training" : "validation", split->size(), block + 1));
  return out;
}

}  // namespace tessera
