// Model files.
#include <exception>

#include "module.h"
#include "tessera/observer.h"

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

// The module that the exception on its way left first.
struct ModuleOfError : Observer {
  std::string path;
  void entered(const std::string&) override { path.clear(); }
  void left(const std::string& module) override {
    if (std::uncaught_exceptions() > 0 && path.empty()) path = module;
  }
};

// What an exception of Python says, in one line where an open size was read as a number; empty: it is none of ours.
std::string told(const nb::python_error& e, nb::handle error) {
  const std::string text = nb::cast<std::string>(nb::str(e.value()));
  const auto has = [&](const char* part) { return text.find(part) != text.npos; };
  const std::string advice = "; the model reads it, so it must be fixed";
  if (e.matches(PyExc_TypeError) && has("incompatible function arguments") && open_size_was_read())
    return text.substr(0, text.find("()") + 2) + " takes numbers, and was given an open size" + advice;
  if (e.type().ptr() != error.ptr()) return "";
  return has("is open, and") || has("is symbolic") ? text + advice : text;
}

void save_module(const nn::Module& module, const Tensors& inputs, const std::string& path,
                 const onnx::SaveOptions& options) {
  ModuleOfError of_error;
  const Observing observing(of_error);
  (void)open_size_was_read();  // before
  try {
    const Unlocked unlocked;
    onnx::save(module, inputs, path, options);
  } catch (nb::python_error& e) {
    const nb::object error = nb::module_::import_("tessera._C").attr("Error");
    const std::string why = told(e, error);
    if (why.empty()) throw;
    const std::string where = of_error.path.empty() ? "" : "module \"" + of_error.path + "\": ";
    nb::raise_from(e, error.ptr(), "%s: %s%s", path.c_str(), where.c_str(), why.c_str());
  }
}

// Which dims of an input are open, and their names.
using OpenDims = std::map<int64_t, std::string>;

// A symbol of that name, or an expression such as 4*height.
Dim open_dim(const std::string& name) {
  if (name.find('*') == name.npos) return Dim::symbol(name, 1);
  const Dim dim = Dim::parse(name);
  std::vector<std::pair<Dim, Dim>> from_one;
  for (const Dim symbol : dim.symbols()) from_one.emplace_back(symbol, Dim::symbol(symbol.name(), 1));
  return dim.substitute(from_one);
}

Tensors opened(const Tensors& inputs, const std::vector<OpenDims>& names) {
  Tensors out = inputs;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i >= inputs.size())
      throw Error("save: open sizes of " + std::to_string(names.size()) + " inputs, and there are " +
                  std::to_string(inputs.size()));
    Shape shape = inputs[i].shape();
    for (const auto& [dim, name] : names[i]) shape[normalize_dim("save", dim, shape)] = open_dim(name);
    out[i] = empty(shape, inputs[i].dtype(), meta(inputs[i].device()));
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
         const std::string& batch, std::vector<std::string> input_names, std::vector<std::string> output_names,
         const std::vector<OpenDims>& open) {
        const onnx::SaveOptions options{
            .opset = opset, .batch = batch, .inputs = std::move(input_names), .outputs = std::move(output_names)};
        save_module(module, opened(inputs, open), path, options);
      },
      nb::arg("module"), nb::arg("inputs"), nb::arg("path"), nb::arg("opset") = 20, nb::arg("batch") = "batch",
      nb::arg("input_names") = std::vector<std::string>{}, nb::arg("output_names") = std::vector<std::string>{},
      nb::arg("open") = std::vector<OpenDims>{});
  m.def("inspect", &onnx::inspect, nb::arg("path"), nb::call_guard<Unlocked>(),
        "What a file holds, whether it can run here or not.");
}

}  // namespace tessera::python
