#include <cxxabi.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_set>

#include "core/capture_state.h"
#include "ops/autocast.h"
#include "ops/lower_copy.h"
#include "tessera/autograd.h"
#include "tessera/nn.h"
#include "tessera/packing.h"

namespace tessera::nn {

// A parameter's copy in the layout of the kernel that reads it.
struct PackedCopy {
  Tensor parameter, packed;
  Ref<Storage> origin;
  uint32_t version = 0;

  explicit PackedCopy(const Tensor& parameter) : parameter(parameter) {}
  Tensor fresh() {
    const Ref<Storage>& now = parameter.storage();
    const uint32_t written = now->version.load(std::memory_order_relaxed);
    if (packed.defined() && origin == now && version == written) return packed;
    packed = {};  // before another one takes as much memory
    packed = pack_linear(parameter);
    origin = now;
    version = written;
    return packed;
  }
};

struct Module::State {
  NamedTensors parameters, buffers;
  std::set<std::string> unsaved;  // names of buffers
  NamedModules children;
  std::string name;
  bool training = true;
  int64_t next_hook = 0;
  std::map<int64_t, ForwardPreHook> pre_hooks;
  std::map<int64_t, ForwardHook> hooks;
  std::atomic<bool> packs = false;
  std::mutex packing;
  std::vector<PackedCopy> copies;

  // Several threads may evaluate at once.
  Tensor packed(const Tensor& weight) {
    std::lock_guard lock(packing);
    for (PackedCopy& copy : copies)
      if (same(copy.parameter, weight)) return copy.fresh();
    return copies.emplace_back(weight).fresh();
  }
  void drop_copies() {
    {
      std::lock_guard lock(packing);
      copies.clear();
    }
    for (auto& [name, child] : children) child.module().state_->drop_copies();
  }

  // Calls fn(full name, tensor) for the tensors that `list` selects, here and below.
  template <class Fn>
  void each(NamedTensors State::*list, const std::string& prefix, const Fn& fn) const {
    for (const auto& [name, t] : this->*list) fn(prefix + name, t);
    for (const auto& [name, child] : children) child.module().state_->each(list, prefix + name + ".", fn);
  }
  // Those that are saved.
  template <class Fn>
  void each_saved(const std::string& prefix, const Fn& fn) const {
    each(&State::parameters, prefix, fn);
    each_saved_buffer(prefix, fn);
  }
  template <class Fn>
  void each_saved_buffer(const std::string& prefix, const Fn& fn) const {
    for (const auto& [name, t] : buffers)
      if (!unsaved.contains(name)) fn(prefix + name, t);
    for (const auto& [name, child] : children) child.module().state_->each_saved_buffer(prefix + name + ".", fn);
  }
  // The same without repeating a tensor that has several names.
  NamedTensors unique(NamedTensors State::*list) const {
    NamedTensors out;
    std::unordered_set<const TensorImpl*> seen;
    each(list, "", [&](const std::string& name, const Tensor& t) {
      if (seen.insert(t.ref().get()).second) out.emplace_back(name, t);
    });
    return out;
  }
  void set_training(bool on) {
    training = on;
    if (on) packs = false;
    for (auto& [name, child] : children) child.module().state_->set_training(on);
  }
  // Calls fn(full name, child, the module that it is in) for all below until that returns true.
  template <class Fn>
  bool walk(const std::string& prefix, const Fn& fn) const {
    for (const auto& [name, child] : children)
      if (fn(prefix + name, child, *this) || child.module().state_->walk(prefix + name + ".", fn)) return true;
    return false;
  }
};

Module::Module() : state_(std::make_shared<State>()) {}

Tensors Module::forward(const Tensors&) const { throw Error(title() + ": forward(const Tensors&) is not overridden"); }

// Such as `Linear "hidden"`: its type without scopes and template arguments, and its name.
std::string Module::title() const {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), std::free);
  std::string type = plain ? plain.get() : "Module";
  type = type.substr(0, type.find('<'));
  if (const size_t scope = type.rfind("::"); scope != type.npos) type = type.substr(scope + 2);
  return name().empty() ? type : fmt::format("{} \"{}\"", type, name());
}

void Module::check_inputs(const Tensors& in, size_t least, size_t most) const {
  if (in.size() >= least && in.size() <= most) return;
  const std::string wanted = least == most ? std::to_string(least) : fmt::format("{} to {}", least, most);
  throw Error(fmt::format("{}: takes {} input{}, not {}", title(), wanted, most == 1 ? "" : "s", in.size()));
}

