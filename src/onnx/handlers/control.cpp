// Branches, loops, sequences and optionals.
#include <algorithm>
#include <cstdint>
#include <functional>

#include "onnx/handler.h"
#include "tessera/ops.h"

namespace tessera::onnx {
namespace {

bool truth(const Call& c, const Value& value) {
  const Tensor& t = value.tensor();
  if (t.numel() != 1) c.fail("a condition of {}", describe(t));
  return t.item() != 0;
}
Tensor number(int64_t value) { return tensor(std::vector<int64_t>{value}, {}); }

Values branch(const Call& c) { return c.run(truth(c, c.value(0)) ? "then_branch" : "else_branch", {}); }

/// Turns as one tensor; without any, of no length.
Tensor stacked(const Call& c, const Values& turns) {
  if (turns.empty()) return zeros({0});
  Tensors parts;
  for (const Value& v : turns) parts.push_back(v.tensor());
  for (const Tensor& t : parts)
    if (t.shape() != parts[0].shape()) c.fail("turns give {} and {}", describe(parts[0]), describe(t));
  return stack(parts, 0);
}

Values loop(const Call& c) {
  const bool counted = c.has(0);
  const int64_t turns = counted ? c.whole(0, INT64_MIN, INT64_MAX) : INT64_MAX;
  bool goes_on = !c.has(1) || truth(c, c.value(1));
  const size_t states = c.inputs() > 2 ? c.inputs() - 2 : 0;
  Values state;
  for (size_t i = 0; i < states; ++i) state.push_back(c.value(i + 2));
  const size_t scans = c.outputs() > states ? c.outputs() - states : 0;
  std::vector<Values> gathered(scans);
  for (int64_t turn = 0; goes_on && turn < turns; ++turn) {
    c.count_turn();
    Values in{number(turn), full({}, 1, Bool, cpu())};
    in.insert(in.end(), state.begin(), state.end());
    Values out = c.run("body", in);
    if (out.size() < 1 + states + scans) c.fail("the body gives {} values, not {}", out.size(), 1 + states + scans);
    goes_on = out[0].is_absent() || truth(c, out[0]);
    for (size_t i = 0; i < states; ++i) state[i] = std::move(out[1 + i]);
    for (size_t i = 0; i < scans; ++i) gathered[i].push_back(std::move(out[1 + states + i]));
  }
  for (const Values& g : gathered) state.emplace_back(stacked(c, g));
  return state;
}

/// The i-th of a list of attributes, or 0.
int64_t entry_of(const std::vector<int64_t>& list, size_t i) { return i < list.size() ? list[i] : 0; }

Values scan(const Call& c) {
  const bool old = c.opset() < 9;  // with a batch, and lengths of sequences as its first input
  const int64_t scanned_inputs = c.integer("num_scan_inputs", 0);
  const size_t first = old ? 1 : 0, most = c.inputs() - std::min(c.inputs(), first);
  if (scanned_inputs < 1 || static_cast<uint64_t>(scanned_inputs) > most) c.fail("{} inputs to scan", scanned_inputs);
  const auto inputs = static_cast<size_t>(scanned_inputs);
  if (old && c.has(0)) c.refuse("lengths of sequences are not supported");
  const size_t states = c.inputs() - first - inputs;
  const auto in_axes = c.integers("scan_input_axes"), out_axes = c.integers("scan_output_axes");
  const auto in_ways = c.integers(old ? "directions" : "scan_input_directions"),
             out_ways = c.integers("scan_output_directions");
  const size_t scans = c.outputs() - std::min(c.outputs(), states);

  const auto pass = [&](const std::function<Tensor(size_t)>& input) {
    Values state;
    for (size_t i = 0; i < states; ++i) state.emplace_back(input(i));
    std::vector<Tensor> scanned;
    for (size_t i = 0; i < inputs; ++i) {
      const Tensor x = input(states + i);
      const int64_t axis = entry_of(in_axes, i);
      if (x.dim() == 0) c.fail("{} has no dim to scan", describe(x));
      scanned.push_back(entry_of(in_ways, i) ? flip(x, {axis}) : x);
      if (x.size(axis) != scanned[0].size(entry_of(in_axes, 0))) c.fail("inputs are of different lengths");
    }
    const int64_t turns = scanned[0].size(entry_of(in_axes, 0));
    std::vector<Values> gathered(scans);
    for (int64_t turn = 0; turn < turns; ++turn) {
      c.count_turn();
      Values in = state;
      for (size_t i = 0; i < inputs; ++i) in.emplace_back(select(scanned[i], entry_of(in_axes, i), turn));
      Values out = c.run("body", in);
      if (out.size() < states + scans) c.fail("the body gives {} values, not {}", out.size(), states + scans);
      for (size_t i = 0; i < states; ++i) state[i] = std::move(out[i]);
      for (size_t i = 0; i < scans; ++i) gathered[i].push_back(std::move(out[states + i]));
    }
    for (size_t i = 0; i < scans; ++i) {
      Tensor all = stacked(c, gathered[i]);
      if (entry_of(out_ways, i)) all = flip(all, {0});
      const int64_t axis = entry_of(out_axes, i), to = axis < 0 ? axis + all.dim() : axis;
      Dims order;
      for (int64_t d = 1; d < all.dim(); ++d) order.push_back(d);
      if (to < 0 || to > static_cast<int64_t>(order.size())) c.fail("axis {} is outside", axis);
      order.insert(order.begin() + to, 0);
      state.emplace_back(permute(all, order));
    }
    return state;
  };
  if (!old) return pass([&](size_t i) { return c.in(i); });
  Values out;
  const int64_t batch = c.in(1).size(0);
  std::vector<Tensors> parts(states + scans);
  for (int64_t b = 0; b < batch; ++b) {
    const Values one = pass([&](size_t i) { return select(c.in(i + 1), 0, b); });
    for (size_t i = 0; i < parts.size(); ++i) parts[i].push_back(one[i].tensor());
  }
  for (const Tensors& p : parts) out.emplace_back(stack(p, 0));
  return out;
}

// ---- sequences

int64_t position(const Call& c, size_t i, int64_t size, int64_t otherwise) {
  if (!c.has(i)) return otherwise;
  int64_t at = c.whole(i, -size, size);
  if (at < 0) at += size;
  if (at < 0 || at > size) c.fail("position {} is outside of a sequence of {}", at, size);
  return at;
}
const Values& sequence_in(const Call& c, size_t i) { return c.value(i).sequence(); }

Values sequence_empty(const Call&) { return {Value(Values())}; }
void check_element(const Call& c, const Values& sequence, const Tensor& more) {
  if (!sequence.empty() && sequence[0].tensor().dtype() != more.dtype())
    c.fail("{} in a sequence of {}", describe(more), describe(sequence[0]));
}
Values sequence_construct(const Call& c) {
  Values all;
  for (size_t i = 0; i < c.inputs(); ++i) {
    check_element(c, all, c.in(i));
    all.emplace_back(c.in(i));
  }
  return {Value(std::move(all))};
}
Values sequence_at(const Call& c) {
  const Values& all = sequence_in(c, 0);
  const int64_t size = static_cast<int64_t>(all.size()), at = position(c, 1, size, 0);
  if (at >= size) c.fail("position {} is outside of a sequence of {}", at, size);
  return {all[static_cast<size_t>(at)]};
}
Values sequence_insert(const Call& c) {
  Values all = sequence_in(c, 0);
  const int64_t size = static_cast<int64_t>(all.size());
  check_element(c, all, c.in(1));
  all.insert(all.begin() + position(c, 2, size, size), c.in(1));
  return {Value(std::move(all))};
}
Values sequence_erase(const Call& c) {
  Values all = sequence_in(c, 0);
  const int64_t size = static_cast<int64_t>(all.size()), at = position(c, 1, size, size - 1);
  if (at < 0 || at >= size) c.fail("position {} is outside of a sequence of {}", at, size);
  all.erase(all.begin() + at);
  return {Value(std::move(all))};
}
Values sequence_length(const Call& c) { return {number(static_cast<int64_t>(sequence_in(c, 0).size()))}; }
Values sequence_map(const Call& c) {
  const Values& first = sequence_in(c, 0);
  std::vector<Values> out(c.outputs());
  for (size_t turn = 0; turn < first.size(); ++turn) {
    Values in;
    for (size_t i = 0; i < c.inputs(); ++i) {
      const Value& v = c.value(i);
      if (v.is_sequence() && v.sequence().size() != first.size()) c.fail("sequences are of different lengths");
      in.push_back(v.is_sequence() ? v.sequence()[turn] : v);
    }
    Values one = c.run("body", in);
    if (one.size() < out.size()) c.fail("the body gives {} values, not {}", one.size(), out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i].emplace_back(one[i].tensor());
  }
  Values sequences;
  for (Values& all : out) sequences.emplace_back(std::move(all));
  return sequences;
}
constexpr int64_t kMostParts = int64_t{1} << 24;  // a view may repeat its elements without end
Values split_to_sequence(const Call& c) {
  const Tensor& x = c.in(0);
  const int64_t axis = c.axis(0, x.dim()), size = x.size(axis);
  std::vector<int64_t> sizes;
  bool keeps = true;
  if (!c.has(1)) {
    keeps = c.flag("keepdims", true);
    if (size > kMostParts) c.fail("{} parts", size);
    sizes.assign(static_cast<size_t>(size), 1);
  } else if (c.in(1).dim() == 0) {
    const int64_t each = c.whole(1, 1, INT64_MAX);
    if ((size - 1) / each > kMostParts) c.fail("{} parts of {}", (size - 1) / each + 1, each);
    for (int64_t at = 0; at < size; at += each) sizes.push_back(std::min(each, size - at));
  } else {
    sizes = c.ints(1);
  }
  Values all;
  int64_t at = 0;
  for (const int64_t n : sizes) {
    if (n < 0 || n > size - at) c.fail("parts are more than the {} along dim {}", size, axis);
    const Tensor part = slice(x, axis, at, at + n);
    all.emplace_back(keeps ? part : squeeze(part, axis));
    at += n;
  }
  if (at != size) c.fail("parts are less than the {} along dim {}", size, axis);
  return {Value(std::move(all))};
}
Values concat_from_sequence(const Call& c) {
  Tensors parts;
  for (const Value& v : sequence_in(c, 0)) parts.push_back(v.tensor());
  if (parts.empty()) c.fail("a sequence of nothing");
  const int64_t axis = c.integer("axis", 0);
  return {c.flag("new_axis", false) ? stack(parts, axis) : concat(parts, axis)};
}

// ---- optionals

Values optional(const Call& c) { return {c.value(0)}; }
Values optional_has(const Call& c) { return {full({}, c.has(0), Bool, cpu())}; }
Values optional_get(const Call& c) {
  if (!c.has(0)) c.fail("the optional holds nothing");
  return {c.value(0)};
}

constexpr Entry entries[] = {
    {"ConcatFromSequence", 11, concat_from_sequence},
    {"If", 1, branch},
    {"Loop", 1, loop},
    {"Optional", 15, optional},
    {"OptionalGetElement", 15, optional_get},
    {"OptionalHasElement", 15, optional_has},
    {"Scan", 8, scan},
    {"SequenceAt", 11, sequence_at},
    {"SequenceConstruct", 11, sequence_construct},
    {"SequenceEmpty", 11, sequence_empty},
    {"SequenceErase", 11, sequence_erase},
    {"SequenceInsert", 11, sequence_insert},
    {"SequenceLength", 11, sequence_length},
    {"SequenceMap", 17, sequence_map},
    {"SplitToSequence", 11, split_to_sequence},
};

}  // namespace

std::span<const Entry> control_handlers() { return entries; }

}  // namespace tessera::onnx
