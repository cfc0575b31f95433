// Programs for products whose epilogue is text.
#pragma once
#include <string>

#include "kernels/args/gpu/fused_plan.h"
#include "kernels/gpu/rtc/rtc.h"
#include "tessera/dtype.h"
#include "tessera/small_vector.h"
#include "tile/config.h"

namespace tessera {

/// What is known of a fused product when it is compiled.
struct FusedGemm {
  tile::Arch arch;
  tile::Config config;
  DType dtype;
  /// An operand of 16-bit elements: contiguous along rows or, transposed, columns; so many elements are read at once.
  struct Operand {
    bool transposed = false;
    int width = 1;
  };
  Operand a, b;
  struct Addend {
    DType dtype;
    int strides[2];  // each 0, 1 or any_stride
  };
  SmallVector<Addend, 4> addends;
  int lanes = 1;  // columns that the epilogue takes at a time: 1 or 4
  std::string epilogue;
};

gpu::Program program_of(const FusedGemm& gemm);

/// A fused product by Hopper's pipeline.
struct HopperGemm {
  gpu_kernels::Sm90FusedPlan plan;
  DType dtype;
  /// Through the pipeline's boxes, the same in all rows, or element by element.
  enum class Way { Boxed, PerColumn, Anywhere };
  struct Addend {
    DType dtype;
    Way way;
  };
  SmallVector<Addend, 4> addends;
  std::string epilogue;
};

gpu::Program program_of(const HopperGemm& gemm);

}  // namespace tessera
