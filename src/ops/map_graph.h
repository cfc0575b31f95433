// Functions of elements that are written as calls of operators: on a CPU they are traced once, and then run as one
// operator, as their gradients are.
#pragma once
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/map_graph.h"
#include "tessera/ops.h"

namespace tessera {

/// f(in..., numbers...) in the dtype `computed`, given in `result`.
struct MapFunction {
  Tensor (*f)(const Tensor* in, const double* numbers);
  DType computed, result;
  SmallVector<double, 4> numbers;

  /// As calls of operators.
  Tensor operator()(const Tensors& in) const;
  bool operator==(const MapFunction& other) const;
};

/// What was traced of one function: of the kinds of calls that came last.
class TracedMaps {
 public:
  /// Attributes of map_graph; none where the function calls what is no map.
  std::optional<Attrs> attrs_of(const MapFunction& function, const Tensors& in);

 private:
  static constexpr size_t kMost = 8;
  struct Traced {
    MapFunction function;
    std::vector<DType> dtypes;
    std::optional<Attrs> attrs;
  };
  std::vector<Traced> known_;
};

/// The attribute of map_graph that computes the function; null where it calls what is no map, or one alone.
Ref<MapGraph> trace(const MapFunction& function, std::span<const DType> dtypes);

Tensor map_elements(TracedMaps& traced, const MapFunction& function, Tensors in);

/// f(in..., numbers...) of tensors that broadcast, computed in one dtype and given in another. The element of the
/// result depends on an element of each input alone. `f` captures nothing.
template <size_t n, class F, class... Numbers>
Tensor map_elements(const Tensor (&in)[n], DType computed, DType result, F, Numbers... numbers) {
  static_assert(std::is_empty_v<F>, "what f captures would not be known when it is called again");
  constexpr auto f = [](const Tensor* given, const double* values) {
    return [&]<size_t... i, size_t... k>(std::index_sequence<i...>, std::index_sequence<k...>) {
      return F{}(given[i]..., values[k]...);
    }
    (std::make_index_sequence<n>(), std::make_index_sequence<sizeof...(Numbers)>());
  };
  static thread_local TracedMaps traced;
  return map_elements(traced, {f, computed, result, {static_cast<double>(numbers)...}}, Tensors(in, in + n));
}

using Vjp = Tensors (*)(const Saved&, const Tensors&);

/// The gradients of calls of one operator without attributes, whose vjp makes them of maps: by one operator, which is
/// traced once, where that is less; by the vjp elsewhere.
class TracedVjp {
 public:
  explicit TracedVjp(Vjp vjp) : vjp_(vjp) {}
  Tensors operator()(const Saved& s, const Tensors& grads);

 private:
  struct Traced {
    DType dtype;
    uint32_t needs;
    size_t results;              // of the vjp
    std::optional<Attrs> attrs;  // of map_graph
  };
  const Traced& traced(const Saved& s, const Tensor& grad);
  Vjp vjp_;
  std::vector<Traced> known_;
};

/// A fused vjp by that.
template <Vjp vjp>
Tensors traced_vjp(const Saved& s, const Tensors& grads) {
  static thread_local TracedVjp traced(vjp);
  return traced(s, grads);
}

}  // namespace tessera
