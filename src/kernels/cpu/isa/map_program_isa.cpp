#include "kernels/args/map_program.h"

#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

using Code = void (*)();

Code conversion(Scalar to, Scalar from) { return reinterpret_cast<Code>(converter(to, from)); }
Code map(MapOp op, Scalar compute) { return reinterpret_cast<Code>(strip_of(op, compute)); }

/// With the roundings of the maps that it stands for.
template <class T>
void polynomial_of(const Strip& s) {
  using V = NativeVec<T>;
  constexpr int ways = min(8, strip_unit / V::lanes);  // the second operand's vectors may be read anew for each addend
  const auto& p = *static_cast<const MapPolynomial*>(s.context);
  const auto* const addends = static_cast<const T*>(p.addends);
  const auto *v = static_cast<const T*>(s.data[1]), *t = static_cast<const T*>(s.data[2]);
  auto* const to = static_cast<T*>(s.data[0]);
  for (i64 i = 0; i < s.count; i += ways * V::lanes) {
    V sum[ways], factor[ways];
    unroll<ways>([&](auto k) {
      sum[k] = load<V>(v + (i + k * V::lanes) * s.step[1]);
      factor[k] = load<V>(t + (i + k * V::lanes) * s.step[2]);
    });
    for (i64 a = 0; a < p.products; ++a) {
      const V addend(addends[a]);
      unroll<ways>([&](auto k) { sum[k] = (sum[k] + addend) * factor[k]; });
    }
    const V last(p.ends ? addends[p.products] : T(-0.0));  // which changes nothing
    unroll<ways>([&](auto k) { store(to + i + k * V::lanes, sum[k] + last); });
  }
}
Code polynomial(Scalar compute) {
  if (compute == Scalar::f64) return reinterpret_cast<Code>(polynomial_of<double>);
  return compute == Scalar::f32 ? reinterpret_cast<Code>(polynomial_of<float>) : nullptr;
}

/// A thread's part of the elements.
class Runner {
 public:
  explicit Runner(const MapProgramArgs& program) : a_(program) {
    for (int v = 0; v < a_.values; ++v) {
      const MapValue& value = a_.value[v];
      at_[v] = room_ + value.offset;
      moves_[v] = !value.repeats && !value.local;
      if (value.repeats && value.copy)
        convert(value.copy, at_[v], value.size, value.data ? value.data : &value.number, 0, strip_unit);
    }
    for (int s = 0; s < a_.once; ++s) run(a_.step[s], strip_unit);
  }

  void operator()(i64 begin, i64 end) {
    for (i64 i = begin, n = 0; i < end; i += n) {
      n = end - i < strip_unit ? end - i : min(longest(i), (end - i) / strip_unit * strip_unit);
      const bool whole = n % strip_unit == 0;
      for (int t = 0; t < a_.tensors; ++t) place(t, i, n, whole);
      read_next(i + n);
      for (int s = a_.once; s < a_.steps; ++s) run(a_.step[s], n);
      for (int t = 0; t < a_.outputs; ++t) {
        if (a_.streams) cpu::stream(address(t, i), at_[t], n * a_.value[t].size);
        else if (!whole) __builtin_memcpy(address(t, i), at_[t], n * a_.value[t].size);
      }
    }
    if (a_.streams) cpu::fence();
  }

 private:
  static void convert(Code code, void* to, i64 to_stride, const void* from, i64 from_stride, i64 n) {
    reinterpret_cast<ConvertFn>(code)(to, to_stride, from, from_stride, n);
  }
  char* address(int t, i64 i) const { return static_cast<char*>(a_.value[t].data) + i * a_.value[t].size; }

  /// Of the strip from the i-th element on: to the last unit in which inputs that repeat in long runs do so.
  i64 longest(i64 i) const {
    i64 n = a_.strip;
    for (int t = a_.outputs; t < a_.tensors; ++t)
      if (const MapLayout* layout = a_.value[t].layout) {
        const i64 length = layout->lengths[layout->rank - 1];
        if (layout->strides[layout->rank - 1] == 0 && length >= 4 * strip_unit)
          n = min(n, max(i64(strip_unit), (length - i % length) / strip_unit * strip_unit));
      }
    return n;
  }

