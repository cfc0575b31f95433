#include "kernels/cpu/map_chains.h"

#include <algorithm>

namespace tessera::cpu_kernels {
namespace {

/// What a link may be of a step.
enum class LinkKind { none, map, question, of_masks, choice, mask_as_it_is, ones };

LinkKind kind_of(const MapStep& step, const std::vector<Scalar>& types) {
  if (step.links > 0 || step.polynomial.addends) return LinkKind::none;
  if (step.converts) {
    const Scalar from = types[static_cast<size_t>(step.from[0])], to = types[static_cast<size_t>(step.to)];
    if (from != Scalar::boolean) return LinkKind::none;
    return to == Scalar::i32                        ? LinkKind::mask_as_it_is
           : to == Scalar::f32 || to == Scalar::f64 ? LinkKind::ones
                                                    : LinkKind::none;
  }
  switch (step.op) {
#define TESSERA_LINK(name, ...) case MapOp::name:
    TESSERA_LINKS_OF_ONE(TESSERA_LINK)
    TESSERA_LINKS_WITH_NUMBERS(TESSERA_LINK)
    TESSERA_LINKS_OF_TWO(TESSERA_LINK)
    TESSERA_LINKS_OF_TWO_WITH_NUMBERS(TESSERA_LINK)
    return LinkKind::map;
    TESSERA_QUESTIONS_OF_ONE(TESSERA_LINK)
    TESSERA_QUESTIONS_OF_TWO(TESSERA_LINK)
    return LinkKind::question;
    TESSERA_LINKS_OF_MASKS(TESSERA_LINK)
    case MapOp::logical_not:
      return LinkKind::of_masks;
    case MapOp::where:
      return LinkKind::choice;
#undef TESSERA_LINK
    default:
      return LinkKind::none;
  }
}

bool makes_mask(LinkKind kind) {
  return kind == LinkKind::question || kind == LinkKind::of_masks || kind == LinkKind::mask_as_it_is;
}
/// Whether operand k is a mask.
bool takes_mask(LinkKind kind, int k) {
  return kind == LinkKind::of_masks || kind == LinkKind::mask_as_it_is || kind == LinkKind::ones ||
         (kind == LinkKind::choice && k == 0);
}

class ChainMaker {
 public:
  ChainMaker(MapSteps& program, size_t first, int outputs) : p_(program), first_(first), outputs_(outputs) {
    kinds_.resize(p_.steps.size(), LinkKind::none);
    for (size_t i = first; i < p_.steps.size(); ++i) kinds_[i] = kind_of(p_.steps[i], p_.types);
  }

  void join() {
    while (leave_out_masks_for_others()) continue;
    std::vector<MapStep> joined(p_.steps.begin(), p_.steps.begin() + static_cast<std::ptrdiff_t>(first_));
    for (size_t i = first_; i < p_.steps.size();) {
      const size_t end = end_of_run(i);
      const bool alone = end - i < 2 && !makes_mask(kinds_[i]) && !takes_mask(kinds_[i], 0);
      if (alone) joined.push_back(step(i));
      else chain(i, end, joined);
      i = std::max(end, i + 1);
    }
    p_.steps = std::move(joined);
  }

 private:
  using Steps = std::vector<MapStep>;
  Steps::const_iterator at(size_t i) const { return p_.steps.begin() + static_cast<std::ptrdiff_t>(i); }
  const MapStep& step(size_t i) const { return p_.steps[i]; }

  /// The type that a step computes in; none of steps of masks alone.
  bool computes_in(size_t i, Scalar& type) const {
    if (kinds_[i] == LinkKind::of_masks || kinds_[i] == LinkKind::mask_as_it_is) return false;
    type = kinds_[i] == LinkKind::ones ? p_.types[static_cast<size_t>(step(i).to)] : step(i).compute;
    return true;
  }
  size_t end_of_run(size_t begin) const {
    Scalar type{};
    bool known = false;
    size_t i = begin;
    for (; i < p_.steps.size() && kinds_[i] != LinkKind::none; ++i) {
      Scalar own{};
      if (!computes_in(i, own)) continue;
      if (known ? own != type : !map_program_table().chain(own)) break;
      type = own;
      known = true;
    }
    return known ? i : begin;
  }

