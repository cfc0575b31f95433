// Documents are short, say one thing a sentence, and what they point at is there.
#include "documents.h"

#include "gtest/gtest.h"

namespace {

using namespace documents;
using Faults = std::vector<std::string>;

constexpr int kMostWords = 25;

Faults long_sentences(const std::string& text) {
  Faults faults;
  for (const Piece& piece : prose(text))
    for (const std::string& sentence : sentences(piece.text))
      if (const int count = words(sentence); count > kMostWords)
        faults.push_back("line " + std::to_string(piece.line) + ", " + std::to_string(count) + " words: " + sentence);
  return faults;
}

/// Links to files and headings that are not there; `folder` is that of the document.
Faults dead_links(const std::string& text, const fs::path& folder) {
  static const std::regex link(R"re(\]\(([^)\s#]*)(#[^)\s]*)?\))re");
  Faults faults;
  for (const Piece& piece : prose(text)) {
    const std::string said = std::regex_replace(piece.text, std::regex("`[^`]*`"), "code");
    for (std::sregex_iterator i(said.begin(), said.end(), link), none; i != none; ++i) {
      const std::string file = (*i)[1], heading = (*i)[2];
      if (std::regex_search(file, std::regex("^https?:"))) continue;
      const fs::path to = folder / file;
      if (!fs::exists(to)) faults.push_back("line " + std::to_string(piece.line) + ": there is no " + file);
      else if (!heading.empty() && !anchors(file.empty() ? text : read(to)).count(heading.substr(1)))
        faults.push_back("line " + std::to_string(piece.line) + ": " + file + " has no " + heading);
    }
  }
  return faults;
}

/// Spans of code that are paths of this project and lead nowhere; NAME stands for any name.
Faults dead_paths(const std::string& text) {
  static const std::regex span("`([^`]*)`");
  static const std::regex path(R"((src|include|docs|tests|examples|benchmarks|scripts|cmake|apps|\.ci)/[\w./-]*)");
  Faults faults;
  for (const Piece& piece : prose(text))
    for (std::sregex_iterator i(piece.text.begin(), piece.text.end(), span), none; i != none; ++i) {
      const std::string code = (*i)[1];
      if (std::regex_match(code, path) && code.find("NAME") == code.npos && !fs::exists(kRoot / code))
        faults.push_back("line " + std::to_string(piece.line) + ": there is no " + code);
    }
  return faults;
}

/// Cells of columns of figures that hold other than one number, or none.
Faults crowded_cells(const std::string& text) {
  static const std::set<std::string> figures = {"ours", "peer's", "padded", "ratio", "target", "seen"};
  static const std::regex one(R"re(|((≤|≥) ?)?-?[0-9][0-9.]*)re");
  Faults faults;
  std::vector<std::string> head;
  for (const std::string& line : lines_of(text)) {
    if (!is_row(line)) head.clear();
    else if (head.empty()) head = cells(line);
    else if (const auto row = cells(line); !is_rule(line))
      for (size_t i = 0; i < std::min(row.size(), head.size()); ++i)
        if (figures.count(head[i]) && !std::regex_match(row[i], one)) faults.push_back(head[i] + ": " + row[i]);
  }
  return faults;
}

/// Figures of speed in prose; links lead to them instead.
Faults speeds(const std::string& text) {
  static const std::regex figure(R"([0-9]\s?(us|µs|ms|ns|TFLOP/s|GFLOP/s|TB/s|GB/s|%|times as fast)( |[.,;)]|$))");
  Faults faults;
  for (const Piece& piece : prose(text))
    if (std::smatch match; std::regex_search(piece.text, match, figure))
      faults.push_back("line " + std::to_string(piece.line) + ": " + match.str());
  return faults;
}

/// Blocks of C++ behind a link to a file of examples/ that has not each of their lines, in that order.
Faults foreign_code(const std::string& text) {
  static const std::regex example(R"re(\]\((examples/[\w.]+)\))re");
  Faults faults;
  std::string file, all;
  bool code = false;
  size_t at = 0;
  for (const std::string& line : lines_of(text)) {
    if (code && trimmed(line) == "```") code = false;
    else if (line == "```cpp") {
      code = true;
      at = 0;
      if (file.empty()) faults.push_back("a block without its example");
      else if ((all = read(kRoot / file)).empty()) faults.push_back("there is no " + file);
    } else if (code && !file.empty()) {
      const size_t found = all.find(trimmed(line), at);
      if (found == all.npos) faults.push_back(file + " has not, or not in this place: " + trimmed(line));
      else at = found;
    } else if (std::smatch match; std::regex_search(line, match, example)) file = match[1];
  }
  return faults;
}

void expect_none(const Faults& faults) {
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
}
/// Of each page, or file of the log; `faults` takes its text and its folder.
template <class Fn>
void expect_none(const std::vector<fs::path>& files, const Fn& faults) {
  EXPECT_GT(files.size(), 2u);
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.lexically_relative(kRoot).string());
    expect_none(faults(read(file), file.parent_path()));
  }
}
auto lines(const std::string& file) { return lines_of(read(kRoot / file)).size(); }

