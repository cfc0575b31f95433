// The elementwise kernels: functors of tile/kernels/functors.h over operands of any type and strides.
#pragma once
#include "kernels/shared/map_ops.h"
#include "loops.h"

namespace tessera::gpu_kernels {

/// Blocks for each multiprocessor: many, since how many of them run at once differs from function to function.
inline constexpr int map_waves = 32;

/// What a map of N inputs works on; operand 0 is the output.
template <int N>
struct MapWork {
  Nest<N + 1> nest;
  void* data[N + 1];
  Scalar type[N + 1];
  bool constant[N + 1];
  double value[N + 1];  // of constants
  double scalars[2];    // of the functor
  i64 units;            // of many elements at once; 0: one at a time
  bool whole[N + 1];    // whether an operand's begin at whole ones
};

using MapLaunch = void (*)(const MapArgs& args, Executor& executor);

/// The launcher of an op in a compute type, where all operands in memory have the type `memory`, or any if there is no
/// such launcher; null where this list has none.
MapLaunch arithmetic_map(MapOp op, Scalar compute, Scalar memory);
MapLaunch math_map(MapOp op, Scalar compute, Scalar memory);
MapLaunch predicate_map(MapOp op, Scalar compute, Scalar memory);
/// The launcher of an op that is not frequent, where all is f32; null where there is none.
MapLaunch floats_map(MapOp op);

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
template <class C>
TESSERA_DEVICE C apply(const tile::op::Where&, const C (&x)[3]) {
  return x[0] != C(0) ? x[1] : x[2];  // the condition, too, has the compute type
}

/// gelu_tanh and its derivative by the card's own exponential and reciprocal, to about 1e-6: enough for halves, whose
/// rows otherwise wait for instructions.
TESSERA_DEVICE tile::ValueAndSlope<float> quick_gelu_tanh(float x) {
  constexpr float linear = 1.59576912161f, cubic = 0.0713548162726f, bound = 12.0f, per_ln2 = 1.44269504089f;
  const float above = x < -bound ? -bound : x, inside = above > bound ? bound : above, square = inside * inside;
  const float power = inside * tile::fma(square, -per_ln2 * cubic, -per_ln2 * linear);
  const float s = tile::fast_reciprocal(1.0f + tile::fast_exp2(power));
  return {above * s, s * tile::fma(inside * tile::fma(square, 3 * cubic, linear), 1.0f - s, 1.0f)};
}

/// apply() of operands whose type in memory is T.
template <class T, class F, class C, int N>
TESSERA_DEVICE auto apply_to(const F& f, const C (&x)[N]) {
  if constexpr (sizeof(T) == 2 && tile::is_same_v<F, tile::op::GeluTanh>) return quick_gelu_tanh(x[0]).value;
  else if constexpr (sizeof(T) == 2 && tile::is_same_v<F, tile::op::GeluTanhGrad>)
    return x[0] * quick_gelu_tanh(x[1]).slope;
  else return apply(f, x);
}

/// Operands of f32, f16 and bf16, each of its own type, four elements at once.
template <class F, int N>
TESSERA_DEVICE void map_mixed(const F& f, const MapWork<N>& work) {
  const int last = work.nest.rank - 1;
  for (i64 i = first_index(); i < work.units; i += index_step()) {
    i64 at[N + 1];
    const i64 left = work.nest.locate(i, 4, at);
    RawFloats raw[N];
    float in[N][4], out[4];
    const auto repeats = [&](int k) { return work.constant[k] || work.nest.strides[k][last] == 0; };
    tile::unroll<N>([&](auto k) {
      if (!repeats(k + 1)) raw[k].load(work.data[k + 1], work.type[k + 1], at[k + 1], work.whole[k + 1], left);
    });
    tile::unroll<N>([&](auto k) {
      if (repeats(k + 1)) {
        const float one = work.constant[k + 1] ? static_cast<float>(work.value[k + 1])
                                               : load_as<float>(work.data[k + 1], work.type[k + 1], at[k + 1]);
        tile::unroll<4>([&](auto j) { in[k][j] = one; });
      } else {
        tile::unroll<4>([&](auto j) { in[k][j] = raw[k].value(work.type[k + 1], j); });
      }
    });
    tile::unroll<4>([&](auto j) {
      float x[N];
      tile::unroll<N>([&](auto k) { x[k] = in[k][j]; });
      out[j] = apply(f, x);
    });
    store_four(work.data[0], work.type[0], at[0], out, work.whole[0], left);
  }
}

/// Any types in memory, computed in C.
template <class F, class C, int N, bool Mixed>
TESSERA_KERNEL(256)
void map_any(const MapWork<N> work) {
  const F f = functor_of<F>(work.scalars);
  if constexpr (Mixed) {
    if (work.units) return map_mixed(f, work);
  }
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

/// All operands of type T, 16 bytes at once.
template <class F, class T, int N>
TESSERA_KERNEL(256)
void map_same(const MapWork<N> work) {
  using C = tile::compute_t<T>;
  constexpr int width = 16 / sizeof(T);
  using Packed = Pack<T, width>;
  const F f = functor_of<F>(work.scalars);
  const int last = work.nest.rank - 1;
  for (i64 i = first_index(); i < work.units; i += index_step()) {
    i64 at[N + 1];
    const i64 left = work.nest.locate(i, width, at);
    Packed in[N], out;
    tile::unroll<N>([&](auto k) {
      const T* from = static_cast<const T*>(work.data[k + 1]) + at[k + 1];
      if (!work.constant[k + 1] && work.nest.strides[k + 1][last] != 0) {
        in[k] = load_unit<T, width>(from, work.whole[k + 1], left, work.nest.lengths[last]);
      } else {
        const T one = work.constant[k + 1] ? tile::convert_element<T>(static_cast<C>(work.value[k + 1])) : *from;
        for (int j = 0; j < width; ++j) in[k].lane[j] = one;
      }
    });
    tile::unroll<width>([&](auto j) {
      C x[N];
      tile::unroll<N>([&](auto k) { x[k] = tile::convert_element<C>(in[k].lane[j]); });
      out.lane[j] = tile::convert_element<T>(apply_to<T>(f, x));
    });
    store_unit(static_cast<T*>(work.data[0]) + at[0], out, work.whole[0], left);
  }
}

template <int N>
MapWork<N> map_work(const MapArgs& args, int width) {
  MapWork<N> work;
  const TensorArg* operand[N + 1];
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
  const bool has_units = work.nest.has_units(width) && work.nest.strides[0][work.nest.rank - 1] == 1;
  work.units = has_units ? work.nest.units(width) : 0;
  for (int k = 0; k <= N && has_units; ++k) work.whole[k] = work.nest.is_whole(k, width, 16 / width, work.data[k]);
  work.scalars[0] = args.scalars[0];
  work.scalars[1] = args.scalars[1];
  return work;
}

/// Mixed: operands in f32, f16 and bf16 are taken four elements at once.
template <class F, class C, int N, bool Mixed = false>
void launch_any(const MapArgs& args, Executor& executor) {
  auto work = map_work<N>(args, 4);
  const auto is_mixed = [&](int k) {
    const Scalar type = work.type[k];
    return work.constant[k] || type == Scalar::f32 || type == Scalar::f16 || type == Scalar::bf16;
  };
  for (int k = 0; k <= N; ++k)
    if (!Mixed || !is_mixed(k)) work.units = 0;
  const i64 items = work.units ? work.units : work.nest.total;
  launch("map", map_any<F, C, N, Mixed>, grid_for(items, 256, executor, map_waves), 256, 0, executor, work);
}
template <class F, class T, int N>
void launch_same(const MapArgs& args, Executor& executor) {
  using C = tile::compute_t<T>;
  constexpr int width = 16 / sizeof(T);
  const auto work = map_work<N>(args, width);
  if (!work.units) return launch_any<F, C, N, true>(args, executor);
  launch("map", map_same<F, T, N>, grid_for(work.units, 256, executor, map_waves), 256, 0, executor, work);
}

/// Ops of models' inner loops, which have kernels for each type of f32, f16 and bf16; the others take all three mixed,
/// 16 bytes of f32 or 8 of halves at a time, and where all are f32 have those of floats_map().
constexpr bool is_frequent(MapOp op) {
  switch (op) {
    case MapOp::add:
    case MapOp::sub:
    case MapOp::mul:
    case MapOp::div:
    case MapOp::scale_shift:
    case MapOp::add_:
    case MapOp::relu:
    case MapOp::relu_backward:
    case MapOp::gelu:
    case MapOp::gelu_backward:
    case MapOp::gelu_tanh:
    case MapOp::gelu_tanh_backward:
    case MapOp::silu:
    case MapOp::silu_backward:
      return true;
    default:
      return false;
  }
}

/// Operands of f32, 16 bytes at once, or where that cannot be as operands of any type.
template <class F, int N, auto any_type>
void launch_floats(const MapArgs& args, Executor& executor) {
  const auto work = map_work<N>(args, 4);
  if (!work.units) return any_type(args.op, Scalar::f32, Scalar::boolean)(args, executor);
  launch("map", map_same<F, float, N>, grid_for(work.units, 256, executor, map_waves), 256, 0, executor, work);
}
template <class List, auto any_type>
MapLaunch floats_in(MapOp op) {
  return List::template find<MapLaunch>(op, [](auto entry) -> MapLaunch {
    using Entry = decltype(entry);
    if constexpr (!Entry::to_bool && Entry::op != MapOp::where && !is_frequent(Entry::op))
      return launch_floats<typename Entry::Functor, Entry::inputs, any_type>;
    else return nullptr;
  });
}

/// The launcher of an op that is in the list.
template <class List>
MapLaunch map_in(MapOp op, Scalar compute, Scalar memory) {
  return List::template find<MapLaunch>(op, [compute, memory](auto entry) -> MapLaunch {
    using Entry = decltype(entry);
    using F = typename Entry::Functor;
    constexpr int inputs = Entry::inputs;
    constexpr bool packs = !Entry::to_bool && Entry::op != MapOp::where;
    if constexpr (packs && is_frequent(Entry::op)) {
      if (compute == Scalar::f32 && memory == Scalar::f32) return launch_same<F, float, inputs>;
      if (compute == Scalar::f32 && memory == Scalar::f16) return launch_same<F, f16, inputs>;
      if (compute == Scalar::f32 && memory == Scalar::bf16) return launch_same<F, bf16, inputs>;
    }
    if (compute == Scalar::f64) return launch_any<F, double, inputs>;
    if (compute == Scalar::f32) return launch_any<F, float, inputs, packs>;
    if constexpr (Entry::integers) {
      // What i32 overflows to is what is left of the result in i64.
      if (compute == Scalar::i64 || compute == Scalar::i32) return launch_any<F, i64, inputs>;
    }
    return nullptr;
  });
}

}  // namespace tessera::gpu_kernels
