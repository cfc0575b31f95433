// The published experiment on mixed precision: ConvModel learns one picture. Everything but the user interface.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/device.h"
#include "tessera/trainer.h"

namespace tessera::models {

using train::Amp;

struct ConvModelOptions {
  int64_t steps = 512;
  int64_t size = 512;      ///< of the picture, in pixels: height and width
  int64_t accumulate = 1;  ///< strips of the picture that make a step, which ranks share; norms are over a strip
  int64_t microbatch = 0;  ///< see train::Options; a strip is one sample
  double lr = 1e-3;        ///< of Adam
  uint64_t seed = 1337;
  Amp amp = Amp::Off;                                   ///< with Float16, losses are scaled
  std::optional<dist::LocalSGDOptions> local_sgd = {};  ///< as train::Options has it; a resumed run may have another
  std::optional<DType> gradient_dtype = {};             ///< see train::Options
  Device device;
  int64_t report_interval = 1;      ///< steps after which losses are read: until then nothing waits for a GPU
  std::string checkpoint;           ///< file to write, or empty: none
  int64_t checkpoint_interval = 0;  ///< steps between checkpoints; 0: only at the end
  int64_t keep = 2;                 ///< checkpoints that stay, with those before it; see train::Options
  bool resume = false;              ///< go on from that file
};

/// Throws Error that names the first option that cannot be.
void validate(const ConvModelOptions& options);

/// The coordinates of pixels, x and y in [0, 1]: f32 [1, 2, size, size].
Tensor pixel_coordinates(int64_t size);
/// What is learned: cos(2 pi 4 x) + cos(2 pi 2 y) in four bins of equal width, as 0, 1/3, 2/3 and 1: f32
/// [1, 1, size, size].
Tensor target_picture(int64_t size);

using ConvModelStep = train::StepInfo;
struct ConvModelCallbacks {
  /// Before the first step: parameters, and the step that a resumed run goes on from.
  std::function<void(int64_t parameters, int64_t first_step)> on_start = {};
  std::function<void(const ConvModelStep&)> on_step = {};  ///< of each step, once its loss has been read
  std::function<void(const std::string&)> on_note = {};    ///< see train::Callbacks
  std::function<void(int64_t strips, int64_t too_many)> on_microbatch = {};  ///< see train::Callbacks
  const std::atomic<bool>* stop = nullptr;  ///< when it becomes true, training saves and returns
};
struct ConvModelResult {
  std::vector<ConvModelStep> steps;         ///< of the whole run, also of the part before a resume
  double step_ms = 0;                       ///< median, without the first steps
  int64_t training_bytes = 0;               ///< most bytes of tensors at a time
  std::vector<std::vector<double>> own_ms;  ///< as train::Result has it
  bool stopped = false;                     ///< then nothing below is known
  double inference_ms = 0;                  ///< median
  int64_t inference_bytes = 0;              ///< most bytes of tensors at a time
  double inference_loss = 0;                ///< in evaluation mode, with running statistics
  Tensor picture;  ///< what the model has learned, in evaluation mode: f32 [size, size] on the CPU
};

/// Trains, then infers, as one of the ranks of `group` where there is one; rank 0 alone infers. The same options,
/// threads and machine give bit-identical losses, whether or not the run was stopped and resumed in between, and on
/// every number of ranks that gives each a power of two of a step's strips. Throws Error or FileError: bad options, a
/// checkpoint that is missing, damaged or of another configuration, a full disk, or a loss that is not finite.
ConvModelResult train_convmodel(const ConvModelOptions& options, const ConvModelCallbacks& callbacks = {},
                                const dist::Group* group = nullptr);

}  // namespace tessera::models
