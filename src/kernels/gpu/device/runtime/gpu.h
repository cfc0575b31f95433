// One source for CUDA and HIP: launches, and what kernels here share.
#pragma once
#include "host.h"
#include "tile/arch/gpu/block.h"
#include "tile/tile.h"

namespace tessera::gpu_kernels {

using tile::bf16;
using tile::f16;
using tile::Pack;

/// Whether the current device has matrix cores, which kernels for them need.
#if defined(TESSERA_VECTOR_TARGETS)
bool has_matrix_cores();
#else
constexpr bool has_matrix_cores() { return true; }
#endif
/// Whether T's kernels need their bodies: clang for HIP reads them once more for the host, a second of a unit with long
/// ones.
#if defined(__HIP__) && !defined(__HIP_DEVICE_COMPILE__)
template <class T>
inline constexpr bool on_card = false;
#else
template <class T>
inline constexpr bool on_card = true;
#endif

/// kernel<<<blocks, threads, shared>>>(args...) on the executor's stream; nothing for no blocks.
template <class... P, class... A>
void launch(const char* what, void (*kernel)(P...), i64 blocks, int threads, size_t shared, Executor& executor,
            const A&... args) {
  if (blocks <= 0) return;
#if defined(__HIP__)
  kernel<<<static_cast<unsigned>(blocks), threads, shared, static_cast<Queue>(executor.stream)>>>(args...);
  check_launch(what);
#else
  [&](const P&... parameters) {  // converted where that is another type
    const void* const addresses[] = {&parameters...};
    launch_kernel(what, reinterpret_cast<const void*>(kernel), static_cast<unsigned>(blocks),
                  static_cast<unsigned>(threads), shared, addresses, static_cast<Queue>(executor.stream));
  }(args...);
#endif
}

/// Blocks for a loop over `items` with a stride of the grid: as many as are useful, at most 8 for each multiprocessor.
inline i64 grid_for(i64 items, int threads, const Executor& executor, int waves = 8) {
  return tile::min<i64>(tile::ceil_div<i64>(items, threads), static_cast<i64>(executor.multiprocessors) * waves);
}

template <class T>
struct Type {
  using type = T;
};

/// fn(Type<T>) for a floating-point type; throws Error for others.
template <class Fn>
void with_float(Scalar type, const Fn& fn) {
  switch (type) {
    case Scalar::f32:
      return fn(Type<float>{});
    case Scalar::f64:
      return fn(Type<double>{});
    case Scalar::f16:
      return fn(Type<f16>{});
    case Scalar::bf16:
      return fn(Type<bf16>{});
    default:
      throw_unsupported("a kernel for floating-point elements");
  }
}

/// fn(Type<T>) for any element type.
template <class Fn>
void with_any(Scalar type, const Fn& fn) {
  switch (type) {
    case Scalar::boolean:
      return fn(Type<bool>{});
    case Scalar::u8:
      return fn(Type<u8>{});
    case Scalar::i8:
      return fn(Type<tile::i8>{});
    case Scalar::i32:
      return fn(Type<i32>{});
    case Scalar::i64:
      return fn(Type<i64>{});
    default:
      return with_float(type, fn);
  }
}

/// Element `i` of an array whose type is known at run time, as a C; and the reverse.
template <class C>
TESSERA_DEVICE C load_as(const void* p, Scalar type, i64 i) {
  switch (type) {
    case Scalar::boolean:
      return static_cast<C>(static_cast<const bool*>(p)[i]);
    case Scalar::u8:
      return static_cast<C>(static_cast<const u8*>(p)[i]);
    case Scalar::i8:
      return static_cast<C>(static_cast<const tile::i8*>(p)[i]);
    case Scalar::i32:
      return static_cast<C>(static_cast<const i32*>(p)[i]);
    case Scalar::i64:
      return static_cast<C>(static_cast<const i64*>(p)[i]);
    case Scalar::f16:
      return static_cast<C>(static_cast<float>(static_cast<const f16*>(p)[i]));
    case Scalar::bf16:
      return static_cast<C>(static_cast<float>(static_cast<const bf16*>(p)[i]));
    case Scalar::f32:
      return static_cast<C>(static_cast<const float*>(p)[i]);
    default:
      return static_cast<C>(static_cast<const double*>(p)[i]);
  }
}
template <class C>
TESSERA_DEVICE void store_as(void* p, Scalar type, i64 i, C value) {
  switch (type) {
    case Scalar::boolean:
      static_cast<bool*>(p)[i] = value != C(0);
      return;
    case Scalar::u8:
      static_cast<u8*>(p)[i] = tile::convert_element<u8>(value);
      return;
    case Scalar::i8:
      static_cast<tile::i8*>(p)[i] = tile::convert_element<tile::i8>(value);
      return;
    case Scalar::i32:
      static_cast<i32*>(p)[i] = tile::convert_element<i32>(value);
      return;
    case Scalar::i64:
      static_cast<i64*>(p)[i] = tile::convert_element<i64>(value);
      return;
    case Scalar::f16:
      static_cast<f16*>(p)[i] = f16(static_cast<float>(value));
      return;
    case Scalar::bf16:
      static_cast<bf16*>(p)[i] = bf16(static_cast<float>(value));
      return;
    case Scalar::f32:
      static_cast<float*>(p)[i] = static_cast<float>(value);
      return;
    default:
      static_cast<double*>(p)[i] = static_cast<double>(value);
  }
}

/// This thread's first index of a loop over a whole grid, and the step to its next.
TESSERA_DEVICE i64 first_index() { return tile::block_in_grid() * blockDim.x + tile::thread_in_block(); }
TESSERA_DEVICE i64 index_step() { return static_cast<i64>(gridDim.x) * blockDim.x; }

}  // namespace tessera::gpu_kernels
