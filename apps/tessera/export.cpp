// tessera export NAME|CHECKPOINT|MODEL.onnx: a model as a file of ONNX.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "command.h"
#include "model_inputs.h"
#include "models/train_gpt.h"
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

/// An input: open sizes are symbols.
struct Taken {
  std::string name;
  Shape shape;
  DType dtype = Float32;
};
struct Exported {
  std::shared_ptr<nn::Module> module;
  std::vector<Taken> inputs;
  std::vector<std::string> outputs;  // names; what follows is called by itself
};

Exported of_images(std::shared_ptr<nn::Module> module, const Shape& image, const char* output = "logits") {
  Shape shape{Dim::symbol("batch", 1)};
  shape.append(image.begin(), image.end());
  return {std::move(module), {{"image", shape}}, {output}};
}
Exported of_tokens(std::shared_ptr<models::GPT> model) {
  const Shape shape{Dim::symbol("batch", 1), Dim::symbol("tokens", 1, model->config.block)};
  return {std::move(model), {{"tokens", shape, Int64}}, {"logits"}};
}

// ---- models by name: random weights, or those of a file

/// `weights`: of a file that was given; empty otherwise.
Exported gpt2(const StateDict& weights) {
  if (weights.empty()) return of_tokens(std::make_shared<models::GPT>(models::GPTConfig{}));
  const models::GPTConfig config = models::gpt2_config(weights);
  const auto model = std::make_shared<models::GPT>(config);
  model->load_state_dict(models::convert_gpt2(weights, config.block));
  return of_tokens(model);
}
Exported of_zoo(const models::ZooModel& zoo, const StateDict& weights) {
  const auto module = zoo.make(default_generator());
  if (!weights.empty()) module->load_state_dict(zoo.convert(weights));
  Exported out{module, {}, {zoo.gives}};
  const Dim batch = Dim::symbol("batch", 1), tokens = Dim::symbol("tokens", 1, std::max<int64_t>(zoo.longest, 1));
  const Tensors examples = zoo.inputs(1, default_generator());
  for (size_t i = 0; i < examples.size(); ++i) {
    Shape shape = examples[i].shape();
    shape[0] = batch;
    if (zoo.longest > 0) shape[1] = tokens;
    out.inputs.push_back({zoo.takes.at(i), shape, examples[i].dtype()});
  }
  return out;
}
template <class M>
Exported of_own(const StateDict& weights, const Shape& image, const char* output) {
  const auto model = std::make_shared<M>();
  if (!weights.empty()) model->load_state_dict(weights);
  return of_images(model, image, output);
}

struct NamedModel {
  std::string name;
  std::function<Exported(const StateDict& weights)> make;
};
const std::vector<NamedModel>& named_models() {
  static const std::vector<NamedModel> all = [] {
    std::vector<NamedModel> list = {
        {"gpt2", gpt2},
        {"resnet20",
         [](const StateDict& w) {
           return of_own<models::ResNet20>(w, {3, 32, 32}, "logits");
         }},
        {"unet",
         [](const StateDict& w) {
           return of_own<models::UNet>(w, {3, 256, 256}, "mask");
         }},
        {"convmodel",
         [](const StateDict& w) {
           return of_own<models::ConvModel>(w, {2, 512, 512}, "picture");
         }},
    };
    for (const models::ZooModel& zoo : models::zoo())
      if (zoo.name != "gpt2") list.push_back({zoo.name, [&zoo](const StateDict& w) { return of_zoo(zoo, w); }});
    return list;
  }();
  return all;
}

