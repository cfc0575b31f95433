#include "ops/losses_on_host.h"

#include <memory>

#include <fmt/format.h>

#include "ops/gradient.h"
#include "ops/on_host.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

int64_t checked_class(int64_t index, int64_t classes) {
  if (index < 0 || index >= classes)
    throw Error(fmt::format("gather: index {} is out of range for size {}", index, classes));
  return index;
}

// fn(a pointer of the type of x's elements): f32 or f64.
template <class Fn>
void with_float_type(const Tensor& x, const Fn& fn) {
  if (x.dtype() == Float64) fn(static_cast<double*>(nullptr));
  else fn(static_cast<float*>(nullptr));
}

// fn(first row, the one behind the last), by several threads.
template <class Fn>
void each_row(const Tensor& x, int64_t cost, const Fn& fn) {
  each_part(x.size(0), cost, fn);
}

// ---- negative log-likelihood

struct Targets {
  const int64_t* of_row;
  int64_t ignored, classes;
  /// fn(row, its class) for rows that count.
  template <class Fn>
  void each(int64_t begin, int64_t end, const Fn& fn) const {
    for (int64_t i = begin; i < end; ++i)
      if (of_row[i] != ignored) fn(i, checked_class(of_row[i], classes));
  }
};

// x, target, weight of classes or nothing -> the loss, and what the rows weigh together.
Tensors nll_of_rows(const Tensors& in, int64_t ignored, Reduction reduction) {
  const Tensor x = contiguous(in[0]), target = contiguous(in[1]), weight = in.size() > 2 ? contiguous(in[2]) : Tensor();
  const bool each = reduction == Reduction::None;
  const Tensor loss = each ? zeros({x.shape()[0]}, x.dtype()) : empty({}, x.dtype()), total = empty({}, x.dtype());
  with_float_type(x, [&]<class T>(T*) {
    const T *const from = x.data<T>(), *const of_class = weight.defined() ? weight.data<T>() : nullptr;
    T* const to = loss.data<T>();
    const int64_t classes = x.size(1);
    double sum = 0, weights = 0;
    Targets{target.data<int64_t>(), ignored, classes}.each(0, x.size(0), [&](int64_t i, int64_t c) {
      const T w = of_class ? of_class[c] : T(1), value = -(from[i * classes + c] * w);
      if (each) to[i] = value;
      sum += static_cast<double>(value);
      weights += static_cast<double>(w);
    });
    if (!each) *to = static_cast<T>(reduction == Reduction::Mean ? sum / weights : sum);
    *total.data<T>() = static_cast<T>(weights);
  });
  return {loss, total};
}

// The same, the loss, what the rows weigh, and the loss's gradient -> that of x.
Tensors nll_slopes(const Tensors& in, int64_t ignored, Reduction reduction) {
  const size_t last = in.size() - 1;
  const Tensor &x = in[0], target = contiguous(in[1]), g = contiguous(in[last]), dx = zeros(x.shape(), x.dtype());
  const Tensor weight = last > 4 ? contiguous(in[2]) : Tensor();
  with_float_type(x, [&]<class T>(T*) {
    const T *const slopes = g.data<T>(), *const of_class = weight.defined() ? weight.data<T>() : nullptr;
    const T share = reduction == Reduction::Mean ? T(1) / *in[last - 1].data<T>() : T(1);
    const int64_t step = reduction == Reduction::None ? 1 : 0, classes = x.size(1);
    T* const to = dx.data<T>();
    Targets{target.data<int64_t>(), ignored, classes}.each(0, x.size(0), [&](int64_t i, int64_t c) {
      to[i * classes + c] = -(slopes[i * step] * share * (of_class ? of_class[c] : T(1)));
    });
  });
  return {dx};
}

// ---- margins

