// Attributes of operators: structs, one per op family, carried by value in an `Attrs` (core/attr_value.h).
#pragma once
#include <limits>
#include <string_view>
#include <tuple>

#include "core/attr_value.h"
#include "tessera/enums.h"

namespace tessera {

// Each struct lists its members, from which printing, reading and comparing are made; initial values are the defaults.
#define TESSERA_ATTRS(...)                                     \
  static constexpr std::string_view attr_names = #__VA_ARGS__; \
  auto members() { return std::tie(__VA_ARGS__); }             \
  auto members() const { return std::tie(__VA_ARGS__); }

struct NoAttrs {
  static constexpr std::string_view attr_names = "";
  std::tuple<> members() const { return {}; }
};
/// full, add/mul/pow with a number
struct ScalarAttrs {
  double value = 0;
  TESSERA_ATTRS(value)
};
struct ClampAttrs {
  double low = 0, high = 0;
  TESSERA_ATTRS(low, high)
};
struct CastAttrs {
  DType dtype = Float32;
  TESSERA_ATTRS(dtype)
};
struct ReduceAttrs {
  IntList dims;  // empty: all
  bool keepdim = false;
  int64_t correction = 0;  // of the variance: divides by n - correction
  TESSERA_ATTRS(dims, keepdim, correction)
};
/// softmax, gather, concat, argmax, cumsum, ...
struct DimAttrs {
  int64_t dim = 0;
  bool keepdim = false;
  TESSERA_ATTRS(dim, keepdim)
};
struct TopkAttrs {
  int64_t dim = -1, k = 1;
  bool largest = true;
  TESSERA_ATTRS(dim, k, largest)
};
/// reshape, expand
struct ShapeAttrs {
  DimList shape;
  TESSERA_ATTRS(shape)
};
/// full (a = value), arange (a = start, b = step), uniform (a = low, b = high), normal (a = mean, b = std)
struct CreateAttrs {
  DimList shape;
  DType dtype = Float32;
  double a = 0, b = 0;
  Device device = {};
  TESSERA_ATTRS(shape, dtype, a, b, device)
};
struct ConstantAttrs {
  Tensor value;  // on the host
  TESSERA_ATTRS(value)
};
struct DeviceAttrs {
  Device device = {};
  TESSERA_ATTRS(device)
};
struct PermuteAttrs {
  IntList dims;
  TESSERA_ATTRS(dims)
};
struct SliceAttrs {
  int64_t dim = 0;
  Dim start, end;
  int64_t step = 1;
  TESSERA_ATTRS(dim, start, end, step)
};
struct SelectAttrs {
  int64_t dim = 0;
  Dim index;
  TESSERA_ATTRS(dim, index)
};
/// Windows of `size` elements `dilation` apart; each begins `stride` behind the last one.
struct WindowAttrs {
  int64_t dim = 0, size = 1, stride = 1, dilation = 1;
  TESSERA_ATTRS(dim, size, stride, dilation)
};
/// Of the backward of a slice or an index: the size of `dim` in the gradient that is made.
struct ScatterAttrs {
  int64_t dim = 0;
  Dim size, start;
  int64_t step = 1;
  TESSERA_ATTRS(dim, size, start, step)
};
/// tril, triu
struct DiagonalAttrs {
  int64_t diagonal = 0;
  TESSERA_ATTRS(diagonal)
};
/// Of the last six dims, outermost first.
struct PadAttrs {
  int64_t low[6] = {}, high[6] = {};
  double value = 0;
  TESSERA_ATTRS(low, high, value)
};
struct ConvAttrs {
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
  int64_t size[2] = {0, 0};  // of the backward: spatial size of the gradient that is made
  TESSERA_ATTRS(stride, padding, dilation, groups, size)
};
struct ConvTransposeAttrs {
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, output_padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
  TESSERA_ATTRS(stride, padding, output_padding, dilation, groups)
};
struct PoolAttrs {
  int64_t window[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
  int64_t size[2] = {0, 0};
  bool count_include_pad = true;
  TESSERA_ATTRS(window, stride, padding, dilation, size, count_include_pad)
};
struct NormAttrs {
  double eps = 1e-5;
  int64_t groups = 0;                                     // group norm
  double momentum = 0.1;                                  // batch norm
  bool training = false;                                  // batch norm
  bool relu = false;                                      // batch norm, followed by it
  bool dbias = true;                                      // layer_norm_backward: whether it is wanted
  double high = std::numeric_limits<double>::infinity();  // batch norm: what relu gives at most, as in ReLU6
  TESSERA_ATTRS(eps, groups, momentum, training, relu, dbias, high)
};
/// A convolution of what batch norm gives.
struct NormConvAttrs {
  ConvAttrs conv;
  NormAttrs norm;
  static constexpr std::string_view attr_names =
      "stride, padding, dilation, groups, size, eps, norm_groups, momentum, training, relu, dbias, high";
  auto members() { return std::tuple_cat(conv.members(), norm.members()); }
  auto members() const { return std::tuple_cat(conv.members(), norm.members()); }
};
struct LossAttrs {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::Mean;
  bool overwrite = false;  // cross_entropy: backward may write over the logits
  TESSERA_ATTRS(ignore_index, label_smoothing, reduction, overwrite)
};
struct AttentionAttrs {
  double scale = 0;  // of q·k; 0 means 1/sqrt(head dim)
  bool causal = false;
  int64_t heads = 0;   // of the packed form
  double dropout = 0;  // the probability with which a weight becomes 0
  double alibi = 0;    // the largest exponent of ALiBi's slopes; 0: none are added
  TESSERA_ATTRS(scale, causal, heads, dropout, alibi)
};
/// custom_function: its closures.
struct FunctionAttrs {
  Ref<AttrObject> function;
  TESSERA_ATTRS(function)
};
struct OneHotAttrs {
  int64_t classes = 0;
  TESSERA_ATTRS(classes)
};
struct DropoutAttrs {
  double p = 0;
  TESSERA_ATTRS(p)
};
struct LinearAttrs {
  Activation activation = Activation::None;
  TESSERA_ATTRS(activation)
};
/// A recurrent layer that begins at the last step.
struct RecurrentAttrs {
  bool reverse = false;
  TESSERA_ATTRS(reverse)
};
/// One without gates, whose function may be ReLU in the place of tanh.
struct RnnAttrs {
  bool reverse = false, relu = false;
  TESSERA_ATTRS(reverse, relu)
};
/// Which sums of a product's lines are wanted beside it.
struct LineSumAttrs {
  bool rows = false, columns = false;
  bool wide = false;  // sums of halves are f32
  TESSERA_ATTRS(rows, columns, wide)
};
/// A product whose epilogue is text.
struct FusedGemmAttrs {
  std::string epilogue = "acc";
  int64_t config[5] = {};   // tile_m, tile_n, tile_k, warps, stages; 0: as shipped
  bool own_config = false;  // whether a config was asked for
  TESSERA_ATTRS(epilogue, config, own_config)
};
/// A layout of some kernel's own, and all of its bytes; without a name: row-major.
struct PackAttrs {
  std::string layout;
  int64_t bytes = 0;
  TESSERA_ATTRS(layout, bytes)
};
struct MultinomialAttrs {
  int64_t samples = 1;
  bool replacement = false;
  TESSERA_ATTRS(samples, replacement)
};
/// Step and learning rate are device scalars among the inputs.
struct OptimAttrs {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum = 0, dampening = 0;
  bool decoupled = true, nesterov = false;
  bool copies = false;  // those of the parameters in halves are overwritten, too
  TESSERA_ATTRS(beta1, beta2, eps, weight_decay, momentum, dampening, decoupled, nesterov, copies)
};
/// The generator's object; none: the thread's own
struct DrawAttrs {
  Ref<AttrObject> generator;
  Dim elements = 0;
  Device device = {};
  TESSERA_ATTRS(generator, elements, device)
};
/// Of the factor that losses are scaled by.
struct ScaleAttrs {
  double growth = 2, backoff = 0.5;
  int64_t interval = 2000;  // steps without inf or NaN before it grows
  TESSERA_ATTRS(growth, backoff, interval)
};
#undef TESSERA_ATTRS

}  // namespace tessera
