// tessera simulate stragglers: what ranks that are late now and then cost, and what averaging now and then would save.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.h"
#include "dist/stragglers.h"
#include "plot.h"
#include "tessera/io.h"

namespace tessera::app {
namespace {

using dist::RankTimes;

// Speed-ups over synchronous training that were published for ResNet-18 on hosts of 4 GPUs, steps of 55 ms and stalls
// of 1 s: "Straggler Mitigation On PyTorch DDP By Hierarchical SGD", pytorch.org, 2023. Of each number of workers the
// lowest and the highest one are given, and which hierarchies were run.
struct Published {
  int workers;
  double probability, low, high;
  std::vector<std::string> hierarchies;
};
const Published kPublished[] = {
    {64, 0.02, 2.08, 2.45, {"2:8,4:32,8:64", "4:32,8:64"}},
    {128, 0.01, 2.57, 2.68, {"2:8,4:32,8:128", "4:32,8:128"}},
    {256, 0.01, 2.63, 3.25, {"1:4,2:16,4:64,8:256", "2:8,4:64,8:256", "4:16,8:256"}},
};
constexpr int kPublishedHost = 4;

/// Runs of which all schemes are simulated.
struct SimulatedRuns {
  std::vector<RankTimes> runs;
  std::vector<std::string> hierarchies;
  int ranks_of_host = 1;
  int ranks() const { return runs[0].ranks; }
};

/// How many times as fast a scheme is as synchronous training; NaN where a model does not have it.
struct Speedup {
  std::string name;
  bool is_hierarchy = false;
  double ahead = NAN, hosts = NAN, strict = NAN;
  double strictest() const { return std::isnan(hosts) ? strict : hosts; }
};

// Milliseconds of a step, over all runs.
template <class Fn>
double mean_step(const SimulatedRuns& c, const Fn& simulate) {
  double all = 0;
  for (const RankTimes& run : c.runs) all += simulate(run).back() / static_cast<double>(run.steps());
  return all / static_cast<double>(c.runs.size());
}
double mean_step(const SimulatedRuns& c, const dist::AveragingScheme& scheme) {
  return mean_step(c, [&](const RankTimes& run) { return dist::simulate(run, scheme); });
}
double synchronous_step(const SimulatedRuns& c) { return mean_step(c, dist::AveragingScheme{}); }

std::vector<Speedup> rows_of(const SimulatedRuns& c, double all) {
  std::vector<Speedup> rows;
  const bool is_drawn = c.runs[0].step > 0;  // what was measured does not tell the host's part from the device's
  const auto add = [&](const std::string& name, bool is_hierarchy, const std::vector<dist::AveragingLevel>& levels) {
    Speedup row{.name = name, .is_hierarchy = is_hierarchy, .strict = all / mean_step(c, {levels})};
    if (is_drawn) row.ahead = all / mean_step(c, {levels, c.ranks_of_host, true});
    if (c.ranks_of_host > 1) row.hosts = all / mean_step(c, {levels, c.ranks_of_host});
    rows.push_back(row);
  };
  for (const std::string& text : c.hierarchies) add(text, true, dist::parse_hierarchy(text));
  for (const int64_t period : {2, 4, 8}) add(fmt::format("local SGD {}", period), false, {{period, 0}});
  rows.push_back({.name = "gossip in a ring", .strict = all / mean_step(c, dist::simulate_gossip)});
  for (const int part : {16, 4})
    if (const int backups = c.ranks() / part; backups > 0)
      rows.push_back(
          {.name = fmt::format("{} backup worker{}", backups, backups > 1 ? "s" : ""),
           .strict = all / mean_step(c, [&](const RankTimes& r) { return dist::simulate_backups(r, backups); })});
  return rows;
}

// A column that no row has is left out.
void print_rows(const std::vector<Speedup>& rows, const SimulatedRuns& c, bool with_head) {
  const std::pair<std::string, double Speedup::*> columns[] = {
      {"one step ahead", &Speedup::ahead},
      {fmt::format("strict, hosts of {}", c.ranks_of_host), &Speedup::hosts},
      {"strict", &Speedup::strict}};
  const auto print_line = [&](const std::string& workers, const std::string& name, const Speedup* row) {
    fmt::print("{:>7}  {:<22}", workers, name);
    for (const auto& [head, value] : columns)
      if (!std::isnan(rows[0].*value))
        fmt::print("{:>20}", !row ? head : std::isnan(row->*value) ? "" : fmt::format("{:.2f}", row->*value));
    fmt::print("\n");
  };
  if (with_head) print_line("workers", "times as fast with", nullptr);
  for (const Speedup& row : rows) print_line(&row == &rows[0] ? std::to_string(c.ranks()) : "", row.name, &row);
}

// Chains of blocks that nest: the smallest primes first, at most three levels.
std::vector<std::string> usual_hierarchies(int ranks) {
  std::vector<int> sizes;
  for (int size = 1, left = ranks; left > 1;) {
    int prime = 2;
    while (left % prime != 0) ++prime;
    left /= prime;
    sizes.push_back(size *= prime);
  }
  if (const size_t n = sizes.size(); n > 3) sizes = {sizes[(n + 2) / 3 - 1], sizes[(2 * n + 2) / 3 - 1], sizes[n - 1]};
  std::vector<std::string> out;
  for (size_t first = 0; first + 1 < sizes.size(); ++first) {
    std::string text;
    for (size_t i = first; i < sizes.size(); ++i)
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",", int64_t{8} >> (sizes.size() - 1 - i), sizes[i]);
    out.push_back(text);
  }
  if (out.empty()) out.push_back(fmt::format("8:{}", ranks));
  return out;
}

/// The times that `tessera train --json` noted. Throws FileError.
RankTimes read_times(const std::string& file) {
  const nlohmann::json run = nlohmann::json::parse(read_file(file), nullptr, false);
  const auto fail = [&](const char* what) { return FileError(fmt::format("{}: {}", file, what)); };
  if (!run.is_object()) throw fail("no JSON object");
  const auto found = run.find("own_ms");
  if (found == run.end()) throw fail("no own_ms, the times of several ranks that tessera train --json notes");
  const nlohmann::json& ranks = *found;
  if (!ranks.is_array() || ranks.size() < 2 || ranks.size() > INT_MAX || !ranks[0].is_array() || ranks[0].empty())
    throw fail("own_ms has no steps of several ranks");
  const size_t n = ranks.size(), steps = ranks[0].size();
  RankTimes out{.ranks = static_cast<int>(n), .stall = std::vector<float>(n * steps)};
  for (size_t r = 0; r < n; ++r) {
    if (!ranks[r].is_array() || ranks[r].size() != steps) throw fail("own_ms has ranks with other numbers of steps");
    for (size_t s = 0; s < steps; ++s) {
      if (!ranks[r][s].is_number()) throw fail("own_ms has what is no number");
      const double ms = ranks[r][s].get<double>();
      if (!(std::abs(ms) <= 1e9)) throw fail("own_ms is out of range");
      out.stall[s * n + r] = static_cast<float>(std::max(ms, 0.0));
    }
  }
  return out;
}

struct SimulateCommand : CommonOptions {
  int workers = 0, ranks_of_host = 0, runs = 4;
  int64_t steps = 1000;
  double step = 55;
  dist::StragglerModel model;
  std::string hierarchy, from, picture;

