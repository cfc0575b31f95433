// tessera bench op NAME: times an operator beside the peers that are installed, interleaved in one run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "attention.h"
#include "cases/cases.h"
#include "core/util/median.h"
#include "kernels/cpu/isa_select.h"
#include "kernels/cpu/peak.h"
#include "kernels/gpu/rtc/rtc.h"
#include "ops/call_plan.h"
#include "ops/op_table.h"
#include "peers.h"
#include "profiling.h"
#include "tessera/autograd.h"
#include "tessera/fused_gemm.h"
#include "tessera/ops.h"
#include "tessera/optim.h"
#include "tessera/parallel.h"
#include "tessera/profiler.h"
#include "tessera/stream.h"

namespace tessera::app {
namespace {

struct BenchOptions : CommonOptions {
  std::string op, dtype = "f32", epilogue = "none", kernel, shape = "1x12x1024x64", dense = "none", only;
  bool causal = false, in_turns = false, channels_last = false, training = false;
  AttentionChoice attention;
  RecordingOptions profile;
  int m = 1024, n = 1024, k = 1024;
  std::vector<int> config;
  std::vector<std::string> products;
  double seconds = 2;
};

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> times = {};
  double median() const { return tessera::median(times); }
};

double seconds_of(const std::function<void()>& run) {
  auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Times of a GPU, between two of its events: of a graph of so many runs that launching it does not count.
std::function<double()> clock_of(const std::function<void()>& run, Device device) {
  if (!device.is_gpu()) return [run] { return seconds_of(run); };
  struct Clock {
    Device device;
    DeviceGraph graph = {};
    Event begin{device, true}, end{device, true};
    int runs = 0;
    void capture(const std::function<void()>& run, int count) {
      runs = count;
      graph.capture(device, [&] {
        for (int i = 0; i < count; ++i) run();
      });
      graph.replay();
    }
    double seconds() {
      begin.record(current_stream(device));
      graph.replay();
      end.record(current_stream(device));
      end.synchronize();
      return end.milliseconds_since(begin) * 1e-3 / runs;
    }
  };
  auto clock = std::make_shared<Clock>(Clock{device});
  clock->capture(run, 10);
  const double once = clock->seconds();
  if (once < 1e-4) clock->capture(run, static_cast<int>(std::clamp(1e-3 / once, 10.0, 1000.0)));
  return [clock] { return clock->seconds(); };
}

// Rounds over all candidates, steps of a profile, until the time is used: drift of the machine meets all alike.
// `between`: before each run, and after the last.
void time_interleaved(
    std::vector<Candidate>& candidates, double seconds, Device device, const std::function<void()>& between = [] {}) {
  std::vector<std::function<double()>> clocks;
  for (Candidate& c : candidates) {
    for (int warm = 0; warm < 3; ++warm) c.run();
    clocks.push_back(clock_of(c.run, device));
  }
  auto start = std::chrono::steady_clock::now();
  between();
  while (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(seconds) ||
         candidates[0].times.size() < 5) {
    for (size_t i = 0; i < candidates.size(); ++i) candidates[i].times.push_back(clocks[i]()), between();
    profiler::step();
  }
}

DType dtype_option(const std::string& name) {
  try {
    DType dtype = parse_dtype(name);
    if (is_floating(dtype)) return dtype;
  } catch (const Error&) {
  }
  throw UsageError("dtype '" + name + "': one of f32, f64, f16, bf16");
}

cpu_kernels::MatrixArg matrix(const Tensor& t) {
  if (!t.defined()) return {};
  long long row = t.dim() == 1 ? 0 : t.stride(0);  // a bias is the same in each row
  return {t.data_ptr(), static_cast<cpu_kernels::Scalar>(t.dtype()), row, t.stride(-1), {}};
}

// c = a b, or gelu_tanh(a b + d0 + d1) where d0 and d1 are given.
void run_gemm(const Tensor& a, const Tensor& b, const Tensor& d0, const Tensor& d1, const Tensor& c) {
  cpu_kernels::GemmArgs args{};
  args.m = a.size(0);
  args.n = b.size(1);
  args.k = a.size(1);
  args.a = matrix(a);
  args.b = matrix(b);
  args.c = matrix(c);
  args.addend = matrix(d0);
  args.bias = matrix(d1);
  args.alpha = args.beta = 1;
  if (d0.defined()) args.activation = cpu_kernels::Activation::gelu_tanh;
  cpu_kernels::gemm_table().run(args, executor());
}

// The shipped kernel, and with an epilogue or a config those that are compiled at run time, as they are called.
void bench_gemm_on_gpu(const BenchOptions& options) {
  const DType dtype = dtype_option(options.dtype);
  const Device device = options.target();
  NoGrad guard;
  std::optional<ForceKernel> forced;
  if (!options.kernel.empty()) forced.emplace("matmul", options.kernel);
  Generator generator(options.seed);
  const int64_t m = options.m, n = options.n, k = options.k;
  const auto make = [&](const Shape& shape) { return randn(shape, generator).to(dtype).to(device); };
  const Tensor a = make({m, k}), b = make({k, n}), d0 = make({m, n}), d1 = make({n});
  std::optional<GemmConfig> config;
  if (const auto& c = options.config; !c.empty()) config = GemmConfig{c[0], c[1], c[2], c[3], c[4]};
  Tensor c;
  std::vector<Candidate> candidates;
  // The next result lies where the last one lay.
  candidates.push_back({"tessera", [&] { c = Tensor(), c = matmul(a, b); }});
  if (options.epilogue != "none" || config)
    candidates.push_back({"compiled", [&] { c = Tensor(), c = fused_gemm(a, b, "acc", {}, config); }});
  if (options.epilogue != "none")
    candidates.push_back({"compiled add_add_gelu", [&] {
                            c = Tensor();
                            c = fused_gemm(a, b, "gelu_tanh(acc + load(d0) + load(d1))", {d0, d1}, config);
                          }});
  for (const Candidate& candidate : candidates)
    fmt::print("first call of {}: {:.3f} s\n", candidate.name, seconds_of(candidate.run));
  time_interleaved(candidates, options.seconds, device);
  fmt::print("gemm {}x{}x{} {} on {}\n", m, n, k, options.dtype, properties(device).name);
  Results results("bench op gemm", options);
  for (Candidate& candidate : candidates) {
    const double time = candidate.median(), rate = 2.0 * options.m * options.n * options.k / time * 1e-9;
    fmt::print("{:<24} {:>10.1f} GFLOP/s {:>9.4f} ms\n", candidate.name, rate, time * 1e3);
    results.add(candidate.name, rate, "GFLOP/s", true);
  }
  results.write();
}

/// A product as it stands in the options: "12288x768x3072:nt" has m, n and k, and b transposed.
struct Product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
};
Product parse_product(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string letters = colon == text.npos ? "nn" : text.substr(colon + 1);
  const Shape shape = parse_shape(text.substr(0, colon));
  if (shape.rank() != 3 || letters.size() != 2 || letters.find_first_not_of("nt") != letters.npos)
    throw UsageError("--products " + text +
                     ": rows, columns and length of the sums, and which factor is transposed, as in 64x32x16:nt");
  return {shape[0].value(), shape[1].value(), shape[2].value(), letters[0] == 't', letters[1] == 't'};
}

// The kernel that each product gets: a table of shapes in one process, one after the other or in turns, which a card's
// clock treats alike.
void bench_products_on_gpu(const BenchOptions& options) {
  const DType dtype = dtype_option(options.dtype);
  const Device device = options.target();
  std::vector<Product> products;
  for (const std::string& text : options.products) products.push_back(parse_product(text));
  if (options.op != "gemm" || !device.is_gpu()) throw UsageError("--products: of gemm, on a GPU");
  NoGrad guard;
  std::optional<ForceKernel> forced;
  if (!options.kernel.empty()) forced.emplace("matmul", options.kernel);
  const auto candidate = [&](size_t i) {
    const Product& p = products[i];
    Generator generator(options.seed);
    const auto make = [&](int64_t rows, int64_t columns, bool transpose) {
      const Tensor t =
          randn(transpose ? Shape{columns, rows} : Shape{rows, columns}, generator, Float32, device).to(dtype);
      return transpose ? t.transpose(0, 1) : t;
    };
    const Tensor a = make(p.m, p.k, p.transpose_a), b = make(p.k, p.n, p.transpose_b);
    return Candidate{options.products[i], [a, b, c = Tensor()]() mutable { c = Tensor(), c = matmul(a, b); }};
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < products.size(); ++i) {
    std::vector<Candidate> alone{candidate(i)};
    if (!options.in_turns) time_interleaved(alone, options.seconds, device), alone[0].run = nullptr;
    candidates.push_back(std::move(alone[0]));
  }
  if (options.in_turns) time_interleaved(candidates, options.seconds, device);
  Results results("bench op gemm", options);
  fmt::print("{} on {}\n", options.dtype, properties(device).name);
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    const double time = candidates[i].median(), rate = 2.0 * p.m * p.n * p.k / time * 1e-9;
    fmt::print("{:<24} {:>10.1f} GFLOP/s {:>9.4f} ms\n", candidates[i].name, rate, time * 1e3);
    results.add(candidates[i].name, time * 1e3, "ms", false);
  }
  results.write();
}