Tensor Module::one_output(Tensors out) const {
  if (out.size() != 1)
    throw Error(fmt::format("{}: gives {} tensors, not one; call it with Tensors", title(), out.size()));
  return std::move(out[0]);
}

int64_t Module::register_forward_pre_hook(ForwardPreHook hook) {
  if (!hook) throw Error(fmt::format("{}: a hook is empty", title()));
  state_->pre_hooks.emplace(state_->next_hook, std::move(hook));
  return state_->next_hook++;
}
int64_t Module::register_forward_hook(ForwardHook hook) {
  if (!hook) throw Error(fmt::format("{}: a hook is empty", title()));
  state_->hooks.emplace(state_->next_hook, std::move(hook));
  return state_->next_hook++;
}
void Module::remove_hook(int64_t number) {
  state_->pre_hooks.erase(number);
  state_->hooks.erase(number);
}
bool Module::has_hooks() const { return !state_->pre_hooks.empty() || !state_->hooks.empty(); }
const std::map<int64_t, ForwardPreHook>& Module::forward_pre_hooks() const { return state_->pre_hooks; }
const std::map<int64_t, ForwardHook>& Module::forward_hooks() const { return state_->hooks; }

// Copies are called: a hook may remove itself.
Tensors Module::forward_with_hooks(Tensors in) const {
  for (const auto& [number, hook] : std::map(state_->pre_hooks))
    if (std::optional<Tensors> given = hook(*this, in)) in = std::move(*given);
  Tensors out = forward(in);
  for (const auto& [number, hook] : std::map(state_->hooks))
    if (std::optional<Tensors> given = hook(*this, in, out)) out = std::move(*given);
  return out;
}

Tensor call_activated(const Module& module, const Tensor& x, Activation activation, const Tensor& residual) {
  Tensor y = module(x);
  switch (activation) {
    case Activation::None:
      break;
    case Activation::Relu:
      y = relu(y);
      break;
    case Activation::GeluTanh:
      y = gelu_tanh(y);
      break;
    case Activation::GeluErf:
      y = gelu(y);
      break;
    case Activation::Silu:
      y = silu(y);
      break;
    case Activation::Tanh:
      y = tanh(y);
      break;
  }
  return residual.defined() ? residual + y : y;
}

// ---- children

const NamedModules& Module::children() const { return state_->children; }
const std::string& Module::name() const { return state_->name; }

NamedModules Module::named_modules() const {
  NamedModules out;
  std::unordered_set<const State*> seen;
  state_->walk("", [&](const std::string& path, const Child<Module>& child, const State&) {
    if (seen.insert(child.module().state_.get()).second) out.emplace_back(path, child);
    return false;
  });
  return out;
}

Child<Module> Module::child(const std::string& path) const {
  Child<Module> found;
  const auto is_it = [&](const std::string& name, const Child<Module>& child, const State&) {
    if (name == path) found = child;
    return name == path;
  };
  if (state_->walk("", is_it)) return found;
  std::vector<std::string> names;
  for (const auto& [name, child] : children()) names.push_back(fmt::format("\"{}\"", name));
  throw Error(fmt::format("{}: there is no \"{}\" below it; its children are {}", title(), path,
                          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

bool Module::contains(const State* state) const {
  const auto is_it = [&](const std::string&, const Child<Module>& child, const State&) {
    return child.module().state_.get() == state;
  };
  return state_.get() == state || state_->walk("", is_it);
}

namespace {

// In which parameters of the new module have other shapes; empty if in none.
std::string difference(const NamedTensors& old, const NamedTensors& fresh) {
  for (size_t i = 0; i < std::min(old.size(), fresh.size()); ++i)
    if (!(old[i].second.shape() == fresh[i].second.shape()))
      return fmt::format("has {} {} where {} {} was", fresh[i].first, to_string(fresh[i].second.shape()), old[i].first,
                         to_string(old[i].second.shape()));
  if (old.size() == fresh.size()) return {};
  return fmt::format("has {} parameters where {} were", fresh.size(), old.size());
}

}  // namespace

void Module::replace(const std::string& path, const Child<Module>& module, const ReplaceOptions& options) {
  const Child<Module> place = child(path);
  if (!module.place_ || !*module.place_) {
    state_->walk("", [&](const std::string& name, const Child<Module>& child, const State& parent) {
      if (name != path) return false;
      auto& list = const_cast<State&>(parent).children;
      list.erase(std::find_if(list.begin(), list.end(), [&](const auto& one) { return &one.second == &child; }));
      return true;
    });
    return;
  }
  const std::string wrong = difference(place->named_parameters(), module->named_parameters());
  if (!wrong.empty() && !options.any_shapes)
    throw Error(
        fmt::format("{}: the new \"{}\" {}; replace(name, module, {{.any_shapes = true}}) takes it all the same",
                    title(), path, wrong));
  const bool circular = state_->walk("", [&](const std::string& name, const Child<Module>&, const State& parent) {
    return name == path && module->contains(&parent);
  });
  if (circular) throw Error(fmt::format("{}: the new \"{}\" would be a part of itself", title(), path));
  module->train(place->training());
  if (place->packs()) module->pack();
  if (module->name().empty()) module->state_->name = place->name();
  *place.place_ = *module.place_;
}

// ---- parameters and buffers

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  for (auto& [name, t] : named_parameters()) out.push_back(t);
  return out;
}
NamedTensors Module::named_parameters() const { return state_->unique(&State::parameters); }
NamedTensors Module::named_buffers() const { return state_->unique(&State::buffers); }

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& t : parameters()) count += t.numel();
  return count;
}

