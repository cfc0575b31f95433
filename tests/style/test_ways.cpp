// From a call to its kernel: each file of the way names what the next one defines, and a reader opens few of them.
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

/// A file of a way, the symbol by which one gets there, and the next file's, which it must name.
struct Step {
  std::string file, symbol;
};
struct Way {
  std::string name;
  std::vector<Step> steps;  // the last one's symbol is the kernel
};

constexpr size_t kMostFiles = 7;

std::vector<Step> joined(std::vector<Step> steps, const std::vector<Step>& others) {
  steps.insert(steps.end(), others.begin(), others.end());
  return steps;
}
std::vector<Step> to_plan(const std::string& op, const std::string& family) {
  return {{"include/tessera/ops.h", op},
          {"src/ops/" + family + ".cpp", op},
          {"src/ops/dispatch.cpp", "dispatch_one"},
          {"src/ops/call_plan.cpp", "call_plan"}};
}

const std::vector<Way> kWays = {
    {"add on a CPU",
     joined(to_plan("add", "elementwise"), {{"src/kernels/cpu/tables.cpp", "cpu_kernel_table"},
                                            {"src/kernels/shared/elementwise.cpp", "elementwise_kernels"},
                                            {"src/kernels/cpu/isa/elementwise_isa.cpp", "elementwise_table"}})},
    {"add on a GPU", joined(to_plan("add", "elementwise"),
                            {{"src/kernels/gpu/tables.cpp", "gpu_kernel_table"},
                             {"src/kernels/shared/elementwise.cpp", "elementwise_kernels"},
                             {"src/kernels/gpu/device/elementwise/elementwise.cu", "elementwise_table"}})},
    {"matmul on a CPU", joined(to_plan("matmul", "matmul"), {{"src/kernels/cpu/tables.cpp", "cpu_kernel_table"},
                                                             {"src/kernels/cpu/matmul.cpp", "matmul_kernels"},
                                                             {"src/kernels/cpu/isa/gemm_isa.cpp", "gemm_table"}})},
    {"matmul on a GPU",
     joined(to_plan("matmul", "matmul"), {{"src/kernels/gpu/tables.cpp", "gpu_kernel_table"},
                                          {"src/kernels/gpu/matmul.cpp", "matmul_kernels"},
                                          {"src/kernels/gpu/device/gemm/gemm_sm90.cu", "sm90_gemm"}})},
};

/// The text of a file without comments and includes, of which neither leads on; empty: there is none.
std::string code_of(const std::string& file) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/" + file);
  std::string code;
  for (std::string line; std::getline(in, line);)
    if (line.find("#include") == line.npos) code += line.substr(0, line.find("//")) + '\n';
  return code;
}
/// Whether `symbol`, or a name that begins with it, such as a table's function, stands there.
bool names(const std::string& code, const std::string& symbol) {
  return std::regex_search(code, std::regex("\\b" + symbol));
}

std::vector<std::string> way_faults(const Way& way) {
  std::vector<std::string> lines;
  if (way.steps.size() > kMostFiles) lines.push_back(way.name + ": " + std::to_string(way.steps.size()) + " files");
  for (size_t i = 0; i < way.steps.size(); ++i) {
    const auto& [file, symbol] = way.steps[i];
    const std::string code = code_of(file);
    if (code.empty()) lines.push_back(way.name + ": there is no " + file);
    else if (!names(code, symbol)) lines.push_back(way.name + ": " + file + " has no " + symbol);
    if (i + 1 < way.steps.size() && !code.empty() && !names(code, way.steps[i + 1].symbol))
      lines.push_back(way.name + ": " + file + " does not name " + way.steps[i + 1].symbol);
  }
  return lines;
}

class Ways : public testing::TestWithParam<Way> {};

TEST_P(Ways, AreShortAndLeadOn) {
  for (const std::string& fault : way_faults(GetParam())) ADD_FAILURE() << fault;
}

/// docs/architecture.md prints them as they are.
TEST_P(Ways, AreWhatTheDocumentSays) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/docs/architecture.md");
  std::stringstream text;
  text << in.rdbuf();
  for (const Step& step : GetParam().steps)
    EXPECT_NE(text.str().find("`" + step.file + "`"), std::string::npos) << GetParam().name << ": " << step.file;
}

INSTANTIATE_TEST_SUITE_P(All, Ways, testing::ValuesIn(kWays),
                         [](const auto& info) { return std::regex_replace(info.param.name, std::regex(" "), "_"); });

TEST(Way, ThatDoesNotLeadOnIsFound) {
  const Step header{"include/tessera/ops.h", "add"};
  EXPECT_EQ(way_faults({"nowhere", {header, {"src/ops/nothing.cpp", "add"}}}).size(), 1u);
  EXPECT_EQ(way_faults({"broken", {header, {"src/ops/dispatch.cpp", "dispatch_one"}}}).size(), 1u);
  EXPECT_EQ(way_faults({"long", std::vector<Step>(kMostFiles + 1, header)}).size(), 1u);
}

}  // namespace
