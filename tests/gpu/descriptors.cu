// Descriptors and distributions in kernels: they must fold into arithmetic, without a stack frame. Composed outside
// (a kernel argument) and inside, with static and run-time lengths, evaluated and moved by a cursor.
#include <tessera/tile/convolution.h>
#include <tessera/tile/matrix_layout.h>

#if defined(__HIP__)
#define THREAD static_cast<int>(__builtin_amdgcn_workitem_id_x())
#define BLOCK static_cast<int>(__builtin_amdgcn_workgroup_id_x())
#else
#define THREAD static_cast<int>(threadIdx.x)
#define BLOCK static_cast<int>(blockIdx.x)
#endif

namespace tessera::tile {

// The main loop of an implicit GEMM: one row of the matrix, 32 columns at a time.
template <class V>
__device__ float walk(const V& view) {
  Cursor<typename V::Descriptor> cursor(view.desc, {BLOCK, THREAD});
  float sum = 0;
  for (auto k = view.template length<1>() + 0; k > 0; k -= 32) {
    sum += cursor.valid() ? view.data[cursor.offset()] : 0.0f;
    cursor.move({0, 32});
  }
  return sum;
}

using Convolution =
    decltype(transform(convolution_taps(packed(static_cast<const float*>(nullptr), {1, 1, 1, 1}), Window{}, Window{}),
                       merge<0, 2, 4>(), merge<1, 3, 5>()));
template <class V>
__global__ void convolution_as_argument(V view, float* out) {
  out[THREAD] = walk(view);
}
template __global__ void convolution_as_argument<Convolution>(Convolution, float*);

__global__ void convolution_of_static_lengths(const float* in, int n, int h, int w, float* out) {
  const auto image = packed(in, tuple(n, h, w, Int<64>{}));
  const auto padded = transform(image, pass(), pad(Int<1>{}, Int<1>{}), pad(Int<1>{}, Int<1>{}), pass());
  const auto window = [](int length) { return affine(tuple(Int<3>{}, length), tuple(Int<1>{}, Int<1>{})); };
  const auto taps = transform(padded, pass(), window(h), window(w), pass());
  out[THREAD] = walk(transform(taps, merge<0, 2, 4>(), merge<1, 3, 5>()));
}

__global__ void paged_attention(const float* cache, const int* table, int pages, float* out) {
  const auto blocks = packed(cache, tuple(pages, Int<16>{}, Int<64>{}));
  const auto keys = transform(transform(blocks, gather(table, pages), pass(), pass()), merge<0, 1>(), pass());
  out[THREAD] = keys.valid(BLOCK, THREAD) ? keys.at(BLOCK, THREAD) : 0.0f;
}

__global__ void swizzled(const float* in, float* out) {
  const auto tile = transform(packed(in, tuple(Int<64>{}, Int<64>{})), swizzle<0, 1, 4, 8>());
  out[THREAD] = tile.at(THREAD / 64, THREAD % 64);
}

struct Block {
  static constexpr TESSERA_HD auto layout() {
    return named("mn", repeat(4, 1) * warps(2, 2) * lanes(8, 4) * vec(1, 4));
  }
};
template <class Layout>
__global__ void square(const float* in, int pitch, float* out) {
  const auto base = thread_coords<Layout>(THREAD);
  float held[Layout::layout().registers()];
  const float* first = in + base[0] * pitch + base[1];
  for_each_register<Layout>([&](auto r, auto m, auto n) { held[r] = first[m * pitch + n]; });
  for_each_register<Layout>(
      [&](auto r, auto m, auto n) { out[(base[0] + m) * pitch + base[1] + n] = held[r] * held[r]; });
}
template __global__ void square<Block>(const float*, int, float*);
template __global__ void square<Mfma32x32x8::C>(const float*, int, float*);
template __global__ void square<MmaSync16x8x16::C>(const float*, int, float*);

}  // namespace tessera::tile
