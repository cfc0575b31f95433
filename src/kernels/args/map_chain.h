// Maps that follow one another in registers: links of a chain, which a strip is taken through vectors at a time.
#pragma once

#include "elementwise.h"

// What a link may compute, each with its functor: maps of one value, of one with numbers, of two, of two with numbers;
// questions about one value and about two, which make masks; what masks are combined by.
// clang-format off
#define TESSERA_LINKS_OF_ONE(link) link(neg, Neg) link(abs, Abs) link(sign, Sign) link(square, Square) link(relu, Relu) \
  link(sqrt, Sqrt) link(reciprocal, Reciprocal) link(floor, Floor) link(trunc, Trunc)
#define TESSERA_LINKS_WITH_NUMBERS(link) link(clamp, Clamp) link(scale_shift, ScaleShift)
#define TESSERA_LINKS_OF_TWO(link) link(add, Add) link(sub, Sub) link(mul, Mul) link(div, Div) link(maximum, Maximum) \
  link(minimum, Minimum) link(relu_backward, ReluGrad) link(tanh_backward, TanhGrad) link(sigmoid_backward, SigmoidGrad)
#define TESSERA_LINKS_OF_TWO_WITH_NUMBERS(link) link(add_, AddScaled) link(clamp_backward, ClampGrad)
#define TESSERA_QUESTIONS_OF_ONE(link) link(isnan, IsNan) link(isinf, IsInf) link(isfinite, IsFinite)
#define TESSERA_QUESTIONS_OF_TWO(link) link(eq, Equal) link(ne, NotEqual) link(lt, Less) link(le, LessEqual) \
  link(gt, Greater) link(ge, GreaterEqual)
#define TESSERA_LINKS_OF_MASKS(link) link(logical_and, &) link(logical_or, |) link(logical_xor, ^)
// clang-format on

namespace tessera::TESSERA_KERNELS {

/// Where a link finds its operands: on a stack of three values, the first of them deepest, but for one in memory.
enum class LinkForm : unsigned char { stack, first_in_memory, second_in_memory };

/// Where a choice that a question decides finds what it chooses from; the value that is asked about lies on top, and
/// what it is compared with is in memory.
enum class ChoiceForm : unsigned char { memory, second_in_memory, first_in_memory, stack };

/// What is done to the stack: its top is loaded from or stored to a value, or a map takes its operands off and leaves
/// its result. `where` finds its condition on the stack.
struct MapLink {
  enum : int { choices = 256, load = 255, store = 254, invert = 253, ones = 252 };  // ones: a mask becomes 1 and 0
  static constexpr int code_of(MapOp op, LinkForm form = LinkForm::stack) {
    return static_cast<int>(op) * 3 + static_cast<int>(form);
  }
  static constexpr int choice_of(MapOp question, ChoiceForm form) {
    return choices + static_cast<int>(question) * 4 + static_cast<int>(form);
  }
  int code;
  short value[3];  // in memory, or -1: of a choice the one to compare with, and both others
  double numbers[2];
};
static_assert(static_cast<int>(MapOp::count) * 3 < MapLink::ones);

/// A link whose values are memory now: steps are 0 where they repeat.
struct PlacedLink {
  int code;
  void* data[3];
  long long step[3];
  double numbers[2];
};
/// Lines of memory that the next strip will read: `data`, and bytes of an element.
struct ReadNext {
  const char* data;
  long long size;
};
struct MapChain {
  static constexpr int most_links = 96, most_nexts = 16;
  const PlacedLink *begin, *end;
  long long count;  // elements, whole strip units
  const ReadNext* next;
  int nexts;
};

}  // namespace tessera::TESSERA_KERNELS