  std::vector<RankTimes> draw(int ranks, double probability) const {
    dist::StragglerModel drawn = model;
    drawn.probability = probability;
    std::vector<RankTimes> out;
    for (int i = 0; i < runs; ++i)
      out.push_back(dist::draw_times(ranks, steps, step, drawn, seed + static_cast<uint64_t>(i)));
    return out;
  }

  void note(Results& results, const SimulatedRuns& c, const std::vector<Speedup>& rows, double all) const {
    results.add(fmt::format("{} synchronous", c.ranks()), all, "ms", false);
    for (const Speedup& row : rows)
      for (const auto& [name, value] :
           {std::pair{"one step ahead", row.ahead}, {"strict, hosts", row.hosts}, {"strict", row.strict}})
        if (!std::isnan(value)) results.add(fmt::format("{} {}, {}", c.ranks(), row.name, name), value, "x", true);
  }

  /// The published table.
  void compare(Results& results) const {
    Series low{"published, lowest", {}}, high{"published, highest", {}}, ahead_low{"one step ahead, lowest", {}},
        ahead_high{"one step ahead, highest", {}}, strict_low{"strict, lowest", {}}, strict_high{"strict, highest", {}};
    std::string ends;
    for (const Published& p : kPublished) {
      const SimulatedRuns c{draw(p.workers, p.probability), p.hierarchies, kPublishedHost};
      check(c);
      const double all = synchronous_step(c);
      const std::vector<Speedup> rows = rows_of(c, all);
      print_rows(rows, c, &p == &kPublished[0]);
      note(results, c, rows, all);
      const auto end = [&](double Speedup::*column, bool is_high) {
        double out = rows[0].*column;
        for (const Speedup& r : rows)
          if (r.is_hierarchy) out = is_high ? std::max(out, r.*column) : std::min(out, r.*column);
        return out;
      };
      const double a = end(&Speedup::ahead, false), b = end(&Speedup::ahead, true);
      ends += fmt::format(
          "{:>7}  {:.2f} to {:.2f}, published {:.2f} to {:.2f}: {:+.1f} % and {:+.1f} %; strict {:.2f} "
          "to {:.2f}; {:.0f} ms a synchronous step\n",
          p.workers, a, b, p.low, p.high, 100 * (a / p.low - 1), 100 * (b / p.high - 1), end(&Speedup::strict, false),
          end(&Speedup::strict, true), all);
      for (const auto& [series, value] : {std::pair{&low, p.low},
                                          {&high, p.high},
                                          {&ahead_low, a},
                                          {&ahead_high, b},
                                          {&strict_low, end(&Speedup::strict, false)},
                                          {&strict_high, end(&Speedup::strict, true)}})
        series->points.emplace_back(p.workers, value);
    }
    fmt::print("\nhierarchies, lowest and highest, one step ahead\n{}\n", ends);
    fmt::print(
        "Hierarchies, hosts of 4, steps of 55 ms and stalls of 1 s are as published. That a host prepares a step\n"
        "while its device is in the one before is fitted to the published figures. Backup workers leave out\n"
        "the gradients of a step that come last.\n");
    draw_picture({.title = "times as fast as synchronous training",
                  .x_label = "workers",
                  .y_label = "times as fast",
                  .series = {low, high, ahead_low, ahead_high, strict_low, strict_high},
                  .log_x = true,
                  .labels_left = true});
  }