// The median share that runs in rounds of `step`, at place `first`, have of the peak just before and after each.
double share_of_peak(const std::vector<double>& times, const std::vector<cpu_kernels::FmaPeak>& peaks, size_t first,
                     size_t step, double flops) {
  std::vector<double> shares;
  for (size_t i = 0, at = first; i < times.size(); ++i, at += step)
    shares.push_back(1e-9 * flops / times[i] / between(peaks[at], peaks[at + 1]).gflops);
  return median(std::move(shares));
}

// The peak of floats' multiply-adds, the clock and the share of what cores could do: medians.
void report_peak(const std::vector<cpu_kernels::FmaPeak>& peaks, Results& results) {
  const auto median_of = [&](auto of) {
    std::vector<double> values;
    for (const cpu_kernels::FmaPeak& p : peaks) values.push_back(of(p));
    return median(std::move(values));
  };
  const double peak = median_of([](const auto& p) { return p.gflops; });
  const double clock = median_of([](const auto& p) { return p.clock_ghz; });
  const double share = median_of([](const auto& p) { return p.share(num_threads()); });
  fmt::print("{:<24} {:>10.1f} GFLOP/s, {:.1f} % of {} per core and cycle at {:.2f} GHz\n", "measured FMA peak (f32)",
             peak, 100 * share, cpu_kernels::operations_per_cycle(), clock);
  results.add("fma_peak", peak, "GFLOP/s", true);
  results.add("clock", clock, "GHz", true);
  results.add("fma_peak_share", share, "fraction", true);
}

