// Ranks, collectives and data parallelism.
#include "tessera/dist.h"
#include "module.h"

namespace tessera::python {
namespace {

using dist::Group;

dist::ReduceOp op_of(const std::string& text) {
  for (const dist::ReduceOp op : {dist::Sum, dist::Mean, dist::Product, dist::Max, dist::Min})
    if (dist::name(op) == text) return op;
  throw nb::value_error(("op is \"" + text + "\", not sum, mean, product, max or min").c_str());
}

/// The scope of DataParallel::no_sync().
class NoSync {
 public:
  explicit NoSync(dist::DataParallel parallel) : parallel_(std::move(parallel)) {}
  NoSync(const NoSync&) = delete;
  void enter() { scopes_.emplace_back(new dist::DataParallel::NoSync(parallel_.no_sync())); }
  void exit() { scopes_.pop_back(); }

 private:
  dist::DataParallel parallel_;
  std::vector<std::unique_ptr<dist::DataParallel::NoSync>> scopes_;
};

void bind_groups(nb::module_& m) {
  nb::class_<Group>(m, "Group", "Ranks that call collectives together, all in the same order.")
      .def_prop_ro("rank", &Group::rank, "This process's place in the group, from 0.")
      .def_prop_ro("size", &Group::size, "How many ranks there are.")
      .def_prop_ro(
          "engine", [](const Group& g) { return std::string(g.engine()); }, "How its ranks exchange bytes.")
      .def("split", &Group::split, nb::arg("color"), nb::call_guard<Unlocked>(),
           "Those ranks that give the same color, in their order. Every rank calls it.");
  nb::class_<dist::World, Group>(m, "World",
                                 "All ranks that `tessera launch` began; a process of its own is the only one.")
      .def(
          "__init__",
          [](dist::World* made, double timeout) { new (made) dist::World(dist::WorldOptions{.timeout = timeout}); },
          nb::arg("timeout") = 1800.0)
      .def_prop_ro("local_rank", &dist::World::local_rank, "The rank among those of this host.");
  nb::class_<dist::Work>(m, "Work", "A collective on its way.")
      .def("wait", &dist::Work::wait, nb::call_guard<Unlocked>(), "What it gave; raises what it raised.")
      .def("done", &dist::Work::done, "Whether it has ended.");
}

void bind_collectives(nb::module_& m) {
  const auto reduces = [](auto fn) {
    return [fn](const Tensor& x, const Group& group, const std::string& op) { return fn(x, group, op_of(op)); };
  };
  m.def("_all_reduce", reduces(&dist::all_reduce), nb::arg("input"), nb::arg("group"), nb::arg("op") = "sum",
        nb::call_guard<Unlocked>());
  m.def("_reduce_scatter", reduces(&dist::reduce_scatter), nb::arg("input"), nb::arg("group"), nb::arg("op") = "sum",
        nb::call_guard<Unlocked>());
  m.def(
      "_reduce",
      [](const Tensor& x, int root, const Group& group, const std::string& op) {
        return dist::reduce(x, root, group, op_of(op));
      },
      nb::arg("input"), nb::arg("root"), nb::arg("group"), nb::arg("op") = "sum", nb::call_guard<Unlocked>());
  m.def("_all_gather", &dist::all_gather, nb::arg("input"), nb::arg("group"), nb::call_guard<Unlocked>());
  m.def("_gather", &dist::gather, nb::arg("input"), nb::arg("root"), nb::arg("group"), nb::call_guard<Unlocked>());
  m.def("_scatter", &dist::scatter, nb::arg("input"), nb::arg("root"), nb::arg("group"), nb::call_guard<Unlocked>());
  m.def("_broadcast", &dist::broadcast, nb::arg("input"), nb::arg("root"), nb::arg("group"),
        nb::call_guard<Unlocked>());
  m.def("_all_to_all", &dist::all_to_all, nb::arg("input"), nb::arg("group"), nb::call_guard<Unlocked>());
  m.def("_send", &dist::send, nb::arg("input"), nb::arg("to"), nb::arg("group"), nb::call_guard<Unlocked>());
  m.def(
      "_recv",
      [](const std::vector<int64_t>& shape, int from, const Group& group, DType dtype) {
        return dist::recv({Shape(shape.begin(), shape.end()), dtype, cpu()}, from, group);
      },
      nb::arg("shape"), nb::arg("from_rank"), nb::arg("group"), nb::arg("dtype") = Float32, nb::call_guard<Unlocked>());
  m.def("_barrier", &dist::barrier, nb::arg("group"), nb::call_guard<Unlocked>());
}

}  // namespace

void bind_dist(nb::module_& m) {
  nb::exception<dist::Aborted>(m, "Aborted", m.attr("Error")).attr("__doc__") =
      "The run was ended for all ranks: the message says which one failed, and why.";
  bind_groups(m);
  bind_collectives(m);
  m.def(
      "_sync_batch_norms", [](nn::Module& model, const Group& group) { return dist::sync_batch_norms(model, group); },
      nb::arg("model"), nb::arg("group"));
  nb::class_<NoSync>(m, "NoSync", "A scope of DataParallel.no_sync().")
      .def("__enter__", &NoSync::enter)
      .def("__exit__", [](NoSync& s, const nb::args&) { s.exit(); });
  nb::class_<dist::DataParallel>(m, "DataParallel",
                                 "Each rank has the whole model and a part of the batch: after each backward the "
                                 "gradients of all ranks are one. Parameters begin as those of rank 0.")
      .def(
          "__init__",
          [](dist::DataParallel* made, const nn::Module& model, const Group& group, const std::string& op) {
            new (made) dist::DataParallel(model, group, {.op = op_of(op)});
          },
          nb::arg("model"), nb::arg("group"), nb::arg("op") = "mean", nb::call_guard<Unlocked>())
      .def(
          "no_sync", [](const dist::DataParallel& p) { return new NoSync(p); }, nb::rv_policy::take_ownership,
          "A `with` block in which backward adds to this rank's gradients alone.")
      .def("reduce", &dist::DataParallel::reduce, nb::call_guard<Unlocked>(),
           "Makes the gradients of all ranks one now, as the end of backward does.");
}

}  // namespace tessera::python