  /// Whole units stay where they are; the odd end of a tensor passes through the room.
  void place(int t, i64 i, i64 n, bool whole) {
    const MapValue& value = a_.value[t];
    if (value.repeats) return;
    if (value.layout) return gather(t, i, n);
    at_[t] = whole && !(a_.streams && t < a_.outputs) ? address(t, i) : room_ + value.offset;
    if (!whole && t >= a_.outputs) __builtin_memcpy(at_[t], address(t, i), n * value.size);
  }

  /// n elements from the i-th on, as they lie.
  void gather(int v, i64 i, i64 n) {
    const MapValue& value = a_.value[v];
    const MapLayout& layout = *value.layout;
    const int last = layout.rank - 1;
    i64 at[max_rank], rest = i;
    const char* from = static_cast<const char*>(value.data);
    for (int d = last; d >= 0; --d) {
      at[d] = rest % layout.lengths[d];
      rest /= layout.lengths[d];
      from += at[d] * layout.strides[d];
    }
    moves_[v] = layout.strides[last] != 0 || n % strip_unit != 0 || layout.lengths[last] - at[last] < n;
    if (!moves_[v]) n = strip_unit;  // which are all alike
    for (char *to = room_ + value.offset, *end = to + n * value.size; to < end;) {
      const i64 run = min(i64(layout.lengths[last] - at[last]), i64(end - to) / value.size);
      convert(value.copy, to, value.size, from, layout.strides[last], run);
      to += run * value.size;
      from += run * layout.strides[last];
      at[last] += run;
      for (int d = last; d > 0 && at[d] == layout.lengths[d]; --d) {
        from += layout.strides[d - 1] - at[d] * layout.strides[d];
        at[d] = 0;
        ++at[d - 1];
      }
    }
  }

  void run(const MapStep& step, i64 n) {
    const MapValue& to = a_.value[step.to];
    if (step.converts) {
      const MapValue& from = a_.value[step.from[0]];
      return convert(step.code, at_[step.to], to.size, at_[step.from[0]], moves_[step.from[0]] ? from.size : 0, n);
    }
    if (step.links > 0) return run_chain(step, round_up(n, i64(strip_unit)));
    Strip s;
    s.count = round_up(n, i64(strip_unit));
    s.data[0] = at_[step.to];
    s.step[0] = 1;
    for (int k = 0; k < step.inputs; ++k) {
      s.data[k + 1] = at_[step.from[k]];
      s.step[k + 1] = moves_[step.from[k]];
    }
    s.context = step.polynomial.addends ? static_cast<const void*>(&step.polynomial) : step.numbers;
    reinterpret_cast<StripFn>(step.code)(s);
  }

  void run_chain(const MapStep& step, i64 count) {
    PlacedLink placed[MapChain::most_links];
    for (int k = 0; k < step.links; ++k) {
      const MapLink& link = step.link[k];
      PlacedLink& p = placed[k];
      p.run = link.run;
      p.to = link.to < 0 ? nullptr : at_[link.to];
      p.to_step = link.to >= 0 && moves_[link.to];
      for (int o = 0; o < 3; ++o) {
        const int v = max(int(link.value[o]), 0);  // of any value, where there is none
        p.data[o] = at_[v];
        p.step[o] = moves_[v];
      }
      p.numbers[0] = link.numbers[0];
      p.numbers[1] = link.numbers[1];
    }
    reinterpret_cast<void (*)(const MapChain&)>(step.code)({placed, count, next_, nexts_});
    nexts_ = 0;
  }

  /// What the strip behind this one reads is asked for while this one is computed.
  void read_next(i64 behind) {
    nexts_ = 0;
    for (int t = a_.outputs; a_.streams && t < a_.tensors && nexts_ < MapChain::most_nexts; ++t)
      if (!a_.value[t].repeats && !a_.value[t].layout) next_[nexts_++] = {address(t, behind), a_.value[t].size};
  }

  const MapProgramArgs& a_;
  char* at_[MapProgramArgs::most_values];
  bool moves_[MapProgramArgs::most_values];  // through a strip's elements
  ReadNext next_[MapChain::most_nexts];
  int nexts_ = 0;
  alignas(64) char room_[MapProgramArgs::room];
};

void run(const MapProgramArgs& args, Executor& executor) {
  split_range(ExecutorRef(executor), args.count, args.cost, strip_unit, [&](i64 begin, i64 end, int) {
    Runner runner(args);
    runner(begin, end);
  });
}

}  // namespace

extern const MapProgramTable map_program_table;
const MapProgramTable map_program_table = {map, conversion, polynomial, chain_code, link_code, cost_of, run};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
