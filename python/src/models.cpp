// The zoo: models with published weights, by name.
#include "tessera/models.h"
#include "module.h"

namespace tessera::python {

void bind_models(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_models");
  m.def("descriptions", [] {
    std::map<std::string, std::string> out;
    for (const models::ZooModel& model : models::zoo()) out[model.name] = model.description;
    return out;
  });
  m.def(
      "make",
      [](const std::string& name, const std::optional<StateDict>& weights, Generator* generator) {
        const Unlocked unlocked;
        const models::ZooModel& model = models::zoo_model(name);
        const std::shared_ptr<nn::Module> made = model.make(generator_or_default(generator));
        if (weights) made->load_state_dict(model.convert(*weights));
        return made;
      },
      nb::arg("name"), nb::arg("weights") = nb::none(), nb::arg("generator").none() = nb::none());
  m.def(
      "example_inputs",
      [](const std::string& name, int64_t batch, Generator* generator) {
        return models::zoo_model(name).inputs(batch, generator_or_default(generator));
      },
      nb::arg("name"), nb::arg("batch") = 1, nb::arg("generator").none() = nb::none());
}

}  // namespace tessera::python
