// Modules: layers with named parameters, and children that are shared and can be replaced.
//
//   struct Mlp : nn::Module {
//     nn::Child<nn::Linear> hidden = add("hidden", nn::Linear(784, 128)), out = add("out", nn::Linear(128, 10));
//     Tensors forward(const Tensors& in) const override { return {out(relu(hidden(one_input(in))))}; }
//   };
//   Mlp model;
//   Tensor y = model(x);
#pragma once
#include <concepts>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tessera/observer.h"
#include "tessera/ops.h"
#include "tessera/state_dict.h"

namespace tessera::nn {

class Module;
template <class M>
class Child;

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using NamedModules = std::vector<std::pair<std::string, Child<Module>>>;

/// Sees the inputs of a call before it, and may give others.
using ForwardPreHook = std::function<std::optional<Tensors>(const Module&, const Tensors& in)>;
/// Sees what a call was given and gave, and may give something else.
using ForwardHook = std::function<std::optional<Tensors>(const Module&, const Tensors& in, const Tensors& out)>;

struct ReplaceOptions {
  bool any_shapes = false;  ///< the new module's parameters may have other shapes
};

/// Base of all layers and models. A module is a handle, as a tensor is: copies share parameters, buffers, children and
/// mode.
class Module {
 public:
  Module();
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;
  virtual ~Module() = default;

  /// What a module does, to be overridden. Throws Error where it is not. Callers use operator().
  virtual Tensors forward(const Tensors& in) const;
  Tensors operator()(const Tensors& in) const {
    return call([&] { return has_hooks() ? forward_with_hooks(in) : forward(in); });
  }
  /// The same where the result is one tensor. Throws Error if it is not.
  template <std::same_as<Tensor>... More>
  Tensor operator()(const Tensor& x, const More&... more) const {
    return one_output((*this)(Tensors{x, more...}));
  }

  /// Every parameter once, in the order of registration, however many names it has.
  std::vector<Tensor> parameters() const;
  /// The same under the first name of each, such as "layers.0.weight".
  NamedTensors named_parameters() const;
  /// Tensors that are saved but not trained, such as running statistics.
  NamedTensors named_buffers() const;
  int64_t parameter_count() const;

  /// The modules of which this one is made, in the order of registration.
  const NamedModules& children() const;
  /// All modules below this one, each once under its first name, such as "layers.0.attention".
  NamedModules named_modules() const;
  /// The module of that name below this one. Throws Error if there is none.
  Child<Module> child(const std::string& path) const;
  /// Puts `module` where that of that name was, in the same mode: whoever holds the Child calls it from now on. Ties to
  /// parameters of the old one are not made again. Throws Error if the shapes of parameters differ, unless
  /// `any_shapes`. An empty Child takes the old one from the list; who holds it calls it all the same.
  void replace(const std::string& path, const Child<Module>& module, const ReplaceOptions& options = {});
  template <std::derived_from<Module> M>
  void replace(const std::string& path, M module, const ReplaceOptions& options = {});
  /// The name under which it was added to another one first; empty where it was not.
  const std::string& name() const;

  /// Runs with every later call, in the order of registration; such calls are not part of others' passes. Returns the
  /// number that remove_hook() takes.
  int64_t register_forward_pre_hook(ForwardPreHook hook);
  int64_t register_forward_hook(ForwardHook hook);
  /// Nothing where there is none of that number.
  void remove_hook(int64_t number);
  bool has_hooks() const;
  const std::map<int64_t, ForwardPreHook>& forward_pre_hooks() const;
  const std::map<int64_t, ForwardHook>& forward_hooks() const;

  /// From now on calls in evaluation, under NoGrad and without autocast, use weights of linear layers as kernels want
  /// them packed, here and below. The copies lie beside the parameters, in as much memory. Each is made by the first
  /// call that uses it, and anew when its parameter has been written by operators; train() drops them. Captured
  /// functions use the parameters. Throws Error in training.
  void pack();
  /// Whether pack() was called since the last train().
  bool packs() const;
  /// What linear() and mlp() are given for a weight of this module: the packed copy where calls use that, otherwise
  /// the weight itself.
  Tensor packed(const Tensor& weight) const;

