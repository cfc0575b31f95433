// A call between an observer's called() and returned().
#pragma once
#include "core/op.h"
#include "core/util/observers.h"

namespace tessera {

template <class Run>
[[gnu::noinline, gnu::cold]] Tensors observe_run(const Op& op, const Tensors& in, const Attrs& attrs, const Run& run) {
  observers::Call call(op.name, attrs, {in.data(), in.size()});
  Tensors out = run();
  call.returns({out.data(), out.size() - op.hidden_outputs});
  return out;
}

/// run(), which gives the outputs of the call, hidden ones last.
template <class Run>
Tensors observe(const Op& op, const Tensors& in, const Attrs& attrs, const Run& run) {
  return observers::exist() ? observe_run(op, in, attrs, run) : run();
}

}  // namespace tessera
