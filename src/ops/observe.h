// A call between an observer's called() and returned().
#pragma once
#include "core/op.h"
#include "core/util/observers.h"
#include "tessera/autograd.h"

namespace tessera {

template <class Run>
[[gnu::noinline, gnu::cold]] Tensors observe_run(const Op& op, const Tensors& in, const Attrs& attrs, bool recorded,
                                                 const Run& run) {
  observers::Call call(op.name, attrs, {in.data(), in.size()});
  Tensors out = run();
  const std::span<const Tensor> all(out.data(), out.size());
  const size_t shown = out.size() - static_cast<size_t>(op.hidden_outputs);
  call.returns(all.first(shown), all.subspan(shown), recorded ? static_cast<int64_t>(Node::next_sequence()) : -1);
  return out;
}

/// run(), which gives the outputs of the call, hidden ones last; next it is recorded for backward, or not.
template <class Run>
Tensors observe(const Op& op, const Tensors& in, const Attrs& attrs, bool recorded, const Run& run) {
  return observers::exist() ? observe_run(op, in, attrs, recorded, run) : run();
}

}  // namespace tessera
