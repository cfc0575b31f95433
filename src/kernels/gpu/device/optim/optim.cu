// Optimizer steps over many tensors: their pointers are arguments of the kernel, as many at a time as fit there.
#include "kernels/args/gpu/optim.h"

#include "kernels/gpu/device/elementwise/neighbours.h"
#include "tile/kernels/optim.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int threads = 256, most_tensors = 52;
constexpr i64 per_block = 4096;  // elements

/// A list of tensors that one launch works on, in blocks of one tensor each.
struct TensorList {
  int tensors = 0;
  i64 blocks = 0;
  i64 first_block[most_tensors];
  StepTensor tensor[most_tensors];
};
static_assert(sizeof(TensorList) <= 3800);  // arguments take 4 KB at most

/// Calls fn(list) for lists that together hold all tensors, in order.
template <class Fn>
void for_each_list(i64 tensors, const StepTensor* tensor, const Fn& fn) {
  TensorList list;
  for (i64 i = 0; i < tensors; ++i) {
    if (tensor[i].count > 0) {
      list.first_block[list.tensors] = list.blocks;
      list.tensor[list.tensors++] = tensor[i];
      list.blocks += tile::ceil_div<i64>(tensor[i].count, per_block);
    }
    if (list.tensors == most_tensors || (i + 1 == tensors && list.tensors > 0)) {
      fn(list);
      list.tensors = 0;
      list.blocks = 0;
    }
  }
}

/// This block's part of a tensor, in places as they are counted.
struct Part {
  StepTensor tensor;
  i64 begin, end;
  TESSERA_DEVICE Neighbours at(i64 i) const { return {i, tensor.length, tensor.width}; }
  /// How many of four places from i on are there in what lies as they are counted.
  TESSERA_DEVICE i64 left(i64 i) const { return tile::min(end - i, at(i).left()); }
};
TESSERA_DEVICE Part part_of(const TensorList& list) {
  const i64 block = tile::block_in_grid();
  int low = 0, high = list.tensors - 1;  // the last tensor that begins at or before the block
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.first_block[middle] <= block) low = middle;
    else high = middle - 1;
  }
  Part part{list.tensor[low], (block - list.first_block[low]) * per_block, 0};
  part.end = tile::min<i64>(part.tensor.count, part.begin + per_block);
  return part;
}

TESSERA_DEVICE double value(const ScalarArg& s, double absent) {
  return s.data ? load_as<double>(s.data, s.type, 0) : absent;
}
TESSERA_DEVICE bool is_set(const ScalarArg& flag) { return flag.data && *static_cast<const bool*>(flag.data); }

template <class T>
TESSERA_DEVICE bool is_aligned(const void* p) {
  return reinterpret_cast<size_t>(p) % (4 * sizeof(T)) == 0;
}
/// Whether the fours of an operand with that gap begin at whole ones, as its first does.
TESSERA_DEVICE bool has_whole_fours(const StepTensor& t, int gap) {
  return t.width % 4 == 0 ? (t.length + gap) % 4 == 0 : gap == 0;
}

// ---- steps

struct StepNumbers {
  ScalarArg lr, grad_scale, found_inf, step;
  double beta1, beta2, eps, weight_decay, momentum, dampening;
  bool decoupled, nesterov;
};

template <class C>
TESSERA_DEVICE void make_step(const StepNumbers& n, tile::AdamStep<C>& out) {
  const double step = value(n.step, 0) + 1, lr = value(n.lr, 0);
  const double bias1 = 1 - tile::libm::pow(n.beta1, step), bias2 = 1 - tile::libm::pow(n.beta2, step);
  out = {C(value(n.grad_scale, 1)),
         C(n.beta1),
         C(n.beta2),
         C(n.eps),
         C(n.weight_decay),
         C(lr),
         C(lr / bias1),
         C(1 / bias2),
         n.decoupled};
}
template <class C>
TESSERA_DEVICE void make_step(const StepNumbers& n, tile::SgdStep<C>& out) {
  out = {C(value(n.grad_scale, 1)),
         C(value(n.lr, 0)),
         C(n.weight_decay),
         C(n.momentum),
         C(n.dampening),
         n.nesterov,
         value(n.step, 0) == 0,
         true};
}

