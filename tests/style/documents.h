// Markdown, as far as the tests of documents read it.
#pragma once
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace documents {

namespace fs = std::filesystem;

inline const fs::path kRoot = TESSERA_SOURCE_DIR;

inline std::string read(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}
inline std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

/// Markdown files below a folder, or the file itself, sorted.
inline std::vector<fs::path> markdown(const fs::path& at) {
  if (!fs::is_directory(at)) return {at};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(at))
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}
/// What people read: README.md, CONTRIBUTING.md and docs/.
inline std::vector<fs::path> pages() {
  std::vector<fs::path> files = markdown(kRoot / "docs");
  files.insert(files.begin(), {kRoot / "README.md", kRoot / "CONTRIBUTING.md"});
  return files;
}

/// The cells of a row of a table, trimmed; a `|` behind a backslash is part of a cell.
inline std::vector<std::string> cells(const std::string& row) {
  std::vector<std::string> found(1);
  for (size_t i = 1; i < row.size(); ++i)
    if (row[i] == '|' && row[i - 1] != '\\') found.emplace_back();
    else found.back() += row[i];
  for (std::string& cell : found) cell = trimmed(cell);
  if (found.back().empty()) found.pop_back();
  return found;
}
inline bool is_row(const std::string& line) { return line.rfind('|', 0) == 0; }
inline bool is_rule(const std::string& row) { return row.find_first_not_of("|-: ") == row.npos; }

/// Prose of one piece: a paragraph, an item, a heading or a cell. Code in fences, or indented by four, is none.
struct Piece {
  size_t line = 0;  // counted from 1
  std::string text;
};
inline std::vector<Piece> prose(const std::string& text) {
  static const std::regex item(R"(\s*([-*]|\d+\.) .*)");
  std::vector<Piece> pieces;
  bool fence = false, blank = true, code = false;
  size_t number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    const std::string content = trimmed(line);
    if (content.rfind("```", 0) == 0) fence = !fence, blank = true;
    else if (fence || content.rfind("<!--", 0) == 0) blank = true;
    else if (content.empty()) blank = true, code = false;
    else if ((code || blank) && line.rfind("    ", 0) == 0 && !std::regex_match(line, item)) code = true;
    else if (is_row(line)) {
      if (!is_rule(line))
        for (const std::string& cell : cells(line)) pieces.push_back({number, cell});
      blank = true;
    } else if (content[0] == '#') {
      pieces.push_back({number, content.substr(content.find_first_not_of('#'))});
      blank = true;
    } else if (blank || std::regex_match(line, item)) {
      pieces.push_back({number, content});
      blank = false;
    } else pieces.back().text += ' ' + content;
  }
  return pieces;
}

/// What is read aloud: a span of code is one word, a link its text.
inline std::string spoken(std::string text) {
  text = std::regex_replace(text, std::regex("`[^`]*`"), "Code");
  return std::regex_replace(text, std::regex(R"re(!?\[([^\]]*)\]\([^)]*\))re"), "$1");
}
inline int words(const std::string& sentence) {
  std::istringstream in(sentence);
  int count = 0;
  for (std::string word; in >> word;)
    count += std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c); });
  return count;
}
inline std::vector<std::string> sentences(const std::string& text) {
  static const std::regex end(R"re([.!?][)"*]*(\s+|$))re");
  std::vector<std::string> found;
  const std::string said = spoken(text);
  auto from = said.begin();
  for (std::sregex_iterator i(said.begin(), said.end(), end), none; i != none; ++i) {
    found.emplace_back(from, (*i)[0].second);
    from = (*i)[0].second;
  }
  if (from != said.end()) found.emplace_back(from, said.end());
  return found;
}

/// A heading's anchor, as GitHub makes it.
inline std::string anchor(const std::string& heading) {
  std::string name;
  for (const char c : trimmed(std::regex_replace(heading, std::regex(R"re(\[([^\]]*)\]\([^)]*\))re"), "$1"))) {
    if (c == ' ') name += '-';
    else if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || (c & 0x80))
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name;
}
inline std::set<std::string> anchors(const std::string& text) {
  std::set<std::string> names;
  bool fence = false;
  for (const std::string& line : lines_of(text)) {
    if (line.rfind("```", 0) == 0) fence = !fence;
    if (!fence && line[0] == '#') names.insert(anchor(line.substr(line.find_first_not_of('#'))));
  }
  return names;
}

}  // namespace documents
