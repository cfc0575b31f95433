// The symbols of a graph, and what they stand for in a run.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/attrs.h"
#include "tessera/shape.h"

namespace tessera {

/// Of each name one, in the order in which they were met.
class Symbols {
 public:
  /// Those within. Throws Error where another one of the same name is there.
  void add(Dim dim);
  template <class List>
  void add_all(const List& dims) {
    for (const Dim d : dims) add(d);
  }
  void add_all(const Attrs& attrs);
  bool has(std::string_view name) const;
  const std::vector<Dim>& all() const& { return all_; }

 private:
  std::vector<Dim> all_;
};

/// fn(dim) in the place of every dim among the attributes.
Attrs with_dims(const Attrs& attrs, const std::function<Dim(Dim)>& fn);

/// What is known of symbols.
class SymbolValues {
 public:
  /// Notes what symbols are in `wanted`, where `given` stands. Throws Error `batch in [1, 64] is 65` outside of bounds.
  void note(const Shape& wanted, const Shape& given);
  /// With what is known in the place of symbols.
  Dim of(Dim dim) const { return dim.substitute(values_); }
  Shape of(Shape shape) const;
  Attrs of(const Attrs& attrs) const;

 private:
  std::vector<std::pair<Dim, Dim>> values_;
};

}  // namespace tessera