  // A mask is all bits or none in lanes of the type that its chain computes in, which is no bool: its readers are in
  // chains of that type, and know it.
  bool leave_out_masks_for_others() {
    std::vector<Scalar> type_of(p_.steps.size(), Scalar::boolean);
    std::vector<size_t> maker(p_.values.size(), none);
    for (size_t i = first_; i < p_.steps.size();) {
      const size_t end = end_of_run(i);
      if (end == i) kinds_[i++] = LinkKind::none;
      for (Scalar type = type_of_run(i, end); i < end; ++i) type_of[i] = type;
    }
    std::vector<bool> drop(p_.steps.size(), false);
    for (size_t i = first_; i < p_.steps.size(); ++i) {
      if (makes_mask(kinds_[i]) && step(i).to < outputs_) drop[i] = true;
      for (short k = 0; k < step(i).inputs; ++k) {
        const size_t made = maker[static_cast<size_t>(step(i).from[k])];
        const bool is_mask = made != none && makes_mask(kinds_[made]);
        const bool alike = made != none && kinds_[i] != LinkKind::none && type_of[made] == type_of[i];
        if (is_mask && !(alike && takes_mask(kinds_[i], k))) drop[made] = true;
        if (kinds_[i] != LinkKind::none && takes_mask(kinds_[i], k) && !(is_mask && alike)) drop[i] = true;
      }
      maker[static_cast<size_t>(step(i).to)] = i;
    }
    bool any = false;
    for (size_t i = first_; i < p_.steps.size(); ++i)
      if (drop[i] && kinds_[i] != LinkKind::none) kinds_[i] = LinkKind::none, any = true;
    return any;
  }
  Scalar type_of_run(size_t begin, size_t end) const {
    Scalar type = Scalar::boolean;
    for (size_t i = begin; i < end; ++i) computes_in(i, type);
    return type;
  }

  // ---- one run

  void chain(size_t begin, size_t end, Steps& joined) {
    maker_.assign(p_.values.size(), none);
    for (size_t i = begin; i < end; ++i) maker_[static_cast<size_t>(step(i).to)] = i;
    find_roots(begin, end);
    std::vector<std::vector<MapLink>> parts(1);
    for (size_t i = begin; i < end; ++i) {
      if (!root_[static_cast<size_t>(step(i).to)]) continue;
      links_.clear();
      filled_ = false;
      add(i);
      links_.back().to = step(i).to;
      if (parts.back().size() + links_.size() >= MapChain::most_links) parts.emplace_back();
      append(parts.back());
    }
    const Scalar type = type_of_run(begin, end);
    for (size_t i = begin; i < end; ++i)
      if (makes_mask(kinds_[i])) keep_as(step(i).to, type);
    for (auto& links : parts) {
      links.push_back({MapLink::end, {-1, -1, -1}, -1, {}, {}});
      for (MapLink& link : links) link.run = map_program_table().link(type, link.code);
      MapStep made{};
      made.code = map_program_table().chain(type);
      made.links = static_cast<int>(links.size());
      made.to = static_cast<short>(p_.chains.size());
      p_.chains.push_back(std::move(links));
      joined.push_back(made);
    }
  }
  void keep_as(short v, Scalar type) {
    p_.types[static_cast<size_t>(v)] = type;
    p_.values[static_cast<size_t>(v)].size = type == Scalar::f64 ? 8 : 4;
  }

