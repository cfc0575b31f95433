// Functions that backward runs again, for the memory of what they would record.
#include <optional>

#include "core/capture_state.h"
#include "ops/autocast.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/random.h"

namespace tessera {
namespace {

// What a run depends on besides its inputs: random numbers, and the regions of autocast that it is in.
struct Surroundings {
  uint64_t seed = default_generator().seed(), offset = default_generator().offset();
  amp::AutocastState autocast = amp::autocast_state;
};

// The same again, while alive.
class Again {
 public:
  explicit Again(const Surroundings& then) {
    default_generator().set_state(then.seed, then.offset);
    for (int d = 0; d < kDeviceTypeCount; ++d)
      if (then.autocast.devices >> d & 1)
        regions_[d].emplace(then.autocast.dtype[d], static_cast<DeviceType>(d), then.autocast.options[d]);
  }
  ~Again() {
    for (int d = kDeviceTypeCount; d-- > 0;) regions_[d].reset();
    default_generator().set_state(now_.seed, now_.offset);
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  Surroundings now_;
  std::optional<amp::Autocast> regions_[kDeviceTypeCount];
};

Tensors run_backward(const CustomForward& function, const Surroundings& then, const Tensors& inputs,
                     const Tensors& grads) {
  const GradMode recording(true);
  Tensors fresh, out;
  for (const Tensor& x : inputs) {
    fresh.push_back(x.defined() ? x.detach() : x);
    if (x.defined() && x.requires_grad()) fresh.back().set_requires_grad();
  }
  {
    const Again again(then);
    out = function(fresh);
  }
  Tensors reached, given;
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].requires_grad() && grads[i].defined()) {
      reached.push_back(out[i]);
      given.push_back(grads[i].clone());
    }
  if (!reached.empty()) backward(reached, std::move(given));
  Tensors result;
  for (const Tensor& x : fresh) result.push_back(x.defined() ? x.grad() : Tensor());
  return result;
}

}  // namespace

Tensors checkpoint(const CustomForward& function, const Tensors& inputs) {
  // A captured function holds the operators themselves: what parameters inside get is part of its graph.
  if (!grad_enabled() || is_capturing()) return function(inputs);
  // An input that requires a gradient, so that parameters which the function uses get theirs whatever it is given.
  Tensors all = inputs;
  all.push_back(zeros({0}).set_requires_grad());
  const auto own = [](const Tensors& given) { return Tensors(given.begin(), given.end() - 1); };
  return custom_function(
      "checkpoint", all, [=](const Tensors& given) { return function(own(given)); },
      [=, then = Surroundings()](const Tensors& given, const Tensors&, const Tensors& grads) {
        Tensors out = run_backward(function, then, own(given), grads);
        out.push_back({});
        return out;
      });
}

}  // namespace tessera
