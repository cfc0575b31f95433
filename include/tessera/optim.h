// Optimizers and learning-rate schedules.
//
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   optimizer.zero_grad(); loss.backward(); clip_grad_norm_(model.parameters(), 1.0); optimizer.step();
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "tessera/state_dict.h"

namespace tessera::optim {

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;  ///< divides by the largest second moment so far, Reddi et al. 2018
};
struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  bool amsgrad = false;
};
struct NAdamOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled = false;  ///< weight decay, as in AdamW
};
struct RAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  ///< weight decay, as in AdamW
};
struct AdamaxOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};
struct RMSpropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false;  ///< divides by the standard deviation
};
struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_sum = 0, eps = 1e-10;
};
struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
};

/// Parameters that share options.
template <class Options>
struct ParamGroup {
  std::vector<Tensor> parameters;
  Options options;
};

/// What a step may read besides the gradients: 0-d tensors on the parameters' device, so that nothing waits for them.
struct StepOptions {
  Tensor grad_scale = {};  ///< f32: gradients are multiplied by it (clipping, loss scaling)
  Tensor found_inf = {};   ///< bool: where true the step changes nothing
};

/// Updates parameters from their gradients. All state lives on the parameters' device and exists from the start. A
/// parameter listed twice in a group counts once; one in two groups throws Error.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Parameters without a gradient stay as they are.
  void step(const StepOptions& options = {});
  /// Drops all gradients.
  void zero_grad();
  /// Of all groups, each once.
  Tensors parameters() const;
  int groups() const;
  /// What a group has now. Throws Error where there is none of that number.
  Tensors parameters(int group) const;
  double lr(int group = 0) const;
  double initial_lr(int group = 0) const;  ///< of its options
  double weight_decay(int group = 0) const;
  double momentum(int group = 0) const;  ///< or beta1 of Adam's kin; 0 where there is none
  /// From the next step on. Throws Error on what is negative or not finite.
  void set_lr(double lr, int group = 0);
  void set_weight_decay(double weight_decay, int group = 0);
  /// The same. Throws Error unless it lies in (0, 1), and where others than SGD were made without one.
  void set_momentum(double momentum, int group = 0);
  /// Sets the rate of every group to `factor` times the rate in its options; see Schedule.
  void scale_lr(double factor);

  /// Steps done and moments, as "group.0.step" and "param.3.exp_avg", counted over all groups.
  StateDict state_dict() const;
  /// Copies values in. Throws Error that lists what is missing, unexpected or mismatched; then nothing has been
  /// changed.
  void load_state_dict(const StateDict& dict);

 protected:
  struct State;
  explicit Optimizer(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

/// Stochastic gradient descent with (Nesterov) momentum, Sutskever et al. 2013.
class SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> parameters, const SGDOptions& options = {});
  explicit SGD(const std::vector<ParamGroup<SGDOptions>>& groups);
};

/// Kingma & Ba 2015; weight decay is added to the gradient.
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Tensor> parameters, const AdamOptions& options = {});
  explicit Adam(const std::vector<ParamGroup<AdamOptions>>& groups);
};

/// Adam with decoupled weight decay, Loshchilov & Hutter 2019.
class AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups);
};

// Those below have no kernel of their own: a step is a few operators for each parameter. Defaults are PyTorch's.

/// Adam with Nesterov's momentum, Dozat 2016.
class NAdam : public Optimizer {
 public:
  explicit NAdam(std::vector<Tensor> parameters, const NAdamOptions& options = {});
  explicit NAdam(const std::vector<ParamGroup<NAdamOptions>>& groups);
};

/// Adam whose steps are rectified while the second moment is uncertain, Liu et al. 2020.
class RAdam : public Optimizer {
 public:
  explicit RAdam(std::vector<Tensor> parameters, const RAdamOptions& options = {});
  explicit RAdam(const std::vector<ParamGroup<RAdamOptions>>& groups);
};

/// Adam by the largest gradient instead of the second moment, Kingma & Ba 2015.
class Adamax : public Optimizer {
 public:
  explicit Adamax(std::vector<Tensor> parameters, const AdamaxOptions& options = {});
  explicit Adamax(const std::vector<ParamGroup<AdamaxOptions>>& groups);
};

/// Gradients divided by the root of their mean square, Tieleman & Hinton 2012; `centered` as in Graves 2013.
class RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<Tensor> parameters, const RMSpropOptions& options = {});
  explicit RMSprop(const std::vector<ParamGroup<RMSpropOptions>>& groups);
};

/// Gradients divided by the root of the sum of their squares, Duchi et al. 2011.
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<Tensor> parameters, const AdagradOptions& options = {});
  explicit Adagrad(const std::vector<ParamGroup<AdagradOptions>>& groups);
};

/// Zeiler 2012.
class Adadelta : public Optimizer {
 public:
  explicit Adadelta(std::vector<Tensor> parameters, const AdadeltaOptions& options = {});
  explicit Adadelta(const std::vector<ParamGroup<AdadeltaOptions>>& groups);
};

/// The factor of the learning rate at a step, counted from 0.
using Schedule = std::function<double(int64_t step)>;
Schedule constant();
/// Rises linearly over `warmup` steps, falls along half a cosine to `final_factor` at `total`, and stays there.
Schedule warmup_cosine(int64_t warmup, int64_t total, double final_factor = 0);
/// Multiplies by `factor` after every `every` steps.
Schedule step_decay(int64_t every, double factor = 0.1);

/// The L2 norm of all gradients together, a 0-d tensor; zero without any.
Tensor grad_norm(const std::vector<Tensor>& parameters);
/// min(1, max_norm / norm), for StepOptions::grad_scale: clips without a pass over the gradients.
Tensor clip_coefficient(const Tensor& norm, double max_norm);
/// Scales gradients so that their common norm is at most `max_norm`, Pascanu et al. 2013. Returns the norm before.
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace tessera::optim