void bench_gemm(const BenchOptions& options) {
  DType dtype = dtype_option(options.dtype);
  bool fused = options.epilogue == "add_add_gelu";
  if (!options.kernel.empty()) throw UsageError("--kernel: the cpu has one kernel for products");
  if (!options.config.empty()) throw UsageError("--config: kernels are compiled at run time on GPUs only");
  NoGrad guard;
  Generator generator(options.seed);
  int64_t m = options.m, n = options.n, k = options.k;
  Tensor a = randn({m, k}, generator).to(dtype), b = randn({k, n}, generator).to(dtype);
  Tensor d0 = randn({m, n}, generator).to(dtype), d1 = randn({n}, generator).to(dtype), c = empty({m, n}, dtype);
  std::vector<Candidate> candidates{{"tessera", [&] { run_gemm(a, b, {}, {}, c); }}};
  if (fused) candidates.push_back({"tessera add_add_gelu", [&] { run_gemm(a, b, d0, d1, c); }});
  if (dtype == Float32)
    for (GemmPeer& peer : gemm_peers(num_threads()))
      candidates.push_back({peer.name, [&, run = peer.run] {
                              run(options.m, options.n, options.k, a.data<float>(), b.data<float>(), c.data<float>());
                            }});
  std::vector<cpu_kernels::FmaPeak> peaks;
  time_interleaved(candidates, options.seconds, cpu(),
                   [&] { peaks.push_back(cpu_kernels::measure_fma_peak(num_threads(), cpu_kernels::brief_probe)); });

  Results results("bench op gemm", options);
  double flops = 2.0 * m * n * k;
  fmt::print("gemm {}x{}x{} {} epilogue {}, {} threads\n", m, n, k, options.dtype, options.epilogue, num_threads());
  report_peak(peaks, results);
  double best_peer = 0, plain = candidates[0].median();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    double time = candidate.median(), rate = flops / time * 1e-9;
    bool ours = candidate.name.starts_with("tessera");
    if (!ours) best_peer = std::max(best_peer, rate);
    const double of_peak = share_of_peak(candidate.times, peaks, i, candidates.size(), flops);
    fmt::print("{:<24} {:>10.1f} GFLOP/s {:>9.3f} ms   {:.1f} % of peak\n", candidate.name, rate, time * 1e3,
               100 * of_peak);
    results.add(candidate.name, rate, "GFLOP/s", true);
    results.add(candidate.name + ", share of the peak", of_peak, "fraction", true);
  }
  if (fused) {
    double ratio = candidates[1].median() / plain;
    fmt::print("time of add_add_gelu over plain: {:.3f}\n", ratio);
    results.add("add_add_gelu_over_plain", ratio, "ratio", false);
  }
  if (best_peer > 0) {
    double ratio = flops / plain * 1e-9 / best_peer;
    fmt::print("tessera over the best peer: {:.3f}\n", ratio);
    results.add("over_best_peer", ratio, "ratio", true);
  } else {
    fmt::print("no peer is installed (libopenblas, libdnnl) or none takes {}\n", options.dtype);
  }
  results.write();
}

