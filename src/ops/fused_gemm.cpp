#include "ops/fused_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <mutex>
#include <set>

#include "core/gpu/architecture.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tile/arch/gpu/fused_gemm.h"

namespace tessera {
namespace {

using tile::FusedGemmArgs;
using Arch = tile::Arch;

// ---- the program

std::string operand(const char* name, const FusedGemm::Operand& operand, const char* lengths) {
  return fmt::format("  const auto {0} = matrix<Element, {1}, {2}>(args.{0}.data, {3}, args.{0}.{4});\n", name,
                     operand.width, operand.transposed, lengths, operand.transposed ? "column" : "row");
}

/// The kernel on matrix cores, from the operands on.
std::string matrix_core_block(const FusedGemm& gemm) {
  const tile::Config& c = gemm.config;
  return operand("a", gemm.a, "args.m, args.k") + operand("b", gemm.b, "args.k, args.n") +
         fmt::format(
             "  using Pipeline = {}::Gemm<decltype(a), ByColumn<decltype(b)>, Choice<{}, {}, {}, {}, {}>>;\n"
             "  extern __shared__ __attribute__((aligned(128))) char shared[];\n"
             "  gemm_block<Pipeline, {}>(a, b, epilogue, reinterpret_cast<Element*>(shared));\n",
             gemm.arch == Arch::sm80 ? "sm80" : "cdna", c.tile_m, c.tile_n, c.tile_k, c.warps, c.stages, gemm.lanes);
}
std::string ordinary_block(const FusedGemm& gemm) {
  constexpr const char* text =
      "  const auto a = strided(static_cast<const Element*>(args.a.data), tuple(i64{{args.m}}, i64{{args.k}}), "
      "tuple(args.a.row, args.a.column));\n"
      "  const auto b = strided(static_cast<const Element*>(args.b.data), tuple(i64{{args.k}}, i64{{args.n}}), "
      "tuple(args.b.row, args.b.column));\n"
      "  simt_gemm_block<Element, {}>(a, b, epilogue);\n";
  return fmt::format(text, gemm.config.tile_m);
}

constexpr const char* element_name(DType dtype) {
  return dtype == Float16 ? "f16" : dtype == BFloat16 ? "bf16" : "float";
}

int threads_of(const FusedGemm& gemm) { return gemm.config.warps * (gemm.arch == Arch::cdna ? 64 : 32); }

// ---- operands

int known_stride(int64_t stride) { return stride == 0 || stride == 1 ? static_cast<int>(stride) : tile::any_stride; }

FusedGemmArgs::Matrix matrix_of(const Tensor& t) { return {t.data_ptr(), t.stride(0), t.stride(1)}; }

/// How the pipelines read an operand of 16-bit elements, or nothing if neither dim is contiguous. The stride of a dim
/// of one element is of no account.
std::optional<FusedGemm::Operand> operand_of(const Tensor& t, FusedGemmArgs::Matrix& m, DeviceType device) {
  if (t.size(0) == 1) m.row = m.column == 1 ? 0 : 1;
  if (t.size(1) == 1) m.column = m.row == 1 ? 0 : 1;
  if (m.column != 1 && m.row != 1) return {};
  const bool transposed = m.column != 1;
  const int64_t length = t.size(transposed ? 0 : 1), pitch = transposed ? m.column : m.row;
  // On NVIDIA's cards the copy fills the end of a line with zeros.
  const bool whole = device == DeviceType::HIP ? length % 8 == 0 : length >= 8;
  const bool aligned = whole && pitch % 8 == 0 && reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
  return FusedGemm::Operand{transposed, aligned ? 8 : 1};
}

/// Whether four neighbours in a row, counted from the first column, can be read at once.
bool takes_lanes(const FusedGemmArgs::Matrix& m, DType dtype) {
  if (m.column == 0) return true;
  return m.column == 1 && m.row % 4 == 0 && reinterpret_cast<uintptr_t>(m.data) % (4 * size_of(dtype)) == 0;
}

void check(bool holds, const std::string& what) {
  if (!holds) throw Error("fused_gemm: " + what);
}

void check_operands(const Tensor& a, const Tensor& b, std::string_view epilogue, const Tensors& addends) {
  const auto is_right = [&](const Tensor& t) {
    check(t.device().is_gpu() && t.device() == a.device(),
          fmt::format("needs all tensors on one GPU: {} and {}", describe(a), describe(t)));
    check(t.dtype() == Float16 || t.dtype() == BFloat16 || t.dtype() == Float32,
          fmt::format("takes f16, bf16 and f32, not {}", describe(t)));
    check(!(grad_enabled() && t.requires_grad()), "has no gradient: call it under NoGrad, or with detached tensors");
  };
  is_right(a);
  is_right(b);
  check(a.dtype() == b.dtype(), fmt::format("operands differ in type: {} and {}", describe(a), describe(b)));
  check(a.dim() == 2 && b.dim() == 2, fmt::format("operands are matrices, not {} and {}", describe(a), describe(b)));
  check(a.size(1) == b.size(0),
        fmt::format("inner dimensions differ: {} x {}", to_string(a.shape()), to_string(b.shape())));
  check(std::max({a.size(0), a.size(1), b.size(1)}) <= INT_MAX,
        fmt::format("{} x {} x {} is too large: sizes are below 2^31", a.size(0), a.size(1), b.size(1)));
  check(addends.size() <= FusedGemmArgs::max_addends, fmt::format("takes at most 16 addends, not {}", addends.size()));
  for (const Tensor& addend : addends) is_right(addend);
  check(epilogue.find_first_not_of(' ') != epilogue.npos, "the epilogue is empty");
  check(epilogue.find('\n') == epilogue.npos, "the epilogue must be one line");
}

// ---- configs

/// The config to take: the large or the small shipped one, whichever fills the card, but for what the caller says.
tile::Config config_for(Arch arch, const tile::Problem& problem, const std::optional<GemmConfig>& wanted,
                        const DeviceProperties& card) {
  const tile::Config large =
      arch == Arch::simt ? tile::Config{128, 128, 16, 8, 2} : tile::Config{128, 128, 32, 4, arch == Arch::cdna ? 2 : 4};
  const tile::i64 blocks = tile::ceil_div<tile::i64>(problem.m, 128) * tile::ceil_div<tile::i64>(problem.n, 128);
  tile::Config small = large;
  small.tile_m = small.tile_n = 64;
  const tile::Config shipped = blocks < card.multiprocessors ? small : large;
  const GemmConfig own = wanted.value_or(GemmConfig{});
  const auto either = [](int said, int otherwise) { return said ? said : otherwise; };
  return {either(own.tile_m, shipped.tile_m), either(own.tile_n, shipped.tile_n), either(own.tile_k, shipped.tile_k),
          either(own.warps, shipped.warps), either(own.stages, shipped.stages)};
}

/// Throws unless the config serves; returns the shared memory that a launch must ask for.
size_t check_config(const tile::Config& c, const tile::Problem& problem, Arch arch, const DeviceProperties& card) {
  const std::string text =
      fmt::format("config {}x{}x{}, {} warps, {} stages: ", c.tile_m, c.tile_n, c.tile_k, c.warps, c.stages);
  const tile::Reason reason = validate(c, problem, arch);
  check(reason == tile::Reason::ok, text + sentence(reason));
  if (arch == Arch::simt) return 0;  // what it has is static
  const size_t shared = static_cast<size_t>(c.stages * (c.tile_m + c.tile_n) * c.tile_k * problem.element_bytes);
  check(shared <= card.shared_memory,
        fmt::format("{}it needs {} bytes of shared memory, {} has {}", text, shared, card.name, card.shared_memory));
  return shared;
}

// ---- Hopper's pipeline

/// Which addend arrives through boxes: the first whole matrix of halves, contiguous along rows.
std::optional<size_t> boxed_addend(const Tensors& addends) {
  for (size_t i = 0; i < addends.size(); ++i) {
    const Tensor& d = addends[i];
    if (d.dtype() != Float32 && d.stride(1) == 1 && d.stride(0) >= d.size(1)) return i;
  }
  return {};
}

HopperGemm::Way way_of(const Tensor& d) {
  const bool in_pairs =
      d.stride(0) == 0 && d.stride(1) == 1 && reinterpret_cast<uintptr_t>(d.data_ptr()) % (2 * size_of(d.dtype())) == 0;
  return in_pairs ? HopperGemm::Way::PerColumn : HopperGemm::Way::Anywhere;
}

/// y by Hopper's pipeline; false: the product is not for it, or its epilogue asks for more than elements of y have.
bool run_on_hopper(const Tensor& a, const Tensor& b, const Tensor& y, const Tensors& addends, std::string_view epilogue,
                   const FusedGemmArgs& args) {
  HopperGemm gemm{};
  gemm.dtype = a.dtype();
  gemm.epilogue = epilogue;
  const std::optional<size_t> boxed = boxed_addend(addends);
  for (size_t i = 0; i < addends.size(); ++i)
    gemm.addends.push_back({addends[i].dtype(), i == boxed ? HopperGemm::Way::Boxed : way_of(addends[i])});
  gpu::begin_call(a.device());
  const auto plan = [&](const Tensor* input) {
    const Operand addend = input ? Operand(*input) : Operand();
    return gpu_kernels::plan_fused(Operand(a), Operand(b), Operand(y), input ? &addend : nullptr, args, gemm.plan);
  };
  if (!plan(boxed ? &addends[*boxed] : nullptr)) {
    if (!boxed || !plan(nullptr)) return false;
    gemm.addends[*boxed].way = HopperGemm::Way::Anywhere;
  }
  try {
    const gpu_kernels::Sm90FusedPlan& p = gemm.plan;
    gpu::load(program_of(gemm), a.device()).launch(0, {p.blocks, p.threads, p.shared_bytes, true}, p.args);
  } catch (const gpu::CompileError&) {
    return false;  // the kernel for all cards takes it, or says why not
  }
  return true;
}

}  // namespace

gpu::Program program_of(const HopperGemm& gemm) {
  const gpu_kernels::Sm90FusedPlan& p = gemm.plan;
  std::string inputs, names;
  for (size_t i = 0; i < gemm.addends.size(); ++i) {
    const HopperGemm::Addend& d = gemm.addends[i];
    const char* way = d.way == HopperGemm::Way::Boxed       ? "Boxed"
                      : d.way == HopperGemm::Way::PerColumn ? "PerColumn"
                                                            : "Anywhere";
    inputs += fmt::format(", sm90::{}<{}, {}>", way, element_name(d.dtype), (p.width + 63) / 64);
    names += fmt::format(", const auto& d{}", i);
  }
  const std::string types = fmt::format("{0}, {1}, {2}, ", element_name(gemm.dtype), p.transposed_a, p.transposed_b),
                    given = "decltype(epilogue)" + inputs;
  const std::string block =
      p.once ? fmt::format("  sm90::Once<sm90::OnceTile<{}, {}>, {}{}>::run(args, shared);\n", p.width, p.stages, types,
                           given)
             : fmt::format(
                   "  using Cut = sm90::ProductTile<{}, {}, {}, {}, {}>;\n"
                   "  using Result = sm90::ProductResult<Cut, {}, false, {}>;\n"
                   "  sm90::product_block<Cut, {}Result>(args, shared);\n",
                   p.rows, p.width, p.stages, p.boxes, p.alternates, element_name(gemm.dtype), given, types);
  return {fmt::format("#include <tessera/tile/arch/sm90/once.h>\n"
                      "using namespace tessera::tile;\n"
                      "extern \"C\" TESSERA_KERNEL({}, 1) void fused_gemm(\n"
                      "    const __grid_constant__ sm90::ProductArgs args) {{\n"
                      "  extern __shared__ __attribute__((aligned(128))) char shared[];\n"
                      "  auto epilogue = [](const auto& acc{}) {{ return sm90::quick::made(acc,\n"
                      "#line 1 \"epilogue\"\n{}\n#line 1 \"epilogue\"\n  ); }};\n#line 1 \"kernel\"\n"
                      "{}}}\n",
                      p.threads, names, gemm.epilogue, block),
          {"fused_gemm"}};
}

gpu::Program program_of(const FusedGemm& gemm) {
  const bool ordinary = gemm.arch == Arch::simt;
  const std::string element = element_name(gemm.dtype);
  std::string text = "#include <tessera/tile/arch/gpu/fused_gemm.h>\n";
  if (ordinary) text += "#include <tessera/tile/arch/gpu/simt.h>\n";
  else
    text += fmt::format("#include <tessera/tile/arch/{}/gemm.h>\n#include <tessera/tile/arch/gpu/gemm.h>\n",
                        gemm.arch == Arch::sm80 ? "sm80" : "cdna");
  text += fmt::format(
      "using namespace tessera::tile;\nusing Element = {};\n"
      "extern \"C\" TESSERA_KERNEL({}) void fused_gemm(const FusedGemmArgs args) {{\n",
      element, threads_of(gemm));
  for (size_t i = 0; i < gemm.addends.size(); ++i) {
    const FusedGemm::Addend& d = gemm.addends[i];
    text += fmt::format("  const auto d{0} = result_matrix<const {1}, {2}, {3}, {4}>(args, args.d[{0}]);\n", i,
                        element_name(d.dtype), d.strides[0], d.strides[1], gemm.lanes);
  }
  // On a line of its own, and with its end under a name of its own in what the compiler says about it.
  text += fmt::format(
      "  const auto epilogue = store(result_matrix<Element, any_stride, 1, {}>(args, args.y), (\n"
      "#line 1 \"epilogue\"\n{}\n#line 1 \"epilogue\"\n  ));\n#line 1 \"kernel\"\n",
      gemm.lanes, gemm.epilogue);
  text += ordinary ? ordinary_block(gemm) : matrix_core_block(gemm);
  return {text + "}\n", {"fused_gemm"}};
}

Tensor fused_gemm(const Tensor& a, const Tensor& b, std::string_view epilogue, const Tensors& addends,
                  const std::optional<GemmConfig>& config) {
  check_operands(a, b, epilogue, addends);
  const Device device = a.device();
  const DeviceProperties& card = gpu::state(device).properties;
  FusedGemmArgs args{};
  FusedGemm gemm{};
  gemm.arch = a.dtype() == Float32 ? Arch::simt : device.type == DeviceType::HIP ? Arch::cdna : Arch::sm80;
  check(gemm.arch == Arch::simt || gpu::has_matrix_cores(card.architecture),
        card.name + " (" + card.architecture + ") has no matrix cores: operands must be Float32");
  gemm.dtype = a.dtype();
  gemm.epilogue = epilogue;

  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  const tile::Problem problem{m, n, k, static_cast<int>(size_of(a.dtype()))};
  gemm.config = config_for(gemm.arch, problem, config, card);
  const tile::Config& c = gemm.config;
  const size_t shared = check_config(c, problem, gemm.arch, card);

  Tensor left = a, right = b;
  args.a = matrix_of(left);
  args.b = matrix_of(right);
  const auto choose = [&](Tensor& t, FusedGemmArgs::Matrix& matrix, FusedGemm::Operand& operand) {
    auto found = operand_of(t, matrix, device.type);
    if (!found) {
      t = t.contiguous();
      matrix = matrix_of(t);
      found = operand_of(t, matrix, device.type);
    }
    operand = found.value_or(FusedGemm::Operand{});
  };
  if (gemm.arch != Arch::simt) {
    choose(left, args.a, gemm.a);
    choose(right, args.b, gemm.b);
  }
  Tensor y = empty({m, n}, a.dtype(), device);
  args.y = {y.data_ptr(), n, 1};
  Tensors expanded;
  for (const Tensor& addend : addends) expanded.push_back(addend.expand({m, n}));
  bool lanes = gemm.arch != Arch::simt && takes_lanes(args.y, y.dtype());
  for (size_t i = 0; i < addends.size(); ++i) {
    const Tensor& d = expanded[i];
    args.d[i] = matrix_of(d);
    lanes = lanes && takes_lanes(args.d[i], d.dtype());
    gemm.addends.push_back({d.dtype(), {known_stride(d.stride(0)), known_stride(d.stride(1))}});
  }
  gemm.lanes = lanes ? 4 : 1;
  args.m = static_cast<int>(m);
  args.n = static_cast<int>(n);
  args.k = static_cast<int>(k);
  if (gemm.arch == Arch::sm80 && !config && run_on_hopper(left, right, y, expanded, epilogue, args)) return y;
  try {
    const int64_t blocks = tile::ceil_div<int64_t>(m, c.tile_m) * tile::ceil_div<int64_t>(n, c.tile_n);
    gpu::load(program_of(gemm), device).launch(0, {blocks, threads_of(gemm), shared}, args);
  } catch (const gpu::CompileError& error) {
    throw Error(fmt::format("fused_gemm: epilogue {}: {}", epilogue, error.what()));
  }
  return y;
}

}  // namespace tessera
