// Training a character-level GPT: everything but the user interface.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/training.h"
#include "tessera/data.h"
#include "tessera/device.h"
#include "tessera/dist.h"
#include "tessera/models.h"

namespace tessera::models {

enum class OnNan { Stop, Skip };

struct TrainOptions {
  GPTConfig model;                                   ///< vocab 0: as many as the text has characters
  int64_t steps = 2000, batch = 12, accumulate = 1;  ///< ranks share the batches of a step
  double lr = 1e-3, min_lr = 1e-4;                   ///< cosine from the first to the second after `warmup` steps
  int64_t warmup = 100;
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1;  ///< decay on matrices only
  double clip = 1;                                       ///< largest norm of the gradient; 0: any
  uint64_t seed = 1337;
  Amp amp = Amp::Off;           ///< with Float16, losses are scaled
  bool lower_residual = false;  ///< with amp: the residual stream and norms, too
  OnNan on_nan = OnNan::Stop;
  int64_t eval_interval = 250;        ///< steps between evaluations; 0: only at the end
  int64_t checkpoint_interval = 250;  ///< steps between checkpoints; 0: only at the end
  Device device;
  int64_t report_interval = 1;  ///< steps after which losses are read: until then nothing waits for a GPU

  std::string text;        ///< the text itself
  std::string init;        ///< GPT-2 weights in Hugging Face's names to start from, or empty
  std::string checkpoint;  ///< file to write, or empty: none
  bool resume = false;     ///< go on from that file
};

/// Names for --help.
std::vector<std::string> train_presets();
/// Throws Error that lists the known presets.
TrainOptions train_preset(const std::string& name);
/// What a checkpoint was trained with, without text, init and checkpoint. Throws FileError.
TrainOptions train_options_of(const std::string& checkpoint);

/// Throws Error that names the first option that cannot be.
void validate(const TrainOptions& options);

struct StepInfo {
  int64_t step = 0;  ///< counted from 1
  double loss = 0, ms = 0;
  double lr = 0, grad_norm = 0;
  bool skipped = false;   ///< loss or gradient were not finite
  double loss_scale = 1;  ///< after the step; of the steps before a resume unknown
};
struct EvalInfo {
  int64_t step = 0;
  double loss = 0;  ///< mean over the whole validation split
};

struct TrainCallbacks {
  /// Before the first step: parameters, tokens of each step, and the step that a resumed run goes on from.
  std::function<void(int64_t parameters, int64_t tokens_per_step, int64_t first_step)> on_start = {};
  std::function<void(const StepInfo&)> on_step = {};  ///< of each step, once its loss has been read
  std::function<void(const EvalInfo&)> on_eval = {};
  std::function<void(int64_t step)> on_checkpoint = {};
  const std::atomic<bool>* stop = nullptr;  ///< when it becomes true, training saves and returns
};

struct TrainResult {
  std::vector<StepInfo> steps;  ///< of the whole run, also of the part before a resume
  std::vector<EvalInfo> evals;
  std::optional<double> val_loss;  ///< after the last step; absent if stopped
  int64_t skipped = 0;
  double flops_per_step = 0;
  int64_t peak_memory_bytes = 0;  ///< of tensors, in this process's part
  bool stopped = false;
};

/// Trains and returns, as one of the ranks of `group` where there is one: rank 0 reports and saves. The same options,
/// threads and machine give bit-identical losses, whether or not the run was stopped and resumed in between, and on
/// every number of ranks that gives each a power of two of a step's batches, or one rank all. Throws Error or
/// FileError: bad options, a text that is too short, a checkpoint that is missing, damaged or of another configuration,
/// a full disk, or (OnNan::Stop) a loss or gradient that is not finite; the last checkpoint stays. With Amp::Float16
/// gradients that overflow only lower the scale of the loss.
TrainResult train_gpt(const TrainOptions& options, const TrainCallbacks& callbacks = {},
                      const dist::Group* group = nullptr);

/// A trained model and its tokenizer.
struct TrainedGPT {
  GPT model;
  CharTokenizer tokenizer;
};
/// Throws FileError.
TrainedGPT load_trained_gpt(const std::string& checkpoint);

}  // namespace tessera::models
