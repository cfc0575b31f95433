// Modules: layers with named parameters, composed by value.
//
//   struct Mlp : nn::Module {
//     nn::Linear hidden = add("hidden", nn::Linear(784, 128)), out = add("out", nn::Linear(128, 10));
//     Tensor operator()(const Tensor& x) const { return out(relu(hidden(x))); }
//   };
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/ops.h"
#include "tessera/state_dict.h"

namespace tessera::nn {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Base of all layers and models. A module is a handle, as a tensor is: copies share parameters, buffers and mode.
class Module {
 public:
  Module();

  /// Every parameter once, in the order of registration, however many names it has.
  std::vector<Tensor> parameters() const;
  /// The same under the first name of each, such as "layers.0.weight".
  NamedTensors named_parameters() const;
  /// Tensors that are saved but not trained, such as running statistics.
  NamedTensors named_buffers() const;
  int64_t parameter_count() const;

  /// Chooses between training and evaluation for this module and all below.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const;
  /// Drops all gradients.
  void zero_grad();
  /// Converts floating parameters and buffers in place; make optimizers afterwards.
  void to(DType dtype);
  void to(Device device);

  /// Parameters and buffers, each once under its first name; the tensors are the module's own, not copies.
  StateDict state_dict() const;
  /// Copies values in, converting between floating dtypes. A tied parameter may be given under any of its names.
  /// Throws Error that lists names that are missing or unexpected (only if `strict`) and shapes or dtypes that
  /// mismatch; then nothing has been changed.
  void load_state_dict(const StateDict& dict, bool strict = true);

 protected:
  /// Registers a part under a name and returns it. Throws Error if the name is taken.
  template <class M>
  M add(const std::string& name, M module) {
    add_child(name, module);
    return module;
  }
  /// A trainable tensor; registering it in several places ties them.
  Tensor add_parameter(const std::string& name, Tensor value);
  Tensor add_buffer(const std::string& name, Tensor value);