  /// Chooses between training and evaluation for this module and all below.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const;
  /// Drops all gradients.
  void zero_grad();
  /// Converts floating parameters and buffers in place; make optimizers afterwards.
  void to(DType dtype);
  void to(Device device);
  /// Lays parameters of four dims so in memory, such as the filters of convolutions.
  void to(MemoryFormat format);

  /// Parameters and buffers, each once under its first name; the tensors are the module's own, not copies.
  StateDict state_dict() const;
  /// Copies values in, converting between floating dtypes. A tied parameter may be given under any of its names.
  /// Throws Error that lists names that are missing or unexpected (only if `strict`) and shapes or dtypes that
  /// mismatch; then nothing has been changed.
  void load_state_dict(const StateDict& dict, bool strict = true);

 protected:
  /// Registers a part under a name, to be called through what this returns. Throws Error if the name is taken.
  template <std::derived_from<Module> M>
  Child<M> add(const std::string& name, M module) {
    const Child<M> child(std::make_shared<M>(std::move(module)));
    add_child(name, child);
    return child;
  }
  /// The same for one that is part of others, too: there it stays when it is replaced here.
  template <class M>
  [[nodiscard]] Child<M> add(const std::string& name, const Child<M>& module) {
    const Child<M> child = module.elsewhere();
    add_child(name, child);
    return child;
  }
  /// A trainable tensor; registering it in several places ties them.
  Tensor add_parameter(const std::string& name, Tensor value);
  /// A tensor that is not trained; state_dict() has it if `saved`.
  Tensor add_buffer(const std::string& name, Tensor value, bool saved = true);
  /// Puts another tensor where this module's own parameter or buffer of that name is; one of another module ties them,
  /// an undefined one leaves it without. Throws Error if there is none.
  Tensor replace_tensor(const std::string& name, Tensor value);
  /// Makes this handle a module of its own beside its copies: with copies of parameters and buffers, in the same mode,
  /// without name, children and hooks. Returns (old, new) for each tensor, for those that the layer has as members.
  std::vector<std::pair<Tensor, Tensor>> separate();
  /// Parameters and buffers of this module, without those of its children.
  NamedTensors own_tensors() const;

  /// Throws Error unless there are that many inputs.
  void check_inputs(const Tensors& in, size_t least, size_t most) const;
  /// The only input. Throws Error unless there is one.
  const Tensor& one_input(const Tensors& in) const {
    check_inputs(in, 1, 1);
    return in[0];
  }
  /// Runs `body` as a call of this module: the one place where calls begin and end.
  template <class Body>
  std::invoke_result_t<const Body&> call(const Body& body) const {
    const NamedScope scope(name());
    return body();
  }

 private:
  struct State;
  Tensor one_output(Tensors out) const;
  Tensors forward_with_hooks(Tensors in) const;
  std::string title() const;
  void add_child(const std::string& name, const Child<Module>& child);
  void check_new(const std::string& name) const;
  bool contains(const State* state) const;
  std::shared_ptr<State> state_;
};

/// A place for a module that is an M at first: every copy is the same place, and Module::replace() puts another one
/// there.
template <class M>
class Child {
 public:
  Child() = default;
  template <std::derived_from<M> N>
  Child(std::shared_ptr<N> module) : place_(std::make_shared<std::shared_ptr<Module>>(std::move(module))) {}
  template <std::derived_from<M> N>
  Child(const Child<N>& other) : place_(other.place_) {}

  /// The module that is there now. Throws Error if nothing was put there.
  Module& module() const;
  /// The same as an N; null if it is none.
  template <class N>
  N* as() const {
    return dynamic_cast<N*>(&module());
  }
  /// The module if it is an M and nothing more special, without hooks, so that one pass may do its work; null
  /// otherwise.
  M* exact() const {
    Module& m = module();
    return typeid(m) == typeid(M) && !m.has_hooks() ? static_cast<M*>(&m) : nullptr;
  }
  /// The module as an M. Throws Error if one that is none has replaced it.
  M& operator*() const;
  M* operator->() const { return &**this; }

