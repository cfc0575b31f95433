// Random operators. What an element gets depends on its position alone, never on threads.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/element.h"
#include "kernels/cpu/draws.h"
#include "kernels/shared/arguments.h"
#include "kernels/shared/tables.h"
#include "tile/random.h"

namespace tessera::cpu_kernels {
namespace {

template <RandomOp op>
void generate(const Call& call, Plan& plan) {
  const auto& a = call.attrs.as<CreateAttrs>();
  const Operand& out = call.out[0];
  const auto run = +[](const Drawn<RandomArgs>& d, Executor& executor) { random_table().generate(d.read(), executor); };
  const RandomArgs args{op, 0, 0, out.numel(), out.data_ptr(), scalar_of(out.dtype()), a.a, a.b};
  plan.launch("generate", run, Drawn<RandomArgs>{args, StateArg(call.in[0])});
}

void drop(const Call& call, Plan& plan, const void* in) {
  const Operand& out = call.out[0];
  launch_dropout(plan, call.in[1],
                 {0, 0, out.numel(), in, out.data_ptr(), scalar_of(out.dtype()), call.attrs.as<DropoutAttrs>().p});
}

Reason dense(const Call& call) { return call.in[0].is_contiguous() ? Reason::Ok : Reason::Layout; }
void dropout(const Call& call, Plan& plan) { drop(call, plan, call.in[0].data_ptr()); }

// Other layouts are gathered in the output, which is then overwritten.
void dropout_gathered(const Call& call, Plan& plan) {
  copy(call, plan, call.out[0], call.in[0]);
  drop(call, plan, call.out[0].data_ptr());
}

// ---- multinomial

struct Stream {
  unsigned long long seed, block;
};
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

struct MultinomialArgs {
  const void* weights;
  DType dtype;
  long long rows, n, row_step, step;
  StateArg state;
  int64_t samples;
  bool replacement;
  int64_t* out;
};

template <class T>
void draw_row(const MultinomialArgs& a, const Stream& s, int64_t row, double* weights) {
  const T* from = static_cast<const T*>(a.weights) + row * a.row_step;
  auto* order = reinterpret_cast<int64_t*>(weights + a.n);
  double total = 0;
  int64_t positive = 0;
  for (int64_t i = 0; i < a.n; ++i) {
    weights[i] = static_cast<double>(from[i * a.step]);
    if (!(weights[i] >= 0)) throw_weights(row, "are not all numbers of at least 0");
    total += weights[i];
    positive += weights[i] > 0;
  }
  if (!(total > 0 && total < INFINITY)) throw_weights(row, "do not have a positive finite sum");
  int64_t* const out = a.out + row * a.samples;
  if (a.replacement) return draw_with_replacement(weights, a.n, s, row * a.samples, a.samples, out);
  if (positive < a.samples) throw_weights(row, "are positive in too few places to draw from without replacement");
  draw_without_replacement(weights, a.n, s, row * a.n, a.samples, order, out);
}

void run_multinomial(const MultinomialArgs& a, Executor& executor) {
  const Stream s{static_cast<unsigned long long>(*a.state.seed), static_cast<unsigned long long>(*a.state.block)};
  with_element_type(a.dtype, [&]<class T>(T*) {
    executor.parallel(a.rows, [&](int64_t row, int thread) {
      draw_row<T>(a, s, row, static_cast<double*>(executor.scratch(thread, a.n * 16)));
    });
  });
}

void multinomial(const Call& call, Plan& plan) {
  const auto& attrs = call.attrs.as<MultinomialAttrs>();
  const Operand& x = call.in[0];
  const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
  plan.launch("multinomial", run_multinomial,
              {x.data_ptr(), x.dtype(), rows, n, x.dim() == 2 ? x.strides()[0] : 0, x.strides().back(),
               StateArg(call.in[1]), attrs.samples, attrs.replacement, static_cast<int64_t*>(call.out[0].data_ptr())});
}

template <RandomOp op>
constexpr Kernel generate_kernel[] = {{.name = "philox", .plan = generate<op>}};
constexpr Kernel dropout_kernels[] = {{.name = "philox", .supports = dense, .plan = dropout},
                                      {.name = "gather_philox", .plan = dropout_gathered}};
constexpr Kernel multinomial_kernels[] = {{.name = "rows", .plan = multinomial}};

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