void Module::pack() {
  if (training()) throw Error(title() + ": pack() in training, which changes the weights; call eval() first");
  const auto set = [](const std::string&, const Child<Module>& child, const State&) {
    State& state = *child.module().state_;
    state.packs = !state.training;
    return false;
  };
  state_->packs = true;
  state_->walk("", set);
}
bool Module::packs() const { return state_->packs; }

Tensor Module::packed(const Tensor& weight) const {
  const bool plain = !state_->packs || grad_enabled() || is_capturing() || amp::autocast_state.devices;
  return plain ? weight : state_->packed(weight);
}

void Module::train(bool on) {
  state_->set_training(on);
  if (on) state_->drop_copies();
}
bool Module::training() const { return state_->training; }

void Module::zero_grad() {
  for (const Tensor& t : parameters()) t.set_grad({});
}

namespace {

// Replaces a tensor's elements for every handle on it.
void move_to(const Tensor& t, const Tensor& with) {
  if (same(t, with)) return;
  TensorImpl& to = t.impl();
  const TensorImpl& from = with.impl();
  to.storage = from.storage;
  to.offset = from.offset;
  to.strides = from.strides;
  to.dtype = from.dtype;
  to.contiguous = from.contiguous;
  if (t.requires_grad()) t.set_grad({});
  if (const auto copy = find_lower_copy(t)) copy->drop();
}

}  // namespace

void Module::to(DType dtype) {
  if (!is_floating(dtype)) throw Error("Module::to: " + std::string(tessera::name(dtype)) + " is not a floating dtype");
  NoGrad guard;
  state_->drop_copies();
  for (auto& list : {named_parameters(), named_buffers()})
    for (auto& [name, t] : list)
      if (is_floating(t.dtype())) move_to(t, t.to(dtype));
}
void Module::to(Device device) {
  NoGrad guard;
  state_->drop_copies();
  for (auto& list : {named_parameters(), named_buffers()})
    for (auto& [name, t] : list) move_to(t, t.to(device));
}
void Module::to(MemoryFormat format) {
  NoGrad guard;
  for (auto& [name, t] : named_parameters())
    if (t.dim() == 4) move_to(t, t.to(format));
}

StateDict Module::state_dict() const {
  StateDict out;
  std::unordered_set<const TensorImpl*> seen;
  state_->each_saved("", [&](const std::string& name, const Tensor& t) {
    if (seen.insert(t.ref().get()).second) out.emplace(name, t.detach());
  });
  return out;
}

namespace {

bool equal_bytes(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor x = a.to(cpu()).contiguous(), y = b.to(cpu()).contiguous();
  return std::memcmp(x.place(), y.place(), static_cast<size_t>(x.numel()) * size_of(x.dtype())) == 0;
}

}  // namespace

