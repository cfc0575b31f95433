// docs/glossary.md is short, and each of its words lives where it says.
#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

std::string text_of(const std::string& file) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Rows whose file is missing or has no such word, a line each; names may begin with it, or continue behind it.
std::vector<std::string> glossary_faults(const std::string& glossary) {
  static const std::regex row(R"re(\| `([^`]+)` \| .* \| `([^`]+)` \|)re");
  std::vector<std::string> lines;
  std::istringstream in(glossary);
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    if (!std::regex_match(line, match, row)) {
      lines.push_back("not a word, its meaning and its file: " + line);
      continue;
    }
    const std::string word = match[1], file = match[2], code = text_of(file);
    if (!std::regex_search(code, std::regex(word, std::regex::icase))) lines.push_back(file + " has no " + word);
  }
  return lines;
}

TEST(Glossary, HasItsWordsWhereItSays) {
  const std::string glossary = text_of("docs/glossary.md");
  EXPECT_NE(glossary.find("\n| `"), std::string::npos);
  EXPECT_LE(std::count(glossary.begin(), glossary.end(), '\n'), 60);
  for (const std::string& fault : glossary_faults(glossary)) ADD_FAILURE() << fault;
}

TEST(Glossary, WordsThatAreGoneAreFound) {
  EXPECT_EQ(glossary_faults("| `xyzzy` | nothing | `src/core/op.h` |\n").size(), 1u);
  EXPECT_EQ(glossary_faults("| `op` | an operator | `src/core/nothing.h` |\n").size(), 1u);
  EXPECT_EQ(glossary_faults("| `op` | an operator |\n").size(), 1u);
  EXPECT_TRUE(glossary_faults("| `op` | an operator | `src/core/op.h` |\n").empty());
}

}  // namespace
