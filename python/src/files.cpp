// Files: safetensors, npy, checkpoints.
#include "module.h"

namespace tessera::python {

void bind_files(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_io");
  m.def("load_safetensors", &load_safetensors, nb::arg("path"), nb::call_guard<Unlocked>(),
        "All tensors of the file, as views of it, by their names.");
  m.def(
      "safetensors_metadata", [](const std::string& path) { return SafeTensors(path).metadata(); }, nb::arg("path"),
      "Free text that a safetensors file carries.");
  m.def("save_safetensors", &save_safetensors, nb::arg("path"), nb::arg("tensors"), nb::arg("metadata") = Metadata{},
        nb::call_guard<Unlocked>(), "Writes atomically.");
  m.def("load_npy", &load_npy, nb::arg("path"), nb::call_guard<Unlocked>(), "The tensor that a file of NumPy holds.");
  m.def("save_npy", &save_npy, nb::arg("path"), nb::arg("tensor"), nb::call_guard<Unlocked>(), "Writes atomically.");
  m.def(
      "save_checkpoint",
      [](const std::string& path, const StateDict& tensors, const Metadata& metadata) {
        save_checkpoint(path, {tensors, metadata});
      },
      nb::arg("path"), nb::arg("tensors"), nb::arg("metadata") = Metadata{}, nb::call_guard<Unlocked>(),
      "Writes atomically: the path holds the old checkpoint or the new one.");
  m.def(
      "load_checkpoint",
      [](const std::string& path) {
        const Checkpoint checkpoint = [&] {
          const Unlocked unlocked;
          return load_checkpoint(path);
        }();
        return nb::make_tuple(checkpoint.tensors, checkpoint.metadata);
      },
      nb::arg("path"), "The tensors and the metadata of a checkpoint.");
}

}  // namespace tessera::python