TEST(Documents, HaveShortSentences) {
  expect_none(pages(), [](const std::string& text, const fs::path&) { return long_sentences(text); });
}
TEST(Documents, NamePathsThatAreThere) {
  expect_none(pages(), [](const std::string& text, const fs::path&) { return dead_paths(text); });
}
TEST(Documents, LinkToWhatIsThere) {
  expect_none(pages(), dead_links);
  expect_none(markdown(kRoot / "benchmarks" / "log"), dead_links);
}

TEST(Document, OfTheFirstScreenIsShort) {
  EXPECT_LE(lines("README.md"), 120u);
  expect_none(foreign_code(read(kRoot / "README.md")));
}
TEST(Document, OfTheArchitectureIsShortAndHasNoSpeed) {
  EXPECT_LE(lines("docs/architecture.md"), 150u);
  expect_none(speeds(read(kRoot / "docs/architecture.md")));
}
TEST(Document, OfFiguresHasOneNumberInACell) {
  expect_none(crowded_cells(read(kRoot / "README.md")));
  expect_none(crowded_cells(read(kRoot / "docs/performance.md")));
}

TEST(DocumentFaults, LongSentencesAreFoundWhereverTheyStand) {
  std::string sentence = "One";
  for (int i = 1; i < kMostWords; ++i) sentence += i % 9 ? " word" : "\nword";
  EXPECT_TRUE(long_sentences(sentence + ". Another [one](b.md) `with code`.\n").empty());
  EXPECT_EQ(long_sentences(sentence + " more.\n").size(), 1u);
  EXPECT_EQ(long_sentences("- " + sentence + "\n  more.\n- short\n").size(), 1u);
  const std::string line = std::regex_replace(sentence, std::regex("\n"), " ");
  EXPECT_EQ(long_sentences("| a | b |\n|---|---|\n| " + line + " more | short |\n").size(), 1u);
  EXPECT_EQ(long_sentences("## " + line + " more\n").size(), 1u);
  EXPECT_TRUE(long_sentences("```\n" + line + " more\n```\n\n    " + line + " more\n").empty());
}

TEST(DocumentFaults, WordsAreThoseThatOneReads) {
  EXPECT_EQ(words(spoken("`a b c`, [two words](c.md#d) and 3 × 4 — done.")), 7);
  EXPECT_EQ(sentences("It has 2.5. `x` follows! (So it is.) End").size(), 4u);
}

TEST(DocumentFaults, DeadLinksAndPathsAreFound) {
  EXPECT_TRUE(dead_links("# A b, `c`\n[x](#a-b-c) [y](README.md) [z](https://x.org/y)\n", kRoot).empty());
  EXPECT_EQ(dead_links("# A\n[x](#b) [y](nothing.md) [z](README.md#nothing)\n", kRoot).size(), 3u);
  EXPECT_TRUE(dead_paths("`src/core/op.h`, `tests/fuzz/NAME.cpp`, `src/x y`\n").empty());
  EXPECT_EQ(dead_paths("- `src/core/nothing.h`\n").size(), 1u);
}

TEST(DocumentFaults, CrowdedCellsAndSpeedsAreFound) {
  const std::string head = "| work | ours | peer |\n|---|---|---|\n";
  EXPECT_TRUE(crowded_cells(head + "| 4096³, 8192³ | 1.5 | cuBLAS 13 |\n| x | ≤ 2 | |\n| y | | |\n").empty());
  EXPECT_EQ(crowded_cells(head + "| x | 1.5 · 2 | y |\n| x | 1.5, 2 | y |\n").size(), 2u);
  EXPECT_TRUE(speeds("Rows lie at whole 16 bytes; 25 MB.\n").empty());
  EXPECT_EQ(speeds("It takes 17.3 us.\n\nIt has 709 TFLOP/s, 90 % of it.\n").size(), 2u);
}

TEST(DocumentFaults, CodeThatNoExampleHasIsFound) {
  const std::string link = "[complete](examples/train.cpp)\n\n```cpp\n";
  EXPECT_TRUE(foreign_code(link + "Mlp model;\n\n  loss.backward();\n```\n").empty());
  EXPECT_EQ(foreign_code(link + "loss.backward();\nMlp model;\n```\n").size(), 1u);
  EXPECT_EQ(foreign_code("```cpp\nMlp model;\n```\n").size(), 1u);
  EXPECT_EQ(foreign_code("[complete](examples/nothing.cpp)\n\n```cpp\n```\n").size(), 1u);
}

}  // namespace
