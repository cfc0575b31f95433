// custom_function: closures of a program as one operator, which capture and differentiation see as such.
#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include "core/capture_state.h"
#include "ops/capture.h"
#include "ops/custom_function.h"
#include "ops/op_table.h"
#include "ops/registry.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

/// What the operator does, by reference.
class Closures final : public AttrObject {
 public:
  Closures(std::string name, CustomForward forward, CustomBackward backward, bool gives_gradients)
      : name(std::move(name)),
        forward(std::move(forward)),
        backward(std::move(backward)),
        gives_gradients(gives_gradients) {}
  std::string text() const override { return fmt::format("closures({})", to_text(AttrValue(name))); }

  /// Before it is dispatched: shapes are known once the function has run.
  void begin(const Tensors& in) {
    const std::lock_guard lock(mutex_);
    in_metas_ = metas_of({in.data(), in.size()});
    if (is_capturing() ||
        std::any_of(in.begin(), in.end(), [](const Tensor& t) { return t.defined() && t.device().meta; })) {
      out_metas_ = metas_without_memory(in_metas_);
    } else {
      ready_ = call({in.data(), in.size()});
      out_metas_ = metas_of({ready_.data(), ready_.size()});
      has_ready_ = true;
    }
  }
  bool has_outputs() const { return !out_metas_.empty(); }

  Metas infer(std::span<const TensorMeta> in) const {
    const std::lock_guard lock(mutex_);
    const auto same = [](const TensorMeta& a, const TensorMeta& b) { return a.shape == b.shape && a.dtype == b.dtype; };
    if (!std::equal(in.begin(), in.end(), in_metas_.begin(), in_metas_.end(), same)) {
      in_metas_ = Metas(in.begin(), in.end());
      out_metas_ = metas_without_memory(in_metas_);
    }
    Metas out = out_metas_;
    if (!in.empty())
      for (TensorMeta& meta : out) meta.device = in[0].device;
    return out;
  }

  Tensors run(std::span<const Tensor> in) const {
    Tensors found;
    bool ready;
    {
      const std::lock_guard lock(mutex_);
      ready = std::exchange(has_ready_, false);
      found = std::exchange(ready_, {});
    }
    if (!ready) found = call(in);
    const Metas given = metas_of(in);
    return as_new_outputs(name, std::move(found), infer({given.data(), given.size()}), in);
  }

  const std::string name;
  const CustomForward forward;
  const CustomBackward backward;  ///< none: it cannot be differentiated
  const bool gives_gradients;

 private:
  static Metas metas_of(std::span<const Tensor> tensors) {
    Metas metas;
    for (const Tensor& t : tensors) metas.push_back(t.defined() ? t.meta() : absent_meta());
    return metas;
  }
  Tensors call(std::span<const Tensor> in) const {
    const NoGrad plain;
    Tensors out = forward(Tensors(in.begin(), in.end()));
    for (size_t i = 0; i < out.size(); ++i)
      if (!out[i].defined()) throw Error(fmt::format("{}: output {} is undefined", name, i));
    return out;
  }
  // What it returns for such inputs, by a capture of its own that is then dropped.
  Metas metas_without_memory(const Metas& in) const {
    Tensors inputs;
    for (const TensorMeta& m : in) inputs.push_back(is_absent(m) ? Tensor() : empty(m.shape, m.dtype, meta(m.device)));
    Metas out;
    const PauseCapture pause;
    const auto note = [&](const Tensors& given) {
      Tensors all = inputs;  // absent ones between them
      size_t at = 0;
      for (Tensor& t : all)
        if (t.defined()) t = given[at++];
      const Tensors found = call({all.data(), all.size()});
      out = metas_of({found.data(), found.size()});
      return found;
    };
    Tensors present;
    for (const Tensor& t : inputs)
      if (t.defined()) present.push_back(t);
    try {
      capture(note, present);
    } catch (const Error& e) {
      throw Error(fmt::format("custom_function '{}': {}", name, e.what()));
    }
    check_sizes(in, out);
    return out;
  }

  // Who calls it could not know a count within.
  void check_sizes(const Metas& in, const Metas& out) const {
    Symbols known;
    for (const TensorMeta& m : in) known.add_all(m.shape);
    for (size_t i = 0; i < out.size(); ++i)
      for (const Dim d : out[i].shape)
        for (const Dim symbol : d.symbols())
          if (std::find(known.all().begin(), known.all().end(), symbol) == known.all().end())
            throw Error(fmt::format("custom_function '{}': the shape of output {}, {}, depends on values", name, i,
                                    to_string(out[i].shape)));
  }

