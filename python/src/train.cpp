// The training loop, whose parts may be functions of Python.
#include "tessera/trainer.h"

#include <fmt/format.h>

#include "module.h"

namespace nanobind::detail {

namespace train = tessera::train;

struct AmpNames {
  static constexpr const char *what = "amp", *all[] = {"off", "bf16", "fp16"};
};
struct OnNanNames {
  static constexpr const char *what = "on_nan", *all[] = {"stop", "skip"};
};
struct ResumeNames {
  static constexpr const char *what = "resume", *all[] = {"never", "always", "if_there", "after_restart"};
};
template <>
struct type_caster<train::Amp> : named_caster<train::Amp, AmpNames> {};
template <>
struct type_caster<train::OnNan> : named_caster<train::OnNan, OnNanNames> {};
template <>
struct type_caster<train::Resume> : named_caster<train::Resume, ResumeNames> {};

}  // namespace nanobind::detail

namespace tessera::python {
namespace {

using train::Every, train::EvalInfo, train::Options, train::Result, train::StepInfo;
using Loss = std::function<Tensor(const Tensors& batch)>;

constexpr const char* kUnits[] = {"steps", "items", "epochs"};

/// The trainer, and what it refers to. Its loader's thread calls Python, whose lock is let go while that thread ends.
class PythonTrainer {
 public:
  PythonTrainer(nn::Module& model, optim::Optimizer& optimizer, train::Work work, Options options,
                std::optional<dist::Group> group)
      : group_(std::move(group)),
        trainer_(std::make_unique<train::Trainer>(model, optimizer, std::move(work), std::move(options),
                                                  group_ ? &*group_ : nullptr)) {}
  PythonTrainer(const PythonTrainer&) = delete;
  ~PythonTrainer() {
    const Unlocked unlocked;
    trainer_.reset();
  }

  Result run(train::Callbacks callbacks) {
    callbacks.stop = &stop_;
    return trainer_->run(callbacks);
  }
  void stop() { stop_ = true; }