/// Four neighbours of an operand, of f32 or halves: at once where they lie together.
TESSERA_DEVICE RawFloats load_four(const StepTensor& t, const Neighbours& at, const void* p, Scalar type, int gap) {
  RawFloats raw;
  raw.load(p, type, at(gap), has_whole_fours(t, gap), 4, at.left(), gap);
  return raw;
}

template <class T>
TESSERA_DEVICE void store_apart(const Neighbours& at, void* p, int gap, const float (&x)[4]) {
  tile::unroll<4>([&](auto j) { static_cast<T*>(p)[at(gap, j)] = tile::convert_element<T>(x[j]); });
}
TESSERA_DEVICE void store_four(const StepTensor& t, const Neighbours& at, void* p, Scalar type, int gap,
                               const float (&x)[4]) {
  if (has_whole_fours(t, gap)) return store_four(p, type, at(gap), x);
  if (type == Scalar::f32) store_apart<float>(at, p, gap, x);
  else if (type == Scalar::f16) store_apart<f16>(at, p, gap, x);
  else store_apart<bf16>(at, p, gap, x);
}

/// The element at a place, of any types in memory, computed in C, which states have.
template <class C, int States, class Step>
TESSERA_DEVICE void step_element(const Part& part, i64 i, const Step& step) {
  const StepTensor& t = part.tensor;
  const Neighbours at = part.at(i);
  C* const state[2] = {static_cast<C*>(t.state[0]) + i, static_cast<C*>(t.state[1]) + i};
  C p = load_as<C>(t.param, t.param_type, at(t.param_gap)), m(0), v(0);
  const C g = load_as<C>(t.grad, t.grad_type, at(t.grad_gap));
  if constexpr (States > 0) m = *state[0];
  if constexpr (States > 1) v = *state[1];
  step(p, g, m, v);
  store_as<C>(t.param, t.param_type, at(t.param_gap), p);
  if (t.lower) store_as<C>(t.lower, t.lower_type, at(t.lower_gap), p);
  if constexpr (States > 0) *state[0] = m;
  if constexpr (States > 1) *state[1] = v;
}

/// Four elements at a time, of f32 or halves in memory, computed in float.
template <int States, class Step>
TESSERA_DEVICE void step_vectors(const Part& part, const Step& step) {
  using Packed = Pack<float, 4>;
  const StepTensor& t = part.tensor;
  float* state[2] = {static_cast<float*>(t.state[0]), static_cast<float*>(t.state[1])};
  for (i64 i = part.begin + tile::thread_in_block() * 4; i < part.end; i += threads * 4) {
    const Neighbours at = part.at(i);
    if (t.width > t.length && at.left() < 4) {  // a row's last, and its gap
      for (int j = 0; j < at.left(); ++j) step_element<float, States>(part, i + j, step);
      continue;
    }
    const RawFloats p = load_four(t, at, t.param, t.param_type, t.param_gap),
                    g = load_four(t, at, t.grad, t.grad_type, t.grad_gap);
    Packed m{}, v{};
    float out[4];
    if constexpr (States > 0) m = *reinterpret_cast<Packed*>(state[0] + i);
    if constexpr (States > 1) v = *reinterpret_cast<Packed*>(state[1] + i);
    tile::unroll<4>([&](auto j) {
      out[j] = p.value(t.param_type, j);
      step(out[j], g.value(t.grad_type, j), m.lane[j], v.lane[j]);
    });
    store_four(t, at, t.param, t.param_type, t.param_gap, out);
    if (t.lower) store_four(t, at, t.lower, t.lower_type, t.lower_gap, out);
    if constexpr (States > 0) *reinterpret_cast<Packed*>(state[0] + i) = m;
    if constexpr (States > 1) *reinterpret_cast<Packed*>(state[1] + i) = v;
  }
}

template <int States>
TESSERA_DEVICE bool takes_vectors(const Part& part) {
  const StepTensor& t = part.tensor;
  const auto whole = [](const void* p, Scalar type) {
    const int bytes = type == Scalar::f32 ? 4 : type == Scalar::f16 || type == Scalar::bf16 ? 2 : 0;
    return bytes > 0 && reinterpret_cast<size_t>(p) % (4 * bytes) == 0;
  };
  return (part.end - part.begin) % 4 == 0 && whole(t.param, t.param_type) && whole(t.grad, t.grad_type) &&
         (!t.lower || whole(t.lower, t.lower_type)) && (States < 1 || is_aligned<float>(t.state[0])) &&
         (States < 2 || is_aligned<float>(t.state[1]));
}

