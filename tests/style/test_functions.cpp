// docs/functions.md has every function of the headers of operators, and none besides.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

namespace fs = std::filesystem;
using Functions = std::map<std::string, std::set<std::string>>;  // of each header

const fs::path kHeaders = fs::path(TESSERA_SOURCE_DIR) / "include/tessera";

std::string text_in(const fs::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

/// What a header declares: a type at the beginning of a line, then a name with a bracket.
std::set<std::string> declared_in(const std::string& header) {
  static const std::regex declaration(R"re(^(?:[A-Z]\w*|std::pair<Tensor, Tensor>) ([a-z]\w*)\()re");
  std::set<std::string> names;
  std::istringstream in(header);
  std::smatch match;
  for (std::string line; std::getline(in, line);)
    if (std::regex_search(line, match, declaration)) names.insert(match[1]);
  return names;
}
Functions declared() {
  Functions all;
  for (const auto& entry : fs::directory_iterator(kHeaders)) {
    const std::string name = entry.path().filename().string();
    if (name == "ops.h" || name.rfind("ops_", 0) == 0) all[name] = declared_in(text_in(entry.path()));
  }
  return all;
}

/// Rows below the line that names a header.
Functions listed(const std::string& page) {
  static const std::regex header(R"re(^In \[`(\w+\.h)`\])re"), row(R"re(^\| `(\w+)` \| .+ \| .+ \|$)re");
  Functions all;
  std::string current;
  std::istringstream in(page);
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (std::regex_search(line, match, header)) current = match[1];
    else if (!current.empty() && std::regex_search(line, match, row)) all[current].insert(match[1]);
  }
  return all;
}

std::vector<std::string> faults(const Functions& in_headers, const Functions& on_page) {
  std::vector<std::string> lines;
  const auto without = [&](const Functions& a, const Functions& b, const char* rule) {
    for (const auto& [header, names] : a)
      for (const std::string& name : names)
        if (!b.count(header) || !b.at(header).count(name)) lines.push_back(header + ": " + name + rule);
  };
  without(in_headers, on_page, " is not in docs/functions.md");
  without(on_page, in_headers, " is in docs/functions.md alone");
  return lines;
}

TEST(Functions, AreAllOnTheirPage) {
  const Functions all = declared();
  EXPECT_GT(all.size(), 5u);
  for (const std::string& fault : faults(all, listed(text_in(fs::path(TESSERA_SOURCE_DIR) / "docs/functions.md"))))
    ADD_FAILURE() << fault;
}

TEST(Functions, ThatAreMissingOrGoneAreFound) {
  const Functions header{
      {"ops_x.h", declared_in("Tensor one(const Tensor& x);\n  Tensor no(int);\nTensors two(int x,\n")}};
  const std::string page = "In [`ops_x.h`](there).\n\n| `one` | `torch.one` | - |\n";
  EXPECT_EQ(faults(header, listed(page)), std::vector<std::string>{"ops_x.h: two is not in docs/functions.md"});
  EXPECT_EQ(faults(header, listed(page + "| `two` | - | - |\n| `three` | - | - |\n")),
            std::vector<std::string>{"ops_x.h: three is in docs/functions.md alone"});
}

}  // namespace
