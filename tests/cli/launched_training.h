// A small GPT as ranks that `tessera launch` begins, in a folder of its own.
#pragma once
#include "command_line.h"

namespace tessera::cli {

struct LaunchedTraining : testing::Test {
  Folder folder;
  std::string text = folder / "text.txt", shards = folder / "shards", out = folder / "out";
  Words source{"--text", text};
  void SetUp() override {
    std::string many;
    for (int i = 0; i < 60; ++i)
      many += "Shall I compare thee to a summer's day? Thou art more lovely and more temperate.\n";
    write_file(text, many);
  }
  /// `name`: of the results in the folder.
  Words train(int steps, const std::string& name, int accumulation = 4, int checkpoint_interval = 7) const {
    return Words{"train", "gpt"} + source +
           Words{"--out",
                 out,
                 "--layers",
                 "1",
                 "--heads",
                 "2",
                 "--width",
                 "16",
                 "--block",
                 "8",
                 "--batch",
                 "2",
                 "--dropout",
                 "0.1",
                 "--accumulation",
                 std::to_string(accumulation),
                 "--steps",
                 std::to_string(steps),
                 "--threads",
                 "1",
                 "--json",
                 folder / name,
                 "--eval-interval",
                 "0",
                 "--checkpoint-interval",
                 std::to_string(checkpoint_interval)};
  }
  static Words launched(int procs, const Words& words, const Words& options = {},
                        const std::string& program = TESSERA_COMMAND) {
    return Words{"launch", "--procs", std::to_string(procs), "--grace", "2"} + options + Words{"--", program} + words;
  }
  nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(read_file(folder / name)); }
};

}  // namespace tessera::cli
