// Runs graphs, step after step.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/capture_state.h"
#include "core/util/allocation_limit.h"
#include "onnx/graph.h"
#include "onnx/handler.h"
#include "tessera/autograd.h"
#include "tessera/interrupt.h"
#include "tessera/observer.h"

namespace tessera::onnx {
namespace {

// Bytes that are kept although the file does not hold them, and how many for each that it does hold.
constexpr int64_t kLargestFolded = 64 << 20, kMostFolded = 8;

/// Of the tensors in attributes.
int64_t bytes_of(const Step& step) {
  size_t all = 0;
  for (const AttributeProto& a : step.attributes)
    if (a.t)
      all += a.t->raw_data.size() + 4 * a.t->float_data.size() + 8 * a.t->double_data.size() +
             8 * (a.t->int32_data.size() + a.t->int64_data.size() + a.t->uint64_data.size());
  return static_cast<int64_t>(all);
}

// Whether what the step gives follows from values alone that are there, also while a function is captured.
bool is_known(const Step& step, const Values& in) {
  return step.entry && !step.entry->random && step.bodies.empty() &&
         std::all_of(in.begin(), in.end(),
                     [](const Value& v) { return v.is_absent() || (v.is_tensor() && !v.tensor().device().meta); });
}

/// How many inputs of steps, inner graphs and outputs each value is.
std::vector<int> count_uses(const Graph& graph) {
  std::vector<int> uses(static_cast<size_t>(graph.slots));
  const auto use = [&](int slot) {
    if (slot >= 0) ++uses[static_cast<size_t>(slot)];
  };
  for (const Step& step : graph.steps) for_each_read(step, use);
  for (const int slot : graph.output_slots) use(slot);
  for (const int slot : graph.input_slots) use(slot);
  return uses;
}

void take_inputs(const Graph& graph, const Values& inputs, std::vector<Value>& values) {
  for (size_t i = 0; i < graph.input_slots.size() && i < inputs.size(); ++i)
    if (!inputs[i].is_absent() || i < graph.required_inputs)
      values[static_cast<size_t>(graph.input_slots[i])] = inputs[i];
}

void run_and_free(const Step& step, const std::vector<int>& frees, const Frame& frame) {
  check_interrupt();
  run_step(step, frame);
  for (const int slot : frees) frame.values[static_cast<size_t>(slot)] = Value();
}

Values outputs_of(const Graph& graph, const std::vector<Value>& values) {
  Values out;
  out.reserve(graph.output_slots.size());
  for (const int slot : graph.output_slots) out.push_back(slot < 0 ? Value() : values[static_cast<size_t>(slot)]);
  return out;
}

}  // namespace

int64_t bytes_of(const Value& value) {
  int64_t all = 0;
  const auto add = [&](int64_t bytes) {
    if (__builtin_add_overflow(all, bytes, &all)) all = INT64_MAX;
  };
  if (value.is_tensor() && __builtin_mul_overflow(value.tensor().numel(), size_of(value.tensor().dtype()), &all))
    all = INT64_MAX;  // a view that repeats its elements
  if (value.is_sequence())
    for (const Value& v : value.sequence()) add(bytes_of(v));
  return all;
}
std::vector<Value> values_of(const Graph& graph) {
  std::vector<Value> values(static_cast<size_t>(graph.slots));
  for (const auto& [slot, value] : graph.constants) values[static_cast<size_t>(slot)] = value;
  return values;
}

void run_step(const Step& step, const Frame& frame) {
  Values in;
  in.reserve(step.in.size());
  for (const int slot : step.in) in.push_back(slot < 0 ? Value() : frame.values[static_cast<size_t>(slot)]);
  const NamedScope scope(step.name.empty() ? step.op : step.name);
  // What becomes of sizes is computed, so that the steps which read it can be captured.
  std::optional<PauseCapture> computed;
  if (is_capturing() && is_known(step, in)) computed.emplace();
  Values out;
  if (step.function) {
    out = run(*step.function, in, frame.options, &frame);
  } else {
    try {
      out = step.entry->run(Call(step, frame, std::move(in)));
    } catch (const OutOfMemoryError& e) {
      if (std::string_view(e.what()).starts_with(step.file)) throw;
      throw OutOfMemoryError(where(step) + e.what());
    } catch (const std::bad_alloc&) {
      throw OutOfMemoryError(where(step) + "out of memory");
    } catch (const Unsupported&) {
      throw;
    } catch (const FileError&) {
      throw;
    } catch (const Error& e) {
      const std::string begin = where(step);
      if (std::string_view(e.what()).starts_with(begin)) throw;
      throw Error(begin + e.what());
    }
  }
  for (size_t i = 0; i < step.out.size(); ++i) {
    if (step.out[i] < 0) continue;
    if (i >= out.size()) throw Error(fmt::format("{}gives no output {}", where(step), i));
    frame.values[static_cast<size_t>(step.out[i])] = std::move(out[i]);
  }
}

Values run(const Graph& graph, const Values& inputs, const LoadOptions& options, const Frame* outer) {
  std::vector<Value> values = values_of(graph);
  take_inputs(graph, inputs, values);
  if (outer)
    for (const auto& [there, here] : graph.captures)
      values[static_cast<size_t>(here)] = outer->values[static_cast<size_t>(there)];
  int64_t turns = 0;
  const Frame frame{options, outer ? outer->turns : turns, graph, values};
  for (const Step& step : graph.steps) run_and_free(step, step.frees, frame);
  return outputs_of(graph, values);
}

Values run(const Graph& graph, const Specialization& special, const Values& inputs, const LoadOptions& options) {
  std::vector<Value> values(static_cast<size_t>(graph.slots));
  for (const auto& [slot, value] : special.known) values[static_cast<size_t>(slot)] = value;
  take_inputs(graph, inputs, values);
  int64_t turns = 0;
  const Frame frame{options, turns, graph, values};
  for (size_t i = 0; i < special.steps.size(); ++i) run_and_free(*special.steps[i], special.frees[i], frame);
  return outputs_of(graph, values);
}

void fold_constants(Graph& graph, const LoadOptions& options) {
  const NoGrad no_grad;
  std::vector<Value> values = values_of(graph);
  std::vector<bool> kept(values.size()), known(values.size());
  int64_t left = kLargestFolded;
  for (const auto& [slot, value] : graph.constants) {
    kept[static_cast<size_t>(slot)] = known[static_cast<size_t>(slot)] = true;
    left += kMostFolded * bytes_of(value);
  }
  graph.constants.clear();  // so that a weight dies with its last use
  for (const int slot : graph.input_slots) known[static_cast<size_t>(slot)] = false;  // a caller may give another
  std::vector<int> uses = count_uses(graph);
  int64_t turns = 0;
  const Frame frame{options, turns, graph, values};
  std::erase_if(graph.steps, [&](Step& step) {
    if (!step.entry || step.entry->random || !step.bodies.empty()) return false;
    const auto is_known = [&](int slot) { return slot < 0 || known[static_cast<size_t>(slot)]; };
    if (!std::all_of(step.in.begin(), step.in.end(), is_known)) return false;
    int64_t given = bytes_of(step), largest = 0;
    left += kMostFolded * given;
    for (const int slot : step.in)
      if (slot >= 0) given = std::max(given, bytes_of(values[static_cast<size_t>(slot)]));
    const int64_t most = std::min(left, std::max(kLargestFolded, given));
    try {
      const AllocationLimit limit(static_cast<size_t>(most));
      run_step(step, frame);
    } catch (const Error&) {
      return false;  // said when it runs, if it ever does
    }
    for (const int slot : step.out)
      if (slot >= 0) largest = std::max(largest, bytes_of(values[static_cast<size_t>(slot)]));
    if (largest > most) {
      for (const int slot : step.out)
        if (slot >= 0) values[static_cast<size_t>(slot)] = Value();
      return false;
    }
    for (const int slot : step.out) {
      if (slot < 0) continue;
      left = std::max<int64_t>(0, left - bytes_of(values[static_cast<size_t>(slot)]));
      kept[static_cast<size_t>(slot)] = known[static_cast<size_t>(slot)] = true;
    }
    for (const int slot : step.in)
      if (slot >= 0 && --uses[static_cast<size_t>(slot)] == 0) values[static_cast<size_t>(slot)] = Value();
    return true;
  });
  for (size_t slot = 0; slot < values.size(); ++slot)
    if (kept[slot] && !values[slot].is_absent())
      graph.constants.emplace_back(static_cast<int>(slot), std::move(values[slot]));
  drop_unused(graph);
  find_last_uses(graph);
}

}  // namespace tessera::onnx
