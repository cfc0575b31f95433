// Checkpoints of many ranks: who writes what, and what is read of parts that are damaged, missing or of another index.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "core/util/hash.h"
#include "io/checkpoint_parts.h"
#include "io/io_check.h"
#include "tessera/io.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Tensors of odd shapes, the small ones of all kinds.
Checkpoint several(float value = 1) {
  std::mt19937 random(7);
  std::vector<float> many(7 * 3 * 11);
  for (float& x : many) x = value * static_cast<float>(random());
  return {{{"a.w", tensor(many, {7, 3, 11})},
           {"b", tensor<float>({value}, {})},
           {"c.empty", empty({0, 4})},
           {"d.row", tensor(std::vector<float>(many.begin(), many.begin() + 33), {1, 33, 1})},
           {"e.step", tensor<int64_t>({1, 2, 3}, {3})},
           {"f.flags", tensor(std::vector<bool>{true, false, true}, {3})}},
          {{"config", R"({"layers":4})"}}};
}

// As so many ranks would.
void save_as(int ranks, const std::string& path, const Checkpoint& checkpoint) {
  const int64_t generation = next_generation(path);
  std::vector<std::string> entries;
  for (int r = 0; r < ranks; ++r)
    entries.push_back(save_part(path, generation, r, share_of(checkpoint.tensors, r, ranks)));
  save_index(path, entries, checkpoint.metadata);
}

void expect_same(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.metadata, b.metadata);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, t] : a.tensors) EXPECT_TRUE(same_bytes(t, b.tensors.at(name))) << name;
}

std::vector<std::string> files_of(const TemporaryFolder& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder.path())) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// An index with a checksum that fits.
void write_index(const std::string& path, const std::string& parts) {
  save_with_checksum(path, {}, {{"format", "tessera checkpoint"}, {"version", "2"}, {"parts", parts}});
}

std::string parts_in(const std::string& path) { return SafeTensors(path).metadata().at("parts"); }

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(CheckpointParts, AnyNumberOfRanksWritesWhatOneReads) {
  for (const int ranks : {1, 2, 3, 4, 7, 40}) {
    TemporaryFolder folder;
    save_as(ranks, folder / "c", several());
    expect_same(load_checkpoint(folder / "c"), several());
    EXPECT_EQ(files_of(folder).size(), static_cast<size_t>(ranks) + 1);
  }
}

TEST(CheckpointParts, SharesAreBalanced) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    StateDict dict;
    size_t all = 0, row = 0;
    for (int i = 0; i < 9; ++i) {
      const auto size = [&] { return static_cast<int64_t>(1 + random() % 50); };
      const Tensor t = empty({size(), size()});
      dict.emplace(std::to_string(i), t);
      all += static_cast<size_t>(t.numel()) * 4;
      row = std::max(row, static_cast<size_t>(std::max(t.size(1), t.size(0))) * 4);
    }
    for (const int parts : {1, 2, 3, 8}) {
      size_t sum = 0;
      for (int p = 0; p < parts; ++p) {
        size_t bytes = 0;
        for (const TensorSlice& s : share_of(dict, p, parts)) bytes += static_cast<size_t>(s.data.numel()) * 4;
        EXPECT_LE(bytes, all / static_cast<size_t>(parts) + static_cast<size_t>(parts) + 2 * row);
        sum += bytes;
      }
      EXPECT_EQ(sum, all);
    }
  }
}

// What sharded parameters will write: blocks in two dims.
TEST(CheckpointParts, BlocksOfSeveralDims) {
  TemporaryFolder folder;
  const Tensor w = several().tensors.at("a.w");
  const int64_t generation = next_generation(folder / "c");
  std::vector<std::string> entries;
  int part = 0;
  for (const auto& [from, to] : {std::pair{0, 2}, {2, 7}})
    for (const auto& [left, right] : {std::pair{0, 5}, {5, 11}})
      entries.push_back(save_part(folder / "c", generation, part++,
                                  {{"w", w.shape(), {from, 0, left}, w.slice(0, from, to).slice(2, left, right)}}));
  save_index(folder / "c", entries, {});
  EXPECT_TRUE(same_bytes(load_checkpoint(folder / "c").tensors.at("w"), w));
}

