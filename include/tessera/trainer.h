// A training loop: micro-batches, ranks, mixed precision, checkpoints and signals. The model, the batches and the loss
// are the program's.
//
//   train::Trainer trainer(model, optimizer, {.batches = shuffled_rows({x, y}, 32, 1), .loss = loss},
//                          {.until = train::steps(1000), .checkpoint = "run/checkpoint"}, &world);
//   trainer.run();
//
// Ranks share the micro-batches of a step. The losses are the same bit for bit on every number of ranks that gives each
// a power of two of them, or one rank all, and through every stop: on Ctrl-C a run saves, and then it goes on from
// there.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/amp.h"
#include "tessera/data.h"
#include "tessera/dist.h"
#include "tessera/io.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera::train {

/// Whether and how products are made in a lower precision.
enum class Amp { Off, BFloat16, Float16 };
/// "off", "bf16", "fp16".
std::string name(Amp amp);
/// The region of a run; disabled with Amp::Off.
amp::Autocast autocast(Amp amp, bool lower_residual = false);

enum class OnNan { Stop, Skip };

/// How long, or how often; 0: never. Items are what batches count: tokens, images.
struct Every {
  enum class Unit { Steps, Items, Epochs };
  int64_t count = 0;
  Unit unit = Unit::Steps;
};
inline Every steps(int64_t count) { return {count, Every::Unit::Steps}; }
inline Every items(int64_t count) { return {count, Every::Unit::Items}; }
inline Every epochs(int64_t count) { return {count, Every::Unit::Epochs}; }

/// When a run goes on from its checkpoint. AfterRestart: where `tessera launch` began it anew, and the checkpoint is of
/// this launch.
enum class Resume { Never, Always, IfThere, AfterRestart };
/// Whether a run with that checkpoint goes on from it; "Always" does not ask whether it is there.
bool resumes(Resume resume, const std::string& checkpoint);

/// What a step is made of.
struct Work {
  BatchSource batches;  ///< micro-batch i of the run, whichever rank takes it
  /// The mean loss over the items of a batch.
  std::function<Tensor(const Tensors& batch)> loss;
  /// Instead of `loss`, for a model that has a cheaper way: the loss, after the backward of loss times weight.
  std::function<Tensor(const Tensors& batch, const Tensor& weight)> loss_and_backward = {};
  /// The items of a batch, by which its loss is weighted; absent: 1.
  std::function<int64_t(const Tensors& batch)> count = {};
  int64_t items = 0;      ///< of each batch, where all have as many: then ranks need not tell each other
  int64_t epoch = 0;      ///< batches of an epoch, for what is counted in epochs
  bool resident = false;  ///< batches are on the device already
  BatchSource validation = {};
  int64_t validation_batches = 0;
};

/// Of Options::microbatch: as many samples as fit.
inline constexpr int64_t kAutoMicrobatch = -1;

struct Options {
  Every until = steps(1000);  ///< the length of the run
  int64_t accumulate = 1;     ///< micro-batches of each step
  /// Samples of a batch, which dim 0 of its tensors counts, that go through the model at a time; 0: all. Where it is
  /// kAutoMicrobatch, a batch that does not fit into memory is tried again by halves, on all ranks alike. Last bits of
  /// gradients, what dropout draws and statistics of norms are those of this size.
  int64_t microbatch = 0;
  optim::Schedule schedule = optim::constant();  ///< of the learning rate
  double clip = 0;                               ///< largest norm of the gradient; 0: any
  Amp amp = Amp::Off;                            ///< with Float16, losses are scaled
  bool lower_residual = false;                   ///< see amp::Autocast
  OnNan on_nan = OnNan::Stop;
  uint64_t seed = 0;  ///< of what the loss draws, such as dropout
  Device device = {};
  int64_t report_interval = 1;  ///< steps after which losses are read: until then nothing waits for a GPU
  /// Ranks step by themselves and average now and then, instead of having gradients in common in each step. Before an
  /// evaluation, a save and the end all ranks become one: parameters, moments and buffers become their means. After
  /// the warm-up, losses and norms of steps are each rank's own. `first_step` is the trainer's.
  std::optional<dist::LocalSGDOptions> local_sgd = {};
  /// In which gradients travel between ranks otherwise, such as BFloat16; absent: as they are.
  std::optional<DType> gradient_dtype = {};
  Every evaluate = {};          ///< on the validation batches, and at the end
  Every save = {};              ///< and at the end
  std::string checkpoint = {};  ///< file to write, or empty: none
  int64_t keep = 2;  ///< checkpoints that stay: FILE, FILE.1 before it, ...; a run goes on from the newest whole one
  Resume resume = Resume::IfThere;
  Metadata metadata = {};  ///< of the checkpoint: what belongs to the model
  /// Sees, and may change or refuse, the checkpoint that the run goes on from.
  std::function<void(Checkpoint&)> on_load = {};
  bool catch_signals = true;  ///< in run(): the first SIGINT or SIGTERM saves and returns, the second one kills
};

