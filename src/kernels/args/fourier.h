// What Fourier transforms of rows on a CPU take.
#pragma once
#include "common.h"
#include "tessera/parallel.h"

namespace tessera::TESSERA_KERNELS {

/// Of sizes n = radix * m: m times radix - 1 complex factors, and the radix's own roots of unity where it is no 2 to 5.
struct FourierPass {
  int radix;
  const void *factors, *roots;
};

/// How a length is transformed, tables being of the type of elements: by passes, or, where it has a large prime factor,
/// as a convolution with a chirp by transforms of a longer length.
struct FourierPlan {
  static constexpr int most_passes = 16, largest_radix = 31;
  long long length;
  int passes;
  FourierPass pass[most_passes];
  const FourierPlan* longer;     // null without a chirp
  const void *chirp, *spectrum;  // complex: of `length`, and of the longer length, divided by it
};

/// x [rows, in, parts] -> y [rows, out, out_parts], contiguous, f32 or f64: y[k] = scale * the sum of x[n] e^(-+2 pi i
/// n k / length), `inverse` with a plus; what lies beyond `in` is 0. Results of one part are real parts. Doubled ones
/// are those n or k with 0 < 2 n < length.
struct FourierArgs {
  Scalar type;
  bool inverse, doubles_in, doubles_out;
  long long rows, in, out;
  int parts, out_parts;
  double scale;
  const FourierPlan* plan;
  const void* x;
  void* y;
};

struct FourierTable {
  void (*transform)(const FourierArgs& args, Executor& executor);
};
const FourierTable& fourier_table();

#define TESSERA_FOURIER_TABLE(isa)         \
  namespace isa {                          \
  extern const FourierTable fourier_table; \
  }
TESSERA_FOURIER_TABLE(baseline)
TESSERA_FOURIER_TABLE(avx2)
TESSERA_FOURIER_TABLE(avx512)
#undef TESSERA_FOURIER_TABLE

}  // namespace tessera::TESSERA_KERNELS
