#include "kernels/args/map_chain.h"

#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

template <class F>
TESSERA_HD F with_numbers(const double (&numbers)[2]) {
  if constexpr (__is_empty(F)) return F{};
  struct Bytes {
    alignas(F) char at[sizeof(F)];
  } bytes;
  __builtin_memcpy(bytes.at, numbers, sizeof(F));
  return bit_cast<F>(bytes);
}

template <class V, int>
using One = V;

/// Links as functions, each of which calls the next one last, with the top of the stack as arguments: so it stays in
/// registers, which compilers would not leave it in through a switch. What lies below the top is laid down in memory.
template <class T, class Ways>
struct Links;
template <class T, int... k>
struct Links<T, Seq<k...>> {
  using V = NativeVec<T>;
  using M = MaskOf<T, V::lanes>;
  using Run = void (*)(const PlacedLink* link, i64 i, T* below, One<V, k>... top);
  static constexpr i64 block = sizeof...(k) * V::lanes;
  static_assert(strip_unit % block == 0);

  static V mask(M m) { return vec_bits<V>(m); }
  static M mask(V v) { return vec_bits<M>(v); }
  static V at(const T* from, int way) { return tile::load<V>(from + way * V::lanes); }
  static const T* place(const PlacedLink* link, int operand, i64 i) {
    return static_cast<const T*>(link->data[operand]) + i * link->step[operand];
  }
  TESSERA_HD static void next(const PlacedLink* link, i64 i, T* below, One<V, k>... top) {
    if (link->to) {
      T* const to = static_cast<T*>(link->to) + i * link->to_step;
      (tile::store(to + k * V::lanes, top), ...);
    }
    ++link;
    return reinterpret_cast<Run>(link->run)(link, i, below, top...);
  }

  static void load(const PlacedLink* link, i64 i, T* below, One<V, k>...) {
    const T* const from = place(link, 0, i);
    return next(link, i, below, at(from, k)...);
  }
  static void lay(const PlacedLink* link, i64 i, T* below, One<V, k>... top) {
    (tile::store(below + k * V::lanes, top), ...);
    return next(link, i, below + block, top...);
  }
  static void end(const PlacedLink*, i64, T*, One<V, k>...) {}

  template <class F, LinkForm form>
  static void one(const PlacedLink* link, i64 i, T* below, One<V, k>... top) {
    const F f = with_numbers<F>(link->numbers);
    if constexpr (form == LinkForm::stack) return next(link, i, below, f(top)...);
    const T* const from = place(link, 0, i);
    return next(link, i, below, f(at(from, k))...);
  }
  template <class F, LinkForm form>
  static void two(const PlacedLink* link, i64 i, T* below, One<V, k>... top) {
    const F f = with_numbers<F>(link->numbers);
    if constexpr (form == LinkForm::stack) {
      below -= block;
      return next(link, i, below, f(at(below, k), top)...);
    }
    const T* const from = place(link, 0, i);
    if constexpr (form == LinkForm::first_in_memory) return next(link, i, below, f(at(from, k), top)...);
    if constexpr (form == LinkForm::second_in_memory) return next(link, i, below, f(top, at(from, k))...);
    const T* const other = place(link, 1, i);
    return next(link, i, below, f(at(from, k), at(other, k))...);
  }
  template <LinkForm form>
  static void choose(const PlacedLink* link, i64 i, T* below, One<V, k>... top) {
    const T *const from = place(link, 0, i), *const other = place(link, 1, i);
    if constexpr (form == LinkForm::memory)
      return next(link, i, below, select(mask(top), at(from, k), at(other, k))...);
    below -= block;
    if constexpr (form == LinkForm::first_in_memory)
      return next(link, i, below, select(mask(at(below, k)), at(from, k), top)...);
    if constexpr (form == LinkForm::second_in_memory)
      return next(link, i, below, select(mask(at(below, k)), top, at(from, k))...);
    const T* const last = below;
    below -= block;
    return next(link, i, below, select(mask(at(below, k)), at(last, k), top)...);
  }
  template <class F, ChoiceForm form>
  static void choose_by(const PlacedLink* link, i64 i, T* below, One<V, k>... top) {
    const T *const second = place(link, 1, i), *const third = place(link, 2, i);
    const V bound = at(place(link, 0, i), 0);
    const auto chosen = [&](V about, V a, V b) {
      if constexpr (requires { F{}(about); }) return select(F{}(about), a, b);
      else return select(F{}(about, bound), a, b);
    };
    const T* laid[2];
    constexpr int rest = form == ChoiceForm::stack                                           ? 2
                         : form == ChoiceForm::memory || form >= ChoiceForm::asked_and_first ? 0
                                                                                             : 1;
    for (int n = 0; n < rest; ++n) laid[n] = below -= block;
    if constexpr (form == ChoiceForm::stack)
      return next(link, i, below, chosen(top, at(laid[1], k), at(laid[0], k))...);
    if constexpr (form == ChoiceForm::first_in_memory)
      return next(link, i, below, chosen(top, at(second, k), at(laid[0], k))...);
    if constexpr (form == ChoiceForm::second_in_memory)
      return next(link, i, below, chosen(top, at(laid[0], k), at(third, k))...);
    if constexpr (form == ChoiceForm::memory) return next(link, i, below, chosen(top, at(second, k), at(third, k))...);
    if constexpr (form == ChoiceForm::asked_in_memory)
      return next(link, i, below, chosen(at(second, k), at(laid[0], k), top)...);
    if constexpr (form == ChoiceForm::asked_and_first)
      return next(link, i, below, chosen(at(third, k), at(second, k), top)...);
    return next(link, i, below, chosen(at(second, k), top, at(third, k))...);
  }

