// Includes point down: each room of the house sees only those below it, so that there is no circle of rooms either.
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

namespace fs = std::filesystem;

// From below to above; rooms of a line do not see each other.
const std::vector<std::vector<std::string>> kStrata = {
    {"include"},  // what core declares for everybody
    {"core/util"},
    {"core/gpu"},
    {"core"},
    {"tile"},
    {"tile/arch/cpu"},
    {"tile/kernels"},
    {"tile/arch/gpu"},
    {"tile/arch/sm80", "tile/arch/cdna"},
    {"tile/arch/sm90"},
    {"kernels/args"},
    {"kernels/args/gpu"},
    {"kernels"},
    {"kernels/shared"},
    {"kernels/cpu/isa"},
    {"kernels/cpu"},
    {"kernels/gpu/device/runtime"},
    {"kernels/gpu/device/elementwise"},
    {"kernels/gpu/device/rows", "kernels/gpu/device/gemm", "kernels/gpu/device/attention",
     "kernels/gpu/device/indexing", "kernels/gpu/device/random", "kernels/gpu/device/optim",
     "kernels/gpu/device/recurrent"},
    {"kernels/gpu/device/conv", "kernels/gpu/device/vendor"},
    {"kernels/gpu/rtc"},
    {"kernels/gpu"},
    {"ops"},
    {"autograd"},
    {"nn", "optim", "io"},
    {"amp", "data", "dist"},
    {"onnx"},
    {"onnx/handlers", "onnx/writers"},
    {"onnx/optimize"},
    {"profiler"},
    {"train"},
    {"models"},
    {"cases"},
};

// The room that a public header speaks for; all others are core's.
const std::map<std::string, std::string> kPublic = {
    {"dist.h", "dist"},
    {"dist_checkpoint.h", "dist"},
    {"trainer.h", "train"},
    {"ops.h", "ops"},
    {"fused_gemm.h", "ops"},
    {"custom_op.h", "ops"},
    {"picks.h", "ops"},
    {"packing.h", "ops"},
    {"autocast.h", "ops"},
    {"amp.h", "amp"},
    {"nn.h", "nn"},
    {"nn_recurrent.h", "nn"},
    {"models_audio.h", "models"},
    {"models_text.h", "models"},
    {"models_vision.h", "models"},
    {"optim.h", "optim"},
    {"data.h", "data"},
    {"mds.h", "data"},
    {"remote.h", "data"},
    {"sample_order.h", "data"},
    {"streaming.h", "data"},
    {"io.h", "io"},
    {"models.h", "models"},
    {"tessera.h", "models"},
    {"profiler.h", "profiler"},
    {"onnx.h", "onnx"},
};

using Arrow = std::pair<std::string, std::string>;  // of rooms

/// All arrows between rooms below `root` (with src/ and include/tessera/), each with one example.
class House {
 public:
  explicit House(const fs::path& root) : source_(root / "src"), headers_(root / "include" / "tessera") {
    for (const fs::path& folder : {source_, headers_})
      for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (std::set<std::string>{".h", ".cpp", ".cu"}.count(entry.path().extension())) read(entry.path());
  }
  const std::map<Arrow, std::string>& arrows() const { return arrows_; }

 private:
  // Where an include leads from a file; nothing outside of the project.
  std::optional<fs::path> target(const fs::path& file, const std::string& included) const {
    if (included.rfind("tessera/tile/", 0) == 0) return source_ / included.substr(8);
    for (const fs::path& at : {file.parent_path() / included, source_ / included, headers_.parent_path() / included})
      if (fs::exists(at)) return at.lexically_normal();
    return std::nullopt;
  }
  std::string room(const fs::path& file) const {
    const fs::path in_source = file.lexically_relative(source_);
    if (*in_source.begin() != "..") return in_source.parent_path().string();
    const std::string name = file.filename().string();
    if (name.rfind("ops_", 0) == 0) return "ops";
    const auto found = kPublic.find(name);
    return found == kPublic.end() ? "include" : found->second;
  }
  void read(const fs::path& file) {
    static const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">].*)re");
    std::ifstream in(file);
    std::smatch match;
    for (std::string line; std::getline(in, line);)
      if (std::regex_match(line, match, include))
        if (const auto to = target(file, match[1]); to && room(*to) != room(file))
          arrows_.try_emplace({room(file), room(*to)}, file.string() + " includes " + match[1].str());
  }

  fs::path source_, headers_;
  std::map<Arrow, std::string> arrows_;
};

std::map<std::string, size_t> levels() {
  std::map<std::string, size_t> level;
  for (size_t i = 0; i < kStrata.size(); ++i)
    for (const std::string& room : kStrata[i]) level[room] = i;
  return level;
}

// What is wrong with the arrows, a line each.
std::vector<std::string> faults(const std::map<Arrow, std::string>& arrows) {
  const auto level = levels();
  std::vector<std::string> lines;
  for (const auto& [arrow, example] : arrows) {
    const auto& [from, to] = arrow;
    if (!level.count(from)) lines.push_back("room " + from + " has no place in the list: " + example);
    else if (!level.count(to)) lines.push_back("room " + to + " has no place in the list: " + example);
    else if (level.at(from) <= level.at(to)) lines.push_back(from + " -> " + to + " points up: " + example);
    else if (from.rfind("tile", 0) == 0 && to.rfind("tile", 0) != 0)
      lines.push_back("the tile library sees " + to + ": " + example);
  }
  return lines;
}

TEST(Arrows, PointDown) {
  const House house(TESSERA_SOURCE_DIR);
  EXPECT_GT(house.arrows().size(), 50u);
  for (const std::string& fault : faults(house.arrows())) ADD_FAILURE() << fault;
}

TEST(Arrows, ThatPointUpAreFound) {
  EXPECT_EQ(faults({{{"core", "ops"}, "a"}}).size(), 1u);
  EXPECT_EQ(faults({{{"kernels/cpu", "kernels/gpu"}, "a"}}).size(), 1u);
  EXPECT_EQ(faults({{{"nn", "optim"}, "a"}}).size(), 1u);
  EXPECT_EQ(faults({{{"tile", "core"}, "a"}}).size(), 1u);
  EXPECT_EQ(faults({{{"cellar", "core"}, "a"}}).size(), 1u);
  EXPECT_TRUE(faults({{{"ops", "core"}, "a"}}).empty());
}

TEST(Arrows, AreReadAsCompilersReadIncludes) {
  const fs::path root = fs::path(testing::TempDir()) / "house";
  fs::remove_all(root);
  fs::create_directories(root / "src/core");
  fs::create_directories(root / "src/ops");
  fs::create_directories(root / "include/tessera");
  std::ofstream(root / "include/tessera/nn.h");
  std::ofstream(root / "src/ops/b.h") << "#include <vector>\n";
  std::ofstream(root / "src/core/a.h") << "  #  include \"../ops/b.h\"\n#include <tessera/nn.h>\n#include \"a.h\"\n";
  const auto arrows = House(root).arrows();
  EXPECT_EQ(arrows.size(), 2u);
  EXPECT_TRUE(arrows.count({"core", "ops"}));
  EXPECT_TRUE(arrows.count({"core", "nn"}));
  fs::remove_all(root);
}

}  // namespace
