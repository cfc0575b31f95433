// Attention on GPUs: tiled without the scores in memory, by matrix cores, on ordinary ones or by cuDNN, then through
// them.
#include "kernels/shared/attention.h"

#include "core/gpu/backend.h"
#include "kernels/args/gpu/attention_workspace.h"
#include "kernels/args/gpu/indexing.h"
#include "kernels/args/gpu/random.h"
#include "kernels/args/gpu/tables.h"
#include "kernels/gpu/attention_rows.h"

namespace tessera::gpu_kernels {

void drop_scores(const AttentionProblem& p, Plan& plan, long long elements, const Heads& to, const Heads& from) {
  const auto* state = static_cast<const long long*>(p.state->data_ptr());
  plan.launch("drop", draw_table().drop,
              {{state, state + p.state->strides()[0]}, elements, from.data, to.data, to.type, p.dropout});
}

void count_up(Plan& plan, void* to, DType dtype, long long count, double start) {
  plan.launch("range", creation_table().range, {count, to, scalar_of(dtype), start, 1});
}

namespace {

constexpr long long kWidest = 128, kWidestOfAll = 256;  // of our kernels; of sm90's and of cuDNN

Reason halves_take(const AttentionProblem& p, long long widest) {
  if (!attention_table().flash) return Reason::Hardware;
  if (Reason reason = lies_in_units(p); reason != Reason::Ok) return reason;
  return tiles_take(p, widest);
}
Reason flash_takes(const AttentionProblem& p) { return p.dropout > 0 ? Reason::Dropout : halves_take(p, kWidest); }

bool is_expanded(const AttentionProblem& p) {
  for (const Heads& h : {p.q, p.k, p.v, p.y, p.dy, p.dq, p.dk, p.dv})
    if (h.data && std::count(h.strides, h.strides + 4, 0) > 0) return true;
  return false;
}

bool is_hopper(Device device) { return gpu::state(device).properties.architecture == "sm_90"; }

// Where flash is Hopper's own pipeline, which the plugin decides in the same way.
Reason sm90_takes(const AttentionProblem& p, Device device) {
  if (!is_hopper(device)) return Reason::Hardware;
  if (Reason reason = halves_take(p, kWidestOfAll); reason != Reason::Ok) return reason;
  if (p.dropout > 0 && p.keys % 4 != 0) return Reason::Dropout;
  if (p.mask.data || p.alibi > 0 || !(p.scale > 0) || p.width == 0) return Reason::Shape;
  return is_expanded(p) ? Reason::Layout : Reason::Ok;
}
Reason sm90_supports(const Call& call) { return sm90_takes(attention_problem(call), call_device(call)); }
Reason sm90_supports_backward(const Call& call) {
  return sm90_takes(attention_backward_problem(call), call_device(call));
}

bool is_wide(const AttentionProblem& p) { return std::max(p.width, p.value_width) > kWidest; }

Reason sm90_supports_backward_in_any_order(const Call& call) {
  if (!nondeterministic_allowed()) return Reason::Order;
  return is_wide(attention_backward_problem(call)) ? Reason::HeadDim : sm90_supports_backward(call);
}

Reason mem_efficient_takes(const AttentionProblem& p) {
  if (p.dropout > 0) return Reason::Dropout;
  return p.dtype == Float64 ? Reason::DType : tiles_take(p, kWidest);
}

template <auto kernel>
void plan_backward(const Call& call, Workspace& workspace, const AttentionProblem& p, bool in_any_order = false) {
  const void* lse = read_contiguous(workspace, *p.lse, p.compute());
  float* row_sums = nullptr;
  const bool hopper = kernel == &AttentionTable::flash_backward && is_hopper(call_device(call));
  const long long bytes = hopper ? AttentionRoom(shape_of(p)).bytes : p.batch * p.heads * p.queries * 4;
  row_sums = static_cast<float*>(workspace.take(bytes));
  workspace.launch("attention_backward", attention_table().*kernel, backward_args_of(p, lse, row_sums, in_any_order));
}
template <bool in_any_order = false>
void flash_backward(const Call& call, Workspace& workspace) {
  plan_backward<&AttentionTable::flash_backward>(call, workspace, attention_backward_problem(call), in_any_order);
}

void mem_efficient(const Call& call, Workspace& workspace) {
  AttentionProblem p = attention_problem(call);
  WholeRows rows(p, workspace);
  workspace.launch("mem_efficient", attention_table().mem_efficient, args_of(p));
  rows.finish();
}
void mem_efficient_backward(const Call& call, Workspace& workspace) {
  AttentionProblem p = attention_backward_problem(call);
  WholeRows rows(p, workspace);
  plan_backward<&AttentionTable::mem_efficient_backward>(call, workspace, p);
  rows.finish();
}

// ---- cuDNN's, where it is installed

bool has_cudnn() { return vendor_tables() && tables().vendor_attention; }
Reason cudnn_takes(const AttentionProblem& p) {
  if (!has_cudnn()) return Reason::Library;
  if (p.mask.data || p.alibi > 0) return Reason::Shape;
  if (is_expanded(p)) return Reason::Layout;
  if (p.lse->defined() && reinterpret_cast<uintptr_t>(p.lse->data_ptr()) % 16 != 0) return Reason::Layout;
  return p.dropout > 0 ? Reason::Dropout : halves_take(p, kWidestOfAll);
}
Reason cudnn_supports(const Call& call) {
  AttentionProblem p = attention_problem(call);
  if (Reason reason = cudnn_takes(p); reason != Reason::Ok) return reason;
  return tables().vendor_attention->workspace(args_of(p)) < 0 ? Reason::Shape : Reason::Ok;
}
Reason cudnn_supports_backward(const Call& call) {
  AttentionProblem p = attention_backward_problem(call);
  if (Reason reason = cudnn_takes(p); reason != Reason::Ok) return reason;
  const AttentionBackwardArgs args = backward_args_of(p, nullptr, nullptr);
  return tables().vendor_attention->workspace_backward(args) < 0 ? Reason::Shape : Reason::Ok;
}

// Where it is taken unasked: a plan is compiled for each shape, which training repeats and generation does not, and the
// backward's workspace grows with the square of the tokens.
Reason pays_for_a_plan(const AttentionProblem& p) {
  constexpr long long enough = 512;
  return p.lse->defined() && p.queries >= enough && p.keys >= enough ? cudnn_takes(p) : Reason::Small;
}
// On an H100, 16384 tokens, f16, heads of 64 and 128 columns: from 4096 keys on sm90 takes 0.79 to 1.00 of cuDNN's
// time, at 512 and 1024 keys 0.98 to 1.33.
bool sm90_is_faster(const AttentionProblem& p, Device device) {
  return p.keys >= 4096 && sm90_takes(p, device) == Reason::Ok;
}
Reason cudnn_pays(const Call& call) {
  if (!has_cudnn()) return Reason::Library;
  const AttentionProblem p = attention_problem(call);
  if (sm90_is_faster(p, call_device(call))) return Reason::Shape;
  const Reason reason = pays_for_a_plan(p);
  return reason == Reason::Ok ? cudnn_supports(call) : reason;
}

// Of backwards that repeat, in the same way, cuDNN's takes 0.95 and 0.99 of sm90's time with causal heads of 128 at 512
// and 1024 keys; 1.08 to 1.66 without causality or with heads of 64. With heads of 256, at 512 to 16k keys, sm90's
// takes 0.55 to 0.89 of its time, and 0.69 to 0.80 of that of cuDNN's in any order.
bool sm90_is_faster_backward(const AttentionProblem& p, Device device) {
  const bool always = is_wide(p) || (p.width <= 64 && p.value_width <= 64);
  return (!p.causal || always || p.keys > 1024) && sm90_takes(p, device) == Reason::Ok;
}

template <bool in_any_order = false>
Reason cudnn_pays_backward(const Call& call) {
  constexpr long long most_bytes = 768LL << 20;
  if (!has_cudnn()) return Reason::Library;
  if (in_any_order && !nondeterministic_allowed()) return Reason::Order;
  AttentionProblem p = attention_backward_problem(call);
  if ((!in_any_order || is_wide(p)) && sm90_is_faster_backward(p, call_device(call))) return Reason::Shape;
  if (Reason reason = pays_for_a_plan(p); reason != Reason::Ok) return reason;
  const AttentionBackwardArgs args = backward_args_of(p, nullptr, nullptr, in_any_order);
  const long long bytes = tables().vendor_attention->workspace_backward(args);
  return bytes < 0 || bytes > most_bytes ? Reason::Shape : Reason::Ok;
}

template <class Args>
struct VendorAttention {
  Args args;
  void* room;
};
void launch_cudnn(const VendorAttention<AttentionArgs>& a, Executor& executor) {
  tables().vendor_attention->run(a.args, a.room, executor);
}
void launch_cudnn_backward(const VendorAttention<AttentionBackwardArgs>& a, Executor& executor) {
  tables().vendor_attention->run_backward(a.args, a.room, executor);
}

void cudnn_attention(const Call& call, Workspace& workspace) {
  const AttentionArgs args = args_of(attention_problem(call));
  void* room = workspace.take(tables().vendor_attention->workspace(args));
  workspace.launch("cudnn", launch_cudnn, {args, room});
  workspace.plan().calls_library("cudnn", tables().vendor_conv->version());
}
template <bool in_any_order = false>
void cudnn_attention_backward(const Call& call, Workspace& workspace) {
  AttentionProblem p = attention_backward_problem(call);
  AttentionBackwardArgs args = backward_args_of(p, nullptr, nullptr, in_any_order);
  void* room = workspace.take(tables().vendor_attention->workspace_backward(args));
  args.lse = read_contiguous(workspace, *p.lse, Float32);
  const UnorderedRoom sums(args.shape);
  args.row_sums = static_cast<float*>(workspace.take(in_any_order ? sums.bytes : sums.sums_at));
  workspace.launch("cudnn", launch_cudnn_backward, {args, room});
  workspace.plan().calls_library("cudnn", tables().vendor_conv->version());
}

// On an H100, bf16, 12x12x1024x64 causal, 2x16x4096x64 and 2x8x4096x128: cuDNN takes 0.63, 0.61 and 0.43 of mma.sync's
// time forward, and of repeatable ones 0.79, 0.83 and 0.46 backward. In any order, 16384 tokens, f16, heads of 64 and
// 128: 1.05 to 1.28 of sm90's.
constexpr Kernel forward_list[] = {
    staged_kernel<cudnn_attention>("cudnn-training", cudnn_pays),
    {.name = "sm90", .supports = sm90_supports, .plan = flash},
    {.name = "flash", .supports = attention_supports<flash_takes>, .plan = flash},
    staged_kernel<mem_efficient>("mem-efficient", attention_supports<mem_efficient_takes>),
    staged_kernel<cudnn_attention>("cudnn", cudnn_supports),
    staged_kernel<attention_math>("math")};
constexpr Kernel backward_list[] = {
    staged_kernel<flash_backward<true>>("sm90-any-order", sm90_supports_backward_in_any_order),
    staged_kernel<cudnn_attention_backward<true>>("cudnn-any-order", cudnn_pays_backward<true>),
    staged_kernel<cudnn_attention_backward<>>("cudnn-training", cudnn_pays_backward<>),
    staged_kernel<flash_backward<>>("sm90", sm90_supports_backward),
    staged_kernel<flash_backward<>>("flash", attention_supports_backward<flash_takes>),
    staged_kernel<mem_efficient_backward>("mem-efficient", attention_supports_backward<mem_efficient_takes>),
    staged_kernel<cudnn_attention_backward<>>("cudnn", cudnn_supports_backward),
    staged_kernel<attention_math_backward>("math")};

}  // namespace

std::span<const KernelTableEntry> attention_kernels() {
  static constexpr KernelTableEntry entries[] = {
      {"scaled_dot_product_attention", forward_list},
      {"scaled_dot_product_attention_backward", backward_list},
      {"attention_qkv", forward_list},
      {"attention_qkv_backward", backward_list},
  };
  return entries;
}

}  // namespace tessera::gpu_kernels
