// Local SGD: ranks that step by themselves, and average their parameters in blocks that nest.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "dist/group.h"
#include "tessera/autograd.h"
#include "tessera/ops.h"

namespace tessera::dist {
namespace {

void check_levels(const std::vector<AveragingLevel>& levels, int all) {
  if (levels.empty()) throw Error("LocalSGD: there is no level of averaging");
  int64_t period = 0;
  int ranks = 1;
  for (const AveragingLevel& level : levels) {
    if (level.period < 1) throw Error(fmt::format("LocalSGD: averages after every {} steps", level.period));
    if (level.period <= period)
      throw Error(fmt::format("LocalSGD: periods grow from level to level: {} comes after {}", level.period, period));
    if (level.ranks < 2 && all > 1) throw Error(fmt::format("LocalSGD: {} ranks have nothing to average", level.ranks));
    if (level.ranks % ranks != 0 || (level.ranks == ranks && ranks > 1))
      throw Error(fmt::format("LocalSGD: blocks of {} ranks are not made of several of {}", level.ranks, ranks));
    period = level.period, ranks = level.ranks;
  }
  if (ranks != all) throw Error(fmt::format("LocalSGD: the last level has {} ranks, not all {}", ranks, all));
}

// Those that lie one after another, so many each.
Group block_of(const Group& group, int ranks) {
  return ranks == group.size() ? group : group.split(group.rank() / ranks);
}

int64_t parse_number(std::string_view text, const std::string& all) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 1 || value > INT32_MAX)
    throw Error(fmt::format("LocalSGD: \"{}\" is no list of periods and ranks such as 2:8,4:32", all));
  return value;
}

}  // namespace

std::vector<AveragingLevel> parse_hierarchy(const std::string& text) {
  std::vector<AveragingLevel> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view level = std::string_view(text).substr(begin, end - begin);
    const size_t colon = std::min(level.find(':'), level.size());
    out.push_back({parse_number(level.substr(0, colon), text),
                   static_cast<int>(parse_number(level.substr(std::min(colon + 1, level.size())), text))});
    begin = end + 1;
  }
  return out;
}

struct LocalSGD::State {
  const nn::Module& model;
  Group group;
  LocalSGDOptions options;
  std::vector<Tensor> parameters;
  std::vector<Group> blocks;             // of each level
  std::optional<Group> with_gradients;   // after the warm-up; none: gradients stay as they are
  std::optional<DataParallel> parallel;  // of all ranks, or of these
  int64_t step;
  std::vector<Tensor> before, momentum;  // at the last average of all ranks; only with outer momentum

  State(const nn::Module& model, const Group& group, const LocalSGDOptions& options)
      : model(model), group(group), options(options), parameters(model.parameters()), step(options.first_step) {}

  void begin() {
    for (const AveragingLevel& level : options.hierarchy) blocks.push_back(block_of(group, level.ranks));
    if (options.gradients_within > 1) with_gradients = block_of(group, options.gradients_within);
    parallel.emplace(model, group);  // also makes parameters alike
    if (step >= options.warmup) end_warmup();
    keep_average();
  }

  void end_warmup() {
    parallel.reset();
    if (with_gradients && with_gradients->size() > 1) parallel.emplace(model, *with_gradients);
  }

  void keep_average() {
    if (options.outer_momentum == 0) return;
    const NoGrad no_grad;
    before.clear();
    for (const Tensor& p : parameters) before.push_back(p.detach().clone());
    if (!momentum.empty()) return;
    for (const Tensor& p : parameters) momentum.push_back(zeros(p.shape(), p.dtype(), p.device()));
  }

  // Of those that have a gradient, which must be the same on all ranks that average.
  std::vector<size_t> trained(const Group& block) const {
    std::vector<size_t> out;
    std::string which;
    for (size_t i = 0; i < parameters.size(); ++i) {
      which += parameters[i].grad().defined() ? '1' : '0';
      if (which.back() == '1') out.push_back(i);
    }
    const auto hash = static_cast<int64_t>(std::hash<std::string>()(which) >> 1);
    const Tensor hashes = all_gather(tensor(std::vector<int64_t>{hash}, {1}), block);
    for (const int64_t other : hashes.to_vector<int64_t>())
      if (other != hash)
        throw Error(
            "LocalSGD: ranks have gradients of different parameters, and cannot average: use all of them, or none");
    return out;
  }

