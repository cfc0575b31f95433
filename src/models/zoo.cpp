// The zoo, and the names in files of those who publish such weights.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/models.h"

namespace tessera::models {
namespace {

using Inputs = std::function<Tensors(int64_t, Generator&)>;

Inputs images(int64_t size) {
  return [size](int64_t batch, Generator& g) { return Tensors{randn({batch, 3, size, size}, g)}; };
}
Inputs tokens(int64_t vocab, int64_t count) {
  return [=](int64_t batch, Generator& g) { return Tensors{randint(0, vocab, {batch, count}, g)}; };
}
// Tokens, with a mask and types of tokens.
Inputs sentences(int64_t vocab, int64_t count) {
  return [=](int64_t batch, Generator& g) {
    const Shape shape{batch, count};
    return Tensors{randint(0, vocab, shape, g), ones(shape, Int64), zeros(shape, Int64)};
  };
}
Tensors second_of_frames(int64_t batch, Generator& g) { return {randn({batch, 101, 40}, g)}; }

template <class M>
std::shared_ptr<nn::Module> made_of_classes(Generator& g) {
  return std::make_shared<M>(1000, g);
}
template <class M>
std::shared_ptr<nn::Module> made(Generator& g) {
  return std::make_shared<M>(decltype(M::config){}, g);
}
std::shared_ptr<nn::Module> made_minilm(Generator& g) { return std::make_shared<MiniLM>(MiniLM::published(), g); }
std::shared_ptr<nn::Module> made_lstm(Generator& g) { return std::make_shared<KeywordLSTM>(KeywordLSTMConfig{}, g); }
std::shared_ptr<nn::Module> made_unet(Generator& g) { return std::make_shared<ResNetUNet>(ResNetUNetConfig{}, g); }

StateDict convert_published_gpt2(const StateDict& file) { return convert_gpt2(file, GPTConfig{}.block); }
StateDict as_it_is(const StateDict& file) { return file; }

}  // namespace

StateDict convert_torchvision(const StateDict& file) {
  StateDict out;
  for (const auto& [full, t] : file) {
    if (full.ends_with(".num_batches_tracked")) continue;
    std::string name = full;
    for (const auto& [old, now] : {std::pair(".mlp.linear_1.", ".mlp.0."), {".mlp.linear_2.", ".mlp.3."}})
      if (const size_t at = name.find(old); at != name.npos) name.replace(at, std::string_view(old).size(), now);
    out.emplace(std::move(name), t);
  }
  return out;
}

const std::vector<ZooModel>& zoo() {
  static const std::vector<ZooModel> all = {
      {"resnet18",
       "ResNet-18 for ImageNet",
       made_of_classes<ResNet18>,
       images(224),
       convert_torchvision,
       {"image"},
       "logits"},
      {"resnet34",
       "ResNet-34 for ImageNet",
       made_of_classes<ResNet34>,
       images(224),
       convert_torchvision,
       {"image"},
       "logits"},
      {"resnet50",
       "ResNet-50 for ImageNet",
       made_of_classes<ResNet50>,
       images(224),
       convert_torchvision,
       {"image"},
       "logits"},
      {"mobilenetv2",
       "MobileNetV2 for ImageNet",
       made_of_classes<MobileNetV2>,
       images(224),
       convert_torchvision,
       {"image"},
       "logits"},
      {"vit-b16", "ViT-B/16 for ImageNet", made<ViT>, images(224), convert_torchvision, {"image"}, "logits"},
      {"bert",
       "BERT, base and uncased",
       made<Bert>,
       sentences(30522, 128),
       convert_bert,
       {"tokens", "mask", "types"},
       "states",
       512},
      {"minilm",
       "all-MiniLM-L6-v2, vectors of sentences",
       made_minilm,
       sentences(30522, 128),
       convert_bert,
       {"tokens", "mask", "types"},
       "vectors",
       512},
      {"gpt2",
       "GPT-2, 124 M parameters",
       made<GPT>,
       tokens(50257, 128),
       convert_published_gpt2,
       {"tokens"},
       "logits",
       1024},
      {"keyword-lstm",
       "LSTM over a second of sound, 12 words",
       made_lstm,
       second_of_frames,
       as_it_is,
       {"frames"},
       "logits"},
      {"unet-resnet34",
       "U-Net with a ResNet-34 on its way down",
       made_unet,
       images(256),
       convert_torchvision,
       {"image"},
       "logits"},
  };
  return all;
}

const ZooModel& zoo_model(std::string_view name) {
  std::vector<std::string> names;
  for (const ZooModel& model : zoo())
    if (model.name == name) return model;
    else names.push_back(model.name);
  throw Error(fmt::format("unknown model \"{}\": there are {}", name, fmt::join(names, ", ")));
}

}  // namespace tessera::models