template <class C, int States, class Step>
TESSERA_DEVICE void step_elements(const Part& part, const Step& step) {
  for (i64 i = part.begin + tile::thread_in_block(); i < part.end; i += threads)
    if (part.left(i) > 0) step_element<C, States>(part, i, step);
}

template <template <class> class Step, int States>
TESSERA_KERNEL(threads, 3)
void step_kernel(const TensorList list, const StepNumbers numbers) {
  __shared__ Step<float> step;
  __shared__ Step<double> wide_step;
  if (is_set(numbers.found_inf)) return;
  const Part part = part_of(list);
  const bool wide = part.tensor.param_type == Scalar::f64;
  if (tile::thread_in_block() == 0) {
    if (wide) make_step(numbers, wide_step);
    else make_step(numbers, step);
  }
  tile::sync_block();
  if (wide) {
    Step<double> mine = wide_step;
    if constexpr (States == 0) mine.has_state = false;
    step_elements<double, States>(part, mine);
  } else {
    Step<float> mine = step;
    if constexpr (States == 0) mine.has_state = false;
    if (takes_vectors<States>(part)) step_vectors<States>(part, mine);
    else step_elements<float, States>(part, mine);
  }
}

TESSERA_KERNEL(1)
void count_step(ScalarArg step, ScalarArg found_inf) {
  if (!is_set(found_inf)) store_as<double>(step.data, step.type, 0, value(step, 0) + 1);
}

void step(const DeviceStepArgs& a, Executor& executor) {
  const StepNumbers numbers{a.lr,  a.grad_scale,   a.found_inf, a.step,      a.beta1,     a.beta2,
                            a.eps, a.weight_decay, a.momentum,  a.dampening, a.decoupled, a.nesterov};
  const auto kernel = a.adam     ? step_kernel<tile::AdamStep, 2>
                      : a.states ? step_kernel<tile::SgdStep, 1>
                                 : step_kernel<tile::SgdStep, 0>;
  for_each_list(a.tensors, a.tensor, [&](const TensorList& list) {
    launch("optimizer step", kernel, list.blocks, threads, 0, executor, list, numbers);
  });
  launch("optimizer step", count_step, 1, 1, 0, executor, a.step, a.found_inf);
}

// ---- global_norm: a sum for each block, then one block that adds them in order

/// The sum over the block in a fixed order; thread 0 gets it.
template <int count>
TESSERA_DEVICE double sum_over_block(double value) {
  __shared__ double sums[count];
  const int thread = tile::thread_in_block();
  sums[thread] = value;
  tile::sync_block();
  for (int half = count / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    tile::sync_block();
  }
  return sums[0];
}

template <class T>
TESSERA_DEVICE double squares_of(const Part& part) {
  using C = tile::compute_t<T>;
  const T* const x = static_cast<const T*>(part.tensor.grad);
  const bool whole = is_aligned<T>(x), dense = part.tensor.length == 0 && (part.end - part.begin) % 4 == 0;
  const i64 begin = part.begin + tile::thread_in_block() * 4;
  C sum(0);
  const auto add = [&](const Pack<T, 4>& pack) {
    tile::unroll<4>([&](auto j) {
      const C v = tile::convert_element<C>(pack.lane[j]);
      sum = tile::fma(v, v, sum);
    });
  };
  if (whole && dense) {
    for (i64 i = begin; i < part.end; i += threads * 4) add(*reinterpret_cast<const Pack<T, 4>*>(x + i));
  } else {
    for (i64 i = begin; i < part.end; i += threads * 4) add(load_unit<T, 4>(x + i, whole, part.left(i)));
  }
  return static_cast<double>(sum);
}

