// Checkpoints that ranks write together.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "io/io_check.h"
#include "tessera/dist_checkpoint.h"
#include "tessera/ops.h"

namespace tessera::dist {
namespace {

Checkpoint alike(double value) {
  return {{{"w", full({37, 5}, value, Float32)}, {"step", tensor<int64_t>({7}, {})}}, {{"kind", "test"}}};
}

TEST(DistCheckpoint, IsReadByAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    TemporaryFolder folder;
    for (const double value : {1.0, 2.0})
      run_ranks(ranks, [&](const World& world) {
        save_checkpoint(folder / "c", alike(value), world);
        const Checkpoint c = load_checkpoint(folder / "c");  // in place when the call returns
        EXPECT_TRUE(same_bytes(c.tensors.at("w"), alike(value).tensors.at("w")));
        EXPECT_EQ(c.metadata, alike(value).metadata);
      });
    const auto files = std::distance(std::filesystem::directory_iterator(folder.path()), {});
    EXPECT_EQ(files, ranks == 1 ? 1 : ranks + 1);
  }
}

TEST(DistCheckpoint, ARankThatCannotWriteLeavesTheOldOne) {
  TemporaryFolder folder;
  const auto first = [&] { return load_checkpoint(folder / "c").tensors.at("w").data<float>()[0]; };
  run_ranks(3, [&](const World& world) { save_checkpoint(folder / "c", alike(1), world); });
  const std::string full = folder / "c.2-1.part.tmp";  // of rank 1, next time
  const std::string error = error_of([&] {
    run_ranks(3, [&](const World& world) {
      if (world.rank() == 1) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(300));  // until rank 0 has a number and waits for this one
        std::filesystem::create_directories(full + "/x");
      }
      save_checkpoint(folder / "c", alike(2), world);
    });
  });
  EXPECT_EQ(error, "cannot write \"" + (folder / "c.2-1.part") + "\": Is a directory");
  EXPECT_EQ(first(), 1);
  std::filesystem::remove_all(full);
  run_ranks(2, [&](const World& world) { save_checkpoint(folder / "c", alike(3), world); });
  EXPECT_EQ(first(), 3);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}),
            3);  // no part of the one that failed
}

TEST(DistCheckpoint, AFolderThatIsNotThereEndsAll) {
  EXPECT_EQ(error_of([] {
              run_ranks(2, [](const World& world) { save_checkpoint("/none/c", alike(1), world); });
            }).find("cannot write \"/none/c.1-"),
            0);
}

}  // namespace
}  // namespace tessera::dist
