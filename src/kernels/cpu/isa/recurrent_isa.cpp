#include "kernels/args/recurrent.h"

#include "internal.h"
#include "tile/kernels/recurrent.h"
#include "tile/kernels/rows.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

constexpr i64 kCost = 16;  // of an element, beside an addition

/// Threads share the rows of the batch: row_at(Type<T>, where its states begin) and step(Vec, row, element, lanes).
template <class Args, class RowAt, class Step>
void each_row(const Args& a, Executor& e, const RowAt& row_at, const Step& step) {
  const tile::ExecutorRef executor(e);
  const i64 hidden = a.hidden;
  with_float(a.type, [&](auto type) {
    using V = tile::NativeVec<tile::compute_t<typename decltype(type)::type>>;
    tile::for_rows(executor, a.batch, hidden * kCost, [&](i64 b, int) {
      const auto row = row_at(type, b * hidden);
      i64 i = 0;
      for (; i + V::lanes <= hidden; i += V::lanes) step(Type<V>{}, row, i, tile::AllLanes{});
      if (i < hidden) step(Type<V>{}, row, i, static_cast<int>(hidden - i));
    });
  });
}

void lstm(const LstmArgs& a, Executor& e) {
  const auto row_at = [&](auto type, i64 at) {
    using T = typename decltype(type)::type;
    return tile::LstmRow<T>{static_cast<T*>(a.gates) + 4 * at, static_cast<const T*>(a.cell_before) + at,
                            static_cast<T*>(a.cell) + at, static_cast<T*>(a.output) + at};
  };
  each_row(a, e, row_at, [&](auto vec, const auto& row, i64 i, auto lanes) {
    tile::lstm_at<typename decltype(vec)::type>(row, a.hidden, i, lanes);
  });
}

void lstm_backward(const LstmBackwardArgs& a, Executor& e) {
  const auto row_at = [&](auto type, i64 at) {
    using T = typename decltype(type)::type;
    const auto of = [&](const void* p) { return p ? static_cast<const T*>(p) + at : nullptr; };
    return tile::LstmGradientRow<T>{static_cast<const T*>(a.gates) + 4 * at,
                                    of(a.cell),
                                    of(a.cell_before),
                                    of(a.doutput),
                                    of(a.dhidden_after),
                                    of(a.dcell_after),
                                    static_cast<T*>(a.dgates) + 4 * at,
                                    static_cast<T*>(a.dcell_before) + at};
  };
  each_row(a, e, row_at, [&](auto vec, const auto& row, i64 i, auto lanes) {
    tile::lstm_gradient_at<typename decltype(vec)::type>(row, a.hidden, i, lanes);
  });
}

void gru(const GruArgs& a, Executor& e) {
  const auto row_at = [&](auto type, i64 at) {
    using T = typename decltype(type)::type;
    return tile::GruRow<T>{static_cast<const T*>(a.x) + 3 * at, static_cast<const T*>(a.product) + 3 * at,
                           static_cast<const T*>(a.before) + at, a.gates ? static_cast<T*>(a.gates) + 4 * at : nullptr,
                           static_cast<T*>(a.output) + at};
  };
  each_row(a, e, row_at, [&](auto vec, const auto& row, i64 i, auto lanes) {
    tile::gru_at<typename decltype(vec)::type>(row, a.hidden, i, lanes);
  });
}

void gru_backward(const GruBackwardArgs& a, Executor& e) {
  const auto row_at = [&](auto type, i64 at) {
    using T = typename decltype(type)::type;
    const auto of = [&](const void* p) { return p ? static_cast<const T*>(p) + at : nullptr; };
    return tile::GruGradientRow<T>{static_cast<const T*>(a.gates) + 4 * at,
                                   of(a.before),
                                   of(a.doutput),
                                   of(a.dhidden_after),
                                   static_cast<T*>(a.dx) + 3 * at,
                                   static_cast<T*>(a.dproduct) + 3 * at,
                                   static_cast<T*>(a.dhidden) + at};
  };
  each_row(a, e, row_at, [&](auto vec, const auto& row, i64 i, auto lanes) {
    tile::gru_gradient_at<typename decltype(vec)::type>(row, a.hidden, i, lanes);
  });
}

/// Where a row begins, of elements of a type that Type names.
template <class Type>
struct RowPlace {
  using T = typename Type::type;
  i64 at;
};

/// One row of all elements, in pieces that threads share.
struct Flat {
  static constexpr i64 piece = 2048;
  i64 batch, hidden;
  Scalar type;
};
template <class Args, class Step>
void each_piece(const Args& a, Executor& e, const Step& step) {
  const i64 whole = a.count / Flat::piece, rest = a.count % Flat::piece;
  each_row(
      Flat{whole, Flat::piece, a.type}, e, [](auto type, i64 at) { return RowPlace<decltype(type)>{at}; }, step);
  if (rest > 0)
    each_row(
        Flat{1, rest, a.type}, e, [&](auto type, i64) { return RowPlace<decltype(type)>{a.count - rest}; }, step);
}

void rnn(const RnnArgs& a, Executor& e) {
  each_piece(a, e, [&](auto vec, const auto& from, i64 i, auto lanes) {
    using T = typename tile::remove_cvref_t<decltype(from)>::T;
    tile::rnn_at<typename decltype(vec)::type>(a.relu, static_cast<T*>(a.output), from.at + i, lanes);
  });
}
void rnn_backward(const RnnBackwardArgs& a, Executor& e) {
  each_piece(a, e, [&](auto vec, const auto& from, i64 i, auto lanes) {
    using T = typename tile::remove_cvref_t<decltype(from)>::T;
    const auto of = [](const void* p) { return static_cast<const T*>(p); };
    tile::rnn_gradient_at<typename decltype(vec)::type>(a.relu, of(a.output), of(a.doutput), of(a.dhidden_after),
                                                        static_cast<T*>(a.dx), from.at + i, lanes);
  });
}

}  // namespace

extern const RecurrentTable recurrent_table;
const RecurrentTable recurrent_table{lstm, lstm_backward, gru, gru_backward, rnn, rnn_backward};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
