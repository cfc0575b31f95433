// Models, a header for each family, and the zoo: those that have published weights, by name.
#pragma once
#include "tessera/models_audio.h"   // KeywordLSTM
#include "tessera/models_text.h"    // GPT, Bert, MiniLM
#include "tessera/models_vision.h"  // ResNet, MobileNetV2, ViT, UNet, ResNetUNet, ConvModel

namespace tessera::models {

struct ZooModel {
  std::string name, description;
  std::function<std::shared_ptr<nn::Module>(Generator&)> make;  ///< with random weights
  std::function<Tensors(int64_t batch, Generator&)> inputs;     ///< examples, on default_device()
  /// What load_state_dict() wants of a file in the names of those who publish such weights.
  std::function<StateDict(const StateDict&)> convert;
  std::vector<std::string> takes;  ///< what inputs are called
  std::string gives;
  int64_t longest = 0;  ///< of texts, whose second size is free: tokens; 0: it takes none
};
/// All of them: "resnet18" and so on.
const std::vector<ZooModel>& zoo();
/// The one of that name. Throws Error that lists the names.
const ZooModel& zoo_model(std::string_view name);

}  // namespace tessera::models