// Attention forward and backward, of heads of one shape.
void bench_attention(const BenchOptions& options) {
  const DType dtype = dtype_option(options.dtype);
  const Device device = options.target();
  const Shape shape = parse_shape(options.shape);
  if (shape.rank() != 4) throw UsageError("--shape " + options.shape + ": batch, heads, tokens and width of a head");
  Generator generator(options.seed);
  const auto random = [&] { return randn(shape, generator).to(dtype).to(device); };
  const Tensor dy = random();
  Tensors in{random(), random(), random()};
  for (Tensor& t : in) t.set_requires_grad();
  Tensor y;
  Tensors gradients;
  std::vector<Candidate> candidates{{"forward", [&] {
                                       y = Tensor();  // the next result lies where the last one lay
                                       y = scaled_dot_product_attention(in[0], in[1], in[2],
                                                                        {.causal = options.causal});
                                     }}};
  candidates.push_back({"backward", [&] {
                          gradients.clear();
                          gradients = grad({y}, in, {dy}, true);
                        }});
  for (Candidate& candidate : candidates) {  // each by itself, as peers are: a card's clock follows what ran before
    std::vector<Candidate> alone{candidate};
    candidates[0].run();  // results of a graph go with it
    time_interleaved(alone, options.seconds, device);
    candidate = alone[0];
  }
  Results results("bench op sdpa", options);
  fmt::print("sdpa {} {}{}, attention {}, on {}\n", options.shape, options.dtype, options.causal ? " causal" : "",
             options.attention.name(), options.place());
  const double tokens = static_cast<double>(shape[2].value());
  double flops = 4 * static_cast<double>(in[0].numel()) * tokens * (options.causal ? 0.5 : 1);
  for (Candidate& candidate : candidates) {
    const double time = candidate.median(), rate = flops / time * 1e-9;
    fmt::print("{:<24} {:>10.1f} GFLOP/s {:>9.4f} ms\n", candidate.name, rate, time * 1e3);
    results.add(candidate.name, rate, "GFLOP/s", true);
    flops *= 2.5;  // five products instead of two
  }
  results.write();
}

