// Parameters of operators: plain structs, one per op family, carried by value in an `Attrs`.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "tessera/device.h"
#include "tessera/dtype.h"
#include "tessera/enums.h"
#include "tessera/error.h"
#include "tessera/shape.h"

namespace tessera {

/// At most eight numbers: dims of a reduction, a permutation, strides of a window.
struct IntList {
  int64_t count = 0;
  int64_t values[8] = {};
  IntList() = default;
  IntList(std::initializer_list<int64_t> list) { assign(list.begin(), list.size()); }
  explicit IntList(std::span<const int64_t> list) { assign(list.data(), list.size()); }
  void push_back(int64_t v) {
    check(count + 1);
    values[count++] = v;
  }
  size_t size() const { return static_cast<size_t>(count); }
  bool empty() const { return count == 0; }
  int64_t operator[](size_t i) const { return values[i]; }
  int64_t& operator[](size_t i) { return values[i]; }
  const int64_t* begin() const { return values; }
  const int64_t* end() const { return values + count; }

 private:
  static void check(size_t n) {
    if (n > 8) throw Error("a list of " + std::to_string(n) + " dims: at most 8 are supported");
  }
  void assign(const int64_t* v, size_t n) {
    check(n);
    count = static_cast<int64_t>(n);
    std::copy(v, v + n, values);
  }
};

/// A shape as a parameter; dims may be symbols.
struct DimList {
  int64_t count = 0;
  Dim values[8];
  DimList() = default;
  explicit DimList(const Shape& shape) : count(shape.rank()) {
    if (count > 8) throw Error("a shape of rank " + std::to_string(count) + ": at most 8 dims are supported");
    std::copy(shape.begin(), shape.end(), values);
  }
  Shape shape() const { return Shape(values, values + count); }
};

/// A parameter that a zero or none switches off: it is then not printed.
template <class T>
struct IfSet {
  const T& value;
};
template <class T>
IfSet<T> if_set(const T& value) {
  return {value};
}
/// One of which a zero stands for the default.
struct OrDefault {
  double value;
};
inline OrDefault or_default(double value) { return {value}; }

// Each struct lists its members in `visit`, from which printing and comparing are made.
#define TESSERA_ATTRS(...)               \
  template <class V>                     \
  void visit(V&& v) const {              \
    v.fields(#__VA_ARGS__, __VA_ARGS__); \
  }

struct NoAttrs {
  template <class V>
  void visit(V&&) const {}
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
  TESSERA_ATTRS(dims, keepdim, if_set(correction))
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
  TESSERA_ATTRS(stride, if_set(padding), dilation, if_set(groups), if_set(size))
};
struct PoolAttrs {
  int64_t window[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
  int64_t size[2] = {0, 0};
  bool count_include_pad = true;
  TESSERA_ATTRS(window, stride, if_set(padding), dilation, if_set(size), count_include_pad)
};
struct NormAttrs {
  double eps = 1e-5;
  int64_t groups = 0;     // group norm
  double momentum = 0.1;  // batch norm
  bool training = false;  // batch norm
  bool relu = false;      // batch norm, followed by it
  bool dbias = true;      // layer_norm_backward: whether it is wanted
  TESSERA_ATTRS(eps, if_set(groups), if_set(momentum), training, relu, dbias)
};
/// A convolution of what batch norm gives.
struct NormConvAttrs {
  ConvAttrs conv;
  NormAttrs norm;
  template <class V>
  void visit(V&& v) const {
    conv.visit(v);
    norm.visit(v);
  }
};
struct LossAttrs {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::Mean;
  TESSERA_ATTRS(ignore_index, if_set(label_smoothing), reduction)
};
struct AttentionAttrs {
  double scale = 0;  // of q·k; 0 means 1/sqrt(head dim)
  bool causal = false;
  int64_t heads = 0;   // of the packed form
  double dropout = 0;  // the probability with which a weight becomes 0
  TESSERA_ATTRS(or_default(scale), causal, if_set(heads), if_set(dropout))
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
  TESSERA_ATTRS(if_set(activation))
};
/// Which sums of a product's lines are wanted beside it.
struct LineSumAttrs {
  bool rows = false, columns = false;
  bool wide = false;  // sums of halves are f32
  TESSERA_ATTRS(rows, columns, wide)
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
  TESSERA_ATTRS(beta1, beta2, eps, if_set(weight_decay), if_set(momentum), if_set(dampening), decoupled, nesterov)
};
/// Of the factor that losses are scaled by.
struct ScaleAttrs {
  double growth = 2, backoff = 0.5;
  int64_t interval = 2000;  // steps without inf or NaN before it grows
  TESSERA_ATTRS(growth, backoff, interval)
};
#undef TESSERA_ATTRS

/// Any one of the structs above, by value and without allocation.
class Attrs {
 public:
  Attrs() : Attrs(NoAttrs{}) {}
  template <class T>
  requires(!std::is_same_v<T, Attrs>) Attrs(const T& value) : type_(&type_of<T>) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(data_));
    std::memcpy(static_cast<void*>(data_), &value, sizeof(T));
  }
  template <class T>
  const T& as() const {
    if (type_ != &type_of<T>) throw Error("operator got the parameters of another operator");
    return *reinterpret_cast<const T*>(data_);
  }
  /// "dim=1, keepdim=true", without what a zero or none switches off: different parameters have different texts.
  std::string describe() const { return type_->describe(data_); }
  friend bool operator==(const Attrs& a, const Attrs& b) { return a.type_ == b.type_ && a.describe() == b.describe(); }

 private:
  struct Type {
    std::string (*describe)(const void*);
  };
  template <class T>
  static std::string describe_as(const void* p);
  template <class T>
  static constexpr Type type_of{&describe_as<T>};
  const Type* type_;
  alignas(8) std::byte data_[152];
};

/// Collects "name=value" for each member of an attrs struct.
class AttrsPrinter {
 public:
  template <class... T>
  void fields(std::string_view names, const T&... values) {
    (add(names, values), ...);
  }
  std::string text;

 private:
  template <class T>
  void add(std::string_view& names, const T& value) {
    const std::string_view name = next(names);
    if (std::string text = print(value); !text.empty()) append(name, text);
  }
  /// Of "stride, if_set(padding)" the names one after the other.
  static std::string_view next(std::string_view& names);
  void append(std::string_view name, std::string_view value);
  template <class T>
  static std::string print(const IfSet<T>& v) {
    std::string text = print(v.value);
    return text == "0" || text == "[0, 0]" || text == "none" ? "" : text;
  }
  static std::string print(OrDefault v) { return v.value == 0 ? "default" : print(v.value); }
  static std::string print(bool v) { return v ? "true" : "false"; }
  static std::string print(int64_t v) { return std::to_string(v); }
  static std::string print(Dim v) { return v.to_string(); }
  static std::string print(double v);
  static std::string print(DType v) { return std::string(name(v)); }
  static std::string print(Device v) { return to_string(v); }
  static std::string print(Activation v);
  static std::string print(Reduction v);
  static std::string print(std::span<const int64_t> v);
  static std::string print(const IntList& v) { return print(std::span(v.values, v.size())); }
  static std::string print(const DimList& v) { return to_string(v.shape()); }
  template <size_t N>
  static std::string print(const int64_t (&v)[N]) {
    return print(std::span<const int64_t>(v));
  }
};

template <class T>
std::string Attrs::describe_as(const void* p) {
  AttrsPrinter printer;
  static_cast<const T*>(p)->visit(printer);
  return std::move(printer.text);
}

}  // namespace tessera
