// tessera bench model FILE: latency and throughput of a model file, beside ONNX Runtime and OpenVINO where a Python has
// them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "model_inputs.h"
#include "tessera/onnx.h"
#include "tessera/parallel.h"
#include "tessera/stream.h"

namespace tessera::app {
namespace {

struct BenchModelOptions {
  CommonOptions common;
  std::string model, batches = "1", threads, python;
  std::vector<std::string> dims;
  double seconds = 3;
};

/// What one system takes for one batch, in milliseconds.
struct Latency {
  double p50 = 0, p90 = 0, p99 = 0;
  size_t calls = 0;
};
Latency summary_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[std::min(times.size() - 1, static_cast<size_t>(share * static_cast<double>(times.size())))];
  };
  return {at(0.5), at(0.9), at(0.99), times.size()};
}

std::vector<int64_t> counts(const std::string& text, const char* what) {
  std::vector<int64_t> all;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t n = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, n);
    if (error != std::errc() || stop != text.data() + end || n < 1)
      throw UsageError(fmt::format("'{}' is no list of {}", text, what));
    all.push_back(n);
    begin = end + 1;
  }
  return all;
}

/// The dims by name, with those that lead an input as the batch.
std::map<std::string, int64_t> with_batch(const onnx::Model& model, std::map<std::string, int64_t> dims,
                                          int64_t batch) {
  bool open = false;
  for (const onnx::Port& port : model.inputs()) {
    if (port.dims.empty() || std::isdigit(static_cast<unsigned char>(port.dims[0][0]))) continue;
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

Latency latency_of(const onnx::Model& model, const std::map<std::string, onnx::Value>& inputs,
                   const BenchModelOptions& o) {
  const Device device = o.common.target();
  using Clock = std::chrono::steady_clock;
  const auto once = [&] {
    const auto begin = Clock::now();
    (void)model.run_by_name(inputs);
    if (device.is_gpu()) current_stream(device).synchronize();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  for (int i = 0; i < 3; ++i) once();
  std::vector<double> times;
  const auto begin = Clock::now();
  while (times.size() < 5 || std::chrono::duration<double>(Clock::now() - begin).count() < o.seconds)
    times.push_back(once());
  return summary_of(times);
}

// Arguments: the model, threads, seconds, and the inputs as "name=dtype:sizes". A line of JSON for each system.
constexpr const char* kPeers = R"(
import json, sys, time
import numpy as np
model, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rng = np.random.default_rng(0)
feeds = {}
for text in sys.argv[4:]:
    name, rest = text.rsplit('=', 1)
    dtype, sizes = rest.split(':')
    shape = [int(s) for s in sizes.split('x') if s]
    kind = np.dtype(dtype)
    feeds[name] = (rng.standard_normal(shape) if kind.kind == 'f' else rng.integers(0, 2 if dtype == 'bool' else 10, shape)).astype(kind)
def timed(name, call):
    for _ in range(3): call()
    times, begin = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        t = time.perf_counter(); call(); times.append((time.perf_counter() - t) * 1e3)
    times.sort()
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    print(json.dumps({'name': name, 'p50': at(.5), 'p90': at(.9), 'p99': at(.99), 'calls': len(times)}), flush=True)
try:
    import onnxruntime as ort
    o = ort.SessionOptions(); o.intra_op_num_threads = threads; o.log_severity_level = 4
    s = ort.InferenceSession(model, o, providers=['CPUExecutionProvider'])
    timed('ONNX Runtime ' + ort.__version__, lambda: s.run(None, feeds))
    del s
except ImportError: pass
except Exception as e: print(json.dumps({'name': 'ONNX Runtime', 'error': str(e).splitlines()[0]}))
try:
    import openvino as ov
    core = ov.Core(); m = core.read_model(model)
    m.reshape({k: list(v.shape) for k, v in feeds.items()})
    c = core.compile_model(m, 'CPU', {'INFERENCE_NUM_THREADS': threads, 'PERFORMANCE_HINT': 'LATENCY', 'INFERENCE_PRECISION_HINT': 'f32'})
    r = c.create_infer_request()
    timed('OpenVINO ' + ov.__version__.split('-')[0], lambda: r.infer(feeds))
except ImportError: pass
except Exception as e: print(json.dumps({'name': 'OpenVINO', 'error': str(e).splitlines()[0]}))
)";

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}
std::string numpy_name(DType dtype) {
  const char* names[] = {"bool", "uint8", "int8", "int32", "int64", "float16", "", "float32", "float64"};
  return names[static_cast<int>(dtype)];
}

std::vector<nlohmann::json> peers(const BenchModelOptions& o, const std::map<std::string, onnx::Value>& inputs,
                                  int64_t threads) {
  std::string command =
      fmt::format("{} -c {} {} {} {}", quoted(o.python), quoted(kPeers), quoted(o.model), threads, o.seconds);
  for (const auto& [name, value] : inputs) {
    const std::string type = numpy_name(value.tensor().dtype());
    if (type.empty()) return {};
    std::string sizes;
    for (int64_t d = 0; d < value.tensor().dim(); ++d)
      sizes += fmt::format("{}{}", d ? "x" : "", value.tensor().size(d));
    command += " " + quoted(fmt::format("{}={}:{}", name, type, sizes));
  }
  std::vector<nlohmann::json> all;
  FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (!pipe) throw Error(fmt::format("cannot start {}", o.python));
  std::string line;
  for (int c; (c = std::fgetc(pipe)) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    nlohmann::json one = nlohmann::json::parse(line, nullptr, false);
    if (one.is_object()) all.push_back(std::move(one));
    line.clear();
  }
  if (pclose(pipe) != 0) fmt::print(stderr, "note: {} could not measure peers: is it a Python with numpy?\n", o.python);
  return all;
}

void run(const BenchModelOptions& o) {
  o.common.apply();
  const auto dims = parse_dims(o.dims);
  const onnx::Model model(o.model, {.device = o.common.target()});
  const std::vector<int64_t> threads =
      o.threads.empty() ? std::vector<int64_t>{num_threads()} : counts(o.threads, "threads");
  Results results("bench model", o.common);
  fmt::print("{:>5} {:>7}  {:<22} {:>10} {:>10} {:>10} {:>11} {:>9}\n", "batch", "threads", "", "p50 ms", "p90 ms",
             "p99 ms", "samples/s", "ours/this");
  for (const int64_t batch : counts(o.batches, "batch sizes"))
    for (const int64_t n : threads) {
      set_num_threads(static_cast<int>(n));
      const auto inputs = model_inputs(model, {}, with_batch(model, dims, batch));
      reset_peak_memory(o.common.target());
      const Latency ours = latency_of(model, inputs, o);
      const auto line = [&](const std::string& name, const Latency& l) {
        fmt::print("{:>5} {:>7}  {:<22} {:>10.3f} {:>10.3f} {:>10.3f} {:>11.1f} {:>9.2f}\n", batch, n, name, l.p50,
                   l.p90, l.p99, static_cast<double>(batch) * 1e3 / l.p50, ours.p50 / l.p50);
        results.add(fmt::format("{} batch {} threads {} p50", name, batch, n), l.p50, "ms", false);
        std::fflush(stdout);
      };
      line("Tessera", ours);
      results.add(fmt::format("Tessera batch {} threads {} peak memory", batch, n),
                  static_cast<double>(memory_stats(o.common.target()).peak_allocated), "bytes", false);
      if (o.python.empty()) continue;
      for (const nlohmann::json& peer : peers(o, inputs, n)) {
        const std::string name = peer.value("name", "?");
        if (peer.contains("error")) fmt::print(stderr, "note: {}: {}\n", name, peer["error"].get<std::string>());
        else line(name, {peer["p50"], peer["p90"], peer["p99"], peer["calls"]});
      }
    }
  results.write();
}

}  // namespace

void add_bench_model(Command bench) {
  const Command command = bench.command("model", "Time a model file (ONNX).");
  auto options = std::make_shared<BenchModelOptions>();
  command.option("model", options->model, "an ONNX file").required();
  command
      .option("--batch", options->batches, "sizes, as in 1,16: of each input's first size that the model leaves open")
      .with_default();
  command.option("--per-threads", options->threads, "numbers of threads, as in 1,2");
  command.option("--dim", options->dims, "NAME=SIZE: of another size that the model leaves open");
  command.option("--seconds", options->seconds, "time to measure each").range(0.01, 600.0).with_default();
  command.option("--python", options->python, "a Python whose ONNX Runtime and OpenVINO are measured beside it");
  options->common.add_to(command, true);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