/// An operator along rows, with the tensors of x's size that must be read and written forward and backward.
struct RowOperator {
  const char* name;
  std::function<Tensor(const Tensors&)> run;  // of x and as many weights
  int forward, backward, weights = 0;
};

// Operators on m rows of n, and a step of AdamW on as many elements, each in turns with a copy of as many in one piece.
// Operands lie as casts make them, on a GPU in padded rows, but those that options.dense names.
void bench_rows(const BenchOptions& options) {
  const DType dtype = dtype_option(options.dtype);
  const Device device = options.target();
  const Shape shape{options.m, options.n};
  Generator generator(options.seed);
  const auto random = [&](const Shape& of, const char* role, DType type) {
    const Tensor t = randn(of, generator, Float32, device).to(type);
    return options.dense == role || options.dense == "all" ? t.contiguous() : t;
  };
  const Tensor target = randint(0, options.n, {options.m}, generator).to(device);
  const RowOperator operators[] = {
      {"layer_norm", [](const Tensors& in) { return layer_norm(in[0], in[1], in[2]); }, 2, 3, 2},
      {"rms_norm", [](const Tensors& in) { return rms_norm(in[0], in[1]); }, 2, 3, 1},
      {"softmax", [](const Tensors& in) { return softmax(in[0], -1); }, 2, 3},
      {"gelu_tanh", [](const Tensors& in) { return gelu_tanh(in[0]); }, 2, 3},
      {"cross_entropy", [&](const Tensors& in) { return cross_entropy(in[0], target); }, 1, 2}};
  Results results("bench op rows", options);
  fmt::print("{} rows of {} in {}, dense: {}, on {}\n", options.m, options.n, options.dtype, options.dense,
             options.place());
  const double bytes = static_cast<double>(options.m) * options.n * static_cast<double>(size_of(dtype));
  const auto report = [&](const std::string& name, double moved, const Candidate& c, const Candidate& copy) {
    const double rate = moved / c.median(), share = rate / (2 * bytes / copy.median());
    fmt::print("{:<24} {:>9.4f} ms {:>8.1f} GB/s {:>6.1f} % of a copy\n", name, c.median() * 1e3, rate * 1e-9,
               share * 100);
    results.add(name, share, "ratio", true);
  };
  const Tensor source = random({static_cast<int64_t>(options.m) * options.n}, "copy", dtype);
  Tensor copied;
  const Candidate copy{"copy", [&] { copied = Tensor(), copied = clone(source); }};
  for (const RowOperator& op : operators) {
    Tensors in{random(shape, "inputs", dtype)}, gradients;
    for (int i = 0; i < op.weights; ++i) in.push_back(random({options.n}, "inputs", dtype));
    for (Tensor& t : in) t.set_requires_grad();
    Tensor y = op.run(in);
    const Tensor dy = random(y.shape(), "gradients", y.dtype());
    std::vector<Candidate> candidates{{op.name, [&] { y = Tensor(), y = op.run(in); }},
                                      {"backward", [&] { gradients.clear(), gradients = grad({y}, in, {dy}, true); }},
                                      copy};
    time_interleaved(candidates, options.seconds, device);
    report(op.name, op.forward * bytes, candidates[0], candidates[2]);
    report(std::string(op.name) + " backward", op.backward * bytes, candidates[1], candidates[2]);
  }
  Tensor parameter = random(shape, "inputs", dtype).set_requires_grad();
  parameter.set_grad(random(shape, "gradients", dtype));
  optim::AdamW optimizer({parameter}, {});
  std::vector<Candidate> candidates{{"AdamW", [&] { optimizer.step(); }}, copy};
  time_interleaved(candidates, options.seconds, device);
  const double moments = 4 * static_cast<double>(parameter.numel()) * (dtype == Float64 ? 8 : 4);
  report("AdamW", 3 * bytes + moments, candidates[0], candidates[1]);
  results.write();
}

