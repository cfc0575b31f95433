// What a training step of a model costs, from a run of it on tensors without memory.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/train_gpt.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera::models {

struct ZooModel;

struct StepOptions {
  std::string model;  ///< one of step_models()
  int64_t batch = 0;  ///< sequences or images; 0: the model's own
  Device device = meta(cpu());
  Amp amp = Amp::Off;
};

/// The presets of `train gpt`, models of images, and the zoo.
std::vector<std::string> step_models();

/// A model with AdamW and a batch of zeros, on a device with or without memory. Weights are random. A preset whose
/// vocabulary is that of its text has 65 tokens, as Shakespeare's characters.
class TrainingStep {
 public:
  /// Throws Error that lists the models, or on a batch below 0.
  explicit TrainingStep(const StepOptions& options);
  /// Forward, backward and a step of the optimizer; gradients stay.
  void run();
  const nn::Module& model() const { return *model_; }
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  /// "12 x 1024 tokens"
  const std::string& batch() const { return batch_; }

 private:
  template <class M>
  void make_images(std::shared_ptr<M> model, const Shape& image, bool classes);
  void make_gpt(const std::string& preset);
  /// The loss is the mean square of each output.
  void make_zoo_model(const ZooModel& kind);

  StepOptions options_;
  std::string batch_;
  std::shared_ptr<nn::Module> model_;
  std::function<void(amp::GradScaler&)> forward_backward_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  amp::GradScaler scaler_;
};

/// Of some of a step's calls: see ops/cost.h.
struct StepShare {
  double flops = 0, bytes = 0;
  int64_t calls = 0;  ///< of operators, views apart
};
struct VendorWorkspace {
  std::string library;
  int64_t bytes = 0;
};
struct StepCost {
  std::string batch;
  int64_t parameters = 0;
  StepShare forward, backward, optimizer;
  /// By module, in the order of their calls: "h.3" are the calls of all that lies in there, forward and backward.
  /// "other" is outside of modules, "optimizer" the optimizer's.
  std::vector<std::pair<std::string, StepShare>> modules;
  // Bytes of tensors, on a GPU with the gaps between their rows.
  int64_t parameter_bytes = 0, state_bytes = 0, gradient_bytes = 0;
  int64_t peak_bytes = 0;  ///< most at a time, batch and all of the above included
  /// Workspace of kernels and its share in the peak: known on the CPU, whose plans are made.
  int64_t workspace_bytes = 0, peak_with_workspace = 0;
  /// On NVIDIA's cards, what each library may use where its kernels are picked; nothing elsewhere.
  std::vector<VendorWorkspace> vendors;
};

/// Runs one step on the device without its memory, and computes nothing. Throws Error.
StepCost cost_of_step(StepOptions options);

}  // namespace tessera::models