  /// Questions and maps of masks, as values of lanes that are all bits or none.
  template <class F>
  struct Asked {
    V operator()(V v) const { return mask(F{}(v)); }
    V operator()(V a, V b) const { return mask(F{}(a, b)); }
  };
  struct Inverted {
    V operator()(V v) const { return mask(~mask(v)); }
  };
  struct Ones {
    V operator()(V v) const { return select(mask(v), V(T(1)), V(T(0))); }
  };
  struct And {
    V operator()(V a, V b) const { return mask(mask(a) & mask(b)); }
  };
  struct Or {
    V operator()(V a, V b) const { return mask(mask(a) | mask(b)); }
  };
  struct Xor {
    V operator()(V a, V b) const { return mask(mask(a) ^ mask(b)); }
  };
};

#define TESSERA_CASE(code, ...) \
  case code:                    \
    return __VA_ARGS__;
#define TESSERA_CASE_IN(form, name, ...) \
  TESSERA_CASE(MapLink::code_of(MapOp::name, LinkForm::form), __VA_ARGS__ LinkForm::form >)
#define TESSERA_OF_ONE(name, ...)                               \
  TESSERA_CASE_IN(stack, name, L::template one < __VA_ARGS__, ) \
  TESSERA_CASE_IN(memory, name, L::template one < __VA_ARGS__, )
#define TESSERA_IN_EACH_FORM(name, ...)                \
  TESSERA_CASE_IN(stack, name, __VA_ARGS__)            \
  TESSERA_CASE_IN(first_in_memory, name, __VA_ARGS__)  \
  TESSERA_CASE_IN(second_in_memory, name, __VA_ARGS__) \
  TESSERA_CASE_IN(memory, name, __VA_ARGS__)
#define TESSERA_LINK_1(name, Functor) TESSERA_OF_ONE(name, op::Functor)
#define TESSERA_LINK_2(name, Functor) TESSERA_IN_EACH_FORM(name, L::template two < op::Functor, )
#define TESSERA_LINK_M(name, Functor) TESSERA_IN_EACH_FORM(name, L::template two < typename L::Functor, )
#define TESSERA_QUESTION_1(name, Functor) TESSERA_OF_ONE(name, typename L::template Asked<op::Functor>)
#define TESSERA_QUESTION_2(name, Functor) \
  TESSERA_IN_EACH_FORM(name, L::template two < typename L::template Asked<op::Functor>, )