// What a call costs the host: of operators on tensors so small that their kernels take less time than that, beside
// launches of an empty kernel just before and after, so that a host that slows down slows both. So many calls at a time
// that a GPU's queue holds without making anybody wait.
void bench_host(const BenchOptions& options) {
  const Device device = options.target();
  if (!device.is_gpu()) throw UsageError("host: only of a GPU: --device");
  const DType dtype = dtype_option(options.dtype);
  Generator generator(options.seed);
  const auto random = [&](const Shape& of) { return randn(of, generator, Float32, device).to(dtype); };
  Tensor x = random({8, 16}), weight = random({16, 16}), bias = random({16});
  for (Tensor* t : {&x, &weight, &bias}) t->set_requires_grad();
  const Tensor other = random({8, 16}), dy = random({8, 16});
  // Named, as g++ 13 takes what load() returns for a part of its argument.
  const gpu::Program program{"extern \"C\" __global__ void empty(int) {}", {"empty"}};
  const gpu::Module& empty = gpu::load(program, device);
  const auto add = [&] { return x + other; };
  Tensor y;
  const auto call = [&](const char* name, bool records, std::function<Tensor()> fn) {
    return Candidate{name, [&, records, fn = std::move(fn)] {
                       const GradMode mode(records);
                       y = Tensor(), y = fn();
                     }};
  };
  constexpr int calls = 50;
  const auto time_of = [&](const std::function<void()>& run) {
    synchronize(device);
    return seconds_of([&] {
             for (int i = 0; i < calls; ++i) run();
           }) /
           calls;
  };
  Candidate launch{"launch", [&] { empty.launch(0, {1, 32, 0}, 0); }};
  Candidate candidates[] = {
      call("add", false, add),
      call("add, recorded", true, add),
      call("gelu_tanh, recorded", true, [&] { return gelu_tanh(x); }),
      call("layer_norm, recorded", true, [&] { return layer_norm(x, bias, bias); }),
      call("linear, recorded", true, [&] { return linear(x, weight, bias); }),
      call("add, recorded, and its gradient", true, [&] { return grad({x + other}, {x}, {dy})[0]; })};
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(options.seconds) ||
         candidates[0].times.size() < 5) {
    launch.times.push_back(time_of(launch.run));
    for (Candidate& c : candidates) {
      const double before = launch.times.back(), time = time_of(c.run);
      launch.times.push_back(time_of(launch.run));
      c.times.push_back(time - (before + launch.times.back()) / 2);
    }
    profiler::step();
  }
  Results results("bench op host", options);
  fmt::print("host, {} on {}; a launch takes {:.2f} us, a call above that, us: median (quarters)\n", options.dtype,
             options.place(), launch.median() * 1e6);
  for (Candidate& c : candidates) {
    std::sort(c.times.begin(), c.times.end());
    const auto share = [&](size_t quarters) { return c.times[c.times.size() * quarters / 4] * 1e6; };
    fmt::print("{:<36} {:>8.2f} ({:.2f}, {:.2f})\n", c.name, share(2), share(1), share(3));
    results.add(c.name + ", above a launch", share(2), "us", false);
  }
  results.add(launch.name, launch.median() * 1e6, "us", false);
  results.write();
}

Tensors inputs_of(const OpCase& c, const BenchOptions& options, Generator& generator) {
  const DType dtype = dtype_option(options.dtype);
  Tensors in = c.inputs(generator);
  for (Tensor& t : in) {
    if (!t.defined()) continue;
    t = (t.dtype() == Float64 ? t.to(dtype) : t).to(options.target());
    if (options.channels_last && t.dim() == 4) t = t.to(ChannelsLast);
    if (options.training && is_floating(t.dtype())) t.set_requires_grad();
  }
  return in;
}