TESSERA_KERNEL(threads)
void squares_kernel(const TensorList list, double* sums) {
  const Part part = part_of(list);
  double sum;
  switch (part.tensor.grad_type) {
    case Scalar::f64:
      sum = squares_of<double>(part);
      break;
    case Scalar::f16:
      sum = squares_of<f16>(part);
      break;
    case Scalar::bf16:
      sum = squares_of<bf16>(part);
      break;
    default:
      sum = squares_of<float>(part);
  }
  sum = sum_over_block<threads>(sum);
  if (tile::thread_in_block() == 0) sums[tile::block_in_grid()] = sum;
}

TESSERA_KERNEL(1024)
void norm_kernel(const double* sums, i64 count, ScalarArg out) {
  double sum = 0;
  for (i64 i = tile::thread_in_block(); i < count; i += 1024) sum += sums[i];
  sum = sum_over_block<1024>(sum);
  if (tile::thread_in_block() == 0) store_as<double>(out.data, out.type, 0, tile::sqrt(sum));
}

i64 count_blocks(i64 tensors, const StepTensor* tensor) {
  i64 blocks = 0;
  for (i64 i = 0; i < tensors; ++i) blocks += tile::ceil_div<i64>(tensor[i].count, per_block);
  return blocks;
}

long long norm_bytes(long long tensors, const StepTensor* tensor) { return count_blocks(tensors, tensor) * 8; }

void norm(const GlobalNormArgs& args, Executor& executor) {
  double* sums = static_cast<double*>(args.workspace);
  i64 done = 0;
  for_each_list(args.tensors, args.tensor, [&](const TensorList& list) {
    launch("global_norm", squares_kernel, list.blocks, threads, 0, executor, list, sums + done);
    done += list.blocks;
  });
  launch("global_norm", norm_kernel, 1, 1024, 0, executor, sums, done, args.out);
}

// ---- loss scaling

template <class T>
TESSERA_DEVICE bool unscale_elements(const Part& part, double factor) {
  using C = tile::compute_t<T>;
  T* const x = static_cast<T*>(part.tensor.param);
  const bool whole = is_aligned<T>(x);
  bool found = false;
  for (i64 i = part.begin + tile::thread_in_block() * 4; i < part.end; i += threads * 4) {
    const i64 left = part.left(i);
    Pack<T, 4> pack = load_unit<T, 4>(x + i, whole, left);
    tile::unroll<4>([&](auto j) {
      const C v = tile::convert_element<C>(pack.lane[j]) * static_cast<C>(factor);
      found = found || (j < left && !(v * C(0) == C(0)));
      pack.lane[j] = tile::convert_element<T>(v);
    });
    store_unit(x + i, pack, whole, left);
  }
  return found;
}

TESSERA_KERNEL(threads)
void unscale_kernel(const TensorList list, ScalarArg scale, bool* found_inf) {
  const Part part = part_of(list);
  const double factor = 1 / value(scale, 1);
  bool found;
  switch (part.tensor.param_type) {
    case Scalar::f64:
      found = unscale_elements<double>(part, factor);
      break;
    case Scalar::f16:
      found = unscale_elements<f16>(part, factor);
      break;
    case Scalar::bf16:
      found = unscale_elements<bf16>(part, factor);
      break;
    default:
      found = unscale_elements<float>(part, factor);
  }
  if (found) *found_inf = true;
}

void unscale(const DeviceUnscaleArgs& args, Executor& executor) {
  for_each_list(args.tensors, args.tensor, [&](const TensorList& list) {
    launch("unscale_", unscale_kernel, list.blocks, threads, 0, executor, list, args.scale,
           static_cast<bool*>(args.found_inf.data));
  });
}

TESSERA_KERNEL(1)
void update_scale_kernel(const UpdateScaleArgs args) {
  double scale = value(args.scale, 1);
  int count = *args.count;
  tile::update_scale(scale, count, *args.found_inf, args.growth, args.backoff, args.interval);
  store_as<double>(args.scale.data, args.scale.type, 0, scale);
  *args.count = count;
}

void update_scale(const UpdateScaleArgs& args, Executor& executor) {
  launch("update_scale_", update_scale_kernel, 1, 1, 0, executor, args);
}

}  // namespace

const StepTable* device_step_table() {
  static const StepTable table{step, norm_bytes, norm, unscale, update_scale};
  return &table;
}

}  // namespace tessera::gpu_kernels
