// Operators that a program defines. An op's functions have no state of their own: they find the definition by the
// attributes of the call, which name it.
#include "ops/registry.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>

#include <fmt/format.h>

#include "core/kernel.h"
#include "ops/op_table.h"
#include "ops/schema.h"
#include "tessera/autograd.h"
#include "tessera/custom_op.h"

namespace tessera {

AttrValue Attributes::value(std::string_view name) const { return attrs_->get(name); }

// The attributes of a call of a registered operator.
struct RegisteredAttrs {
  const RegisteredOp* op;
  std::vector<AttrValue> values;
  const AttrsType& attrs_type() const;
  void add_to_key(KeyWords& words) const {
    words.push_back(reinterpret_cast<uintptr_t>(op));
    for (const AttrValue& value : values) std::visit([&](const auto& v) { add_key(words, v); }, value);
  }
};

namespace {

AttrValue get_value(const void* attrs, size_t index) {
  return static_cast<const RegisteredAttrs*>(attrs)->values[index];
}
bool set_value(void* attrs, size_t index, const AttrValue& value) {
  const auto assign = [&]<class M>(M& member) { return AttrTraits<M>::assign(member, value); };
  return std::visit(assign, static_cast<RegisteredAttrs*>(attrs)->values[index]);
}
bool equal_values(const void* a, const void* b, size_t index) {
  const AttrValue &x = static_cast<const RegisteredAttrs*>(a)->values[index],
                  &y = static_cast<const RegisteredAttrs*>(b)->values[index];
  const auto equal = [&]<class M>(const M& member) { return AttrTraits<M>::equal(member, std::get<M>(y)); };
  return x.index() == y.index() && std::visit(equal, x);
}

}  // namespace

// Never destroyed, never moved: names and functions are referred to.
struct RegisteredOp {
  explicit RegisteredOp(OpDefinition given);
  const OpDefinition definition;
  std::vector<OpValue> inputs, outputs;
  AttrsType type{};
  RegisteredAttrs initial{this, {}};
  Attrs defaults{NoAttrs{}};
  std::vector<Kernel> kernels[kDeviceTypeCount];
  Op op;
};

const AttrsType& RegisteredAttrs::attrs_type() const { return op->type; }

namespace {

const OpDefinition& definition_of(const Attrs& attrs) { return attrs.as<RegisteredAttrs>().op->definition; }

// ---- what an op's functions are

Metas registered_infer(std::span<const TensorMeta> in, const Attrs& attrs) {
  const RegisteredOp& r = *attrs.as<RegisteredAttrs>().op;
  require_inputs_of(r.op, in.size(), [&](size_t i) { return is_absent(in[i]); });
  const std::vector<TensorMeta> found = r.definition.infer(in, Attributes(attrs));
  const bool list = std::any_of(r.outputs.begin(), r.outputs.end(), [](const OpValue& v) { return v.list; });
  if (found.empty() || (!list && found.size() != r.outputs.size()))
    throw Error(fmt::format("{}: infer gave {} outputs for '{}'", r.op.name, found.size(), r.op.outputs));
  Metas out;
  for (const TensorMeta& meta : found) {
    for (const Dim d : meta.shape)
      if (!d.is_symbolic() && d.value() < 0)
        throw Error(fmt::format("{}: infer gave an output of shape {}", r.op.name, to_string(meta.shape)));
    out.push_back({meta.shape, meta.dtype, in.empty() ? meta.device : in[0].device});
  }
  return out;
}

Tensors registered_vjp(const Saved& s, const Tensors& grads) {
  const OpDefinition& d = definition_of(s.attrs);
  s.exposed = !d.gives_gradients;
  return d.vjp({s.inputs, s.outputs, Attributes(s.attrs), s.needs}, grads);
}

Tensors registered_reference(std::span<const Tensor> in, const Attrs& attrs) {
  return definition_of(attrs).reference(in, Attributes(attrs));
}

// What operators made, as new tensors that lie as a kernel's would.
Tensors registered_compute(std::span<const Tensor> in, const Attrs& attrs) {
  const OpDefinition& d = definition_of(attrs);
  const NoGrad plain;
  Metas metas;
  for (const Tensor& t : in) metas.push_back(t.defined() ? t.meta() : absent_meta());
  const Metas wanted = registered_infer({metas.data(), metas.size()}, attrs);
  return as_new_outputs(d.name, d.compute(in, Attributes(attrs)), wanted, in);
}

// ---- kernels: their functions get tensors

// How a tensor lies, and where once the plan runs.
struct TensorSeen {
  static constexpr int kMostDims = 8;
  void* data;
  bool defined;
  DType dtype;
  Device device;
  int rank;
  int64_t shape[kMostDims], strides[kMostDims];
};
TensorSeen seen(const Operand& t, std::string_view op) {
  TensorSeen s{t.data_ptr(), t.defined(), t.dtype(), t.device(), static_cast<int>(t.dim()), {}, {}};
  if (t.dim() > TensorSeen::kMostDims)
    throw Error(fmt::format("{}: {} has more than {} dims", op, describe(t), TensorSeen::kMostDims));
  for (int d = 0; d < s.rank; ++d) s.shape[d] = t.size(d), s.strides[d] = t.stride(d);
  return s;
}
Tensor tensor_of(const TensorSeen& s, void* data) {
  if (!s.defined) return {};
  auto storage = make_ref<Storage>();
  const Shape shape(std::span(s.shape, static_cast<size_t>(s.rank)));
  storage->data = data;
  storage->bytes = SIZE_MAX;
  storage->shown = true;
  storage->device = s.device;
  return as_strided(storage, shape, Strides(s.strides, s.strides + s.rank), 0, s.dtype);
}

// Tensors without memory, for functions that see how they lie.
struct TensorsSeen {
  Tensors in, out;
  explicit TensorsSeen(const Call& call) {
    for (const Operand& t : call.in) in.push_back(tensor_of(seen(t, call.op.name), nullptr));
    for (const Operand& t : call.out) out.push_back(tensor_of(seen(t, call.op.name), nullptr));
  }
};

struct KernelRun {
  const OpKernel* kernel;
  const Attrs* attrs;
  const TensorSeen* tensors;
  size_t inputs, outputs;
  void* workspace;
};
void run_kernel(const KernelRun& k) {
  Tensors in, out;
  for (size_t i = 0; i < k.inputs + k.outputs; ++i)
    (i < k.inputs ? in : out).push_back(tensor_of(k.tensors[i], k.tensors[i].data));
  k.kernel->run({{in.data(), in.size()}, {out.data(), out.size()}, Attributes(*k.attrs), k.workspace});
}

const OpKernel& kernel_of(const Call& call) { return *static_cast<const OpKernel*>(call.state); }

Reason registered_supports(const Call& call) {
  const TensorsSeen t(call);
  const KernelCall seen{{t.in.data(), t.in.size()}, {t.out.data(), t.out.size()}, Attributes(call.attrs)};
  return kernel_of(call).supports(seen) ? Reason::Ok : Reason::Shape;
}

void registered_plan(const Call& call, Plan& plan) {
  const OpKernel& kernel = kernel_of(call);
  std::vector<TensorSeen> tensors;
  for (const auto operands : {call.in, call.out})
    for (const Operand& t : operands) tensors.push_back(seen(t, call.op.name));
  void* workspace = nullptr;
  if (kernel.workspace_bytes) {
    const TensorsSeen t(call);
    const KernelCall seen{{t.in.data(), t.in.size()}, {t.out.data(), t.out.size()}, Attributes(call.attrs)};
    workspace = plan.take(static_cast<int64_t>(kernel.workspace_bytes(seen)));
  }
  plan.launch(kernel.name, run_kernel,
              {&kernel, plan.own(call.attrs), plan.keep(tensors.data(), tensors.size()), call.in.size(),
               call.out.size(), workspace});
}

Kernel kernel_for(const OpKernel& of) {
  return {.name = of.name.c_str(),
          .supports = of.supports ? registered_supports : nullptr,
          .plan = registered_plan,
          .state = &of};
}

// ---- definitions

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(std::string_view name, std::string_view also = "") {
  const auto may_be = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || also.find(c) != also.npos;
  };
  return !name.empty() && name.size() <= 100 && is_letter(name[0]) && std::all_of(name.begin(), name.end(), may_be);
}

[[noreturn]] void refuse_definition(const OpDefinition& d, const std::string& why) {
  throw Error(fmt::format("op '{}' {}", d.name.substr(0, 100), why));
}

void check_values(const OpDefinition& d, const char* what, const std::string& schema) {
  std::set<std::string_view> seen;
  for (std::string_view name : split_names(schema)) {
    std::string_view plain = name;
    if (plain.ends_with("...")) plain.remove_suffix(3);
    else if (plain.ends_with('?')) plain.remove_suffix(1);
    if (!is_word(plain)) refuse_definition(d, fmt::format("has an {} '{}', which is no name", what, name));
    if (!seen.insert(plain).second) refuse_definition(d, fmt::format("has two {}s '{}'", what, plain));
    if (name.ends_with("...") && split_names(schema).size() > 1)
      refuse_definition(d, fmt::format("has a list of {}s beside others: '{}'", what, schema));
  }
}

void check_definition(const OpDefinition& d) {
  if (!is_word(d.name, ".") || d.name.back() == '.')
    throw Error(fmt::format("'{}' is no name of an op: letters, digits, '_' and '.'", d.name.substr(0, 100)));
  if (d.name.back() == '_') refuse_definition(d, "has the name of one that works in place, which cannot be registered");
  check_values(d, "input", d.inputs);
  check_values(d, "output", d.outputs);
  if (split_names(d.outputs).empty()) refuse_definition(d, "has no outputs");
  std::set<std::string_view> seen;
  for (const NamedValue& a : d.attributes) {
    if (!is_word(a.name)) refuse_definition(d, fmt::format("has an attribute '{}', which is no name", a.name));
    if (!seen.insert(a.name).second) refuse_definition(d, fmt::format("has two attributes '{}'", a.name));
  }
  if (!d.infer) refuse_definition(d, "has no infer");
  if (!d.compute == d.kernels.empty()) refuse_definition(d, "needs either compute or kernels");
  for (const OpKernel& k : d.kernels)
    if (!is_word(k.name, ".") || !k.run)
      refuse_definition(d, fmt::format("has a kernel '{}' without name or run", k.name));
}

struct Registry {
  std::shared_mutex mutex;
  std::map<std::string_view, const Op*> by_name;
  std::vector<const Op*> ops;
  std::vector<Family> added;
};
Registry& registry() {
  static auto* made = new Registry;
  return *made;
}

}  // namespace

