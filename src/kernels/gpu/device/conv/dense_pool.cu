// Pooling of dense images, channels first or last, at the speed of memory: vectors of channels or of neighbours in a
// row where sizes and alignment allow them, else single elements that lie side by side.
#include "kernels/gpu/device/runtime/gpu.h"
#include "tile/arch/gpu/pool.h"

namespace tessera::gpu_kernels {
namespace {

using tile::DenseWindows;
using tile::Inverse;

constexpr int threads = 256;

template <template <class, int> class Fold, int Size, int V, class T>
TESSERA_KERNEL(threads)
void window_kernel(const DenseWindows p, T* y, u8* taps, const T* x) {
  if (const i64 thread = first_index(); thread < p.threads)
    tile::pool_window<Fold, Size, V>(p, static_cast<int>(thread), y, taps, x);
}
template <bool Max, int V, class T>
TESSERA_KERNEL(threads)
void place_kernel(const DenseWindows p, T* dx, const T* dy, const u8* taps) {
  if (const i64 thread = first_index(); thread < p.threads)
    tile::unpool_place<Max, V>(p, static_cast<int>(thread), dx, dy, taps);
}
template <class Form, int V, class T>
TESSERA_KERNEL(threads)
void block_kernel(const DenseWindows p, T* dx, const T* dy, const u8* taps) {
  if (const i64 thread = first_index(); thread < p.threads)
    tile::unpool_block<Form, V>(p, static_cast<int>(thread), dx, dy, taps);
}
template <class Form, int K, class T>
TESSERA_KERNEL(threads)
void row_kernel(const DenseWindows p, T* y, u8* taps, const T* x) {
  if (const i64 thread = first_index(); thread < p.threads)
    tile::pool_row<Form, K>(p, static_cast<int>(thread), y, taps, x);
}
template <class Form, int K, class T>
TESSERA_KERNEL(threads)
void rows_kernel(const DenseWindows p, T* dx, const T* dy, const u8* taps) {
  if (const i64 thread = first_index(); thread < p.threads)
    tile::unpool_rows<Form, K>(p, static_cast<int>(thread), dx, dy, taps);
}

template <class... P>
void launch_for(const DenseWindows& p, Executor& executor, void (*kernel)(const DenseWindows, P...), P... arguments) {
  launch("pooling", kernel, tile::ceil_div<i64>(p.threads, threads), threads, 0, executor, p, arguments...);
}

DenseWindows problem(const PoolArgs& args, int width) {
  const auto window = [&](int d) {
    return tile::ImageWindow::of(args.size[d], args.window[d], args.stride[d], args.dilation[d], args.padding[d]);
  };
  return args.channels_last ? DenseWindows(window(0), window(1), args.images, args.channels / width, args.count_padding)
                            : DenseWindows(window(0), window(1), args.images * args.channels, 1, args.count_padding);
}

using Halves = tile::PoolForm<2, 2, 0>;       // of each side
using Overlapping = tile::PoolForm<3, 2, 1>;  // as a ResNet begins

bool is_aligned(const TensorArg& t, int bytes) { return reinterpret_cast<size_t>(t.data) % bytes == 0; }

/// fn(Type<T>, Int<V>): in vectors of 16 bytes, or of single elements.
template <class Fn>
void with_vectors(const PoolArgs& args, const Fn& fn) {
  const auto of = [&](auto type) {
    constexpr int width = 16 / sizeof(typename decltype(type)::type);
    if (args.channels_last && args.channels % width == 0 && is_aligned(args.x, 16) && is_aligned(args.y, 16) &&
        is_aligned(args.taps, width))
      fn(type, tile::Int<width>{});
    else fn(type, tile::Int<1>{});
  };
  switch (args.x.type) {
    case Scalar::f32:
      return of(Type<float>{});
    case Scalar::f16:
      return of(Type<f16>{});
    case Scalar::bf16:
      return of(Type<bf16>{});
    default:
      throw_unsupported("pooling of dense images in this dtype");
  }
}

/// How many results of windows in steps of 2 a thread has side by side in planes of whole vectors of 16 bytes; or 1.
template <class T>
constexpr int row_results = 8 / sizeof(T);
template <class Form, class T>
bool takes_rows(const DenseWindows& p, const PoolArgs& args) {
  constexpr int results = row_results<T>;
  return tile::has_rows_for<Form>(p, results) && is_aligned(args.x, 16) && is_aligned(args.y, 8) &&
         is_aligned(args.taps, results);
}

void max(const PoolArgs& args, Executor& executor) {
  with_vectors(args, [&](auto type, auto vector) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(vector)::value;
    const DenseWindows p = problem(args, V);
    T* const y = static_cast<T*>(args.y.data);
    u8* const taps = static_cast<u8*>(args.taps.data);
    const T* const x = static_cast<const T*>(args.x.data);
    if constexpr (V == 1) {
      const auto try_rows = [&](auto form) {
        using Form = typename decltype(form)::type;
        constexpr int K = row_results<T>;
        if (!takes_rows<Form, T>(p, args)) return false;
        launch_for(p.over_result_rows(K), executor, row_kernel<Form, K, T>, y, taps, x);
        return true;
      };
      if (try_rows(Type<Halves>{}) || try_rows(Type<Overlapping>{})) return;
    }
    const auto run = [&](auto size) {
      launch_for(p.over_results(), executor, window_kernel<tile::Largest, decltype(size)::value, V, T>, y, taps, x);
    };
    const bool square = V > 1 && args.window[0] == args.window[1];
    if constexpr (V > 1) {
      if (square && args.window[0] == 2) return run(tile::Int<2>{});
      if (square && args.window[0] == 3) return run(tile::Int<3>{});
    }
    run(tile::Int<0>{});
  });
}

void max_backward(const PoolArgs& args, Executor& executor) {
  with_vectors(args, [&](auto type, auto vector) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(vector)::value;
    const DenseWindows p = problem(args, V);
    T* const dx = static_cast<T*>(args.x.data);
    const T* const dy = static_cast<const T*>(args.y.data);
    const u8* const taps = static_cast<const u8*>(args.taps.data);
    const auto try_form = [&](auto form) {
      using Form = typename decltype(form)::type;
      if constexpr (V == 1) {
        constexpr int K = row_results<T>;
        if (!takes_rows<Form, T>(p, args)) return false;
        launch_for(p.over_blocks(Form::Stride, Form::Stride * K), executor, rows_kernel<Form, K, T>, dx, dy, taps);
      } else {
        if (!Form::is(p)) return false;
        launch_for(p.over_blocks(Form::Stride, Form::Stride), executor, block_kernel<Form, V, T>, dx, dy, taps);
      }
      return true;
    };
    if (try_form(Type<Halves>{}) || try_form(Type<Overlapping>{})) return;
    launch_for(p.over_images(), executor, place_kernel<true, V, T>, dx, dy, taps);
  });
}

void average(const PoolArgs& args, Executor& executor) {
  with_vectors(args, [&](auto type, auto vector) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(vector)::value;
    launch_for(problem(args, V).over_results(), executor, window_kernel<tile::Average, 0, V, T>,
               static_cast<T*>(args.y.data), static_cast<u8*>(nullptr), static_cast<const T*>(args.x.data));
  });
}

void average_backward(const PoolArgs& args, Executor& executor) {
  with_vectors(args, [&](auto type, auto vector) {
    using T = typename decltype(type)::type;
    constexpr int V = decltype(vector)::value;
    launch_for(problem(args, V).over_images(), executor, place_kernel<false, V, T>, static_cast<T*>(args.x.data),
               static_cast<const T*>(args.y.data), static_cast<const u8*>(nullptr));
  });
}

}  // namespace

PoolTable dense_pool_table = {max, max_backward, average, average_backward};

}  // namespace tessera::gpu_kernels
