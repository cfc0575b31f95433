// Products whose epilogue is text: which config, which program, and how it is launched.
#include "kernels/gpu/fused_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "core/gpu/architecture.h"
#include "core/gpu/backend.h"
#include "kernels/args/gpu/fused_table.h"
#include "kernels/gpu/fused_program.h"
#include "kernels/shared/matmul.h"
#include "kernels/shared/tables.h"
#include "kernels/shared/workspace.h"

namespace tessera::gpu_kernels {
namespace {

using tile::FusedGemmArgs;
using Arch = tile::Arch;

void check(bool holds, const std::string& what) {
  if (!holds) throw Error("fused_gemm: " + what);
}

// ---- operands

int known_stride(int64_t stride) { return stride == 0 || stride == 1 ? static_cast<int>(stride) : tile::any_stride; }

/// How the pipelines read an operand of 16-bit elements, or nothing if neither dim is contiguous. The stride of a dim
/// of one element is of no account.
std::optional<FusedGemm::Operand> operand_of(const Operand& t, FusedGemmArgs::Matrix& m, DeviceType device) {
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
/// The same of any layout: what cannot be read as it lies is copied.
FusedGemm::Operand read_operand(Workspace& workspace, const Operand& t, FusedGemmArgs::Matrix& m) {
  if (const auto found = operand_of(t, m, t.device().type)) return *found;
  m = {workspace.read(t, t.dtype(), false).data, t.size(1), 1};
  return operand_of(t, m, t.device().type).value_or(FusedGemm::Operand{});
}

/// Whether four neighbours in a row, counted from the first column, can be read at once.
bool takes_lanes(const FusedGemmArgs::Matrix& m, DType dtype) {
  if (m.column == 0) return true;
  return m.column == 1 && m.row % 4 == 0 && reinterpret_cast<uintptr_t>(m.data) % (4 * size_of(dtype)) == 0;
}

FusedGemmArgs::Matrix matrix_of(const Operand& t) { return {t.data_ptr(), t.stride(0), t.stride(1)}; }

FusedGemmArgs args_of(const Call& call) {
  const Operand &a = call.in[0], &b = call.in[1];
  FusedGemmArgs args{};
  args.a = matrix_of(a);
  args.b = matrix_of(b);
  args.y = matrix_of(call.out[0]);
  for (size_t i = 2; i < call.in.size(); ++i) args.d[i - 2] = matrix_of(call.in[i]);
  args.m = static_cast<int>(a.size(0));
  args.n = static_cast<int>(b.size(1));
  args.k = static_cast<int>(a.size(1));
  return args;
}

Arch arch_of(const Operand& a) {
  return a.dtype() == Float32 ? Arch::simt : a.device().type == DeviceType::HIP ? Arch::cdna : Arch::sm80;
}

// ---- configs

/// The config to take: the large or the small shipped one, whichever fills the card, but for what the caller says.
tile::Config config_for(Arch arch, const tile::Problem& problem, const int64_t (&own)[5],
                        const DeviceProperties& card) {
  const tile::Config large =
      arch == Arch::simt ? tile::Config{128, 128, 16, 8, 2} : tile::Config{128, 128, 32, 4, arch == Arch::cdna ? 2 : 4};
  const tile::i64 blocks = tile::ceil_div<tile::i64>(problem.m, 128) * tile::ceil_div<tile::i64>(problem.n, 128);
  tile::Config small = large;
  small.tile_m = small.tile_n = 64;
  const tile::Config shipped = blocks < card.multiprocessors ? small : large;
  const auto either = [](int64_t said, int otherwise) { return said ? static_cast<int>(said) : otherwise; };
  return {either(own[0], shipped.tile_m), either(own[1], shipped.tile_n), either(own[2], shipped.tile_k),
          either(own[3], shipped.warps), either(own[4], shipped.stages)};
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

// ---- by tiles, on every card

/// What is known before a launch; compiled at the first.
template <class Gemm>
struct Compiled {
  Gemm gemm;
  Device device;
  mutable std::atomic<const gpu::Module*> module{nullptr};
  mutable std::atomic<bool> refused{false};

  Compiled(Gemm gemm, Device device) : gemm(std::move(gemm)), device(device) {}
  Compiled(Compiled&& o) : gemm(std::move(o.gemm)), device(o.device) {}
  const gpu::Module& load(const Gemm& planned) const {
    if (!module) module = &gpu::load(program_of(planned), device);
    return *module;
  }
};

struct TilesLaunch {
  const Compiled<FusedGemm>* program;
  gpu::Grid grid;
  FusedGemmArgs args;
};
void launch_tiles(const TilesLaunch& l, Executor&) {
  const FusedGemm& gemm = l.program->gemm;
  try {
    l.program->load(gemm).launch(0, l.grid, l.args);
  } catch (const gpu::CompileError& error) {
    throw Error(fmt::format("fused_gemm: epilogue {}: {}", gemm.epilogue, error.what()));
  }
}

TilesLaunch tiles_launch(const Call& call, Workspace& workspace) {
  const auto& attrs = call.attrs.as<FusedGemmAttrs>();
  const Operand &a = call.in[0], &b = call.in[1];
  const DeviceProperties& card = gpu::state(a.device()).properties;
  FusedGemmArgs args = args_of(call);
  FusedGemm gemm{};
  gemm.arch = arch_of(a);
  check(gemm.arch == Arch::simt || gpu::has_matrix_cores(card.architecture),
        card.name + " (" + card.architecture + ") has no matrix cores: operands must be Float32");
  gemm.dtype = a.dtype();
  gemm.epilogue = attrs.epilogue;
  const tile::Problem problem{args.m, args.n, args.k, static_cast<int>(size_of(a.dtype()))};
  gemm.config = config_for(gemm.arch, problem, attrs.config, card);
  const tile::Config& c = gemm.config;
  const size_t shared = check_config(c, problem, gemm.arch, card);
  if (gemm.arch != Arch::simt) {
    gemm.a = read_operand(workspace, a, args.a);
    gemm.b = read_operand(workspace, b, args.b);
  }
  bool lanes = gemm.arch != Arch::simt && takes_lanes(args.y, a.dtype());
  for (size_t i = 2; i < call.in.size(); ++i) {
    const Operand& d = call.in[i];
    lanes = lanes && takes_lanes(args.d[i - 2], d.dtype());
    gemm.addends.push_back({d.dtype(), {known_stride(d.stride(0)), known_stride(d.stride(1))}});
  }
  gemm.lanes = lanes ? 4 : 1;
  const int64_t blocks = tile::ceil_div<int64_t>(args.m, c.tile_m) * tile::ceil_div<int64_t>(args.n, c.tile_n);
  const int threads = c.warps * (gemm.arch == Arch::cdna ? 64 : 32);
  return {workspace.plan().own(Compiled<FusedGemm>(std::move(gemm), a.device())), {blocks, threads, shared}, args};
}
Reason tiles_take(const Call& call) {
  const auto wide = [](const Operand& t) { return t.dtype() == Float64; };
  return std::any_of(call.in.begin(), call.in.end(), wide) ? Reason::DType : Reason::Ok;
}
void tiles(const Call& call, Workspace& workspace) {
  workspace.launch("fused_gemm.tiles", launch_tiles, tiles_launch(call, workspace));
}

// ---- by Hopper's pipeline

/// Which addend arrives through boxes: the first whole matrix of halves, contiguous along rows.
std::optional<size_t> boxed_addend(std::span<const Operand> addends) {
  for (size_t i = 0; i < addends.size(); ++i) {
    const Operand& d = addends[i];
    if (d.dtype() != Float32 && d.stride(1) == 1 && d.stride(0) >= d.size(1)) return i;
  }
  return {};
}

HopperGemm::Way way_of(const Operand& d) {
  const bool in_pairs =
      d.stride(0) == 0 && d.stride(1) == 1 && reinterpret_cast<uintptr_t>(d.data_ptr()) % (2 * size_of(d.dtype())) == 0;
  return in_pairs ? HopperGemm::Way::PerColumn : HopperGemm::Way::Anywhere;
}

/// A product with the addend that arrives in boxes, if there is one; null data: nothing to compute.
GemmArgs product_of(const Operand& a, const Operand& b, const Operand& y, const Operand* boxed) {
  Products products(a.size(0), b.size(1), a.size(1));
  const auto set = [&](Products::Role which, const Operand& t) { products.set(which, t, t.stride(0), t.stride(1), 0); };
  set(Products::A, a);
  set(Products::B, b);
  set(Products::C, y);
  if (boxed) set(Products::Addend, *boxed);
  GemmArgs found{};
  products.each([&](const GemmArgs& args) { found = args; });
  return found;
}

const Sm90FusedTable* sm90_table() { return static_cast<const Sm90FusedTable*>(tables().sm90_gemm); }

/// The pipeline's own plan holds addresses, and is made at each launch.
struct HopperLaunch {
  const Compiled<HopperGemm>* program;
  GemmArgs product;
  FusedGemmArgs args;
  TilesLaunch otherwise;
};

/// False: the product is not for it, or its epilogue asks for more than elements of y have.
bool try_hopper(const HopperLaunch& l, Executor& executor) {
  if (l.program->refused) return false;
  HopperGemm gemm = l.program->gemm;
  GemmArgs product = l.product;
  if (!sm90_table()->plan(product, l.args, executor, gemm.plan)) {
    if (!product.addend.data) return false;
    product.addend = {};
    for (HopperGemm::Addend& d : gemm.addends)
      if (d.way == HopperGemm::Way::Boxed) d.way = HopperGemm::Way::Anywhere;
    if (!sm90_table()->plan(product, l.args, executor, gemm.plan)) return false;
  }
  const Sm90FusedPlan& p = gemm.plan;
  try {
    l.program->load(gemm).launch(0, {p.blocks, p.threads, p.shared_bytes, true}, p.args);
  } catch (const gpu::CompileError&) {
    l.program->refused = true;  // the kernel for all cards takes it, or says why not
    return false;
  }
  return true;
}
void launch_hopper(const HopperLaunch& l, Executor& executor) {
  if (!try_hopper(l, executor)) launch_tiles(l.otherwise, executor);
}

Reason hopper_takes(const Call& call) {
  if (!sm90_table()) return Reason::Hardware;
  const auto& attrs = call.attrs.as<FusedGemmAttrs>();
  if (arch_of(call.in[0]) != Arch::sm80 || tiles_take(call) != Reason::Ok) return Reason::DType;
  if (attrs.own_config) return Reason::Config;
  for (const Operand* t : {&call.in[0], &call.in[1]})
    if (FusedGemmArgs::Matrix m = matrix_of(*t); !operand_of(*t, m, t->device().type)) return Reason::Layout;
  return product_of(call.in[0], call.in[1], call.out[0], nullptr).c.data ? Reason::Ok : Reason::Shape;
}

void hopper(const Call& call, Workspace& workspace) {
  const auto addends = call.in.subspan(2);
  const std::optional<size_t> boxed = boxed_addend(addends);
  HopperGemm gemm{};
  gemm.dtype = call.in[0].dtype();
  gemm.epilogue = call.attrs.as<FusedGemmAttrs>().epilogue;
  for (size_t i = 0; i < addends.size(); ++i)
    gemm.addends.push_back({addends[i].dtype(), i == boxed ? HopperGemm::Way::Boxed : way_of(addends[i])});
  workspace.launch("fused_gemm.sm90", launch_hopper,
                   {workspace.plan().own(Compiled<HopperGemm>(std::move(gemm), call.in[0].device())),
                    product_of(call.in[0], call.in[1], call.out[0], boxed ? &addends[*boxed] : nullptr), args_of(call),
                    tiles_launch(call, workspace)});
}

constexpr Kernel fused_list[] = {staged_kernel<hopper>("sm90", hopper_takes),
                                 staged_kernel<tiles>("tiles", tiles_take)};

}  // namespace

bool plan_fused(const Operand& a, const Operand& b, const Operand& y, const Operand* input,
                const tile::FusedGemmArgs& args, Sm90FusedPlan& plan) {
  const Sm90FusedTable* const sm90 = sm90_table();
  const GemmArgs product = product_of(a, b, y, input);
  return sm90 && product.c.data && sm90->plan(product, args, executor(), plan);
}

std::span<const KernelTableEntry> fused_gemm_kernels() {
  static constexpr KernelTableEntry entries[] = {{"fused_gemm", fused_list}};
  return entries;
}

}  // namespace tessera::gpu_kernels
