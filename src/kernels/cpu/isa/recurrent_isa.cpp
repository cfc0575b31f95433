#include "kernels/args/recurrent.h"

#include "internal.h"
#include "tile/kernels/recurrent.h"
#include "tile/kernels/rows.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

constexpr i64 kCost = 16;  // of an element, beside an addition

/// fn(first element, lanes) along a row.
template <class V, class Fn>
void along(i64 hidden, const Fn& fn) {
  i64 i = 0;
  for (; i + V::lanes <= hidden; i += V::lanes) fn(i, tile::AllLanes{});
  if (i < hidden) fn(i, static_cast<int>(hidden - i));
}

void lstm(const LstmArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  const i64 hidden = a.hidden;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using V = tile::NativeVec<tile::compute_t<T>>;
    tile::for_rows(executor, a.batch, hidden * kCost, [&](i64 b, int) {
      const tile::LstmRow<T> row{static_cast<T*>(a.gates) + b * 4 * hidden,
                                 static_cast<const T*>(a.cell_before) + b * hidden,
                                 static_cast<T*>(a.cell) + b * hidden, static_cast<T*>(a.output) + b * hidden};
      along<V>(hidden, [&](i64 i, auto lanes) { tile::lstm_at<V>(row, hidden, i, lanes); });
    });
  });
}

void lstm_backward(const LstmBackwardArgs& a, Executor& e) {
  const tile::ExecutorRef executor(e);
  const i64 hidden = a.hidden;
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using V = tile::NativeVec<tile::compute_t<T>>;
    tile::for_rows(executor, a.batch, hidden * kCost, [&](i64 b, int) {
      const auto at = [&](const void* p, i64 width = 1) {
        return p ? static_cast<const T*>(p) + b * hidden * width : nullptr;
      };
      const tile::LstmGradientRow<T> row{at(a.gates, 4),
                                         at(a.cell),
                                         at(a.cell_before),
                                         at(a.doutput),
                                         at(a.dhidden_after),
                                         at(a.dcell_after),
                                         static_cast<T*>(a.dgates) + b * 4 * hidden,
                                         static_cast<T*>(a.dcell_before) + b * hidden};
      along<V>(hidden, [&](i64 i, auto lanes) { tile::lstm_gradient_at<V>(row, hidden, i, lanes); });
    });
  });
}

}  // namespace

extern const RecurrentTable recurrent_table;
const RecurrentTable recurrent_table{lstm, lstm_backward};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