 private:
  struct State;
  void add_child(const std::string& name, const Module& module);
  void check_new(const std::string& name) const;
  std::shared_ptr<State> state_;
};

/// Evaluation mode for a scope: `nn::EvalMode guard(model);`
class EvalMode {
 public:
  explicit EvalMode(const Module& module) : module_(module), before_(module.training()) { module_.eval(); }
  ~EvalMode() { module_.train(before_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  Module module_;
  bool before_;
};

// ---- layers; weights are drawn from `generator` ---------------------------------------------------------------------

/// x [..., in] -> x weightᵀ + bias [..., out]; uniform in ±1/sqrt(in).
struct Linear : Module {
  Linear(int64_t in, int64_t out, bool bias = true, Generator& generator = default_generator());
  Tensor operator()(const Tensor& x) const { return linear(x, weight, bias); }
  /// act(x weightᵀ + bias) + residual in one pass; `residual` may be undefined.
  Tensor operator()(const Tensor& x, Activation activation, const Tensor& residual = {}) const {
    return linear_act(x, weight, bias, activation, residual);
  }
  Tensor weight, bias;
};

/// index [...] -> rows [..., width]; normal with std 1.
struct Embedding : Module {
  Embedding(int64_t count, int64_t width, Generator& generator = default_generator());
  Tensor operator()(const Tensor& index) const { return embedding(index, weight); }
  Tensor weight;
};

/// x [n, in, h, w] -> [n, out, h', w'] with a square kernel; uniform in ±1/sqrt(in / groups * kernel²).
struct Conv2d : Module {
  Conv2d(int64_t in, int64_t out, int64_t kernel, const Conv2dOptions& options = {}, bool bias = true,
         Generator& generator = default_generator());
  Tensor operator()(const Tensor& x) const { return conv2d(x, weight, bias, options); }
  Conv2dOptions options;
  Tensor weight, bias;
};

/// x [..., width] normalised over the last dim, then scaled by `weight` (ones) and shifted by `bias` (zeros).
struct LayerNorm : Module {
  explicit LayerNorm(int64_t width, bool bias = true, double eps = 1e-5);
  Tensor operator()(const Tensor& x) const { return layer_norm(x, weight, bias, eps); }
  double eps;
  Tensor weight, bias;
};

/// x [..., width] divided by its root mean square over the last dim, then scaled by `weight` (ones).
struct RMSNorm : Module {
  explicit RMSNorm(int64_t width, double eps = 1e-5);
  Tensor operator()(const Tensor& x) const { return rms_norm(x, weight, eps); }
  double eps;
  Tensor weight;
};

/// Images on their way through convolutions and batch norms, with mean and variance (divided by n - 1) of each channel
/// where the convolution that gave them has found these on its way.
struct Images {
  Tensor values, mean = {}, var = {};
};

/// x [n, channels, h, w] normalised over each channel. Training uses the batch's statistics and updates the running
/// ones; evaluation uses those.
struct BatchNorm2d : Module {
  explicit BatchNorm2d(int64_t channels, double momentum = 0.1, double eps = 1e-5);
  Tensor operator()(const Tensor& x) const { return (*this)(x, Activation::None); }
  /// The same followed by Relu, in one pass; other activations throw Error.
  Tensor operator()(const Tensor& x, Activation activation) const {
    return batch_norm(x, weight, bias, running_mean, running_var, training(), momentum, eps, activation);
  }
  /// The same of what a convolution gave: in training, statistics that it has found are not sought again.
  Tensor operator()(const Images& x, Activation activation) const;
  double momentum, eps;
  Tensor weight, bias, running_mean, running_var;
};

/// conv(x); in training with the statistics of what it gives, where a kernel finds them on its way.
Images convolve(const Conv2d& conv, const Tensor& x, bool training);
/// conv(norm(x, activation)), where a kernel can in one pass: what the norm gives is then never in memory, and backward
/// finds it again. Training is the norm's.
Images norm_convolve(const BatchNorm2d& norm, Activation activation, const Conv2d& conv, Images x);

/// x [n, channels, ...] normalised over each of `groups` groups of channels, then scaled and shifted by channel. Throws
/// Error unless groups divides channels.
struct GroupNorm : Module {
  GroupNorm(int64_t groups, int64_t channels, double eps = 1e-5);
  Tensor operator()(const Tensor& x) const { return group_norm(x, groups, weight, bias, eps); }
  int64_t groups;
  double eps;
  Tensor weight, bias;
};

/// Active in training only; draws from the default generator of the calling thread.
struct Dropout : Module {
  explicit Dropout(double p = 0.5);
  Tensor operator()(const Tensor& x) const { return p > 0 && training() ? dropout(x, p) : x; }
  double p;
};

struct ReLU : Module {
  Tensor operator()(const Tensor& x) const { return relu(x); }
};
struct GELU : Module {
  Tensor operator()(const Tensor& x) const { return gelu(x); }
};
struct SiLU : Module {
  Tensor operator()(const Tensor& x) const { return silu(x); }
};
struct Tanh : Module {
  Tensor operator()(const Tensor& x) const { return tanh(x); }
};
struct Sigmoid : Module {
  Tensor operator()(const Tensor& x) const { return sigmoid(x); }
};
struct Flatten : Module {
  Tensor operator()(const Tensor& x) const { return flatten(x, 1); }
};

/// Applies its parts, modules or functions of one tensor, in turn; module i is called "i".
struct Sequential : Module {
  template <class... Parts>
  explicit Sequential(Parts... parts) {
    (append(std::move(parts)), ...);
  }
  template <class Part>
  void append(Part part) {
    if constexpr (std::is_base_of_v<Module, Part>) add(std::to_string(parts_.size()), part);
    parts_.emplace_back(std::move(part));
  }
  Tensor operator()(Tensor x) const {
    for (const auto& part : parts_) x = part(x);
    return x;
  }

 private:
  std::vector<std::function<Tensor(const Tensor&)>> parts_;
};

struct AttentionConfig {
  int64_t width = 0, heads = 1;
  bool bias = true, causal = false;
  double dropout = 0;  ///< of the attention weights, and of the result
};

/// Multi-head attention, Vaswani et al. 2017. x [batch, tokens, width]; `qkv` holds the three projections in one
/// matrix.
struct MultiheadAttention : Module {
  explicit MultiheadAttention(const AttentionConfig& config, Generator& generator = default_generator());
  /// Self-attention; `mask` as in scaled_dot_product_attention. Returns `residual` (if defined) + result.
  Tensor operator()(const Tensor& x, const Tensor& mask = {}, const Tensor& residual = {}) const;
  /// The same before `out`.
  Tensor heads(const Tensor& x, const Tensor& mask = {}) const;
  /// Queries from x, keys and values from memory [batch, keys, width].
  Tensor cross(const Tensor& x, const Tensor& memory, const Tensor& mask = {}) const;
  AttentionConfig config;
  Linear qkv, out;

 private:
  bool drops() const { return config.dropout > 0 && training(); }
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) const;
  AttentionOptions options(const Tensor& mask) const;
};

struct TransformerConfig {
  int64_t width = 0, heads = 1;
  int64_t hidden = 0;  ///< of the perceptron; 0 means 4 * width
  bool bias = true, causal = false;
  double dropout = 0;
  Activation activation = Activation::GeluErf;
};

/// A residual stream between the parts of a network. What was added last may still wait, so that one pass adds and
/// normalises.
struct Residual {
  Tensor sum, branch = {}, bias = {};  ///< the last two: waiting; undefined where nothing is
  Tensor value() const;
  /// The norm of its value; nothing waits afterwards.
  Tensor normalized(const LayerNorm& norm);
};

/// Pre-norm transformer block: x += attention(norm1(x)); x += down(act(up(norm2(x)))). x [batch, tokens, width].
struct TransformerBlock : Module {
  explicit TransformerBlock(const TransformerConfig& config, Generator& generator = default_generator());
  Tensor operator()(const Tensor& x, const Tensor& mask = {}) const { return extend({x}, mask).value(); }
  /// The same for one of several blocks in a row.
  Residual extend(Residual x, const Tensor& mask = {}) const;
  TransformerConfig config;
  LayerNorm norm1;
  MultiheadAttention attention;
  LayerNorm norm2;
  Linear up, down;
};

}  // namespace tessera::nn

/// Initialisers: fill a tensor in place from a generator, outside of any graph.
namespace tessera::nn::init {

void constant_(Tensor t, double value);
void normal_(Tensor t, double mean = 0, double std = 1, Generator& generator = default_generator());
void uniform_(Tensor t, double low = 0, double high = 1, Generator& generator = default_generator());
/// Normal, drawn again where it is further than `cut` standard deviations from the mean.
void trunc_normal_(Tensor t, double mean = 0, double std = 1, double cut = 2,
                   Generator& generator = default_generator());
/// Variance gain² * 2 / (fan_in + fan_out), Glorot & Bengio 2010. For tensors [out, in, ...].
void xavier_uniform_(Tensor t, double gain = 1, Generator& generator = default_generator());
void xavier_normal_(Tensor t, double gain = 1, Generator& generator = default_generator());
/// Variance gain² / fan_in, He et al. 2015; the default gain is that of relu.
void kaiming_uniform_(Tensor t, double gain = 1.4142135623730951, Generator& generator = default_generator());
void kaiming_normal_(Tensor t, double gain = 1.4142135623730951, Generator& generator = default_generator());

}  // namespace tessera::nn::init
