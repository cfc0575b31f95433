#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "core/util/hash.h"
#include "io/file.h"
#include "io/io_check.h"
#include "tessera/io.h"

namespace tessera {
namespace {

Checkpoint sample(float value = 1) {
  return {{{"model.w", tensor<float>({value, 2, 3, 4, 5, 6}, {2, 3})}, {"step", tensor<int64_t>({7}, {})}},
          {{"config", R"({"layers":4})"}}};
}

// Replaces `from` by `to`, of the same length, and makes the checksum right again.
std::string forged(std::string bytes, const std::string& from, const std::string& to) {
  bytes.replace(bytes.find(from), from.size(), to);
  Hash hash;
  hash.update(bytes.data(), bytes.size() - 8);
  const uint64_t sum = hash.value();
  bytes.replace(bytes.size() - 8, 8, reinterpret_cast<const char*>(&sum), 8);
  return bytes;
}

TEST(Checkpoint, RoundTrip) {
  TemporaryFolder folder;
  const std::string path = folder / "c";
  save_checkpoint(path, sample());
  const Checkpoint c = load_checkpoint(path);
  ASSERT_EQ(c.tensors.size(), 2u);
  EXPECT_TRUE(same_bytes(c.tensors.at("model.w"), sample().tensors.at("model.w")));
  EXPECT_EQ(*c.tensors.at("step").data<int64_t>(), 7);
  EXPECT_EQ(c.metadata, sample().metadata);
  EXPECT_EQ(SafeTensors(path).names().size(), 3u);  // other programs can read it
}

TEST(Checkpoint, EveryChangedByteIsNoticed) {
  TemporaryFolder folder;
  save_checkpoint(folder / "c", sample());
  const std::string bytes = read_file(folder / "c");
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    EXPECT_THROW(parse_checkpoint(damaged), FileError) << i;
  }
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(parse_checkpoint(bytes.substr(0, size)), FileError) << size;
  EXPECT_THROW(parse_checkpoint(bytes + "x"), FileError);
}

TEST(Checkpoint, RefusesWhatItCannotUse) {
  TemporaryFolder folder;
  save_checkpoint(folder / "c", sample());
  const std::string bytes = read_file(folder / "c");
  std::string damaged = bytes;
  damaged[damaged.size() - 20] ^= 1;
  EXPECT_EQ(file_error([&] { parse_checkpoint(damaged, "c"); }), "c: damaged checkpoint: the checksum does not match");
  EXPECT_EQ(file_error([&] { parse_checkpoint(forged(bytes, R"("version":"1")", R"("version":"9")"), "c"); }),
            "c: written by a newer program: checkpoint format 9, this one reads up to 2");
  EXPECT_EQ(file_error([&] { parse_checkpoint(forged(bytes, R"("version":"1")", R"("version":"0")"), "c"); }),
            "c: damaged checkpoint: format version \"0\"");
  EXPECT_EQ(file_error([&] { parse_checkpoint(forged(bytes, R"("checksum")", R"("zhecksum")"), "c"); }),
            "c: damaged checkpoint: no checksum");
  save_safetensors(folder / "s", sample().tensors);
  EXPECT_EQ(file_error([&] { load_checkpoint(folder / "s"); }), (folder / "s") + ": not a checkpoint of tessera");
  EXPECT_EQ(file_error([&] { load_checkpoint(folder / "none"); }),
            "cannot open \"" + (folder / "none") + "\": No such file or directory");
}

TEST(Checkpoint, AFullDiskLeavesTheOldOne) {
  TemporaryFolder folder;
  const std::string path = folder / "c";
  save_checkpoint(path, sample(1));
  const std::string before = read_file(path);
  Checkpoint big = sample(2);
  big.tensors["big"] = empty({1 << 20});
  std::memset(big.tensors["big"].data_ptr(), 0, 4 << 20);

  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1 << 20;
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { save_checkpoint(path, big); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);

  EXPECT_EQ(error, "cannot write \"" + path + "\": File too large");
  EXPECT_EQ(read_file(path), before);
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  save_checkpoint(path, big);
  EXPECT_EQ(load_checkpoint(path).tensors.at("model.w").data<float>()[0], 2);
}

TEST(Checkpoint, AKilledWriterLeavesTheOldOne) {
  TemporaryFolder folder;
  const std::string path = folder / "c";
  save_checkpoint(path, sample(0));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      Checkpoint big = sample(0);
      big.tensors["big"] = from_memory(std::calloc(1 << 20, 4), {1 << 20}, Float32, nullptr);
      for (;;) save_checkpoint(path, big);
    }
    usleep(static_cast<useconds_t>(1000 + 700 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_NO_THROW(load_checkpoint(path)) << round;
  }
  save_checkpoint(path, sample(5));  // a temporary file that was left behind is no obstacle
  EXPECT_EQ(load_checkpoint(path).tensors.at("model.w").data<float>()[0], 5);
}

TEST(Files, ASecondWriterIsRefused) {
  TemporaryFolder folder;
  AtomicFile first(folder / "f");
  EXPECT_EQ(error_of([&] { write_file(folder / "f", "b"); }),
            "\"" + (folder / "f") + "\" is being written by another process");
  first.write("a", 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
  first.commit();
  EXPECT_EQ(read_file(folder / "f"), "a");
  write_file(folder / "f", "b");
  EXPECT_EQ(read_file(folder / "f"), "b");
}

/// What could not be begun is let go of: the second attempt fails as the first.
TEST(Files, ATemporaryNameThatIsADeviceIsRefused) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/zero", folder / "f.tmp");
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(error_of([&] { write_file(folder / "f", "b"); }),
              "cannot write \"" + (folder / "f") + "\": Invalid argument");
}

TEST(Files, ReadFileReadsPipesAndEmptyFiles) {
  TemporaryFolder folder;
  write_file(folder / "empty", "");
  EXPECT_EQ(read_file(folder / "empty"), "");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "text", 4), 4);
  close(ends[1]);
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), "text");
  close(ends[0]);
  EXPECT_EQ(file_error([&] { read_file("/"); }), "cannot read \"/\": Is a directory");
  EXPECT_EQ(file_error([&] { load_npy("/dev/null"); }), "\"/dev/null\" is not a regular file");
}

TEST(Hash, DoesNotDependOnHowTheBytesArrive) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i * 37 + i / 7);
  Hash whole;
  whole.update(bytes.data(), bytes.size());
  for (size_t step : {1, 3, 8, 13, 64}) {
    Hash parts;
    for (size_t at = 0; at < bytes.size(); at += step)
      parts.update(bytes.data() + at, std::min(step, bytes.size() - at));
    EXPECT_EQ(parts.value(), whole.value()) << step;
  }
  Hash shorter;
  shorter.update(bytes.data(), bytes.size() - 1);
  EXPECT_NE(shorter.value(), whole.value());
}

}  // namespace
}  // namespace tessera
