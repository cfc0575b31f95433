// Dims that are integers or symbols, shapes and strides.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/small_vector.h"

namespace tessera {

/// One dimension: an integer, or an expression over symbols such as `batch` or `2*(tokens+1)`. Expressions are kept
/// in a canonical form, so that equal handles mean provably equal dims. Integers cost what an int64_t costs.
class Dim {
 public:
  /// Throws Error below -2^62: the handles of expressions lie there.
  constexpr Dim(int64_t value = 0) : value_(value) {
    if (value < kSymbolic) throw_out_of_range(value);
  }
  static constexpr int64_t kUnbounded = INT64_MAX;
  /// The symbol of that name, a number from `low` to `high`, both included. The same name with the same bounds is the
  /// same symbol everywhere in the process; symbols of one name and different bounds cannot meet in an expression, nor
  /// in a graph. Throws Error on an empty name, on one with a quotation mark, and where low > high.
  static Dim symbol(std::string_view name, int64_t low = 0, int64_t high = kUnbounded);
  /// A count from 0 to `high` that depends on the values of tensors: `op`, which gives what has so many, is named where
  /// somebody needs the number. It is another symbol than those of symbol(). Without a name it is what an operator's
  /// `infer` says, until a call has a count of its own.
  static Dim count(std::string_view name, int64_t high, std::string_view op);
  /// What to_string() gave: `12`, `2*batch + 1`, `floor((n)/(2))`, `'any name'`. Names are those of `DimNames`, and
  /// else of symbols without bounds. Throws Error on anything else.
  static Dim parse(std::string_view text);

  constexpr bool is_symbolic() const { return value_ < kSymbolic; }
  /// The integer. Throws Error if symbolic.
  int64_t value() const { return is_symbolic() ? throw_symbolic() : value_; }
  std::string to_string() const;

  /// True only if provably equal: a symbol equals no integer.
  friend constexpr bool operator==(Dim a, Dim b) { return a.value_ == b.value_; }
  // Sums, differences and products of integers throw Error on overflow.
  friend Dim operator+(Dim a, Dim b) {
    int64_t sum;
    return both(a, b) && !__builtin_add_overflow(a.value_, b.value_, &sum) ? Dim(sum) : add(a, b);
  }
  friend Dim operator-(Dim a, Dim b) {
    int64_t difference;
    return both(a, b) && !__builtin_sub_overflow(a.value_, b.value_, &difference) ? Dim(difference)
                                                                                  : add(a, multiply(-1, b));
  }
  friend Dim operator*(Dim a, Dim b) {
    int64_t product;
    return both(a, b) && !__builtin_mul_overflow(a.value_, b.value_, &product) ? Dim(product) : multiply(a, b);
  }
  /// Floor division. Throws Error on a zero divisor.
  friend Dim operator/(Dim a, Dim b) { return divide(a, b); }

  /// Replaces the symbols of that name by `value` wherever they occur.
  Dim substitute(std::string_view name, int64_t value) const;
  /// Replaces each first one, a symbol, by its second, all at once.
  Dim substitute(std::span<const std::pair<Dim, Dim>> values) const;

  /// No value is below, or above, whatever the symbols are within their bounds: itself of an integer. INT64_MIN and
  /// kUnbounded where there is no such limit.
  int64_t low() const;
  int64_t high() const;
  /// Whether it is a symbol, and no larger expression.
  bool is_symbol() const;
  /// Of a symbol: its name.
  std::string name() const;
  /// The operator whose count it is, or is computed from; empty where there is none.
  std::string counted_by() const;
  /// The symbols in it, each once. Throws Error where two have one name.
  std::vector<Dim> symbols() const;