  /// Calls the module: as an M with any of its arguments, otherwise its forward(), an activation and an addition.
  template <class... In>
  requires std::invocable<M&, const In&...>
  auto operator()(const In&... in) const;

 private:
  template <class>
  friend class Child;
  friend class Module;
  // Another place for the same module.
  Child elsewhere() const {
    module();
    Child other;
    other.place_ = std::make_shared<std::shared_ptr<Module>>(*place_);
    return other;
  }
  std::shared_ptr<std::shared_ptr<Module>> place_;
};

/// activation(module(x)) + residual, where that is defined.
Tensor call_activated(const Module& module, const Tensor& x, Activation activation, const Tensor& residual = {});

template <class M>
Module& Child<M>::module() const {
  if (!place_ || !*place_) throw Error("Child: there is no module; use what add() returns");
  return **place_;
}

template <class M>
M& Child<M>::operator*() const {
  if (M* m = as<M>()) return *m;
  throw Error("Child: \"" + module().name() + "\" was replaced by a module of another type, which takes tensors alone");
}

template <class M>
template <class... In>
requires std::invocable<M&, const In&...>
auto Child<M>::operator()(const In&... in) const {
  using Out = std::invoke_result_t<M&, const In&...>;
  if (M* m = exact()) return (*m)(in...);
  const Module& any = module();
  if constexpr (requires {
                  { any(in...) } -> std::same_as<Out>;
                })
    return any(in...);
  else if constexpr (requires {
                       { call_activated(any, in...) } -> std::same_as<Out>;
                     })
    return call_activated(any, in...);
  else return (**this)(in...);
}

template <std::derived_from<Module> M>
void Module::replace(const std::string& path, M module, const ReplaceOptions& options) {
  replace(path, Child<Module>(std::make_shared<M>(std::move(module))), options);
}

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
  Tensors forward(const Tensors& in) const override { return {linear(one_input(in), packed(weight), bias)}; }
  using Module::operator();
  /// act(x weightᵀ + bias) + residual in one pass; `residual` may be undefined.
  Tensor operator()(const Tensor& x, Activation activation, const Tensor& residual = {}) const {
    return call([&] { return linear_act(x, packed(weight), bias, activation, residual); });
  }
  Tensor weight, bias;
};

/// index [...] -> rows [..., width]; normal with std 1.
struct Embedding : Module {
  Embedding(int64_t count, int64_t width, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override { return {embedding(one_input(in), weight)}; }
  Tensor weight;
};

/// Rows and columns of a kernel; one number is both.
struct Kernel2d {
  Kernel2d(int64_t side) : size{side, side} {}
  Kernel2d(int64_t rows, int64_t columns) : size{rows, columns} {}
  int64_t taps() const { return size[0] * size[1]; }
  int64_t size[2];
};

/// x [n, in, h, w] -> [n, out, h', w']; uniform in ±1/sqrt(in / groups * taps).
struct Conv2d : Module {
  Conv2d(int64_t in, int64_t out, Kernel2d kernel, const Conv2dOptions& options = {}, bool bias = true,
         Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override { return {conv2d(one_input(in), weight, bias, options)}; }
  Conv2dOptions options;
  Tensor weight, bias;
};

/// x [n, in, h, w] -> [n, out, h', w'] by conv_transpose2d; uniform in ±1/sqrt(out / groups * taps).
struct ConvTranspose2d : Module {
  ConvTranspose2d(int64_t in, int64_t out, Kernel2d kernel, const ConvTranspose2dOptions& options = {},
                  bool bias = true, Generator& generator = default_generator());
  Tensors forward(const Tensors& in) const override { return {conv_transpose2d(one_input(in), weight, bias, options)}; }
  ConvTranspose2dOptions options;
  Tensor weight, bias;
};

/// x [..., width] normalised over the last dim, then scaled by `weight` (ones) and shifted by `bias` (zeros).
struct LayerNorm : Module {
  explicit LayerNorm(int64_t width, bool bias = true, double eps = 1e-5);
  /// The same over all dims of `shape`; neither scaled nor shifted unless `affine`.
  explicit LayerNorm(const Shape& shape, bool affine = true, bool bias = true, double eps = 1e-5);
  Tensors forward(const Tensors& in) const override;
  Shape shape;
  double eps;
  Tensor weight, bias;
};

/// x [..., width] divided by its root mean square over the last dim, then scaled by `weight` (ones).
struct RMSNorm : Module {
  explicit RMSNorm(int64_t width, double eps = 1e-5);
  Tensors forward(const Tensors& in) const override { return {rms_norm(one_input(in), weight, eps)}; }
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
  /// Without `affine` there is no weight and no bias; one that does not track takes the statistics of each batch.
  explicit BatchNorm2d(int64_t channels, double momentum = 0.1, double eps = 1e-5, bool affine = true,
                       bool tracks = true);
  Tensors forward(const Tensors& in) const override { return {normalized(one_input(in), Activation::None)}; }
  using Module::operator();
  /// The same followed by Relu, in one pass; other activations throw Error.
  Tensor operator()(const Tensor& x, Activation activation) const {
    return call([&] { return normalized(x, activation); });
  }
  /// The same of what a convolution gave: in training, statistics that it has found are not sought again.
  Tensor operator()(const Images& x, Activation activation) const;
  int64_t channels;
  double momentum, eps;
  Tensor weight, bias, running_mean, running_var;

