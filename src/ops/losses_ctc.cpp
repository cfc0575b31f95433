// Connectionist temporal classification: sums over all alignments of a target with its input, forward and backward in
// time, as logarithms in f64.
#include <cmath>
#include <vector>

#include "ops/losses.h"
#include "tessera/autograd.h"
#include "tessera/ops_loss.h"
#include "tessera/parallel.h"

namespace tessera {
namespace {

constexpr std::string_view kCtc = "ctc_loss";

double log_of_sum(double a, double b) {
  const double high = std::max(a, b);
  return std::isinf(high) ? high : high + std::log1p(std::exp(std::min(a, b) - high));
}

/// One example: its logarithms x[t * stride + class], and its target with blanks between all classes and at both ends.
template <class T>
struct Alignment {
  const T* x;
  int64_t stride, steps;
  std::vector<int64_t> states;

  size_t count() const { return states.size(); }
  double at(int64_t t, size_t s) const { return static_cast<double>(x[t * stride + states[s]]); }
  // Whether a path may go from state s - 2 to s: past a blank between two different classes.
  bool skips(size_t s) const { return s >= 2 && states[s] != states[s - 2]; }

  // The logarithm of all paths' probability that are in state s at time t, up to that time: [steps, states].
  std::vector<double> forward() const {
    std::vector<double> a(static_cast<size_t>(steps) * count(), -INFINITY);
    for (int64_t t = 0; t < steps; ++t) {
      double* now = a.data() + static_cast<size_t>(t) * count();
      const double* before = now - count();
      for (size_t s = 0; s < count(); ++s) {
        double reached = t == 0 ? (s < 2 ? 0 : -INFINITY) : before[s];
        if (t > 0 && s >= 1) reached = log_of_sum(reached, before[s - 1]);
        if (t > 0 && skips(s)) reached = log_of_sum(reached, before[s - 2]);
        now[s] = reached + at(t, s);
      }
    }
    return a;
  }
  double log_probability(const std::vector<double>& a) const {
    if (steps == 0) return count() == 1 ? 0 : -INFINITY;
    const double last = a.back();
    return count() == 1 ? last : log_of_sum(last, a[a.size() - 2]);
  }
  // Adds factor times the gradient of -log_probability to `gradient`, which lies as x: what share of the paths is in
  // each state. `rest` is the probability of what follows a state.
  void add_gradient(T* gradient, double factor) const {
    const std::vector<double> a = forward();
    const double total = log_probability(a);
    if (std::isinf(total)) return;
    std::vector<double> rest(count(), -INFINITY), next(count());
    for (int64_t t = steps; t-- > 0;) {
      for (size_t s = 0; s < count(); ++s) {
        next[s] = t == steps - 1 ? (s + 2 >= count() ? 0 : -INFINITY) : rest[s] + at(t + 1, s);
        if (t == steps - 1) continue;
        if (s + 1 < count()) next[s] = log_of_sum(next[s], rest[s + 1] + at(t + 1, s + 1));
        if (s + 2 < count() && skips(s + 2)) next[s] = log_of_sum(next[s], rest[s + 2] + at(t + 1, s + 2));
      }
      rest.swap(next);
      for (size_t s = 0; s < count(); ++s) {
        T& g = gradient[t * stride + states[s]];
        g = static_cast<T>(static_cast<double>(g) -
                           factor * std::exp(a[static_cast<size_t>(t) * count() + s] + rest[s] - total));
      }
    }
  }
};

// The targets of all examples, with blanks.
std::vector<std::vector<int64_t>> states_of(const Tensor& target, const std::vector<int64_t>& lengths, int64_t classes,
                                            int64_t blank) {
  const auto labels = target.to_vector<int64_t>();
  std::vector<std::vector<int64_t>> all;
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<int64_t> states(static_cast<size_t>(2 * lengths[i] + 1), blank);
    for (int64_t k = 0; k < lengths[i]; ++k) {
      const int64_t label = labels[static_cast<size_t>(start + k)];
      if (label < 0 || label >= classes)
        fail(kCtc, "target {} of example {} is not one of {} classes", label, i, classes);
      if (label == blank) fail(kCtc, "target {} of example {} is the blank", label, i);
      states[static_cast<size_t>(2 * k + 1)] = label;
    }
    all.push_back(std::move(states));
    start += target.dim() == 2 ? target.size(1) : lengths[i];
  }
  return all;
}

std::vector<int64_t> lengths_within(std::string_view what, const Tensor& lengths, int64_t most) {
  auto all = lengths.to_vector<int64_t>();
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i] < 0 || all[i] > most) fail(kCtc, "{} length {} of example {} is not in [0, {}]", what, all[i], i, most);
  return all;
}

