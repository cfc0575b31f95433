// Batch norm as users call it. The call waits for the next one: a sum with what has the shape of x, and ReLU, may be
// part of its pass. So `relu(batch_norm(x) + y)` is one operator, forward and backward.
#include "ops/batch_norm.h"

#include <atomic>
#include <cmath>
#include <optional>

#include "core/capture_state.h"
#include "core/util/observers.h"
#include "core/util/waiting.h"
#include "ops/check.h"
#include "ops/norm_conv.h"
#include "ops/op_name.h"
#include "ops/op_table.h"
#include "ops/output_layout.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"
#include "tessera/stream.h"

namespace tessera {
namespace {

template <OpName name>
const Op& op_of() {
  static const Op& op = find_op(name.view());
  return op;
}

bool waits_on_cpu = true;

// Whether nobody can write what the call reads before it runs, but by calls, which run it first. Memory of a card is
// written by its streams alone.
bool is_private(const Tensor& t) {
  return !t.defined() || t.device().is_card() || !t.impl().storage->shown.load(std::memory_order_relaxed);
}

// Whether no other thread has called a norm since this one did: threads would run each other's waiting calls.
bool is_alone() {
  static std::atomic<const void*> last{nullptr};
  static thread_local char own;
  const void* const before = last.exchange(&own, std::memory_order_relaxed);
  return before == &own || before == nullptr;
}

// A tensor that has no memory yet, and no place in the graph.
Tensor promised(const TensorMeta& meta, bool requires_grad) {
  auto storage = make_ref<Storage>();
  storage->device = meta.device;
  storage->bytes = static_cast<size_t>(meta.shape.numel().value()) * size_of(meta.dtype);
  const Strides strides = meta.strides.empty() ? contiguous_strides(meta.shape) : [&] {
    Strides s;
    for (const Dim& d : meta.strides) s.push_back(d.value());
    return s;
  }();
  Tensor t = as_strided(storage, meta.shape, strides, 0, meta.dtype);
  if (requires_grad) {
    t.impl().autograd = std::make_unique<AutogradMeta>();
    t.impl().autograd->requires_grad = true;
  }
  return t;
}

struct NormArguments {
  Tensor x, weight, bias, running_mean, running_var;
  bool training;
  double momentum, eps;
};

class WaitingNorm final : public WaitingCall {
 public:
  WaitingNorm(NormArguments norm, Tensor residual, Tensor promise)
      : norm_(std::move(norm)),
        residual_(std::move(residual)),
        promise_(std::move(promise)),
        stream_(current_stream(norm_.x.device())),
        records_(grad_enabled()) {
    if (observers::exist()) scope_ = scope_path();
  }

  void run() override {
    const Tensor y = as_it_is();
    TensorImpl& promise = promise_.impl();
    promise.storage = y.storage();
    promise.offset = y.offset();
    promise.strides = y.strides();
    promise.contiguous = y.is_contiguous();
    promise.autograd = std::move(y.impl().autograd);
  }

  /// Whether `t` is what was promised and nobody else holds it, and the norm would do now what it would have done.
  bool gives_up(Tensor& t) {
    if (!same(t, promise_) || grad_enabled() != records_) return false;
    if (t.device().is_card() && current_stream(t.device()).state() != stream_.state()) return false;
    promise_ = {};
    if (t.ref().unique()) return true;
    promise_ = t;
    return false;
  }
  bool adds() const { return residual_.defined(); }
  const NormArguments& norm() const { return norm_; }

  Tensor now(const Tensor& residual, Activation activation, double high = INFINITY) const {
    const GradMode mode(records_);
    const amp::NoAutocast plain;
    const StreamGuard stream(stream_);
    const observers::ScopeOf scope(scope_);
    return batch_norm_add(norm_.x, residual, norm_.weight, norm_.bias, norm_.running_mean, norm_.running_var,
                          norm_.training, norm_.momentum, norm_.eps, activation, high);
  }
  Tensor as_it_is() const { return now(residual_, Activation::None); }
  Tensor with_relu(double high) const { return now(residual_, Activation::Relu, high); }