// Sums of max(0, v + above)^p over n neighbours, p being 1 or 2.
template <int p, class T>
T sum_of_margins(const T* v, int64_t n, T above) {
  constexpr int lanes = 16;
  T sums[lanes] = {}, sum(0);
  const auto term = [above](T value) {
    const T over = std::max(value + above, T(0));
    return p == 2 ? over * over : over;
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) sums[k] += term(v[i + k]);
  for (; i < n; ++i) sum += term(v[i]);
  for (const T s : sums) sum += s;
  return sum;
}
// What such sums change by, times g, to slopes; returns their sum.
template <int p, class T>
T add_slopes_of_margins(const T* v, int64_t n, T above, T g, T* slopes) {
  constexpr int lanes = 16;
  T sums[lanes] = {}, sum(0);
  const auto slope = [=](T value) {
    const T over = value + above;
    return over > T(0) ? p == 2 ? T(2) * g * over : g : T(0);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) {
      const T s = slope(v[i + k]);
      slopes[i + k] += s;
      sums[k] += s;
    }
  for (; i < n; ++i) {
    const T s = slope(v[i]);
    slopes[i] += s;
    sum += s;
  }
  for (const T s : sums) sum += s;
  return sum;
}

template <int p>
Tensors margins_of_rows(const Tensors& in, double margin) {
  const Tensor x = contiguous(in[0]), target = contiguous(in[1]), y = empty({x.shape()[0]}, x.dtype());
  const int64_t classes = x.size(1);
  with_float_type(x, [&]<class T>(T*) {
    each_row(x, classes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* const row = x.data<T>() + i * classes;
        const int64_t own = checked_class(target.data<int64_t>()[i], classes);
        const T above = static_cast<T>(margin) - row[own];
        y.data<T>()[i] =
            sum_of_margins<p>(row, own, above) + sum_of_margins<p>(row + own + 1, classes - own - 1, above);
      }
    });
  });
  return {y};
}
template <int p>
Tensors slopes_of_margins(const Tensors& in, double margin) {
  const Tensor x = contiguous(in[0]), target = contiguous(in[1]), g = contiguous(in[3]),
               dx = zeros(x.shape(), x.dtype());
  const int64_t classes = x.size(1);
  with_float_type(x, [&]<class T>(T*) {
    each_row(x, classes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T *const row = x.data<T>() + i * classes, slope = g.data<T>()[i];
        T* const to = dx.data<T>() + i * classes;
        const int64_t own = checked_class(target.data<int64_t>()[i], classes), behind = own + 1;
        const T above = static_cast<T>(margin) - row[own];
        const T before = add_slopes_of_margins<p>(row, own, above, slope, to);
        to[own] = -(before + add_slopes_of_margins<p>(row + behind, classes - behind, above, slope, to + behind));
      }
    });
  });
  return {dx};
}

// A row's list, and its classes that are in none, with their numbers.
template <class T>
class Others {
 public:
  explicit Others(int64_t classes)
      : classes_(classes),
        listed_(std::make_unique<bool[]>(static_cast<size_t>(classes))),
        numbers(std::make_unique<int64_t[]>(static_cast<size_t>(classes))),
        values(std::make_unique<T[]>(static_cast<size_t>(classes))) {}
  void read(const T* row, const int64_t* list) {
    std::fill_n(listed_.get(), classes_, false);
    for (length = 0; length < classes_ && list[length] >= 0; ++length)
      listed_[static_cast<size_t>(checked_class(list[length], classes_))] = true;
    count = 0;
    for (int64_t c = 0; c < classes_; ++c) {
      const auto at = static_cast<size_t>(count);
      numbers[at] = c;
      values[at] = row[c];
      count += !listed_[static_cast<size_t>(c)];
    }
  }

 private:
  int64_t classes_;
  std::unique_ptr<bool[]> listed_;

 public:
  int64_t length = 0, count = 0;
  std::unique_ptr<int64_t[]> numbers;
  std::unique_ptr<T[]> values;
};

constexpr int64_t kListed = 8;  // classes in a list, guessed for the cost of a row

