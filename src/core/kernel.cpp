#include "core/kernel.h"

namespace tessera {

Device call_device(const Call& call) {
  for (const Operand& t : call.in)
    if (t.defined()) return t.device();
  return call.out.empty() ? cpu() : call.out[0].device();
}

bool reads_packed(const Kernel& kernel, const Call& call) {
  for (size_t i = 0; i < call.in.size(); ++i) {
    const Operand& t = call.in[i];
    if (!t.packing()) continue;
    const auto wanted = kernel.pack ? kernel.pack(seen_by(kernel, call), i) : std::nullopt;
    if (!wanted || wanted->name != t.packing() || wanted->bytes != t.storage_bytes()) return false;
  }
  return true;
}

std::string_view sentence(Reason reason) {
  switch (reason) {
    case Reason::Ok:
      return "supported";
    case Reason::Layout:
      return "needs another memory layout";
    case Reason::Shape:
      return "does not take these shapes or kinds of inputs";
    case Reason::HeadDim:
      return "does not take this head dim";
    case Reason::DType:
      return "does not compute in this dtype";
    case Reason::Precision:
      return "rounds f32 operands to tf32, which allow_tf32(true) permits";
    case Reason::Order:
      return "adds up in any order, which allow_nondeterministic(true) permits";
    case Reason::Window:
      return "needs 3x3 windows of stride 1 and dilation 1, in one group";
    case Reason::Dropout:
      return "does not drop weights";
    case Reason::Small:
      return "is slower on something this small";
    case Reason::Slower:
      return "takes longer than another one, by estimate";
    case Reason::Config:
      return "takes no config";
    case Reason::Packing:
      return "knows no such packed layout";
    case Reason::Hardware:
      return "needs instructions that this device lacks";
    case Reason::Library:
      return "its library is not installed, or switched off by TESSERA_VENDOR=off";
    case Reason::NotForced:
      return "another kernel is forced";
  }
  return "unknown reason";
}

}  // namespace tessera