TEST(CheckpointParts, OldOnesAreRemovedOnceTheIndexIsInPlace) {
  TemporaryFolder folder;
  save_as(3, folder / "c", several(1));
  save_part(folder / "c", 5, 0, share_of(several(9).tensors, 0, 2));  // of a writer that was killed
  write_file(folder / "c.x-1.part", "another's");
  write_file(folder / "d.1-0.part", "another's");
  save_as(2, folder / "c", several(2));
  expect_same(load_checkpoint(folder / "c"), several(2));
  EXPECT_EQ(files_of(folder), (std::vector<std::string>{"c", "c.2-0.part", "c.2-1.part", "c.x-1.part", "d.1-0.part"}));
  fs::rename(folder / "c", folder / "c.old");  // what another run has left is kept
  save_as(2, folder / "c", several(3));
  expect_same(load_checkpoint(folder / "c.old"), several(2));
  save_checkpoint(folder / "c", several(4));  // one rank needs no parts
  expect_same(load_checkpoint(folder / "c"), several(4));
  expect_same(load_checkpoint(folder / "c.old"), several(2));
  fs::remove(folder / "c.old");
  save_checkpoint(folder / "c", several(5));
  EXPECT_EQ(files_of(folder), (std::vector<std::string>{"c", "c.x-1.part", "d.1-0.part"}));
}

TEST(CheckpointParts, WhatIsDamagedIsRefused) {
  TemporaryFolder folder;
  const std::string path = folder / "c", part = folder / "c.1-1.part";
  save_as(2, path, several());
  const std::string good = read_file(part), index = read_file(path);
  for (size_t i = 0; i < good.size(); i += 7) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    write_file(part, damaged);
    EXPECT_NE(file_error([&] { load_checkpoint(path); }), "no error") << i;
  }
  for (size_t i = 0; i < index.size(); i += 5) {
    std::string damaged = index;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    EXPECT_NE(file_error([&] { parse_checkpoint(damaged); }), "no error") << i;
  }
  write_file(part, good.substr(0, 100));
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }).find(part + ": "), 0);
  fs::remove(part);
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }), "cannot open \"" + part + "\": No such file or directory");
  save_with_checksum(part, several(2).tensors, {{"format", "tessera checkpoint part"}});  // whole, but of another
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }),
            path + ": damaged checkpoint: \"c.1-1.part\" is not the part that it names");
  EXPECT_EQ(file_error([&] { load_checkpoint(part); }), part + ": not a checkpoint of tessera");
  save_checkpoint(part, several());
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }), part + ": not a part of a checkpoint");
  EXPECT_EQ(file_error([&] { parse_checkpoint(index, "c"); }),
            "c: the checkpoint has parts, such as \"c.1-0.part\": give load_checkpoint its path");
}