 private:
  Tensor normalized(const Tensor& x, Activation activation) const {
    const bool of_batch = training() || !running_mean.defined();
    return batch_norm(x, weight, bias, running_mean, running_var, of_batch, momentum, eps, activation);
  }
  Tensor normalized(const Images& x, Activation activation) const;
};

/// conv(x); in training with the statistics of what it gives, where a kernel finds them on its way.
Images convolve(const Conv2d& conv, const Tensor& x, bool training);
/// conv(norm(x, activation)), where a kernel can in one pass: what the norm gives is then never in memory, and backward
/// finds it again. Training is the norm's.
Images norm_convolve(const BatchNorm2d& norm, Activation activation, const Conv2d& conv, Images x);
// The same of children; one by one where they were replaced by others.
Images convolve(const Child<Conv2d>& conv, const Tensor& x, bool training);
Images norm_convolve(const Child<BatchNorm2d>& norm, Activation activation, const Child<Conv2d>& conv, Images x);

/// x [n, channels, ...] normalised over each of `groups` groups of channels, then scaled and shifted by channel. Throws
/// Error unless groups divides channels.
struct GroupNorm : Module {
  GroupNorm(int64_t groups, int64_t channels, double eps = 1e-5);
  Tensors forward(const Tensors& in) const override { return {group_norm(one_input(in), groups, weight, bias, eps)}; }
  int64_t groups;
  double eps;
  Tensor weight, bias;
};

/// Active in training only; draws from the default generator of the calling thread.
struct Dropout : Module {
  explicit Dropout(double p = 0.5);
  Tensors forward(const Tensors& in) const override {
    const Tensor& x = one_input(in);
    return {p > 0 && training() ? dropout(x, p) : x};
  }
  double p;
};

struct ReLU : Module {
  Tensors forward(const Tensors& in) const override { return {relu(one_input(in))}; }
};
/// min(max(x, 0), 6), Howard et al. 2017.
struct ReLU6 : Module {
  Tensors forward(const Tensors& in) const override { return {clamp(one_input(in), 0, 6)}; }
};
struct GELU : Module {
  Tensors forward(const Tensors& in) const override { return {gelu(one_input(in))}; }
};
struct SiLU : Module {
  Tensors forward(const Tensors& in) const override { return {silu(one_input(in))}; }
};
struct Tanh : Module {
  Tensors forward(const Tensors& in) const override { return {tanh(one_input(in))}; }
};
struct Sigmoid : Module {
  Tensors forward(const Tensors& in) const override { return {sigmoid(one_input(in))}; }
};
struct Flatten : Module {
  Tensors forward(const Tensors& in) const override { return {flatten(one_input(in), 1)}; }
};

/// A function of one tensor as a module.
struct Function : Module {
  explicit Function(std::function<Tensor(const Tensor&)> function) : function(std::move(function)) {}
  Tensors forward(const Tensors& in) const override { return {function(one_input(in))}; }
  std::function<Tensor(const Tensor&)> function;
};

/// Applies its children, given as modules, children or functions of one tensor, in turn; number i is called "i". A
/// Linear or BatchNorm2d with an activation behind it does both in one pass, where it can.
struct Sequential : Module {
  template <class... Parts>
  explicit Sequential(Parts... parts) {
    (append(std::move(parts)), ...);
  }
  template <class Part>
  void append(Part part) {
    const std::string name = std::to_string(children().size());
    if constexpr (requires { add(name, std::move(part)); }) (void)add(name, std::move(part));
    else add(name, Function(std::move(part)));
  }
  size_t size() const { return children().size(); }
  /// Throws Error out of range.
  Child<Module> operator[](size_t index) const { return child(std::to_string(index)); }
  Tensors forward(const Tensors& in) const override;
};

struct AttentionConfig {
  int64_t width = 0, heads = 1;
  bool bias = true, causal = false;
  double dropout = 0;  ///< of the attention weights, and of the result
  double alibi = 0;    ///< largest exponent of ALiBi's slopes, see AttentionOptions; 0: none
};

/// Multi-head attention, Vaswani et al. 2017. x [batch, tokens, width]; `qkv` holds the three projections in one
/// matrix.
struct MultiheadAttention : Module {
  explicit MultiheadAttention(const AttentionConfig& config, Generator& generator = default_generator());
  /// Takes x, and mask and residual where they are wanted.
  Tensors forward(const Tensors& in) const override;
  using Module::operator();
  /// Self-attention; `mask` as in scaled_dot_product_attention. Returns `residual` (if defined) + result.
  Tensor operator()(const Tensor& x, const Tensor& mask = {}, const Tensor& residual = {}) const {
    return call([&] { return attended(x, mask, residual); });
  }
  /// The same before `out`.
  Tensor heads(const Tensor& x, const Tensor& mask = {}) const;
  /// Queries from x, keys and values from memory [batch, keys, width].
  Tensor cross(const Tensor& x, const Tensor& memory, const Tensor& mask = {}) const;
  AttentionConfig config;
  Child<Linear> qkv, out;

