#include "ops/call_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/gpu/backend.h"
#include "kernels/kernel_lists.h"
#include "ops/cost.h"
#include "ops/op_table.h"
#include "ops/output_layout.h"
#include "ops/picks.h"
#include "ops/schema.h"
#include "tessera/autocast.h"
#include "tessera/autograd.h"

namespace tessera {
namespace {

// ---- which kernel

struct Forced {
  std::string_view op;
  std::string kernel;
};
thread_local SmallVector<Forced, 2> forced;
thread_local const Op* outer = nullptr;  // that plans calls of its own operator

std::span<const KernelTableEntry> table_of(DeviceType device) {
  return device == DeviceType::CPU ? cpu_kernel_table() : gpu_kernel_table();
}

// Joins ops with the tables of the backends, once.
void link_tables() {
  for (int d = 0; d < kDeviceTypeCount; ++d)
    for (const KernelTableEntry& entry : table_of(static_cast<DeviceType>(d)))
      find_op(entry.op).kernels[d] = entry.kernels;
}

Reason support(const Kernel& kernel, const Call& call) {
  if (const std::string* name = forced_kernel(call.op); name && *name != kernel.name) return Reason::NotForced;
  return supports(kernel, call);
}

std::string describe_inputs(const Call& call) {
  std::string text;
  for (const Operand& t : call.in) text += (text.empty() ? "" : ", ") + describe(t);
  return text;
}

}  // namespace

const std::string* forced_kernel(const Op& op) {
  if (&op == outer) return nullptr;
  for (size_t i = forced.size(); i-- > 0;)
    if (forced[i].op == op.name) return &forced[i].kernel;
  return nullptr;
}

static KernelList list_of(const Op& op, DeviceType device) {
  static const bool linked = (link_tables(), true);
  (void)linked;
  return op.kernels[static_cast<size_t>(device)];
}
bool has_kernels(const Op& op, DeviceType device) { return !list_of(op, device).empty(); }
KernelList kernels_for(const Op& op, DeviceType device) {
  const KernelList list = list_of(op, device);
  if (list.empty()) throw Error(fmt::format("{}: no kernel on {}", op.name, to_string(Device{device, 0})));
  return list;
}

void refuse_packed(const Op& op, size_t input, const std::string& what) {
  throw Error(fmt::format("{}: input {} is {}, which it does not read; contiguous() gives the plain tensor", op.name,
                          input, what));
}

// One line for a kernel that was forced, else all the reasons.
[[noreturn]] static void refuse(const Call& call) {
  const std::string* name = forced_kernel(call.op);
  const KernelList list = kernels_for(call.op, call_device(call).type);
  if (std::none_of(list.begin(), list.end(), [&](const Kernel& k) { return reads_packed(k, call); }))
    for (size_t i = 0; i < call.in.size(); ++i)
      if (call.in[i].packing()) refuse_packed(call.op, i, describe(call.in[i]));
  if (!name) {
    std::string reasons;
    for (const Kernel& k : list)
      reasons += fmt::format("{}{} {}", reasons.empty() ? "" : "; ", k.name, sentence(supports(k, call)));
    throw Error(fmt::format("{}: no kernel takes {}: {}", call.op.name, describe_inputs(call), reasons));
  }
  std::string there;
  for (const Kernel& kernel : kernels_for(call.op, call_device(call).type)) {
    if (*name == kernel.name)
      throw Error(fmt::format("{}: kernel '{}', which is forced, {}: {}", call.op.name, *name,
                              sentence(supports(kernel, call)), describe_inputs(call)));
    there += (there.empty() ? "" : ", ") + std::string(kernel.name);
  }
  throw Error(fmt::format("{}: {} has no kernel '{}', which is forced, but {}", call.op.name,
                          to_string(call_device(call)), *name, there));
}

// GPUs keep and move rare types; kernels that compute with them would each have to be compiled for them.
static void require_common_dtypes(const Call& call) {
  const Device device = call_device(call);
  if (!device.is_gpu()) return;
  for (const auto operands : {call.in, call.out})
    for (const Operand& o : operands)
      if (o.defined() && is_rare(o.dtype()))
        throw Error(fmt::format("{}: {}: only the CPU computes with {}", call.op.name, describe(o), name(o.dtype())));
}

const Kernel& pick_kernel(const Call& call) {
  require_common_dtypes(call);
  KernelList list = kernels_for(call.op, call_device(call).type);
  if (!forced.empty() && forced_kernel(call.op)) {
    for (const Kernel& kernel : list)
      if (can_run(support(kernel, call))) return kernel;
  } else {
    if (list.size() > 1 && picks_are_used())
      if (const Kernel* kernel = picked_kernel(call, list)) return *kernel;
    for (const Kernel& kernel : list)
      if (supports(kernel, call) == Reason::Ok) return kernel;
  }
  refuse(call);
}

std::string explain(const Call& call) {
  if (call.op.compute) return "   made of other operators, or by the host: there is no kernel to choose\n";
  KernelList list = kernels_for(call.op, call_device(call).type);
  Pick pick;
  const Kernel* chosen = nullptr;
  if (list.size() > 1 && picks_are_used() && !forced_kernel(call.op)) chosen = picked_kernel(call, list, &pick);
  const bool by_pick = chosen;
  std::string text;
  for (const Kernel& kernel : list) {
    const Reason reason = support(kernel, call);
    if (!chosen && reason == Reason::Ok) chosen = &kernel;
    text += fmt::format("{} {:<16} {}", &kernel == chosen ? "->" : "  ", kernel.name,
                        &kernel == chosen      ? (by_pick ? "chosen by measurement" : "chosen")
                        : reason != Reason::Ok ? sentence(reason)
                        : by_pick              ? "supported, but not what was picked"
                                               : "supported, but listed after the chosen one");
    for (const auto& [name, time] : pick.microseconds)
      if (name == kernel.name) text += fmt::format(", {:.1f} us", time);
    text += '\n';
  }
  if (!pick.when.empty()) text += fmt::format("measured {}\n", pick.when);
  if (!pick.kernel.empty() && !by_pick)
    text += fmt::format("ignored: a pick of '{}', which cannot run this\n", pick.kernel);
  return text;
}

static SmallVector<TensorMeta, 4> metas_of(std::span<const Operand> operands) {
  SmallVector<TensorMeta, 4> metas;
  for (const Operand& o : operands) metas.push_back(o.defined() ? o.meta() : absent_meta());
  return metas;
}

// What the device does in one launch of a plan, or beside them.
static std::string step_text(const gpu::GraphNode& step) {
  if (step.block[0] == 0) return fmt::format("   step   {}\n", step.name);
  const auto dims = [](const unsigned(&d)[3]) {
    return fmt::format("{}", fmt::join(d, d[2] > 1 ? d + 3 : d[1] > 1 ? d + 2 : d + 1, "x"));
  };
  return fmt::format("   step   {} blocks of {} threads{}, {} bytes of shared memory, {} registers: {}\n",
                     dims(step.grid), dims(step.block),
                     step.cluster > 1 ? fmt::format(" in clusters of {}", step.cluster) : "", step.shared_bytes,
                     step.registers, step.name);
}

// Behind the addresses of a call's tensors, the workspace's; alive as long as what is returned.
static Tensor add_workspace(const Plan& plan, Device device, SmallVector<void*, 16>& slots) {
  Tensor workspace;
  if (const size_t bytes = plan.workspace_bytes()) workspace = empty({static_cast<int64_t>(bytes)}, UInt8, device);
  slots.push_back(workspace.defined() ? workspace.place() : nullptr);
  return workspace;
}

// The steps of a plan on a card, by running it into a graph that is never launched.
static std::string explain_steps(const Plan& plan, const Call& call) {
  const Device device = call_device(call);
  SmallVector<void*, 16> slots;
  for (const auto operands : {call.in, call.out})
    for (const Operand& o : operands) slots.push_back(o.data_ptr());
  const Tensor workspace = add_workspace(plan, device, slots);
  std::string text;
  const auto run = [&] {
    gpu::begin_call(device);
    plan.run({slots.data(), slots.size()}, gpu_executor());
  };
  for (const gpu::GraphNode& step : gpu::steps_of(device, run)) text += step_text(step);
  return text;
}

std::string explain_plan(const Call& call) {
  if (call.op.compute) return "";
  const auto in = metas_of(call.in), out = metas_of(call.out);
  const Kernel& kernel = pick_kernel(call);
  const Ref<Plan> plan = make_plan(kernel, call.op, {in.data(), in.size()}, call.attrs, {out.data(), out.size()});
  std::string text = fmt::format("   listed in {}\n{}", text_of(kernel.where), plan->describe());
  if (const Device device = call_device(call); device.is_card()) text += explain_steps(*plan, call);
  else if (!device.is_gpu()) text += fmt::format("   on {}\n", cpu_description());
  return text + explain_cost(call);
}

std::string explain_cost(const Call& call) {
  const auto in = metas_of(call.in), out = metas_of(call.out);
  const Cost cost = cost_of(call.op, {in.data(), in.size()}, {out.data(), out.size()}, call.attrs);
  return fmt::format("   {:.6g} FLOPs, {:.6g} bytes of operands and results\n", cost.flops, cost.bytes);
}

void plan_call(const Op& op, std::span<const Operand> in, const Attrs& attrs, std::span<const Operand> out,
               Plan& plan) {
  const Call call{op, in, attrs, out};
  const Kernel& kernel = pick_kernel(call);
  kernel.plan(seen_by(kernel, call), plan);
}

PlansWithin::PlansWithin(const Op& op) : before_(std::exchange(outer, &op)) {}
PlansWithin::~PlansWithin() { outer = before_; }

std::optional<Packing> packing_of(const Call& call, size_t input) {
  if (call_device(call).is_card()) gpu::begin_call(call_device(call));  // whose kernels are asked
  for (const Kernel& kernel : kernels_for(call.op, call_device(call).type)) {
    const Call own = seen_by(kernel, call);
    if (kernel.supports && kernel.supports(own) != Reason::Ok) continue;
    return kernel.pack ? kernel.pack(own, input) : std::nullopt;
  }
  return std::nullopt;
}

ForceKernel::ForceKernel(std::string_view op, std::string kernel) {
  const Op& found = find_op(op);
  bool known = false;
  for (int d = 0; d < kDeviceTypeCount; ++d)
    for (const KernelTableEntry& entry : table_of(static_cast<DeviceType>(d)))
      if (entry.op == op)
        for (const Kernel& k : entry.kernels) known |= kernel == k.name;
  if (found.registered)
    for (const KernelList& list : found.kernels)
      for (const Kernel& k : list) known |= kernel == k.name;
  if (!known) throw Error(fmt::format("{}: no device has a kernel named '{}'", op, kernel));
  forced.push_back({found.name, std::move(kernel)});
}
ForceKernel::~ForceKernel() { forced.pop_back(); }

// ---- plans, cached

namespace {

// A cached call; its key are the words that calls which lie alike share.
struct Entry {
  uint64_t hash = 0;
  std::vector<uint64_t> key;
  Attrs attrs;  // keeps tensors and objects alive by whose address the key knows them
  CallPlan plan;
};

// Two places for each hash; the one that was used last stays.
class Cache {
 public:
  Entry* find(uint64_t hash, const KeyWords& key) {
    for (std::unique_ptr<Entry>& e : set_of(hash))
      if (e && e->hash == hash && e->key.size() == key.size() &&
          std::memcmp(e->key.data(), key.data(), key.size() * 8) == 0) {
        if (&e != &set_of(hash)[0]) std::swap(e, set_of(hash)[0]);
        return set_of(hash)[0].get();
      }
    return nullptr;
  }
  Entry& add(std::unique_ptr<Entry> entry) {
    auto& set = set_of(entry->hash);
    set[1] = std::move(set[0]);
    set[0] = std::move(entry);
    return *set[0];
  }