RegisteredOp::RegisteredOp(OpDefinition given) : definition(std::move(given)) {
  for (const NamedValue& a : definition.attributes) {
    type.fields.push_back(
        {a.name, static_cast<AttrKind>(a.value.index()), 0, initial.values.size(), get_value, set_value, equal_values});
    initial.values.push_back(a.value);
  }
  type.defaults = &initial;
  defaults = Attrs(initial);
  for (size_t i = 0; i < definition.kernels.size(); ++i)
    kernels[static_cast<int>(definition.kernels[i].device)].push_back(kernel_for(definition.kernels[i]));
  op.name = definition.name;
  op.inputs = definition.inputs;
  op.outputs = definition.outputs;
  op.infer = registered_infer;
  if (definition.vjp) op.vjp = registered_vjp;
  if (definition.reference) op.reference = registered_reference;
  if (definition.compute) op.compute = registered_compute;
  op.saves = {.inputs = definition.keeps_inputs, .outputs = definition.keeps_outputs};
  op.pitched = Pitched::None;
  op.registered = this;
  for (int d = 0; d < kDeviceTypeCount; ++d) op.kernels[static_cast<size_t>(d)] = kernels[d];
  inputs = inputs_of(op);
  outputs = outputs_of(op);
}

const Attrs& registered_defaults(const RegisteredOp& op) { return op.defaults; }

