// Optimizer steps over many tensors at once: one pass over parameters, gradients and moments.
#pragma once

#include "../expr.h"

TESSERA_TILE_BEGIN

/// A contiguous tensor of a step; `state` holds the moments, in the order of the optimizer.
template <class P, class G, class S>
struct StepTensors {
  P* param;
  const G* grad;
  S* state[2];
};

/// Adam (Kingma & Ba 2015) or, decoupled, AdamW (Loshchilov & Hutter 2019); see `rate` and `correction` for the biases.
template <class C>
struct AdamStep {
  C grad_scale, beta1, beta2, eps, weight_decay, lr;
  C rate;        // lr / (1 - beta1^step)
  C correction;  // 1 / (1 - beta2^step)
  bool decoupled;

  template <class V>
  TESSERA_HD void operator()(V& p, V g, V& m, V& v) const {
    g = g * V(grad_scale);
    if (decoupled) p = p - V(lr * weight_decay) * p;
    else g = g + V(weight_decay) * p;
    m = V(beta1) * m + V(1 - beta1) * g;
    v = V(beta2) * v + V(1 - beta2) * (g * g);
    p = p - V(rate) * m / (sqrt(v * V(correction)) + V(eps));
  }
};

/// SGD with momentum as in Sutskever et al. 2013; without momentum the state is not used.
template <class C>
struct SgdStep {
  C grad_scale, lr, weight_decay, momentum, dampening;
  bool nesterov, first, has_state;

  template <class V>
  TESSERA_HD void operator()(V& p, V g, V& m, V&) const {
    g = g * V(grad_scale) + V(weight_decay) * p;
    if (has_state) {
      m = first ? g : V(momentum) * m + V(1 - dampening) * g;
      g = nesterov ? g + V(momentum) * m : m;
    }
    p = p - V(lr) * g;
  }
};

/// Applies a step to elements [begin, end); C is the type that states have and that is computed in. The step is a copy,
/// since numbers that stores might change would be read again for each vector.
template <class C, int States, class P, class G, class Step>
void optimizer_step(StepTensors<P, G, C> t, i64 begin, i64 end, Step step) {
  using V = NativeVec<C>;
  const auto at = [&](i64 i, auto lanes) {
    V p = detail::load_lanes<V>(t.param + i, lanes), g = detail::load_lanes<V>(t.grad + i, lanes), m(C(0)), v(C(0));
    if constexpr (States > 0) m = detail::load_lanes<V>(t.state[0] + i, lanes);
    if constexpr (States > 1) v = detail::load_lanes<V>(t.state[1] + i, lanes);
    step(p, g, m, v);
    detail::store_lanes(t.param + i, p, lanes);
    if constexpr (States > 0) detail::store_lanes(t.state[0] + i, m, lanes);
    if constexpr (States > 1) detail::store_lanes(t.state[1] + i, v, lanes);
  };
  i64 i = begin;
  for (; i + V::lanes <= end; i += V::lanes) at(i, AllLanes{});
  if (i < end) at(i, static_cast<int>(end - i));
}

/// Contiguous elements in another type.
template <class To, class From>
void convert_elements(To* to, const From* from, i64 n) {
  using V = NativeVec<From>;
  i64 i = 0;
  for (; i + V::lanes <= n; i += V::lanes) store(to + i, load<V>(from + i));
  if (i < n) store(to + i, load<V>(from + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

/// Multiplies contiguous elements by a factor; whether a product is inf or NaN.
template <class C, class T>
bool scale_and_check(T* x, i64 n, C factor) {
  using V = NativeVec<C>;
  V poison(C(0));  // zero times what is finite stays zero
  const auto at = [&](i64 i, auto lanes) {
    const V v = detail::load_lanes<V>(x + i, lanes) * V(factor);
    poison = poison + v * V(C(0));
    detail::store_lanes(x + i, v, lanes);
  };
  i64 i = 0;
  for (; i + V::lanes <= n; i += V::lanes) at(i, AllLanes{});
  if (i < n) at(i, static_cast<int>(n - i));
  bool found = false;
  for (int k = 0; k < V::lanes; ++k) found |= !(poison[k] == C(0));
  return found;
}

/// Adapts the factor that losses are scaled by: `count` steps were without inf or NaN since it changed.
template <class C>
TESSERA_HD void update_scale(C& scale, int& count, bool found_inf, C growth, C backoff, i64 interval) {
  constexpr C largest = C(3.4028234663852886e38);
  if (found_inf) {
    scale = scale * backoff;
    count = 0;
  } else if (++count >= interval) {
    if (scale * growth <= largest) scale = scale * growth;
    count = 0;
  }
}

/// Sum of squares of contiguous elements, in blocks, so that the error does not grow with the length.
template <class C, class T>
double sum_of_squares(const T* x, i64 n) {
  using V = NativeVec<C>;
  constexpr i64 block = 1024;
  double total = 0;
  for (i64 b = 0; b < n; b += block) {
    const i64 end = min(n, b + block);
    V sum[4] = {V(C(0)), V(C(0)), V(C(0)), V(C(0))};
    i64 i = b;
    for (; i + 4 * V::lanes <= end; i += 4 * V::lanes) {
      TESSERA_UNROLL
      for (int k = 0; k < 4; ++k) {
        const V v = load<V>(x + i + k * V::lanes);
        sum[k] = fma(v, v, sum[k]);
      }
    }
    for (; i < end; i += V::lanes) {
      const V v = load<V>(x + i, static_cast<int>(min<i64>(V::lanes, end - i)));
      sum[0] = fma(v, v, sum[0]);
    }
    const V all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int k = 0; k < V::lanes; ++k) total += static_cast<double>(all[k]);
  }
  return total;
}

TESSERA_TILE_END
