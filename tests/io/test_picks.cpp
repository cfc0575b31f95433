// Files of picks: written in the cache folder, read by later runs, pinned, and refused when damaged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "io/picks.h"
#include "io_check.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* head = R"({"tessera_picks":1,"device":"cpu","card":"a","libraries":"b"})";

TEST(Picks, FileReadsAsItWasWritten) {
  const PicksFile file{"cuda",
                       "NVIDIA H100 80GB HBM3 sm_90",
                       "tessera 0.1.0",
                       {{"matmul f16[2,2] f16[2,2]{1,2} -> 1", {"vendor", "now", {{"gemm", 2.5}, {"vendor", 1.25}}}},
                        {"conv2d", {"x", "", {}}}}};
  const std::string text = format_picks(file);
  const PicksFile read = parse_picks(text);
  EXPECT_EQ(read.card, file.card);
  EXPECT_EQ(read.picks.at("conv2d").kernel, "x");
  EXPECT_EQ(read.picks.begin()->first, "conv2d");
  EXPECT_EQ(read.picks.at("matmul f16[2,2] f16[2,2]{1,2} -> 1").microseconds, file.picks.rbegin()->second.microseconds);
  EXPECT_EQ(format_picks(read), text);
}

TEST(Picks, DamagedFilesAreRefusedWithTheLine) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_picks(text, "file");
    } catch (const FileError& error) {
      return error.what();
    }
    return "";
  };
  const std::string first = std::string(head) + '\n';
  EXPECT_EQ(refusal(head), "");
  EXPECT_EQ(refusal(""), "file: line 1: not a JSON object");
  EXPECT_EQ(refusal("{}"), "file: line 1: not a file of picks");
  EXPECT_EQ(refusal(R"({"tessera_picks":2})"), "file: line 1: format 2; this program reads 1");
  EXPECT_EQ(refusal(R"({"tessera_picks":1,"device":"cpu","card":7})"), "file: line 1: no text 'card'");
  EXPECT_EQ(refusal(first + "\n"), "file: line 2: not a JSON object");
  EXPECT_EQ(refusal(first + R"({"call":"c","kernel":"k","when":"w"})"), "file: line 2: no times");
  EXPECT_EQ(refusal(first + R"({"call":"c","kernel":"k","when":"w","microseconds":{"k":-1}})"),
            "file: line 2: a time that is no number of microseconds");
  EXPECT_EQ(refusal(first + R"({"call":"c","kernel":"\u001b[2J","when":"w","microseconds":{}})"),
            "file: line 2: 'kernel' is no short printable text");
  EXPECT_EQ(refusal(first + std::string(R"({"call":"c","kernel":"k","when":"w","microseconds":{}})").substr(0, 30)),
            "file: line 2: not a JSON object");
}

/// A cache folder of its own.
class PicksOnDisk : public testing::Test {
 protected:
  void SetUp() override { setenv("TESSERA_CACHE_DIR", folder.c_str(), 1); }
  void TearDown() override {
    static_picks();
    unsetenv("TESSERA_CACHE_DIR");
    fs::remove_all(folder);
  }
  static Tensor convolve(int64_t images) {
    NoGrad guard;
    Generator generator(3);
    return conv2d(randn({images, 16, 14, 14}, generator), randn({16, 16, 3, 3}, generator));
  }
  static PicksFile written() { return parse_picks(read_file(picks_file(cpu()))); }

  const std::string folder = testing::TempDir() + "/tessera-picks-" + std::to_string(getpid());
};

TEST_F(PicksOnDisk, AreKeptAndUsedByTheNextRun) {
  measure_picks();
  convolve(2);
  convolve(3);
  PicksFile file = written();
  EXPECT_EQ(file.card, card_of(cpu()));
  EXPECT_EQ(file.picks.size(), 2u);
  EXPECT_TRUE(fs::exists(folder + "/tessera-cache"));
  measure_picks();  // as a new process would
  convolve(2);
  EXPECT_EQ(format_picks(written()), format_picks(file));
}

TEST_F(PicksOnDisk, OfSeveralWritersAreAllKept) {
  measure_picks();
  convolve(2);
  const PicksFile before = written();
  const std::string path = picks_file(cpu());
  PicksFile other = before;  // written by another process meanwhile
  other.picks["other"] = {"k", "w", {{"k", 1}}};
  write_file(path, format_picks(other));
  convolve(3);
  EXPECT_EQ(written().picks.size(), 3u);
  EXPECT_TRUE(written().picks.contains("other"));
}

TEST_F(PicksOnDisk, OfAnotherCardAreNotUsedAndADamagedFileIsReplaced) {
  measure_picks();
  convolve(2);
  PicksFile other = written();
  other.libraries = "tessera 0.0.1";
  write_file(picks_file(cpu()), format_picks(other));
  measure_picks();
  convolve(3);
  EXPECT_EQ(written().picks.size(), 1u);
  write_file(picks_file(cpu()), "damaged");
  measure_picks();
  testing::internal::CaptureStderr();
  convolve(3);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("line 1: not a JSON object: it will be written anew"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_EQ(written().picks.size(), 1u);
}

TEST_F(PicksOnDisk, PinnedMeasureNothing) {
  const std::string path = folder + "-pinned";
  write_file(path, std::string(head) + '\n');
  pin_picks(path);
  testing::internal::CaptureStderr();
  convolve(2);
  convolve(3);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("was measured on a with b; this is "), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_THROW(pin_picks(folder + "/missing"), FileError);
  fs::remove(path);
}

TEST_F(PicksOnDisk, OfAnotherKindOfDeviceAreRefused) {
  const std::string path = folder + "-cuda";
  write_file(path, R"({"tessera_picks":1,"device":"cuda","card":"a","libraries":"b"})");
  pin_picks(path, cuda());
  try {
    pin_picks(path, cpu());
    ADD_FAILURE() << "no error";
  } catch (const FileError& error) {
    EXPECT_EQ(error.what(), '"' + path + "\" was measured on cuda: nothing in it is for cpu");
  }
  fs::remove(path);
}

TEST_F(PicksOnDisk, TakeOverNoFolderOfOthers) {
  fs::create_directories(folder);
  write_file(folder + "/thesis.txt", "all of it");
  measure_picks();
  testing::internal::CaptureStderr();
  convolve(2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("holds files, but not of tessera"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(folder + "/tessera-cache"));  // so that `cache clear` refuses it
  EXPECT_TRUE(fs::exists(folder + "/thesis.txt"));
}

TEST_F(PicksOnDisk, ThatCannotBeKeptAreUsedAllTheSame) {
  setenv("TESSERA_CACHE_DIR", "/proc/none", 1);
  measure_picks();
  testing::internal::CaptureStderr();
  convolve(2);
  convolve(3);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("warning: measured picks are not kept: "), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

}  // namespace
}  // namespace tessera
