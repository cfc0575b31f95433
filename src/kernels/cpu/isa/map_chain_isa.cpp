#include "kernels/args/map_chain.h"

#include "strips.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

template <class T>
struct ChainStack {
  using V = NativeVec<T>;
  using M = MaskOf<T, V::lanes>;
  static constexpr int ways = 4;
  V top[ways] = {}, second[ways] = {}, third[ways] = {};

  TESSERA_HD static V mask(M m) { return vec_bits<V>(m); }
  TESSERA_HD static M mask(V v) { return vec_bits<M>(v); }

  TESSERA_HD void push(const T* from) {
    TESSERA_UNROLL
    for (int k = 0; k < ways; ++k) {
      third[k] = second[k];
      second[k] = top[k];
      top[k] = load<V>(from + k * V::lanes);
    }
  }
  TESSERA_HD void store_top(T* to) const {
    TESSERA_UNROLL
    for (int k = 0; k < ways; ++k) {
      store(to + k * V::lanes, top[k]);
    }
  }
  template <class F>
  TESSERA_HD void one(const F& f) {
    TESSERA_UNROLL
    for (int k = 0; k < ways; ++k) {
      top[k] = f(top[k]);
    }
  }
  template <class F>
  TESSERA_HD void two(LinkForm form, const T* from, const F& f) {
    TESSERA_UNROLL
    for (int k = 0; k < ways; ++k) {
      if (form == LinkForm::stack) top[k] = f(second[k], top[k]), second[k] = third[k];
      else if (form == LinkForm::first_in_memory) top[k] = f(load<V>(from + k * V::lanes), top[k]);
      else top[k] = f(top[k], load<V>(from + k * V::lanes));
    }
  }
  TESSERA_HD void choose(LinkForm form, const T* from) {
    TESSERA_UNROLL
    for (int k = 0; k < ways; ++k) {
      if (form == LinkForm::stack) {
        top[k] = select(mask(third[k]), second[k], top[k]);
      } else {
        const V other = load<V>(from + k * V::lanes);
        top[k] = form == LinkForm::first_in_memory ? select(mask(second[k]), other, top[k])
                                                   : select(mask(second[k]), top[k], other);
        second[k] = third[k];
      }
    }
  }
  template <class F>
  TESSERA_HD void choose_by(ChoiceForm form, const T* bound, const T* from, const T* other, const F& question) {
    TESSERA_UNROLL
    for (int k = 0; k < ways; ++k) {
      const bool first = form == ChoiceForm::memory || form == ChoiceForm::first_in_memory;
      const bool last = form == ChoiceForm::memory || form == ChoiceForm::second_in_memory;
      const V a = first ? load<V>(from + k * V::lanes) : last ? second[k] : third[k];
      const V b = last ? load<V>(other + k * V::lanes) : second[k];
      if constexpr (requires { question(top[k]); }) top[k] = select(question(top[k]), a, b);
      else top[k] = select(question(top[k], load<V>(bound + k * V::lanes)), a, b);
      if (first != last) second[k] = third[k];
    }
  }
};

template <class F>
TESSERA_HD F with_numbers(const double (&numbers)[2]) {
  struct Bytes {
    alignas(F) char at[sizeof(F)];
  } bytes;
  __builtin_memcpy(bytes.at, numbers, sizeof(F));
  return bit_cast<F>(bytes);
}

#define TESSERA_IN_EACH_FORM(name, ...)                           \
  case MapLink::code_of(MapOp::name, LinkForm::stack):            \
    stack.two(LinkForm::stack, at, __VA_ARGS__);                  \
    break;                                                        \
  case MapLink::code_of(MapOp::name, LinkForm::first_in_memory):  \
    stack.two(LinkForm::first_in_memory, at, __VA_ARGS__);        \
    break;                                                        \
  case MapLink::code_of(MapOp::name, LinkForm::second_in_memory): \
    stack.two(LinkForm::second_in_memory, at, __VA_ARGS__);       \
    break;
#define TESSERA_LINK_1(name, Functor) \
  case MapLink::code_of(MapOp::name): \
    stack.one(op::Functor{});         \
    break;
#define TESSERA_LINK_1N(name, Functor)                   \
  case MapLink::code_of(MapOp::name):                    \
    stack.one(with_numbers<op::Functor>(link->numbers)); \
    break;
