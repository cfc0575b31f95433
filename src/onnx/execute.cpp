// Runs graphs, step after step.
#include <fmt/format.h>

#include <algorithm>

#include "onnx/graph.h"
#include "onnx/handler.h"
#include "tessera/autograd.h"
#include "tessera/interrupt.h"
#include "tessera/observer.h"

namespace tessera::onnx {
namespace {

constexpr int64_t kLargestFolded = 64 << 20;  // bytes of a result that is kept although the file does not hold it

int64_t bytes_of(const Value& value) {
  if (value.is_tensor()) return value.tensor().numel() * static_cast<int64_t>(size_of(value.tensor().dtype()));
  int64_t all = 0;
  if (value.is_sequence())
    for (const Value& v : value.sequence()) all += bytes_of(v);
  return all;
}

std::vector<Value> values_of(const Graph& graph) {
  std::vector<Value> values(static_cast<size_t>(graph.slots));
  for (const auto& [slot, value] : graph.constants) values[static_cast<size_t>(slot)] = value;
  return values;
}

}  // namespace

void run_step(const Step& step, const Frame& frame) {
  Values in;
  in.reserve(step.in.size());
  for (const int slot : step.in) in.push_back(slot < 0 ? Value() : frame.values[static_cast<size_t>(slot)]);
  const NamedScope scope(step.name.empty() ? step.op : step.name);
  Values out;
  if (step.function) {
    out = run(*step.function, in, frame.options, &frame);
  } else {
    try {
      out = step.entry->run(Call(step, frame, std::move(in)));
    } catch (const OutOfMemoryError& e) {
      if (std::string_view(e.what()).starts_with(step.file)) throw;
      throw OutOfMemoryError(where(step) + e.what());
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
  for (size_t i = 0; i < graph.input_slots.size() && i < inputs.size(); ++i)
    if (!inputs[i].is_absent() || i < graph.required_inputs)
      values[static_cast<size_t>(graph.input_slots[i])] = inputs[i];
  if (outer)
    for (const auto& [there, here] : graph.captures)
      values[static_cast<size_t>(here)] = outer->values[static_cast<size_t>(there)];
  int64_t turns = 0;
  const Frame frame{options, outer ? outer->turns : turns, graph, values};
  for (const Step& step : graph.steps) {
    check_interrupt();
    run_step(step, frame);
    for (const int slot : step.frees) values[static_cast<size_t>(slot)] = Value();
  }
  Values out;
  out.reserve(graph.output_slots.size());
  for (const int slot : graph.output_slots) out.push_back(slot < 0 ? Value() : values[static_cast<size_t>(slot)]);
  return out;
}

void fold_constants(Graph& graph, const LoadOptions& options) {
  const NoGrad no_grad;
  std::vector<Value> values = values_of(graph);
  std::vector<bool> known(values.size());
  for (const auto& [slot, value] : graph.constants) known[static_cast<size_t>(slot)] = true;
  for (const int slot : graph.input_slots) known[static_cast<size_t>(slot)] = false;  // a caller may give another
  int64_t turns = 0;
  const Frame frame{options, turns, graph, values};
  std::erase_if(graph.steps, [&](Step& step) {
    if (!step.entry || step.entry->random || !step.bodies.empty()) return false;
    const auto is_known = [&](int slot) { return slot < 0 || known[static_cast<size_t>(slot)]; };
    if (!std::all_of(step.in.begin(), step.in.end(), is_known)) return false;
    try {
      run_step(step, frame);
    } catch (const Error&) {
      return false;  // said when it runs, if it ever does
    }
    int64_t bytes = 0;
    for (const int slot : step.out)
      if (slot >= 0) bytes += bytes_of(values[static_cast<size_t>(slot)]);
    if (bytes > kLargestFolded) return false;
    for (const int slot : step.out) {
      if (slot < 0) continue;
      known[static_cast<size_t>(slot)] = true;
      graph.constants.emplace_back(slot, values[static_cast<size_t>(slot)]);
    }
    return true;
  });
  drop_unused(graph);
  find_last_uses(graph);
}

}  // namespace tessera::onnx
