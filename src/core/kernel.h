// A kernel of an operator's list: says what it supports, and plans.
#pragma once
#include "core/op.h"
#include "core/plan.h"

namespace tessera {

/// Why a kernel passes a call over.
enum class Reason : uint8_t {
  Ok,
  Layout,
  Shape,
  HeadDim,
  DType,
  Precision,
  Order,
  Window,
  Dropout,
  Small,
  Slower,
  Config,
  Library,
  Packing,
  Hardware,
  NotForced,
};
std::string_view sentence(Reason reason);
/// Whether a kernel of this reason can run the call: one that is estimated to be slower does so if it is forced, or was
/// measured to be the fastest.
constexpr bool can_run(Reason reason) { return reason == Reason::Ok || reason == Reason::Slower; }

/// What kernels know of a call when they plan.
struct Call {
  const Op& op;
  std::span<const Operand> in;  ///< absent optional inputs are undefined
  const Attrs& attrs;
  std::span<const Operand> out;  ///< hidden outputs are undefined where nothing will need them
  const void* state = nullptr;   ///< Kernel::state
};

/// A layout of a kernel's own, in which an input that stays the same from call to call need not be packed each time.
struct Packing {
  const std::string* name;  ///< packing_named(): says for which kernel, instruction set and type
  int64_t bytes;
};

/// One entry of an operator's ordered list. Its functions see how tensors lie, and no element.
struct Kernel {
  const char* name;
  Reason (*supports)(const Call&) = nullptr;   ///< null: every call
  void (*plan)(const Call&, Plan&) = nullptr;  ///< launches and workspace
  /// In which layout it wants an input, if that is constant: it reads it so, too, and in no other one. Null: in none.
  std::optional<Packing> (*pack)(const Call&, size_t input) = nullptr;
  const void* state = nullptr;  ///< of one that is made at run time; its calls carry it
  std::source_location where = std::source_location::current();  ///< its place in the list
};

/// The call as one kernel sees it.
inline Call seen_by(const Kernel& kernel, Call call) {
  call.state = kernel.state;
  return call;
}

/// Whether the kernel reads all inputs in the layouts in which they are packed.
bool reads_packed(const Kernel& kernel, const Call& call);

/// Whether it takes the call; a list's last entry takes all whose inputs are not packed.
inline Reason supports(const Kernel& kernel, const Call& call) {
  if (!reads_packed(kernel, call)) return Reason::Packing;
  return kernel.supports ? kernel.supports(seen_by(kernel, call)) : Reason::Ok;
}

/// Where a call's kernel runs: where its inputs lie, or its output if there are none.
Device call_device(const Call& call);

/// While a kernel plans calls of its own operator, which then pick as if none were forced.
class PlansWithin {
 public:
  explicit PlansWithin(const Op& op);
  ~PlansWithin();
  PlansWithin(const PlansWithin&) = delete;
  PlansWithin& operator=(const PlansWithin&) = delete;

 private:
  const Op* before_;
};

/// Adds to `plan` what another operator's call runs, by the kernel that its own list picks.
void plan_call(const Op& op, std::span<const Operand> in, const Attrs& attrs, std::span<const Operand> out, Plan& plan);

/// The layout that the kernel which another operator's list picks wants for an input. Without a value: none.
std::optional<Packing> packing_of(const Call& call, size_t input);

}  // namespace tessera
