// Loops over elements by functions of the host: where operators would be many. What is captured, or has no memory, is
// made of operators.
#pragma once
#include <algorithm>
#include <array>

#include "core/capture_state.h"
#include "tessera/parallel.h"
#include "tessera/tensor.h"

namespace tessera {

/// Whether functions may loop over the elements of x.
inline bool on_host(const Tensor& x) {
  return x.device().type == DeviceType::CPU && !x.device().meta && !is_capturing();
}

/// Calls fn(begin, end) for parts of [0, total), each worth a thread; `cost` is of one item, beside an addition.
template <class Fn>
void each_part(int64_t total, int64_t cost, const Fn& fn) {
  const int64_t part = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(cost, 1));
  executor().parallel((total + part - 1) / part,
                      [&](int64_t i, int) { fn(i * part, std::min(total, (i + 1) * part)); });
}

/// Some lines of a contiguous tensor: element i of line k lies at begin + i * step + k * side.
struct SomeLines {
  static constexpr int most = 16;
  int64_t begin, step, side;
  int count;
};

/// The lines along one dim of a contiguous tensor [outer, length, inner].
struct HostLines {
  int64_t outer = 1, length, inner = 1;
  HostLines(const Tensor& x, int64_t dim) : length(x.size(dim)) {
    for (int64_t d = 0; d < x.dim(); ++d)
      if (d != dim) (d < dim ? outer : inner) *= x.size(d);
  }
  /// fn(SomeLines), by several threads.
  template <class Fn>
  void each(int64_t cost, const Fn& fn) const {
    const int64_t most =
        inner == 1 ? 4 : SomeLines::most;  // few of those that lie apart, whose elements are neighbours
    const int64_t blocks = ((inner == 1 ? outer : inner) + most - 1) / most;
    each_part(inner == 1 ? blocks : outer * blocks, cost * length * most, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % blocks * most;
        if (inner == 1) fn(SomeLines{first * length, 1, length, static_cast<int>(std::min(most, outer - first))});
        else
          fn(SomeLines{i / blocks * length * inner + first, inner, 1, static_cast<int>(std::min(most, inner - first))});
      }
    });
  }
};

}  // namespace tessera