 private:
  static constexpr size_t kSets = 2048;
  using Set = std::array<std::unique_ptr<Entry>, 2>;
  Set& set_of(uint64_t hash) { return sets_[hash % kSets]; }
  std::vector<Set> sets_ = std::vector<Set>(kSets);
};

uint64_t hash_of(const KeyWords& words) {
  uint64_t h = 0x243f6a8885a308d3u;
  for (const uint64_t w : words) {
    h = (h ^ w) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  }
  return h;
}

void add_tensor(KeyWords& key, const Tensor& t) {
  if (!t.defined()) return key.push_back(~uint64_t{0});
  const TensorImpl& impl = t.impl();
  const size_t rank = impl.shape.size();
  const bool padded = impl.storage->rows != 0 && impl.offset == 0;
  const std::string* const packing = impl.storage->packing;
  uint64_t* word = key.extend(1 + rank + (impl.contiguous ? 0 : rank) + (packing ? 2 : 0) + (padded ? 3 : 0));
  *word++ = static_cast<uint64_t>(impl.dtype) << 32 | static_cast<uint64_t>(rank) << 16 |
            static_cast<uint64_t>(alignment_bits(t)) << 8 | static_cast<uint64_t>(packing != nullptr) << 2 |
            static_cast<uint64_t>(padded) << 1 | impl.contiguous;
  for (const Dim d : impl.shape) *word++ = static_cast<uint64_t>(d.value());
  if (!impl.contiguous)
    for (const int64_t s : impl.strides) *word++ = static_cast<uint64_t>(s);
  if (packing) {
    *word++ = reinterpret_cast<uintptr_t>(packing);
    *word++ = impl.storage->bytes;
  }
  if (!padded) return;
  *word++ = static_cast<uint64_t>(impl.storage->rows);
  *word++ = static_cast<uint64_t>(impl.storage->row_length);
  *word++ = impl.storage->bytes;
}

void make_key(KeyWords& key, const Op& op, const Tensors& in, const Attrs& attrs, Device device, bool keep_hidden) {
  const std::string* const forced = forced_kernel(op);
  // A graph that is captured takes what is known of measured picks alone.
  const bool cannot_measure = picks_are_used() && device.is_gpu() && gpu::graph_being_captured(device) != 0;
  uint64_t* const word = key.extend(4);
  word[0] = reinterpret_cast<uintptr_t>(&op);
  word[1] = plans_epoch();
  word[2] = forced ? std::hash<std::string>()(*forced) : 0;
  word[3] = static_cast<uint64_t>(device.type) << 16 | static_cast<uint8_t>(device.index) << 8 |
            static_cast<uint64_t>(cannot_measure) << 3 | static_cast<uint64_t>(keep_hidden) << 2 |
            static_cast<uint64_t>(tf32_allowed()) << 1 | static_cast<uint64_t>(nondeterministic_allowed());
  attrs.add_to_key(key);
  for (const Tensor& t : in) add_tensor(key, t);
}

void* executor_of(Device device) { return device.is_gpu() ? gpu_executor() : cpu_executor(); }

Operand operand_of(const TensorMeta& meta, uint32_t slot, int base) {
  return is_absent(meta) ? Operand()
                         : Operand(meta, PlanMaker::place(slot, base, meta.alignment, !meta.device.is_gpu()));
}

// In place, output i is input i.
size_t overwritten(const Op& op, size_t outputs) {
  return op.in_place ? outputs - static_cast<size_t>(op.hidden_outputs) : 0;
}

// Whether what was planned for `wanted` can run on `given`.
bool lies_as(const TensorMeta& given, const TensorMeta& wanted) {
  if (is_absent(wanted) || is_absent(given)) return is_absent(wanted) == is_absent(given);
  return given.shape == wanted.shape && given.dtype == wanted.dtype && given.device == wanted.device &&
         strides_of(given) == strides_of(wanted) && given.packing == wanted.packing &&
         given.alignment >= std::min(wanted.alignment, 64) &&
         (wanted.padded_rows == 0 || given.padded_rows == wanted.padded_rows);
}
std::string layout_text(const TensorMeta& m) {
  if (is_absent(m)) return "absent";
  std::string text = describe(m);
  if (!m.strides.empty()) text += fmt::format(" with strides [{}]", fmt::join(integers(m.strides), ", "));
  return m.alignment && m.alignment < 64 ? text + fmt::format(", aligned to {} bytes", m.alignment) : text;
}

// fn(call) with places of that base.
template <class Fn>
void with_operands(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, std::span<const TensorMeta> out,
                   int base, const Fn& fn) {
  SmallVector<Operand, 4> ins, outs;
  for (const TensorMeta& m : in) ins.push_back(operand_of(m, static_cast<uint32_t>(ins.size()), base));
  const size_t same = overwritten(op, out.size());
  for (const TensorMeta& m : out)
    if (const size_t i = outs.size(); i < same) outs.push_back(ins[i]);
    else outs.push_back(operand_of(m, static_cast<uint32_t>(in.size() + i), base));
  fn(Call{op, {ins.data(), ins.size()}, attrs, {outs.data(), outs.size()}});
}

// One number in all shapes, in the place of what `infer` puts there.
void put_count(Metas& metas, const std::function<Dim(Dim)>& count) {
  std::pair<Dim, Dim> value = {0, 0};
  for (TensorMeta& meta : metas)
    for (Dim& d : meta.shape)
      for (const Dim symbol : d.symbols()) {
        if (!symbol.name().empty()) continue;
        if (!(value.first == symbol)) value = {symbol, count(symbol)};
        d = d.substitute({&value, 1});
      }
}

// What an operator's outputs count, before they are made.
int64_t count_of(const Op& op, const Tensors& in, const Attrs& attrs, Device device) {
  const auto metas = metas_of({in.data(), in.size()}, device);
  op.infer({metas.data(), metas.size()}, attrs);  // what does not fit is not counted
  const NoGrad plain;
  const amp::NoAutocast as_given;
  return op.count({in.data(), in.size()}, attrs).item<int64_t>();
}

}  // namespace

SmallVector<TensorMeta, 4> metas_of(std::span<const Tensor> in, Device device) {
  SmallVector<TensorMeta, 4> metas;
  metas.reserve(in.size());
  for (const Tensor& t : in)
    if (t.defined()) metas.push_back(t.meta());
    else metas.push_back(absent_meta(device));
  return metas;
}

SmallVector<Operand, 4> operands_of(std::span<const Tensor> tensors) {
  SmallVector<Operand, 4> operands;
  for (const Tensor& t : tensors) operands.push_back(Operand(t));
  return operands;
}

// Inputs that the schema does not call optional.
static void require_defined(const Op& op, std::span<const TensorMeta> in) {
  if (std::none_of(in.begin(), in.end(), [](const TensorMeta& m) { return is_absent(m); })) return;
  const std::vector<OpValue> values = inputs_of(op);
  for (size_t i = 0; i < std::min(in.size(), values.size()); ++i) {
    if (values[i].list) return;  // a step's lists have holes
    if (is_absent(in[i]) && !values[i].optional) throw Error(fmt::format("{}: input {} is undefined", op.name, i));
  }
}

Metas infer_outputs(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, Device device, bool keep_hidden,
                    const std::function<Dim(Dim)>& count) {
  require_defined(op, in);
  Metas metas = op.infer(in, attrs);
  if (op.count && count) put_count(metas, count);
  const size_t visible = metas.size() - static_cast<size_t>(op.hidden_outputs), same = overwritten(op, metas.size());
  for (size_t i = 0; i < metas.size(); ++i) {
    if (i < same) metas[i] = in[i];
    else if (i >= visible && (!keep_hidden || is_absent(metas[i]))) metas[i] = absent_meta(device);
    else {
      if (!op.transfers && !in.empty()) metas[i].device = device;
      metas[i] = output_layout(op, in, metas[i], i >= visible);
    }
  }
  return metas;
}

Ref<Plan> make_plan(const Kernel& kernel, const Op& op, std::span<const TensorMeta> in, const Attrs& attrs,
                    std::span<const TensorMeta> out) {
  std::vector<TensorMeta> metas(in.begin(), in.end());
  metas.insert(metas.end(), out.begin(), out.end());
  return PlanMaker::make(kernel, std::move(metas), [&](int base, Plan& plan) {
    with_operands(op, in, attrs, out, base, [&](const Call& call) { kernel.plan(seen_by(kernel, call), plan); });
  });
}

Ref<Plan> make_plan(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs, std::span<const TensorMeta> out) {
  const Kernel* kernel = nullptr;
  with_operands(op, in, attrs, out, 0, [&](const Call& call) {
    if (const Device device = call_device(call); device.is_gpu()) gpu::begin_call(device);
    kernel = &pick_kernel(call);
  });
  return make_plan(*kernel, op, in, attrs, out);
}

void require_readable(const Op& op, std::span<const TensorMeta> in, const Attrs& attrs,
                      std::span<const TensorMeta> out) {
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].packing) continue;
    if (op.compute || op.view) refuse_packed(op, i, describe(in[i]));
    with_operands(op, in, attrs, out, 0, [](const Call& call) { pick_kernel(call); });
    return;
  }
}

