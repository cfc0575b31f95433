#include "kernels/gpu/padded_conv.h"

#include <limits>
#include <utility>

#include "kernels/args/gpu/tables.h"

namespace tessera::gpu_kernels {
namespace {

constexpr int64_t unit = 8;  // halves of 16 bytes
int64_t rounded(int64_t n) { return (n + unit - 1) / unit * unit; }

// What lies in a larger tensor of zeros, channels last: all of it, and the part that is `of`.
class Padded {
 public:
  // `dims`: of [n, c, h, w] or [filters, c, r, s], those that are padded.
  Padded(Workspace& workspace, const Operand& of, std::initializer_list<size_t> dims) {
    Shape shape = of.shape();
    for (const size_t d : dims) shape[d] = Dim(rounded(shape[d].value()));
    const int64_t bytes = shape.numel().value() * static_cast<int64_t>(size_of(of.dtype()));
    const Operand dense({shape, of.dtype(), of.device()}, workspace.take(bytes));
    whole = dense.as_strided(shape, channels_last(dense));
    part = whole.as_strided(of.shape(), whole.strides());
  }
  Operand whole, part;
};

// An operand that is read: padded where it must be.
Operand read(const Call& call, Workspace& workspace, const Operand& t, std::initializer_list<size_t> dims) {
  if (std::all_of(dims.begin(), dims.end(), [&](size_t d) { return t.shape()[d].value() % unit == 0; })) return t;
  const Padded padded(workspace, t, dims);
  fill(call, workspace.plan(), padded.whole, 0);
  copy(call, workspace.plan(), padded.part, t);
  return padded.whole;
}

// plan(result) for a result that is padded, of which the part that is wanted follows.
template <class Plan>
void write(const Call& call, Workspace& workspace, const Operand& t, std::initializer_list<size_t> dims,
           const Plan& plan) {
  if (std::all_of(dims.begin(), dims.end(), [&](size_t d) { return t.shape()[d].value() % unit == 0; })) return plan(t);
  const Padded padded(workspace, t, dims);
  plan(padded.whole);
  copy(call, workspace.plan(), t, padded.part);
}

// One of equal parts of a dim.
Operand share_of(const Operand& t, size_t dim, int64_t index, int64_t parts) {
  Shape shape = t.shape();
  const int64_t length = shape[dim].value() / parts;
  shape[dim] = Dim(length);
  return t.as_strided(shape, t.strides(), index * length * t.strides()[dim]);
}

// Filters, images and their results, wherever the pass has them.
template <PaddedPass pass>
std::array<const Operand*, 3> images_filters_results(const Call& call) {
  if constexpr (pass == PaddedPass::Forward) return {&call.in[0], &call.in[1], &call.out[0]};
  else if constexpr (pass == PaddedPass::InputGrad) return {&call.out[0], &call.in[1], &call.in[0]};
  else return {&call.in[0], &call.out[0], &call.in[1]};
}

}  // namespace

template <PaddedPass pass>
Reason takes_padded(const Call& call) {
  const auto [x, w, y] = images_filters_results<pass>(call);
  if (call.attrs.as<ConvAttrs>().groups != 1) return Reason::Shape;
  if (x->dtype() != Float16 && x->dtype() != BFloat16) return Reason::DType;
  if (x->size(1) % unit == 0 && w->size(0) % unit == 0) return Reason::Shape;  // nothing to pad
  if (x->numel() == 0 || w->numel() == 0 || y->numel() == 0) return Reason::Small;
  // Tensor cores' kernels count elements in 32 bits.
  const int64_t most =
      std::max(rounded(x->size(1)) * x->numel() / x->size(1), rounded(w->size(0)) * y->numel() / w->size(0));
  if (most > std::numeric_limits<int32_t>::max()) return Reason::Shape;
  // Copies cost less than what tensor cores save, but for a few products.
  constexpr double least = 1e7;
  const double products = static_cast<double>(y->numel()) * static_cast<double>(w->numel() / w->size(0));
  return products < least ? Reason::Small : Reason::Ok;
}

template <PaddedPass pass>
void plan_padded(const Call& call, Workspace& workspace) {
  const auto [x, w, y] = images_filters_results<pass>(call);
  const PlansWithin within(call.op);
  Plan& plan = workspace.plan();
  if constexpr (pass == PaddedPass::Forward) {
    const Operand in[] = {read(call, workspace, *x, {1}), read(call, workspace, *w, {0, 1}), {}};
    write(call, workspace, *y, {1}, [&](const Operand& out) { plan_call(call.op, in, call.attrs, {&out, 1}, plan); });
    if (const Operand& bias = call.in[2]; bias.defined())
      combine(call, plan, MapOp::add, *y, *y, bias.as_strided(y->shape(), {0, bias.stride(0), 0, 0}));
  } else if constexpr (pass == PaddedPass::InputGrad) {
    const Operand in[] = {read(call, workspace, *y, {1}), read(call, workspace, *w, {0, 1})};
    write(call, workspace, *x, {1}, [&](const Operand& out) { plan_call(call.op, in, call.attrs, {&out, 1}, plan); });
  } else {
    const Operand in[] = {read(call, workspace, *x, {1}), read(call, workspace, *y, {1}), {}};
    write(call, workspace, *w, {0, 1}, [&](const Operand& out) {
      plan_call(call.op, in, call.attrs, {&out, 1}, plan);
    });
  }
}

template <PaddedPass pass>
Reason takes_groups(const Call& call) {
  const auto [x, w, y] = images_filters_results<pass>(call);
  const int64_t groups = call.attrs.as<ConvAttrs>().groups;
  if (!tables().sm90_conv) return Reason::Hardware;
  if (x->dtype() != Float16 && x->dtype() != BFloat16) return Reason::DType;
  if (w->packing() || groups < 2 || w->size(1) < unit || w->size(0) / groups < unit) return Reason::Shape;
  constexpr double least = 1e7;  // multiplications for each group's launches
  const double products = static_cast<double>(y->numel()) * static_cast<double>(w->numel() / w->size(0));
  return products < least * static_cast<double>(groups) ? Reason::Small : Reason::Ok;
}

template <PaddedPass pass>
void plan_groups(const Call& call, Workspace& workspace) {
  const auto [x, w, y] = images_filters_results<pass>(call);
  const PlansWithin within(call.op);
  ConvAttrs alone = call.attrs.as<ConvAttrs>();
  const int64_t groups = std::exchange(alone.groups, 1);
  const Attrs attrs = alone;
  for (int64_t g = 0; g < groups; ++g) {
    const auto part = [&](const Operand& t, size_t dim) { return t.defined() ? share_of(t, dim, g, groups) : t; };
    const Operand images = part(*x, 1), filters = part(*w, 0), results = part(*y, 1);
    if constexpr (pass == PaddedPass::Forward) {
      const Operand in[] = {images, filters, part(call.in[2], 0)};
      plan_call(call.op, in, attrs, {&results, 1}, workspace.plan());
    } else if constexpr (pass == PaddedPass::InputGrad) {
      const Operand in[] = {results, filters};
      plan_call(call.op, in, attrs, {&images, 1}, workspace.plan());
    } else {
      const Operand in[] = {images, results, {}};
      plan_call(call.op, in, attrs, {&filters, 1}, workspace.plan());
    }
  }
}

template <PaddedPass pass>
Reason takes_copies(const Call& call) {
  const auto [x, w, y] = images_filters_results<pass>(call);
  if (!vendor_tables()) return Reason::Library;
  if (x->dtype() != Float32) return Reason::DType;  // halves have kernels that copy
  return w->packing() || (x->is_contiguous() && w->is_contiguous() && y->is_contiguous()) ? Reason::Layout : Reason::Ok;
}

template <PaddedPass pass>
void plan_copies(const Call& call, Workspace& workspace) {
  const PlansWithin within(call.op);
  Plan& plan = workspace.plan();
  const auto dense = [&](const Operand& t) {
    const auto bytes = static_cast<int64_t>(size_of(t.dtype()));
    return t.is_contiguous() ? t : Operand({t.shape(), t.dtype(), t.device()}, workspace.take(t.numel() * bytes));
  };
  Operand in[3];
  for (size_t i = 0; i < call.in.size(); ++i) {
    if (!call.in[i].defined()) continue;
    in[i] = dense(call.in[i]);
    if (!call.in[i].is_contiguous()) copy(call, plan, in[i], call.in[i]);
  }
  const Operand& result = call.out[0];
  const Operand out = dense(result);
  plan_call(call.op, std::span(in).first(call.in.size()), call.attrs, {&out, 1}, plan);
  if (!result.is_contiguous()) copy(call, plan, result, out);
}

#define TESSERA_PADDED(pass)                                            \
  template Reason takes_padded<PaddedPass::pass>(const Call&);          \
  template void plan_padded<PaddedPass::pass>(const Call&, Workspace&); \
  template Reason takes_groups<PaddedPass::pass>(const Call&);          \
  template void plan_groups<PaddedPass::pass>(const Call&, Workspace&); \
  template Reason takes_copies<PaddedPass::pass>(const Call&);          \
  template void plan_copies<PaddedPass::pass>(const Call&, Workspace&);
TESSERA_PADDED(Forward)
TESSERA_PADDED(InputGrad)
TESSERA_PADDED(WeightGrad)
#undef TESSERA_PADDED

}  // namespace tessera::gpu_kernels
