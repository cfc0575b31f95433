// Cells of recurrent layers: a thread for each element of the state.
#include "kernels/args/recurrent.h"

#include "kernels/gpu/device/runtime/gpu.h"
#include "tile/kernels/recurrent.h"

namespace tessera::gpu_kernels {
namespace {

template <class T>
TESSERA_DEVICE T* row_of(T* p, i64 at) {
  return p ? p + at : p;
}

template <class T>
TESSERA_KERNEL(256)
void lstm_kernel(i64 batch, i64 hidden, const tile::LstmRow<T> all) {
  using C = tile::compute_t<T>;
  for (i64 n = first_index(); n < batch * hidden; n += index_step()) {
    const i64 b = n / hidden, at = b * hidden;
    const tile::LstmRow<T> row{all.gates + 4 * at, all.cell_before + at, all.cell + at, all.output + at};
    tile::lstm_at<C>(row, hidden, n - at, 1);
  }
}
template <class T>
TESSERA_KERNEL(256)
void lstm_backward_kernel(i64 batch, i64 hidden, const tile::LstmGradientRow<T> all) {
  using C = tile::compute_t<T>;
  for (i64 n = first_index(); n < batch * hidden; n += index_step()) {
    const i64 b = n / hidden, at = b * hidden;
    const tile::LstmGradientRow<T> row{all.gates + 4 * at,
                                       all.cell + at,
                                       all.cell_before + at,
                                       row_of(all.doutput, at),
                                       row_of(all.dhidden_after, at),
                                       row_of(all.dcell_after, at),
                                       all.dgates + 4 * at,
                                       all.dcell_before + at};
    tile::lstm_gradient_at<C>(row, hidden, n - at, 1);
  }
}

void lstm(const LstmArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const tile::LstmRow<T> all{static_cast<T*>(a.gates), static_cast<const T*>(a.cell_before), static_cast<T*>(a.cell),
                               static_cast<T*>(a.output)};
    launch("lstm", lstm_kernel<T>, grid_for(a.batch * a.hidden, 256, executor), 256, 0, executor, i64{a.batch},
           i64{a.hidden}, all);
  });
}
void lstm_backward(const LstmBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto at = [](const void* p) { return static_cast<const T*>(p); };
    const tile::LstmGradientRow<T> all{
        at(a.gates),         at(a.cell),        at(a.cell_before),         at(a.doutput),
        at(a.dhidden_after), at(a.dcell_after), static_cast<T*>(a.dgates), static_cast<T*>(a.dcell_before)};
    launch("lstm", lstm_backward_kernel<T>, grid_for(a.batch * a.hidden, 256, executor), 256, 0, executor, i64{a.batch},
           i64{a.hidden}, all);
  });
}

template <class T>
TESSERA_KERNEL(256)
void gru_kernel(i64 batch, i64 hidden, const tile::GruRow<T> all) {
  using C = tile::compute_t<T>;
  for (i64 n = first_index(); n < batch * hidden; n += index_step()) {
    const i64 b = n / hidden, at = b * hidden;
    const tile::GruRow<T> row{all.x + 3 * at, all.product + 3 * at, all.before + at, row_of(all.gates, 4 * at),
                              all.output + at};
    tile::gru_at<C>(row, hidden, n - at, 1);
  }
}
template <class T>
TESSERA_KERNEL(256)
void gru_backward_kernel(i64 batch, i64 hidden, const tile::GruGradientRow<T> all) {
  using C = tile::compute_t<T>;
  for (i64 n = first_index(); n < batch * hidden; n += index_step()) {
    const i64 b = n / hidden, at = b * hidden;
    const tile::GruGradientRow<T> row{
        all.gates + 4 * at, all.before + at,       all.doutput + at, row_of(all.dhidden_after, at),
        all.dx + 3 * at,    all.dproduct + 3 * at, all.dhidden + at};
    tile::gru_gradient_at<C>(row, hidden, n - at, 1);
  }
}
template <class T>
TESSERA_KERNEL(256)
void rnn_kernel(i64 count, bool relu, T* output) {
  for (i64 n = first_index(); n < count; n += index_step()) tile::rnn_at<tile::compute_t<T>>(relu, output, n, 1);
}
template <class T>
TESSERA_KERNEL(256)
void rnn_backward_kernel(i64 count, bool relu, const T* output, const T* doutput, const T* dhidden_after, T* dx) {
  for (i64 n = first_index(); n < count; n += index_step())
    tile::rnn_gradient_at<tile::compute_t<T>>(relu, output, doutput, dhidden_after, dx, n, 1);
}

