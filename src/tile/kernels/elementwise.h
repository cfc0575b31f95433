// Elementwise maps over strided, broadcast operands of any rank up to eight, and of mixed element types.
//
// A map runs strip by strip. A strip function sees unit-stride or repeated operands of its compute type and no
// tail; the driver puts whatever memory holds (strides, 16-bit types, odd ends) into that form in buffers that
// stay in the first-level cache. So one short vector loop per functor and type is all the code there is.
#pragma once

#include "../arch/cpu/stream.h"
#include "../math.h"
#include "../view.h"
#include "loops.h"

TESSERA_TILE_BEGIN

/// Strips are multiples of this many elements.
inline constexpr int strip_unit = 64;

/// Operand 0 is the output. An operand advances with the loop (step 1) or stays at strip_unit equal elements
/// (step 0).
struct Strip {
  void* data[max_operands];
  i64 step[max_operands];
  i64 count;
  const void* context;  // the functor's state
};
using StripFn = void (*)(const Strip&);

/// n elements from one strided run to another, converted; strides in bytes.
using ConvertFn = void (*)(void* to, i64 to_stride, const void* from, i64 from_stride, i64 n);

namespace detail {

template <class To, class From>
TESSERA_HD void convert_contiguous(To* to, const From* from, i64 n) {
  i64 i = 0;
  if constexpr (is_half<To> || is_half<From>) {
    constexpr int lanes = native_bytes / 4;
    if constexpr (!is_same_v<To, bool> && !is_same_v<From, bool>) {
      for (; i + lanes <= n; i += lanes) store(to + i, load<Vec<float, lanes>>(from + i));
    }
  }
  for (; i < n; ++i) to[i] = convert_element<To>(from[i]);
}

}  // namespace detail

template <class To, class From>
inline void convert_run(void* to, i64 to_stride, const void* from, i64 from_stride, i64 n) {
  if (to_stride == sizeof(To) && from_stride == sizeof(From)) {
    if constexpr (is_same_v<To, From>) {
      __builtin_memcpy(to, from, n * sizeof(To));
    } else {
      detail::convert_contiguous(static_cast<To*>(to), static_cast<const From*>(from), n);
    }
    return;
  }
  if (to_stride == sizeof(To) && from_stride == 0 && n > 0) {  // a fill
    const To value = convert_element<To>(*static_cast<const From*>(from));
    for (i64 i = 0; i < n; ++i) static_cast<To*>(to)[i] = value;
    return;
  }
  auto* t = static_cast<char*>(to);
  auto* f = static_cast<const char*>(from);
  for (i64 i = 0; i < n; ++i, t += to_stride, f += from_stride) {
    *reinterpret_cast<To*>(t) = convert_element<To>(*reinterpret_cast<const From*>(f));
  }
}

namespace detail {

/// Lanes of one step: as many as fill a register with the widest of the types.
template <class... T>
inline constexpr int strip_lanes = [] {
  int widest = 1;
  ((widest = max(widest, static_cast<int>(sizeof(T)))), ...);
  return native_bytes / widest;
}();

/// The lowest byte of each lane. GCC converts integers to bytes lane by lane where only AVX2 is there.
template <class V>
TESSERA_HD rebind_t<V, u8> low_bytes(V v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  constexpr int size = sizeof(element_t<V>);
  if constexpr (size > 1 && lanes_v<V> * size == native_bytes) {
    const auto bytes = bit_cast<typename Vec<u8, native_bytes>::Native>(v.v);
    return [&]<int... I>(Seq<I...>) {
      return rebind_t<V, u8>::of(__builtin_shufflevector(bytes, bytes, (I * size)...));
    }
    (make_seq<lanes_v<V>>{});
  }
#endif
  return convert<u8>(v);
}

template <class Out, class V>
TESSERA_HD void store_result(Out* out, V v) {
  if constexpr (is_same_v<Out, bool>) {  // from a mask
    store(reinterpret_cast<u8*>(out), low_bytes(v & V(element_t<V>(1))));
  } else {
    store(out, v);
  }
}

template <class F, class Out, class... In, int... I>
TESSERA_HD void map_strip(const F& f, const Strip& s, Seq<I...>) {
  constexpr int lanes = strip_lanes<Out, In...>;
  const i64 steps[] = {s.step[I + 1] * lanes...}, count = s.count;  // copies, which no store can change
  auto* const to = static_cast<Out*>(s.data[0]);
  const auto run = [&](const In*... from) {
    for (i64 i = 0; i < count; i += lanes) {
      store_result(to + i, f(load<Vec<In, lanes>>(from)...));
      ((from += steps[I]), ...);
    }
  };
  run(static_cast<const In*>(s.data[I + 1])...);
}

}  // namespace detail

