// Files of PyTorch's exporter, which check_torch.py small --keep tests/data/torch --strip has made of the models of
// tests/data/zoo; scripts/torch_twins has more of them, where PyTorch is.
#include <gtest/gtest.h>

#include <filesystem>

#include "io/io_check.h"
#include "io/temporary_folder.h"
#include "models/fixture.h"
#include "onnx/written.h"

namespace tessera::onnx {
namespace {

// Rows of every input and output of a fixture, which are taken again from the first on.
Tensors rows(const Tensors& all, int64_t count) {
  Tensors out;
  for (const Tensor& t : all) {
    std::vector<int64_t> which;
    for (int64_t i = 0; i < count; ++i) which.push_back(i % t.size(0));
    out.push_back(index_select(t, 0, tensor(which, {count})));
  }
  return out;
}

void expect_near(const std::string& file, const LoadOptions& options, const Tensors& inputs, const Tensors& outputs) {
  const Values got = Model(file, options).run(values_of(inputs));
  ASSERT_EQ(got.size(), outputs.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].tensor().shape(), outputs[i].shape());
    EXPECT_LT(distance(got[i].tensor(), outputs[i]), kToleranceF32) << "output " << i;
  }
}

TEST(TorchFiles, AgreeWithPyTorchAndAgainWhenWritten) {
  TemporaryFolder folder;
  size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/tests/data/torch")) {
    const std::string file = entry.path().string(), name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const Fixture fixture = small_fixture(name);
    EXPECT_EQ(inspect(file).opsets.at("ai.onnx"), 20);
    EXPECT_EQ(inspect(file).inputs[0].dims[0], "batch");
    for (const int64_t batch : {1, 2, 5}) {
      SCOPED_TRACE(batch);
      const Tensors inputs = rows(fixture.inputs, batch), outputs = rows(fixture.outputs, batch);
      for (const bool optimize : {false, true}) expect_near(file, {.optimize = optimize}, inputs, outputs);
      save(module_of(file), inputs, folder / "again.onnx", {.batch = ""});
      expect_near(folder / "again.onnx", {}, inputs, outputs);
    }
    ++seen;
  }
  EXPECT_EQ(seen, 10u);
}

}  // namespace
}  // namespace tessera::onnx