 private:
  Tensor attended(const Tensor& x, const Tensor& mask, const Tensor& residual) const;
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
  double alibi = 0;  ///< as in AttentionConfig
};

/// A residual stream between the parts of a network. What was added last may still wait, so that one pass adds and
/// normalises.
struct Residual {
  Tensor sum, branch = {}, bias = {};  ///< the last two: waiting; undefined where nothing is
  Tensor value() const;
  /// The norm of its value; nothing waits afterwards.
  Tensor normalized(const Child<LayerNorm>& norm);
};

/// Pre-norm transformer block: x += attention(norm1(x)); x += down(act(up(norm2(x)))). x [batch, tokens, width].
struct TransformerBlock : Module {
  explicit TransformerBlock(const TransformerConfig& config, Generator& generator = default_generator());
  /// Takes x, and mask where it is wanted.
  Tensors forward(const Tensors& in) const override;
  using Module::operator();
  Tensor operator()(const Tensor& x, const Tensor& mask = {}) const {
    return call([&] { return extended({x}, mask).value(); });
  }
  /// The same for one of several blocks in a row.
  Residual extend(Residual x, const Tensor& mask = {}) const {
    return call([&] { return extended(std::move(x), mask); });
  }
  TransformerConfig config;
  Child<LayerNorm> norm1;
  Child<MultiheadAttention> attention;
  Child<LayerNorm> norm2;
  Child<Linear> up, down;

 private:
  Residual extended(Residual x, const Tensor& mask) const;
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
