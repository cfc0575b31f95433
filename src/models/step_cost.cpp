#include "models/step_cost.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "kernels/args/gpu/vendor_limits.h"
#include "models/train_gpt.h"
#include "ops/call_plan.h"
#include "ops/cost.h"
#include "ops/op_table.h"
#include "tessera/models.h"
#include "tessera/observer.h"

namespace tessera::models {
namespace {

constexpr int64_t kCharacters = 65;  // of Shakespeare's works, where a text decides the vocabulary

bool is_preset(const std::string& model) {
  const std::vector<std::string> presets = train_presets();
  return std::find(presets.begin(), presets.end(), model) != presets.end();
}

}  // namespace

std::vector<std::string> step_models() {
  std::vector<std::string> all = train_presets();
  all.insert(all.end(), {"convmodel", "resnet20", "resnet50", "mobilenetv2", "unet"});
  for (const ZooModel& kind : zoo())
    if (std::find(all.begin(), all.end(), kind.name) == all.end()) all.push_back(kind.name);
  return all;
}

template <class M>
void TrainingStep::make_images(std::shared_ptr<M> model, const Shape& image, bool classes) {
  Shape shape{Dim(options_.batch)};
  shape.append(image.begin(), image.end());
  batch_ = fmt::format("{} images of {}", options_.batch, to_string(image));
  const Tensor x = zeros(shape);
  const Tensor target = classes ? zeros({options_.batch}, Int64) : zeros({shape[0], Dim(1), shape[2], shape[3]});
  model_ = model;
  forward_backward_ = [=, amp = options_.amp](amp::GradScaler& scaler) {
    Tensor loss;
    {
      const amp::Autocast region = autocast(amp);
      loss = classes ? cross_entropy((*model)(x), target) : mse_loss((*model)(x), target);
    }
    scaler.scale(loss).backward();
  };
}

void TrainingStep::make_gpt(const std::string& preset) {
  const TrainOptions o = train_preset(preset);
  GPTConfig config = o.model;
  if (config.vocab == 0) config.vocab = kCharacters;
  if (options_.batch == 0) options_.batch = o.batch;
  batch_ = fmt::format("{} x {} tokens", options_.batch, config.block);
  const auto model = std::make_shared<GPT>(config);
  const Tensor tokens = zeros({options_.batch, config.block}, Int64), targets = zeros(tokens.shape(), Int64);
  model_ = model;
  forward_backward_ = [=, amp = options_.amp](amp::GradScaler& scaler) {
    const amp::Autocast region = autocast(amp);
    model->loss_and_backward(tokens, targets, scaler.scale(full({}, 1, Float32, tokens.device())));
  };
}

void TrainingStep::make_zoo_model(const ZooModel& kind) {
  Generator generator(1);
  const std::shared_ptr<nn::Module> model = kind.make(generator);
  const Tensors inputs = kind.inputs(options_.batch, generator);
  batch_ = describe(inputs[0]);
  model_ = model;
  forward_backward_ = [=, amp = options_.amp](amp::GradScaler& scaler) {
    Tensor loss;
    {
      const amp::Autocast region = autocast(amp);
      for (const Tensor& y : (*model)(inputs)) {
        const Tensor one = mean(square(y));
        loss = loss.defined() ? loss + one : one;
      }
    }
    scaler.scale(loss).backward();
  };
}

TrainingStep::TrainingStep(const StepOptions& options)
    : options_(options), scaler_({.enabled = options.amp == Amp::Float16}) {
  if (options.batch < 0) throw Error(fmt::format("a batch of {} is none", options.batch));
  const DeviceGuard guard(options.device);
  const auto batch = [&](int64_t own) {
    if (options_.batch == 0) options_.batch = own;
  };
  if (is_preset(options.model)) {
    make_gpt(options.model);
  } else if (options.model == "convmodel") {
    batch(1);
    make_images(std::make_shared<ConvModel>(), {2, 512, 512}, false);
  } else if (options.model == "resnet20") {
    batch(128);
    make_images(std::make_shared<ResNet20>(), {3, 32, 32}, true);
  } else if (options.model == "resnet50") {
    batch(64);
    make_images(std::make_shared<ResNet50>(), {3, 224, 224}, true);
  } else if (options.model == "mobilenetv2") {
    batch(128);
    make_images(std::make_shared<MobileNetV2>(), {3, 224, 224}, true);
  } else if (options.model == "unet") {
    batch(4);
    make_images(std::make_shared<UNet>(1), {3, 512, 512}, false);
  } else {
    const auto found = std::find_if(zoo().begin(), zoo().end(), [&](const auto& m) { return m.name == options.model; });
    if (found == zoo().end())
      throw Error(fmt::format("unknown model \"{}\": there are {}", options.model, fmt::join(step_models(), ", ")));
    batch(32);
    make_zoo_model(*found);
  }
  optimizer_ = std::make_unique<optim::AdamW>(model_->parameters());
}

void TrainingStep::run() {
  optimizer_->zero_grad();
  forward_backward_(scaler_);
  scaler_.step(*optimizer_);
  scaler_.update();
}

namespace {

/// Adds up what a thread does.
class StepCounter final : public Observer {
 public:
  explicit StepCounter(StepCost& cost) : cost_(cost) {}

