// A model that others made, on images that others took, against what ONNX Runtime answers (answer_mnist.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "profiler/packed_file.h"
#include "tessera/io.h"
#include "tessera/onnx.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

const std::string folder = std::string(TESSERA_SOURCE_DIR) + "/tests/data/mnist/";

TEST(OnnxMnist, AnswersAsOnnxRuntimeDoesImageByImage) {
  const Model model(folder + "mnist.onnx");
  const std::string images = profiler::unpack(read_file(folder + "t10k-images-idx3-ubyte.gz"), "images");
  const std::vector<float> answers = load_npy(folder + "answers.npy").to_vector<float>();
  constexpr size_t header = 16, pixels = 28 * 28, count = 10'000, classes = 10;
  ASSERT_EQ(images.size(), header + count * pixels);
  ASSERT_EQ(answers.size(), count * classes);
  double error = 0, scale = 0;
  for (size_t i = 0; i < count; ++i) {
    std::vector<float> image(pixels);
    for (size_t p = 0; p < pixels; ++p)
      image[p] = static_cast<float>(static_cast<uint8_t>(images[header + i * pixels + p]));
    const auto scores = model.run({tensor(image, {1, 1, 28, 28})})[0].tensor().to_vector<float>();
    const float* const want = answers.data() + i * classes;
    EXPECT_EQ(std::max_element(scores.begin(), scores.end()) - scores.begin(),
              std::max_element(want, want + classes) - want)
        << i;
    for (size_t c = 0; c < classes; ++c) {
      error += std::pow(scores[c] - want[c], 2);
      scale += std::pow(want[c], 2);
    }
  }
  EXPECT_LE(std::sqrt(error / scale), 1e-6);
}

}  // namespace
}  // namespace tessera::onnx
