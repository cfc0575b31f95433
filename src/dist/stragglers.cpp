#include "dist/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/ops.h"
#include "tessera/random.h"

namespace tessera::dist {
namespace {

constexpr int64_t kMostTimes = int64_t{1} << 28;

// The last one of each block comes, and all of it goes on.
void meet(std::vector<double>& at, int ranks) {
  for (auto block = at.begin(); block != at.end(); block += ranks)
    std::fill(block, block + ranks, *std::max_element(block, block + ranks));
}

double last_of(const std::vector<double>& at) { return *std::max_element(at.begin(), at.end()); }

const float* stalls_of(const RankTimes& times, int64_t step) { return times.stall.data() + step * times.ranks; }

}  // namespace

RankTimes draw_times(int ranks, int64_t steps, double step, const StragglerModel& model, uint64_t seed) {
  if (ranks < 1 || steps < 1 || steps > kMostTimes / ranks)
    throw Error(fmt::format("stragglers: {} ranks in {} steps are out of range", ranks, steps));
  if (!(step >= 0 && std::isfinite(step))) throw Error(fmt::format("stragglers: a step of {:g} ms", step));
  if (!(model.stall >= 0 && std::isfinite(model.stall)))
    throw Error(fmt::format("stragglers: a stall of {:g} ms", model.stall));
  if (!(model.probability >= 0 && model.probability <= 1))
    throw Error(fmt::format("stragglers: a probability of {:g}", model.probability));
  Generator generator(seed);
  RankTimes out{ranks, step, rand({steps, ranks}, generator).to_vector<float>()};
  const auto slow = static_cast<size_t>(std::ceil(model.probability * ranks));
  for (size_t i = 0; i < out.stall.size(); ++i) {
    const bool stalls = model.persistent ? i % static_cast<size_t>(ranks) < slow : out.stall[i] < model.probability;
    out.stall[i] = stalls ? static_cast<float>(model.stall) : 0;
  }
  return out;
}

std::vector<double> simulate(const RankTimes& times, const AveragingScheme& scheme) {
  LocalSGDOptions options{.hierarchy = scheme.hierarchy, .gradients_within = scheme.ranks_of_host};
  options.check(times.ranks);
  const auto n = static_cast<size_t>(times.ranks);
  // When the host is free, when the device has made the last step, and the one before.
  std::vector<double> host(n), made(n), before(n), out;
  for (int64_t step = 0; step < times.steps(); ++step) {
    const float* const stall = stalls_of(times, step);
    std::vector<double> next(n);
    for (size_t r = 0; r < n; ++r) {
      host[r] = std::max(host[r], scheme.one_step_ahead ? before[r] : made[r]) + stall[r];
      next[r] = std::max(host[r], made[r]) + times.step;
    }
    meet(next, scheme.ranks_of_host);
    if (const auto level = LocalSGD::level_of(options.hierarchy, 0, step)) {
      host = next;
      meet(next, options.hierarchy[*level].ranks);
    }
    before = std::exchange(made, std::move(next));
    out.push_back(last_of(made));
  }
  return out;
}

std::vector<double> simulate_gossip(const RankTimes& times) {
  const auto n = static_cast<size_t>(times.ranks);
  std::vector<double> made(n), ready(n), out;
  for (int64_t step = 0; step < times.steps(); ++step) {
    const float* const stall = stalls_of(times, step);
    for (size_t r = 0; r < n; ++r) ready[r] = made[r] + stall[r] + times.step;
    for (size_t r = 0; r < n; ++r) made[r] = std::max({ready[(r + n - 1) % n], ready[r], ready[(r + 1) % n]});
    out.push_back(last_of(made));
  }
  return out;
}

std::vector<double> simulate_backups(const RankTimes& times, int backups) {
  if (backups < 0 || backups >= times.ranks)
    throw Error(fmt::format("stragglers: {} backup workers of {} ranks", backups, times.ranks));
  const auto n = static_cast<size_t>(times.ranks);
  std::vector<double> free(n), arrives(n), out;  // when a rank has ended what it is at
  double now = 0;
  for (int64_t step = 0; step < times.steps(); ++step) {
    const float* const stall = stalls_of(times, step);
    for (size_t r = 0; r < n; ++r) arrives[r] = std::max(now, free[r]) + stall[r] + times.step;
    std::vector<double> order = arrives;
    const auto enough = order.begin() + (times.ranks - backups - 1);
    std::nth_element(order.begin(), enough, order.end());
    now = *enough;
    for (size_t r = 0; r < n; ++r)
      if (free[r] < now) free[r] = arrives[r];  // who has not begun by then begins with another step
    out.push_back(now);
  }
  return out;
}

WaitingCauses explain_waiting(const RankTimes& times) {
  const auto n = static_cast<size_t>(times.ranks);
  std::vector<double> of_rank(n);
  double all = 0, waited = 0;
  for (int64_t step = 0; step < times.steps(); ++step) {
    const float* const stall = stalls_of(times, step);
    const double last = *std::max_element(stall, stall + n), sum = std::accumulate(stall, stall + n, 0.0);
    const double mean = sum / static_cast<double>(n), lost = last * static_cast<double>(n) - sum;
    double late = 0;
    for (size_t r = 0; r < n; ++r) late += std::max(stall[r] - mean, 0.0);
    for (size_t r = 0; r < n && late > 0; ++r) of_rank[r] += lost * std::max(stall[r] - mean, 0.0) / late;
    waited += lost;
    all += (last + times.step) * static_cast<double>(n);
  }
  WaitingCauses out;
  out.lost = all > 0 ? waited / all : 0;
  out.latest = static_cast<int>(std::max_element(of_rank.begin(), of_rank.end()) - of_rank.begin());
  out.latest_part = waited > 0 ? of_rank[static_cast<size_t>(out.latest)] / waited : 0;
  std::vector<float> sorted = times.stall;
  const auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double limit = 1.5 * (*middle + times.step);
  const auto slow = std::count_if(sorted.begin(), sorted.end(), [&](float t) { return t + times.step > limit; });
  out.slow = static_cast<double>(slow) / static_cast<double>(sorted.size());
  return out;
}

std::string why_not_worth(const RankTimes& times, double best) {
  constexpr double kWorth = 1.25, kLittle = 0.1, kOften = 0.25;
  const WaitingCauses waiting = explain_waiting(times);
  if (waiting.lost < kLittle)
    return fmt::format("ranks waited for each other in {:.1f} % of their time, less than 10 %", 100 * waiting.lost);
  // By chance each would be the last one as often as any other.
  if (best < kWorth && waiting.latest_part > std::min(0.75, 2.0 / times.ranks + 0.1))
    return fmt::format("the waiting is mostly ({:.0f} %) for rank {}, which every average would wait for, too",
                       100 * waiting.latest_part, waiting.latest);
  if (waiting.slow > kOften)
    return fmt::format("{:.0f} % of ranks are slow in a step, so that most blocks have one", 100 * waiting.slow);
  return best < kWorth ? fmt::format("the best one would be {:.2f} times as fast", best) : "";
}

}  // namespace tessera::dist
