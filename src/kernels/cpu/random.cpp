// Random operators. What an element gets depends on its position alone, never on threads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/element.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"
#include "tile/random.h"

namespace tessera::cpu_kernels {
namespace {

struct Stream {
  unsigned long long seed, block;
};
Stream stream(const Tensor& state) {
  const auto* s = state.data<int64_t>();
  return {static_cast<unsigned long long>(s[0]), static_cast<unsigned long long>(s[state.strides()[0]])};
}

template <RandomOp op>
void generate(const Call& call) {
  const auto& a = call.attrs.as<CreateAttrs>();
  const Tensor& out = call.out[0];
  auto [seed, block] = stream(call.in[0]);
  random_table().generate({op, seed, block, out.numel(), out.data_ptr(), scalar_of(out.dtype()), a.a, a.b}, executor());
}

void drop(const Call& call, const void* in) {
  auto [seed, block] = stream(call.in[1]);
  const Tensor& out = call.out[0];
  random_table().dropout(
      {seed, block, out.numel(), in, out.data_ptr(), scalar_of(out.dtype()), call.attrs.as<DropoutAttrs>().p},
      executor());
}

Reason dense(const Call& call) { return call.in[0].is_contiguous() ? Reason::Ok : Reason::Layout; }
void dropout(const Call& call) { drop(call, call.in[0].data_ptr()); }

// Other layouts are gathered in the output, which is then overwritten.
void dropout_gathered(const Call& call) {
  copy(call, call.out[0], call.in[0]);
  drop(call, call.out[0].data_ptr());
}

// ---- multinomial

// Number i of a stream, in [0, 1).
double unit(Stream s, int64_t i) {
  auto made = tile::philox<tile::u64>(s.seed, s.block + static_cast<unsigned long long>(i / 2));
  tile::u64 bits = made.word[i % 2 * 2] << 32 | made.word[i % 2 * 2 + 1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

[[noreturn]] void throw_weights(int64_t row, const char* what) {
  throw Error(fmt::format("multinomial: the weights of row {} {}", row, what));
}

// Inverts the cumulative weights.
void draw_with_replacement(double* weights, int64_t n, Stream s, int64_t first, int64_t samples, int64_t* out) {
  for (int64_t i = 1; i < n; ++i) weights[i] += weights[i - 1];
  int64_t last = std::lower_bound(weights, weights + n, weights[n - 1]) - weights;
  for (int64_t k = 0; k < samples; ++k) {
    double target = unit(s, first + k) * weights[n - 1];
    out[k] = std::min(last, std::upper_bound(weights, weights + n, target) - weights);
  }
}

// The first to arrive of exponential clocks with these rates (Efraimidis & Spirakis 2006).
void draw_without_replacement(double* weights, int64_t n, Stream s, int64_t first, int64_t samples, int64_t* order,
                              int64_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = weights[i] > 0 ? -std::log1p(-unit(s, first + i)) / weights[i] : INFINITY;
    order[i] = i;
  }
  std::partial_sort(order, order + samples, order + n,
                    [&](int64_t a, int64_t b) { return weights[a] != weights[b] ? weights[a] < weights[b] : a < b; });
  std::copy_n(order, samples, out);
}

void multinomial(const Call& call) {
  const auto& attrs = call.attrs.as<MultinomialAttrs>();
  const Tensor& x = call.in[0];
  const Stream s = stream(call.in[1]);
  const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0, samples = attrs.samples;
  const int64_t row_step = x.dim() == 2 ? x.strides()[0] : 0, step = x.strides().back();
  auto* out = call.out[0].data<int64_t>();
  with_element_type(x.dtype(), [&]<class T>(T*) {
    const T* from = x.data<T>();
    executor().parallel(rows, [&](int64_t row, int thread) {
      auto* weights = static_cast<double*>(executor().scratch(thread, n * 16));
      auto* order = reinterpret_cast<int64_t*>(weights + n);
      double total = 0;
      int64_t positive = 0;
      for (int64_t i = 0; i < n; ++i) {
        weights[i] = static_cast<double>(from[row * row_step + i * step]);
        if (!(weights[i] >= 0)) throw_weights(row, "are not all numbers of at least 0");
        total += weights[i];
        positive += weights[i] > 0;
      }
      if (!(total > 0 && total < INFINITY)) throw_weights(row, "do not have a positive finite sum");
      if (attrs.replacement) return draw_with_replacement(weights, n, s, row * samples, samples, out + row * samples);
      if (positive < samples) throw_weights(row, "are positive in too few places to draw from without replacement");
      draw_without_replacement(weights, n, s, row * n, samples, order, out + row * samples);
    });
  });
}

template <RandomOp op>
constexpr Kernel generate_kernel[] = {{.name = "philox", .run = generate<op>}};
constexpr Kernel dropout_kernels[] = {{.name = "philox", .supports = dense, .run = dropout},
                                      {.name = "gather_philox", .run = dropout_gathered}};
constexpr Kernel multinomial_kernels[] = {{.name = "rows", .run = multinomial}};

}  // namespace

std::span<const KernelTableEntry> random_kernels() {
  static constexpr KernelTableEntry entries[] = {{"uniform", generate_kernel<RandomOp::uniform>},
                                                 {"normal", generate_kernel<RandomOp::normal>},
                                                 {"randint", generate_kernel<RandomOp::integers>},
                                                 {"dropout", dropout_kernels},
                                                 {"multinomial", multinomial_kernels}};
  return entries;
}

}  // namespace tessera::cpu_kernels