 private:
  friend struct DimTable;
  static constexpr int64_t kSymbolic = -(int64_t(1) << 62);
  static constexpr bool both(Dim a, Dim b) { return !a.is_symbolic() && !b.is_symbolic(); }
  static Dim add(Dim a, Dim b);
  static Dim multiply(Dim a, Dim b);
  static Dim divide(Dim a, Dim b);
  [[noreturn]] int64_t throw_symbolic() const;
  [[noreturn]] static void throw_out_of_range(int64_t value);
  int64_t value_;  // below kSymbolic: an index into the table of expressions
};

/// While alive, Dim::parse() on this thread reads these symbols' names as these symbols.
class DimNames {
 public:
  explicit DimNames(const std::vector<Dim>& symbols);
  ~DimNames();
  DimNames(const DimNames&) = delete;
  /// The symbol of that name; null where there is none.
  static const Dim* find(std::string_view name);

 private:
  std::vector<std::pair<std::string, Dim>> symbols_;
  const DimNames* before_;
};

/// Dims of a text that may turn out to be none: what this thread makes while it is alive is forgotten at its end,
/// unless keep() was called, or another thread asked for a dim meanwhile. No dim made so may be used afterwards.
class TemporaryDims {
 public:
  TemporaryDims();
  ~TemporaryDims();
  TemporaryDims(const TemporaryDims&) = delete;
  void keep() { keeps_ = true; }

 private:
  size_t expressions_, atoms_;  // that there were
  uint64_t asked_, asked_here_;
  bool keeps_ = false;
};

/// "n in [0, 12]", "n in [1, inf]", "nonzero_1 in [0, 12] of nonzero" of a count; empty for a symbol without bounds.
std::string bounds_text(Dim symbol);
/// What bounds_text() gave. Throws Error on anything else.
Dim parse_bounds(std::string_view text);

/// Sizes of a tensor, outermost first.
class Shape : public SmallVector<Dim, 6> {
 public:
  using SmallVector::SmallVector;
  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) { append(sizes.begin(), sizes.end()); }
  Shape(std::initializer_list<Dim> sizes) { append(sizes.begin(), sizes.end()); }
  explicit Shape(std::span<const int64_t> sizes) { append(sizes.begin(), sizes.end()); }

  int64_t rank() const { return static_cast<int64_t>(size()); }
  bool is_symbolic() const;
  /// Number of elements. Throws Error on overflow of 64 bits.
  Dim numel() const;
};

/// Of what lies in memory.
using Strides = SmallVector<int64_t, 6>;
/// Of what may have no memory yet.
using DimStrides = SmallVector<Dim, 6>;

/// Which dims an operator works on, or a number for each of them: a braced list, or one made at run time. Operators
/// take at most 8.
class Dims : public SmallVector<int64_t, 8> {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> dims) { append(dims.begin(), dims.end()); }
  /// Of a std::vector, a std::span, a SmallVector and the like.
  template <class List>
  requires(!std::is_base_of_v<Dims, List> && std::is_convertible_v<const List&, std::span<const int64_t>>)
      Dims(const List& dims) {
    const std::span<const int64_t> all(dims);
    append(all.begin(), all.end());
  }
};

/// "[4, 3]", "[batch, 3]"
std::string to_string(const Shape& shape);
/// Row-major strides in elements; symbolic shapes have none (Error).
Strides contiguous_strides(const Shape& shape);
/// Whether they are, dims of one element aside.
bool is_row_major(const Shape& shape, const Strides& strides);
/// Row-major ones of any shape.
DimStrides contiguous_dim_strides(const Shape& shape);
/// As integers. Throws Error on a symbol.
Strides integers(const DimStrides& strides);
/// As dims.
DimStrides dims_of(const Strides& strides);
/// The common shape by NumPy's rule. Throws Error `<op>: shapes do not broadcast: [2, 3] and [4]`.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);
/// Maps -rank..rank-1 to 0..rank-1. Throws Error `<op>: dim 3 is out of range for [2, 3]`.
int64_t normalize_dim(std::string_view op, int64_t dim, const Shape& shape);

}  // namespace tessera
