// What is recorded, and in which dtype operators run: scopes of Python's `with`.
#include "scopes.h"

namespace tessera::python {
namespace {

using GradScope = Scope<GradMode, bool>;
using DeviceScope = Scope<DeviceGuard, Device>;
using AutocastScope = Scope<amp::Autocast, DType, amp::AutocastOptions>;
using AutocastOn = Scope<amp::Autocast, DType, DeviceType, amp::AutocastOptions>;

}  // namespace

void bind_autograd(nb::module_& m) {
  m.def("is_grad_enabled", &grad_enabled, "Whether operations are recorded on this thread.");
  bind_scope<GradScope>(m, "set_grad_enabled", "Whether operations are recorded within.")
      .def(
          "__init__", [](GradScope* s, bool on) { new (s) GradScope(on); }, nb::arg("mode"));
  bind_scope<DeviceScope>(m, "DeviceGuard", "Tensors that name no device are made there within.")
      .def(
          "__init__", [](DeviceScope* s, Device d) { new (s) DeviceScope(d); }, nb::arg("device"));
  m.def("grad", &grad, nb::arg("outputs"), nb::arg("inputs"), nb::arg("grad_outputs") = Tensors{},
        nb::arg("retain_graph") = false, nb::arg("create_graph") = false, nb::arg("allow_unused") = false,
        nb::call_guard<Unlocked>(), "Gradients of `outputs` with respect to `inputs`, without touching any .grad.");
  m.def(
      "custom_function", &custom_function, nb::arg("name"), nb::arg("inputs"), nb::arg("forward"), nb::arg("backward"),
      nb::arg("gives_gradients") = false,
      "An operation with its own backward: `forward(inputs)` gives the outputs, and `backward(inputs, outputs, grads)` "
      "the gradients of the inputs, all in lists.",
      nb::call_guard<Unlocked>());
  m.def("_checkpoint", &checkpoint, nb::arg("function"), nb::arg("inputs"), nb::call_guard<Unlocked>());

  const auto make = [](AutocastScope* s, DType dtype, bool enabled, bool cache, bool lower_residual) {
    new (s) AutocastScope(dtype, {.enabled = enabled, .cache_weights = cache, .lower_residual = lower_residual});
  };
  bind_scope<AutocastScope>(m, "Autocast", "Operators of this thread choose their dtype within.")
      .def("__init__", make, nb::arg("dtype") = BFloat16, nb::arg("enabled") = true, nb::arg("cache_enabled") = true,
           nb::arg("lower_residual") = false);
  const auto make_on = [](AutocastOn* s, Device device, DType dtype, bool enabled, bool cache, bool lower_residual) {
    new (s)
        AutocastOn(dtype, device.type, {.enabled = enabled, .cache_weights = cache, .lower_residual = lower_residual});
  };
  bind_scope<AutocastOn>(m, "AutocastOn", "Autocast on one kind of device.")
      .def("__init__", make_on, nb::arg("device"), nb::arg("dtype") = BFloat16, nb::arg("enabled") = true,
           nb::arg("cache_enabled") = true, nb::arg("lower_residual") = false);
}

}  // namespace tessera::python
