// cuDNN behind attention's arguments: opened at run time where it is installed, never needed.
#include "cudnn_attention.h"
#include "cudnn_planner.h"
#include "kernels/args/gpu/attention_workspace.h"
#include "kernels/args/gpu/vendor_limits.h"
#include "kernels/gpu/device/runtime/host.h"

namespace tessera::gpu_kernels {
namespace {

/// What a plan depends on, `other` is whether lse is kept or sums have any order; the scale is a number of the call.
std::string key_of(const AttentionShape& s, std::initializer_list<HeadsArg> heads, bool backward, bool other) {
  std::vector<long long> key{static_cast<long long>(s.type),
                             s.batch,
                             s.heads,
                             s.kv_heads,
                             s.queries,
                             s.keys,
                             s.width,
                             s.value_width,
                             s.causal,
                             backward,
                             other};
  key.push_back(cudnn::current_device());
  for (const HeadsArg& h : heads) key.insert(key.end(), h.strides, h.strides + 4);
  return "attention" + std::string(reinterpret_cast<const char*>(key.data()), key.size() * sizeof key[0]);
}

cudnn::Entry& entry_of(const AttentionArgs& a) {
  const std::string key = key_of(a.shape, {a.y, a.q, a.k, a.v}, false, a.lse);
  return cudnn::planner().entry(
      key, [&](const cudnn::Target& target) { return cudnn::plan_attention(target, a, vendor_attention_workspace); });
}
cudnn::Entry& entry_of(const AttentionBackwardArgs& a) {
  const std::string key = key_of(a.shape, {a.dq, a.dk, a.dv, a.dy, a.q, a.k, a.v, a.y}, true, a.in_any_order);
  return cudnn::planner().entry(key, [&](const cudnn::Target& target) {
    return cudnn::plan_attention_backward(target, a, vendor_attention_workspace);
  });
}

template <class Args>
long long workspace(const Args& args) {
  const std::lock_guard lock(cudnn::planner().mutex);
  return cudnn::Planner::workspace(entry_of(args));
}

void run(const AttentionArgs& a, void* room, Executor& executor) {
  using namespace cudnn;
  const std::lock_guard lock(planner().mutex);
  AttentionNumbers n{static_cast<float>(a.shape.scale)};
  std::vector<int64_t> ids{id_q, id_k, id_v, id_out, id_scale};
  std::vector<void*> pointers{a.q.data, a.k.data, a.v.data, a.y.data, &n.scale};
  const auto also = [&](int64_t id, void* pointer) {
    ids.push_back(id);
    pointers.push_back(pointer);
  };
  if (a.shape.causal) also(id_minus_infinity, &n.minus_infinity);
  if (a.lse) also(id_lse, a.lse);
  planner().run(entry_of(a), ids, pointers, room, executor, "attention");
}

void run_backward(const AttentionBackwardArgs& a, void* room, Executor& executor) {
  using namespace cudnn;
  const std::lock_guard lock(planner().mutex);
  AttentionNumbers n{static_cast<float>(a.shape.scale)};
  std::vector<int64_t> ids{id_q,      id_k,      id_v,   id_out,      id_grad_out, id_grad_q,
                           id_grad_k, id_grad_v, id_lse, id_row_sums, id_scale,    id_one};
  std::vector<void*> pointers{
      a.q.data,   a.k.data, a.v.data, a.y.data, a.dy.data, a.dq.data, a.dk.data, a.dv.data, const_cast<void*>(a.lse),
      a.row_sums, &n.scale, &n.one};
  const auto also = [&](int64_t id, void* pointer) {
    ids.push_back(id);
    pointers.push_back(pointer);
  };
  if (a.shape.causal) also(id_minus_infinity, &n.minus_infinity);
  if (a.in_any_order) also(id_query_sums, reinterpret_cast<char*>(a.row_sums) + UnorderedRoom(a.shape).sums_at);
  planner().run(entry_of(a), ids, pointers, room, executor, "attention's backward");
}

}  // namespace

const VendorAttentionTable* vendor_attention_table() {
  static const VendorAttentionTable table{workspace<AttentionArgs>, run, workspace<AttentionBackwardArgs>,
                                          run_backward};
  return cudnn::library().complete ? &table : nullptr;
}

}  // namespace tessera::gpu_kernels
