// Recurrent layers.
#include "tessera/ops_recurrent.h"

#include "onnx/handler.h"

namespace tessera::onnx {
namespace {

using Kind = RecurrentActivation::Kind;

// An activation by its name, with the alpha and beta that hold where none are given.
struct Named {
  std::string_view name;
  RecurrentActivation function;
  int numbers;  // of its parameters
};
constexpr Named kFunctions[] = {
    {"Sigmoid", {Kind::Sigmoid}, 0},
    {"Tanh", {Kind::Tanh}, 0},
    {"Relu", {Kind::Relu}, 0},
    {"Affine", {Kind::Affine, 1, 0}, 2},
    {"LeakyRelu", {Kind::LeakyRelu, 0.01f, 0}, 1},
    {"ThresholdedRelu", {Kind::ThresholdedRelu, 1, 0}, 1},
    {"ScaledTanh", {Kind::ScaledTanh, 1, 1}, 2},
    {"HardSigmoid", {Kind::HardSigmoid, 0.2f, 0.5f}, 2},
    {"Elu", {Kind::Elu, 1, 0}, 1},
    {"Softsign", {Kind::Softsign}, 0},
    {"Softplus", {Kind::Softplus}, 0},
};

std::vector<RecurrentActivation> activations_of(const Call& c) {
  const std::vector<double> alphas = c.reals("activation_alpha"), betas = c.reals("activation_beta");
  size_t alpha = 0, beta = 0;
  std::vector<RecurrentActivation> all;
  for (const std::string& name : c.texts("activations")) {
    const auto same = [&](const Named& f) {
      return std::equal(f.name.begin(), f.name.end(), name.begin(), name.end(),
                        [](char a, char b) { return std::tolower(a) == std::tolower(b); });
    };
    const auto* found = std::find_if(std::begin(kFunctions), std::end(kFunctions), same);
    if (found == std::end(kFunctions)) c.refuse("the activation {}", name);
    all.push_back(found->function);
    if (found->numbers > 0 && alpha < alphas.size()) all.back().alpha = alphas[alpha++];
    if (found->numbers > 1 && beta < betas.size()) all.back().beta = betas[beta++];
  }
  return all;
}

RecurrentOptions options_of(const Call& c) {
  const std::string way = c.text("direction", "forward");
  if (way != "forward" && way != "reverse" && way != "bidirectional") c.fail("direction is '{}'", way);
  return {.direction = way == "forward"   ? Direction::Forward
                       : way == "reverse" ? Direction::Reverse
                                          : Direction::Both,
          .clip = c.real("clip", 0),
          .linear_before_reset = c.flag("linear_before_reset", false),
          .coupled_gates = c.flag("input_forget", false),
          .activations = activations_of(c)};
}

// Sequences lie [steps, batch, ...], or with layout 1 [batch, steps, ...].
bool is_batch_first(const Call& c) { return c.flag("layout", false); }
Tensor turned(const Call& c, const Tensor& t) { return t.defined() && is_batch_first(c) ? transpose(t, 0, 1) : t; }

RecurrentWeights weights_of(const Call& c) {
  RecurrentWeights w{c.in(1), c.in(2)};
  const int64_t width = w.hidden.dim() > 0 ? w.hidden.size(-1) : 0, said = c.integer("hidden_size", width);
  if (said != width) c.fail("hidden_size is {}, but the weight is {}", said, describe(w.hidden));
  if (!c.has(3)) return w;
  const Tensor& bias = c.in(3);
  if (bias.dim() != 2 || bias.size(1) % 2) c.fail("biases have shape {}", to_string(bias.shape()));
  const int64_t half = bias.size(1) / 2;
  w.input_bias = slice(bias, 1, 0, half);
  w.hidden_bias = slice(bias, 1, half, 2 * half);
  return w;
}

/// Lengths of sequences, which have at most the steps of x.
Tensor lengths_of(const Call& c) {
  if (!c.has(4)) return {};
  const Tensor& x = c.in(0);
  const int64_t steps = x.dim() == 3 ? x.size(is_batch_first(c) ? 1 : 0) : 0;
  for (const int64_t length : c.ints(4))
    if (length < 0 || length > steps) c.fail("a sequence of {} steps in {}", length, describe(x));
  return c.in(4);
}

Values results_of(const Call& c, const RecurrentResult& r) {
  const int64_t directions = r.hidden.size(0), hidden = r.hidden.size(2);
  const Shape& y = r.output.shape();
  const Tensor split = reshape(r.output, {y[0], y[1], Dim(directions), Dim(hidden)});
  Values out{permute(split, is_batch_first(c) ? Dims{1, 0, 2, 3} : Dims{0, 2, 1, 3}), turned(c, r.hidden)};
  if (r.cell.defined()) out.emplace_back(turned(c, r.cell));
  return out;
}

template <auto layer>
Values run_layer(const Call& c) {
  return results_of(c,
                    layer(turned(c, c.in(0)), {weights_of(c)}, turned(c, c.optional(5)), lengths_of(c), options_of(c)));
}
Values run_lstm(const Call& c) {
  RecurrentWeights w = weights_of(c);
  w.peepholes = c.optional(7);
  return results_of(c, lstm(turned(c, c.in(0)), {w}, turned(c, c.optional(5)), turned(c, c.optional(6)), lengths_of(c),
                            options_of(c)));
}

constexpr Entry entries[] = {
    {"GRU", 1, run_layer<gru>},
    {"LSTM", 1, run_lstm},
    {"RNN", 1, run_layer<rnn>},
};

}  // namespace

std::span<const Entry> recurrent_handlers() { return entries; }

}  // namespace tessera::onnx