 private:
  std::optional<dist::Group> group_;
  std::unique_ptr<train::Trainer> trainer_;
  std::atomic<bool> stop_{false};
};

// A loss that forgot its `return` is none.
Loss checked(Loss loss) {
  if (!loss) return loss;
  return [loss = std::move(loss)](const Tensors& batch) {
    Tensor out = loss(batch);
    if (!out.defined()) throw Error("train: the loss returned None");
    return out;
  };
}

// A function of dicts, which may change them.
std::function<void(Checkpoint&)> changes_of(nb::object function) {
  if (function.is_none()) return {};
  // The last copy may go where Python's lock is not held.
  const std::shared_ptr<nb::object> shared(new nb::object(std::move(function)), [](nb::object* o) {
    const nb::gil_scoped_acquire locked;
    delete o;
  });
  return [shared](Checkpoint& checkpoint) {
    const nb::gil_scoped_acquire locked;
    const nb::object tensors = nb::cast(checkpoint.tensors), metadata = nb::cast(checkpoint.metadata);
    (*shared)(tensors, metadata);
    checkpoint.tensors = nb::cast<StateDict>(tensors);
    checkpoint.metadata = nb::cast<Metadata>(metadata);
  };
}

void bind_every(nb::module_& m) {
  nb::class_<Every>(m, "Every", "How long, or how often, in steps, items or epochs; 0: never.")
      .def_ro("count", &Every::count)
      .def_prop_ro("unit", [](const Every& e) { return kUnits[static_cast<int>(e.unit)]; })
      .def("__repr__", [](const Every& e) { return fmt::format("{}({})", kUnits[static_cast<int>(e.unit)], e.count); });
  const nb::arg count("count");
  m.def("steps", &train::steps, count, "So many steps.");
  m.def("items", &train::items, count, "So many of what batches count: tokens, images.");
  m.def("epochs", &train::epochs, count, "So many times the batches of an epoch.");
}

// A line for each option.
void bind_options(nb::module_& m) {
  nb::class_<Options>(m, "Options",
                      "What Trainer() does beside its work, by names: Options(until=steps(100), clip=1.0).")
      .def("__init__",
           [](nb::handle self, const nb::kwargs& given) {
             new (nb::inst_ptr<Options>(self)) Options();
             nb::inst_mark_ready(self);
             for (const auto& [name, value] : given) {
               if (!nb::hasattr(self.type(), name))
                 throw nb::type_error(fmt::format("there is no option '{}'", nb::str(name).c_str()).c_str());
               nb::setattr(self, name, value);
             }
           })
      .def_rw("until", &Options::until, "The length of the run.")
      .def_rw("accumulate", &Options::accumulate, "Micro-batches of each step, which ranks share.")
      .def_rw("microbatch", &Options::microbatch,
              "Samples of a batch that go through the model at a time; 0: all, AUTO_MICROBATCH: as many as fit.")
      .def_rw("local_sgd", &Options::local_sgd, "distributed.LocalSGDOptions, for ranks that average now and then.")
      .def_rw("gradient_dtype", &Options::gradient_dtype, "In which gradients travel between ranks; None: as they are.")
      .def_rw("schedule", &Options::schedule, "Of the learning rate: a factor by step, as optim.warmup_cosine() gives.")
      .def_rw("clip", &Options::clip, "Largest norm of the gradient; 0: any.")
      .def_rw("amp", &Options::amp, "\"off\", \"bf16\" or \"fp16\", which also scales the loss.")
      .def_rw("lower_residual", &Options::lower_residual, "As of amp.autocast().")
      .def_rw("on_nan", &Options::on_nan, "\"stop\", or \"skip\" steps whose loss or gradient is not finite.")
      .def_rw("seed", &Options::seed, "Of what the loss draws, such as dropout.")
      .def_rw("device", &Options::device, "Where the model is.")
      .def_rw("report_interval", &Options::report_interval, "Steps after which losses are read.")
      .def_rw("evaluate", &Options::evaluate, "How often on the validation batches, beside the end.")
      .def_rw("save", &Options::save, "How often, beside the end.")
      .def_rw("checkpoint", &Options::checkpoint, "The file to write; empty: none.")
      .def_rw("keep", &Options::keep, "Checkpoints that stay: FILE, FILE.1 before it, and so on.")
      .def_rw("resume", &Options::resume,
              "From the checkpoint: \"never\", \"always\", \"if_there\", \"after_restart\".")
      .def_rw("metadata", &Options::metadata, "Text that goes into the checkpoint.")
      .def_rw("catch_signals", &Options::catch_signals, "The first Ctrl-C saves and returns, the second one kills.");
}

void bind_results(nb::module_& m) {
  nb::class_<StepInfo>(m, "StepInfo", "What a step came to; steps count from 1.")
      .def_ro("step", &StepInfo::step)
      .def_ro("loss", &StepInfo::loss)
      .def_ro("ms", &StepInfo::ms)
      .def_ro("lr", &StepInfo::lr)
      .def_ro("grad_norm", &StepInfo::grad_norm)
      .def_ro("skipped", &StepInfo::skipped, "Loss or gradient were not finite.")
      .def_ro("loss_scale", &StepInfo::loss_scale);
  nb::class_<EvalInfo>(m, "EvalInfo", "The mean loss over all validation batches, after a step.")
      .def_ro("step", &EvalInfo::step)
      .def_ro("loss", &EvalInfo::loss);
  nb::class_<Result>(m, "Result", "What a run came to, the part before a resume included.")
      .def_ro("steps", &Result::steps)
      .def_ro("evals", &Result::evals)
      .def_ro("val_loss", &Result::val_loss, "After the last step; None if stopped, or without validation.")
      .def_ro("items", &Result::items)
      .def_ro("skipped", &Result::skipped)
      .def_ro("microbatch", &Result::microbatch, "Samples that went through the model at a time; 0: all of a batch.")
      .def_ro("peak_memory_bytes", &Result::peak_memory_bytes)
      .def_ro("stopped", &Result::stopped);
}

void warn(const std::string& line) {
  const nb::gil_scoped_acquire locked;
  nb::module_::import_("warnings").attr("warn")(line);
}

void bind_trainer(nb::module_& m) {
  nb::class_<PythonTrainer>(
      m, "Trainer",
      "A training loop. `batches(i)` gives micro-batch i of the run as a sequence of tensors, in a thread of its own; "
      "`loss(batch)` is the mean over its items, of which `count(batch)` says how many there are, or `items` where all "
      "have as many. Ranks of `group` share the micro-batches of a step, and losses are the same on every number of "
      "ranks that gives each a power of two of them. `epoch`: batches of an epoch. `resident`: they are on the device. "
      "`on_load(tensors, metadata)` sees, and may change, the checkpoint that the run goes on from.")
      .def(
          "__init__",
          [](PythonTrainer* made, nn::Module& model, optim::Optimizer& optimizer, BatchSource batches, Loss loss,
             Options options, std::optional<dist::Group> group, std::function<int64_t(const Tensors&)> count,
             int64_t items, int64_t epoch, bool resident, BatchSource validation, int64_t validation_batches,
             nb::object on_load) {
            options.on_load = changes_of(std::move(on_load));
            train::Work work{.batches = std::move(batches),
                             .loss = checked(std::move(loss)),
                             .count = std::move(count),
                             .items = items,
                             .epoch = epoch,
                             .resident = resident,
                             .validation = std::move(validation),
                             .validation_batches = validation_batches};
            const Unlocked unlocked;
            new (made) PythonTrainer(model, optimizer, std::move(work), std::move(options), std::move(group));
          },
          nb::arg("model"), nb::arg("optimizer"), nb::arg("batches"), nb::arg("loss"), nb::arg("options") = Options(),
          nb::arg("group") = nb::none(), nb::kw_only(), nb::arg("count") = nb::none(), nb::arg("items") = 0,
          nb::arg("epoch") = 0, nb::arg("resident") = false, nb::arg("validation") = nb::none(),
          nb::arg("validation_batches") = 0, nb::arg("on_load") = nb::none(), nb::keep_alive<1, 2>(),
          nb::keep_alive<1, 3>())
      .def(
          "run",
          [](PythonTrainer& t, std::function<void(int64_t)> on_start, std::function<void(const StepInfo&)> on_step,
             std::function<void(const EvalInfo&)> on_eval, std::function<void(int64_t)> on_checkpoint,
             std::function<void(int64_t, int64_t)> on_microbatch, std::function<void(const std::string&)> on_note) {
            const train::Callbacks callbacks{.on_start = std::move(on_start),
                                             .on_step = std::move(on_step),
                                             .on_eval = std::move(on_eval),
                                             .on_checkpoint = std::move(on_checkpoint),
                                             .on_note = on_note ? std::move(on_note) : warn,
                                             .on_microbatch = std::move(on_microbatch)};
            const Unlocked unlocked;
            return t.run(callbacks);
          },
          nb::arg("on_start") = nb::none(), nb::arg("on_step") = nb::none(), nb::arg("on_eval") = nb::none(),
          nb::arg("on_checkpoint") = nb::none(), nb::arg("on_microbatch") = nb::none(), nb::arg("on_note") = nb::none(),
          "Trains to the end, or to a stop, and saves. `on_start` and `on_checkpoint` get the step, `on_microbatch` "
          "how "
          "many samples fit at a time and how many did not, `on_note` a line that somebody should read; without it "
          "that "
          "is a warning.")
      .def("stop", &PythonTrainer::stop, "Lets run() save and return after the step that it is in; from any thread.");
}

}  // namespace

void bind_train(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("_train");
  bind_every(m);
  bind_options(m);
  bind_results(m);
  bind_trainer(m);
  m.def("shuffled_rows", &shuffled_rows, nb::arg("columns"), nb::arg("batch"), nb::arg("seed") = 0,
        "Batches for a Trainer: rows of all columns, shuffled anew in each epoch; a last, smaller batch is left out.");
  m.attr("AUTO_MICROBATCH") = train::kAutoMicrobatch;
  m.def("caught_signal", &train::caught_signal, "The signal that has stopped a run; 0: none.");
}

}  // namespace tessera::python