void gru(const GruArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto at = [](const void* p) { return static_cast<const T*>(p); };
    const tile::GruRow<T> all{at(a.x), at(a.product), at(a.before), static_cast<T*>(a.gates),
                              static_cast<T*>(a.output)};
    launch("gru", gru_kernel<T>, grid_for(a.batch * a.hidden, 256, executor), 256, 0, executor, i64{a.batch},
           i64{a.hidden}, all);
  });
}
void gru_backward(const GruBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto at = [](const void* p) { return static_cast<const T*>(p); };
    const tile::GruGradientRow<T> all{at(a.gates),
                                      at(a.before),
                                      at(a.doutput),
                                      at(a.dhidden_after),
                                      static_cast<T*>(a.dx),
                                      static_cast<T*>(a.dproduct),
                                      static_cast<T*>(a.dhidden)};
    launch("gru", gru_backward_kernel<T>, grid_for(a.batch * a.hidden, 256, executor), 256, 0, executor, i64{a.batch},
           i64{a.hidden}, all);
  });
}
void rnn(const RnnArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    launch("rnn", rnn_kernel<T>, grid_for(a.count, 256, executor), 256, 0, executor, i64{a.count}, a.relu,
           static_cast<T*>(a.output));
  });
}
void rnn_backward(const RnnBackwardArgs& a, Executor& executor) {
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto at = [](const void* p) { return static_cast<const T*>(p); };
    launch("rnn", rnn_backward_kernel<T>, grid_for(a.count, 256, executor), 256, 0, executor, i64{a.count}, a.relu,
           at(a.output), at(a.doutput), at(a.dhidden_after), static_cast<T*>(a.dx));
  });
}

#if !defined(__HIP__)
// Blocks take turns among the parts.
template <class T>
TESSERA_KERNEL(256)
void pack_net_kernel(const NetPackArgs args) {
  const i64 turn = tile::block_in_grid() / args.count, turns = gridDim.x / static_cast<unsigned>(args.count);
  const NetPart& part = args.parts[tile::block_in_grid() - turn * args.count];
  T *ours = static_cast<T*>(part.ours), *theirs = static_cast<T*>(args.weights) + part.at;
  for (i64 i = turn * 256 + tile::thread_in_block(); i < part.count; i += turns * 256)
    if (args.back) ours[i] = theirs[i];
    else theirs[i] = ours[i];
}
#endif

}  // namespace

#if !defined(__HIP__)
void pack_net(const NetPackArgs& args, Executor& executor) {
  i64 most = 0;
  for (int i = 0; i < args.count; ++i) most = tile::max<i64>(most, args.parts[i].count);
  const i64 turns = tile::max<i64>(1, tile::min<i64>(tile::ceil_div<i64>(most, 1024), 32));
  if (size_of(args.type) == 2)
    launch("pack_net", pack_net_kernel<tile::u16>, turns * args.count, 256, 0, executor, args);
  else launch("pack_net", pack_net_kernel<u32>, turns * args.count, 256, 0, executor, args);
}
#endif

const RecurrentTable* device_recurrent_table() {
  static const RecurrentTable table{lstm, lstm_backward, gru, gru_backward, rnn, rnn_backward};
  return &table;
}

}  // namespace tessera::gpu_kernels