Tensors listed_margins_of_rows(const Tensors& in) {
  const Tensor x = contiguous(in[0]), lists = contiguous(in[1]), y = empty({x.shape()[0]}, x.dtype());
  const int64_t classes = x.size(1);
  with_float_type(x, [&]<class T>(T*) {
    each_row(x, kListed * classes, [&](int64_t begin, int64_t end) {
      Others<T> others(classes);
      for (int64_t i = begin; i < end; ++i) {
        const T* const row = x.data<T>() + i * classes;
        const int64_t* const list = lists.data<int64_t>() + i * classes;
        others.read(row, list);
        T sum(0);
        for (int64_t k = 0; k < others.length; ++k)
          sum += sum_of_margins<1>(others.values.get(), others.count, T(1) - row[list[k]]);
        y.data<T>()[i] = sum;
      }
    });
  });
  return {y};
}
Tensors slopes_of_listed_margins(const Tensors& in) {
  const Tensor x = contiguous(in[0]), lists = contiguous(in[1]), g = contiguous(in[3]),
               dx = zeros(x.shape(), x.dtype());
  const int64_t classes = x.size(1);
  with_float_type(x, [&]<class T>(T*) {
    each_row(x, kListed * classes, [&](int64_t begin, int64_t end) {
      Others<T> others(classes);
      const auto slopes = std::make_unique<T[]>(static_cast<size_t>(classes));
      for (int64_t i = begin; i < end; ++i) {
        const T *const row = x.data<T>() + i * classes, slope = g.data<T>()[i];
        const int64_t* const list = lists.data<int64_t>() + i * classes;
        T* const to = dx.data<T>() + i * classes;
        others.read(row, list);
        std::fill_n(slopes.get(), others.count, T(0));
        for (int64_t k = 0; k < others.length; ++k)
          to[list[k]] -=
              add_slopes_of_margins<1>(others.values.get(), others.count, T(1) - row[list[k]], slope, slopes.get());
        for (int64_t k = 0; k < others.count; ++k)
          to[others.numbers[static_cast<size_t>(k)]] += slopes[static_cast<size_t>(k)];
      }
    });
  });
  return {dx};
}

}  // namespace

Tensor loss_of_rows(const char* name, const Tensors& inputs, const CustomForward& forward, const CustomForward& slopes,
                    const Composed& composed) {
  const auto backward = [=](const Tensors& in, const Tensors& out, const Tensors& grads) {
    Tensors found(in.size());
    if (grad_enabled()) {
      found[0] = grad({composed(in[0])}, {in[0]}, {grads[0]}, false, true)[0];
      return found;
    }
    Tensors given = in;
    given.append(out.begin(), out.end());
    given.push_back(grads[0]);
    found[0] = custom_function(std::string(name) + "_backward", given, slopes, {})[0];
    return found;
  };
  return custom_function(name, inputs, forward, backward)[0];
}

namespace {

// ---- cross-entropy over a dim before others, as [outer, classes, inner]

/// fn(begin, end) for parts of the outer ones, which stay in a cache.
template <class Fn>
void each_plane_part(const Tensor& x, const Fn& fn) {
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 16) / std::max<int64_t>(1, x.size(1) * x.size(2)));
  for (int64_t first = 0; first < x.size(0); first += most) fn(first, std::min(x.size(0), first + most));
}
/// fn(example, its logit of the target's class as an offset) for those that count.
template <class Fn>
void each_counted(const Tensor& x, const Tensor& target, int64_t ignored, const Fn& fn) {
  const int64_t inner = x.size(2), classes = x.size(1), count = target.numel();
  const int64_t* const classes_of = target.data<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t c = classes_of[i];
    if (c == ignored) continue;
    if (c < 0 || c >= classes)
      throw Error(fmt::format("cross_entropy: target {} is not one of {} classes", c, classes));
    fn(i, (i / inner * classes + c) * inner + i % inner);
  }
}