  void called(const CallSeen&) override {
    if (!made_of_others_.empty()) made_of_others_.back() = true;
    made_of_others_.push_back(false);
  }
  void returned(const CallSeen& call) override {
    const bool made_of_others = made_of_others_.back();
    made_of_others_.pop_back();
    if (made_of_others || call.failed || !counting_) return;
    const Op& op = find_op(call.op);
    if (op.view && call.outputs[0].storage() == call.inputs[0].storage()) return;
    count(op, call);
  }
  void allocated(const MemorySeen& m) override {
    const size_t bytes = m.bytes;
    held_ += static_cast<int64_t>(bytes);
    cost_.peak_bytes = std::max(cost_.peak_bytes, held_);
  }
  void released(const MemorySeen& m) override { held_ -= static_cast<int64_t>(m.bytes); }

  /// From here on calls and the peak count; what is held does from the beginning.
  void start() {
    counting_ = true;
    cost_.peak_bytes = held_;
  }

 private:
  using Metas = SmallVector<TensorMeta, 4>;

  void count(const Op& op, const CallSeen& call) {
    const Device device = call.outputs[0].device();
    const Metas in = metas_of(call.inputs, device);
    Metas out = metas_of(call.outputs, device);
    for (const TensorMeta& m : metas_of(call.hidden, device)) out.push_back(m);
    const Cost cost = cost_of(op, {in.data(), in.size()}, {out.data(), out.size()}, call.attrs);
    std::string path = scope_path();
    StepShare* part = &cost_.forward;
    if (path.starts_with("optimizer")) part = &cost_.optimizer;
    if (path.starts_with("backward")) {
      part = &cost_.backward;
      path.erase(0, std::min(path.size(), std::string_view("backward.").size()));
    }
    for (StepShare* share : {part, &share_of(path)}) {
      share->flops += cost.flops;
      share->bytes += cost.bytes;
      ++share->calls;
    }
    if (device.type == DeviceType::CPU) plan(op, in, out, call.attrs);
    if (device.type == DeviceType::CUDA) note_vendors(op);
  }

  // The first two names of the path.
  StepShare& share_of(const std::string& path) {
    const size_t second = path.find('.');
    std::string name = path.substr(0, second == path.npos ? second : path.find('.', second + 1));
    if (name.empty()) name = "other";
    const auto [place, is_new] = places_.emplace(name, cost_.modules.size());
    if (is_new) cost_.modules.emplace_back(name, StepShare());
    return cost_.modules[place->second].second;
  }

  // What the kernel that would be picked takes besides its operands.
  void plan(const Op& op, Metas in, Metas out, const Attrs& attrs) {
    if (op.compute) return;
    for (Metas* metas : {&in, &out})
      for (TensorMeta& m : *metas) m.device = cpu();
    const auto plan = make_plan(op, {in.data(), in.size()}, attrs, {out.data(), out.size()});
    const auto bytes = static_cast<int64_t>(plan->workspace_bytes());
    cost_.workspace_bytes = std::max(cost_.workspace_bytes, bytes);
    cost_.peak_with_workspace = std::max(cost_.peak_with_workspace, held_ + bytes);
  }

  void note_vendors(const Op& op) {
    const auto note = [&](const char* library, int64_t bytes) {
      const auto known = [&](const VendorWorkspace& v) { return v.library == library; };
      if (std::none_of(cost_.vendors.begin(), cost_.vendors.end(), known)) cost_.vendors.push_back({library, bytes});
    };
    if (!op.flops) return;
    if (op.name.find("conv") != op.name.npos) note("cuDNN's convolutions", gpu_kernels::vendor_conv_workspace);
    else if (op.name.find("attention") != op.name.npos)
      note("cuDNN's attention", gpu_kernels::vendor_attention_workspace);
    else note("cuBLASLt's products", static_cast<int64_t>(gpu_kernels::vendor_workspace));
  }

  StepCost& cost_;
  bool counting_ = false;
  int64_t held_ = 0;
  std::vector<bool> made_of_others_;  // of the calls that have not returned
  std::map<std::string, size_t> places_;
};

int64_t bytes_held_by(const Tensor& t) { return t.defined() ? static_cast<int64_t>(t.storage()->bytes) : 0; }

}  // namespace

StepCost cost_of_step(StepOptions options) {
  options.device = meta(options.device);
  StepCost cost;
  StepCounter counter(cost);
  const Observing guard(counter);
  TrainingStep step(options);
  counter.start();
  step.run();
  cost.batch = step.batch();
  cost.parameters = step.model().parameter_count();
  for (const Tensor& p : step.model().parameters()) {
    cost.parameter_bytes += bytes_held_by(p);
    cost.gradient_bytes += bytes_held_by(p.grad());
  }
  for (const auto& [name, t] : step.optimizer().state_dict()) cost.state_bytes += bytes_held_by(t);
  cost.peak_with_workspace = std::max(cost.peak_with_workspace, cost.peak_bytes);
  return cost;
}

}  // namespace tessera::models
