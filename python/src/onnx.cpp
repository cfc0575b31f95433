// Model files.
#include "module.h"

namespace tessera::python {
namespace {

onnx::Value value_of(nb::handle given) {
  if (given.is_none()) return {};
  if (nb::isinstance<Tensor>(given)) return nb::cast<Tensor>(given);
  if (nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given)) {
    std::vector<onnx::Value> all;
    for (nb::handle one : given) all.push_back(value_of(one));
    return onnx::Value(std::move(all));
  }
  return nb::cast<Tensor>(as_tensor(given));
}

nb::object value_for_python(const onnx::Value& value) {
  if (value.is_absent()) return nb::none();
  if (value.is_tensor()) return nb::cast(value.tensor());
  nb::list all;
  for (const onnx::Value& one : value.sequence()) all.append(value_for_python(one));
  return all;
}

nb::dict run(const onnx::Model& model, const nb::args& by_place, const nb::dict& by_name) {
  nb::dict out;
  if (by_place.size() > 0 && by_name.size() > 0)
    throw Error("run: inputs are given by their place or by name, not both");
  onnx::Values inputs, outputs;
  std::map<std::string, onnx::Value> named, given;
  for (nb::handle one : by_place) inputs.push_back(value_of(one));
  for (const auto& [key, one] : by_name) given[nb::cast<std::string>(key)] = value_of(one);
  {
    const Unlocked unlocked;
    if (given.empty()) outputs = model.run(inputs);
    else named = model.run_by_name(given);
  }
  for (size_t i = 0; i < model.outputs().size(); ++i) {
    const std::string& name = model.outputs()[i].name;
    out[name.c_str()] = value_for_python(given.empty() ? outputs[i] : named[name]);
  }
  return out;
}

}  // namespace

void bind_onnx(nb::module_& parent) {
  using onnx::Model, onnx::Port, onnx::Inspection;
  nb::module_ m = parent.def_submodule("_onnx");
  nb::class_<Port>(m, "Port", "What a model says of an input or an output.")
      .def_ro("name", &Port::name)
      .def_ro("type", &Port::type, "Of its elements, as ONNX calls it.")
      .def_prop_ro(
          "dims", [](const Port& p) { return p.has_shape ? std::optional(p.dims) : std::nullopt; },
          "Numbers, names or \"?\", as strings; None where even the rank is open.")
      .def("__repr__", [](const Port& p) { return onnx::describe(p); });
  nb::class_<Model>(m, "Model", "A model file, ready to run.")
      .def(
          "__init__",
          [](Model* made, const std::string& path, Device device, DType dtype, bool optimize, int64_t loop_limit) {
            const Unlocked unlocked;
            new (made) Model(path, {.device = device, .dtype = dtype, .optimize = optimize, .loop_limit = loop_limit});
          },
          nb::arg("path"), nb::arg("device") = "cpu", nb::arg("dtype") = Float32, nb::arg("optimize") = true,
          nb::arg("loop_limit") = int64_t{1'000'000})
      .def_prop_ro("inputs", &Model::inputs)
      .def_prop_ro("outputs", &Model::outputs)
      .def_prop_ro("is_random", &Model::is_random, "Whether some node draws random numbers, so that runs differ.")
      .def("calls", &Model::calls, "How often a run calls each operator outside of inner graphs.")
      .def("_run",
           [](const Model& model, const nb::dict& named, const nb::args& inputs) { return run(model, inputs, named); });
  nb::class_<Inspection>(m, "Inspection", "What a file holds, whether it can run here or not.")
      .def_ro("producer", &Inspection::producer)
      .def_ro("ir_version", &Inspection::ir_version)
      .def_ro("opsets", &Inspection::opsets)
      .def_ro("inputs", &Inspection::inputs)
      .def_ro("outputs", &Inspection::outputs)
      .def_ro("operators", &Inspection::operators)
      .def_ro("parameters", &Inspection::parameters)
      .def_ro("parameter_bytes", &Inspection::parameter_bytes)
      .def_ro("unsupported", &Inspection::unsupported);
  m.def(
      "save",
      [](const nn::Module& module, const Tensors& inputs, const std::string& path, int64_t opset,
         const std::string& batch, std::vector<std::string> input_names, std::vector<std::string> output_names) {
        const onnx::SaveOptions options{
            .opset = opset, .batch = batch, .inputs = std::move(input_names), .outputs = std::move(output_names)};
        onnx::save(module, inputs, path, options);
      },
      nb::arg("module"), nb::arg("inputs"), nb::arg("path"), nb::arg("opset") = 20, nb::arg("batch") = "batch",
      nb::arg("input_names") = std::vector<std::string>{}, nb::arg("output_names") = std::vector<std::string>{},
      nb::call_guard<Unlocked>());
  m.def("inspect", &onnx::inspect, nb::arg("path"), nb::call_guard<Unlocked>(),
        "What a file holds, whether it can run here or not.");
}

}  // namespace tessera::python