  /// One run, measured or drawn.
  void report(SimulatedRuns c, Results& results) const {
    c.hierarchies = hierarchy.empty() ? usual_hierarchies(c.ranks()) : std::vector{hierarchy};
    check(c);
    const double all = synchronous_step(c);
    const std::vector<Speedup> rows = rows_of(c, all);
    fmt::print(
        "{} ranks, {} steps: {:.1f} ms a synchronous step, in which ranks wait for each other {:.1f} % of their "
        "time\n\n",
        c.ranks(), c.runs[0].steps(), all, 100 * dist::explain_waiting(c.runs[0]).lost);
    print_rows(rows, c, true);
    note(results, c, rows, all);
    judge(c, rows, results);
    draw_course(c);
  }

  static void check(const SimulatedRuns& c) {
    try {
      for (const std::string& text : c.hierarchies)
        dist::LocalSGDOptions{.hierarchy = dist::parse_hierarchy(text), .gradients_within = c.ranks_of_host}.check(
            c.ranks());
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
  }

  static void judge(const SimulatedRuns& c, const std::vector<Speedup>& rows, Results& results) {
    const Speedup* best = nullptr;
    for (const Speedup& row : rows)
      if (row.is_hierarchy && (!best || row.strictest() > best->strictest())) best = &row;
    const std::string why = dist::why_not_worth(c.runs[0], best->strictest());
    results.extra()["pays"] = why.empty();
    if (why.empty()) fmt::print("\n{} would make it {:.2f} times as fast\n", best->name, best->strictest());
    else fmt::print("\nno hierarchy would pay: {}\n", why);
  }

  // Of the first run: when each step was made.
  void draw_course(const SimulatedRuns& c) const {
    Plot plot{.title = "when all ranks have made a step",
              .x_label = "step",
              .y_label = "seconds",
              .series = {},
              .labels_left = true};
    const auto add = [&](const std::string& name, const dist::AveragingScheme& scheme) {
      plot.series.push_back({name, {}});
      int64_t step = 0;
      for (const double ms : dist::simulate(c.runs[0], scheme))
        plot.series.back().points.emplace_back(++step, ms / 1e3);
    };
    add("synchronous", {});
    for (const std::string& text : c.hierarchies) add(text, {dist::parse_hierarchy(text), c.ranks_of_host});
    draw_picture(plot);
  }
  void draw_picture(const Plot& plot) const {
    if (!picture.empty()) write_file(picture, to_svg(plot));
  }

  void run() const {
    for (const std::string& file : {json, picture})
      if (!file.empty()) require_writable(file);
    Results results("simulate stragglers", *this);
    if (!from.empty()) report({{read_times(from)}, {}, std::max(ranks_of_host, 1)}, results);
    else if (workers > 0) report({drawn(), {}, std::max(ranks_of_host, 1)}, results);
    else if (!hierarchy.empty() || ranks_of_host > 0)
      throw UsageError("--hierarchy and --ranks-of-host go with --workers or --from");
    else compare(results);
    results.write();
  }
  std::vector<RankTimes> drawn() const {
    try {
      return draw(workers, model.probability);
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
  }
};

}  // namespace

void add_simulate(Command app) {
  const Command simulate = app.command("simulate", "Foretell what a run would be like.");
  simulate.require_command();
  const Command command = simulate.command(
      "stragglers", "What late ranks cost and averaging now and then saves; without --workers the published cases.");
  auto c = std::make_shared<SimulateCommand>();
  const Option workers = command.option("--workers", c->workers, "ranks").range(2, 65536);
  command.option("--from", c->from, "what tessera train --json wrote of a run of several ranks: replay it")
      .excludes(workers);
  command.option("--hierarchy", c->hierarchy, "levels of steps and neighbouring ranks, such as 2:8,4:32,8:64");
  command
      .option("--ranks-of-host", c->ranks_of_host, "neighbours whose gradients are one in every step; 4 as published")
      .range(1, 65536);
  command.option("--step", c->step, "milliseconds of a step").range(0.0, 1e9).with_default().needs(workers);
  command.option("--stall", c->model.stall, "milliseconds that a straggler is late")
      .range(0.0, 1e9)
      .with_default()
      .needs(workers);
  command.option("--probability", c->model.probability, "of a stall, of each rank in each step")
      .range(0.0, 1.0)
      .with_default()
      .needs(workers);
  command.flag("--persistent", c->model.persistent, "always the same ranks stall: so large a part of them")
      .needs(workers);
  command.option("--steps", c->steps, "of each run").range(1, INT_MAX).with_default();
  command.option("--runs", c->runs, "that are drawn and averaged").range(1, 1000).with_default();
  command.option("--seed", c->seed, "of what is drawn").with_default();
  command.option("--picture", c->picture, "file for a picture (.svg)");
  command.option("--json", c->json, "write the results to this file");
  command.run([c] { c->run(); });
}

}  // namespace tessera::app
