// tessera export NAME|CHECKPOINT: a model as a file of ONNX.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "command.h"
#include "models/train_gpt.h"
#include "models/training.h"
#include "tessera/io.h"
#include "tessera/onnx.h"

namespace tessera::app {
namespace {

struct ExportOptions {
  CommonOptions common;
  std::string model, output, weights;
  int64_t opset = 20;
  std::vector<std::string> dims;
};

/// A model, and what it takes.
struct Exported {
  std::shared_ptr<nn::Module> module;
  Shape shape;  // of its input, open sizes as symbols
  DType dtype = Float32;
  std::string input, output;
};

Exported of_images(std::shared_ptr<nn::Module> module, const Shape& image, const char* output = "logits") {
  Shape shape{Dim::symbol("batch", 1)};
  shape.append(image.begin(), image.end());
  return {std::move(module), shape, Float32, "image", output};
}
Exported of_tokens(std::shared_ptr<models::GPT> model) {
  const Shape shape{Dim::symbol("batch", 1), Dim::symbol("tokens", 1, model->config.block)};
  return {std::move(model), shape, Int64, "tokens", "logits"};
}

// ---- models by name: random weights, or those of a file

struct NamedModel {
  const char* name;
  /// `weights`: of a file that was given; empty otherwise.
  Exported (*make)(const StateDict& weights);
};

Exported gpt2(const StateDict& weights) {
  if (weights.empty()) return of_tokens(std::make_shared<models::GPT>(models::GPTConfig{}));
  const models::GPTConfig config = models::gpt2_config(weights);
  const auto model = std::make_shared<models::GPT>(config);
  model->load_state_dict(models::convert_gpt2(weights, config.block));
  return of_tokens(model);
}
template <class M>
std::shared_ptr<M> loaded(std::shared_ptr<M> model, const StateDict& weights) {
  if (!weights.empty()) model->load_state_dict(weights);
  return model;
}

constexpr NamedModel named_models[] = {
    {"gpt2", gpt2},
    {"resnet20",
     [](const StateDict& w) {
       return of_images(loaded(std::make_shared<models::ResNet20>(), w), {3, 32, 32});
     }},
    {"resnet50",
     [](const StateDict& w) {
       return of_images(loaded(std::make_shared<models::ResNet50>(), w), {3, 224, 224});
     }},
    {"mobilenet_v2",
     [](const StateDict& w) {
       return of_images(loaded(std::make_shared<models::MobileNetV2>(), w), {3, 224, 224});
     }},
    {"unet",
     [](const StateDict& w) {
       return of_images(loaded(std::make_shared<models::UNet>(), w), {3, 256, 256}, "mask");
     }},
    {"convmodel",
     [](const StateDict& w) {
       return of_images(loaded(std::make_shared<models::ConvModel>(), w), {2, 512, 512}, "picture");
     }},
};

std::string names() {
  std::vector<std::string> all;
  for (const NamedModel& m : named_models) all.emplace_back(m.name);
  return fmt::format("{}", fmt::join(all, ", "));
}

// ---- checkpoints of `tessera train`

Exported of_checkpoint(const std::string& file) {
  const Checkpoint checkpoint = load_checkpoint(file);
  if (models::metadata(checkpoint, file, "kind") == "gpt")
    return of_tokens(std::make_shared<models::GPT>(models::load_trained_gpt(file).model));
  (void)models::load_checkpoint_of(file, "convmodel", "a GPT or a ConvModel");
  const auto model = std::make_shared<models::ConvModel>();
  models::blame(file, [&] { model->load_state_dict(models::part(checkpoint, "model.")); });
  return of_images(model, {2, 512, 512}, "picture");
}

Exported model_of(const ExportOptions& options) {
  for (const NamedModel& m : named_models) {
    if (options.model != m.name) continue;
    if (options.weights.empty()) return m.make({});
    const StateDict weights = load_safetensors(options.weights);
    if (weights.empty()) throw FileError(options.weights + ": holds no weights");
    Exported made;
    models::blame(options.weights, [&] { made = m.make(weights); });
    return made;
  }
  if (!std::filesystem::exists(options.model))
    throw UsageError(fmt::format("'{}' is neither a checkpoint nor one of {}", options.model, names()));
  if (!options.weights.empty()) throw UsageError("--weights are for a model by name; a checkpoint has its own");
  std::string file = options.model;
  if (std::filesystem::is_directory(file)) {  // of `train convmodel`, or of `train gpt`
    const std::string convmodel = file + "/standard.safetensors";
    file = std::filesystem::exists(convmodel) ? convmodel : file + "/checkpoint.safetensors";
  }
  return of_checkpoint(file);
}

// "batch=8" fixes a size that is open, and "n" is another name for the first one.
void settle(const std::vector<std::string>& dims, Shape& shape) {
  const auto is_called = [](const std::string& name) {
    return [name](Dim d) { return d.is_symbolic() && d.name() == name; };
  };
  for (const std::string& text : dims) {
    const size_t sign = text.find('=');
    const std::string name = text.substr(0, sign);
    if (sign == text.npos) {
      if (name.empty() || name.find_first_of("\"'\n") != name.npos ||
          std::any_of(shape.begin(), shape.end(), is_called(name)))
        throw UsageError(fmt::format("--dim: '{}' is no name for the first size", name));
      if (shape[0].is_symbolic()) shape[0] = Dim::symbol(name, shape[0].low(), shape[0].high());
      continue;
    }
    const auto at = std::find_if(shape.begin(), shape.end(), is_called(name));
    const std::string digits = text.substr(sign + 1);
    if (at == shape.end()) throw UsageError(fmt::format("--dim: no size '{}' of {} is open", name, to_string(shape)));
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != digits.npos ||
        std::stoll(digits) < at->low() || std::stoll(digits) > at->high())
      throw UsageError(fmt::format("--dim: '{}' is no size for {}", digits, bounds_text(*at)));
    *at = std::stoll(digits);
  }
}

void run(const ExportOptions& options) {
  options.common.apply();
  Exported model = model_of(options);
  settle(options.dims, model.shape);
  onnx::save(*model.module, {empty(model.shape, model.dtype, meta(cpu()))}, options.output,
             {.opset = options.opset, .inputs = {model.input}, .outputs = {model.output}});
  fmt::print("wrote {}: opset {}, {} parameters, {}{} -> {}\n", options.output, options.opset,
             model.module->parameter_count(), model.input, to_string(model.shape), model.output);
}

}  // namespace

void add_export(Command app) {
  const Command command = app.command("export", "Write a model as a file (ONNX).");
  auto options = std::make_shared<ExportOptions>();
  command.option("model", options->model, "a checkpoint, the folder that holds it, or " + names()).required();
  command.option("-o,--output", options->output, "file to write").required();
  command.option("--opset", options->opset, "version of ONNX's operators").range(18, 28).with_default();
  command.option("--weights", options->weights,
                 "weights of a model by name, in its own names or Hugging Face's (.safetensors)");
  command.option("--dim", options->dims, "NAME=SIZE fixes a size that is open; NAME alone calls the first one so");
  options->common.add_to(command, false);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