double bytes_of(const Tensor& t) {
  return t.defined() ? static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype())) : 0;
}
const Tensor& largest(const Tensors& tensors) {
  return *std::max_element(tensors.begin(), tensors.end(),
                           [](const Tensor& a, const Tensor& b) { return bytes_of(a) < bytes_of(b); });
}

void report_case(const std::string& name, double time, double flops, double bytes, double copy, Results& results) {
  std::string line = fmt::format("{:<48} {:>10.3f} ms", name, time * 1e3);
  results.add(name, time * 1e3, "ms", false);
  if (flops > 0) line += fmt::format(" {:>9.1f} GFLOP/s", flops / time * 1e-9);
  if (bytes > 0) {
    double share = bytes / time / copy;
    line += fmt::format(" {:>7.1f} GB/s, {:.0f} % of a copy's {:.1f}", bytes / time * 1e-9, 100 * share, copy * 1e-9);
    results.add(name + ", share of a copy", share, "ratio", true);
  }
  fmt::print("{}\n", line);
}

// An operator in turns with a plain copy of its largest input, in the same memory. Twice: on the same tensors again and
// again, which caches may hold, and through so many of them that each comes from memory.
void bench_case(const OpCase& c, const BenchOptions& options, Results& results) {
  const GradMode mode(options.training);
  std::optional<ForceKernel> forced;
  if (!options.kernel.empty()) forced.emplace(c.op, options.kernel);
  Generator generator(options.seed);
  DType dtype = dtype_option(options.dtype);
  const Device device = options.target();
  const Op& op = find_op(c.op);
  const std::string name = fmt::format("{} {}{}{}", c.op, c.label, options.channels_last ? ", channels last" : "",
                                       options.training ? ", training" : "");
  std::vector<Tensors> inputs{inputs_of(c, options, generator)}, outputs(1);
  double bytes = c.bytes * static_cast<double>(size_of(dtype)) / 4;
  size_t slot = 0;
  auto next = [&] { return slot = (slot + 1) % inputs.size(); };
  std::vector<Candidate> candidates{{name, [&] {
                                       size_t i = next();
                                       outputs[i].clear();  // the next result lies where the last one lay
                                       outputs[i] = dispatch(op, Tensors(inputs[i]), c.attrs);
                                     }}};
  if (inputs[0].empty()) bytes = 0;
  if (bytes > 0)
    candidates.push_back({"copy", [&] {
                            size_t i = next();
                            const Tensor& from = largest(inputs[i]);
                            outputs[i].clear();
                            if (device.is_gpu()) {
                              outputs[i] = {clone(from)};
                              return;
                            }
                            outputs[i] = {empty(from.shape(), from.dtype())};
                            cpu_kernels::plain_copy(outputs[i][0].data_ptr(), from.data_ptr(),
                                                    static_cast<long long>(bytes_of(from)));
                          }});
  for (bool memory : {false, true}) {
    if (memory && bytes == 0) break;
    if (memory) {
      constexpr double kAll = 400e6;
      for (int more = static_cast<int>(std::clamp(kAll / bytes, 2.0, 64.0)) / 2 * 2; more > 0; --more)
        inputs.push_back(inputs_of(c, options, generator));  // an odd number in all: both candidates meet each
      outputs.resize(inputs.size());
      for (size_t i = 0; i < inputs.size(); ++i) candidates[i % 2].run();
    }
    for (Candidate& candidate : candidates) candidate.times.clear();
    time_interleaved(candidates, options.seconds, options.target());
    double copy = bytes > 0 ? 2 * bytes_of(largest(inputs[0])) / candidates[1].median() : 0;
    report_case(memory ? name + ", from memory" : name, candidates[0].median(), c.flops, bytes, copy, results);
  }
}

