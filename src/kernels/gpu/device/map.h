// The elementwise kernels: functors of tile/kernels/functors.h over operands of any type and strides.
#pragma once
#include "loops.h"
#include "tile/kernels/functors.h"

namespace tessera::gpu_kernels {

/// What a map of N inputs works on; operand 0 is the output.
template <int N>
struct MapWork {
  Nest<N + 1> nest;
  void* data[N + 1];
  Scalar type[N + 1];
  bool constant[N + 1];
  double value[N + 1];  // of constants
  double scalars[2];    // of the functor
  bool vectors;         // many elements at once
};

using MapLaunch = void (*)(const MapArgs& args, Executor& executor);

/// The launcher of an op in a compute type, where all operands in memory have the type `memory`, or any if there is no
/// such launcher; null where this list has none.
MapLaunch arithmetic_map(MapOp op, Scalar compute, Scalar memory);
MapLaunch math_map(MapOp op, Scalar compute, Scalar memory);
MapLaunch predicate_map(MapOp op, Scalar compute, Scalar memory);

template <class F>
TESSERA_HD F functor_of(const double (&scalars)[2]) {
  if constexpr (__is_empty(F)) {
    return F{};
  } else {
    struct Copy {
      alignas(F) char bytes[sizeof(F)];
    } copy;
    __builtin_memcpy(copy.bytes, scalars, sizeof(F));
    return tile::bit_cast<F>(copy);
  }
}

template <class F, class C>
TESSERA_DEVICE auto apply(const F& f, const C (&x)[1]) {
  return f(x[0]);
}
template <class F, class C>
TESSERA_DEVICE auto apply(const F& f, const C (&x)[2]) {
  return f(x[0], x[1]);
}
template <class F, class C>
TESSERA_DEVICE auto apply(const F& f, const C (&x)[3]) {
  return f(x[0], x[1], x[2]);
}

/// Any types in memory, computed in C.
template <class F, class C, int N>
TESSERA_KERNEL(256)
void map_any(const MapWork<N> work) {
  const F f = functor_of<F>(work.scalars);
  for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
    i64 at[N + 1];
    work.nest.locate(i, 1, at);
    C x[N];
    tile::unroll<N>([&](auto k) {
      x[k] = work.constant[k + 1] ? static_cast<C>(work.value[k + 1])
                                  : load_as<C>(work.data[k + 1], work.type[k + 1], at[k + 1]);
    });
    store_as(work.data[0], work.type[0], at[0], apply(f, x));
  }
}

/// All operands of type T.
template <class F, class T, int N>
TESSERA_KERNEL(256)
void map_same(const MapWork<N> work) {
  using C = tile::compute_t<T>;
  constexpr int width = 16 / sizeof(T);
  using Packed = Pack<T, width>;
  const F f = functor_of<F>(work.scalars);
  if (!work.vectors) {
    for (i64 i = first_index(); i < work.nest.total; i += index_step()) {
      i64 at[N + 1];
      work.nest.locate(i, 1, at);
      C x[N];
      tile::unroll<N>([&](auto k) {
        x[k] = work.constant[k + 1] ? static_cast<C>(work.value[k + 1])
                                    : tile::convert_element<C>(static_cast<const T*>(work.data[k + 1])[at[k + 1]]);
      });
      static_cast<T*>(work.data[0])[at[0]] = tile::convert_element<T>(apply(f, x));
    }
    return;
  }
  const int last = work.nest.rank - 1;
  for (i64 i = first_index(); i < work.nest.total / width; i += index_step()) {
    i64 at[N + 1];
    work.nest.locate(i, width, at);
    Packed in[N], out;
    tile::unroll<N>([&](auto k) {
      const T* from = static_cast<const T*>(work.data[k + 1]) + at[k + 1];
      if (!work.constant[k + 1] && work.nest.strides[k + 1][last] != 0) {
        in[k] = *reinterpret_cast<const Packed*>(from);
      } else {
        const T one = work.constant[k + 1] ? tile::convert_element<T>(static_cast<C>(work.value[k + 1])) : *from;
        for (int j = 0; j < width; ++j) in[k].lane[j] = one;
      }
    });
    tile::unroll<width>([&](auto j) {
      C x[N];
      tile::unroll<N>([&](auto k) { x[k] = tile::convert_element<C>(in[k].lane[j]); });
      out.lane[j] = tile::convert_element<T>(apply(f, x));
    });
    *reinterpret_cast<Packed*>(static_cast<T*>(work.data[0]) + at[0]) = out;
  }
}

template <int N>
MapWork<N> map_work(const MapArgs& args, int width) {
  MapWork<N> work;
  const TensorArg* operand[N + 1];
  bool output_is_dense = false;
  for (int k = 0; k <= N; ++k) {
    const TensorArg& t = args.tensor[k];
    operand[k] = &t;
    work.data[k] = t.data;
    work.type[k] = t.type;
    work.constant[k] = t.constant;
    work.value[k] = 0;
    if (t.constant) {
      if (t.type != Scalar::f64) throw_unsupported("a constant that is not f64");
      work.value[k] = *static_cast<const double*>(t.data);
      work.data[k] = nullptr;
    }
  }
  work.nest = make_nest(args.rank, args.lengths, operand);
  if (work.nest.rank > 0) output_is_dense = work.nest.strides[0][work.nest.rank - 1] == 1;
  work.vectors = output_is_dense && work.nest.takes_vectors(width, 16 / width, work.data);
  work.scalars[0] = args.scalars[0];
  work.scalars[1] = args.scalars[1];
  return work;
}

template <class F, class C, int N>
void launch_any(const MapArgs& args, Executor& executor) {
  const auto work = map_work<N>(args, 1);
  launch("map", map_any<F, C, N>, grid_for(work.nest.total, 256, executor), 256, 0, executor, work);
}
template <class F, class T, int N>
void launch_same(const MapArgs& args, Executor& executor) {
  constexpr int width = 16 / sizeof(T);
  const auto work = map_work<N>(args, width);
  const i64 items = work.vectors ? work.nest.total / width : work.nest.total;
  launch("map", map_same<F, T, N>, grid_for(items, 256, executor), 256, 0, executor, work);
}

template <class F, int N>
MapLaunch integer_map(Scalar compute, Scalar) {
  if (compute == Scalar::i64) return launch_any<F, i64, N>;
  if (compute == Scalar::i32) return launch_any<F, i32, N>;
  return nullptr;
}
template <class F, int N>
MapLaunch float_map(Scalar compute, Scalar memory) {
  if (compute == Scalar::f64) return launch_any<F, double, N>;
  if (compute != Scalar::f32) return nullptr;
  if (memory == Scalar::f32) return launch_same<F, float, N>;
  if (memory == Scalar::f16) return launch_same<F, f16, N>;
  if (memory == Scalar::bf16) return launch_same<F, bf16, N>;
  return launch_any<F, float, N>;
}
template <class F, int N>
MapLaunch any_map(Scalar compute, Scalar memory) {
  if (MapLaunch found = float_map<F, N>(compute, memory)) return found;
  return integer_map<F, N>(compute, memory);
}
/// Results are bool, which map_any stores from the functor's.
template <class F, int N>
MapLaunch predicate(Scalar compute) {
  if (compute == Scalar::f64) return launch_any<F, double, N>;
  if (compute == Scalar::f32) return launch_any<F, float, N>;
  return integer_map<F, N>(compute, compute);
}

}  // namespace tessera::gpu_kernels
