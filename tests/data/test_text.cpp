#include <gtest/gtest.h>

#include <random>

#include "io/io_check.h"
#include "tessera/data.h"
#include "tessera/io.h"

namespace tessera {
namespace {

TEST(Text, ReadsUtf8WithoutTheByteOrderMark) {
  TemporaryFolder folder;
  write_file(folder / "t", "\xef\xbb\xbfGr\xc3\xbc\xc3\x9f\x65\n");
  EXPECT_EQ(read_text(folder / "t"), "Gr\xc3\xbc\xc3\x9f\x65\n");
}

TEST(Text, RefusesWhatIsNoText) {
  TemporaryFolder folder;
  const std::string path = folder / "t";
  EXPECT_EQ(error_of([&] { read_text(path); }), "cannot open \"" + path + "\": No such file or directory");
  const std::pair<std::string, std::string> cases[] = {
      {"", ": the file is empty"},
      {"\xef\xbb\xbf", ": the file is empty"},
      {std::string("ab\0c", 4), ": not a text in UTF-8 (byte 2)"},
      {"abc\xff", ": not a text in UTF-8 (byte 3)"},
      {"\xc3", ": not a text in UTF-8 (byte 0)"},              // cut
      {"a\xc0\x80", ": not a text in UTF-8 (byte 1)"},         // overlong
      {"a\xe0\x80\x80", ": not a text in UTF-8 (byte 1)"},     // overlong
      {"a\xed\xa0\x80", ": not a text in UTF-8 (byte 1)"},     // surrogate
      {"\xf4\x90\x80\x80", ": not a text in UTF-8 (byte 0)"},  // above U+10FFFF
      {"\x80", ": not a text in UTF-8 (byte 0)"},
  };
  for (const auto& [bytes, error] : cases) {
    write_file(path, bytes);
    EXPECT_EQ(error_of([&] { read_text(path); }), path + error);
  }
}

TEST(CharTokenizer, RoundTrip) {
  const std::string text = "to be, or not to be \xe2\x80\x94 \xf0\x9f\x98\x80 \xc3\xa9";
  const CharTokenizer tokenizer(text);
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(tokens), text);
  EXPECT_EQ(tokenizer.size(), 11);
  EXPECT_EQ(tokenizer.vocabulary(), " ,benort\xc3\xa9\xe2\x80\x94\xf0\x9f\x98\x80");
  EXPECT_EQ(CharTokenizer(tokenizer.vocabulary()).encode(text), tokens);
  EXPECT_EQ(CharTokenizer("").size(), 0);
}

TEST(CharTokenizer, NamesWhatItDoesNotKnow) {
  const CharTokenizer tokenizer("abc");
  EXPECT_EQ(error_of([&] { tokenizer.encode("abz"); }), "tokenizer: character U+007A is not in the vocabulary");
  EXPECT_EQ(error_of([&] { tokenizer.encode("a\xc3\xa9"); }), "tokenizer: character U+00E9 is not in the vocabulary");
  EXPECT_EQ(error_of([&] { tokenizer.encode("a\xff"); }), "tokenizer: byte 1 of the text is not UTF-8");
  EXPECT_EQ(error_of([&] { tokenizer.decode({0, 3}); }), "tokenizer: token 3 is not in a vocabulary of 3");
  EXPECT_EQ(error_of([&] { tokenizer.decode({-1}); }), "tokenizer: token -1 is not in a vocabulary of 3");
}

TEST(TextData, SplitsNinetyToTen) {
  std::string text;
  for (int i = 0; i < 1009; ++i) text += static_cast<char>('a' + i * i % 26);
  const TextData data = make_text_data(text, CharTokenizer(text), 13);
  EXPECT_EQ(data.train->size(), 908u);
  EXPECT_EQ(data.validation->size(), 101u);
  std::vector<int32_t> joined = *data.train;
  joined.insert(joined.end(), data.validation->begin(), data.validation->end());
  EXPECT_EQ(data.tokenizer.decode(joined), text);
}

TEST(TextData, ATextMustHoldABlock) {
  const std::string text = "0123456789";
  EXPECT_EQ(error_of([&] { make_text_data(text, CharTokenizer(text), 9); }),
            "the text is too short: its training split has 9 characters, a block needs 10");
  EXPECT_EQ(error_of([&] { make_text_data(text, CharTokenizer(text), 1); }),
            "the text is too short: its validation split has 1 characters, a block needs 2");
  EXPECT_THROW(make_text_data(text, CharTokenizer(text), 1, 1.5), Error);
}

}  // namespace
}  // namespace tessera