const CallPlan& call_plan(const Op& op, const Tensors& in, const Attrs& attrs, Device device, bool keep_hidden) {
  static thread_local Cache cache;
  const int64_t count = op.count ? count_of(op, in, attrs, device) : 0;
  KeyWords key;
  make_key(key, op, in, attrs, device, keep_hidden);
  if (op.count) key.push_back(static_cast<uint64_t>(count));
  const uint64_t hash = hash_of(key);
  if (Entry* known = cache.find(hash, key)) return known->plan;
  const auto metas = metas_of({in.data(), in.size()}, device);
  auto entry = std::make_unique<Entry>();
  entry->hash = hash;
  entry->key.assign(key.begin(), key.end());
  entry->attrs = attrs;
  entry->plan.outputs =
      infer_outputs(op, {metas.data(), metas.size()}, attrs, device, keep_hidden, [&](Dim) { return Dim(count); });
  const Metas& out = entry->plan.outputs;
  entry->plan.plan = make_plan(op, {metas.data(), metas.size()}, attrs, {out.data(), out.size()});
  return cache.add(std::move(entry)).plan;
}

void run_as_planned(const Plan& plan, std::span<const Tensor> in, std::span<const Tensor> out) {
  SmallVector<void*, 16> slots;
  const Tensor* any = nullptr;
  for (const auto tensors : {in, out})
    for (const Tensor& t : tensors) {
      slots.push_back(t.defined() ? t.place() : nullptr);
      if (!any && t.defined()) any = &t;
    }
  const Device device = any ? any->device() : cpu();
  if (device.is_gpu()) gpu::begin_call(device);
  const Tensor workspace = add_workspace(plan, device, slots);
  plan.run({slots.data(), slots.size()}, executor_of(device));
}

void run_plan(const Plan& plan, std::span<const Tensor> in, std::span<const Tensor> out) {
  if (plan.slots() != in.size() + out.size())
    throw Error(fmt::format("plan of kernel '{}': made for {} tensors, not {}", plan.kernel()->name, plan.slots(),
                            in.size() + out.size()));
  size_t i = 0;
  for (const auto tensors : {in, out})
    for (const Tensor& t : tensors) {
      const TensorMeta &wanted = plan.metas()[i++], given = t.defined() ? t.meta() : absent_meta();
      if (!lies_as(given, wanted))
        throw Error(fmt::format("plan of kernel '{}': tensor {} is {}, not {}", plan.kernel()->name, i - 1,
                                layout_text(given), layout_text(wanted)));
    }
  run_as_planned(plan, in, out);
}

}  // namespace tessera
