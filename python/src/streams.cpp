// Queues of work on GPUs.
#include "scopes.h"
#include "tessera/foreign.h"

namespace tessera::python {

void bind_streams(nb::module_& m, nb::class_<Tensor>& tensor) {
  nb::class_<Stream>(m, "Stream", "A queue of work on one device. On the CPU it is empty.")
      .def(nb::init<Device>(), nb::arg("device").none() = nb::none())
      .def_prop_ro("device", &Stream::device)
      .def_prop_ro(
          "handle", [](const Stream& s) { return reinterpret_cast<uintptr_t>(foreign::handle_of(s)); },
          "The vendor's: a cudaStream_t or a hipStream_t as a number.")
      .def("synchronize", &Stream::synchronize, nb::call_guard<Unlocked>(), "Waits until all that was queued is done.")
      .def("query", &Stream::is_idle, "Whether all that was queued is done.");
  m.def("current_stream", &current_stream, nb::arg("device").none() = nb::none(),
        "The stream that this thread's calls on a device go to.");
  using StreamScope = Scope<StreamGuard, Stream>;
  bind_scope<StreamScope>(m, "StreamGuard", "Calls of this thread on the stream's device go to it within.")
      .def(
          "__init__", [](StreamScope* made, const Stream& stream) { new (made) StreamScope(stream); },
          nb::arg("stream"));
  tensor.def("record_stream", &record_stream, nb::arg("stream"),
             "Says that work on another stream uses the tensor: its memory is not handed out before that is done.");
  m.def(
      "empty_cache", [](Device d) { empty_cache(d); }, nb::arg("device").none() = nb::none(),
      "Gives memory that is kept for reuse back to the system.");
}

}  // namespace tessera::python
