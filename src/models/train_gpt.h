// Training a character-level GPT: everything but the user interface.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data.h"
#include "tessera/device.h"
#include "tessera/dist.h"
#include "tessera/models.h"
#include "tessera/remote.h"
#include "tessera/streaming.h"
#include "tessera/trainer.h"
#include "train/saved.h"

namespace tessera::models {

using train::Amp;
using train::autocast;
using train::blame;
using train::check_kind;
using train::EvalInfo;
using train::load_checkpoint_of;
using train::metadata;
using train::name;
using train::OnNan;
using train::parse_object;
using train::part;
using train::StepInfo;

struct TrainOptions {
  GPTConfig model;                                   ///< vocab 0: as many as the text has characters
  int64_t steps = 2000, batch = 12, accumulate = 1;  ///< ranks share the batches of a step
  int64_t microbatch = 0;                            ///< sequences at a time, see train::Options
  double lr = 1e-3, min_lr = 1e-4;                   ///< cosine from the first to the second after `warmup` steps
  int64_t warmup = 100;
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0.1;  ///< decay on matrices only
  double clip = 1;                                       ///< largest norm of the gradient; 0: any
  uint64_t seed = 1337;
  Amp amp = Amp::Off;           ///< with Float16, losses are scaled
  bool lower_residual = false;  ///< with amp: the residual stream and norms, too
  OnNan on_nan = OnNan::Stop;
  int64_t eval_interval = 250;                          ///< steps between evaluations; 0: only at the end
  int64_t checkpoint_interval = 250;                    ///< steps between checkpoints; 0: only at the end
  std::optional<dist::LocalSGDOptions> local_sgd = {};  ///< as train::Options has it; a resumed run may have another
  std::optional<DType> gradient_dtype = {};             ///< see train::Options
  Device device;
  int64_t report_interval = 1;  ///< steps after which losses are read: until then nothing waits for a GPU

  std::string text;  ///< the text itself; empty where there is `data`
  /// Folders of `data pack --block`, or their addresses, whose tokens are streamed, each as much as it says.
  std::vector<DataStream> data;
  int64_t epoch_size = 0;  ///< samples of an epoch of `data`, as StreamingOptions has it
  RemoteOptions remote;    ///< of addresses
  std::string init;        ///< weights of a GPT-2 or an MPT in Hugging Face's names to start from, or empty
  std::string checkpoint;  ///< file to write, or empty: none
  int64_t keep = 2;        ///< checkpoints that stay, with those before it; see train::Options
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

struct TrainCallbacks {
  /// Before the first step: parameters, tokens of each step, and the step that a resumed run goes on from.
  std::function<void(int64_t parameters, int64_t tokens_per_step, int64_t first_step)> on_start = {};
  std::function<void(const StepInfo&)> on_step = {};  ///< of each step, once its loss has been read
  std::function<void(const EvalInfo&)> on_eval = {};
  std::function<void(int64_t step)> on_checkpoint = {};
  std::function<void(const std::string&)> on_note = {};                         ///< see train::Callbacks
  std::function<void(int64_t sequences, int64_t too_many)> on_microbatch = {};  ///< see train::Callbacks
  const std::atomic<bool>* stop = nullptr;  ///< when it becomes true, training saves and returns
};

struct TrainResult : train::Result {
  double flops_per_step = 0;
};

/// Trains and returns, as one of the ranks of `group` where there is one. The same options,
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