  void make_mean(const std::vector<size_t>& which, const Group& block) const {
    std::map<DType, Tensors> of_dtype;
    for (const size_t i : which) of_dtype[parameters[i].dtype()].push_back(parameters[i].detach());
    for (const auto& [dtype, tensors] : of_dtype) all_reduce_(tensors, block, Mean);
  }

  void average(size_t level, double lr) {
    const Group& block = blocks[level];
    if (block.size() == 1) return;
    const NoGrad no_grad;
    const std::vector<size_t> which = trained(block);
    make_mean(which, block);
    if (options.outer_momentum == 0 || level + 1 < blocks.size()) return;
    for (const size_t i : which) {
      Tensor value = parameters[i].detach();
      momentum[i].copy_(momentum[i] * options.outer_momentum + (before[i] - value) / lr);
      value.copy_(before[i] - momentum[i] * lr);
    }
    keep_average();
  }
};

void LocalSGDOptions::check(int ranks) {
  if (!hierarchy.empty() && hierarchy.back().ranks == 0) hierarchy.back().ranks = ranks;
  check_levels(hierarchy, ranks);
  if (warmup < 0 || first_step < 0) throw Error("LocalSGD: a number of steps is negative");
  if (gradients_within < 1 || ranks % gradients_within != 0)
    throw Error(
        fmt::format("LocalSGD: gradients within blocks of {} ranks: they do not divide {}", gradients_within, ranks));
  if (!(outer_momentum >= 0 && outer_momentum < 1))
    throw Error(fmt::format("LocalSGD: outer momentum {:g} is not from 0 to below 1", outer_momentum));
}

LocalSGD::LocalSGD(const nn::Module& model, const Group& group, const LocalSGDOptions& given) {
  LocalSGDOptions options = given;
  options.check(group.size());
  state_ = std::make_shared<State>(model, group, options);
  state_->begin();
}

void LocalSGD::step(double lr) {
  if (!(lr > 0) && state_->options.outer_momentum > 0)
    throw Error(fmt::format("LocalSGD: a learning rate of {:g}", lr));
  const int64_t step = state_->step++;
  if (const std::optional<size_t> level = level_at(step)) state_->average(*level, lr);
  if (step + 1 != state_->options.warmup) return;
  state_->end_warmup();
  state_->keep_average();
}

void LocalSGD::average() {
  const NoGrad no_grad;
  std::vector<size_t> all(state_->parameters.size());
  std::iota(all.begin(), all.end(), size_t{0});
  state_->make_mean(all, state_->group);
}

const DataParallel* LocalSGD::parallel() const { return state_->parallel ? &*state_->parallel : nullptr; }

int64_t LocalSGD::steps() const { return state_->step; }

bool LocalSGD::all_met() const {
  const int64_t last = state_->step - 1;
  return last < state_->options.first_step || last < state_->options.warmup ||
         level_at(last) == state_->blocks.size() - 1;
}

StateDict LocalSGD::state_dict() const {
  StateDict out;
  const nn::NamedTensors named = state_->model.named_parameters();
  for (size_t i = 0; i < state_->before.size(); ++i) {
    out.emplace(named[i].first + ".before", state_->before[i]);
    out.emplace(named[i].first + ".momentum", state_->momentum[i]);
  }
  return out;
}

void LocalSGD::load_state_dict(const StateDict& dict) {
  const NoGrad no_grad;
  for (const auto& [name, tensor] : state_dict()) {
    const auto from = dict.find(name);
    if (from == dict.end()) throw Error("LocalSGD: no " + name);
    if (from->second.shape() != tensor.shape() || from->second.dtype() != tensor.dtype())
      throw Error(fmt::format("LocalSGD: {} is {}{}, not {}{}", name, tessera::name(from->second.dtype()),
                              to_string(from->second.shape()), tessera::name(tensor.dtype()),
                              to_string(tensor.shape())));
    Tensor(tensor).copy_(from->second);
  }
}

std::optional<size_t> LocalSGD::level_of(const std::vector<AveragingLevel>& hierarchy, int64_t warmup, int64_t step) {
  if (step < warmup) return {};
  const int64_t count = hierarchy.size() == 1 ? step - warmup : step;
  for (size_t i = hierarchy.size(); i-- > 0;)
    if (count % hierarchy[i].period == 0) return i;
  return {};
}

std::optional<size_t> LocalSGD::level_at(int64_t step) const {
  return level_of(state_->options.hierarchy, state_->options.warmup, step);
}

}  // namespace tessera::dist
