#include "ops/on_card.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "core/gpu/runtime.h"

namespace tessera {
namespace {

std::string_view type_of(DType dtype) {
  switch (dtype) {
    case Float16:
      return "f16";
    case BFloat16:
      return "bf16";
    case Float32:
      return "float";
    case Float64:
      return "double";
    case Bool:
      return "bool";
    default:
      return name(dtype);
  }
}

// As core/gpu/runtime.h has it, whose FaultKind::Index is 0.
constexpr std::string_view fault_text = R"(
struct Fault {
  int raised;
  const char* op;
  i64 index, bound;
  int kind;
};
TESSERA_DEVICE void raise(Fault* fault, const char* op, i64 index, i64 bound) {
  if (atomicCAS_system(&fault->raised, 0, 1) != 0) return;
  fault->op = op, fault->index = index, fault->bound = bound, fault->kind = 0;
}
)";
static_assert(offsetof(gpu::Fault, op) == 8 && offsetof(gpu::Fault, bound) == 24 && offsetof(gpu::Fault, kind) == 32 &&
              static_cast<int>(gpu::FaultKind::Index) == 0);

}  // namespace

gpu::Fault* fault_on(const Tensor& x) { return gpu::state(x.device()).fault; }

bool on_card(const Tensor& x) {
  return x.device().is_gpu() && !x.device().meta && !is_capturing() && gpu::has_compiler(x.device().type);
}

CardKernel::CardKernel(const char* name, std::string text) : name_(name), text_(std::move(text)) {
  all().push_back(this);
}

std::vector<const CardKernel*>& CardKernel::all() {
  static std::vector<const CardKernel*> kernels;
  return kernels;
}

gpu::Program CardKernel::program(DType dtype) const {
  return {fmt::format("#include <tessera/tile/arch/gpu/group.h>\n"
                      "#include <tessera/tile/kernels/functors.h>\n"
                      "using namespace tessera::tile;\nusing T = {};\n{}#line 1 \"{}\"\n{}",
                      type_of(dtype), fault_text, name_, text_),
          {name_}};
}

const gpu::Module& CardKernel::on(Device device, DType dtype) {
  const std::lock_guard lock(mutex_);
  for (const Loaded& known : loaded_)
    if (known.device == device && known.dtype == dtype) return *known.module;
  loaded_.push_back({device, dtype, &gpu::load(program(dtype), device)});
  return *loaded_.back().module;
}

}  // namespace tessera