struct StepInfo {
  int64_t step = 0;  ///< counted from 1
  double loss = 0, ms = 0;
  double lr = 0, grad_norm = 0;
  bool skipped = false;   ///< loss or gradient were not finite
  double loss_scale = 1;  ///< after the step; of the steps before a resume unknown
};
struct EvalInfo {
  int64_t step = 0;
  double loss = 0;  ///< mean over the items of all validation batches
};

struct Callbacks {
  std::function<void(int64_t first_step)> on_start = {};  ///< the step that a resumed run goes on from
  std::function<void(const StepInfo&)> on_step = {};      ///< of each step, once its loss has been read
  std::function<void(const EvalInfo&)> on_eval = {};
  std::function<void(int64_t step)> on_checkpoint = {};
  /// What somebody should read, in a line: that the newest checkpoint is damaged and the run goes on from an older one.
  std::function<void(const std::string&)> on_note = {};
  /// With kAutoMicrobatch, on each rank: so many samples at a time fit; `too_many` did not, or 0.
  std::function<void(int64_t samples, int64_t too_many)> on_microbatch = {};
  const std::atomic<bool>* stop = nullptr;  ///< when it becomes true, training saves and returns
};

struct Result {
  std::vector<StepInfo> steps;  ///< of the whole run, also of the part before a resume
  std::vector<EvalInfo> evals;
  std::optional<double> val_loss;  ///< after the last step; absent if stopped, or without validation
  int64_t items = 0, skipped = 0;
  /// Milliseconds that steps since the last resume took on the host of each rank, without what it waited for others:
  /// [rank][step]. Empty with one rank.
  std::vector<std::vector<double>> own_ms;
  int64_t microbatch = 0;         ///< samples that went through the model at a time; 0: all of a batch
  int64_t peak_memory_bytes = 0;  ///< of tensors, in any part of the run on this rank
  bool stopped = false;
};

/// A run of training, as one of the ranks of `group` where there is one. Buffers, such as statistics of norms, become
/// the mean of what the micro-batches of a step make of them.
class Trainer {
 public:
  /// Parameters begin as those of rank 0, or as the checkpoint has them. What is given lives longer than the trainer.
  /// Throws Error or FileError: options that cannot be, ranks that do not divide the micro-batches of a step, a
  /// checkpoint that is missing, damaged as all before it, or of another model.
  Trainer(nn::Module& model, optim::Optimizer& optimizer, Work work, Options options = {},
          const dist::Group* group = nullptr);
  ~Trainer();

  /// Trains to the end, or to a stop, and saves. Throws Error: a full disk, or (OnNan::Stop) a loss or gradient that is
  /// not finite; the last checkpoint stays. With Amp::Float16 gradients that overflow only lower the scale of the loss.
  Result run(const Callbacks& callbacks = {});

 private:
  class Run;
  std::unique_ptr<Run> run_;
};

/// While it lives, the first SIGINT or SIGTERM sets `stop_requested()`, and a second one kills.
class [[nodiscard]] CaughtSignals {
 public:
  CaughtSignals();
  ~CaughtSignals();
  CaughtSignals(const CaughtSignals&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};
std::atomic<bool>& stop_requested();
/// The signal that was caught; 0: none.
int caught_signal();

}  // namespace tessera::train
