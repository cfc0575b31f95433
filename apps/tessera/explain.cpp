// tessera explain OP [SHAPE...]: which kernel a call gets, why each other one was passed over, and what the call costs.
#include <optional>

#include <fmt/format.h>

#include "attention.h"
#include "cases/cases.h"
#include "core/gpu/backend.h"
#include "ops/call_plan.h"
#include "ops/op_table.h"
#include "ops/schema.h"
#include "tessera/dist.h"
#include "tessera/ops.h"

namespace tessera::app {
namespace {

struct ExplainOptions : CommonOptions {
  ExplainOptions() { without_memory = true; }
  std::string op, dtype = "f32";
  std::vector<std::string> arguments;  // as given
  std::vector<std::string> shapes;     // those of them without a `=`
  std::string attributes;              // the others, as a list
  bool causal = false;
  double dropout = 0;
  AttentionChoice attention;
};

std::string full_name(const std::string& op) {
  if (op == "sdpa") return "scaled_dot_product_attention";
  if (op == "gemm") return "matmul";
  return op;
}

// What a call of an op looks like, after its cases.
struct Usage {
  std::optional<OpCase> first;
  Tensors example;                    // inputs of the first case
  size_t least = SIZE_MAX, most = 0;  // inputs; those past the least may be absent
  bool list = false;                  // takes any number of tensors
};

Usage usage_of(const Op& op, Generator& generator) {
  Usage usage;
  for (OpCase& c : op_cases()) {
    if (c.op != op.name || c.benchmark) continue;
    Tensors in = c.inputs(generator);
    size_t defined = in.size();
    while (defined > 0 && !in[defined - 1].defined()) --defined;
    usage.least = std::min(usage.least, defined);
    usage.most = std::max(usage.most, in.size());
    usage.list |= usage.first && in.size() != usage.example.size();
    if (usage.first) continue;
    usage.first = std::move(c);
    usage.example = std::move(in);
  }
  return usage;
}

// Tensors of the given shapes, absent ones filled in. Where kernels are measured, they have random elements.
Tensors inputs_of(const Op& op, const Usage& usage, const ExplainOptions& options, DType dtype, Device device,
                  Generator& generator) {
  const std::vector<std::string>& shapes = options.shapes;
  const std::string most = usage.most > usage.least ? fmt::format(" to {}", usage.most) : "";
  if (!usage.list && (shapes.size() < usage.least || shapes.size() > usage.most))
    throw UsageError(
        fmt::format("{}: the number of inputs is {}{}, not {}", op.name, usage.least, most, shapes.size()));
  Tensors in;
  for (const std::string& text : shapes) {
    const size_t i = std::min(in.size(), usage.example.size() - 1);
    const bool integers = usage.example[i].defined() && !is_floating(usage.example[i].dtype());
    if (text == "none") in.push_back({});
    else if (integers) in.push_back(zeros(parse_shape(text), usage.example[i].dtype(), device));
    else if (options.tune) in.push_back(randn(parse_shape(text), generator).to(dtype).to(device));
    else in.push_back(empty(parse_shape(text), dtype, device));
  }
  if (!usage.list) in.resize(usage.most);
  return in;
}

void explain_call(const Op& op, const Tensors& in, const Attrs& attrs, Device device, const std::string& label) {
  SmallVector<TensorMeta, 4> metas;
  std::string inputs;
  for (const Tensor& t : in) {
    metas.push_back(t.defined() ? t.meta() : TensorMeta{{Dim(-1)}, Float32, {}});
    inputs += (inputs.empty() ? "" : ", ") + describe(t);
  }
  Metas inferred = op.infer({metas.data(), metas.size()}, attrs);
  std::string parameters = attrs.describe();
  fmt::print("{}({}){}{}\n", op.name, inputs, parameters.empty() ? "" : " " + parameters,
             label.empty() ? "" : "  # " + label);
  if (op.view) return fmt::print("-> a view: no kernel runs\n");
  Tensors out;
  for (TensorMeta& meta : inferred) {
    for (Dim& d : meta.shape) d = d.high();  // of a count that depends on values: as many as there may be
    out.push_back(is_absent(meta) ? Tensor()
                                  : empty(meta.shape, meta.dtype, in.empty() || op.transfers ? meta.device : device));
  }
  const auto ins = operands_of({in.data(), in.size()}), outs = operands_of({out.data(), out.size()});
  const Call call{op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()}};
  const Device where = call_device(call);
  if (where.is_gpu() && where.meta && op.compute) return fmt::print("{}{}", explain(call), explain_cost(call));
  if (where.is_gpu() && where.meta) {
    std::string names;
    for (const Kernel& kernel : kernels_for(op, where.type))
      names += (names.empty() ? "" : ", ") + std::string(kernel.name);
    return fmt::print("   a card chooses the first that takes the call, of: {}\n{}", names, explain_cost(call));
  }
  if (where.is_gpu()) gpu::begin_call(where);
  fmt::print("{}{}", explain(call), explain_plan(call));
}

// Attention's backward for inputs q, k, v, mask and state.
void explain_attention_backward(const Tensors& given, const Attrs& attrs, Device device) {
  const Tensor &q = given[0], &v = given[2];
  const Shape& s = q.shape();
  const Tensor y = empty({s[0], s[1], s[2], v.shape()[3]}, q.dtype(), device);
  const Tensor lse = empty({s[0], s[1], s[2]}, q.dtype() == Float64 ? Float64 : Float32, device);
  explain_call(find_op("scaled_dot_product_attention_backward"), {y, y, lse, q, given[1], v, given[3], given[4]}, attrs,
               device, "");
}

// But for gather and scatter, which are operators, too.
bool is_collective(const std::string& name) {
  return name == "all_reduce" || name == "all_gather" || name == "reduce_scatter" || name == "broadcast" ||
         name == "reduce" || name == "all_to_all" || name == "barrier";
}

// As a rank of those that were launched, or alone.
void explain_collective(const ExplainOptions& options) {
  const dist::World world;
  Device device = options.target();
  if (!device.meta) device = world.device(device);
  if (world.size() > 1 && device.is_gpu() && !device.meta) dist::all_reduce(zeros({1}, Float32, device), world);
  if (world.rank() > 0) return;
  fmt::print("{} of {} rank{} on {}\n{}", options.op, world.size(), world.size() > 1 ? "s" : "", to_string(device),
             dist::explain_engines(world, device));
  if (world.size() == 1) fmt::print("   of several: tessera launch --procs 2 -- tessera explain {}\n", options.op);
}

void run(ExplainOptions& options) {
  if (options.op.empty()) throw UsageError("explain: give an operator, a collective, or model and a name");
  options.apply();
  const Device device = options.target();
  options.attention.apply(device);
  if (is_collective(options.op)) return explain_collective(options);
  for (const std::string& text : options.arguments)
    if (text.find('=') == text.npos) options.shapes.push_back(text);
    else options.attributes += (options.attributes.empty() ? "" : ", ") + text;
  const Op* op;
  DType dtype;
  try {
    op = &find_op(full_name(options.op));
    dtype = parse_dtype(options.dtype);
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
  Generator generator(options.seed);
  Usage usage = usage_of(*op, generator);
  if (!usage.first) throw UsageError(options.op + ": no example of a call is known");
  const bool example = options.shapes.empty() && usage.most > 0;  // the first of its cases
  Attrs attrs = example ? usage.first->attrs : default_attrs(*op);
  if (const auto& fields = attrs.type().fields;
      !example && std::any_of(fields.begin(), fields.end(), [](const auto& f) { return f.name == "dtype"; }))
    attrs.set_text("dtype", options.dtype);
  if (op->name == "scaled_dot_product_attention")
    attrs = AttentionAttrs{.causal = options.causal, .dropout = options.dropout};
  try {
    attrs.read(options.attributes);
    Tensors in = usage.example;
    for (Tensor& t : in)
      if (t.defined()) t = (t.dtype() == Float64 ? t.to(dtype) : t).to(device);
    if (!options.shapes.empty()) in = inputs_of(*op, usage, options, dtype, device, generator);
    if (options.dropout > 0 && in.size() == 5) in[4] = zeros({2}, Int64, device);  // the state of attention's generator
    explain_call(*op, in, attrs, device, example ? usage.first->label : "");
    if (op->name == "scaled_dot_product_attention") explain_attention_backward(in, attrs, device);
  } catch (const Error& e) {
    throw UsageError(e.what());
  }
}

}  // namespace

void add_explain(Command app) {
  const Command command =
      app.command("explain", "Say which kernel a call of an operator gets, and why not the others.");
  auto options = std::make_shared<ExplainOptions>();
  command.option("op", options->op, "an operator: matmul, sdpa, layer_norm, ...");
  command
      .option("arguments", options->arguments,
              "shapes of its inputs, such as 1x12x1024x64 or 'none' for an absent one, and attributes, such as dim=1")
      .take_all();
  command.option("--dtype", options->dtype, "f32, f64, f16 or bf16").with_default();
  command.flag("--causal", options->causal, "causal attention");
  command.option("--dropout", options->dropout, "of sdpa's weights: the probability").range(0.0, 1.0).with_default();
  options->attention.add_to(command);
  options->add_to(command, false);
  options->add_picks_to(command);
  add_explain_model(command);
  command.run([options] { run(*options); });
}

}  // namespace tessera::app