const Op& register_op(OpDefinition definition) {
  check_definition(definition);
  if (find_built_in(definition.name)) refuse_definition(definition, "is one of the library's");
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  if (all.by_name.count(definition.name)) refuse_definition(definition, "is registered already");
  auto made = std::make_unique<RegisteredOp>(std::move(definition));
  all.by_name.emplace(made->op.name, &made->op);
  all.ops.push_back(&made->op);
  return made.release()->op;
}

const Op* find_registered(std::string_view name) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto it = all.by_name.find(name);
  return it == all.by_name.end() ? nullptr : it->second;
}

void add_ops(std::string_view title, std::span<const Op* const> ops) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  for (const Op* op : ops)
    if (find_built_in(op->name) || all.by_name.count(op->name))
      throw Error("two operators are named " + std::string(op->name));
  for (const Op* op : ops) {
    all.by_name.emplace(op->name, op);
    all.ops.push_back(op);
  }
  all.added.push_back({title, ops});
}

std::vector<Family> added_families() {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  return all.added;
}

std::vector<const Op*> registered_ops() {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  return all.ops;
}

Tensors as_new_outputs(std::string_view name, Tensors found, const Metas& wanted, std::span<const Tensor> in) {
  if (found.size() != wanted.size())
    throw Error(fmt::format("{}: {} results for {} outputs", name, found.size(), wanted.size()));
  for (size_t i = 0; i < found.size(); ++i) {
    Tensor& t = found[i];
    if (!t.defined() || !(t.shape() == wanted[i].shape) || t.dtype() != wanted[i].dtype)
      throw Error(fmt::format("{}: result {} is {}, not {}", name, i, t.defined() ? describe(t) : "undefined",
                              describe(wanted[i])));
    const bool given =
        std::any_of(in.begin(), in.end(), [&](const Tensor& x) { return x.defined() && x.storage() == t.storage(); });
    t = given ? t.clone().detach() : t.contiguous().detach();
  }
  return found;
}

Tensors call_op(std::string_view name, const Tensors& inputs, const std::vector<NamedValue>& attributes) {
  const Op& op = find_op(name);
  Tensors in = inputs;
  const std::vector<OpValue> wanted = inputs_of(op);
  const bool list = std::any_of(wanted.begin(), wanted.end(), [](const OpValue& v) { return v.list; });
  if (!list && in.size() < wanted.size()) in.resize(wanted.size());
  require_inputs_of(op, in.size(), [&](size_t i) { return !in[i].defined(); });
  Attrs attrs = default_attrs(op);
  for (const NamedValue& a : attributes) try {
      attrs.set(a.name, a.value);
    } catch (const Error& e) {
      throw Error(fmt::format("{}: {}", op.name, e.what()));
    }
  return dispatch(op, std::move(in), attrs);
}

}  // namespace tessera