  // What is on top of the stack need not be loaded again.
  void append(std::vector<MapLink>& part) {
    MapLink& first = links_.front();
    const short top = part.empty() ? short(-1) : part.back().to;
    bool again = false;
    if (top >= 0 && first.code == MapLink::load) {
      again = first.value[0] == top && links_.size() > 1;
    } else if (top >= 0 && first.code < MapLink::end && first.code % MapLink::forms == kMemory) {
      if (first.value[0] == top) take_top(first, first.value[1] < 0 ? LinkForm::stack : LinkForm::second_in_memory);
      else if (first.value[1] == top) take_top(first, LinkForm::first_in_memory);
    }
    part.insert(part.end(), links_.begin() + again, links_.end());
  }
  static constexpr int kMemory = static_cast<int>(LinkForm::memory);
  static void take_top(MapLink& link, LinkForm form) {
    link.code += static_cast<int>(form) - kMemory;
    if (form != LinkForm::first_in_memory) link.value[0] = link.value[1];
    link.value[1] = -1;
  }

  // What is read outside or more than once has memory, and what the stack has no room for.
  void find_roots(size_t begin, size_t end) {
    std::vector<int> reads(p_.values.size(), 0);
    std::vector<bool> outside(p_.values.size(), false);
    for (size_t i = first_; i < p_.steps.size(); ++i)
      for (short k = 0; k < step(i).inputs; ++k) {
        const auto v = static_cast<size_t>(step(i).from[k]);
        ++reads[v];
        if (i < begin || i >= end) outside[v] = true;
      }
    root_.assign(p_.values.size(), true);
    std::vector<Tree> trees(p_.values.size());
    for (size_t i = begin; i < end; ++i) {
      const auto to = static_cast<size_t>(step(i).to);
      trees[to] = tree_of(i, trees);
      root_[to] = step(i).to < outputs_ || outside[to] || (reads[to] != 1 && !is_question_of_memory(i));
    }
  }
  // Which is asked again wherever it is read.
  bool is_question_of_memory(size_t i) const {
    if (kinds_[i] != LinkKind::question) return false;
    const MapStep& s = step(i);
    return is_memory(static_cast<size_t>(s.from[0])) && is_memory(static_cast<size_t>(s.from[s.inputs - 1]));
  }
  /// What it takes to have a value on top of the stack.
  struct Tree {
    int depth = 1, links = 2;
  };
  Tree tree_of(size_t i, const std::vector<Tree>& trees) {
    constexpr int deepest = MapChain::deepest, longest = MapChain::most_links / 4;
    int below = 0;
    Tree all;
    const auto place = [&](short value, bool takes_room) {
      const auto v = static_cast<size_t>(value);
      if (!is_memory(v) && (below + trees[v].depth > deepest || trees[v].links > longest)) root_[v] = true;
      const bool tree = !is_memory(v);
      all.depth = std::max(all.depth, below + (tree ? trees[v].depth : takes_room));
      all.links += tree ? trees[v].links : 2;
      below += tree || takes_room;
    };
    const MapStep& s = step(i);
    if (kinds_[i] != LinkKind::choice) {
      for (short k = 0; k < s.inputs; ++k) place(s.from[k], false);
      return all;
    }
    const MapStep* const asked = question_of(s);
    if (!asked) place(s.from[0], true);
    for (const short v : {s.from[1], s.from[2]}) place(v, false);
    if (asked) place(asked->from[0], true);
    return all;
  }
  bool is_memory(size_t v) const { return maker_[v] == none || root_[v]; }