#define TESSERA_LINK_2(name, Functor) TESSERA_IN_EACH_FORM(name, op::Functor{})
#define TESSERA_LINK_2N(name, Functor) TESSERA_IN_EACH_FORM(name, with_numbers<op::Functor>(link->numbers))
#define TESSERA_QUESTION_1(name, Functor)                         \
  case MapLink::code_of(MapOp::name):                             \
    stack.one([](V v) { return Stack::mask(op::Functor{}(v)); }); \
    break;
#define TESSERA_QUESTION_2(name, Functor) \
  TESSERA_IN_EACH_FORM(name, [](V a, V b) { return Stack::mask(op::Functor{}(a, b)); })
#define TESSERA_CHOICE_IN(form, name, ...)                                  \
  case MapLink::choice_of(MapOp::name, ChoiceForm::form):                   \
    stack.choose_by(ChoiceForm::form, at, place(1), place(2), __VA_ARGS__); \
    break;
#define TESSERA_CHOICE(name, ...)                        \
  TESSERA_CHOICE_IN(memory, name, __VA_ARGS__)           \
  TESSERA_CHOICE_IN(second_in_memory, name, __VA_ARGS__) \
  TESSERA_CHOICE_IN(first_in_memory, name, __VA_ARGS__)  \
  TESSERA_CHOICE_IN(stack, name, __VA_ARGS__)
#define TESSERA_CHOICE_1(name, Functor) TESSERA_CHOICE(name, [](V v) { return op::Functor{}(v); })
#define TESSERA_CHOICE_2(name, Functor) TESSERA_CHOICE(name, op::Functor{})
#define TESSERA_LINK_M(name, sign) \
  TESSERA_IN_EACH_FORM(name, [](V a, V b) { return Stack::mask(Stack::mask(a) sign Stack::mask(b)); })

template <class T>
void run_chain(const MapChain& chain) {
  using Stack = ChainStack<T>;
  using V = typename Stack::V;
  constexpr i64 block = Stack::ways * V::lanes;
  for (i64 i = 0; i < chain.count; i += block) {
    Stack stack;
    for (int k = 0; k < chain.nexts; ++k)
      for (i64 at = i * chain.next[k].size, end = at + block * chain.next[k].size; at < end; at += 64)
        __builtin_prefetch(chain.next[k].data + at, 0, 2);
    for (const PlacedLink* link = chain.begin; link != chain.end; ++link) {
      const auto place = [&](int k) { return static_cast<T*>(link->data[k]) + i * link->step[k]; };
      T* const at = place(0);
      switch (link->code) {
        case MapLink::load:
          stack.push(at);
          break;
        case MapLink::store:
          stack.store_top(at);
          break;
        case MapLink::invert:
          stack.one([](V v) { return Stack::mask(~Stack::mask(v)); });
          break;
        case MapLink::ones:
          stack.one([](V v) { return select(Stack::mask(v), V(T(1)), V(T(0))); });
          break;
        case MapLink::code_of(MapOp::where, LinkForm::stack):
          stack.choose(LinkForm::stack, at);
          break;
        case MapLink::code_of(MapOp::where, LinkForm::first_in_memory):
          stack.choose(LinkForm::first_in_memory, at);
          break;
        case MapLink::code_of(MapOp::where, LinkForm::second_in_memory):
          stack.choose(LinkForm::second_in_memory, at);
          break;
          TESSERA_LINKS_OF_ONE(TESSERA_LINK_1)
          TESSERA_LINKS_WITH_NUMBERS(TESSERA_LINK_1N)
          TESSERA_LINKS_OF_TWO(TESSERA_LINK_2)
          TESSERA_LINKS_OF_TWO_WITH_NUMBERS(TESSERA_LINK_2N)
          TESSERA_QUESTIONS_OF_ONE(TESSERA_QUESTION_1)
          TESSERA_QUESTIONS_OF_TWO(TESSERA_QUESTION_2)
          TESSERA_LINKS_OF_MASKS(TESSERA_LINK_M)
          TESSERA_QUESTIONS_OF_ONE(TESSERA_CHOICE_1)
          TESSERA_QUESTIONS_OF_TWO(TESSERA_CHOICE_2)
        default:
          __builtin_unreachable();
      }
    }
  }
}

}  // namespace

void (*chain_code(Scalar compute))() {
  using Code = void (*)();
  if (compute == Scalar::f64) return reinterpret_cast<Code>(run_chain<double>);
  return compute == Scalar::f32 ? reinterpret_cast<Code>(run_chain<float>) : nullptr;
}

}  // namespace tessera::cpu_kernels::TESSERA_ISA