 private:
  NormArguments norm_;
  Tensor residual_, promise_;
  Stream stream_;
  bool records_;
  std::string scope_;
};

bool needs_grad(std::initializer_list<const Tensor*> tensors) {
  if (!grad_enabled()) return false;
  for (const Tensor* t : tensors)
    if (t->defined() && t->requires_grad()) return true;
  return false;
}

Tensor wait(NormArguments norm, const Tensor& residual, const TensorMeta& of) {
  const bool recorded = needs_grad({&norm.x, &norm.weight, &norm.bias, &residual});
  const Tensor promise = promised(of, recorded);
  let_wait(std::make_unique<WaitingNorm>(std::move(norm), residual, promise));
  return promise;
}

// How y will lie, if the call may wait: where no one looks at how calls follow each other.
std::optional<TensorMeta> may_wait(const NormArguments& n) {
  const Device device = n.x.device();
  if (device.meta || is_capturing() || n.x.shape().is_symbolic() || n.x.numel() == 0) return {};
  if (!device.is_card()) {
    if (!waits_on_cpu || !is_alone()) return {};
    for (const Tensor* t : {&n.x, &n.weight, &n.bias, &n.running_mean, &n.running_var})
      if (!is_private(*t)) return {};
  }
  const auto meta_of = [&](const Tensor& t) { return t.defined() ? t.meta() : absent_meta(device); };
  const auto statistics = [&](const Tensor& t) {
    TensorMeta meta = meta_of(t);
    meta.dtype = statistics_dtype(n.x.dtype());
    return meta;
  };
  Metas in{n.x.meta(), meta_of(n.weight), meta_of(n.bias)};
  if (!n.training)
    in = {in[0], statistics(n.running_mean), statistics(n.running_var), in[1], in[2], absent_meta(device)};
  const Op& op = n.training ? op_of<"batch_norm">() : op_of<"batch_norm_inference">();
  TensorMeta y = op.infer({in.data(), in.size()}, NormAttrs{.eps = n.eps, .training = n.training})[0];
  y = output_layout(op, {in.data(), in.size()}, y, false);
  if (y.pitch || y.packing) return {};
  return y;
}

void check(const NormArguments& n, Activation activation) {
  if (activation != Activation::None && activation != Activation::Relu)
    fail("batch_norm", "an activation other than relu is not supported");
  for (const Tensor* running : {&n.running_mean, &n.running_var})
    if (running->defined() && n.x.dim() >= 2 && running->shape() != Shape{n.x.shape()[1]})
      fail("batch_norm", "running statistics of shape {} for x {}", to_string(running->shape()),
           to_string(n.x.shape()));
  if (!n.training && (!n.running_mean.defined() || !n.running_var.defined()))
    fail("batch_norm", "inference needs running statistics");
}

// The norm that waits, if `t` is what it gives and nobody else has that.
std::unique_ptr<WaitingNorm> take_norm(Tensor& t) {
  std::unique_ptr<WaitingCall> call = take_waiting();
  if (!call) return nullptr;
  if (auto* norm = dynamic_cast<WaitingNorm*>(call.get()); norm && norm->gives_up(t)) {
    call.release();
    return std::unique_ptr<WaitingNorm>(norm);
  }
  let_wait(std::move(call));
  return nullptr;
}

// a + b, where the norm that waits gives a.
Tensor added(Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || same(a, b) || a.dtype() != b.dtype() || !(a.device() == b.device()) ||
      !(a.shape() == b.shape()) || a.strides() != b.strides() || !is_private(b))
    return {};
  TensorMeta meta{a.shape(), a.dtype(), a.device()};
  for (const int64_t stride : a.strides()) meta.strides.push_back(stride);
  const std::unique_ptr<WaitingNorm> norm = take_norm(a);
  if (!norm) return {};
  if (norm->adds()) {
    a = norm->as_it_is();
    return {};
  }
  return wait(norm->norm(), b, meta);
}

}  // namespace

void let_norms_wait_on_cpu(bool on) { waits_on_cpu = on; }

Tensor relu_of_waiting(Tensor& x, double high) {
  const std::unique_ptr<WaitingNorm> norm = take_norm(x);
  if (!norm) return {};
  if (std::isinf(high) || !norm->adds()) return norm->with_relu(high);
  x = norm->as_it_is();
  return {};
}
Tensor add_to_waiting(Tensor& a, Tensor& b) {
  Tensor y = added(a, b);
  return y.defined() ? y : added(b, a);
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                  bool training, double momentum, double eps, Activation activation) {
  settle();
  NormArguments norm{x, weight, bias, std::move(running_mean), std::move(running_var), training, momentum, eps};
  check(norm, activation);
  if (activation == Activation::None)
    if (const std::optional<TensorMeta> y = may_wait(norm)) return wait(std::move(norm), {}, *y);
  return batch_norm_add(norm.x, {}, norm.weight, norm.bias, norm.running_mean, norm.running_var, training, momentum,
                        eps, activation);
}

}  // namespace tessera
