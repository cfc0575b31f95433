#include "cases/cases.h"
#include "ops/custom_function.h"
#include "tessera/ops.h"

namespace tessera {

std::vector<OpCase> function_cases() {
  const auto forward = [](const Tensors& in) { return Tensors{in[0] * in[1], exp(in[0])}; };
  const auto backward = [](const Tensors& in, const Tensors& out, const Tensors& grads) {
    Tensor da, db;
    if (grads[0].defined()) da = grads[0] * in[1], db = grads[0] * in[0];
    if (grads[1].defined()) da = da.defined() ? da + grads[1] * out[1] : grads[1] * out[1];
    return Tensors{da, db};
  };
  return {{.op = "custom_function",
           .label = "product and exponential",
           .attrs = function_attrs("product and exponential", forward, backward),
           .inputs =
               [](Generator& g) {
                 return Tensors{normal64({5, 7}, g), normal64({5, 7}, g)};
               },
           .gradients = 0b11,
           .symbolic = false}};
}

}  // namespace tessera