// x, target -> the loss, how many examples count, their log-sum-exps [outer, inner].
Tensors entropies_of_planes(const Tensors& in, int64_t ignored, Reduction reduction) {
  const Tensor x = contiguous(in[0]), target = contiguous(in[1]);
  const bool each = reduction == Reduction::None;
  const Tensor sums = empty({x.shape()[0], x.shape()[2]}, x.dtype());
  const Tensor loss = each ? zeros(sums.shape(), x.dtype()) : empty({}, x.dtype()), total = empty({}, x.dtype());
  each_plane_part(x, [&](int64_t begin, int64_t end) {
    slice(sums, 0, begin, end).copy_(logsumexp(slice(x, 0, begin, end), {1}));
  });
  with_float_type(x, [&]<class T>(T*) {
    double sum = 0, count = 0;
    const T *const logits = x.data<T>(), *const of_all = sums.data<T>();
    T* const losses = loss.data<T>();
    each_counted(x, target, ignored, [&](int64_t i, int64_t at) {
      const T value = of_all[i] - logits[at];
      if (each) losses[i] = value;
      sum += static_cast<double>(value), ++count;
    });
    if (!each) *loss.data<T>() = static_cast<T>(reduction == Reduction::Mean ? sum / count : sum);
    *total.data<T>() = static_cast<T>(count);
  });
  return {loss, total, sums};
}

// The same, its outputs, and the loss's gradient -> that of x.
Tensors entropy_slopes_of_planes(const Tensors& in, int64_t ignored, Reduction reduction) {
  const Tensor x = contiguous(in[0]), target = contiguous(in[1]), &sums = in[4], g = contiguous(in[5]);
  const Tensor dx = empty(x.shape(), x.dtype()), scale = zeros(sums.shape(), x.dtype());
  with_float_type(x, [&]<class T>(T*) {
    const int64_t step = reduction == Reduction::None ? 1 : 0;
    const T share = reduction == Reduction::Mean ? T(1) / *in[3].data<T>() : T(1);
    const T* const given = g.data<T>();
    T *const of_example = scale.data<T>(), *const to = dx.data<T>();
    each_counted(x, target, ignored, [&](int64_t i, int64_t) { of_example[i] = given[i * step] * share; });
    each_plane_part(x, [&](int64_t begin, int64_t end) {
      const auto part = [&](const Tensor& t) { return unsqueeze(slice(t, 0, begin, end), 1); };
      slice(dx, 0, begin, end).copy_(exp(slice(x, 0, begin, end) - part(sums)) * part(scale));
    });
    each_counted(x, target, ignored, [&](int64_t i, int64_t at) { to[at] -= of_example[i]; });
  });
  return {dx};
}

}  // namespace

Tensor host_cross_entropy(const Tensor& x, const Tensor& target, int64_t ignore_index, Reduction reduction,
                          const Composed& composed) {
  const auto forward = [=](const Tensors& in) { return entropies_of_planes(in, ignore_index, reduction); };
  const auto slopes = [=](const Tensors& in) { return entropy_slopes_of_planes(in, ignore_index, reduction); };
  return loss_of_rows("cross_entropy_of_planes", {x, target}, forward, slopes, composed);
}

Tensor host_nll_loss(const Tensor& x, const Tensor& target, const Tensor& weight, int64_t ignore_index,
                     Reduction reduction, const Composed& composed) {
  const auto forward = [=](const Tensors& in) { return nll_of_rows(in, ignore_index, reduction); };
  const auto slopes = [=](const Tensors& in) { return nll_slopes(in, ignore_index, reduction); };
  Tensors in{x, target};
  if (weight.defined()) in.push_back(weight);
  return loss_of_rows("nll_loss", in, forward, slopes, composed);
}

Tensor host_margins(const Tensor& x, const Tensor& target, int64_t p, double margin, const Composed& composed) {
  const auto forward = [=](const Tensors& in) {
    return p == 2 ? margins_of_rows<2>(in, margin) : margins_of_rows<1>(in, margin);
  };
  const auto slopes = [=](const Tensors& in) {
    return p == 2 ? slopes_of_margins<2>(in, margin) : slopes_of_margins<1>(in, margin);
  };
  return loss_of_rows("multi_margin_loss", {x, target}, forward, slopes, composed);
}

Tensor host_listed_margins(const Tensor& x, const Tensor& lists, const Composed& composed) {
  return loss_of_rows("multilabel_margin_loss", {x, lists}, listed_margins_of_rows, slopes_of_listed_margins, composed);
}

}  // namespace tessera
