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
#define TESSERA_LINKS_OF_MASKS(link) link(logical_and, And) link(logical_or, Or) link(logical_xor, Xor)
// clang-format on

namespace tessera::TESSERA_KERNELS {

/// Where a link finds its operands: in a register, the top of a stack whose rest is memory, on the stack below it, or
/// where values are. A link whose operands are all there makes a new top.
enum class LinkForm : unsigned char { stack, first_in_memory, second_in_memory, memory };

/// Where a choice finds what it chooses from. What its question is about lies on top, or in memory where the name says
/// so; then the top is what is chosen from, the second one unless that is in memory.
enum class ChoiceForm : unsigned char {
  stack,
  first_in_memory,
  second_in_memory,
  memory,
  asked_in_memory,
  asked_and_first,
  asked_and_second
};

/// What is done to the stack: its top is loaded, or laid down to make place, or a map takes its operands off and leaves
/// its result, which is stored, too, where `to` says so. `where` finds its condition on the stack. A choice is a
/// `where` whose condition is a question; what is compared with is in memory. The last link of a chain is `end`.
struct MapLink {
  static constexpr int forms = 4;
  enum : int {
    end = 507,
    load = 508,
    lay = 509,
    invert = 510,
    ones = 511,
    choices = 512
  };  // ones: a mask becomes 1 and 0
  static constexpr int code_of(MapOp op, LinkForm form = LinkForm::stack) {
    return static_cast<int>(op) * forms + static_cast<int>(form);
  }
  static constexpr int choice_of(MapOp question, ChoiceForm form) {
    return choices + static_cast<int>(question) * 8 + static_cast<int>(form);
  }
  int code;
  short value[3];  // in memory, or -1: of a choice the one to compare with, what it chooses from and is about
  short to;        // a value, or -1
  double numbers[2];
  void (*run)();  // of MapProgramTable
};
static_assert(static_cast<int>(MapOp::count) * MapLink::forms < MapLink::end);

/// A link whose values are memory now: steps are 0 where they repeat, or are of one block of vectors alone.
struct PlacedLink {
  void (*run)();
  void *data[3], *to;
  long long step[3], to_step;
  double numbers[2];
};
/// Lines of memory that the next strip will read: `data`, and bytes of an element.
struct ReadNext {
  const char* data;
  long long size;
};
struct MapChain {
  static constexpr int most_links = 96, most_nexts = 16, deepest = 6;  // with the top
  const PlacedLink* begin;
  long long count;  // elements, whole strip units
  const ReadNext* next;
  int nexts;
};

}  // namespace tessera::TESSERA_KERNELS
