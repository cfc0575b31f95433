// Values of operators' attributes.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "tessera/device.h"
#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/intrusive.h"
#include "tessera/shape.h"
#include "tessera/tensor.h"

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
  friend bool operator==(const IntList& a, const IntList& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

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
  friend bool operator==(const DimList& a, const DimList& b) { return a.shape() == b.shape(); }
};

/// What only its owner can read: a sub-program, closures, a group of processes. Immutable, and shared by all copies of
/// an attribute.
struct AttrObject : RefCounted {
  virtual ~AttrObject() = default;
  virtual std::string text() const = 0;
  virtual bool equals(const AttrObject& other) const { return this == &other; }
};

enum class AttrKind : uint8_t { Bool, Int, Float, Dim, Text, DType, Device, Ints, Shape, Tensor, Object };
std::string_view name(AttrKind kind);

/// The value of any attribute; enumerations are their names.
using AttrValue =
    std::variant<bool, int64_t, double, Dim, std::string, DType, Device, IntList, DimList, Tensor, Ref<AttrObject>>;

/// `true`, `1e-05`, `"a \"b\""`, `[2, batch]`, `bf16`, `tensor(f32[2], 1, 0.5)`: reads back equal.
std::string to_text(const AttrValue& value);
/// Throws Error `'x' is no int`.
AttrValue parse_attr(AttrKind kind, std::string_view text);

}  // namespace tessera