/// The strip function of functor F: out = f(in...), on vectors; f returns a mask when Out is bool. The functor's
/// state is the memory at Strip::context.
template <class F, class Out, class... In>
inline void map_strip(const Strip& s) {
  if constexpr (__is_empty(F)) {
    detail::map_strip<F, Out, In...>(F{}, s, make_seq<sizeof...(In)>{});
  } else {
    struct Copy {
      alignas(F) char bytes[sizeof(F)];
    } copy;
    __builtin_memcpy(copy.bytes, s.context, sizeof(F));
    detail::map_strip<F, Out, In...>(bit_cast<F>(copy), s, make_seq<sizeof...(In)>{});
  }
}

/// One operand of a map.
struct MapOperand {
  void* data;
  int size;           // bytes of an element in memory
  int strip_size;     // bytes of an element in the strip
  bool same;          // memory and strip agree in type
  ConvertFn convert;  // memory to strip for inputs, strip to memory for the output
};

/// A map: loops over operands, operand 0 being the output, and what to do with a strip.
struct MapPlan {
  LoopNest loops;
  MapOperand operand[max_operands];
  StripFn strip;
  const void* context;
  i64 cost;  // of an element, in units of an addition
};

namespace detail {

inline constexpr i64 map_block = 256;  // elements that pass through buffers at a time
inline constexpr i64 map_buffer = map_block * 8;
inline constexpr i64 long_row = 8192;

class MapRunner {
 public:
  explicit MapRunner(const MapPlan& plan) : plan_(plan), loops_(plan.loops), last_(plan.loops.rank - 1) {
    for (int k = 0; k < loops_.operands; ++k) {
      const MapOperand& op = plan_.operand[k];
      direct_[k] = op.same && loops_.strides[k][last_] == op.size;
      repeated_[k] = k > 0 && loops_.strides[k][last_] == 0;
      dense_[k] = direct_[k] && is_dense(loops_, k, op.size);
      unbuffered_ &= direct_[k] || repeated_[k];
      overwrites_ |= k > 0 && op.data == plan_.operand[0].data;
    }
    const MapOperand& out = plan_.operand[0];
    const i64 bytes = loops_.total() * out.size, row = loops_.lengths[last_] * out.size;  // lines are written whole
    streams_ = dense_[0] && !overwrites_ && bytes >= cpu::streamed_bytes && (row == bytes || row >= long_row);
    block_ = !unbuffered_ ? map_block : streams_ ? map_buffer / out.size : loops_.total();
  }

  void operator()(i64 begin, i64 end) {
    LoopWalk walk(loops_, begin);
    for (i64 at = begin, n = 0; at < end; at += n) {
      const i64 run = min(walk.run(loops_), end - at);
      if (run >= strip_unit || run == end - at) {
        n = min(run, block_);
        one_run(walk, n);
        walk.advance(loops_, n);
      } else {
        n = min(map_block, end - at);
        many_runs(walk, n);
      }
    }
    if (streams_) cpu::fence();
  }

 private:
  char* address(int k, const LoopWalk& walk) const {
    return static_cast<char*>(plan_.operand[k].data) + walk.offset[k];
  }
  /// m elements into the buffer of input k, or out of that of the output, from element `at` of the buffer.
  void transfer(int k, const LoopWalk& walk, i64 at, i64 m) {
    const MapOperand& op = plan_.operand[k];
    char* inside = buffer_[k] + at * op.strip_size;
    const i64 stride = loops_.strides[k][last_];
    if (k == 0) op.convert(address(k, walk), stride, inside, op.strip_size, m);
    else op.convert(inside, op.strip_size, address(k, walk), stride, m);
  }

  /// Elements of one innermost loop.
  void one_run(const LoopWalk& walk, i64 n) {
    Strip s;
    for (int k = 0; k < loops_.operands; ++k) {
      s.step[k] = !repeated_[k];
      s.data[k] = direct_[k] && !(k == 0 && streams_) ? address(k, walk) : buffer_[k];
      if (k > 0 && !direct_[k]) transfer(k, walk, 0, repeated_[k] ? min(n, i64(strip_unit)) : n);
      if (repeated_[k] && n < strip_unit) s.step[k] = 1;  // a short strip never reads past them
    }
    run_strip(s, n);
    if (streams_) cpu::stream(address(0, walk), buffer_[0], n * plan_.operand[0].size);
    else if (!direct_[0]) transfer(0, walk, 0, n);
  }

