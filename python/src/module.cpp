// The extension tessera._C.
#include <chrono>

#include "module.h"
#include "tessera/interrupt.h"

namespace tessera::python {

void bind_errors(nb::module_& m) {
  // The last one that fits is asked first.
  nb::exception<Error> error(m, "Error", PyExc_RuntimeError);
  error.attr("__doc__") = "What the library says is wrong: the operator, the shapes and the rule broken.";
  nb::exception<OutOfMemoryError>(m, "OutOfMemoryError", error).attr("__doc__") = "Memory does not suffice.";
  nb::exception<FileError>(m, "FileError", error).attr("__doc__") = "A file that is missing or damaged.";
  nb::exception<DeviceError>(m, "DeviceError", error).attr("__doc__") = "A GPU, or its driver, has failed.";
  nb::exception<onnx::Unsupported>(m, "Unsupported", error).attr("__doc__") =
      "What a valid model asks for and is not there.";
}

void bind_basics(nb::module_& m) {
  // Type checkers would take dtype and device within Tensor for its properties.
  nb::enum_<DType>(m, "DType", "What the elements of a tensor are.")
      .value("bool", Bool)
      .value("uint8", UInt8)
      .value("int8", Int8)
      .value("uint16", UInt16)
      .value("int16", Int16)
      .value("uint32", UInt32)
      .value("int32", Int32)
      .value("uint64", UInt64)
      .value("int64", Int64)
      .value("float16", Float16)
      .value("bfloat16", BFloat16)
      .value("float32", Float32)
      .value("float64", Float64);
  m.attr("dtype") = m.attr("DType");
  m.def("promote_types", &promote, nb::arg("type1"), nb::arg("type2"), "The smallest dtype that holds both.");
  m.def("is_floating_dtype", &is_floating, nb::arg("dtype"), "Whether it is f16, bf16, f32 or f64.");
  m.def("size_of", &size_of, nb::arg("dtype"), "Bytes of one element.");

  nb::class_<Device>(m, "Device", "Where tensors live: \"cpu\", \"cuda:0\", \"hip:1\".")
      .def(nb::new_([](const std::string& name) { return parse_device(name); }), nb::arg("name"))
      .def_prop_ro("type",
                   [](Device d) {
                     return d.type == DeviceType::CPU ? "cpu" : d.type == DeviceType::CUDA ? "cuda" : "hip";
                   })
      .def_prop_ro("index", [](Device d) { return static_cast<int>(d.index); })
      .def(
          "__eq__", [](Device a, Device b) { return a == b; }, nb::is_operator())
      .def("__hash__", [](Device d) { return nb::hash(nb::str(to_string(d).c_str())); })
      .def("__str__", [](Device d) { return to_string(d); })
      .def("__reduce__", [](nb::handle self) { return nb::make_tuple(self.type(), nb::make_tuple(nb::str(self))); })
      .def("__repr__", [](Device d) { return "device('" + to_string(d) + "')"; });
  m.attr("device") = m.attr("Device");
  m.def("default_device", &default_device, "Where tensors are made that name no device.");
  m.def(
      "device_count", [](const std::string& type) { return device_count(parse_device(type).type); }, nb::arg("type"),
      "GPUs of a kind, \"cuda\" or \"hip\", that were found.");
  m.def("why_unavailable", &why_unavailable, nb::arg("device"), "Why a device cannot be used; empty if it can.");
  m.def("synchronize", &synchronize, nb::arg("device"), nb::call_guard<Unlocked>(),
        "Waits for all that was queued on a GPU, and raises what its kernels found wrong.");
  m.def("set_memory_limit", &set_memory_limit, nb::arg("bytes"), nb::arg("device") = cpu(),
        "The most bytes that tensors of a device may hold together; 0: what there is.");
  m.def("allow_nondeterministic", &allow_nondeterministic, nb::arg("allowed"),
        "Whether GPUs may add up in any order where that is faster: results then vary from run to run.");
  m.def("nondeterministic_allowed", &nondeterministic_allowed, "Whether GPUs may add up in any order.");
  m.def("set_num_threads", &set_num_threads, nb::arg("n"), "How many threads of the CPU operators use.");
  m.def("get_num_threads", &num_threads, "How many threads of the CPU operators use.");

  nb::class_<Generator>(m, "Generator", "A seed, and how much of its stream has been used.")
      .def(nb::init<uint64_t>(), nb::arg("seed") = 0)
      .def("manual_seed", nb::overload_cast<uint64_t>(&Generator::seed), nb::arg("seed"))
      .def_prop_ro("seed", nb::overload_cast<>(&Generator::seed, nb::const_))
      .def_prop_ro("offset", &Generator::offset)
      .def("set_state", &Generator::set_state, nb::arg("seed"), nb::arg("offset"));
  m.def("manual_seed", &manual_seed, nb::arg("seed"), "Seeds the generator that is used where none is given.");
}

// Lets Ctrl-C end long work: Python's handlers of signals run now and then, in its main thread.
static void run_signal_handlers() {
  using Clock = std::chrono::steady_clock;
  static thread_local Clock::time_point last{};
  const Clock::time_point now = Clock::now();
  if (now - last < std::chrono::milliseconds(50)) return;
  last = now;
  const nb::gil_scoped_acquire locked;
  if (locked.is_valid() && PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace tessera::python

NB_MODULE(_C, m) {
  using namespace tessera::python;
  nb::set_leak_warnings(false);  // tensors that modules of Python hold live as long as these
  m.attr("__version__") = TESSERA_VERSION;
  tessera::set_interrupt_check(&tessera::python::run_signal_handlers);
  bind_errors(m);
  bind_basics(m);
  bind_open_size(m);
  nb::class_<tessera::Tensor> tensor(m, "Tensor", nb::dynamic_attr(), nb::is_weak_referenceable(),
                                     "A strided view of memory on a device, with an optional place in a graph.");
  bind_tensor(m, tensor);
  bind_arrays(m, tensor);
  bind_places(tensor);
  bind_streams(m, tensor);
  bind_ops(m, tensor);
  bind_scaled(m, tensor);
  bind_ops_attention(m, tensor);
  bind_ops_image(m, tensor);
  bind_ops_indexing(m, tensor);
  bind_ops_layers(m, tensor);
  bind_ops_loss(m, tensor);
  bind_ops_math(m, tensor);
  bind_ops_pool(m, tensor);
  bind_ops_quantize(m, tensor);
  bind_ops_recurrent(m, tensor);
  bind_ops_shape(m, tensor);
  bind_ops_signal(m, tensor);
  bind_autograd(m);
  bind_nn(m);
  bind_optim(m);
  bind_files(m);
  bind_onnx(m);
  bind_models(m);
  bind_fused_gemm(m);
  bind_dist(m);
  bind_data(m);
  bind_train(m);
}