void run(BenchOptions& options) {
  options.attention.apply(options.target());
  if ((options.channels_last || options.training) &&
      (options.op == "gemm" || options.op == "sdpa" || options.op == "rows" || options.op == "host"))
    throw UsageError("--channels-last and --training: of operators with a benchmark case, not of " + options.op);
  if (options.op == "sdpa") return bench_attention(options);
  if (options.op == "rows") return bench_rows(options);
  if (options.op == "host") return bench_host(options);
  if (!options.products.empty()) return bench_products_on_gpu(options);
  if (options.in_turns) throw UsageError("--in-turns: of --products");
  if (options.op == "gemm") return options.target().is_gpu() ? bench_gemm_on_gpu(options) : bench_gemm(options);
  std::vector<OpCase> chosen;
  std::string known;
  for (OpCase& c : op_cases()) {
    if (!c.benchmark) continue;
    if (known.find(std::string(c.op)) == known.npos) known += " " + std::string(c.op);
    if (c.label.find(options.only) == std::string::npos) continue;
    if (c.op == options.op || options.op == "all") chosen.push_back(std::move(c));
  }
  if (chosen.empty())
    throw UsageError("no benchmark for '" + options.op + "'" +
                     (options.only.empty() ? "" : " with a case '" + options.only + "'") +
                     "; there are: gemm sdpa rows host all" + known);
  Results results("bench op " + options.op, options);
  fmt::print("{}\n", options.place());
  for (const OpCase& c : chosen) bench_case(c, options, results);
  results.write();
}

}  // namespace

void add_bench(Command app) {
  const Command command = app.command("bench", "Measure.");
  command.require_command();
  const Command op = command.command("op", "Time an operator beside the peers that are installed.");
  auto options = std::make_shared<BenchOptions>();
  op.option("op", options->op,
            "gemm, sdpa, rows (norms, softmax, losses, GELU, AdamW beside a copy), host (what calls cost beside a "
            "launch), or an operator with a benchmark case, or all")
      .required();
  op.option("--m", options->m, "rows of the product, or of what rows measures").range(1, 1 << 20).with_default();
  op.option("--n", options->n, "columns of the product, or of each row").range(1, 1 << 20).with_default();
  op.option("--k", options->k, "length of the sums").range(1, 1 << 20).with_default();
  op.option("--dense", options->dense, "what of rows' operands is dense where a GPU pads rows to whole 16 bytes")
      .one_of({"none", "inputs", "gradients", "all"})
      .with_default();
  op.option("--dtype", options->dtype, "f32, f64, f16 or bf16").with_default();
  op.option("--epilogue", options->epilogue, "none or add_add_gelu").one_of({"none", "add_add_gelu"}).with_default();
  op.option("--kernel", options->kernel, "the kernel to measure; see tessera explain");
  op.option("--config", options->config, "on a GPU: tile m, n and k, warps, stages of a kernel compiled at run time")
      .between_commas(5);
  op.option("--products", options->products,
            "on a GPU: the products to measure, as in 12288x768x3072:nt (m, n, k; b is transposed)");
  op.flag("--in-turns", options->in_turns, "products in turns instead of one after the other");
  op.option("--shape", options->shape, "of sdpa's queries, keys and values").with_default();
  op.flag("--causal", options->causal, "causal attention, in sdpa");
  options->attention.add_to(op);
  op.option("--case", options->only, "of an operator's cases, those whose name contains this");
  op.flag("--channels-last", options->channels_last, "images of an operator's case lie channels last");
  op.flag("--training", options->training, "an operator's case keeps what its gradient will need");
  op.option("--seconds", options->seconds, "time to measure").range(0.01, 600.0).with_default();
  options->add_to(op, true);
  options->add_picks_to(op);
  options->profile.add_to(op, "active=0");
  op.run([options] {
    options->apply();
    with_profile(options->profile, options->target(), true, [&] { run(*options); });
  });
  add_bench_model(command);
  add_bench_comm(command);
}

}  // namespace tessera::app