  /// n elements of several short runs, gathered. Moves the walk past them.
  void many_runs(LoopWalk& walk, i64 n) {
    const LoopWalk start = walk;
    const auto each_run = [&](int k) {
      walk = start;
      for (i64 at = 0, m = 0; at < n; at += m) {
        m = min(walk.run(loops_), n - at);
        if (k > 0 || !dense_[0]) transfer(k, walk, at, m);
        walk.advance(loops_, m);
      }
    };
    Strip s;
    for (int k = 0; k < loops_.operands; ++k) {
      s.step[k] = 1;
      s.data[k] = dense_[k] ? address(k, start) : buffer_[k];
      if (k > 0 && !dense_[k]) each_run(k);
    }
    run_strip(s, n);
    each_run(0);
  }

  /// Whole units in place. The odd end is that of a unit which begins earlier, unless that one's results would be read;
  /// then what is not already in a buffer passes through one.
  void run_strip(Strip s, i64 n) {
    s.context = plan_.context;
    s.count = n / strip_unit * strip_unit;
    if (s.count > 0) plan_.strip(s);
    const i64 rest = n - s.count;
    if (rest == 0) return;
    if (s.count > 0 && !overwrites_) {
      for (int k = 0; k < loops_.operands; ++k)
        s.data[k] = static_cast<char*>(s.data[k]) + (n - strip_unit) * s.step[k] * plan_.operand[k].strip_size;
      s.count = strip_unit;
      return plan_.strip(s);
    }
    void* end = nullptr;
    for (int k = 0; k < loops_.operands; ++k) {
      const int size = plan_.operand[k].strip_size;
      char* p = static_cast<char*>(s.data[k]) + s.count * s.step[k] * size;
      s.data[k] = p;
      if (p >= buffer_[k] && p < buffer_[k] + sizeof buffer_[k]) continue;
      s.data[k] = end_[k];
      if (k == 0) end = p;
      else __builtin_memcpy(end_[k], p, rest * size);
    }
    s.count = strip_unit;
    plan_.strip(s);
    if (end) __builtin_memcpy(end, end_[0], rest * plan_.operand[0].strip_size);
  }

  const MapPlan& plan_;
  const LoopNest& loops_;
  const int last_;
  bool direct_[max_operands] = {}, repeated_[max_operands] = {}, dense_[max_operands] = {};
  bool unbuffered_ = true, overwrites_ = false, streams_ = false;
  i64 block_;
  alignas(64) char buffer_[max_operands][map_buffer];
  alignas(64) char end_[max_operands][strip_unit * 8];
};

}  // namespace detail

/// Runs a map. The output must not overlap itself, nor an input other than element for element.
inline void run_map(MapPlan& plan, const ExecutorRef& executor) {
  LoopNest& loops = plan.loops;
  sort_loops(loops, 0, loops.rank);
  join_loops(loops);
  if (loops.rank == 0) {  // one element
    loops.rank = 1;
    loops.lengths[0] = 1;
    for (int k = 0; k < loops.operands; ++k) loops.strides[k][0] = plan.operand[k].size;
  }
  split_range(executor, loops.total(), plan.cost, strip_unit, [&](i64 begin, i64 end, int) {
    detail::MapRunner runner(plan);
    runner(begin, end);
  });
}

namespace detail {

template <class V>
void set_operand(MapPlan& plan, int k, const V& view) {
  using T = remove_cvref_t<typename V::Element>;
  using C = compute_t<T>;
  const ConvertFn convert = k == 0 ? ConvertFn(convert_run<T, C>) : ConvertFn(convert_run<C, T>);
  auto* data = const_cast<T*>(view.data);
  plan.operand[k] = {data, sizeof(T), sizeof(C), is_same_v<T, C>, convert};
  for (int d = 0; d < V::rank; ++d) plan.loops.strides[k][d] = view.stride(d) * static_cast<i64>(sizeof(T));
}

}  // namespace detail

/// out = f(in...) over strided views of the same lengths; a broadcast input has strides of zero. f takes vectors
/// of the inputs' compute types and returns a vector of the output's, or a mask where the output is bool; it is
/// copied as bytes.
template <class Executor, class F, class Out, class... In>
void map(Executor& executor, const F& f, const Out& out, const In&... in) {
  static_assert((Out::is_strided && ... && In::is_strided), "map: views must be strided");
  static_assert(((In::rank == Out::rank) && ...), "map: views must have one rank; broadcast with strides of 0");
  MapPlan plan;
  plan.loops.rank = Out::rank;
  plan.loops.operands = 1 + sizeof...(In);
  for (int d = 0; d < Out::rank; ++d) plan.loops.lengths[d] = out.length(d);
  int k = 0;
  detail::set_operand(plan, k, out);
  (detail::set_operand(plan, ++k, in), ...);
  plan.strip = map_strip<F, compute_t<typename Out::Element>, compute_t<typename In::Element>...>;
  plan.context = &f;
  plan.cost = 4;
  run_map(plan, ExecutorRef(executor));
}

TESSERA_TILE_END
