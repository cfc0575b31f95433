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
void tie_embedding(StateDict& dict) {
  auto embedding = dict.extract("wte.weight");
  embedding.key() = "head.weight";
  dict.insert(std::move(embedding));
}
StateDict convert_small_gpt2(const StateDict& file) {
  StateDict out = convert_gpt2(file, 10);
  tie_embedding(out);
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
    expect_agrees(*small.make(), small_fixture(small.name), small.convert);
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
                  std::string(name(names.back().second.dtype())) + to_string(names.back().second.shape()) +
                  " here and f32[1, 2, 3] there");
    EXPECT_EQ(names.front().second.to_vector<float>(), before);
  }
}

TEST(Zoo, HasThePublishedNumbersOfParameters) {
  const std::map<std::string, int64_t> published = {
      {"resnet18", 11689512}, {"resnet34", 21797672}, {"resnet50", 25557032}, {"mobilenetv2", 3504872},
      {"vit-b16", 86567656},  {"bert", 109482240},    {"minilm", 22713216},   {"gpt2", 124439808}};
  const DeviceGuard guard(meta(cpu()));
  for (const ZooModel& kind : zoo()) {
    SCOPED_TRACE(kind.name);
    Generator g(1);
    const auto model = kind.make(g);
    if (published.contains(kind.name)) {
      EXPECT_EQ(model->parameter_count(), published.at(kind.name));
    }
    model->eval();
    for (const Tensor& y : (*model)(kind.inputs(2, g))) EXPECT_EQ(y.size(0), 2);
  }
  EXPECT_EQ(error_of([] { zoo_model("resnet19"); }),
            "unknown model \"resnet19\": there are resnet18, resnet34, resnet50, mobilenetv2, vit-b16, bert, minilm, "
            "gpt2, keyword-lstm, unet-resnet34");
}

// Batches and lengths of texts may be symbols, which captured functions and exported files want.
TEST(Zoo, TakesSymbols) {
  const DeviceGuard guard(meta(cpu()));
  const NoGrad no_grad;
  const Dim batch = Dim::symbol("batch", 1, 64), length = Dim::symbol("length", 1, 100);
  for (const ZooModel& kind : zoo()) {
    SCOPED_TRACE(kind.name);
    Generator g(1);
    const auto model = kind.make(g);
    model->eval();
    Tensors inputs = kind.inputs(2, g);
    for (Tensor& x : inputs) {
      Shape shape = x.shape();
      shape[0] = batch;
      if (x.dtype() == Int64) shape[1] = length;
      x = empty(shape, x.dtype());
    }
    for (const Tensor& y : (*model)(inputs)) EXPECT_EQ(y.shape()[0], batch);
  }
}

// In a folder that scripts/fixtures.py full has made, in TESSERA_ZOO. Gradients are compared in f64 alone: among
// millions of ReLUs rounding to f32 turns some on or off.
TEST(Zoo, FullModelsAgreeWithPyTorch) {
  const char* folder = std::getenv("TESSERA_ZOO");
  if (!folder) GTEST_SKIP() << "TESSERA_ZOO names no folder";
  size_t seen = 0;
  for (const ZooModel& kind : zoo()) {
    const std::string of_model = std::string(folder) + "/" + kind.name;
    if (!std::filesystem::exists(of_model)) continue;
    SCOPED_TRACE(kind.name);
    ++seen;
    Generator g(1);
    const auto convert = [&](const StateDict& file) {
      StateDict out = kind.convert(file);
      if (kind.name == "gpt2") tie_embedding(out);
      return out;
    };
    const Fixture f = read_fixture(of_model);
    const auto model = kind.make(g);
    load(*model, f, convert, Float64);
    expect_gradients(*model, f, convert, expect_outputs(*model, f, Float64, kToleranceF64), kToleranceF64);
    load(*model, f, convert, Float32);
    expect_outputs(*model, f, Float32, kToleranceF32);
  }
  EXPECT_GT(seen, 0u) << folder;
}