#define TESSERA_CHOICE_IN(form, name, Functor) \
  TESSERA_CASE(MapLink::choice_of(MapOp::name, ChoiceForm::form), L::template choose_by<op::Functor, ChoiceForm::form>)
#define TESSERA_CHOICE(name, Functor)                \
  TESSERA_CHOICE_IN(stack, name, Functor)            \
  TESSERA_CHOICE_IN(first_in_memory, name, Functor)  \
  TESSERA_CHOICE_IN(second_in_memory, name, Functor) \
  TESSERA_CHOICE_IN(memory, name, Functor)           \
  TESSERA_CHOICE_IN(asked_in_memory, name, Functor)  \
  TESSERA_CHOICE_IN(asked_and_first, name, Functor)  \
  TESSERA_CHOICE_IN(asked_and_second, name, Functor)

template <class L>
typename L::Run link_of(int code) {
  switch (code) {
    TESSERA_CASE(MapLink::load, L::load)
    TESSERA_CASE(MapLink::lay, L::lay)
    TESSERA_CASE(MapLink::end, L::end)
    TESSERA_CASE(MapLink::invert, L::template one<typename L::Inverted, LinkForm::stack>)
    TESSERA_CASE(MapLink::ones, L::template one<typename L::Ones, LinkForm::stack>)
    TESSERA_IN_EACH_FORM(where, L::template choose <)
    TESSERA_LINKS_OF_ONE(TESSERA_LINK_1)
    TESSERA_LINKS_WITH_NUMBERS(TESSERA_LINK_1)
    TESSERA_LINKS_OF_TWO(TESSERA_LINK_2)
    TESSERA_LINKS_OF_TWO_WITH_NUMBERS(TESSERA_LINK_2)
    TESSERA_QUESTIONS_OF_ONE(TESSERA_QUESTION_1)
    TESSERA_QUESTIONS_OF_TWO(TESSERA_QUESTION_2)
    TESSERA_LINKS_OF_MASKS(TESSERA_LINK_M)
    TESSERA_QUESTIONS_OF_ONE(TESSERA_CHOICE)
    TESSERA_QUESTIONS_OF_TWO(TESSERA_CHOICE)
    default:
      return nullptr;
  }
}

/// As many vectors as arguments are passed in registers, but no more than a strip's unit.
template <class T>
using LinksOf = Links<T, make_seq<min(8, strip_unit* int(sizeof(T)) / native_bytes)>>;

template <class T, int... k>
void run_links(const MapChain& chain, Seq<k...>) {
  using L = LinksOf<T>;
  alignas(64) T below[(MapChain::deepest - 1) * L::block];
  const auto run = reinterpret_cast<typename L::Run>(chain.begin->run);
  for (i64 i = 0; i < chain.count; i += L::block) {
    for (int n = 0; n < chain.nexts; ++n)
      for (i64 at = i * chain.next[n].size, end = at + L::block * chain.next[n].size; at < end; at += 64)
        __builtin_prefetch(chain.next[n].data + at, 0, 2);
    run(chain.begin, i, below, (void(k), typename L::V(T(0)))...);
  }
}
template <class T>
void run_chain(const MapChain& chain) {
  run_links<T>(chain, make_seq<LinksOf<T>::block / NativeVec<T>::lanes>{});
}

}  // namespace

void (*chain_code(Scalar compute))() {
  using Code = void (*)();
  if (compute == Scalar::f64) return reinterpret_cast<Code>(run_chain<double>);
  return compute == Scalar::f32 ? reinterpret_cast<Code>(run_chain<float>) : nullptr;
}
void (*link_code(Scalar compute, int code))() {
  using Code = void (*)();
  return compute == Scalar::f64 ? reinterpret_cast<Code>(link_of<LinksOf<double>>(code))
                                : reinterpret_cast<Code>(link_of<LinksOf<float>>(code));
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