std::string names() {
  std::vector<std::string> all;
  for (const NamedModel& m : named_models()) all.push_back(m.name);
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
  for (const NamedModel& m : named_models()) {
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

bool is_called(Dim d, const std::string& name) { return d.is_symbolic() && d.name() == name; }

// Puts another size in the place of one. Whether it was there.
bool replace_size(std::vector<Taken>& inputs, const std::string& name, Dim size) {
  bool found = false;
  for (Taken& input : inputs)
    for (Dim& d : input.shape)
      if (is_called(d, name)) {
        d = size;
        found = true;
      }
  return found;
}

Dim open_size(const std::vector<Taken>& inputs, const std::string& name) {
  for (const Taken& input : inputs)
    for (const Dim d : input.shape)
      if (is_called(d, name)) return d;
  throw UsageError(fmt::format("--dim: no size '{}' of {} is open", name, to_string(inputs.at(0).shape)));
}

// "batch=8" fixes a size that is open, and "n" is another name for the first one.
void settle(const std::vector<std::string>& dims, std::vector<Taken>& inputs) {
  for (const std::string& text : dims) {
    const size_t sign = text.find('=');
    const std::string name = text.substr(0, sign);
    const Dim first = inputs.at(0).shape[0];
    if (sign == text.npos) {
      const Dim renamed = name.empty() || name.find_first_of("\"'\n") != name.npos ? Dim(0) : Dim::symbol(name, 1);
      if (!renamed.is_symbolic() || std::any_of(inputs.begin(), inputs.end(), [&](const Taken& t) {
            return std::any_of(t.shape.begin(), t.shape.end(), [&](Dim d) { return is_called(d, name); });
          }))
        throw UsageError(fmt::format("--dim: '{}' is no name for the first size", name));
      if (first.is_symbolic())
        replace_size(inputs, std::string(first.name()), Dim::symbol(name, first.low(), first.high()));
      continue;
    }
    const Dim open = open_size(inputs, name);
    const std::string digits = text.substr(sign + 1);
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != digits.npos ||
        std::stoll(digits) < open.low() || std::stoll(digits) > open.high())
      throw UsageError(fmt::format("--dim: '{}' is no size for {}", digits, bounds_text(open)));
    replace_size(inputs, name, std::stoll(digits));
  }
}

// ---- model files, with all sizes fixed

/// A model file as a module: writing it captures what a run calls.
struct FileModel : nn::Module {
  explicit FileModel(const std::string& path) : model(path) {}
  Tensors forward(const Tensors& in) const override {
    Tensors out;
    for (const onnx::Value& v : model.run(onnx::Values(in.begin(), in.end()))) out.push_back(v.tensor());
    return out;
  }
  onnx::Model model;
};

void write_again(const ExportOptions& options) {
  if (!options.weights.empty()) throw UsageError("--weights are for a model by name; a file has its own");
  const FileModel file(options.model);
  const auto given = drawn_inputs(file.model, parse_dims(options.dims));
  Tensors inputs;
  std::vector<std::string> taken, described, gives;
  for (const onnx::Port& port : file.model.inputs()) {
    inputs.push_back(given.at(port.name).tensor());
    taken.push_back(port.name);
    described.push_back(port.name + to_string(inputs.back().shape()));
  }
  for (const onnx::Port& port : file.model.outputs()) gives.push_back(port.name);
  onnx::save(file, inputs, options.output, {.opset = options.opset, .batch = "", .inputs = taken, .outputs = gives});
  fmt::print("wrote {}: opset {}, {} -> {}\n", options.output, options.opset, fmt::join(described, ", "),
             fmt::join(gives, ", "));
}

void run(const ExportOptions& options) {
  options.common.apply();
  require_writable(options.output);
  if (options.model.ends_with(".onnx")) return write_again(options);
  Exported model = model_of(options);
  settle(options.dims, model.inputs);
  Tensors inputs;
  std::vector<std::string> taken, described;
  for (const Taken& input : model.inputs) {
    inputs.push_back(empty(input.shape, input.dtype, meta(cpu())));
    taken.push_back(input.name);
    described.push_back(input.name + to_string(input.shape));
  }
  onnx::save(*model.module, inputs, options.output,
             {.opset = options.opset, .inputs = taken, .outputs = model.outputs});
  const onnx::Inspection written = onnx::inspect(options.output);
  fmt::print("wrote {}: opset {}, {} -> {}\n", options.output, options.opset, fmt::join(described, ", "),
             fmt::join(model.outputs, ", "));
  fmt::print("{} parameters of the model; the file holds {} numbers, {}\n", model.module->parameter_count(),
             written.parameters, decimal(static_cast<double>(written.parameter_bytes), "B"));
}

}  // namespace

void add_export(Command app) {
  const Command command = app.command("export", "Write a model as a file (ONNX).");
  auto options = std::make_shared<ExportOptions>();
  command.option("model", options->model, "a checkpoint, the folder that holds it, a model file (.onnx), or " + names())
      .required();
  command.option("-o,--output", options->output, "file to write").required();
  command.option("--opset", options->opset, "version of ONNX's operators").range(18, 28).with_default();
  command.option("--weights", options->weights,
                 "weights of a model by name, in its own names or Hugging Face's (.safetensors)");
  command.option("--dim", options->dims,
                 "NAME=SIZE fixes a size that is open, as a model file needs for all of its own; NAME alone calls the "
                 "first one so");
  options->common.add_to(command, false);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
