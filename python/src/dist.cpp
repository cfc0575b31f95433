// Ranks, collectives and data parallelism.
#include "tessera/dist.h"

#include <csignal>

#include <nanobind/stl/map.h>
#include <nanobind/stl/variant.h>
#include "module.h"
#include "scopes.h"

namespace tessera::python {
namespace {

/// "2:8,8:128", or a period and how many neighbours then average.
using Hierarchy = std::variant<std::string, std::map<int64_t, int>>;
std::vector<dist::AveragingLevel> levels_of(const Hierarchy& hierarchy, int64_t period) {
  std::vector<dist::AveragingLevel> levels;
  if (const auto* text = std::get_if<std::string>(&hierarchy)) {
    if (!text->empty()) levels = dist::parse_hierarchy(*text);
  } else {
    for (const auto& [every, ranks] : std::get<1>(hierarchy)) levels.push_back({every, ranks});
  }
  if (levels.empty()) levels = {{period, 0}};
  return levels;
}

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

// By the signal that asks a rank where it is, as in dist/stack_trace.h, whose handler is called after it.
void show_python_stack() {
  nb::module_::import_("faulthandler")
      .attr("register")(SIGURG, nb::arg("all_threads") = false, nb::arg("chain") = true);
}

using Phase = Scope<dist::InPhase, Group, dist::Phase>;

void bind_groups(nb::module_& m) {
  nb::class_<Group>(m, "Group", "Ranks that call collectives together, all in the same order.")
      .def_prop_ro("rank", &Group::rank, "This process's place in the group, from 0.")
      .def_prop_ro("size", &Group::size, "How many ranks there are.")
      .def_prop_ro(
          "engine", [](const Group& g) { return std::string(g.engine()); }, "How its ranks exchange bytes.")
      .def(
          "engine_of", [](const Group& g, Device device) { return g.engine(device); }, nb::arg("device"),
          "The same of tensors on a device, known after the first collective of one.")
      .def("split", &Group::split, nb::arg("color"), nb::call_guard<Unlocked>(),
           "Those ranks that give the same color, in their order. Every rank calls it.");
  nb::class_<dist::World, Group>(m, "World",
                                 "All ranks that `tessera launch` began; a process of its own is the only one.")
      .def(
          "__init__",
          [](dist::World* made, double timeout, const std::string& engine, bool even_alone) {
            new (made) dist::World({.timeout = timeout, .engine = engine, .even_alone = even_alone});
            if (made->size() == 1) return;
            show_python_stack();
            nb::module_::import_("tessera.distributed").attr("_end_in_a_line")();
          },
          nb::arg("timeout") = 0.0, nb::arg("engine") = "", nb::arg("even_alone") = false)
      .def("device", &dist::World::device, nb::arg("first"),
           "Of GPUs the one so many behind the first as this rank's place on its host; the CPU as it is.")
      .def_prop_ro("local_rank", &dist::World::local_rank, "The rank among those of this host.");
  nb::class_<dist::Work>(m, "Work", "A collective on its way.")
      .def("wait", &dist::Work::wait, nb::call_guard<Unlocked>(), "What it gave; raises what it raised.")
      .def("done", &dist::Work::done, "Whether it has ended.");
}

const Group& group_among(const Group& group) { return group; }
template <class First, class... Rest>
const Group& group_among(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<First, Group>) return first;
  else return group_among(rest...);
}

/// The collective itself, and under the name that begins with _start the same as Work.
template <class... Args, class... Extra>
void bind_collective(nb::module_& m, const std::string& name, Tensor (*fn)(Args...), const Extra&... extra) {
  m.def(name.c_str(), fn, extra..., nb::call_guard<Unlocked>());
  m.def(("_start" + name).c_str(),
        [fn](Args... args) {
          return dist::start(group_among(args...),
                             [fn, kept = std::tuple<std::decay_t<Args>...>(args...)] { return std::apply(fn, kept); });
        },
        extra..., nb::call_guard<Unlocked>());
}

void bind_collectives(nb::module_& m) {
  const nb::arg input("input"), group("group"), root("root");
  const auto op = nb::arg("op") = "sum";
  using Text = const std::string&;
  bind_collective(
      m, "_all_reduce", +[](const Tensor& x, const Group& g, Text op) { return dist::all_reduce(x, g, op_of(op)); },
      input, group, op);
  bind_collective(
      m, "_reduce_scatter",
      +[](const Tensor& x, const Group& g, Text op) { return dist::reduce_scatter(x, g, op_of(op)); }, input, group,
      op);
  bind_collective(
      m, "_reduce",
      +[](const Tensor& x, int root, const Group& g, Text op) { return dist::reduce(x, root, g, op_of(op)); }, input,
      root, group, op);
  bind_collective(m, "_all_gather", &dist::all_gather, input, group);
  bind_collective(m, "_gather", &dist::gather, input, root, group);
  bind_collective(m, "_scatter", &dist::scatter, input, root, group);
  bind_collective(m, "_broadcast", &dist::broadcast, input, root, group);
  bind_collective(m, "_all_to_all", &dist::all_to_all, input, group);
  m.def(
      "_all_reduce_", [](const Tensors& tensors, const Group& g, Text op) { dist::all_reduce_(tensors, g, op_of(op)); },
      nb::arg("tensors"), group, op, nb::call_guard<Unlocked>());
  m.def("_send", &dist::send, input, nb::arg("to"), group, nb::call_guard<Unlocked>());
  m.def(
      "_recv",
      [](const std::vector<int64_t>& shape, int from, const Group& group, DType dtype, Device device) {
        return dist::recv({Shape(shape.begin(), shape.end()), dtype, device}, from, group);
      },
      nb::arg("shape"), nb::arg("from_rank"), group, nb::arg("dtype") = Float32, nb::arg("device") = cpu(),
      nb::call_guard<Unlocked>());
  m.def("_barrier", &dist::barrier, group, nb::call_guard<Unlocked>());
}

dist::Phase phase_of(const std::string& text) {
  constexpr std::string_view names[] = {"other", "data", "compute", "checkpoint"};
  for (size_t i = 0; i < std::size(names); ++i)
    if (names[i] == text) return static_cast<dist::Phase>(i);
  throw nb::value_error(("phase is \"" + text + "\", not other, data, compute or checkpoint").c_str());
}

void bind_training(nb::module_& m) {
  using Overlap = dist::DataParallelOptions::Overlap;
  nb::class_<NoSync>(m, "NoSync", "A scope of DataParallel.no_sync().")
      .def("__enter__", &NoSync::enter)
      .def("__exit__", [](NoSync& s, const nb::args&) { s.exit(); });
  nb::class_<dist::DataParallel>(m, "DataParallel",
                                 "Each rank has the whole model and a part of the batch: after each backward the "
                                 "gradients of all ranks are one. Parameters begin as those of rank 0. Gradients "
                                 "travel in buckets of so many bytes, on GPUs while backward goes on unless overlap "
                                 "says otherwise, and in gradient_dtype if that is given.")
      .def(
          "__init__",
          [](dist::DataParallel* made, const nn::Module& model, const Group& group, const std::string& op,
             int64_t bucket_bytes, int64_t first_bucket_bytes, std::optional<bool> overlap,
             std::optional<DType> gradient_dtype) {
            new (made) dist::DataParallel(model, group,
                                          {op_of(op), bucket_bytes, first_bucket_bytes,
                                           !overlap   ? Overlap::Auto
                                           : *overlap ? Overlap::Always
                                                      : Overlap::Never,
                                           gradient_dtype});
          },
          nb::arg("model"), nb::arg("group"), nb::arg("op") = "mean", nb::kw_only(),
          nb::arg("bucket_bytes") = dist::DataParallelOptions{}.bucket_bytes,
          nb::arg("first_bucket_bytes") = dist::DataParallelOptions{}.first_bucket_bytes,
          nb::arg("overlap") = nb::none(), nb::arg("gradient_dtype") = nb::none(), nb::call_guard<Unlocked>())
      .def(
          "no_sync", [](const dist::DataParallel& p) { return new NoSync(p); }, nb::rv_policy::take_ownership,
          "A `with` block in which backward adds to this rank's gradients alone.")
      .def("reduce", &dist::DataParallel::reduce, nb::call_guard<Unlocked>(),
           "Makes the gradients of all ranks one now, as the end of backward does.");
  nb::class_<dist::GradientSum>(m, "GradientSum",
                                "Adds up the gradients of a step's micro-batches in an order that neither their number "
                                "on each rank nor the number of ranks changes.")
      .def(nb::init<std::vector<Tensor>>(), nb::arg("parameters"))
      .def("add", &dist::GradientSum::add, nb::call_guard<Unlocked>(),
           "After the backward of a micro-batch, whose gradients it takes.")
      .def("finish", &dist::GradientSum::finish, nb::call_guard<Unlocked>(),
           "Leaves the sum in the parameters, and begins anew.")
      .def("clear", &dist::GradientSum::clear, "Begins anew without it.");
  nb::class_<dist::LocalSGDOptions>(m, "LocalSGDOptions",
                                    "The options of LocalSGD, as it and train.Options.local_sgd take them.")
      .def(
          "__init__",
          [](dist::LocalSGDOptions* made, const Hierarchy& hierarchy, int64_t period, int64_t warmup,
             int gradients_within, double outer_momentum) {
            new (made) dist::LocalSGDOptions{levels_of(hierarchy, period), warmup, gradients_within, outer_momentum, 0};
          },
          nb::arg("hierarchy") = "", nb::kw_only(), nb::arg("period") = 4, nb::arg("warmup") = 0,
          nb::arg("gradients_within") = 1, nb::arg("outer_momentum") = 0.0);
  nb::class_<dist::LocalSGD>(
      m, "LocalSGD",
      "Ranks that step by themselves and average their parameters now and then. `hierarchy` maps "
      "periods to how many neighbours then average, as {2: 8, 8: 128} or \"2:8,8:128\"; without it "
      "all ranks do after each `period` steps. In the first `warmup` steps gradients are those of "
      "all ranks, and later of blocks of `gradients_within`. It does what DataParallel does.")
      .def(
          "__init__",
          [](dist::LocalSGD* made, const nn::Module& model, const Group& group, const Hierarchy& hierarchy,
             int64_t period, int64_t warmup, int gradients_within, double outer_momentum, int64_t first_step) {
            const dist::LocalSGDOptions options{levels_of(hierarchy, period), warmup, gradients_within, outer_momentum,
                                                first_step};
            new (made) dist::LocalSGD(model, group, options);
          },
          nb::arg("model"), nb::arg("group"), nb::arg("hierarchy") = "", nb::kw_only(), nb::arg("period") = 4,
          nb::arg("warmup") = 0, nb::arg("gradients_within") = 1, nb::arg("outer_momentum") = 0.0,
          nb::arg("first_step") = 0, nb::keep_alive<1, 2>(), nb::call_guard<Unlocked>())
      .def(
          "__init__",
          [](dist::LocalSGD* made, const nn::Module& model, const Group& group, dist::LocalSGDOptions options,
             int64_t first_step) {
            options.first_step = first_step;
            new (made) dist::LocalSGD(model, group, options);
          },
          nb::arg("model"), nb::arg("group"), nb::arg("options"), nb::kw_only(), nb::arg("first_step") = 0,
          nb::keep_alive<1, 2>(), nb::call_guard<Unlocked>())
      .def("step", &dist::LocalSGD::step, nb::arg("lr") = 1.0, nb::call_guard<Unlocked>(),
           "After each step of the optimizer; `lr` scales outer momentum.")
      .def("average", &dist::LocalSGD::average, nb::call_guard<Unlocked>(),
           "Makes all ranks' parameters their average now, as a checkpoint wants them.")
      .def_prop_ro("steps", &dist::LocalSGD::steps, "How many steps there were.")
      .def("all_met", &dist::LocalSGD::all_met, "Whether all ranks exchanged something in the last step.")
      .def("state_dict", &dist::LocalSGD::state_dict, "What outer momentum needs to go on; empty without it.")
      .def("load_state_dict", &dist::LocalSGD::load_state_dict, nb::arg("state_dict"))
      .def("level_at", &dist::LocalSGD::level_at, nb::arg("step"), "The level that averages after that step, or None.")
      .def_static(
          "level_of",
          [](const std::map<int64_t, int>& hierarchy, int64_t warmup, int64_t step) {
            std::vector<dist::AveragingLevel> levels;
            for (const auto& [every, ranks] : hierarchy) levels.push_back({every, ranks});
            return dist::LocalSGD::level_of(levels, warmup, step);
          },
          nb::arg("hierarchy"), nb::arg("warmup"), nb::arg("step"), "The same of any hierarchy.");
  bind_scope<Phase>(m, "Phase", "A scope of phase().");
  m.def(
      "_phase", [](const Group& group, const std::string& phase) { return new Phase(group, phase_of(phase)); },
      nb::rv_policy::take_ownership, nb::arg("group"), nb::arg("phase"));
  m.def("_set_step", &dist::set_step, nb::arg("group"), nb::arg("step"));
  m.def("_explain_engines", &dist::explain_engines, nb::arg("group"), nb::arg("device") = cpu());
}

}  // namespace

void bind_dist(nb::module_& m) {
  const nb::exception<dist::Aborted> aborted(m, "Aborted", m.attr("Error"));
  aborted.attr("__doc__") = "The run was ended for all ranks: the message says which one failed, and why.";
  // Ctrl-C ends all ranks. One that waited then raises KeyboardInterrupt, not how another one ended.
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const dist::Aborted& e) {
          if (PyErr_CheckSignals() == 0) PyErr_SetString(static_cast<PyObject*>(type), e.what());
        }
      },
      aborted.ptr());
  bind_groups(m);
  bind_collectives(m);
  m.def(
      "_sync_batch_norms", [](nn::Module& model, const Group& group) { return dist::sync_batch_norms(model, group); },
      nb::arg("model"), nb::arg("group"));
  bind_training(m);
}

}  // namespace tessera::python
