// tessera selftest: one report on a device, for whoever has a card that its makers have not.
#include <fmt/format.h>

#include "cases/cases.h"
#include "cases/compare.h"
#include "command.h"
#include "core/attrs.h"
#include "core/gpu/backend.h"
#include "core/util/median.h"
#include "kernels/gpu/rtc/compiler.h"
#include "ops/call_plan.h"
#include "ops/op_table.h"
#include "tessera/autograd.h"
#include "tessera/fused_gemm.h"
#include "tessera/ops.h"
#include "tessera/parallel.h"
#include "tessera/version.h"

namespace tessera::app {
namespace {

struct SelftestOptions : CommonOptions {
  bool check_only = false;
};

std::vector<double> elements(const Tensor& t) { return t.to(cpu()).to(Float64).contiguous().to_vector<double>(); }

/// Runs a case in a dtype on the device; throws Error where a result is not what the reference says.
void check(const Op& op, const OpCase& c, DType dtype, Device device) {
  Generator generator(std::hash<std::string>{}(std::string(c.op) + c.label));  // as the tests draw them
  Tensors there, here, exact;
  for (const Tensor& t : c.inputs(generator)) {
    const Tensor x = !t.defined() ? t : t.dtype() == Float64 ? t.to(dtype).clone() : t.clone();
    here.push_back(x);
    there.push_back(x.defined() ? x.clone().to(device) : x);
    exact.push_back(x.defined() && t.dtype() == Float64 ? x.to(Float64).clone() : x.defined() ? x.clone() : x);
  }
  const Tensors results = dispatch(op, std::move(there), op.transfers ? Attrs(DeviceAttrs{cpu()}) : c.attrs);
  Tensors out;
  for (const Tensor& t : results) out.push_back(t.defined() ? t.to(cpu()) : t);
  if (c.check) return c.check(here, out);
  const Tensors want = op.reference({exact.data(), exact.size()}, c.attrs);
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = relative_error(elements(out[i]), elements(want[i]));
    const double limit = is_floating(out[i].dtype()) ? tolerance(op.name, out[i].dtype()) : 0;
    if (!(error <= limit)) throw Error(fmt::format("output {}: error {:.2g}, allowed {:.2g}", i, error, limit));
  }
}

/// Every operator in every case and dtype; returns how many failed.
int check_operators(Device device, Results& results) {
  NoGrad guard;
  int passed = 0, failed = 0;
  const std::vector<OpCase> cases = op_cases();
  for (const Op* op : op_table()) {
    if (!op->view && !op->compute && !has_kernels(*op, device.type)) continue;  // some have kernels on GPUs alone
    for (const OpCase& c : cases) {
      if (c.op != op->name || c.benchmark) continue;
      for (DType dtype : c.dtypes) try {
          check(*op, c, dtype, device);
          ++passed;
        } catch (const std::exception& error) {
          if (++failed <= 50) fmt::print("FAILED  {} '{}' {}: {}\n", op->name, c.label, name(dtype), error.what());
        }
    }
  }
  fmt::print("operators against float64: {} cases of {} operators passed, {} failed\n", passed, op_table().size(),
             failed);
  results.add("selftest.passed", passed, "cases", true);
  results.add("selftest.failed", failed, "cases", false);
  return failed;
}

/// A product compiled here and now, where the vendor's compiler is; returns how many failed.
int check_compiled(Device device, Results& results) {
  NoGrad guard;
  Generator generator(5);
  const Tensor a = randn({67, 96}, generator).to(Float16), b = randn({96, 72}, generator).to(Float16),
               d = randn({72}, generator);
  std::string compiler;
  try {
    compiler = gpu::vendor_compiler(device.type).name();
  } catch (const Error& error) {
    fmt::print("fused_gemm was not tried: {}\n", error.what());
    return 0;
  }
  std::string fault;
  try {
    const Tensor y = fused_gemm(a.to(device), b.to(device), "relu(acc + load(d0))", {d.to(device)});
    const Tensor want = relu(matmul(a.to(Float64), b.to(Float64)) + d.to(Float64));
    const double error = relative_error(elements(y), elements(want));
    if (!(error <= tolerance("matmul", Float16))) fault = fmt::format("error {:.2g}", error);
  } catch (const Error& error) {
    fault = error.what();
  }
  fmt::print("{}fused_gemm, compiled by {}{}\n", fault.empty() ? "" : "FAILED  ", compiler,
             fault.empty() ? ": agrees with float64" : ": " + fault);
  results.add("selftest.compiled_failed", !fault.empty(), "cases", false);
  return !fault.empty();
}

/// Seconds of a run, the median of five after one to warm up.
double seconds_of(const std::function<Tensor()>& run, Device device) {
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    run();
    synchronize(device);
    if (i > 0) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return median(times);
}

void measure(Device device, Results& results) {
  NoGrad guard;
  Generator generator(7);
  const auto random = [&](const Shape& shape, DType dtype) { return randn(shape, generator).to(dtype).to(device); };
  const auto show = [&](const std::string& what, double rate, const char* unit) {
    fmt::print("{:<44} {:10.3f} {}\n", what, rate, unit);
    results.add("selftest." + what, rate, unit, true);
  };
  const int64_t numbers = device.is_gpu() ? 1 << 26 : 1 << 24, size = device.is_gpu() ? 4096 : 1024;
  const Tensor x = random({numbers}, Float32);
  show("bandwidth of x + 1, f32", 8e-9 * static_cast<double>(numbers) / seconds_of([&] { return x + 1; }, device),
       "GB/s");
  for (DType dtype : {Float32, Float16, BFloat16}) {
    const Tensor a = random({size, size}, dtype), b = random({size, size}, dtype);
    const double flops = 2e-12 * static_cast<double>(size * size * size);
    show(fmt::format("product {} x {} x {}, {}", size, size, size, name(dtype)),
         flops / seconds_of([&] { return matmul(a, b); }, device), "TFLOP/s");
  }
  for (DType dtype : {Float32, Float16, BFloat16}) {
    const Shape shape = {1, device.is_gpu() ? 16 : 4, size / 2, 64};
    const Tensor q = random(shape, dtype), k = random(shape, dtype), v = random(shape, dtype);
    const double flops = 4e-12 * static_cast<double>(q.numel() * (size / 2));
    show(fmt::format("attention {}, {}", to_string(shape), name(dtype)),
         flops / seconds_of([&] { return scaled_dot_product_attention(q, k, v); }, device), "TFLOP/s");
  }
}

void run(const SelftestOptions& options) {
  options.apply();
  const Device device = options.target();
  fmt::print("tessera {} on {}: {}\n", TESSERA_VERSION, to_string(device), options.place());
  if (device.is_gpu()) {
    const DeviceProperties p = properties(device);
    fmt::print("{}, {}, {} multiprocessors, waves of {}, {:.1f} GiB, {} KiB of shared memory\n", p.architecture,
               gpu::state(device).runtime.versions(), p.multiprocessors, p.warp_size,
               static_cast<double>(p.memory) / 0x1p30, p.shared_memory / 1024);
  }
  Results results("selftest", options);
  int failed = check_operators(device, results);
  if (device.is_gpu()) failed += check_compiled(device, results);
  results.write();  // what follows may meet a device that a bad kernel has lost
  if (!options.check_only) {
    measure(device, results);
    results.write();
  }
  if (failed > 0) throw Error(fmt::format("selftest: {} cases failed", failed));
}

}  // namespace

void add_selftest(Command app) {
  const Command command =
      app.command("selftest", "Check every operator on a device against float64, and measure its rates.");
  auto options = std::make_shared<SelftestOptions>();
  options->add_to(command, true);
  command.flag("--check-only", options->check_only, "measure no rates, for devices that are emulated");
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
