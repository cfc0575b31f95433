// The CPU's attention: tiled without the scores in memory, then through them.
#include "kernels/shared/attention.h"
#include "core/element.h"
#include "kernels/cpu/draws.h"

namespace tessera::cpu_kernels {

void drop_scores(const AttentionProblem& p, Plan& plan, long long elements, const Heads& to, const Heads& from) {
  launch_dropout(plan, *p.state, {0, 0, elements, from.data, to.data, to.type, p.dropout});
}

namespace {

struct CountArgs {
  void* to;
  DType dtype;
  long long count;
  double start;
};
void run_count(const CountArgs& a, Executor&) {
  with_element_type(a.dtype, [&]<class T>(T* to) {
    to = static_cast<T*>(a.to);
    for (long long i = 0; i < a.count; ++i) to[i] = static_cast<T>(a.start + static_cast<double>(i));
  });
}

}  // namespace

void count_up(Plan& plan, void* to, DType dtype, long long count, double start) {
  plan.launch("count", run_count, {to, dtype, count, start});
}

namespace {

Reason flash_takes(const AttentionProblem& p) { return p.dropout > 0 ? Reason::Dropout : tiles_take(p, 256); }

void flash_backward(const Call& call, Workspace& workspace) {
  const AttentionProblem p = attention_backward_problem(call);
  const void* lse = read_contiguous(workspace, *p.lse, p.compute());
  workspace.launch("flash_backward", attention_table().flash_backward, backward_args_of(p, lse, nullptr));
}

constexpr Kernel forward_list[] = {{.name = "flash", .supports = attention_supports<flash_takes>, .plan = flash},
                                   staged_kernel<attention_math>("math")};
constexpr Kernel backward_list[] = {staged_kernel<flash_backward>("flash", attention_supports_backward<flash_takes>),
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

}  // namespace tessera::cpu_kernels
