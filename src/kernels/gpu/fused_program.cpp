#include "kernels/gpu/fused_program.h"

#include <fmt/format.h>

namespace tessera {
namespace {

using Arch = tile::Arch;

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
      p.one_wave ? fmt::format("  sm90::OneWave<sm90::OneWaveTile<{}, {}>, {}{}>::run(args, shared);\n", p.width,
                               p.stages, types, given)
                 : fmt::format(
                       "  using Cut = sm90::ProductTile<{}, {}, {}, {}, {}>;\n"
                       "  using Result = sm90::ProductResult<Cut, {}, false, {}>;\n"
                       "  sm90::product_block<Cut, {}Result>(args, shared);\n",
                       p.rows, p.width, p.stages, p.boxes, p.ping_pong, element_name(gemm.dtype), given, types);
  return {fmt::format("#include <tessera/tile/arch/sm90/one_wave.h>\n"
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

}  // namespace tessera