  // What leaves a step's result on top of the stack.
  void add(size_t i) {
    const MapStep& s = step(i);
    if (kinds_[i] == LinkKind::choice) return add_choice(s);
    const bool first = is_memory(static_cast<size_t>(s.from[0]));
    if (kinds_[i] == LinkKind::mask_as_it_is) return push(s.from[0]);
    if (kinds_[i] == LinkKind::ones || s.op == MapOp::logical_not) {
      push(s.from[0]);
      return link(kinds_[i] == LinkKind::ones ? MapLink::ones : MapLink::invert);
    }
    const bool second = s.inputs == 1 || is_memory(static_cast<size_t>(s.from[1]));
    if (first && second) {
      make_place();
      link(MapLink::code_of(s.op, LinkForm::memory), s.from[0], s.inputs == 1 ? short(-1) : s.from[1]);
    } else {
      if (!first) push(s.from[0]);
      if (!second) push(s.from[1]);
      const LinkForm form = first                     ? LinkForm::first_in_memory
                            : second && s.inputs == 2 ? LinkForm::second_in_memory
                                                      : LinkForm::stack;
      link(MapLink::code_of(s.op, form), first ? s.from[0] : second && s.inputs == 2 ? s.from[1] : short(-1));
    }
    std::copy(s.numbers, s.numbers + 2, links_.back().numbers);
  }
  void add_choice(const MapStep& s) {
    const short a = s.from[1], b = s.from[2];
    const bool first = is_memory(static_cast<size_t>(a)), second = is_memory(static_cast<size_t>(b));
    const MapStep* const asked = question_of(s);
    if (!asked) push(s.from[0]);
    if (!first) push(a);
    if (!second) push(b);
    if (!asked) {
      const LinkForm form = first    ? second ? LinkForm::memory : LinkForm::first_in_memory
                            : second ? LinkForm::second_in_memory
                                     : LinkForm::stack;
      return link(MapLink::code_of(MapOp::where, form),
                  first    ? a
                  : second ? b
                           : short(-1),
                  first && second ? b : short(-1));
    }
    const short about = asked->from[0], bound = asked->inputs == 2 ? asked->from[1] : short(-1);
    const auto choose = [&](ChoiceForm form, short from, short other) {
      link(MapLink::choice_of(asked->op, form), bound, from, other);
    };
    if (is_memory(static_cast<size_t>(about)) && !(first && second)) {
      if (first) return choose(ChoiceForm::asked_and_first, a, about);
      return choose(second ? ChoiceForm::asked_and_second : ChoiceForm::asked_in_memory, about, second ? b : short(-1));
    }
    push(about);
    const ChoiceForm form = first    ? second ? ChoiceForm::memory : ChoiceForm::first_in_memory
                            : second ? ChoiceForm::second_in_memory
                                     : ChoiceForm::stack;
    choose(form, first ? a : short(-1), second ? b : short(-1));
  }
  // The question that decides a choice alone, if what it compares with is one value for all.
  const MapStep* question_of(const MapStep& s) const {
    const auto mask = static_cast<size_t>(s.from[0]);
    if (is_memory(mask) || kinds_[maker_[mask]] != LinkKind::question) return nullptr;
    const MapStep& asked = step(maker_[mask]);
    return asked.inputs == 1 || p_.values[static_cast<size_t>(asked.from[1])].repeats ? &asked : nullptr;
  }
  void link(int code, short first = -1, short second = -1, short third = -1) {
    links_.push_back({code, {first, second, third}, -1, {}, {}});
    filled_ = true;
  }
  // For a new top.
  void make_place() {
    if (filled_) link(MapLink::lay);
  }
  void push(short v) {
    if (!is_memory(static_cast<size_t>(v))) return add(maker_[static_cast<size_t>(v)]);
    make_place();
    link(MapLink::load, v);
  }

  static constexpr size_t none = ~size_t{0};
  MapSteps& p_;
  const size_t first_;
  const int outputs_;
  std::vector<LinkKind> kinds_;
  std::vector<size_t> maker_;  // of the run's values, their steps
  std::vector<bool> root_;     // whether a value has memory
  std::vector<MapLink> links_;
  bool filled_ = false;  // whether there is a top
};

}  // namespace

void join_chains(MapSteps& program, size_t first, int outputs) { ChainMaker(program, first, outputs).join(); }

}  // namespace tessera::cpu_kernels
