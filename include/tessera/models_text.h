// Models of text: GPT, as in GPT-2 and nanoGPT; BERT, and MiniLM for sentences.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/nn.h"

namespace tessera::models {

struct GPTConfig {
  int64_t layers = 12, heads = 12, width = 768;
  int64_t block = 1024;  ///< the longest context
  int64_t vocab = 50257;
  double dropout = 0;
  double init_std = 0;    ///< of initial matrices; 0: 0.02 sqrt(768 / width), which is GPT-2's 0.02 at GPT-2's width
  bool bias = true;       ///< in linear layers and layer norms
  bool tied_head = true;  ///< the output projection is the token embedding
  Activation activation = Activation::GeluTanh;
  double alibi = 0;  ///< largest exponent of ALiBi's slopes, in place of learned positions; 0: those. Of MPT: 8
  friend bool operator==(const GPTConfig&, const GPTConfig&) = default;
};

/// Decoder-only transformer with learned positions, Radford et al. 2019, or with slopes in attention, as MPT. Matrices
/// start normal with std `init_std`, those that write to the residual stream with init_std / sqrt(2 * layers).
struct GPT : nn::Module {
  /// Throws Error on sizes that make no model.
  explicit GPT(const GPTConfig& config, Generator& generator = default_generator());
  /// tokens [batch, n], n <= block -> logits [batch, n, vocab].
  Tensors forward(const Tensors& in) const override;
  /// Mean cross entropy of `targets` [batch, n].
  Tensor loss(const Tensor& tokens, const Tensor& targets) const;
  /// The same, after `weight` times its gradients were added to those of the parameters: as (loss * weight).backward(),
  /// but the gradient of the logits is made where they lie while the loss is. Returns the loss outside of the graph.
  Tensor loss_and_backward(const Tensor& tokens, const Tensor& targets, double weight = 1) const;
  /// The same with a weight that lies on the device, 0-d, such as the scale of a loss in f16. Logits of more than
  /// `most_bytes` are made and used up in parts.
  Tensor loss_and_backward(const Tensor& tokens, const Tensor& targets, const Tensor& weight,
                           int64_t most_bytes = int64_t{4} << 30) const;
  /// Hidden states after the last norm, [batch, n, width].
  Tensor hidden(const Tensor& tokens) const;
  /// Floating-point operations of a training step on that many tokens, in full blocks: 6 for each token and weight of a
  /// matrix product, and the two products of causal attention, forward and backward.
  double training_flops(int64_t tokens) const;

  GPTConfig config;
  nn::Child<nn::Embedding> wte, wpe;  ///< the second one is empty with ALiBi
  nn::Child<nn::Dropout> drop;
  std::vector<nn::Child<nn::TransformerBlock>> blocks;
  nn::Child<nn::LayerNorm> norm;
  Tensor head;  ///< [vocab, width]
};

struct SampleOptions {
  double temperature = 1;  ///< below 1e-6 takes the most probable token
  int64_t top_k = 0;       ///< draw among the k most probable; 0 means all
  int64_t vocab = 0;       ///< draw among the first so many tokens of the model's vocabulary; 0 means all
  uint64_t seed = 0;
};
/// Appends `count` tokens to `prompt` (which may be empty: then token 0 starts) and returns those appended. `on_token`,
/// if given, sees each as it is drawn and ends the sampling by returning false.
std::vector<int32_t> generate(const GPT& model, const std::vector<int32_t>& prompt, int64_t count,
                              const SampleOptions& options = {}, const std::function<bool(int32_t)>& on_token = {});

/// The configuration of a GPT-2 file in Hugging Face's names; `heads` is width / 64. Throws Error if it is no such
/// file.
GPTConfig gpt2_config(const StateDict& file);
/// Renames and transposes weights in Hugging Face's names ("h.0.attn.c_attn.weight", with or without "transformer.")
/// for GPT::load_state_dict; position embeddings are cut to `block`.
StateDict convert_gpt2(const StateDict& file, int64_t block);
/// The same of MPT's, "transformer.blocks.0.attn.Wqkv.weight": its layers, width, vocabulary and biases, and slopes up
/// to 8 where it has no learned positions. Heads are not in it; they are width / 128, or 12 of width 768, as published.
GPTConfig mpt_config(const StateDict& file);
bool is_mpt(const StateDict& file);
StateDict convert_mpt(const StateDict& file);

struct BertConfig {
  int64_t layers = 12, heads = 12, width = 768;
  int64_t hidden = 3072;    ///< of the perceptrons
  int64_t positions = 512;  ///< the longest text
  int64_t vocab = 30522;
  int64_t types = 2;    ///< of tokens
  int64_t padding = 0;  ///< the token whose vector is not trained; -1: none
  double dropout = 0.1, eps = 1e-12;
};

/// Encoder, Devlin et al. 2018, with the names of Hugging Face's BertModel. Matrices start normal with std 0.02.
struct Bert : nn::Module {
  /// Throws Error on sizes that make no model.
  explicit Bert(const BertConfig& config = {}, Generator& generator = default_generator());
  /// tokens [batch, n], n <= positions, and where they are wanted a mask [batch, n], whose zeros are padding, and types
  /// of tokens [batch, n] -> the last hidden states [batch, n, width], and what the pooler makes of the first of them,
  /// [batch, width]. An undefined mask has no zeros, undefined types are all 0.
  Tensors forward(const Tensors& in) const override;
  /// The first of these alone.
  Tensor hidden(const Tensor& tokens, const Tensor& mask = {}, const Tensor& types = {}) const;

  /// norm(x + attention(x)), and the same of the perceptron.
  struct Layer : nn::Module {
    Layer(const BertConfig& config, Generator& generator);
    /// Takes x [batch, n, width] and a mask as that of scaled_dot_product_attention, or an undefined one.
    Tensors forward(const Tensors& in) const override;
    BertConfig config;
    nn::Child<nn::Linear> query, key, value, attended;
    nn::Child<nn::LayerNorm> attention_norm;
    nn::Child<nn::Linear> up, down;
    nn::Child<nn::LayerNorm> norm;

   private:
    Tensor joined(const nn::Child<nn::Linear>& part, const Tensor& x, const Tensor& residual) const;
  };
  BertConfig config;
  nn::Child<nn::Embedding> words, places, types;
  nn::Child<nn::LayerNorm> norm;
  nn::Child<nn::Dropout> drop;
  std::vector<nn::Child<Layer>> layers;
  nn::Child<nn::Linear> pooler;

 private:
  Tensor vectors_of(const Tensor& tokens) const;
};

/// Vectors of sentences, as all-MiniLM-L6-v2 of sentence-transformers: a small BERT whose last hidden states are
/// averaged and normalised. Wang et al. 2020, Reimers & Gurevych 2019. The pooler has weights that nothing uses.
struct MiniLM : Bert {
  static BertConfig published() { return {.layers = 6, .width = 384, .hidden = 1536}; }
  explicit MiniLM(const BertConfig& config = published(), Generator& generator = default_generator());
  /// The inputs of Bert -> [batch, width], each of length 1.
  Tensors forward(const Tensors& in) const override;
};

/// Weights of a BERT in Hugging Face's names, with or without "bert.", for Bert::load_state_dict: without heads
/// ("cls.") and the buffer "embeddings.position_ids"; gamma and beta of old files become weight and bias.
StateDict convert_bert(const StateDict& file);

}  // namespace tessera::models
