// Checkpoints that stay when newer ones come, and what is read where the newest one is damaged.
#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint_parts.h"
#include "io/io_check.h"
#include "io/kept_checkpoints.h"
#include "tessera/io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

Checkpoint of(float value) { return {{{"w", full({9, 5}, value, Float32)}}, {{"kind", "test"}}}; }

float value_of(const Checkpoint& checkpoint) { return checkpoint.tensors.at("w").data<float>()[0]; }

// As so many ranks would; one writes no parts.
void save_as(int ranks, const std::string& path, float value, int keep) {
  if (ranks == 1) return save_checkpoint(path, of(value), keep);
  const int64_t generation = next_generation(path);
  std::vector<std::string> entries;
  for (int r = 0; r < ranks; ++r)
    entries.push_back(save_part(path, generation, r, share_of(of(value).tensors, r, ranks)));
  save_index(path, entries, of(value).metadata, keep);
}

size_t files_in(const TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder.path()), {}));
}

// Some files that make up the checkpoint: its parts, and itself.
std::vector<std::string> files_of(const std::string& path) {
  std::vector<std::string> out{path};
  const SafeTensors file(path);
  if (!file.metadata().contains("parts")) return out;
  for (const IndexedPart& part : parse_index(file.metadata().at("parts"), path))
    out.push_back((fs::path(path).parent_path() / part.file).string());
  return out;
}

TEST(KeptCheckpoints, AreThoseBeforeTheNewest) {
  for (const int ranks : {1, 3}) {
    TemporaryFolder folder;
    const std::string path = folder / "c";
    for (int i = 1; i <= 5; ++i) save_as(ranks, path, static_cast<float>(i), 3);
    for (int age = 0; age < 3; ++age)
      EXPECT_EQ(value_of(load_checkpoint(checkpoint_of_age(path, age))), static_cast<float>(5 - age));
    EXPECT_EQ(files_in(folder), ranks == 1 ? 3 : 3 + 3 * 3);
    save_as(ranks, path, 6, 2);  // fewer from now on
    EXPECT_EQ(value_of(load_checkpoint(path + ".1")), 5);
    EXPECT_FALSE(fs::exists(path + ".2"));
    save_as(ranks, path, 7, 1);
    EXPECT_EQ(files_in(folder), ranks == 1 ? 1 : 4);
    EXPECT_EQ(value_of(load_checkpoint(path)), 7);
  }
}

TEST(KeptCheckpoints, TheNewestWholeOneIsRead) {
  for (const int ranks : {1, 3}) {
    TemporaryFolder folder;
    const std::string path = folder / "c";
    for (int i = 1; i <= 3; ++i) save_as(ranks, path, static_cast<float>(i), 3);
    const WholeCheckpoint newest = load_whole_checkpoint(path);
    EXPECT_EQ(newest.age, 0);
    EXPECT_EQ(newest.why, "");
    EXPECT_EQ(value_of(newest.checkpoint), 3);
    for (const std::string& file : files_of(path)) {
      const std::string good = read_file(file);
      std::string altered = good;
      altered[altered.size() - 20] ^= 1;
      for (const std::string& bad : {good.substr(0, good.size() / 2), std::string(), altered}) {
        write_file(file, bad);
        const WholeCheckpoint found = load_whole_checkpoint(path);
        EXPECT_EQ(found.age, 1) << file;
        EXPECT_EQ(value_of(found.checkpoint), 2);
        EXPECT_EQ(found.why, file_error([&] { load_checkpoint(path); }));
      }
      write_file(file, good);
    }
    write_file(path, "");
    write_file(path + ".1", "");
    EXPECT_EQ(value_of(load_whole_checkpoint(path).checkpoint), 1);
    write_file(path + ".2", "x");
    EXPECT_EQ(file_error([&] { load_whole_checkpoint(path); }), file_error([&] { load_checkpoint(path); }));
    EXPECT_EQ(file_error([&] { load_whole_checkpoint(folder / "none"); }),
              "cannot open \"" + (folder / "none") + "\": No such file or directory");
  }
}

// What is whole, but not for this program, is no reason to go back.
TEST(KeptCheckpoints, ANewerFormatIsRefused) {
  TemporaryFolder folder;
  save_checkpoint(folder / "c", of(1), 2);
  save_with_checksum(folder / "c", of(2).tensors, {{"format", "tessera checkpoint"}, {"version", "9"}}, 2);
  EXPECT_EQ(value_of(load_checkpoint(folder / "c.1")), 1);
  EXPECT_NE(file_error([&] { load_whole_checkpoint(folder / "c"); }).find("written by a newer program"),
            std::string::npos);
}

TEST(KeptCheckpoints, AWriterThatWasKilledLosesNone) {
  TemporaryFolder folder;
  const std::string path = folder / "c";
  for (int i = 1; i <= 3; ++i) save_checkpoint(path, of(static_cast<float>(i)), 3);
  for (int i = 0; i < 4; ++i) keep_replaced(path, 3);  // and then nothing: each time as far as the rename
  EXPECT_EQ(value_of(load_checkpoint(path)), 3);
  EXPECT_EQ(value_of(load_checkpoint(path + ".1")), 3);
  EXPECT_EQ(value_of(load_checkpoint(path + ".2")), 2);
  save_checkpoint(path, of(4), 3);
  EXPECT_EQ(value_of(load_checkpoint(path)), 4);
  EXPECT_EQ(value_of(load_checkpoint(path + ".1")), 3);
  EXPECT_EQ(files_in(folder), 3);
}

TEST(KeptCheckpoints, ADamagedOneMakesRoom) {
  TemporaryFolder folder;
  const std::string path = folder / "c";
  for (int i = 1; i <= 2; ++i) save_as(2, path, static_cast<float>(i), 2);
  write_file(path, "");
  go_back_to(path, load_whole_checkpoint(path).age);
  EXPECT_EQ(value_of(load_checkpoint(path)), 1);
  save_as(2, path, 3, 2);
  EXPECT_EQ(value_of(load_checkpoint(path)), 3);
  EXPECT_EQ(value_of(load_checkpoint(path + ".1")), 1);
  EXPECT_EQ(files_in(folder), 6);  // no part of the damaged one
  EXPECT_EQ(error_of([&] { go_back_to(path, 7); }), "cannot write \"" + path + "\": No such file or directory");
}

}  // namespace
}  // namespace tessera
