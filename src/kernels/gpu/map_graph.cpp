// Functions of elements that are graphs of maps: one kernel for all of them, written here and compiled at the first
// call, or a map after the other.
#include "core/map_graph.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "kernels/gpu/rtc/rtc.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/map_calls.h"
#include "kernels/shared/tables.h"
#include "tile/arch/gpu/map_graph_args.h"

namespace tessera::gpu_kernels {
namespace {

using tile::MapGraphArgs;

constexpr std::string_view functor_of(MapOp op) {
  switch (op) {
#define TESSERA_MAP(name, Functor, ...) \
  case MapOp::name:                     \
    return #Functor;
#define TESSERA_GRADIENT_MAP TESSERA_MAP
#define TESSERA_NUMBER_MAP TESSERA_MAP
#include "tile/kernels/maps.h"
    default:
      return {};
  }
}

/// How many numbers the functor has.
constexpr int numbers_of(MapOp op) {
  switch (op) {
#define TESSERA_NUMBER_MAP(name, Functor, inputs, types, unit, numbers, ...) \
  case MapOp::name:                                                          \
    return 1 + (std::string_view(#numbers).find(',') != std::string_view::npos);
#include "tile/kernels/maps.h"
    default:
      return 0;
  }
}

std::string_view type_name(DType dtype) {
  constexpr std::string_view names[] = {"bool", "u8",  "i8",  "i16",  "u16",   "i32",   "u32",
                                        "i64",  "u64", "f16", "bf16", "float", "double"};
  return names[static_cast<int>(dtype)];
}
std::string_view type_name(Scalar type) { return type_name(static_cast<DType>(type)); }

std::string number(double x) { return fmt::format("bit_cast<double>({:#x}ull)", std::bit_cast<uint64_t>(x)); }

/// One value of the graph as a line of code; empty where no map computes it.
std::string line_of(const Graph& graph, const GraphNode& node) {
  const DType dtype = graph.values[static_cast<size_t>(node.outputs[0])].meta.dtype;
  std::string value;
  if (node.op->name == "full") {
    value = number(node.attrs.as<CreateAttrs>().a);
  } else if (node.op->name == "cast") {
    value = fmt::format("v{}", node.inputs[0]);
  } else {
    SmallVector<DType, 4> dtypes;
    for (const int32_t v : node.inputs) dtypes.push_back(graph.values[static_cast<size_t>(v)].meta.dtype);
    const auto map = map_call(*node.op, node.attrs, {dtypes.data(), dtypes.size()}, dtype);
    if (!map) return {};
    const auto in = [&](size_t i) {
      return fmt::format("convert_element<{}>(v{})", type_name(map->compute), node.inputs[i]);
    };
    if (map->op == MapOp::where) {
      value = fmt::format("(convert_element<bool>(v{}) ? {} : {})", node.inputs[0], in(1), in(2));
    } else {
      std::string numbers;
      for (int i = 0; i < numbers_of(map->op); ++i) numbers += (i ? ", " : "") + number(map->numbers[i]);
      value = fmt::format("op::{}{{{}}}(", functor_of(map->op), numbers);
      for (size_t i = 0; i < node.inputs.size(); ++i) value += (i ? ", " : "") + in(i);
      value += ")";
    }
  }
  return fmt::format("    const {0} v{1} = convert_element<{0}>({2});\n", type_name(dtype), node.outputs[0], value);
}

/// Kernels for operands that are walked as one dim, and for any; none where a node is no map.
std::optional<gpu::Program> program_of(const Graph& graph) {
  const size_t outputs = graph.outputs.size(), operands = outputs + graph.inputs.size();
  std::string fields, loads, names, lines, stores;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const int32_t v = graph.inputs[i];
    const std::string_view type = type_name(graph.values[static_cast<size_t>(v)].meta.dtype);
    fields += fmt::format("  {} x{};\n", type, i);
    loads +=
        fmt::format("    x{0} = static_cast<const {1}*>(args.operand[{2}].data)[at[{2}]];\n", i, type, outputs + i);
    names += fmt::format("    const {} v{} = x{};\n", type, v, i);
  }
  for (const GraphNode& node : graph.nodes) {
    const std::string line = line_of(graph, node);
    if (line.empty()) return {};
    lines += line;
  }
  for (size_t i = 0; i < outputs; ++i) {
    const int32_t v = graph.outputs[i];
    const std::string_view type = type_name(graph.values[static_cast<size_t>(v)].meta.dtype);
    stores += fmt::format("    static_cast<{0}*>(args.operand[{1}].data)[at[{1}]] = v{2};\n", type, i, v);
  }
  return gpu::Program{fmt::format("#include <tessera/tile/arch/gpu/map_graph.h>\n"
                                  "using namespace tessera::tile;\n"
                                  "struct Element {{\n"
                                  "  static constexpr int operands = {};\n{}"
                                  "  template <class I>\n"
                                  "  TESSERA_DEVICE void load(const MapGraphArgs& args, const I* at) {{\n{}  }}\n"
                                  "  template <class I>\n"
                                  "  TESSERA_DEVICE void store(const MapGraphArgs& args, const I* at) const {{\n"
                                  "{}{}{}  }}\n}};\n"
                                  "extern \"C\" TESSERA_KERNEL(256) void map_flat(const MapGraphArgs args) {{\n"
                                  "  map_elements<Element, true>(args);\n}}\n"
                                  "extern \"C\" TESSERA_KERNEL(256) void map_any(const MapGraphArgs args) {{\n"
                                  "  map_elements<Element, false>(args);\n}}\n",
                                  operands, fields, loads, names, lines, stores),
                      {"map_flat", "map_any"}};
}

/// What a plan keeps: its kernels, loaded at the first launch.
struct CompiledMap {
  gpu::Program program;
  Device device;
  mutable std::atomic<const gpu::Module*> module{nullptr};

  CompiledMap(gpu::Program program, Device device) : program(std::move(program)), device(device) {}
  CompiledMap(CompiledMap&& o) : program(std::move(o.program)), device(o.device) {}
};

struct CompiledMapLaunch {
  const CompiledMap* code;
  int64_t blocks;
  MapGraphArgs args;
};
void launch_compiled(const CompiledMapLaunch& l, Executor&) {
  if (!l.code->module) l.code->module = &gpu::load(l.code->program, l.code->device);
  l.code->module.load()->launch(l.args.rank == 1 ? 0 : 1, {l.blocks, 256, 0}, l.args);
}

/// Dims in the order of the first result's memory, joined where every operand walks two as one.
MapGraphArgs map_args_of(const Call& call) {
  const Operand& out = call.out[0];
  const int rank = static_cast<int>(out.dim());
  std::vector<TensorArg> operands;
  for (const Operand& t : call.out) operands.push_back(operand(t, rank));
  for (const Operand& t : call.in) operands.push_back(operand(t, rank));
  std::vector<int> order;
  for (int d = 0; d < rank; ++d)
    if (out.size(d) != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return operands[0].strides[a] > operands[0].strides[b]; });
  MapGraphArgs args{};
  args.total = out.numel();
  for (const int d : order) {
    bool joins = args.rank > 0;
    for (size_t k = 0; k < operands.size() && joins; ++k)
      joins = args.operand[k].strides[args.rank - 1] == operands[k].strides[d] * out.size(d);
    if (!joins) args.lengths[args.rank++] = 1;
    args.lengths[args.rank - 1] *= out.size(d);
    for (size_t k = 0; k < operands.size(); ++k) args.operand[k].strides[args.rank - 1] = operands[k].strides[d];
  }
  if (args.rank == 0) args.lengths[args.rank++] = 1;
  constexpr int64_t most = 1 << 30;
  args.small = args.total < most;
  for (size_t k = 0; k < operands.size(); ++k) {
    int64_t last = 0;
    for (int d = 0; d < args.rank; ++d) last += std::abs(args.operand[k].strides[d]) * (args.lengths[d] - 1);
    args.small = args.small && last < most;
  }
  for (int d = 0; d < args.rank && args.small; ++d) args.inverses[d] = tile::Inverse::of(args.lengths[d]);
  for (size_t k = 0; k < operands.size(); ++k) args.operand[k].data = operands[k].data;
  return args;
}

Reason is_compiled(const Call& call) {
  const Graph& graph = *map_graph_of(call.attrs).graph;
  if (call.out[0].dim() > MapGraphArgs::most_dims || call.in.size() + call.out.size() > MapGraphArgs::most_operands)
    return Reason::Shape;
  if (!program_of(graph)) return Reason::DType;
  return gpu::has_compiler(call.out[0].device().type) ? Reason::Ok : Reason::Library;
}

void plan_compiled(const Call& call, Plan& plan) {
  const Device device = call.out[0].device();
  const MapGraphArgs args = map_args_of(call);
  if (args.total == 0) return;
  const int64_t most = 32 * gpu::state(device).properties.multiprocessors;
  const int64_t blocks = std::min<int64_t>(tile::ceil_div<int64_t>(args.total, 1024), most);
  plan.launch(
      "map_graph", launch_compiled,
      CompiledMapLaunch{plan.own(CompiledMap(*program_of(*map_graph_of(call.attrs).graph), device)), blocks, args});
}

}  // namespace

std::span<const KernelTableEntry> map_graph_kernels() {
  static constexpr Kernel kernels[] = {{.name = "compiled", .supports = is_compiled, .plan = plan_compiled},
                                       {.name = "calls", .plan = call_maps}};
  static constexpr KernelTableEntry entries[] = {{"map_graph", kernels}};
  return entries;
}

}  // namespace tessera::gpu_kernels