  mutable std::mutex mutex_;
  mutable Metas in_metas_, out_metas_;  // of the last call
  mutable Tensors ready_;               // its results, until they are asked for
  mutable bool has_ready_ = false;
};

const Closures& closures_of(const Attrs& attrs) {
  const auto* found = dynamic_cast<const Closures*>(attrs.as<FunctionAttrs>().function.get());
  if (!found) throw Error("custom_function: it has no function, which text cannot hold");
  return *found;
}

Metas infer_custom_function(std::span<const TensorMeta> in, const Attrs& attrs) { return closures_of(attrs).infer(in); }
Tensors compute_custom_function(std::span<const Tensor> in, const Attrs& attrs) { return closures_of(attrs).run(in); }

Tensors run_closures(Ref<Closures> closures, Tensors in);

// Of the inputs that get one, by one operator.
Tensors custom_function_vjp(const Saved& s, const Tensors& grads) {
  const Closures& of = closures_of(s.attrs);
  s.exposed = !of.gives_gradients;
  const size_t inputs = s.inputs.size(), outputs = s.outputs.size();
  const Tensors in(s.inputs.begin(), s.inputs.end()), out(s.outputs.begin(), s.outputs.end());
  if (!of.backward) throw Error(of.name + ": it has no backward");
  if (grad_enabled()) return of.backward(in, out, grads);
  const auto call = [&of, inputs, outputs, self = s.attrs.as<FunctionAttrs>().function](const Tensors& all,
                                                                                        std::vector<bool>& given) {
    const auto part = [&](size_t from, size_t to) { return Tensors(all.begin() + from, all.begin() + to); };
    const Tensors found =
        of.backward(part(0, inputs), part(inputs, inputs + outputs), part(inputs + outputs, all.size()));
    if (found.size() != inputs)
      throw Error(fmt::format("{}: backward gave {} gradients for {} inputs", of.name, found.size(), inputs));
    Tensors present;
    given.assign(inputs, false);
    for (size_t i = 0; i < inputs; ++i)
      if ((given[i] = found[i].defined())) present.push_back(found[i]);
    return present;
  };
  Tensors all = in;
  all.append(out.begin(), out.end());
  all.append(grads.begin(), grads.end());
  const auto which = std::make_shared<std::vector<bool>>();  // have a gradient: known since the first call
  const auto forward = [call, which](const Tensors& given) {
    std::vector<bool> seen;
    Tensors found = call(given, seen);
    if (which->empty()) *which = std::move(seen);
    return found;
  };
  const Tensors present =
      run_closures(make_ref<Closures>(of.name + ".backward", forward, CustomBackward(), true), std::move(all));
  Tensors results(inputs);
  for (size_t i = 0, at = 0; i < inputs; ++i)
    if ((*which)[i]) results[i] = present[at++];
  return results;
}

const Op custom_function_op = {.name = "custom_function",
                               .inputs = "tensors...",
                               .outputs = "results...",
                               .attrs = attrs_of<FunctionAttrs>,
                               .infer = infer_custom_function,
                               .vjp = custom_function_vjp,
                               .reference = compute_custom_function,
                               .saves = {.inputs = kAll, .outputs = kAll},
                               .pitched = Pitched::None,
                               .compute = compute_custom_function};

Tensors run_closures(Ref<Closures> closures, Tensors in) {
  closures->begin(in);
  if (!closures->has_outputs()) return {};
  return dispatch(custom_function_op, std::move(in), FunctionAttrs{std::move(closures)});
}

}  // namespace

std::span<const Op* const> function_ops() {
  static constexpr const Op* ops[] = {&custom_function_op};
  return ops;
}

Attrs function_attrs(std::string name, CustomForward forward, CustomBackward backward) {
  return FunctionAttrs{make_ref<Closures>(std::move(name), std::move(forward), std::move(backward), false)};
}

Tensors custom_function(std::string name, const Tensors& inputs, CustomForward forward, CustomBackward backward,
                        bool gives_gradients) {
  if (!forward) throw Error("custom_function '" + name + "': there is no forward");
  return run_closures(make_ref<Closures>(std::move(name), std::move(forward), std::move(backward), gives_gradients),
                      inputs);
}

}  // namespace tessera