TEST(CheckpointParts, AnIndexThatLiesIsRefused) {
  TemporaryFolder folder;
  const std::string path = folder / "c";
  save_as(2, path, {{{"w", several().tensors.at("a.w")}}, {}});
  const std::string good = parts_in(path);
  const auto error = [&](const std::string& from, const std::string& to) {
    write_index(path, replaced(good, from, to));
    return file_error([&] { load_checkpoint(path); });
  };
  const std::string damaged = path + ": damaged checkpoint: ";
  EXPECT_EQ(error("[4,3,11]", "[5,3,11]"), damaged + "\"c.1-0.part\" has no \"w[0:5,0:3,0:11]\"");
  EXPECT_EQ(error("[4,3,11]", "[8,3,11]"), damaged + "a slice leaves its tensor \"w\"");
  EXPECT_EQ(error("[4,3,11]", "[4,3]"), damaged + "a slice leaves its tensor \"w\"");
  EXPECT_EQ(error("[0,0,0]", "[9223372036854775807,0,0]"), damaged + "a slice leaves its tensor \"w\"");
  EXPECT_EQ(error("[0,0,0]", "[-1,0,0]"), damaged + "bad index");
  EXPECT_EQ(error("[0,0,0]", "[3,0,0]"), damaged + "\"c.1-0.part\" has no \"w[3:7,0:3,0:11]\"");
  EXPECT_EQ(error("\"name\":\"w\"", "\"name\":\"v\""), damaged + "\"c.1-0.part\" has no \"v[0:4,0:3,0:11]\"");
  EXPECT_EQ(error("c.1-0.part", "../c.1-0.part"), damaged + "\"../c.1-0.part\" is no name of a part");
  EXPECT_EQ(error("c.1-0.part", "c.1-1.part"), damaged + "\"c.1-1.part\" is not the part that it names");
  EXPECT_EQ(error("\"bytes\":", "\"bytes\":1"), damaged + "\"c.1-0.part\" is not the part that it names");
  EXPECT_EQ(error("\"bytes\"", "\"bites\""), damaged + "bad index: no bytes");
  EXPECT_EQ(error("[{", "[[[[[[[[{"), damaged + "bad index");
  EXPECT_EQ(error("[{", "{"), damaged + "no index of parts");
  // Only the first part, then that part twice.
  const std::string first = good.substr(1, good.find(",\n") - 1);
  write_index(path, "[" + first + "]");
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }), damaged + "a slice is missing of \"w\"");
  write_index(path, "[" + first + "," + first + "]");
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }), damaged + "slices that overlap in \"w\"");
  save_with_checksum(path, {{"w", ones({2})}}, {{"format", "tessera checkpoint"}, {"version", "2"}, {"parts", good}});
  EXPECT_EQ(file_error([&] { load_checkpoint(path); }), damaged + "tensors in an index");
  write_index(path, good);
  EXPECT_EQ(load_checkpoint(path).tensors.size(), 1);
}

TEST(CheckpointParts, AnIndexDoesNotNameWhatItsWriterCannotSee) {
  TemporaryFolder folder;
  save_as(2, folder / "c", several(1));
  const int64_t generation = next_generation(folder / "c");
  const std::vector<std::string> entries{save_part(folder / "c", generation, 0, share_of(several(2).tensors, 0, 2)),
                                         save_part(folder / "c", generation, 1, share_of(several(2).tensors, 1, 2))};
  fs::remove(folder / "c.2-1.part");
  EXPECT_EQ(error_of([&] { save_index(folder / "c", entries, {}); }),
            "cannot write \"" + (folder / "c") +
                "\": this rank does not see \"c.2-1.part\" as another wrote it; all ranks need one folder");
  expect_same(load_checkpoint(folder / "c"), several(1));
}

TEST(CheckpointParts, AReaderSeesOneCheckpointWhileOthersAreWritten) {
  TemporaryFolder folder;
  save_as(2, folder / "c", several(0));
  const pid_t child = fork();
  if (child == 0)
    for (int i = 0;; ++i) save_as(1 + i % 3, folder / "c", several(static_cast<float>(i % 5)));
  for (int i = 0; i < 200; ++i) {
    const Checkpoint c = load_checkpoint(folder / "c");
    expect_same(c, several(c.tensors.at("b").item<float>()));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(CheckpointParts, AKilledWriterLeavesTheOldOne) {
  TemporaryFolder folder;
  save_as(2, folder / "c", several(0));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0)
      for (int i = 0;; ++i) save_as(1 + i % 3, folder / "c", several(static_cast<float>(i % 5)));
    usleep(static_cast<useconds_t>(1000 + 700 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const Checkpoint c = load_checkpoint(folder / "c");
    expect_same(c, several(c.tensors.at("b").item<float>()));
  }
  save_as(3, folder / "c", several(5));
  EXPECT_EQ(files_of(folder).size(), 4);
}

}  // namespace
}  // namespace tessera
