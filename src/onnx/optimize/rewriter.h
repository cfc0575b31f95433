// A graph while its steps are put together: who makes and who uses each value, and what is known of them. A pattern is
// a function that looks at its last step and replaces that; what only it used is gone then.
#pragma once
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "onnx/handler.h"

namespace tessera::onnx {

class Rewriter {
 public:
  /// Weights of f32 become those that `products` run in.
  Rewriter(Graph& graph, DType products);

  size_t size() const { return graph_.steps.size(); }
  const Step& step(int at) const { return graph_.steps[static_cast<size_t>(at)]; }
  DType products() const { return products_; }

  /// Whether a step is there and is that operator, of ONNX unless another domain is said.
  bool is(int at, std::string_view op, std::string_view domain = "") const;
  /// The step that makes a value; -1 where it is none, or another operator.
  int maker(int slot) const;
  int maker(int slot, std::string_view op) const;
  /// The same where only one step uses what it makes.
  int own_maker(int slot, std::string_view op) const;
  /// The one step that uses a value which nothing else sees; -1 where there are others, or where it is another
  /// operator.
  int only_user(int slot) const;
  int only_user(int slot, std::string_view op) const;
  const std::multiset<int>& users(int slot) const { return users_[static_cast<size_t>(slot)]; }
  /// Whether nothing but these steps uses a value.
  bool is_seen_only_by(int slot, const std::vector<int>& steps) const;
  /// Whether something sees a value.
  bool is_used(int slot) const;

  /// What is known of a value, or of input i; undefined where it is not.
  Tensor constant(int slot) const;
  Tensor constant(const Step& step, size_t i) const;
  /// The one element of a known floating value of at most `rank` dims.
  std::optional<double> number(int slot, int64_t rank = 0) const;
  /// The elements of a known list of integers: an input from some opset on, an attribute before.
  std::optional<std::vector<int64_t>> integers(int slot) const;
  int add_constant(Tensor value);

  /// Step `at` runs `entry` on `in` from now on, gives its first output, and is called as step `named`.
  void replace(int at, int named, const Entry* entry, std::vector<int> in, std::vector<AttributeProto> attributes = {});

  /// Lets go of what nothing needs, and says anew when values die.
  void finish();

 private:
  void release(int slot, int user);
  /// Weights that nothing needs any more make room for their packed copies.
  void forget(int slot);

  Graph& graph_;
  DType products_;
  std::vector<bool> gone_, is_output_;
  std::vector<int> maker_;
  std::vector<std::multiset<int>> users_;  // steps, once for each input: a number may have a million
  std::vector<Tensor> constant_;
  std::unordered_map<int, size_t> place_;  // of a known value among the graph's
  size_t known_ = 0;                       // slots of the graph as it was
};

// Attributes of a step.
const AttributeProto* attribute_of(const Step& step, std::string_view name);
double real_of(const Step& step, std::string_view name, double otherwise);
int64_t integer_of(const Step& step, std::string_view name, int64_t otherwise);
bool is_close(double a, double b);

/// The other input of a step of two; -1 where `slot` is none of them.
int other_input(const Step& step, int slot);

/// A product as exporters spell it, by Mul and by Div with numbers: a number and the values it is multiplied with.
struct Factors {
  double number = 1;
  std::vector<int> slots;
};
/// Of the value that step `at` makes, through steps of which nothing else sees what they give; powers are factors twice
/// or more.
Factors factors_of(const Rewriter& r, int at);

// The patterns, a file for each kind. Each takes the step that a pattern may end with.
void fuse_activation(Rewriter& r, int at);
void fuse_layer_norm(Rewriter& r, int at);
void fuse_rms_norm(Rewriter& r, int at);
void fuse_group_norm(Rewriter& r, int at);
void fuse_batch_norm_relu(Rewriter& r, int at);
void turn_keys(Rewriter& r, int at);
void fuse_attention(Rewriter& r, int at);
/// Batch norm behind a convolution: y = scale (conv(x, w) + b - mean) / sqrt(var + eps) + bias is one with other
/// filters and another bias.
void fold_batch_norm(Rewriter& r, int at);
/// A number for each channel that is added behind a convolution without a bias is its bias.
void fold_bias(Rewriter& r, int at);
/// Convolutions of integers whose sums are exact in f32 are told so.
void mark_small_sums(Rewriter& r, int at);
/// Filters lie as images do: channels last.
void lay_filters(Rewriter& r, int at);
/// A convolution with the residual and the activation behind it.
void fuse_convolution(Rewriter& r, int at);
/// None where the step is none that products and convolutions take.
Activation activation_of(const Rewriter& r, int at);
/// A product with what is behind it; weights that several share are packed once.
class ProductFuser {
 public:
  explicit ProductFuser(Rewriter& rewriter) : r_(rewriter) {}
  void fuse(int at);

 private:
  int packed_of(int slot, const Tensor& weight, bool turned);
  int packed_of_blocks(const Step& step);
  void fuse_projection(int at);
  void fuse_integers(int at);
  void fuse_behind(int at, int weight, int bias, int64_t width, DType dtype);
  Rewriter& r_;
  std::vector<std::tuple<int, bool, int>> packed_;
};

}  // namespace tessera::onnx