void Module::load_state_dict(const StateDict& dict, bool strict) {
  struct Target {
    std::string name;
    Tensor tensor, source;
  };
  std::vector<Target> targets;
  std::map<const TensorImpl*, size_t> index;
  std::vector<std::string> missing, unexpected, mismatched;
  std::set<std::string, std::less<>> known;
  auto visit = [&](const std::string& name, const Tensor& t) {
    known.insert(name);
    auto [at, fresh] = index.emplace(t.ref().get(), targets.size());
    if (fresh) targets.push_back({name, t, {}});
    auto found = dict.find(name);
    if (found == dict.end()) return;
    const Tensor& source = found->second;
    Target& target = targets[at->second];
    if (source.shape() != t.shape() ||
        (source.dtype() != t.dtype() && !(is_floating(source.dtype()) && is_floating(t.dtype()))))
      mismatched.push_back(fmt::format("{} is {}{} here and {}{} there", name, tessera::name(t.dtype()),
                                       to_string(t.shape()), tessera::name(source.dtype()), to_string(source.shape())));
    else if (source.device().meta && !t.device().meta)
      mismatched.push_back(fmt::format("{} has no memory there", name));
    else if (!target.source.defined()) target.source = source;
    else if (!equal_bytes(target.source, source))
      mismatched.push_back(fmt::format("{} and {} are tied here and differ there", target.name, name));
  };
  state_->each_saved("", visit);
  if (strict) {
    for (const Target& t : targets)
      if (!t.source.defined() && !dict.contains(t.name)) missing.push_back(t.name);
    for (const auto& [name, t] : dict)  // PyTorch's batch norms count batches, which nothing here reads
      if (!known.contains(name) && !("." + name).ends_with(".num_batches_tracked")) unexpected.push_back(name);
  }
  std::vector<std::string> parts;
  auto list = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    const size_t shown = std::min<size_t>(names.size(), 3);
    parts.push_back(fmt::format("{}: {}{}", what,
                                fmt::join(names.begin(), names.begin() + static_cast<long>(shown), ", "),
                                names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : ""));
  };
  list("missing", missing);
  list("unexpected", unexpected);
  list("mismatched", mismatched);
  if (!parts.empty()) throw Error(fmt::format("load_state_dict: {}", fmt::join(parts, "; ")));

  NoGrad guard;
  for (Target& t : targets)
    if (t.source.defined()) t.tensor.copy_(t.source);
}

void Module::check_new(const std::string& name) const {
  auto taken = [&](const auto& list) {
    for (const auto& entry : list)
      if (entry.first == name) return true;
    return false;
  };
  if (name.empty() || taken(state_->parameters) || taken(state_->buffers) || taken(state_->children))
    throw Error("Module: the name \"" + name + "\" is empty or taken");
}

void Module::add_child(const std::string& name, const Child<Module>& child) {
  check_new(name);
  if (child->contains(state_.get())) throw Error(title() + ": \"" + name + "\" would be a part of itself");
  if (child->name().empty()) child->state_->name = name;
  state_->children.emplace_back(name, child);
}
Tensor Module::add_parameter(const std::string& name, Tensor value) {
  check_new(name);
  if (!value.requires_grad()) value.set_requires_grad();
  state_->parameters.emplace_back(name, value);
  return value;
}
Tensor Module::add_buffer(const std::string& name, Tensor value, bool saved) {
  check_new(name);
  state_->buffers.emplace_back(name, value);
  if (!saved) state_->unsaved.insert(name);
  return value;
}
NamedTensors Module::own_tensors() const {
  NamedTensors out = state_->parameters;
  out.insert(out.end(), state_->buffers.begin(), state_->buffers.end());
  return out;
}
std::vector<std::pair<Tensor, Tensor>> Module::separate() {
  NoGrad guard;
  auto fresh = std::make_shared<State>();
  std::vector<std::pair<Tensor, Tensor>> out;
  for (const auto list : {&State::parameters, &State::buffers})
    for (const auto& [name, t] : (*state_).*list) {
      Tensor copy = t.detach().clone();
      if (t.requires_grad()) copy.set_requires_grad();
      ((*fresh).*list).emplace_back(name, copy);
      out.emplace_back(t, copy);
    }
  fresh->unsaved = state_->unsaved;
  fresh->training = state_->training;
  state_ = std::move(fresh);
  return out;
}
Tensor Module::replace_tensor(const std::string& name, Tensor value) {
  for (NamedTensors* list : {&state_->parameters, &state_->buffers})
    for (auto at = list->begin(); at != list->end(); ++at)
      if (at->first == name) {
        state_->drop_copies();
        if (value.defined()) at->second = value;
        else list->erase(at), state_->unsaved.erase(name);
        return value;
      }
  throw Error(fmt::format("{}: there is no parameter or buffer \"{}\" of its own", title(), name));
}

}  // namespace tessera::nn
