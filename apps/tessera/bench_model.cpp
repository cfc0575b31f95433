// tessera bench model FILE|NAME: latency and throughput of a model file beside ONNX Runtime and OpenVINO, or of a model
// of the zoo beside PyTorch, where a Python has them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "io/file.h"
#include "latency.h"
#include "model_inputs.h"
#include "profiling.h"
#include "tessera/autograd.h"
#include "tessera/io.h"
#include "tessera/models.h"
#include "tessera/onnx.h"

namespace tessera::app {
namespace {

struct BenchModelOptions : LatencyOptions {
  std::string model, weights;
  std::vector<std::string> dims;
  RecordingOptions profile;
};

std::string names_of_zoo() {
  std::vector<std::string> names;
  for (const models::ZooModel& model : models::zoo()) names.push_back(model.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// ---- a model file ---------------------------------------------------------------------------------------------------

/// The dims by name, with those that lead an input as the batch.
std::map<std::string, int64_t> with_batch(const onnx::Model& model, std::map<std::string, int64_t> dims,
                                          int64_t batch) {
  bool open = false;
  for (const onnx::Port& port : model.inputs()) {
    if (port.dims.empty() || onnx::known_size(port.dims[0]) >= 0) continue;
    if (dims.emplace(port.dims[0], batch).first->second != batch)
      throw UsageError(fmt::format("the size {} of input {} is the batch: say --batch", port.dims[0], port.name));
    open = true;
  }
  if (!open && batch != 1)
    for (const onnx::Port& port : model.inputs())
      if (port.dims.empty() || port.dims[0] != std::to_string(batch))
        throw UsageError(fmt::format("input {} is {}: a batch of {} does not fit", port.name, describe(port), batch));
  return dims;
}

// Arguments: the model, and the inputs as "name=dtype:sizes".
constexpr const char* kOnnxPeers = R"(
import numpy as np
model = arguments[0]
rng = np.random.default_rng(0)
feeds = {}
for text in arguments[1:]:
    name, rest = text.rsplit('=', 1)
    dtype, sizes = rest.split(':')
    shape = [int(s) for s in sizes.split('x') if s]
    kind = np.dtype(dtype)
    feeds[name] = (rng.standard_normal(shape) if kind.kind == 'f' else rng.integers(0, 2 if dtype == 'bool' else 10, shape)).astype(kind)
try:
    import onnxruntime as ort
    o = ort.SessionOptions(); o.intra_op_num_threads = threads; o.log_severity_level = 4
    s = ort.InferenceSession(model, o, providers=['CPUExecutionProvider'])
    timed('ONNX Runtime ' + ort.__version__, lambda: s.run(None, feeds))
    del s
except ImportError: pass
except Exception as e: failed('ONNX Runtime', e)
try:
    import openvino as ov
    core = ov.Core(); m = core.read_model(model)
    m.reshape({k: list(v.shape) for k, v in feeds.items()})
    c = core.compile_model(m, 'CPU', {'INFERENCE_NUM_THREADS': threads, 'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': 'f32'})
    r = c.create_infer_request()
    timed('OpenVINO ' + ov.__version__.split('-')[0], lambda: r.infer(feeds))
except ImportError: pass
except Exception as e: failed('OpenVINO', e)
)";

std::string numpy_name(DType dtype) {
  const char* names[] = {"bool",  "uint8",  "int8",    "int16", "uint16",  "int32",  "uint32",
                         "int64", "uint64", "float16", "",      "float32", "float64"};
  return names[static_cast<int>(dtype)];
}

std::vector<std::string> peers_arguments(const std::string& model, const std::map<std::string, onnx::Value>& inputs) {
  std::vector<std::string> all{model};
  for (const auto& [name, value] : inputs) {
    const std::string type = numpy_name(value.tensor().dtype());
    if (type.empty()) return {};
    std::string sizes;
    for (int64_t d = 0; d < value.tensor().dim(); ++d)
      sizes += fmt::format("{}{}", d ? "x" : "", value.tensor().size(d));
    all.push_back(fmt::format("{}={}:{}", name, type, sizes));
  }
  return all;
}

void time_file(const BenchModelOptions& o) {
  if (!o.weights.empty()) throw UsageError("--weights is for models of the zoo: a file has its own");
  if (!std::filesystem::exists(o.model))
    throw UsageError(
        fmt::format("there is no file {}, nor a model of that name: there are {}", in_quotes(o.model), names_of_zoo()));
  const auto dims = parse_dims(o.dims);
  const onnx::Model model(o.model, {.device = o.common.target()});
  time_model(
      o,
      {.with_batch =
           [&](int64_t batch) {
             const auto inputs = drawn_inputs(model, with_batch(model, dims, batch));
             return TimedCall{[&model, inputs] { (void)model.run_by_name(inputs); }, peers_arguments(o.model, inputs)};
           },
       .peers = std::string(kTimedInPython) + kOnnxPeers});
}

// ---- a model of the zoo ---------------------------------------------------------------------------------------------

// Arguments: the model, the batch and the device.
constexpr const char* kTorchPeers = R"(
import logging
name, batch, device = arguments[0], int(arguments[1]), arguments[2]
try: import torch
except ImportError: sys.exit(0)
from torch import nn
torch.set_num_threads(threads)
logging.disable(logging.WARNING)
class KeywordLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(40, 128, 2, batch_first=True), nn.Linear(128, 12)
    def forward(self, x): return self.fc(self.lstm(x)[1][0][-1])
class Pooled(nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert
    def forward(self, ids, mask, types):
        x, m = self.bert(ids, mask, types).last_hidden_state, mask.unsqueeze(-1).float()
        return nn.functional.normalize((x * m).sum(1) / m.sum(1), dim=1)
def made():
    vision = {'mobilenetv2': 'mobilenet_v2', 'vit-b16': 'vit_b_16'}
    if name in ('bert', 'minilm', 'gpt2'):
        import transformers as t
        vocab = 50257 if name == 'gpt2' else 30522
        ids = torch.randint(0, vocab, (batch, 128))
        mask = torch.ones_like(ids)
        if name == 'gpt2': return t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), [ids]
        small = dict(num_hidden_layers=6, hidden_size=384, intermediate_size=1536) if name == 'minilm' else {}
        bert = t.BertModel(t.BertConfig(**small))
        return Pooled(bert) if small else bert, [ids, mask, torch.zeros_like(ids)]
    if name == 'keyword-lstm': return KeywordLSTM(), [torch.randn(batch, 101, 40)]
    if name == 'unet-resnet34':
        import segmentation_models_pytorch as smp
        return smp.Unet('resnet34', encoder_weights=None), [torch.randn(batch, 3, 256, 256)]
    import torchvision
    return getattr(torchvision.models, vision.get(name, name))(), [torch.randn(batch, 3, 224, 224)]
def waited(call):
    def once():
        call()
        if device != 'cpu': torch.cuda.synchronize()
    return once
version = 'PyTorch ' + torch.__version__.split('+')[0]
try:
    model, inputs = made()
    model, inputs = model.eval().to(device), [x.to(device) for x in inputs]
except Exception as e:
    failed(version, e)
    sys.exit(0)
with torch.inference_mode():
    timed(version, waited(lambda: model(*inputs)))
    for way, options in [('torch.compile', {}), ('  with CUDA graphs', {'mode': 'reduce-overhead'})][:1 if device == 'cpu' else 2]:
        try:
            compiled = torch.compile(model, **options)
            timed(way, waited(lambda: compiled(*inputs)))
        except Exception as e: failed(way, e)
)";

void load_weights(nn::Module& model, const models::ZooModel& kind, const std::string& path) {
  const StateDict file = load_safetensors(path);
  try {
    model.load_state_dict(kind.convert(file));
  } catch (const Error& e) {
    throw FileError(fmt::format("{}: {}", path, e.what()));
  }
}

void time_zoo_model(const BenchModelOptions& o, const models::ZooModel& kind) {
  if (!o.dims.empty()) throw UsageError("--dim is for sizes that a model file leaves open");
  const DeviceGuard device(o.common.target());
  const NoGrad no_grad;
  Generator generator(o.common.seed);
  const auto model = kind.make(generator);
  if (!o.weights.empty()) load_weights(*model, kind, o.weights);
  model->eval();
  model->pack();
  time_model(o, {.with_batch =
                     [&](int64_t batch) {
                       const Tensors inputs = kind.inputs(batch, generator);
                       return TimedCall{[model, inputs] { (void)(*model)(inputs); },
                                        {kind.name, fmt::format("{}", batch), o.common.device}};
                     },
                 .peers = std::string(kTimedInPython) + kTorchPeers});
}

void run(const BenchModelOptions& o) {
  check(o);
  for (const models::ZooModel& kind : models::zoo())
    if (kind.name == o.model) return time_zoo_model(o, kind);
  time_file(o);
}

}  // namespace

void add_bench_model(Command bench) {
  const Command command = bench.command("model", "Time a model file (ONNX), or a model of the zoo.");
  auto options = std::make_shared<BenchModelOptions>();
  command.option("model", options->model, "an ONNX file, or one of " + names_of_zoo()).required();
  command
      .option("--batch", options->batches, "sizes, as in 1,16: of each input's first size that the model leaves open")
      .with_default();
  command.option("--threads", options->threads,
                 "numbers of threads of the CPU, as in 1,2; all this process may use where none are given");
  command.option("--dim", options->dims, "NAME=SIZE: of another size that the model leaves open");
  command.option("--weights", options->weights,
                 "safetensors of a model of the zoo, in its authors' names; random ones otherwise");
  command.option("--seconds", options->seconds, "time to measure each").range(0.01, 600.0).with_default();
  command.option("--python", options->python,
                 "a Python whose ONNX Runtime and OpenVINO, or for the zoo whose PyTorch, is measured beside it");
  options->common.own_threads = true;
  options->common.add_to(command, true);
  options->profile.add_to(command, "wait=3,active=5");
  command.run([options] {
    options->common.apply();
    with_profile(options->profile, options->common.target(), true, [&] { run(*options); });
  });
}

}  // namespace tessera::app
