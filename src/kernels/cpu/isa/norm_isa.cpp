#include "kernels/args/norm.h"

#include "internal.h"
#include "plane_norm.h"
#include "tile/kernels/norm.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using namespace tile;

template <class T>
Rows<T> rows_of(const RowArg& arg) {
  return {static_cast<T*>(arg.data), arg.pitch};
}

void layer_norm(const LayerNormArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    const auto y = rows_of<T>(a.y);
    const auto x = rows_of<const T>(a.x);
    const auto* weight = static_cast<const T*>(a.weight);
    if (a.rms) {
      tile::rms_norm<T>(executor, a.rows, a.n, y, x, weight, static_cast<C*>(a.rstd), a.eps);
    } else {
      tile::layer_norm<T>(executor, a.rows, a.n, y, x, weight, static_cast<const T*>(a.bias), static_cast<C*>(a.mean),
                          static_cast<C*>(a.rstd), a.eps);
    }
  });
}

void layer_norm_backward(const LayerNormBackwardArgs& a, Executor& e) {
  const ExecutorRef executor(e);
  with_float(a.type, [&](auto type) {
    using T = typename decltype(type)::type;
    using C = compute_t<T>;
    const auto run =
        a.rms ? tile::norm_backward<false, T, const ExecutorRef> : tile::norm_backward<true, T, const ExecutorRef>;
    run(executor, a.rows, a.n, rows_of<T>(a.dx), static_cast<T*>(a.dweight), static_cast<T*>(a.dbias),
        rows_of<const T>(a.dy), rows_of<const T>(a.x), static_cast<const T*>(a.weight), static_cast<const C*>(a.mean),
        static_cast<const C*>(a.rstd), a.workspace, rows_of<const T>(a.addend));
  });
}

long long layer_norm_backward_workspace(Scalar type, long long rows, long long n) {
  return type == Scalar::f64 ? norm_backward_workspace<double>(rows, n) : norm_backward_workspace<float>(rows, n);
}

}  // namespace

extern const NormTable norm_table;
const NormTable norm_table = {layer_norm,
                              layer_norm_backward,
                              layer_norm_backward_workspace,
                              group_norm,
                              group_norm_backward,
                              group_norm_backward_workspace,
                              plane_parts_workspace,
                              batch_norm_workspace,
                              batch_norm,
                              batch_norm_backward,
                              move_estimates};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