/// Calls f(alignment, example) for each, on all threads.
template <class T, class F>
void each_alignment(const Tensors& in, int64_t blank, const F& f) {
  const Tensor &x = in[0], &target = in[1];
  const auto steps = lengths_within("input", in[2], x.size(0));
  const auto lengths = lengths_within("target", in[3], target.size(-1));
  int64_t sum = 0;
  for (const int64_t n : lengths) sum += n;
  if (target.dim() == 1 && sum != target.numel())
    fail(kCtc, "{} targets, where the lengths add up to {}", target.numel(), sum);
  auto states = states_of(target, lengths, x.size(2), blank);
  const int64_t examples = x.size(1), classes = x.size(2);
  executor().parallel(examples, [&](int64_t i, int) {
    const auto n = static_cast<size_t>(i);
    f(Alignment<T>{x.data<T>() + i * classes, examples * classes, steps[n], std::move(states[n])}, i);
  });
}
template <class F>
void of_float(const Tensor& x, const F& f) {
  if (x.dtype() == Float64) f(double());
  else f(float());
}

// x [steps, n, classes], target, lengths of both [n] -> [n].
Tensors ctc_forward(const Tensors& in, int64_t blank) {
  Tensor loss = empty({in[0].shape()[1]}, in[0].dtype(), in[0].device());
  if (in[0].device().meta) return {loss};
  const Tensors dense{contiguous(in[0]), in[1], in[2], in[3]};
  of_float(in[0], [&]<class T>(T) {
    each_alignment<T>(dense, blank, [&](const Alignment<T>& a, int64_t i) {
      loss.data<T>()[i] = static_cast<T>(-a.log_probability(a.forward()));
    });
  });
  return {loss};
}
// The same and the gradient of the losses [n] -> that of x.
Tensors ctc_backward(const Tensors& in, int64_t blank) {
  Tensor gradient = zeros(in[0].shape(), in[0].dtype(), in[0].device());
  if (in[0].device().meta) return {gradient};
  const Tensors dense{contiguous(in[0]), in[1], in[2], in[3]};
  const auto factors = in[4].to_vector<double>();
  of_float(in[0], [&]<class T>(T) {
    each_alignment<T>(dense, blank, [&](const Alignment<T>& a, int64_t i) {
      a.add_gradient(gradient.data<T>() + i * gradient.size(2), factors[static_cast<size_t>(i)]);
    });
  });
  return {gradient};
}

void check_ctc(const Tensor& x, const Tensor& target, const Tensor& input_lengths, const Tensor& target_lengths,
               int64_t blank) {
  if (x.device().type != DeviceType::CPU) fail(kCtc, "runs on CPUs alone, not on {}", to_string(x.device()));
  if (x.dim() != 3) fail(kCtc, "x must be [steps, n, classes] or [steps, classes], not {}", to_string(x.shape()));
  if (target.dim() != 1 && !(target.dim() == 2 && target.shape()[0] == x.shape()[1]))
    fail(kCtc, "target {} is neither [n, length] nor [sum of lengths] for {}", to_string(target.shape()),
         to_string(x.shape()));
  for (const Tensor* t : {&target, &input_lengths, &target_lengths})
    if (t->dtype() != Int64 && t->dtype() != Int32) fail(kCtc, "{} is not i64 or i32", describe(*t));
  require_shape(kCtc, "input_lengths", input_lengths.meta(), {x.shape()[1]});
  require_shape(kCtc, "target_lengths", target_lengths.meta(), {x.shape()[1]});
  const Dim classes = x.shape()[2];
  if (blank < 0 || (!classes.is_symbolic() && blank >= classes.value()))
    fail(kCtc, "the blank {} is not one of {} classes", blank, classes.to_string());
}

}  // namespace

Tensor ctc_loss(const Tensor& x, const Tensor& target, const Tensor& input_lengths, const Tensor& target_lengths,
                const CtcOptions& o) {
  const Tensor real = loss_input(kCtc, x), wide = in_loss_dtype(real);
  const auto one = [&](const Tensor& lengths) {
    return x.dim() == 2 && lengths.dim() == 0 ? unsqueeze(lengths, 0) : lengths;
  };
  const Tensors in{x.dim() == 2 ? unsqueeze(wide, 1) : wide, target, one(input_lengths), one(target_lengths)};
  check_ctc(in[0], in[1], in[2], in[3], o.blank);
  const auto forward = [blank = o.blank](const Tensors& i) { return ctc_forward(i, blank); };
  const auto backward = [blank = o.blank](const Tensors& i, const Tensors&, const Tensors& grads) {
    const auto slope = [blank](const Tensors& all) { return ctc_backward(all, blank); };
    return Tensors{custom_function("ctc_loss_backward", {i[0], i[1], i[2], i[3], grads[0]}, slope, {})[0], {}, {}, {}};
  };
  Tensor loss = custom_function("ctc_loss", in, forward, backward)[0];
  if (o.zero_infinity) loss = where(isinf(loss), number_like(loss, 0), loss);
  if (o.reduction == Reduction::Mean) loss = loss / clamp(cast(in[3], loss.dtype()), 1, INFINITY);
  const bool single = x.dim() == 2 && o.reduction == Reduction::None;
  return cast(reduced(single ? squeeze(loss, 0) : loss, o.reduction), real.dtype());
}

}  // namespace tessera
