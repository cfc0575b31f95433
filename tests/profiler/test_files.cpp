// A recording's files, on disks that are full, in the way, or slow.
#include "profiler/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>

#include "sample_trace.h"
#include "tessera/error.h"

namespace tessera::profiler {
namespace {

namespace fs = std::filesystem;

struct RecordingFiles : testing::Test {
  RecordingFiles() {
    std::string name = (fs::temp_directory_path() / "tessera-files-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    folder = name;
  }
  ~RecordingFiles() override { fs::remove_all(folder); }
  std::string file(const std::string& name) const { return folder + "/" + name; }

  std::string folder;
  const std::shared_ptr<const Recording> recording =
      std::make_shared<Recording>(std::make_shared<const Trace>(SampleTrace(true).trace()));
  const std::string own = "node-17_4242.1760000000123";
};

TEST_F(RecordingFiles, OfTheSameMillisecondAreTwo) {
  const WrittenFiles first = write_files(*recording, folder), second = write_files(*recording, folder);
  EXPECT_EQ(first.trace, file(own + ".pt.trace.json"));
  EXPECT_EQ(second.trace, file("node-17_4242.1760000000124.pt.trace.json"));
  EXPECT_TRUE(fs::equivalent(file("report.html"), file("node-17_4242.1760000000124.report.html")));
  EXPECT_EQ(first.trouble.size() + second.trouble.size(), 0u);
}

/// Each file that cannot be written is named, and the others are written.
TEST_F(RecordingFiles, WhatCannotBeWrittenIsNamed) {
  fs::create_directories(file(own + ".pt.trace.json.tmp"));
  fs::create_directories(file("report.html/in the way"));
  const WrittenFiles written = write_files(*recording, folder);
  EXPECT_EQ(written.trace, "");
  ASSERT_EQ(written.trouble.size(), 2u);
  EXPECT_EQ(written.trouble[0], "cannot write \"" + file(own + ".pt.trace.json") + "\": Is a directory");
  EXPECT_EQ(written.trouble[1], "cannot write \"" + file("report.html") + "\": Is a directory");
  for (const char* name : {"memory.json.gz", "flame.svg"}) EXPECT_GT(fs::file_size(file(name)), 100u) << name;
  EXPECT_FALSE(fs::exists(file("report.html.tmp")));
  try {
    recording->write(folder);
    FAIL();
  } catch (const FileError& e) {
    EXPECT_EQ(e.what(), written.trouble[0] + "; " + written.trouble[1]);
  }
}

/// A disk that hangs, here a pipe until somebody reads it, does not stop the program.
TEST_F(RecordingFiles, AreWrittenBesideTheProgram) {
  const std::string pipe = file(own + ".pt.trace.json.tmp");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  auto writer = std::make_unique<FileWriter>();
  writer->begin(recording, folder);
#if !defined(__SANITIZE_THREAD__)  // the sanitizer does not follow threads made after fork
  const pid_t child = fork();
  if (child == 0) {
    const bool nothing = writer->wait().trouble.empty();
    writer.reset();  // waits for no thread of its parent
    _exit(nothing ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
#endif
  EXPECT_FALSE(fs::exists(file("report.html")));
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const WrittenFiles written = writer->wait();
  close(reader);
  ASSERT_EQ(written.trouble.size(), 1u) << "a pipe is no file";
  EXPECT_NE(written.trouble[0].find(own + ".pt.trace.json"), std::string::npos) << written.trouble[0];
  EXPECT_TRUE(fs::exists(file("report.html")));
  EXPECT_TRUE(writer->wait().trouble.empty()) << "said once";
}

}  // namespace
}  // namespace tessera::profiler