TEST(Zoo, OldNamesAreRead) {
  const Tensor t = zeros({1});
  const StateDict bert = convert_bert({{"bert.embeddings.LayerNorm.gamma", t},
                                       {"bert.encoder.layer.0.output.LayerNorm.beta", t},
                                       {"cls.predictions.bias", t},
                                       {"bert.embeddings.position_ids", t},
                                       {"classifier.weight", t}});
  EXPECT_EQ(bert.size(), 3u);
  for (const char* name : {"embeddings.LayerNorm.weight", "encoder.layer.0.output.LayerNorm.bias", "classifier.weight"})
    EXPECT_TRUE(bert.contains(name)) << name;
  const StateDict vit = convert_torchvision({{"encoder.layers.encoder_layer_0.mlp.linear_1.weight", t},
                                             {"encoder.layers.encoder_layer_0.mlp.linear_2.bias", t},
                                             {"bn1.num_batches_tracked", t}});
  EXPECT_EQ(vit.size(), 2u);
  EXPECT_TRUE(vit.contains("encoder.layers.encoder_layer_0.mlp.0.weight"));
  EXPECT_TRUE(vit.contains("encoder.layers.encoder_layer_0.mlp.3.bias"));
}

TEST(Zoo, ModelsRefuseWhatDoesNotFit) {
  EXPECT_EQ(error_of([] {
              ResNet({.blocks = {1, 2}});
            }),
            "ResNet: stages of [1, 2] blocks, width 64, 3 channels, 1000 classes make no model");
  EXPECT_EQ(
      error_of([] { ViT({.image = 30, .patch = 4, .width = 12}); }),
      "ViT: images of 30, patches of 4, 12 layers, 12 heads, width 12, 3072 hidden, 3 channels, 1000 classes make "
      "no model");
  EXPECT_EQ(error_of([] { MobileNetV2(MobileNetV2Config{.width = 0}); }),
            "MobileNetV2: width 0, 7 stages, 32 channels before and 1280 after them, 1000 classes make no model");
  EXPECT_EQ(error_of([] { Bert({.heads = 7}); }),
            "Bert: 12 layers, 7 heads, width 768, 3072 hidden, 512 positions, vocabulary 30522, 2 types of tokens make "
            "no model");
  EXPECT_EQ(error_of([] {
              ResNetUNet({.decoder = {1, 2}});
            }),
            "ResNetUNet: a decoder of [1, 2] channels and 1 classes make no model");
  const DeviceGuard guard(meta(cpu()));
  EXPECT_EQ(error_of([] { ViT()(zeros({1, 3, 224, 225})); }), "ViT: takes [n, 3, 224, 224], not [1, 3, 224, 225]");
  EXPECT_EQ(error_of([] {
              ResNetUNet()(zeros({1, 3, 64, 48}));
            }),
            "ResNetUNet: takes [n, bands, h, w] with h and w multiples of 32, not [1, 3, 64, 48]");
  const Bert bert(kSmallBert);
  EXPECT_EQ(error_of([&] {
              bert(Tensors{zeros({1, 11}, Int64)});
            }),
            "Bert: takes [batch, 1 to 10] tokens, not [1, 11]");
  EXPECT_EQ(error_of([&] {
              bert(Tensors{zeros({2, 4}, Int64), ones({2, 5}, Int64)});
            }),
            "Bert: mask and types are as the tokens, [2, 4], and not [2, 5]");
}

// What padding holds changes nothing, and neither mask nor types are needed where they say nothing.
TEST(Bert, SeesNoPadding) {
  Generator g(3);
  MiniLM model(kSmallBert, g);
  model.eval();
  const Tensor tokens = tensor<int64_t>({3, 9, 4, 1, 1, 7}, {1, 6}),
               other = tensor<int64_t>({3, 9, 4, 1, 5, 2}, {1, 6});
  const Tensor mask = tensor<int64_t>({1, 1, 1, 1, 0, 0}, {1, 6});
  const Tensor padded = model(tokens, mask);
  EXPECT_EQ(model(other, mask).to_vector<float>(), padded.to_vector<float>());
  const Tensor alone = model(tokens.slice(1, 0, 4));
  EXPECT_LT(distance(padded, alone), 1e-6);
  EXPECT_EQ(model(tokens.slice(1, 0, 4), Tensor(), zeros({1, 4}, Int64)).to_vector<float>(), alone.to_vector<float>());
  EXPECT_NEAR(norm(alone).item(), 1, 1e-6);
}

TEST(Bert, DropsInTrainingAlone) {
  Generator g(4);
  Bert model(kSmallBert, g);
  const Tensor tokens = randint(0, 17, {2, 5}, g);
  EXPECT_NE(model.hidden(tokens).to_vector<float>(), model.hidden(tokens).to_vector<float>());
  model.eval();
  EXPECT_EQ(model.hidden(tokens).to_vector<float>(), model.hidden(tokens).to_vector<float>());
}

}  // namespace
}  // namespace tessera
