// The models of the zoo against PyTorch, torchvision, transformers and segmentation_models_pytorch.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "io/io_check.h"
#include "models/fixture.h"
#include "tessera/models.h"

namespace tessera {
namespace {

using namespace models;

// The embedding is tied to the head, which is its first name here.
StateDict convert_small_gpt2(const StateDict& file) {
  StateDict out = convert_gpt2(file, 10);
  auto embedding = out.extract("wte.weight");
  embedding.key() = "head.weight";
  out.insert(std::move(embedding));
  return out;
}

StateDict unchanged(const StateDict& file) { return file; }

// The small models of scripts/fixtures.py.
struct SmallModel {
  const char* name;
  std::function<std::shared_ptr<nn::Module>()> make;
  std::function<StateDict(const StateDict&)> convert;
};
const BertConfig kSmallBert{.layers = 2, .heads = 3, .width = 12, .hidden = 16, .positions = 10, .vocab = 17};
const KeywordLSTMConfig kSmallLSTM{.features = 6, .hidden = 5, .layers = 2, .classes = 4};

std::shared_ptr<nn::Module> small_lstm(bool bidirectional) {
  KeywordLSTMConfig c = kSmallLSTM;
  c.bidirectional = bidirectional;
  return std::make_shared<KeywordLSTM>(c);
}
std::shared_ptr<nn::Module> small_resnet(const ResNetConfig& c) { return std::make_shared<ResNet>(c); }

const std::vector<SmallModel>& small_models() {
  static const std::vector<SmallModel> all = {
      {"resnet-basic",
       [] {
         return small_resnet({.blocks = {2, 1, 1, 1}, .width = 2, .classes = 5});
       },
       convert_torchvision},
      {"resnet-bottleneck",
       [] {
         return small_resnet({.blocks = {1, 1, 1, 1}, .bottleneck = true, .width = 1, .channels = 2, .classes = 5});
       },
       convert_torchvision},
      {"mobilenetv2",
       [] {
         return std::make_shared<MobileNetV2>(MobileNetV2Config{
             .width = 0.25, .stages = {{1, 32, 1, 1}, {2, 32, 2, 2}, {2, 64, 1, 2}}, .last = 24, .classes = 3});
       },
       convert_torchvision},
      {"vit",
       [] {
         return std::make_shared<ViT>(
             ViTConfig{.image = 12, .patch = 4, .layers = 2, .heads = 3, .width = 12, .hidden = 16, .classes = 5});
       },
       convert_torchvision},
      {"bert", [] { return std::make_shared<Bert>(kSmallBert); }, convert_bert},
      {"minilm", [] { return std::make_shared<MiniLM>(kSmallBert); }, convert_bert},
      {"gpt2",
       [] { return std::make_shared<GPT>(GPTConfig{.layers = 2, .heads = 3, .width = 12, .block = 10, .vocab = 17}); },
       convert_small_gpt2},
      {"keyword-lstm", [] { return small_lstm(false); }, unchanged},
      {"keyword-lstm-both", [] { return small_lstm(true); }, unchanged},
      {"unet",
       [] {
         return std::make_shared<ResNetUNet>(ResNetUNetConfig{
             .encoder = {.blocks = {1, 1, 1, 1}, .width = 2, .channels = 4}, .decoder = {4, 4, 3, 2, 2}, .classes = 2});
       },
       convert_torchvision},
  };
  return all;
}

TEST(Zoo, SmallModelsAgreeWithPyTorch) {
  for (const SmallModel& small : small_models()) {
    SCOPED_TRACE(small.name);
    expect_agrees_in_both(*small.make(), small_fixture(small.name), small.convert);
  }
}

TEST(Zoo, LoadsStrictly) {
  for (const SmallModel& small : small_models()) {
    SCOPED_TRACE(small.name);
    const auto model = small.make();
    const auto names = model->named_parameters();
    const std::string lost = names.front().first, bent = names.back().first;
    StateDict file = small.convert(small_fixture(small.name).weights);
    ASSERT_EQ(file.erase(lost), 1u);
    file["surplus.weight"] = zeros({2});
    file[bent] = zeros({1, 2, 3});
    const auto before = names.front().second.to_vector<float>();
    EXPECT_EQ(error_of([&] { model->load_state_dict(file); }),
              "load_state_dict: missing: " + lost + "; unexpected: surplus.weight; mismatched: " + bent + " is " +
                  describe(names.back().second) + " here and f32[1, 2, 3] on cpu there");
    EXPECT_EQ(names.front().second.to_vector<float>(), before);
  }
}

}  // namespace
}  // namespace tessera
