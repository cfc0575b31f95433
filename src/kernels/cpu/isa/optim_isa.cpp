#include "tile/kernels/optim.h"
#include "tile/kernels/rows.h"

#include "internal.h"
#include "kernels/args/optim.h"

namespace tessera::cpu_kernels::TESSERA_ISA {
namespace {

using tile::bf16;
using tile::ExecutorRef;
using tile::f16;

constexpr i64 kChunk = 1 << 14;  // elements that one thread takes at a time

i64 count_chunks(long long tensors, const StepTensor* tensor) {
  i64 chunks = 0;
  for (long long i = 0; i < tensors; ++i) chunks += tile::ceil_div<i64>(tensor[i].count, kChunk);
  return chunks;
}

/// fn(tensor, begin, end, index of the chunk) over all tensors in chunks.
template <class Fn>
void for_each_chunk(long long tensors, const StepTensor* tensor, const ExecutorRef& executor, const Fn& fn) {
  const i64 chunks = count_chunks(tensors, tensor);
  i64 elements = 0;
  for (long long i = 0; i < tensors; ++i) elements += tensor[i].count;
  const auto run = [&](i64 chunk, int) {
    i64 rest = chunk;
    long long i = 0;
    for (i64 n; rest >= (n = tile::ceil_div<i64>(tensor[i].count, kChunk)); ++i) rest -= n;
    fn(tensor[i], rest * kChunk, tile::min<i64>(tensor[i].count, (rest + 1) * kChunk), chunk);
  };
  if (elements <= kChunk) {
    for (i64 c = 0; c < chunks; ++c) run(c, 0);
  } else {
    executor.parallel(chunks, run);
  }
}

template <class C, int States, class P, class G>
void step_typed(const StepArgs& a, const StepTensor& t, i64 begin, i64 end) {
  tile::StepTensors<P, G, C> tensors{static_cast<P*>(t.param),
                                     static_cast<const G*>(t.grad),
                                     {static_cast<C*>(t.state[0]), static_cast<C*>(t.state[1])}};
  if constexpr (States == 2) {
    const double bias1 = 1 - __builtin_pow(a.beta1, a.step + 1), bias2 = 1 - __builtin_pow(a.beta2, a.step + 1);
    const tile::AdamStep<C> step{C(a.grad_scale), C(a.beta1),      C(a.beta2),   C(a.eps),   C(a.weight_decay),
                                 C(a.lr),         C(a.lr / bias1), C(1 / bias2), a.decoupled};
    tile::optimizer_step<C, 2>(tensors, begin, end, step);
  } else {
    const tile::SgdStep<C> step{C(a.grad_scale), C(a.lr),    C(a.weight_decay), C(a.momentum),
                                C(a.dampening),  a.nesterov, a.step == 0,       States > 0};
    tile::optimizer_step<C, States>(tensors, begin, end, step);
  }
}

template <class C, class P, class G>
void step_states(const StepArgs& a, const StepTensor& t, i64 begin, i64 end) {
  if (a.adam) step_typed<C, 2, P, G>(a, t, begin, end);
  else if (a.states) step_typed<C, 1, P, G>(a, t, begin, end);
  else step_typed<C, 0, P, G>(a, t, begin, end);
}

template <class P>
void step_grads(const StepArgs& a, const StepTensor& t, i64 begin, i64 end) {
  switch (t.grad_type) {
    case Scalar::f16:
      return step_states<float, P, f16>(a, t, begin, end);
    case Scalar::bf16:
      return step_states<float, P, bf16>(a, t, begin, end);
    default:
      return step_states<float, P, float>(a, t, begin, end);
  }
}

/// The copy in halves of what parameters of f32 or f64 have become, which is still in a cache.
template <class P>
void write_lower(const StepTensor& t, i64 begin, i64 end) {
  const P* const param = static_cast<const P*>(t.param) + begin;
  if (t.lower_type == Scalar::f16) tile::convert_elements(static_cast<f16*>(t.lower) + begin, param, end - begin);
  else tile::convert_elements(static_cast<bf16*>(t.lower) + begin, param, end - begin);
}

void step_chunk(const StepArgs& args, const StepTensor& t, i64 begin, i64 end) {
  switch (t.param_type) {
    case Scalar::f64:
      step_states<double, double, double>(args, t, begin, end);
      if (t.lower) write_lower<double>(t, begin, end);
      return;
    case Scalar::f16:
      return step_grads<f16>(args, t, begin, end);
    case Scalar::bf16:
      return step_grads<bf16>(args, t, begin, end);
    default:
      step_grads<float>(args, t, begin, end);
      if (t.lower) write_lower<float>(t, begin, end);
  }
}

void step(const StepArgs& args, Executor& executor) {
  for_each_chunk(args.tensors, args.tensor, ExecutorRef(executor),
                 [&](const StepTensor& t, i64 begin, i64 end, i64) { step_chunk(args, t, begin, end); });
}

double squares_of(const StepTensor& t, i64 begin, i64 end) {
  switch (t.grad_type) {
    case Scalar::f64:
      return tile::sum_of_squares<double>(static_cast<const double*>(t.grad) + begin, end - begin);
    case Scalar::f16:
      return tile::sum_of_squares<float>(static_cast<const f16*>(t.grad) + begin, end - begin);
    case Scalar::bf16:
      return tile::sum_of_squares<float>(static_cast<const bf16*>(t.grad) + begin, end - begin);
    default:
      return tile::sum_of_squares<float>(static_cast<const float*>(t.grad) + begin, end - begin);
  }
}

double squares(const SquaresArgs& args, Executor& executor) {
  const ExecutorRef threads(executor);
  const i64 chunks = count_chunks(args.tensors, args.tensor);
  auto* sums = static_cast<double*>(threads.scratch(0, tile::max<i64>(chunks, 1) * static_cast<i64>(sizeof(double))));
  for_each_chunk(args.tensors, args.tensor, threads,
                 [&](const StepTensor& t, i64 begin, i64 end, i64 chunk) { sums[chunk] = squares_of(t, begin, end); });
  return tile::sum_row<double>(
      chunks, 0.0, [](auto v) { return v; }, sums);
}

template <class C, class T>
bool unscale_typed(const StepTensor& t, i64 begin, i64 end, double factor) {
  return tile::scale_and_check<C>(static_cast<T*>(t.param) + begin, end - begin, C(factor));
}

bool unscale_chunk(const StepTensor& t, i64 begin, i64 end, double factor) {
  switch (t.param_type) {
    case Scalar::f64:
      return unscale_typed<double, double>(t, begin, end, factor);
    case Scalar::f16:
      return unscale_typed<float, f16>(t, begin, end, factor);
    case Scalar::bf16:
      return unscale_typed<float, bf16>(t, begin, end, factor);
    default:
      return unscale_typed<float, float>(t, begin, end, factor);
  }
}

bool unscale(const UnscaleArgs& args, Executor& executor) {
  const ExecutorRef threads(executor);
  const i64 chunks = count_chunks(args.tensors, args.tensor);
  auto* found = static_cast<bool*>(threads.scratch(0, tile::max<i64>(chunks, 1)));
  for_each_chunk(args.tensors, args.tensor, threads, [&](const StepTensor& t, i64 begin, i64 end, i64 chunk) {
    found[chunk] = unscale_chunk(t, begin, end, args.factor);
  });
  bool any = false;
  for (i64 c = 0; c < chunks; ++c) any |= found[c];
  return any;
}

void update_scale(double& scale, int& count, bool found_inf, double growth, double backoff, long long interval) {
  tile::update_scale(scale, count, found_inf, growth, backoff, interval);
}

}  // namespace

extern const OptimTable optim_table;
const OptimTable optim_table{step, squares, unscale, update_scale};

}  // namespace tessera::cpu_kernels::TESSERA_ISA
