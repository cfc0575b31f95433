// Runs on inputs of known sizes: what follows from sizes alone is computed once.
#include "onnx/specialize.h"

#include <algorithm>

#include "core/capture_state.h"
#include "ops/capture.h"

namespace tessera::onnx {
namespace {

constexpr size_t kMostSpecializations = 4;  // of a model: a server's buckets
constexpr int64_t kMostKept = 16 << 20;     // bytes of values

bool is_computed(const Value& value) { return value.is_tensor() && !value.tensor().device().meta; }

/// Captures the steps, which computes what becomes of sizes. A handler that needs other elements fails, and what it
/// gives is missing.
class Sizes {
 public:
  Sizes(const Graph& graph, const Values& inputs, const LoadOptions& options)
      : graph_(graph), values_(values_of(graph)), missing_(values_.size()), kept_(values_.size()) {
    for (const auto& [slot, value] : graph.constants) kept_[static_cast<size_t>(slot)] = true;
    Tensors tensors;
    std::vector<size_t> slots;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].is_absent()) continue;  // the file's value holds, if there is one
      const auto slot = static_cast<size_t>(graph.input_slots[i]);
      values_[slot] = Value();
      missing_[slot] = !inputs[i].is_tensor();
      kept_[slot] = false;
      if (inputs[i].is_tensor()) tensors.push_back(inputs[i].tensor()), slots.push_back(slot);
    }
    capture(
        [&](const Tensors& without_memory) {
          for (size_t i = 0; i < slots.size(); ++i) values_[slots[i]] = without_memory[i];
          int64_t turns = 0;
          const Frame frame{options, turns, graph, values_};
          for (const Step& step : graph.steps) take(step, frame);
          return Tensors();
        },
        tensors);
  }

  /// The steps that are left, and the values that they read.
  std::shared_ptr<const Specialization> rest() {
    std::vector<bool> used(values_.size());
    const auto use = [&](int slot) {
      if (slot >= 0) used[static_cast<size_t>(slot)] = true;
    };
    for (const int slot : graph_.output_slots) use(slot);
    auto out = std::make_shared<Specialization>();
    for (auto step = graph_.steps.rbegin(); step != graph_.steps.rend(); ++step) {
      const auto is_used = [&](int slot) {
        return slot >= 0 && used[static_cast<size_t>(slot)] && !kept_[static_cast<size_t>(slot)];
      };
      if (std::none_of(step->out.begin(), step->out.end(), is_used)) continue;
      out->steps.push_back(&*step);
      for_each_read(*step, use);
    }
    std::reverse(out->steps.begin(), out->steps.end());
    for (size_t slot = 0; slot < values_.size(); ++slot)
      if (used[slot] && kept_[slot]) out->known.emplace_back(static_cast<int>(slot), std::move(values_[slot]));
    out->frees = last_uses(graph_, out->steps);
    return out;
  }

 private:
  void take(const Step& step, const Frame& frame) {
    bool can_run = true;
    for_each_read(step, [&](int slot) { can_run &= !missing_[static_cast<size_t>(slot)]; });
    try {
      if (can_run) run_step(step, frame);
    } catch (const Error&) {
      can_run = false;  // also where the run would fail: it will
    }
    for (const int slot : step.out) {
      if (slot < 0) continue;
      missing_[static_cast<size_t>(slot)] = !can_run;
      if (can_run) keep(static_cast<size_t>(slot));
      else values_[static_cast<size_t>(slot)] = Value();
    }
    for (const int slot : step.frees)
      if (!kept_[static_cast<size_t>(slot)]) values_[static_cast<size_t>(slot)] = Value();
  }

  // A caller may write to outputs, so they are computed anew.
  void keep(size_t slot) {
    const Value& value = values_[slot];
    const auto& outputs = graph_.output_slots;
    if (!is_computed(value) || std::find(outputs.begin(), outputs.end(), static_cast<int>(slot)) != outputs.end())
      return;
    const int64_t bytes = bytes_of(value);
    if (bytes > left_) return;
    left_ -= bytes;
    kept_[slot] = true;
  }

  const Graph& graph_;
  std::vector<Value> values_;
  std::vector<bool> missing_, kept_;
  int64_t left_ = kMostKept;
};

std::vector<InputSize> sizes_of(const Values& inputs) {
  std::vector<InputSize> all(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    all[i].is_absent = inputs[i].is_absent();
    if (inputs[i].is_tensor()) all[i].shape = inputs[i].tensor().shape(), all[i].dtype = inputs[i].tensor().dtype();
  }
  return all;
}

}  // namespace

std::shared_ptr<const Specialization> Specializations::find(const Graph& graph, const Values& inputs,
                                                            const LoadOptions& options) {
  if (is_capturing()) return nullptr;  // it records the steps
  std::vector<InputSize> sizes = sizes_of(inputs);
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& seen) { return seen.sizes == sizes; });
  if (at == seen_.end()) {
    if (seen_.size() == kMostSpecializations) seen_.pop_back();
    seen_.insert(seen_.begin(), {std::move(sizes), nullptr});
    return nullptr;
  }
  std::rotate(seen_.begin(), at, at + 1);
  if (!seen_[0].found) seen_[0].found = Sizes(graph, inputs, options).rest();
  return seen_[0].found;
}

}  // namespace tessera::onnx
