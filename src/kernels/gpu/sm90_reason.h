// Why Hopper's pipelines refuse, in the words of the lists.
#pragma once
#include "core/kernel.h"
#include "kernels/args/gpu/tables.h"

namespace tessera::gpu_kernels {

inline Reason reason_of(Sm90Refusal refusal) {
  switch (refusal) {
    case Sm90Refusal::hardware:
      return Reason::Hardware;
    case Sm90Refusal::type:
      return Reason::DType;
    case Sm90Refusal::layout:
      return Reason::Layout;
    case Sm90Refusal::shape:
      return Reason::Shape;
    case Sm90Refusal::small:
      return Reason::Small;
    case Sm90Refusal::none:
      break;
  }
  return Reason::Ok;
}

}  // namespace tessera::gpu_kernels
